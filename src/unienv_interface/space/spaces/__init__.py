"""The kinds of space."""

from ..space import Space
from ._composite import CompositeSpace
from .array import ArraySpace
from .batched import BatchedSpace
from .binary import BinarySpace
from .box import BoxSpace
from .dict import DictSpace
from .dynamic_box import DynamicBoxSpace
from .graph import GraphInstance, GraphSpace
from .text import TextSpace
from .tuple import TupleSpace
from .union import UnionSpace

__all__ = [
    "ArraySpace",
    "BatchedSpace",
    "BinarySpace",
    "BoxSpace",
    "CompositeSpace",
    "DictSpace",
    "DynamicBoxSpace",
    "GraphInstance",
    "GraphSpace",
    "Space",
    "TextSpace",
    "TupleSpace",
    "UnionSpace",
]
