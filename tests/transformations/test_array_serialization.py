import json

import numpy as np
import pytest
from transformation_cases import BACKENDS, named

from unienv_interface.utils.array_serialization import (
    deserialize_scalar_or_array_value,
    serialize_scalar_or_array_value,
)


def through_json(value):
    return json.loads(json.dumps(serialize_scalar_or_array_value(value)))


@pytest.mark.parametrize("value", [0, -3, 2**70, 0.1, float("inf"), float("-inf"), True])
def test_numbers_stay_numbers(value):
    again = deserialize_scalar_or_array_value(through_json(value))
    assert again == value
    assert type(again) is type(value)


def test_nan():
    assert np.isnan(deserialize_scalar_or_array_value(through_json(float("nan"))))


ARRAYS = {
    "float32": [0.1, -0.0, np.inf, -np.inf, np.nan, 1e-45],
    "float64": [0.1, 1e308, 5e-324, np.nan],
    "float16": [0.1, 65504],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [0, 2**64 - 1],
    "int8": [-128, 127],
    "bool": [True, False],
    "complex64": [1 + 2j, complex(np.inf, -0.0)],
}


@pytest.mark.parametrize("dtype", ARRAYS)
@pytest.mark.parametrize("shape", [(-1,), (1, -1, 1)])
def test_arrays_are_exact(dtype, shape):
    array = np.array(ARRAYS[dtype], dtype).reshape(shape)
    stored = through_json(array)
    assert stored["dtype"] == dtype
    again = deserialize_scalar_or_array_value(stored)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    np.testing.assert_array_equal(again, array)
    np.testing.assert_array_equal(np.signbit(again.real), np.signbit(array.real)) if array.dtype.kind == "f" else None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_odd_shapes(shape):
    again = deserialize_scalar_or_array_value(through_json(np.zeros(shape, np.float32)))
    assert again.shape == shape
    assert again.dtype == np.float32


def test_a_numpy_number_keeps_its_dtype():
    again = deserialize_scalar_or_array_value(through_json(np.float32(0.1)))
    assert (again.dtype, again.shape) == (np.float32, ())
    assert again == np.float32(0.1)


@pytest.mark.parametrize("source", BACKENDS)
@pytest.mark.parametrize("target", BACKENDS)
def test_the_backend_is_the_reader_s_choice(source, target):
    array = np.array([[0.1, np.inf]], np.float32)
    stored = through_json(named(source).from_numpy(array.copy()))
    assert stored == through_json(array)
    again = deserialize_scalar_or_array_value(stored, named(target))
    assert named(target).is_backendarray(again)
    np.testing.assert_array_equal(named(target).to_numpy(again), array)


@pytest.mark.parametrize("backend_name", ["pytorch", "jax"])
def test_bfloat16(backend_name):
    backend = named(backend_name)
    array = backend.from_host(np.array([0.1, -3.0], np.float32), backend.dtype_from_name("bfloat16"))
    again = deserialize_scalar_or_array_value(through_json(array), backend)
    assert backend.dtype_name(again.dtype) == "bfloat16"
    np.testing.assert_array_equal(backend.to_host(again), backend.to_host(array))


def test_a_device_can_be_chosen():
    pytest.importorskip("torch")
    again = deserialize_scalar_or_array_value(through_json(np.ones(2)), named("pytorch"), "meta")
    assert again.device.type == "meta"


def test_lists_are_arrays():
    assert through_json([1, 2]) == {"dtype": "int64", "shape": [2], "value": [1, 2]}
    np.testing.assert_array_equal(deserialize_scalar_or_array_value([[1, 2.5], [3, 4]]), [[1, 2.5], [3, 4]])
    np.testing.assert_array_equal(deserialize_scalar_or_array_value({"value": [[1], [2]]}), [[1], [2]])


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("inf", "'inf' is not the JSON of a number or an array"),
        (None, "None is not the JSON"),
        ({"dtype": "float32"}, "is not the JSON of a number or an array"),
        ({"value": [1], "dtype": "object", "shape": [1]}, "unknown dtype 'object' of an array"),
        ({"value": [1], "dtype": "float32", "shape": [2]}, r"shape \[2\] of an array does not fit its 1 entries"),
        ({"value": [1], "dtype": "float32", "shape": [-1]}, r"shape \[-1\] of an array is not a list of sizes"),
        ({"value": [1], "dtype": "float32", "shape": [10**30]}, "does not fit its 1 entries"),
        ({"value": ["a"], "dtype": "float32", "shape": [1]}, "not the entries of an array of float32"),
        (
            {"value": [1.5], "dtype": "int32", "shape": [1]},
            "entries of an array of int32: 1.5 has the wrong type",
        ),
        ({"value": [300], "dtype": "uint8", "shape": [1]}, "not the entries of an array of uint8"),
        ([[1], [2, 3]], "not the entries of an array of numbers"),
    ],
)
def test_anything_else_is_a_value_error(stored, text):
    with pytest.raises(ValueError, match=text):
        deserialize_scalar_or_array_value(stored)


def test_only_numbers_and_arrays_are_written():
    with pytest.raises(TypeError, match="is not an array of NumPy, PyTorch or JAX"):
        serialize_scalar_or_array_value(object())
