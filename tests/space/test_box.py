"""BoxSpace: bounds, membership, other backends and what its constructor refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import (
    BACKENDS,
    DTYPES,
    FLOATS,
    INF,
    INTEGERS,
    NEEDS_64_BITS,
    SPACES,
    assert_same,
    backend_cases,
    boxes,
    sample,
    samples,
    space_cases,
)
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space import describe_mismatch
from unienv_interface.space.spaces import BoxSpace

np_backend = NumpyComputeBackend
every_backend = pytest.mark.parametrize("backend", backend_cases())
EAGER_BACKENDS = [backend for backend in BACKENDS if backend.simplified_name != "jax"]
every_eager_backend = pytest.mark.parametrize("backend", EAGER_BACKENDS, ids=str)


def array(backend: ComputeBackend, values: Any, dtype: str) -> Any:
    return backend.from_host(np.asarray(values), backend.dtype_from_name(dtype))


# -- construction ------------------------------------------------------------------------------------------


@every_backend
def test_the_shape_follows_from_the_bounds(backend: ComputeBackend) -> None:
    assert BoxSpace(backend, 0, 1, "float32").shape == ()
    assert BoxSpace(backend, [0, 0, 0], 1, "float32").shape == (3,)
    assert BoxSpace(backend, array(backend, [[0], [1]], "float32"), [5, 6, 7], "float32").shape == (2, 3)
    assert BoxSpace(backend, 0, 1, "float32", shape=[2, np.int64(3)]).shape == (2, 3)


@every_backend
def test_arguments_come_in_the_documented_order(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, -1, 1, backend.dtype_from_name("float32"), None, (3,))
    assert space == SPACES["box_float32"](backend)
    assert space.dtype == backend.dtype_from_name("float32")


@every_backend
def test_bounds_written_in_different_ways_make_equal_spaces(backend: ComputeBackend) -> None:
    one = BoxSpace(backend, -1, 1, "float32", shape=(2, 3))
    others = [
        BoxSpace(backend, one.low, one.high, "float32"),
        BoxSpace(backend, [-1.0], [[1], [1]], "float32", shape=(2, 3)),
        BoxSpace(backend, np.full((2, 3), -1, np.int8), np.float64(1), "float32"),
    ]
    for other in others:
        assert other == one
        assert hash(other) == hash(one)
    assert BoxSpace(backend, -0.0, 1, "float32") == BoxSpace(backend, 0.0, 1, "float32")


@every_eager_backend
@pytest.mark.parametrize("dtype", INTEGERS)
def test_infinite_bounds_of_integers_are_the_ends_of_the_dtype(backend: ComputeBackend, dtype: str) -> None:
    limits = np.iinfo(dtype)
    free = BoxSpace(backend, -INF, INF, dtype, shape=(2,))
    assert free == BoxSpace(backend, int(limits.min), int(limits.max), dtype, shape=(2,))
    half = BoxSpace(backend, [-INF, 3.0], [5, INF], dtype)
    assert half == BoxSpace(backend, [int(limits.min), 3], [5, int(limits.max)], dtype)
    assert free.is_bounded()


@every_eager_backend
def test_large_integer_bounds_are_exact(backend: ComputeBackend) -> None:
    for low, high in ((2**64 - 1, 2**64 - 1), ([2**63 + 1, 5], [2**64 - 1, 7])):
        space = BoxSpace(backend, low, high, "uint64")
        assert backend.to_numpy(space.low).tolist() == low
        assert backend.to_numpy(space.high).tolist() == high
    assert BoxSpace(backend, 0, 10**30, "float64").bounds.high == 1e30


@every_backend
def test_low_and_high_are_new_arrays_of_the_full_shape(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, [[-1.0], [-2.0]], 5, "float32", shape=(2, 3))
    assert_same(space, space.low, array(backend, [[-1] * 3, [-2] * 3], "float32"))
    assert_same(space, space.high, array(backend, np.full((2, 3), 5), "float32"))
    if backend.simplified_name != "jax":
        space.low[...] = 99
        assert float(space.low[0, 0]) == -1.0


def test_the_bounds_are_copied_from_the_caller() -> None:
    for backend in EAGER_BACKENDS:
        low = array(backend, [0.0, 0.0], "float32")
        space = BoxSpace(backend, low, 9, "float32")
        low[...] = 5
        assert space == BoxSpace(backend, 0, 9, "float32", shape=(2,))


def test_boxes_without_entries_are_equal_whatever_their_bounds() -> None:
    one = BoxSpace(np_backend, 0, 1, "float32", shape=(0, 3))
    assert one == BoxSpace(np_backend, -INF, INF, "float32", shape=(0, 3))
    assert one == BoxSpace(np_backend, 5.0, np.zeros((0, 3)), "float32")
    assert one == BoxSpace(np_backend, one.low, one.high, "float32")
    assert one != BoxSpace(np_backend, 0, 1, "float32", shape=(3, 0))


CONSTRUCTOR_ERRORS: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "dtype_missing": (TypeError, "dtype is None, an array space wants a dtype, such as 'float32'", {"dtype": None}),
    "dtype_unknown": (TypeError, "NumPy has no dtype 'float31'", {"dtype": "float31"}),
    "dtype_object": (TypeError, "NumPy has no dtype 'object'", {"dtype": object}),
    "dtype_bool": (
        ValueError,
        "dtype is bool, a box holds numbers: use BinarySpace for booleans",
        {"dtype": "bool"},
    ),
    "low_above_high": (
        ValueError,
        "low 2.0 is above high 1.0 at (1,), low must not exceed high",
        {"low": [0, 2], "high": [1, 1]},
    ),
    "low_nan": (ValueError, "low holds NaN, a bound is a number or infinity", {"low": np.nan}),
    "high_nan": (ValueError, "high holds NaN, a bound is a number or infinity", {"high": [1, np.nan]}),
    "low_at_infinity": (
        ValueError,
        "low is +inf, which leaves no value between the bounds",
        {"low": INF, "high": INF},
    ),
    "high_at_infinity": (
        ValueError,
        "high is -inf, which leaves no value between the bounds",
        {"low": -INF, "high": -INF},
    ),
    "integers_at_infinity": (
        ValueError,
        "low is +inf, which leaves no value between the bounds",
        {"low": INF, "high": INF, "dtype": "int8"},
    ),
    "low_too_small": (ValueError, "low -1 does not fit uint8: 0 to 255", {"low": -1, "dtype": "uint8"}),
    "high_too_large": (ValueError, "high 256 does not fit uint8: 0 to 255", {"high": 256, "dtype": "uint8"}),
    "float_too_large": (
        ValueError,
        "high holds a value that does not fit int64: -9223372036854775808 to 9223372036854775807",
        {"high": 2.0**63, "dtype": "int64"},
    ),
    "far_too_large": (
        ValueError,
        f"high {2**64} does not fit uint64: 0 to {2**64 - 1}",
        {"high": 2**64, "dtype": "uint64"},
    ),
    "not_whole": (
        ValueError,
        "high 1.5 is not a whole number, the dtype is int32",
        {"high": 1.5, "dtype": "int32"},
    ),
    "beyond_float16": (
        ValueError,
        "high 70000.0 is beyond the range of float16; use infinity for no bound",
        {"high": 70000, "dtype": "float16"},
    ),
    "beyond_all_floats": (
        ValueError,
        "high is beyond the range of float32; use infinity for no bound",
        {"high": [1, 10**400]},
    ),
    "finite_complex": (
        ValueError,
        "low is finite, but complex numbers have no order: use -inf and inf",
        {"dtype": "complex64"},
    ),
    "bound_text": (TypeError, "bound 'a' is not a number or an array of real numbers", {"low": "a"}),
    "bound_none": (TypeError, "bound None is not a number or an array of real numbers", {"high": None}),
    "bounds_do_not_broadcast": (
        ValueError,
        "low has shape (2,) and high (3,), which do not broadcast",
        {"low": [0, 0], "high": [1, 1, 1]},
    ),
    "bound_does_not_fit_shape": (
        ValueError,
        "high has shape (2,), which does not broadcast to (3,)",
        {"high": [1, 1], "shape": (3,)},
    ),
    "bound_larger_than_shape": (
        ValueError,
        "low has shape (2, 1), which does not broadcast to (1,)",
        {"low": [[0], [0]], "shape": (1,)},
    ),
    "shape_negative": (ValueError, "shape (2, -1) has a negative size", {"shape": (2, -1)}),
    "shape_number": (TypeError, "shape is 3, it wants a sequence of integers", {"shape": 3}),
    "shape_float": (TypeError, "shape is (2.5,), it wants a sequence of integers", {"shape": (2.5,)}),
    "shape_text": (TypeError, "shape is '12', it wants a sequence of integers", {"shape": "12"}),
    "backend": (
        TypeError,
        "backend is <class 'numpy.ndarray'>, wanted a ComputeBackend such as NumpyComputeBackend",
        {"backend": np.ndarray},
    ),
}


@pytest.mark.parametrize("case", CONSTRUCTOR_ERRORS)
def test_constructor_errors(case: str) -> None:
    kind, text, changes = CONSTRUCTOR_ERRORS[case]
    arguments: dict[str, Any] = {"backend": np_backend, "low": 0, "high": 1, "dtype": "float32"} | changes
    with pytest.raises(kind) as error:
        BoxSpace(**arguments)
    assert str(error.value) == text


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b is not np_backend], ids=str)
def test_a_dtype_of_another_library_is_refused_or_understood(backend: ComputeBackend) -> None:
    if backend.simplified_name == "jax":
        assert BoxSpace(backend, 0, 1, np.float32) == BoxSpace(backend, 0, 1, "float32")
    else:
        with pytest.raises(TypeError, match="is not a PyTorch dtype that spaces can hold"):
            BoxSpace(backend, 0, 1, np.float32)


# -- membership --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", space_cases("box", where=lambda space: space.backend in EAGER_BACKENDS))
def test_the_bounds_are_members_and_their_outer_neighbours_are_not(space: BoxSpace) -> None:
    if space.dtype_name.startswith("complex"):
        return
    for bound, outwards in ((space.bounds.low, -INF), (space.bounds.high, INF)):
        inner = np.broadcast_to(bound, space.shape).copy()
        if not np.isfinite(inner).all():
            continue
        at_bound = space.backend.from_host(inner, space.dtype)
        assert at_bound in space
        if not inner.size:
            continue
        outer = inner.copy()
        outer.flat[-1] = _neighbour(outer.flat[-1], outwards, space.dtype_name)
        if np.isfinite(outer.flat[-1]) and outer.flat[-1] != inner.flat[-1]:
            assert space.backend.from_host(outer, space.dtype) not in space


def _neighbour(value: Any, outwards: float, dtype: str) -> Any:
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return min(max(int(value) + (1 if outwards > 0 else -1), int(limits.min)), int(limits.max))
    with np.errstate(over="ignore", under="ignore"):
        if dtype == "bfloat16":
            return np.float32(value) + np.float32(outwards > 0 or -1) * max(abs(value), 1) / 64
        return np.nextafter(value, value.dtype.type(outwards))


@every_backend
def test_nan_is_no_member_and_infinity_only_without_a_bound(backend: ComputeBackend) -> None:
    free, bounded = SPACES["box_free"](backend), SPACES["box_float32"](backend)
    half = BoxSpace(backend, 0, INF, "float32", shape=(3,))
    nan, positive, negative = (array(backend, [0, 0, odd], "float32") for odd in (np.nan, INF, -INF))
    assert [nan in space for space in (free, bounded, half)] == [False, False, False]
    assert [positive in space for space in (free, bounded, half)] == [True, False, True]
    assert [negative in space for space in (free, bounded, half)] == [True, False, False]


@every_eager_backend
def test_complex_nan_is_no_member(backend: ComputeBackend) -> None:
    space = SPACES["box_complex64"](backend)
    for odd in (complex(np.nan, 0), complex(0, np.nan)):
        assert backend.from_numpy(np.array([0, 0, odd], np.complex64)) not in space
    assert backend.from_numpy(np.array([0, 0, complex(INF, -INF)], np.complex64)) in space


@every_eager_backend
@pytest.mark.parametrize("wanted", [name for name in DTYPES if name != "bool"])
def test_a_dtype_is_accepted_if_it_loses_nothing(backend: ComputeBackend, wanted: str) -> None:
    space = BoxSpace(backend, -INF, INF, wanted, shape=(2,))
    for found in DTYPES:
        value = backend.zeros((2,), dtype=backend.dtype_from_name(found))
        assert (value in space) is loses_nothing(found, wanted), f"{found} in {wanted}"


def loses_nothing(found: str, wanted: str) -> bool:
    """Whether all of a dtype's values are values of another, from the bits they have."""
    if found == "bool":
        return True

    def bits(name: str) -> tuple[int, int]:  # of whole numbers, of exponents
        floats = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
        floats |= {"complex64": floats["float32"], "complex128": floats["float64"]}
        return floats[name] if name in floats else (8 * np.dtype(name).itemsize, 0)

    (mantissa, exponent), (mantissa_wanted, exponent_wanted) = bits(found), bits(wanted)
    if found in INTEGERS and wanted in INTEGERS:
        if found[0] == wanted[0]:
            return mantissa <= mantissa_wanted
        return found[0] == "u" and mantissa < mantissa_wanted
    if found in INTEGERS:
        return mantissa - (found[0] == "i") <= mantissa_wanted
    complex_to_real = found.startswith("complex") and not wanted.startswith("complex")
    return (
        wanted not in INTEGERS and not complex_to_real and mantissa <= mantissa_wanted and exponent <= exponent_wanted
    )


