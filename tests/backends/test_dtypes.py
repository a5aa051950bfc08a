"""Dtypes by name, what they are, and the devices of the machine at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, COMPLEX, DTYPES, FLOATS, INTEGERS, SPACES, backend_cases

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, dtypes
from unienv_interface.space.spaces import DictSpace

every_backend = pytest.mark.parametrize("backend", backend_cases())


def held(backend: ComputeBackend, name: str) -> str:
    """What a backend makes of a dtype: JAX has no 64-bit ones by default."""
    narrower = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
    return narrower.get(name, name) if backend.simplified_name == "jax" else name


@every_backend
@pytest.mark.parametrize("name", DTYPES)
def test_names_round_trip_and_say_what_a_dtype_is(backend: ComputeBackend, name: str) -> None:
    dtype = backend.dtype_from_name(name)
    assert backend.dtype_name(dtype) == held(backend, name)
    assert backend.zeros((1,), dtype=dtype).dtype == dtype
    assert backend.dtype_is_boolean(dtype) is (name == "bool")
    assert backend.dtype_is_real_integer(dtype) is (name in INTEGERS)
    assert backend.dtype_is_real_floating(dtype) is (name in FLOATS)
    assert backend.dtype_is_complex(dtype) is (name in COMPLEX)


@every_backend
@pytest.mark.parametrize("name", ["object", "str", "float8_e4m3fn", "int4", "datetime64", "", "longdouble"])
def test_unknown_names(backend: ComputeBackend, name: str) -> None:
    with pytest.raises(TypeError, match=f"has no dtype '{name}'"):
        backend.dtype_from_name(name)


@every_backend
def test_default_dtypes(backend: ComputeBackend) -> None:
    expected = {
        "numpy": ("int64", "float64", "int64"),
        "pytorch": ("int32", "float32", "int64"),
        "jax": ("int32", "float32", "int32"),
    }[backend.simplified_name]
    found = (backend.default_integer_dtype, backend.default_floating_dtype, backend.default_index_dtype)
    assert tuple(backend.dtype_name(dtype) for dtype in found) == expected
    assert backend.dtype_name(backend.default_boolean_dtype) == "bool"


@pytest.mark.parametrize("source", DTYPES)
def test_a_safe_cast_keeps_every_extreme(source: str) -> None:
    """Exact arithmetic on the values where a dtype is most demanding."""
    for target in DTYPES:
        held_all = all(_holds(target, value) for value in _demanding_values(source))
        assert dtypes.can_cast_safely(source, target) is held_all, target


def _demanding_values(name: str) -> list[Any]:
    if name == "bool":
        return [True, False]
    if name in INTEGERS:
        limits = np.iinfo(name)
        return [int(limits.min), int(limits.max)]
    if name in COMPLEX:
        part = "float32" if name == "complex64" else "float64"
        return [complex(0, value) for value in _demanding_values(part)]
    if name == "bfloat16":
        return [1 + 2.0**-7, 2.0**127, 2.0**-133]
    floats = np.finfo(name)
    return [1 + float(floats.eps), float(floats.max), float(floats.smallest_subnormal)]


def _holds(name: str, value: Any) -> bool:
    if name == "bool":
        return isinstance(value, bool)
    if name in COMPLEX:
        part = "float32" if name == "complex64" else "float64"
        return _holds(part, value.real) and _holds(part, value.imag)
    if isinstance(value, complex):
        return False
    if name in INTEGERS:
        limits = np.iinfo(name)
        return value == int(value) and int(limits.min) <= value <= int(limits.max)
    dtype = NumpyComputeBackend.dtype_from_name(name)
    with np.errstate(over="ignore"):
        cast = np.asarray(float(value)).astype(dtype).astype(np.float64)
    return float(value) == value and float(cast) == value


@pytest.mark.parametrize("name", DTYPES)
def test_raw_dtypes_are_little_endian_and_of_the_same_size(name: str) -> None:
    raw = dtypes.raw_dtype(name)
    assert raw.itemsize == NumpyComputeBackend.dtype_from_name(name).itemsize
    assert raw.newbyteorder("<") == raw
    assert raw.byteorder in "|<="


# -- devices -----------------------------------------------------------------------------------------------


@every_backend
def test_devices_round_trip_by_name(backend: ComputeBackend) -> None:
    array = backend.zeros((2,))
    device = backend.device(array)
    name = backend.serialize_device(device)
    assert name in (None, "cpu", "cpu:0")
    assert backend.same_device(backend.deserialize_device(name), device) or backend is NumpyComputeBackend
    assert backend.serialize_device(None) is backend.deserialize_device(None) is None
    assert backend.to_device(array, None) is array
    assert backend.same_device(backend.device(backend.to_device(array, device)), device)
    assert not backend.same_device(device, None) or backend is NumpyComputeBackend


@every_backend
@pytest.mark.parametrize("name", ["cuda:99", "nonsense", "cpu:x", "tpu:3", ":"])
def test_unknown_devices(backend: ComputeBackend, name: str) -> None:
    with pytest.raises(ValueError) as error:
        backend.deserialize_device(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b is not NumpyComputeBackend], ids=str)
def test_a_missing_device_says_which_there_are(backend: ComputeBackend) -> None:
    with pytest.raises(ValueError, match=r"has no device 'cuda:99' here, only .*cpu"):
        backend.deserialize_device("cuda:99")


@every_backend
@pytest.mark.parametrize("device", ["nonsense", ""])
def test_what_is_no_device_is_refused_by_spaces(backend: ComputeBackend, device: str) -> None:
    with pytest.raises(ValueError, match=f"{device!r}"):
        SPACES["box_float32"](backend).to(device=device)
    with pytest.raises(ValueError, match=f"{device!r}"):
        DictSpace(backend, device=device)


def test_numpy_has_one_device() -> None:
    with pytest.raises(ValueError, match="NumPy arrays lie on the CPU, there is no device 'cuda'"):
        NumpyComputeBackend.to_device(np.zeros(2), "cuda")


def test_the_names_of_pytorch_devices() -> None:
    torch = pytest.importorskip("torch")
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    backend: ComputeBackend = PyTorchComputeBackend

    assert backend.serialize_device(torch.device("cuda", 1)) == "cuda:1"
    assert backend.serialize_device("cpu:0") == "cpu"
    assert backend.same_device("cpu", torch.device("cpu", 0))
    with pytest.raises(ValueError, match="'gpu' is not the name of a PyTorch device, such as 'cpu' or 'cuda:0'"):
        backend.serialize_device("gpu")


def test_the_names_of_jax_devices() -> None:
    jax = pytest.importorskip("jax")
    from unienv_interface.backends.jax import JaxComputeBackend

    backend: ComputeBackend = JaxComputeBackend

    device = jax.devices("cpu")[0]
    assert backend.serialize_device(jax.sharding.SingleDeviceSharding(device)) == "cpu:0"
    assert backend.same_device(jax.sharding.SingleDeviceSharding(device), device)
    assert backend.deserialize_device("cpu") is device
    with pytest.raises(ValueError, match="'cpu' has no name, it must be one JAX device or a sharding over one"):
        backend.serialize_device("cpu")


@every_backend
def test_no_dtype_is_of_no_kind(backend: ComputeBackend) -> None:
    kinds = (
        backend.dtype_is_real_integer,
        backend.dtype_is_real_floating,
        backend.dtype_is_boolean,
        backend.dtype_is_complex,
    )
    assert [is_kind(None) for is_kind in kinds] == [False] * 4
