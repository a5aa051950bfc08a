"""How boxes are sampled: evenly, up to both ends, never beyond."""

from __future__ import annotations

import numpy as np
import pytest
from catalogue import BACKENDS, INF, INTEGERS, SPACES, assert_same, backend_cases, rng_of, sample, samples, space_cases

from unienv_interface.backends import ComputeBackend, get_backend_from_tensor
from unienv_interface.space.spaces import BoxSpace

every_backend = pytest.mark.parametrize("backend", backend_cases())
every_eager_backend = pytest.mark.parametrize("backend", [b for b in BACKENDS if str(b) != "jax"], ids=str)


@every_backend
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_every_value_of_a_byte_is_reached_evenly(backend: ComputeBackend, dtype: str) -> None:
    limits = np.iinfo(dtype)
    space = BoxSpace(backend, int(limits.min), int(limits.max), dtype, shape=(128 * 256,))
    drawn = backend.to_numpy(sample(space)).astype(int) - limits.min
    assert chi_square(np.bincount(drawn, minlength=256)) < 5


@every_backend
def test_small_ranges_are_reached_evenly(backend: ComputeBackend) -> None:
    space = BoxSpace(backend, -1, 2, "int32", shape=(128 * 256,))
    drawn = backend.to_numpy(sample(space))
    assert chi_square(np.bincount(drawn + 1, minlength=4)) < 5


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations the counts are more uneven than chance makes them."""
    expected = counts.mean()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (counts.size - 1)) / np.sqrt(2 * (counts.size - 1))


@every_eager_backend
@pytest.mark.parametrize("dtype", INTEGERS)
def test_both_ends_of_a_dtype_are_reached(backend: ComputeBackend, dtype: str) -> None:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    for least, most in ((low, low + 1), (high - 1, high), (low, low), (high, high)):
        drawn = backend.to_numpy(sample(BoxSpace(backend, least, most, dtype, shape=(64,))))
        assert set(drawn.tolist()) == {least, most}
    drawn = backend.to_numpy(sample(BoxSpace(backend, low, high, dtype, shape=(64,))))
    assert len(set(drawn.tolist())) > 32
    assert drawn.min() < low + (high - low) // 4
    assert drawn.max() > high - (high - low) // 4


@every_eager_backend
def test_integer_bounds_per_entry_are_reached(backend: ComputeBackend) -> None:
    low, high = [-(2**63), 0, 5, 2**63 - 2], [-(2**63) + 1, 0, 7, 2**63 - 1]
    space = BoxSpace(backend, low, high, "int64")
    drawn = np.stack([backend.to_numpy(value) for value in samples(space, 60)])
    for column, least, most in zip(drawn.T.tolist(), low, high, strict=True):
        assert set(column) == set(range(least, most + 1))


@pytest.mark.parametrize("space", space_cases("box_widest"))
def test_ranges_wider_than_the_dtype_give_finite_values_on_both_sides(space: BoxSpace) -> None:
    drawn = np.stack([space.backend.to_host(value) for value in samples(space, 50)]).astype(np.float64)
    assert np.isfinite(drawn).all()
    assert drawn.min() < 0 < drawn.max()
    assert np.abs(drawn).max() > 0.5 * float(space.bounds.high.max())


@every_backend
def test_each_entry_is_drawn_as_its_bounds_ask(backend: ComputeBackend) -> None:
    """Normal without bounds, exponential from one, even between two."""
    count = 4000
    space = BoxSpace(backend, [[-INF], [-INF], [2], [-1]], [[INF], [-3], [INF], [1]], "float32", shape=(4, count))
    free, above, below, between = backend.to_numpy(sample(space)).astype(np.float64)
    assert abs(free.mean()) < 0.1
    assert abs(free.std() - 1) < 0.1
    assert above.max() <= -3
    assert abs(above.mean() + 4) < 0.1
    assert below.min() >= 2
    assert abs(below.mean() - 3) < 0.1
    assert abs(between.mean()) < 0.1
    assert abs(between.std() - 1 / np.sqrt(3)) < 0.1


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
def test_a_sample_without_axes_is_an_array(backend: ComputeBackend, dtype: str) -> None:
    value = sample(BoxSpace(backend, 0, 1, dtype))
    assert isinstance(value, backend.ARRAY_TYPE)
    assert get_backend_from_tensor(value) is backend
    assert value.shape == ()


@pytest.mark.skipif(len(BACKENDS) < 3, reason="JAX is not installed")
def test_sampling_can_be_compiled_by_jax() -> None:
    import jax

    space = SPACES["dict_flat"](BACKENDS[2])
    rng = rng_of(space.backend)
    _, compiled = jax.jit(space.sample)(rng)
    assert_same(space, compiled, space.sample(rng)[1])
