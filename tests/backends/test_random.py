"""Random functions: they take a generator and return it, and draw what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, FLOATS, INTEGERS, assert_same, backend_cases, rng_of, same

from unienv_interface.backends import ComputeBackend

every_backend = pytest.mark.parametrize("backend", backend_cases())
EAGER = [backend for backend in BACKENDS if str(backend) != "jax"]
COUNT = 4096

DRAWS: dict[str, Callable[[ComputeBackend, Any], tuple[Any, Any]]] = {
    "uniform": lambda backend, rng: backend.random.random_uniform((COUNT,), rng=rng),
    "normal": lambda backend, rng: backend.random.random_normal((COUNT,), rng=rng),
    "exponential": lambda backend, rng: backend.random.random_exponential((COUNT,), rng=rng),
    "discrete": lambda backend, rng: backend.random.random_discrete_uniform((COUNT,), -5, 10, rng=rng),
    "geometric": lambda backend, rng: backend.random.random_geometric((COUNT,), p=0.25, rng=rng),
    "permutation": lambda backend, rng: backend.random.random_permutation(COUNT, rng=rng),
}


@every_backend
@pytest.mark.parametrize("draw", DRAWS)
def test_the_generator_comes_in_and_goes_out_advanced(backend: ComputeBackend, draw: str) -> None:
    rng, first = DRAWS[draw](backend, rng_of(backend, 3))
    assert isinstance(rng, backend.RNG_TYPE)
    rng, second = DRAWS[draw](backend, rng)
    assert not same(first, second)
    rng, first_again = DRAWS[draw](backend, rng_of(backend, 3))
    assert_same(None, first, first_again)
    assert_same(None, second, DRAWS[draw](backend, rng)[1])
    assert not same(first, DRAWS[draw](backend, rng_of(backend, 4))[1])
    assert isinstance(first, backend.ARRAY_TYPE)
    assert tuple(first.shape) == (COUNT,)


@pytest.mark.parametrize("backend", EAGER, ids=str)
@pytest.mark.parametrize("draw", DRAWS)
def test_eager_generators_advance_in_place(backend: ComputeBackend, draw: str) -> None:
    rng = rng_of(backend)
    assert DRAWS[draw](backend, rng)[0] is rng


def drawn(backend: ComputeBackend, draw: str) -> np.ndarray:
    return backend.to_numpy(DRAWS[draw](backend, rng_of(backend))[1]).astype(np.float64)


@every_backend
def test_moments(backend: ComputeBackend) -> None:
    expected = {  # mean, standard deviation, least, most
        "uniform": (0.5, 12**-0.5, 0, 1),
        "normal": (0, 1, -np.inf, np.inf),
        "exponential": (1, 1, 0, np.inf),
        "discrete": (2, np.sqrt((15**2 - 1) / 12), -5, 9),
        "geometric": (4, np.sqrt(0.75) / 0.25, 1, np.inf),
    }
    for draw, (mean, deviation, least, most) in expected.items():
        values = drawn(backend, draw)
        assert abs(values.mean() - mean) < 5 * deviation / np.sqrt(COUNT), draw
        assert abs(values.std() / deviation - 1) < 0.15, draw
        assert least <= values.min() <= values.max() <= most, draw
    assert set(drawn(backend, "discrete")) == set(range(-5, 10))
    assert sorted(drawn(backend, "permutation")) == list(range(COUNT))


@every_backend
def test_parameters_shift_and_scale(backend: ComputeBackend) -> None:
    random, rng = backend.random, rng_of(backend)
    _, uniform = random.random_uniform((COUNT,), rng=rng, low=-3.0, high=5.0)
    _, normal = random.random_normal((COUNT,), rng=rng, mean=10.0, std=0.5)
    _, exponential = random.random_exponential((COUNT,), rng=rng, lambd=4.0)
    uniform, normal, exponential = (backend.to_numpy(x).astype(np.float64) for x in (uniform, normal, exponential))
    assert -3 <= uniform.min() < -2.9
    assert 4.9 < uniform.max() <= 5
    assert abs(normal.mean() - 10) < 0.05
    assert abs(normal.std() - 0.5) < 0.05
    assert abs(exponential.mean() - 0.25) < 0.05


@pytest.mark.parametrize("backend", EAGER, ids=str)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,), (2, 0)])
def test_shapes(backend: ComputeBackend, shape: tuple[int, ...]) -> None:
    random, rng = backend.random, rng_of(backend)
    draws = [
        random.random_uniform(shape, rng=rng),
        random.random_normal(shape, rng=rng),
        random.random_exponential(shape, rng=rng),
        random.random_discrete_uniform(shape, 0, 2, rng=rng),
        random.random_geometric(shape, p=0.5, rng=rng),
    ]
    for _, values in draws:
        assert isinstance(values, backend.ARRAY_TYPE)
        assert tuple(values.shape) == shape


@every_backend
@pytest.mark.parametrize("name", FLOATS)
def test_floating_dtypes(backend: ComputeBackend, name: str) -> None:
    dtype, random, rng = backend.dtype_from_name(name), backend.random, rng_of(backend)
    draws = [random.random_uniform((COUNT,), rng=rng, dtype=dtype)]
    if str(backend) != "jax" or name == "bfloat16":
        draws += [random.random_normal((COUNT,), rng=rng, dtype=dtype)]
        draws += [random.random_exponential((COUNT,), rng=rng, dtype=dtype)]
    for _, values in draws:
        assert values.dtype == dtype
        assert np.isfinite(backend.to_host(values)).all()


@pytest.mark.parametrize("backend", EAGER, ids=str)
@pytest.mark.parametrize("name", INTEGERS)
def test_both_ends_of_every_integer_dtype(backend: ComputeBackend, name: str) -> None:
    check_ends(backend, name)


@pytest.mark.skipif(len(BACKENDS) == len(EAGER), reason="JAX is not installed")
@pytest.mark.parametrize("name", ["int8", "int32", "uint32"])
def test_both_ends_of_integer_dtypes_on_jax(name: str) -> None:
    check_ends(BACKENDS[-1], name)


def check_ends(backend: ComputeBackend, name: str) -> None:
    """The ends as numbers, as arrays, the last value alone, and the whole range at once."""
    dtype = backend.dtype_from_name(name)
    limits = np.iinfo(backend.dtype_name(dtype))
    low, high = int(limits.min), int(limits.max)

    def draw(least: Any, most: Any) -> np.ndarray:
        _, values = backend.random.random_discrete_uniform(
            (64,), least, most, rng=rng_of(backend), dtype=dtype, endpoint=True
        )
        assert values.dtype == dtype
        return backend.to_numpy(values)

    assert set(draw(low, low + 1).tolist()) == {low, low + 1}
    assert set(draw(high - 1, high).tolist()) == {high - 1, high}
    assert set(draw(high, high).tolist()) == {high}
    whole = draw(low, high).astype(np.float64) / (high - low)
    assert whole.max() - whole.min() > 0.8
    each = np.full(64, low, limits.dtype), np.full(64, high, limits.dtype)
    each[0][::2] = high - 1  # half of the entries have the last two values, half the whole range
    mixed = draw(*each)
    assert set(mixed[::2].tolist()) == {high - 1, high}
    assert len(set(mixed[1::2].tolist())) > 20


@every_backend
def test_the_end_is_left_out_by_default(backend: ComputeBackend) -> None:
    byte = backend.dtype_from_name("uint8")
    _, values = backend.random.random_discrete_uniform((COUNT,), 0, 256, rng=rng_of(backend), dtype=byte)
    found = set(backend.to_numpy(values).tolist())
    assert {0, 255} <= found
    _, values = backend.random.random_discrete_uniform((COUNT,), 3, 5, rng=rng_of(backend))
    assert set(backend.to_numpy(values).tolist()) == {3, 4}


@pytest.mark.skipif(len(BACKENDS) == len(EAGER), reason="JAX is not installed")
def test_a_range_beyond_the_dtype_is_refused_by_jax() -> None:
    jax = BACKENDS[-1]
    for low, high in ((0, 2**40), (-(2**40), 0)):
        with pytest.raises(OverflowError, match="does not fit int32; JAX has 64-bit integers if jax_enable_x64 is set"):
            jax.random.random_discrete_uniform((3,), low, high, rng=rng_of(jax), endpoint=True)


@every_backend
def test_permutations(backend: ComputeBackend) -> None:
    for n in (0, 5):
        _, values = backend.random.random_permutation(n, rng=rng_of(backend))
        assert sorted(backend.to_numpy(values).tolist()) == list(range(n))
    for name in ("int64", "uint8"):
        dtype = backend.dtype_from_name(name)
        assert backend.random.random_permutation(5, rng=rng_of(backend), dtype=dtype)[1].dtype == dtype


@pytest.mark.skipif(len(BACKENDS) == len(EAGER), reason="JAX is not installed")
def test_a_64_bit_dtype_asked_of_jax_becomes_the_32_bit_one_without_a_warning() -> None:
    jax = BACKENDS[-1]
    random, rng = jax.random, rng_of(jax)
    wide = [
        random.random_permutation(COUNT, rng=rng, dtype=np.int64),
        random.random_geometric((COUNT,), p=0.5, rng=rng, dtype=np.int64),
        random.random_discrete_uniform((COUNT,), 0, 5, rng=rng, dtype=np.int64),
        random.random_uniform((COUNT,), rng=rng, dtype=np.float64),
    ]
    assert [str(values.dtype) for _, values in wide] == ["int32", "int32", "int32", "float32"]


@every_backend
def test_geometric_counts_trials(backend: ComputeBackend) -> None:
    _, certain = backend.random.random_geometric((8,), p=1.0, rng=rng_of(backend))
    assert backend.to_numpy(certain).tolist() == [1] * 8
    for p in (0.0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match=rf"p is {p}, a probability of success lies in \(0, 1\]"):
            backend.random.random_geometric((8,), p=p, rng=rng_of(backend))


# -- seeds -------------------------------------------------------------------------------------------------


def first_number(backend: ComputeBackend, seed: int | None) -> float:
    rng = backend.random.random_number_generator(seed)
    return float(backend.random.random_uniform((), rng=rng)[1])


@every_backend
def test_large_seeds_are_told_apart(backend: ComputeBackend) -> None:
    seeds = [0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**128, 3 * 2**128]
    assert len({first_number(backend, seed) for seed in seeds}) == len(seeds)
    assert first_number(backend, 2**128) == first_number(backend, 2**128)


@every_backend
def test_without_a_seed_generators_differ(backend: ComputeBackend) -> None:
    assert len({first_number(backend, None) for _ in range(4)}) == 4


@every_backend
def test_a_negative_seed_is_refused(backend: ComputeBackend) -> None:
    with pytest.raises(ValueError, match="seed -1 is negative, a seed is a non-negative integer"):
        backend.random.random_number_generator(-1)


@every_backend
def test_a_generator_on_a_device(backend: ComputeBackend) -> None:
    device = backend.device(backend.zeros((1,)))
    rng = backend.random.random_number_generator(0, device=device)
    _, values = backend.random.random_uniform((COUNT,), rng=rng, device=device)
    assert backend.same_device(backend.device(values), device)
    _, values = backend.random.random_discrete_uniform((COUNT,), 0, 5, rng=rng, device=device)
    assert backend.same_device(backend.device(values), device)
