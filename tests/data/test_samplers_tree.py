"""The sum tree: whatever the weights, no slot is drawn that has none, and none past the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unienv_data import PrioritizedSampler
from unienv_data.samplers import _sum_tree
from unienv_data.samplers._sum_tree import LARGEST_WEIGHT, SumTree

TINY = 5e-324
# where rounding is worst: at both ends of what a float can be, and side by side
WEIGHTS = st.one_of(
    st.just(0.0),
    st.sampled_from([TINY, 2 * TINY, 1e-310, 2.3e-308, 1e-300, 1e-16, 1.0, 1.0 + 2**-52, 1e16, LARGEST_WEIGHT]),
    st.floats(0, LARGEST_WEIGHT, allow_subnormal=True),
)
# the ends of [0, 1) and what lies next to them
UNIFORM = np.array([0.0, TINY, 2**-1022, 2**-53, 0.5 - 2**-54, 0.5, 0.5 + 2**-53, 1 - 2**-52, 1 - 2**-53])


def filled(size: int, weights: np.ndarray, first: int = 0) -> SumTree:
    tree = SumTree(size)
    tree.set_range(first, first + len(weights), weights)
    return tree


@given(
    weights=st.lists(WEIGHTS, min_size=1, max_size=40),
    first=st.integers(0, 200_000 - 40),
    uniform=st.lists(st.floats(0, 1, exclude_max=True), max_size=20),
)
def test_only_slots_with_a_weight_are_drawn(weights: list[float], first: int, uniform: list[float]) -> None:
    for size, start in ((40, 0), (200_000, first)):
        tree = filled(size, np.array(weights), start)
        numbers = np.concatenate([UNIFORM, uniform])
        if not any(weights):
            with pytest.raises(ValueError, match="all weights are zero"):
                tree.draw(numbers)
            continue
        drawn = tree.draw(numbers)
        assert drawn.min() >= start
        assert drawn.max() < start + len(weights)
        assert all(weights[slot - start] > 0 for slot in drawn)


def test_a_product_that_rounds_up_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the library's product had made something of nothing."""
    weights = np.zeros(20_000)
    weights[[3, 19_999]] = 1.0
    tree = filled(len(weights), weights)
    tree._levels[1][0] += 1e-8  # a sum that is rounded up, so that a draw may go beyond what its children have
    faulty = _sum_tree._RUNNING_SUMS.copy()
    faulty[:, 5:] *= 1 + 1e-9
    monkeypatch.setattr(_sum_tree, "_RUNNING_SUMS", faulty)
    drawn = tree.draw(np.array([0.0, 0.25, (1 + 1e-10) / tree.total(), (1 + 5e-9) / tree.total(), 0.75]))
    assert drawn.tolist() == [3, 3, 3, 3, 19_999]


@given(magnitude=st.sampled_from([TINY, 1e-310, 1e-300, 1e-3, 1.0, 1e300]), size=st.sampled_from([1, 2, 16, 17, 4097]))
def test_equal_weights_are_drawn_evenly(magnitude: float, size: int) -> None:
    tree = filled(size, np.full(size, magnitude))
    drawn = tree.draw((np.arange(size) + 0.5) / size)
    assert np.array_equal(drawn, np.arange(size)) or magnitude < 1e-300  # subnormals cannot be divided finely
    assert drawn.max() < size


@pytest.mark.parametrize("size", [5, 4096, 70_000, 1_100_000])
def test_draws_are_in_proportion(size: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(size) ** 4
    tree = filled(size, weights)
    assert tree.total() == pytest.approx(weights.sum())
    uniform = rng.random(4096)
    expected = np.cumsum(weights).searchsorted(uniform * weights.sum(), "right")
    assert np.abs(tree.draw(uniform) - expected).max() <= 1  # but for rounding, the slot where the sum is reached


@pytest.mark.parametrize("large", [5000, _sum_tree._LARGE])
@given(data=st.data())
def test_updates_are_as_of_an_array(large: int, data: st.DataObject) -> None:
    """With blocks that share a weight, in trees from a size on that is small here, and without."""
    size = data.draw(st.sampled_from([3, 100, 5000, 70_000, 1_100_000]))
    with mock.patch.object(_sum_tree, "_LARGE", large):
        tree, model = SumTree(size), np.zeros(size)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for _ in range(4):
        for _ in range(data.draw(st.integers(0, 2))):
            slots = rng.integers(0, size, data.draw(st.sampled_from([50, size // 8 + 50])))
            slots[10:20] = slots[0]  # more than once: the last counts
            weights = rng.random(len(slots))
            tree.set(slots, weights)
            last = dict(zip(slots.tolist(), weights.tolist(), strict=True))
            model[list(last)] = list(last.values())
        start, stop = sorted(rng.integers(0, size + 1, 2).tolist())
        value = data.draw(st.sampled_from([0.25, 0.0, rng.random(stop - start)]))
        tree.set_range(start, stop, value)
        model[start:stop] = value
        assert tree.largest() == model.max()
        assert tree.total() == pytest.approx(model.sum())
        some = rng.integers(0, size, 20)
        assert np.array_equal(tree.get(some), model[some])
        if model.any():
            uniform = rng.random(200)
            drawn = tree.draw(uniform)
            cumulative = np.cumsum(model)
            assert (model[drawn] > 0).all()
            wanted = uniform * cumulative[-1]
            assert (cumulative[drawn] >= wanted - 1e-9 * cumulative[-1]).all()
            assert (cumulative[drawn] - model[drawn] <= wanted + 1e-9 * cumulative[-1]).all()
    assert np.array_equal(tree.get(np.arange(size)), model)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory of the process from /proc")
def test_the_first_draw_of_many_samples_takes_little_memory() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    class Rows:
        sample_numbers = range(10**8)

        def __len__(self) -> int:
            return len(self.sample_numbers)

    sampler, before = PrioritizedSampler(seed=0), resident_bytes()
    index, _ = sampler.sample(Rows(), 256)
    assert resident_bytes() - before < 10**8  # a byte a row; the weights alone would take eight
    sampler.update_priority(index, np.linspace(1, 5, 256))
    assert len(sampler.sample(Rows(), 256).index) == 256


def test_a_sum_that_is_no_number_is_an_error() -> None:
    tree = filled(10, np.full(10, 1e308))
    with pytest.raises(OverflowError, match="scale the priorities down"), np.errstate(over="ignore"):
        tree.draw(np.array([0.5]))
