"""A backend has the names of the array API and of array-api-extra, and helpers of its own."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import array_api_extra
import numpy as np
import pytest
from catalogue import assert_same, backend_cases

from unienv_interface.backends import ComputeBackend

every_backend = pytest.mark.parametrize("backend", backend_cases())

ARRAY_API = """arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril
triu zeros zeros_like astype broadcast_arrays broadcast_to can_cast finfo iinfo isdtype result_type abs acos acosh
add asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift
bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater greater_equal hypot
imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or
logical_xor maximum minimum multiply negative not_equal positive pow real remainder round sign signbit sin sinh sqrt
square subtract tan tanh trunc take matmul matrix_transpose tensordot vecdot concat expand_dims flip moveaxis
permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin count_nonzero nonzero searchsorted where
unique_all unique_counts unique_inverse unique_values argsort sort cumulative_sum max mean min prod std sum var all
any e inf nan newaxis pi linalg fft bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64
complex128""".split()  # noqa: SIM905


@every_backend
def test_the_names_of_the_array_api_are_there(backend: ComputeBackend) -> None:
    assert [name for name in ARRAY_API if not hasattr(backend, name)] == []
    assert backend.newaxis is None
    assert backend.__array_namespace_info__() is not None


@every_backend
def test_the_helpers_of_array_api_extra_are_there(backend: ComputeBackend) -> None:
    helpers = [name for name in array_api_extra.__all__ if not name.startswith("__") and name != "testing"]
    assert [name for name in helpers if not hasattr(backend, name)] == []


@every_backend
def test_helpers_know_their_backend(backend: ComputeBackend) -> None:
    """Called without an array to tell them by, or with the namespace already bound."""
    x = backend.asarray([3, 1, 3])
    assert tuple(backend.atleast_nd(x, ndim=3).shape) == (1, 1, 3)
    assert backend.to_numpy(backend.one_hot(x, 4)).argmax(axis=-1).tolist() == [3, 1, 3]
    if backend.simplified_name == "jax":
        return  # the others would be compiled for nothing new
    assert int(backend.nunique(x)) == 2
    assert backend.to_numpy(backend.create_diagonal(x))[0].tolist() == [3, 0, 0]
    assert backend.to_numpy(backend.pad(x, 1)).tolist() == [0, 3, 1, 3, 0]
    assert backend.to_numpy(backend.setdiff1d(x, backend.asarray([1]))).tolist() == [3]
    assert backend.to_numpy(backend.at(x)[0].set(7)).tolist() == [7, 1, 3]


@every_backend
def test_an_unknown_name_says_where_it_was_looked_for(backend: ComputeBackend) -> None:
    with pytest.raises(AttributeError) as error:
        backend.matrix_multiply  # noqa: B018
    assert str(error.value) == (
        f"backend {backend} has no attribute 'matrix_multiply': it is neither in the array API, nor in "
        f"array-api-extra, nor in {backend.namespace.__name__}"
    )
    assert not hasattr(backend, "_anything")
    assert not hasattr(backend, "__len__")


@every_backend
def test_names_are_looked_up_once(backend: ComputeBackend) -> None:
    assert backend.stack is backend.stack
    assert backend.one_hot is backend.one_hot
    assert "stack" in vars(backend)


# -- helpers of our own ------------------------------------------------------------------------------------


@every_backend
def test_pad_dim(backend: ComputeBackend) -> None:
    x = backend.from_numpy(np.ones((2, 2), np.float32))
    assert backend.to_numpy(backend.pad_dim(x, 0, 3)).tolist() == [[1, 1], [1, 1], [0, 0]]
    assert backend.to_numpy(backend.pad_dim(x, -1, 3, value=5)).tolist() == [[1, 1, 5], [1, 1, 5]]
    assert backend.pad_dim(x, 1, 2) is x
    with pytest.raises(ValueError) as error:
        backend.pad_dim(x, -1, 1)
    assert str(error.value) == "axis -1 has size 2, it cannot be padded to 1"


@every_backend
def test_abbreviate_array(backend: ComputeBackend) -> None:
    def short(values: Any, **options: Any) -> Any:
        return backend.abbreviate_array(backend.from_numpy(np.array(values, np.float32)), **options)

    assert short([[2, 2], [2, 2]]) == 2.0
    assert_same(
        None, short([[2, 2], [2, 2]], try_cast_scalar=False), backend.from_numpy(np.full((1, 1), 2, np.float32))
    )
    assert_same(None, short([[1, 1], [2, 2]]), backend.from_numpy(np.array([[1], [2]], np.float32)))
    assert_same(None, short([1, 2]), backend.from_numpy(np.array([1, 2], np.float32)))
    assert np.isnan(short([np.nan, np.nan]))
    assert short(3) == 3.0
    assert tuple(short(np.zeros((0, 2))).shape) == (0, 1)


@every_backend
def test_map_fn_over_arrays(backend: ComputeBackend) -> None:
    pair = namedtuple("pair", "a b")
    x = backend.from_numpy(np.ones(2, np.float32))
    data = {"x": x, "nested": [x, (x, "text"), pair(x, None)], "number": 3}
    mapped = backend.map_fn_over_arrays(data, lambda array: float(array.sum()))
    assert mapped == {"x": 2.0, "nested": [2.0, (2.0, "text"), pair(2.0, None)], "number": 3}
    assert isinstance(mapped["nested"][2], pair)
    assert data["x"] is x
