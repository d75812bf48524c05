"""METEOR 1.5 in pure Python."""

from ngsan.metrics.meteor.scorer import Meteor

__all__ = ["Meteor"]
