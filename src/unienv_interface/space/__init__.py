"""Spaces describe data. `space.py` has the base class, `spaces/` the kinds of space."""

from . import space_utils
from .mismatch import describe_mismatch, validate
from .space import Space
from .space_utils import batch_utils, flatten_utils
from .spaces import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    GraphInstance,
    GraphSpace,
    TextSpace,
    TupleSpace,
    UnionSpace,
)

__all__ = [
    "BatchedSpace",
    "BinarySpace",
    "BoxSpace",
    "DictSpace",
    "DynamicBoxSpace",
    "GraphInstance",
    "GraphSpace",
    "Space",
    "TextSpace",
    "TupleSpace",
    "UnionSpace",
    "batch_utils",
    "describe_mismatch",
    "flatten_utils",
    "space_utils",
    "validate",
]
