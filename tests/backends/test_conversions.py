"""Arrays from backend to backend: the values stay, and memory is shared only where nobody can be surprised."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, COMPLEX, DTYPES, assert_same, backend_cases

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend, dtypes

every_backend = pytest.mark.parametrize("backend", backend_cases())
np_backend = NumpyComputeBackend


def numbers(dtype: str) -> np.ndarray:
    """Six small numbers, exact in every dtype."""
    return np.array([0, 1, 0, 3, 1, 2]).astype(np_backend.dtype_from_name(dtype))


def misaligned(values: np.ndarray) -> np.ndarray:
    """The values in the second field of a packed record, where no address is a multiple of their size."""
    records = np.zeros(values.shape, [("flag", "u1"), ("values", values.dtype)])
    records["values"] = values
    return records["values"]


def read_only(values: np.ndarray) -> np.ndarray:
    copied = values.copy()
    copied.flags.writeable = False
    return copied


LAYOUTS: dict[str, Any] = {
    "plain": lambda values: values,
    "matrix": lambda values: values.reshape(2, 3),
    "scalar": lambda values: values[3].reshape(()),
    "numpy_scalar": lambda values: values[3],
    "empty": lambda values: values[:0].reshape(0, 2),
    "every_other": lambda values: values[::2],
    "backwards": lambda values: values[::-1],
    "transposed": lambda values: values.reshape(2, 3).T,
    "swapped_bytes": lambda values: values.astype(values.dtype.newbyteorder(">")),
    "read_only": read_only,
    "broadcast": lambda values: np.broadcast_to(values, (2, 6)),
    "misaligned": misaligned,
    "masked": lambda values: np.ma.masked_array(values),
}


def sample_array(dtype: str, layout: str) -> np.ndarray:
    if layout == "swapped_bytes" and dtype == "bfloat16":
        layout = "plain"  # ml_dtypes has no such thing
    return LAYOUTS[layout](numbers(dtype))


def assert_equal_numbers(mine: Any, theirs: Any) -> None:
    mine, theirs = (np.asarray(x) for x in (mine, theirs))
    assert mine.shape == theirs.shape
    np.testing.assert_array_equal(mine.astype(complex), theirs.astype(complex))


# -- NumPy and a backend -----------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_numpy_and_back(backend: ComputeBackend, dtype: str) -> None:
    for layout, copy in itertools.product(LAYOUTS, (None, True, False)):
        source = sample_array(dtype, layout)
        array = backend.from_numpy(source, copy=copy)
        assert isinstance(array, backend.ARRAY_TYPE), layout
        assert backend.dtype_name(array.dtype) == backend.dtype_name(backend.dtype_from_name(dtype)), layout
        back = backend.to_numpy(array)
        assert type(back) is np.ndarray, layout
        assert back.dtype.name == backend.dtype_name(array.dtype), layout
        assert_equal_numbers(back, source)
        assert_equal_numbers(backend.to_host(array), source)


@every_backend
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_is_shared_only_where_promised(backend: ComputeBackend, layout: str) -> None:
    source = sample_array("float32", layout)
    shared, copied, given = (backend.to_numpy(backend.from_numpy(source, copy=copy)) for copy in (None, True, False))
    assert not np.shares_memory(copied, source)
    for result in (shared, given):
        if np.shares_memory(result, source):
            assert not result.flags.writeable or source.flags.writeable
    if backend.simplified_name == "jax":
        assert not np.shares_memory(shared, source)
    elif layout in ("plain", "matrix", "every_other", "transposed"):
        assert np.shares_memory(shared, source)
        source[...] = 7
        assert (shared == 7).all()


@every_backend
def test_copy_false_shares_what_the_library_can(backend: ComputeBackend) -> None:
    aligned = np.empty(1024, np.float32)
    start = (-aligned.ctypes.data // 4) % 16  # JAX wants 64 bytes
    source = aligned[start : start + 512]
    assert np.shares_memory(backend.to_numpy(backend.from_numpy(source, copy=False)), source)


@every_backend
def test_to_numpy_shares_and_protects_what_is_immutable(backend: ComputeBackend) -> None:
    array = backend.from_numpy(np.zeros(4, np.float32), copy=True)
    view = backend.to_numpy(array)
    if backend.simplified_name == "jax":
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    else:
        view[0] = 5
        assert float(array[0]) == 5


@every_backend
def test_from_numpy_takes_a_dtype_and_a_device(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    array = backend.from_numpy(np.arange(3), dtype=backend.dtype_from_name("float32"), device=device)
    assert backend.dtype_name(array.dtype) == "float32"
    assert backend.same_device(backend.device(array), device)
    assert backend.to_numpy(array).tolist() == [0, 1, 2]


# -- raw bits and host values ------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_bits_round_trip(backend: ComputeBackend, dtype: str) -> None:
    array = backend.from_numpy(numbers(dtype))
    name = backend.dtype_name(array.dtype)
    raw = backend.to_raw(array)
    assert raw.dtype == dtypes.raw_dtype(name)
    assert_same(None, backend.from_raw(raw.copy(), name), array)
    assert_same(None, backend.from_raw(raw.reshape(2, 3).copy(), name), backend.reshape(array, (2, 3)))
    device = backend.device(array)
    for decode in (backend.raw_decoder(name), backend.raw_decoder(name, device=device)):
        decoded = decode(raw.reshape(2, 3).copy())
        assert_same(None, decoded, backend.reshape(array, (2, 3)))
        assert backend.same_device(backend.device(decoded), device)


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_from_raw_does_not_make_read_only_memory_writable(backend: ComputeBackend, dtype: str) -> None:
    raw = read_only(np_backend.to_raw(numbers(dtype)))
    memory = backend.to_raw(backend.from_raw(raw, dtype))
    assert not (memory.flags.writeable and np.shares_memory(memory, raw))


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_host_values_round_trip(backend: ComputeBackend, dtype: str) -> None:
    array = backend.from_numpy(numbers(dtype))
    host = backend.to_host(array)
    assert host.dtype == dtypes.host_dtype(backend.dtype_name(array.dtype))
    assert_same(None, backend.from_host(host, array.dtype), array)


@every_backend
def test_from_host_makes_a_new_array(backend: ComputeBackend) -> None:
    values = np.zeros(3, np.float32)
    array = backend.from_host(values, backend.dtype_from_name("float32"))
    values[...] = 9
    assert backend.to_numpy(array).tolist() == [0, 0, 0]


@every_backend
def test_bfloat16_rounds_to_nearest_even(backend: ComputeBackend) -> None:
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, np.inf], np.float32)
    array = backend.from_host(values, backend.dtype_from_name("bfloat16"))
    assert backend.to_host(array).tolist() == [1, 1 + 2**-6, 1 + 2**-7, 0, np.inf]
    assert np.signbit(backend.to_host(array)).tolist() == [False, False, False, True, False]


# -- between any two ---------------------------------------------------------------------------------------


PAIRS = [pytest.param(a, b, id=f"{a}-to-{b}") for a, b in itertools.product(BACKENDS, repeat=2)]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_between_backends_and_back(source: ComputeBackend, target: ComputeBackend, dtype: str) -> None:
    for shape in ((6,), (2, 3), (1, 6, 1)):
        array = source.from_numpy(numbers(dtype).reshape(shape))
        moved = target.from_other_backend(source, array)
        assert isinstance(moved, target.ARRAY_TYPE)
        assert_equal_numbers(target.to_host(moved), source.to_host(array))
        back = source.from_other_backend(target, moved)
        assert_equal_numbers(source.to_host(back), source.to_host(array))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_special_values_survive_bit_by_bit(source: ComputeBackend, target: ComputeBackend) -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000, 0x00000001], np.uint32)
    array = source.from_numpy(bits.view(np.float32))
    moved = target.from_other_backend(source, array)
    assert target.to_numpy(moved).view(np.uint32).tolist() == bits.tolist()


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_no_writable_array_lies_over_an_immutable_one(
    source: ComputeBackend, target: ComputeBackend, dtype: str
) -> None:
    array = source.from_numpy(read_only(numbers(dtype)))
    moved = target.from_other_backend(source, array)
    memory, origin = target.to_raw(moved), source.to_raw(array)
    if np.shares_memory(memory, origin):
        assert memory.flags.writeable is origin.flags.writeable
    if target.simplified_name == "jax" and source.simplified_name != "jax":
        assert not np.shares_memory(memory, origin)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_dlpack(source: ComputeBackend, target: ComputeBackend) -> None:
    array = source.from_numpy(numbers("float32"), copy=True)
    assert_equal_numbers(target.to_numpy(target.from_dlpack(array)), numbers("float32"))
    assert "dltensor" in repr(source.to_dlpack(array))


# -- what only one library has -----------------------------------------------------------------------------


def test_pytorch_tensors_of_every_kind_become_numpy() -> None:
    torch = pytest.importorskip("torch")
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    backend: ComputeBackend = PyTorchComputeBackend

    numbers_ = torch.tensor([1 + 2j, 3 - 1j])
    assert backend.to_numpy(numbers_.conj()).tolist() == [1 - 2j, 3 + 1j]
    assert backend.to_numpy(numbers_.conj().imag).tolist() == [-2, 1]
    needs_gradient = torch.ones(3, requires_grad=True)
    for convert in (backend.to_numpy, backend.to_host, backend.to_raw):
        assert convert(needs_gradient).tolist() == [1, 1, 1]
        assert convert(needs_gradient.to(torch.bfloat16)).shape == (3,)
    assert backend.to_numpy(torch.ones(()).expand(3)).tolist() == [1, 1, 1]


@pytest.mark.skipif(all(str(backend) != "jax" for backend in BACKENDS), reason="JAX is not installed")
class TestJaxWithout64Bits:
    jax = BACKENDS[-1]

    @pytest.mark.parametrize(
        ("values", "dtype", "held"),
        [([0, 2**31], "int64", "int32"), ([-(2**31) - 1, 0], "int64", "int32"), ([2**32], "uint64", "uint32")],
    )
    def test_integers_that_do_not_fit_are_refused(self, values: list[int], dtype: str, held: str) -> None:
        with pytest.raises(OverflowError) as error:
            self.jax.from_numpy(np.array(values, dtype))
        assert str(error.value) == (
            f"values from {min(values)} to {max(values)} do not fit {held}, and JAX holds no {dtype} "
            "unless jax_enable_x64 is set"
        )

    def test_integers_that_fit_are_kept(self) -> None:
        for values, dtype in (([-(2**31), 2**31 - 1], "int64"), ([0, 2**32 - 1], "uint64")):
            assert self.jax.to_numpy(self.jax.from_numpy(np.array(values, dtype))).tolist() == values
        assert self.jax.from_numpy(np.zeros((0,), np.int64)).shape == (0,)

    @pytest.mark.parametrize("dtype", ["float64", *COMPLEX])
    def test_floats_are_rounded(self, dtype: str) -> None:
        assert self.jax.to_numpy(self.jax.from_numpy(np.array([0.1], dtype)))[0] == np.array(0.1, np.float32)
