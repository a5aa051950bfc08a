"""RunningMoments against NumPy's own mean and variance, and against Gymnasium's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from catalogue import BACKENDS
from gymnasium.wrappers.utils import RunningMeanStd
from hypothesis import given
from hypothesis import strategies as st

from unienv_interface.backends import ComputeBackend
from unienv_interface.wrapper import RunningMoments

on_backends = pytest.mark.parametrize("backend", BACKENDS, ids=str)
NEGLIGIBLE = 1e-20  # a weight of the initial moments that leaves those of the rows


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    offset=st.sampled_from([0.0, -5.0, 1e5]),
    seed=st.integers(0, 99),
)
def test_batches_of_any_size_give_the_moments_of_all_rows(
    sizes: list[int], scale: float, offset: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = [offset + scale * rng.normal(size=(size, 2, 3)) for size in sizes]
    moments = RunningMoments((2, 3), count=NEGLIGIBLE)
    for batch in batches:
        moments.update(batch)
    rows = np.concatenate(batches)
    assert moments.count == pytest.approx(len(rows), abs=1e-6)
    if len(rows):
        np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-6, atol=1e-6 * scale)
        np.testing.assert_allclose(moments.var, rows.var(axis=0), rtol=1e-4, atol=1e-12 * (scale + abs(offset)) ** 2)


@on_backends
def test_they_are_gymnasiums(backend: ComputeBackend) -> None:
    rng = np.random.default_rng(0)
    moments, wanted = RunningMoments((3,), backend=backend), RunningMeanStd(shape=(3,))
    for size in (1, 4, 4, 1, 4):
        rows = rng.normal(3.0, 2.0, (size, 3)).astype(np.float32)
        moments.update(backend.from_numpy(rows.copy()))
        wanted.update(rows.astype(np.float64))
        np.testing.assert_allclose(backend.to_host(moments.mean), wanted.mean, rtol=1e-5)
        np.testing.assert_allclose(backend.to_host(moments.var), wanted.var, rtol=1e-4)
    assert moments.count == pytest.approx(wanted.count)


@on_backends
def test_values_are_normalized_and_back(backend: ComputeBackend) -> None:
    rows = np.random.default_rng(0).normal(5.0, 3.0, (500, 2)).astype(np.float32)
    moments = RunningMoments((2,), backend=backend)
    moments.update(backend.from_numpy(rows.copy()))
    scaled = moments.normalize(backend.from_numpy(rows.copy()))
    np.testing.assert_allclose(backend.to_host(scaled).mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(backend.to_host(scaled).std(axis=0), 1.0, atol=1e-4)
    np.testing.assert_allclose(backend.to_host(moments.denormalize(scaled)), rows, rtol=1e-4)


@pytest.mark.parametrize("target", BACKENDS, ids=str)
def test_the_state_goes_on_on_any_backend(target: ComputeBackend) -> None:
    rows = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    source = RunningMoments((2,), backend=BACKENDS[0])
    source.update(rows[:3])
    state = source.state_dict()
    as_text = json.loads(json.dumps({name: np.asarray(value).tolist() for name, value in state.items()}))
    source.update(rows[3:])
    for saved in (state, as_text):
        restored = RunningMoments((2,), backend=target)
        restored.load_state_dict(saved)
        restored.update(target.from_numpy(rows[3:].copy()))
        assert restored.count == source.count
        np.testing.assert_allclose(target.to_host(restored.var), source.var, rtol=1e-5)


def test_a_state_is_a_copy() -> None:
    moments = RunningMoments((1,))
    state = moments.state_dict()
    moments.update(np.ones((3, 1)))
    assert (state["mean"].tolist(), state["count"]) == ([0.0], 1e-4)
    moments.load_state_dict(state)
    state["mean"][:] = 9.0
    assert moments.mean.tolist() == [0.0]


def test_errors() -> None:
    with pytest.raises(ValueError, match="count is 0, the initial moments want a weight above 0"):
        RunningMoments(count=0)
    with pytest.raises(ValueError, match=r"rows of shape \(3,\), wanted \(n, 3\)"):
        RunningMoments((3,)).update(np.ones(3))
    with pytest.raises(ValueError, match=r"mean has shape \(2,\), these moments have \(3,\)"):
        RunningMoments((3,)).load_state_dict(RunningMoments((2,)).state_dict())
