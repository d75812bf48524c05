"""Search over captions: it sees the step protocol, never a model class."""

from ngsan.decoding.beam import Beam
from ngsan.decoding.constraints import Constraints
from ngsan.decoding.ensemble import Ensemble
from ngsan.decoding.protocol import StepModel
from ngsan.decoding.result import Written
from ngsan.decoding.sampling import Greedy, Sampling
from ngsan.decoding.search import Search

__all__ = [
    "Beam",
    "Constraints",
    "Ensemble",
    "Greedy",
    "Sampling",
    "Search",
    "StepModel",
    "Written",
]
