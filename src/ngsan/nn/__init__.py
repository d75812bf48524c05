"""Tensors in, tensors out: the paper's attention and what stands around it."""

from ngsan.nn.attend import Attend, AttentionMaps
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.feedforward import FeedForward
from ngsan.nn.geometry import AbsoluteGeometry, GeometryBias, check_boxes, relative_geometry
from ngsan.nn.layers import DecoderLayer, EncoderLayer
from ngsan.nn.losses import word_cross_entropy
from ngsan.nn.normalize import BatchNorm, InstanceNorm, LayerNorm
from ngsan.nn.positions import sinusoidal

__all__ = [
    "AbsoluteGeometry",
    "Attend",
    "AttentionMaps",
    "BatchNorm",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForward",
    "GeometryBias",
    "InstanceNorm",
    "LayerNorm",
    "MultiHeadAttention",
    "check_boxes",
    "relative_geometry",
    "sinusoidal",
    "word_cross_entropy",
]