MISMATCHES: dict[str, tuple[Any, str]] = {
    "list": ([0, 0, 0], "obs/rgb: list, the space wants an array of numpy"),
    "dtype": (np.zeros(3), "obs/rgb: dtype float64, the space wants uint8"),
    "shape": (np.zeros((2, 3), np.uint8), "obs/rgb: shape (2, 3), the space wants (3,)"),
    "value": (np.array([0, 9, 5], np.uint8), "obs/rgb: value 9 at (1,) is outside [0, 7]"),
    "object": (np.zeros(3, object), "obs/rgb: ndarray, the space wants an array of numpy"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_mismatches_in_words(case: str) -> None:
    value, text = MISMATCHES[case]
    assert describe_mismatch(BoxSpace(np_backend, 0, 7, "uint8", shape=(3,)), value, "obs/rgb") == text


@every_eager_backend
def test_tensors_that_need_gradients_and_other_views_can_be_members(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, 0, 9, "float32", shape=(2, 3))
    grid = array(backend, np.arange(6).reshape(3, 2), "float32")
    assert grid.T in space
    if backend.simplified_name == "pytorch":
        assert grid.T.clone().requires_grad_() in space
        free = BoxSpace(backend, -INF, INF, "complex64", shape=(1,))
        assert backend.asarray([1j]).conj() in free
    else:
        assert np.ma.masked_array(grid.T, mask=True) in space
        assert grid.T.astype(">f4") in space


@given(boxes())
def test_any_box_holds_its_samples_and_bounds(space: BoxSpace) -> None:
    for value in samples(space, 3):
        assert describe_mismatch(space, value) is None
    for bound in (space.low, space.high):
        assert bound in space
    assert_same(space, space.clip(sample(space)), sample(space))


@given(boxes(), st.integers(0, 1))
def test_a_box_with_one_bound_moved_inwards_is_a_strict_subspace(space: BoxSpace, end: int) -> None:
    low, high = (np.broadcast_to(bound, space.shape).copy() for bound in space.bounds)
    entries = np.argwhere(low < high)
    if not len(entries):
        return
    place = tuple(entries[0])
    if end == 0:
        low[place] = high[place] if np.isfinite(high[place]) else max(low[place], 0)
    else:
        high[place] = low[place] if np.isfinite(low[place]) else min(high[place], 0)
    smaller = BoxSpace(np_backend, low, high, space.dtype_name)
    assert smaller.is_subspaceeq(space)
    if smaller != space:
        assert smaller.is_subspace(space)
        assert not space.is_subspaceeq(smaller)
    assert all(value in space for value in samples(smaller, 2))


@given(boxes(FLOATS), st.floats(allow_nan=True))
def test_contains_agrees_with_a_comparison_of_every_entry(space: BoxSpace, number: float) -> None:
    host = space.bounds.low.dtype
    with np.errstate(over="ignore"):
        value = np_backend.from_host(np.full(space.shape, number, np.float64).astype(host), space.dtype)
    held = np_backend.to_host(value)
    expected = bool(np.all((space.bounds.low <= held) & (held <= space.bounds.high)))
    assert (value in space) is expected


# -- clip, bounds, other backends --------------------------------------------------------------------------


@pytest.mark.parametrize("space", space_cases("box", "dynamic", where=lambda space: space.is_bounded()))
def test_clip_moves_outsiders_to_the_bounds_and_leaves_members(space: Any) -> None:
    value = sample(space)
    assert_same(space, space.clip(value), value)
    host = space.backend.to_host(value)
    for end, bound in ((space.bounds.low, "min"), (space.bounds.high, "max")):
        extreme = getattr(np, "finfo" if host.dtype.kind == "f" else "iinfo")(host.dtype)
        far = np.full(host.shape, getattr(extreme, bound) * (0.9 if space.dtype_name == "bfloat16" else 1), host.dtype)
        clipped = space.clip(space.backend.from_host(far, space.dtype))
        assert clipped in space
        np.testing.assert_array_equal(space.backend.to_host(clipped), np.broadcast_to(end, host.shape))


def test_is_bounded_asks_every_entry() -> None:
    mixed = SPACES["box_mixed"](np_backend)
    assert [mixed.is_bounded(manner) for manner in ("both", "below", "above")] == [False, False, False]
    below = SPACES["box_from_below"](np_backend)
    assert [below.is_bounded(manner) for manner in ("both", "below", "above")] == [False, True, False]
    with pytest.raises(ValueError, match="manner is 'left', it must be 'both', 'below' or 'above'"):
        mixed.is_bounded("left")


def test_the_text_of_a_box() -> None:
    box = SPACES["box_float32"](np_backend)
    assert repr(box) == "BoxSpace(low=-1.0, high=1.0, shape=(3,), dtype=float32, backend=numpy)"
    assert str(box) == "Box([-1.0, 1.0], (3,), backend=numpy)"
    few = BoxSpace(np_backend, [0, 1], [2, 3], "int8")
    assert repr(few) == "BoxSpace(low=[0, 1], high=[2, 3], shape=(2,), dtype=int8, backend=numpy)"
    many = BoxSpace(np_backend, np.arange(10_000), INF, "float32")
    assert repr(many) == "BoxSpace(low=0.0..9999.0, high=inf, shape=(10000,), dtype=float32, backend=numpy)"


@every_backend
def test_subspaces_item_by_item(backend: ComputeBackend) -> None:
    box = BoxSpace(backend, -1, 1, "float32", shape=(2, 2))
    assert BoxSpace(backend, -0.5, 1, "float32", shape=(2, 2)).is_subspace(box)
    assert BoxSpace(backend, [[-1], [0]], 1, "float32", shape=(2, 2)).is_subspace(box)
    assert box.is_subspace(BoxSpace(backend, -INF, INF, "float32", shape=(2, 2)))
    assert not box.is_subspace(box)
    assert box.is_subspaceeq(box)
    assert not box.is_subspaceeq(BoxSpace(backend, -1, [[1, 1], [1, 0]], "float32"))
    assert not box.is_subspaceeq(BoxSpace(backend, -2, 2, "float16", shape=(2, 2)))
    assert not box.is_subspaceeq(BoxSpace(backend, -2, 2, "float32", shape=(4,)))
    assert not box.is_subspaceeq(SPACES["binary"](backend))
    device = backend.device(backend.zeros((1,)))
    assert box.is_subspaceeq(BoxSpace(backend, -1, 1, "float32", device, (2, 2)))


@pytest.mark.skipif(len(BACKENDS) < 3, reason="JAX is not installed")
class TestFewerBitsOnJax:
    """A space moved to JAX has 32-bit dtypes; what lies between its bounds lay between the wider ones."""

    jax = BACKENDS[-1]

    def test_float_bounds_move_inwards(self) -> None:
        space = SPACES["box_float64"](np_backend)
        there = space.to(self.jax)
        assert there.dtype_name == "float32"
        assert there.bounds.low.astype(np.float64) >= 0.1
        assert there.bounds.high.astype(np.float64) <= 0.3
        for extreme in (space.low, space.high):
            moved = space.data_to(extreme, self.jax)
            assert moved in there
            assert there.data_to(moved, np_backend) in space

    def test_a_range_without_float32_is_refused(self) -> None:
        for low, high in ((1e300, INF), (-INF, -1e300), (1e299, 1e300)):
            with pytest.raises(OverflowError, match="no float32 lies between the bounds"):
                BoxSpace(np_backend, low, high, "float64").to(self.jax)

    def test_bounds_beyond_float32_become_its_ends(self) -> None:
        there = SPACES["box_widest_float64"](np_backend).to(self.jax)
        limit = float(np.finfo(np.float32).max)
        assert there == BoxSpace(self.jax, -limit, limit, "float32", shape=(2,))

    def test_ends_of_int64_become_ends_of_int32(self) -> None:
        assert SPACES["box_int64"](np_backend).to(self.jax) == SPACES["box_int64"](self.jax)
        assert SPACES["box_uint64"](np_backend).to(self.jax).dtype_name == "uint32"
        with pytest.raises(OverflowError, match="bounds 1 to 1099511627776 do not fit int32"):
            BoxSpace(np_backend, 0, [1, 2**40], "int64").to(self.jax)

    @pytest.mark.parametrize("name", sorted(NEEDS_64_BITS - {"dict_all_dtypes"}))
    def test_values_that_do_not_fit_are_refused(self, name: str) -> None:
        space = SPACES[name](np_backend)
        with pytest.raises(OverflowError, match="fit"):
            space.data_to(space.high if name != "box_int64_bottom" else space.low, self.jax)

    def test_complex_numbers(self) -> None:
        assert SPACES["box_complex128"](np_backend).to(self.jax).dtype_name == "complex64"
