"""Weighted draws: in proportion whichever way they are made, and the same after a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unienv_data import PrioritizedSampler
from unienv_data.samplers import prioritized_sampler
from unienv_data.samplers.prioritized_sampler import WeightedDraws

SIZE = 64
EVEN = np.linspace(0.5, 1.0, 40)
# a few outweigh the rest: next to nothing that is tried is kept
UNEVEN = np.where(np.arange(40) % 20 == 7, 1.0, 1e-3)


def filled(weights: np.ndarray, first: int = 0) -> WeightedDraws:
    draws = WeightedDraws(SIZE)
    numbers = np.arange(first, first + len(weights))
    draws.set(numbers % SIZE, weights)
    return draws


def ways(draws: WeightedDraws, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with the ways that are taken."""
    taken: list[str] = []

    def watch(way: str, method: Any) -> None:
        def watched(*args: Any) -> Any:
            taken.append(way)
            return method(*args)

        monkeypatch.setattr(draws, way, watched)

    for way in ("_draw_by_rejection", "_draw_by_tree"):
        watch(way, getattr(draws, way))
    return taken


@pytest.mark.parametrize("first", [0, 50, 1000], ids=lambda first: f"from_{first}")
@pytest.mark.parametrize(("weights", "way"), [(EVEN, "_draw_by_rejection"), (UNEVEN, "_draw_by_tree")])
def test_draws_are_in_proportion(weights: np.ndarray, way: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, rng = filled(weights, first), np.random.default_rng(0)
    taken = ways(draws, monkeypatch)
    numbers = range(first, first + len(weights))
    batches = [draws.draw(rng, numbers, 100) for _ in range(2000)]
    assert taken.count(way) > 1900
    places = np.concatenate([places for places, _ in batches])
    assert all(np.array_equal(found, weights[index]) for index, found in batches)
    expected = len(places) * weights / weights.sum()
    found = np.bincount(places, minlength=len(weights))
    # five standard deviations: one of forty strays so far once in 40,000 times
    assert (np.abs(found - expected) < 5 * np.sqrt(expected) + 1).all()


def test_a_batch_of_both_ways_is_in_proportion_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch begins with trials that keep less than they seemed to."""
    draws, rng = filled(UNEVEN), np.random.default_rng(1)
    taken = ways(draws, monkeypatch)
    places = []
    for _ in range(3000):
        draws._share = 0.15
        found, _ = draws.draw(rng, range(40), 50)
        assert len(found) == 50
        places.append(found)
    assert taken.count("_draw_by_rejection") >= 3000
    assert taken.count("_draw_by_tree") >= 2900
    expected = 150_000 * UNEVEN / UNEVEN.sum()
    counts = np.bincount(np.concatenate(places), minlength=40)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()


@given(
    weights=st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-3, 1.0, 1e300]), min_size=1, max_size=SIZE),
    first=st.integers(0, 200),
    share=st.sampled_from([1.0, 0.5, 0.1, 0.0]),
)
def test_nothing_without_a_weight_is_drawn(weights: list[float], first: int, share: float) -> None:
    draws, rng = filled(np.array(weights), first), np.random.default_rng(0)
    draws._share = share
    numbers = range(first, first + len(weights))
    if not any(weights):
        with pytest.raises(ValueError, match="all weights are zero"):
            draws.draw(rng, numbers, 30)
        return
    places, found = draws.draw(rng, numbers, 30)
    assert len(places) == len(found) == 30
    assert found.min() > 0
    assert found.tolist() == [weights[place] for place in places]


def test_the_better_way_is_found_again_when_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prioritized_sampler, "_TREE_BATCHES", 8)
    draws, rng = filled(EVEN), np.random.default_rng(0)
    taken = ways(draws, monkeypatch)

    def way_after(batches: int) -> str:
        for _ in range(batches):
            draws.draw(rng, range(40), 100)
        return taken[-1]

    assert way_after(3) == "_draw_by_rejection"
    draws.set(np.array([5]), np.array([1e6]))
    assert way_after(10) == "_draw_by_tree"
    draws.set(np.array([5]), np.array([1.0]))  # nothing is as large any more, which is found out after a while
    assert way_after(10) == "_draw_by_rejection"


@pytest.mark.parametrize("spread", [0.0, 1.0, 12.0])
def test_a_saved_sampler_goes_on_the_same_in_either_way(spread: float) -> None:
    source, rng = range(5000), np.random.default_rng(3)
    sampler = PrioritizedSampler(0.7, 0.5, seed=4)

    def train(one: PrioritizedSampler, priorities: np.ndarray) -> list[int]:
        drawn = one.sample(source, 64)
        one.update_priority(drawn.index, priorities)
        return drawn.index.tolist()

    given = [np.exp(spread * rng.standard_normal(64)) for _ in range(60)]
    for priorities in given[:30]:
        train(sampler, priorities)
    other = PrioritizedSampler(0.7, 0.5, seed=9)
    other.load_state_dict(sampler.state_dict())
    for priorities in given[30:]:
        assert train(sampler, priorities) == train(other, priorities)


def test_a_sampler_that_refuses_a_state_is_as_before() -> None:
    sampler, source = PrioritizedSampler(seed=0), range(100)
    sampler.sample(source, 10)
    state = sampler.state_dict()
    bad = {**PrioritizedSampler(seed=1).state_dict(), "draws": {"largest": 1.0, "share": -1.0, "tree_batches": 0}}
    with pytest.raises(ValueError, match="wanted from 0 to 1"):
        sampler.load_state_dict(bad)
    other = PrioritizedSampler(seed=2)
    other.load_state_dict(state)
    assert sampler.sample(source, 10).index.tolist() == other.sample(source, 10).index.tolist()


def test_a_state_that_cannot_be_is_refused() -> None:
    draws = filled(EVEN)
    with pytest.raises(ValueError, match=r"a largest weight of 0\.5"):
        draws.load_state_dict({"largest": 0.5, "share": 1.0, "tree_batches": 0})
    with pytest.raises(ValueError, match=r"a share of 2\.0"):
        draws.load_state_dict({"largest": 1.0, "share": 2.0, "tree_batches": 0})
