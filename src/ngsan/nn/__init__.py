"""Tensors in, tensors out: the paper's attention and the layers around it."""

from ngsan.nn.attend import Attend, AttentionMaps
from ngsan.nn.attention import MultiHeadAttention
from ngsan.nn.geometry import (
    AbsoluteGeometry,
    GeometryBias,
    check_boxes,
    relative_geometry,
    sinusoidal,
)
from ngsan.nn.layers import DecoderLayer, EncoderLayer, FeedForward
from ngsan.nn.losses import word_cross_entropy
from ngsan.nn.normalize import BatchNorm, InstanceNorm, LayerNorm

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
