"""Functions of spaces and their values. Import `gym_utils` yourself: it needs Gymnasium."""

from .batch_utils import (
    batch_differing_spaces,
    batch_size,
    batch_size_data,
    batch_space,
    concatenate,
    get_at,
    iterate,
    reshape_batch_size,
    reshape_batch_size_in_data,
    set_at,
    swap_batch_dims,
    swap_batch_dims_in_data,
    unbatch_spaces,
)
from .construct_utils import construct_space_from_data, construct_space_from_data_stream
from .flatten_utils import flat_dim, flatten_data, flatten_space, is_flattenable, unflatten_data
from .serialization_utils import json_to_space, register_json_reader, space_to_json

__all__ = [
    "batch_differing_spaces",
    "batch_size",
    "batch_size_data",
    "batch_space",
    "concatenate",
    "construct_space_from_data",
    "construct_space_from_data_stream",
    "flat_dim",
    "flatten_data",
    "flatten_space",
    "get_at",
    "is_flattenable",
    "iterate",
    "json_to_space",
    "register_json_reader",
    "reshape_batch_size",
    "reshape_batch_size_in_data",
    "set_at",
    "space_to_json",
    "swap_batch_dims",
    "swap_batch_dims_in_data",
    "unbatch_spaces",
    "unflatten_data",
]
