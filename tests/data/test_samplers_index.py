"""Laws over index samplers, and what each of them promises."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from buffers import number, number_space, numbers
from hypothesis import given
from hypothesis import strategies as st

from unienv_data import ReplayBuffer
from unienv_data.samplers import (
    IndexSampler,
    LinearSchedule,
    PrioritizedSampler,
    RandomSampler,
    SamplerWithoutReplacement,
    SliceSampler,
)

SAMPLERS: dict[str, Callable[..., IndexSampler]] = {
    "random": RandomSampler,
    "without_replacement": SamplerWithoutReplacement,
    "in_order": lambda seed=None: SamplerWithoutReplacement(shuffle=False, drop_last=True, seed=seed),
    "prioritized": lambda seed=None: PrioritizedSampler(beta=LinearSchedule(0.4, 1.0, 10), seed=seed),
    "slices": lambda seed=None: SliceSampler(4, seed=seed),
    "padded_slices": lambda seed=None: SliceSampler(num_slices=2, strict_length=False, episode_key="number", seed=seed),
}


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Callable[..., IndexSampler]:
    return SAMPLERS[request.param]


def episodes(lengths: list[int], capacity: int | None = None) -> ReplayBuffer:
    """Episodes whose samples carry the number of their episode."""
    buffer = ReplayBuffer.create(number_space(), capacity=capacity, maintain_segment_metadata=True)
    for episode, length in enumerate(lengths):
        buffer.extend(numbers([episode] * length))
    return buffer


def drawn(sampler: IndexSampler, source: Any, batches: int, size: int = 8) -> list[tuple[Any, ...]]:
    found = [sampler.sample(source, size) for _ in range(batches)]
    return [(batch.index.tolist(), {key: value.tolist() for key, value in batch.info.items()}) for batch in found]


# -- laws ----------------------------------------------------------------------------------------------------


def test_indices_are_in_range_and_info_is_as_declared(make: Callable[..., IndexSampler]) -> None:
    source, sampler = episodes([5, 9, 30, 4]), make(seed=0)
    for _ in range(50):
        index, info = sampler.sample(source, 8)
        assert index.dtype == np.int64
        assert index.shape == (8,)
        assert index.min() >= 0
        assert index.max() < 48
        assert {key: value.dtype for key, value in info.items()} == sampler.info_fields()
        assert all(value.shape == (8,) for value in info.values())


def test_the_same_seed_draws_the_same(make: Callable[..., IndexSampler]) -> None:
    source = episodes([20, 20, 20])
    first, again, other = (drawn(make(seed=seed), source, 6) for seed in (5, 5, 6))
    assert first == again
    seeded = make(seed=6)
    seeded.manual_seed(5)
    assert drawn(seeded, source, 6) == first
    if make is not SAMPLERS["in_order"]:
        assert first != other
        assert drawn(make(seed=np.random.default_rng(5)), source, 3) != drawn(make(), source, 3)


def test_a_state_at_any_point_goes_on_the_same(make: Callable[..., IndexSampler]) -> None:
    source, sampler = episodes([20, 21, 20]), make(seed=1)
    for _ in range(10):
        state = json.loads(json.dumps(sampler.state_dict(), default=np.ndarray.tolist))
        resumed = make()
        resumed.load_state_dict(state)
        expected = drawn(make_like(make, sampler), source, 9)
        assert drawn(resumed, source, 9) == expected
        sampler.sample(source, 8)
        if isinstance(sampler, PrioritizedSampler):
            sampler.update_priority([1, 2, 3], [5.0, 0.1, 7.0])


def make_like(make: Callable[..., IndexSampler], sampler: IndexSampler) -> IndexSampler:
    twin = make()
    twin.load_state_dict(sampler.state_dict())
    return twin


def test_a_state_of_another_kind_is_refused(make: Callable[..., IndexSampler]) -> None:
    class Other(RandomSampler):
        pass

    with pytest.raises(ValueError, match="the state is of a 'Other'"):
        make().load_state_dict(Other().state_dict())


def test_an_empty_source_is_an_error(make: Callable[..., IndexSampler]) -> None:
    with pytest.raises(ValueError, match="no samples to draw from"):
        make().sample(ReplayBuffer.create(number_space(), capacity=4), 8)


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"])
def test_every_generator_of_numpy_can_be_saved(bits: str) -> None:
    sampler = RandomSampler(np.random.Generator(getattr(np.random, bits)(3)))
    sampler.sample(range(100), 5)
    state = json.loads(json.dumps(sampler.state_dict()))
    resumed = RandomSampler()
    resumed.load_state_dict(state)
    assert drawn(resumed, range(1000), 3) == drawn(sampler, range(1000), 3)


def test_an_unknown_generator_is_refused() -> None:
    state = {**RandomSampler().state_dict(), "rng": {"bit_generator": "os"}}
    with pytest.raises(ValueError, match="unknown generator 'os', known are PCG64"):
        RandomSampler().load_state_dict(state)


# -- uniform -------------------------------------------------------------------------------------------------


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_random_draws_are_even() -> None:
    sampler = RandomSampler(0)
    counts = np.bincount(np.concatenate([sampler.sample(range(100), 1000).index for _ in range(100)]), minlength=100)
    assert chi_square(counts, np.full(100, 1000.0)) < 149  # p = 0.001


@given(length=st.integers(1, 60), sizes=st.lists(st.integers(1, 25), min_size=1, max_size=30), shuffle=st.booleans())
def test_an_epoch_has_each_index_once_whatever_the_batches(length: int, sizes: list[int], shuffle: bool) -> None:
    sampler = SamplerWithoutReplacement(shuffle=shuffle, seed=2)
    epoch: list[int] = []
    for size in sizes:
        epoch += sampler.sample(range(length), size).index.tolist()
        if sampler.ran_out:
            assert sorted(epoch) == list(range(length))
            assert shuffle or epoch == sorted(epoch)
            epoch = []
    assert len(set(epoch)) == len(epoch)


def test_drop_last_leaves_out_the_rest() -> None:
    sampler = SamplerWithoutReplacement(drop_last=True, seed=0)
    for epoch in range(3):
        assert sampler.epoch == epoch
        found = np.concatenate([sampler.sample(range(10), 4).index for _ in range(2)])
        assert len(set(found.tolist())) == 8
    with pytest.raises(ValueError, match="with drop_last an epoch has no batch"):
        sampler.sample(range(10), 11)


def test_an_epoch_is_over_what_was_there_when_it_began() -> None:
    sampler = SamplerWithoutReplacement(seed=0)
    first = sampler.sample(range(10), 4).index
    rest = [sampler.sample(range(1000), 4).index for _ in range(2)]
    assert sorted(np.concatenate([first, *rest]).tolist()) == list(range(10))
    sampler.sample(range(1000), 4)
    assert sampler.sample(range(5), 5).index.max() < 5  # there are fewer: a new epoch


# -- prioritized ---------------------------------------------------------------------------------------------


def test_draws_are_in_proportion_to_priorities() -> None:
    sampler = PrioritizedSampler(alpha=0.5, beta=1.0, eps=0.0, seed=0)
    sampler.sample(range(20), 1)
    priority = np.arange(20.0)  # the first is never drawn
    sampler.update_priority(np.arange(20), priority)
    batches = [sampler.sample(range(20), 1000) for _ in range(100)]
    counts = np.bincount(np.concatenate([batch.index for batch in batches]), minlength=20)
    probability = np.sqrt(priority) / np.sqrt(priority).sum()
    assert counts[0] == 0
    assert chi_square(counts[1:], 1e5 * probability[1:]) < 42.3  # p = 0.001
    index, info = batches[0]
    expected = 1 / (20 * probability[index])
    np.testing.assert_allclose(info["weight"], expected / expected.max(), rtol=1e-6)


def test_new_samples_get_the_highest_priority() -> None:
    buffer, sampler = episodes([4]), PrioritizedSampler(alpha=1.0, eps=0.0, seed=0)
    sampler.sample(buffer, 1)
    sampler.update_priority([0, 1, 2, 3], [0.0, 0.0, 0.0, 5.0])
    buffer.extend(numbers([1, 1]))
    counts = Counter(sampler.sample(buffer, 3000).index.tolist())
    assert set(counts) == {3, 4, 5}
    assert min(counts.values()) > 850
    fixed = PrioritizedSampler(alpha=1.0, eps=0.0, default_priority=1.0, seed=0)
    fixed.sample(buffer, 1)
    fixed.update_priority(np.arange(6), 0.0)
    buffer.extend(numbers([2]))
    assert set(fixed.sample(buffer, 10).index.tolist()) == {6}


def test_what_a_ring_overwrites_starts_anew() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=6)
    buffer.extend(numbers(range(6)))
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0, seed=0)
    old = sampler.sample(buffer, 4)
    sampler.update_priority(np.arange(6), 0.0)
    for written in range(6, 20):
        buffer.append(number(written))
        batch = sampler.sample(buffer, 8)
        assert set(batch.index.tolist()) == {5}  # the new one, of priority 1
        assert set(batch.info["number"].tolist()) == {written}
        sampler.update_priority(5, 0.0)
    sampler.update_priority_of(old.info["number"], 9.0)  # they are long gone
    assert sampler._draws.total() == 0.0


@given(data=st.data())
def test_priorities_follow_the_samples(data: st.DataObject) -> None:
    capacity = data.draw(st.sampled_from([3, 1030, None]))
    buffer = ReplayBuffer.create(number_space(), capacity=capacity)
    sampler = PrioritizedSampler(alpha=1.0, eps=0.0, default_priority=1.0, seed=data.draw(st.integers(0, 100)))
    model: dict[int, float] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        count = data.draw(st.sampled_from([1, 2, 3 if capacity == 3 else 700]))
        first = buffer.sample_numbers.stop
        buffer.extend(numbers(np.arange(first, first + count)))
        model.update(dict.fromkeys(range(first, first + count), 1.0))
        model = {key: value for key, value in model.items() if key in buffer.sample_numbers}
        if any(model.values()):
            batch = sampler.sample(buffer, 5)
            assert all(model[key] > 0 for key in batch.info["number"].tolist())
            assert (buffer.get_at(batch.index)["number"] == batch.info["number"]).all()
            priority = data.draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=5, max_size=5))
            sampler.update_priority(batch.index, priority)
            model.update(zip(batch.info["number"].tolist(), priority, strict=True))
            assert sampler._known_weights().tolist() == [model[key] for key in sorted(model)]


def test_removed_samples_are_forgotten() -> None:
    buffer, sampler = episodes([10]), PrioritizedSampler(seed=0)
    sampler.sample(buffer, 2)
    buffer.clear()
    buffer.extend(numbers([1, 2]))
    assert set(sampler.sample(buffer, 50).index.tolist()) == {0, 1}
    del buffer[1]
    assert set(sampler.sample(buffer, 50).index.tolist()) == {0}


@pytest.mark.parametrize("priority", [-1.0, np.nan, np.inf, 1e305])
def test_bad_priorities_are_refused(priority: float) -> None:
    sampler = PrioritizedSampler(alpha=1.0, seed=0)
    sampler.sample(range(5), 2)
    before = sampler.state_dict()["weights"]
    with pytest.raises(ValueError, match="priorit"):
        sampler.update_priority([0, 1], [1.0, priority])
    assert np.array_equal(sampler.state_dict()["weights"], before)


def test_an_index_that_is_not_there_is_refused() -> None:
    sampler = PrioritizedSampler(seed=0)
    sampler.sample(range(5), 2)
    for index in (5, -1):
        with pytest.raises(IndexError, match="the last draw was from 5 samples"):
            sampler.update_priority([index], 1.0)


def test_schedules_move_alpha_and_beta() -> None:
    sampler = PrioritizedSampler(LinearSchedule(0.5, 1.0, 4), LinearSchedule(0.0, 1.0, 2), seed=0)
    found = []
    for _ in range(5):
        found.append((sampler.alpha, sampler.beta))
        sampler.sample(range(3), 1)
    assert found == [(0.5, 0.0), (0.625, 0.5), (0.75, 1.0), (0.875, 1.0), (1.0, 1.0)]
    for name in ("alpha", "beta", "eps"):
        with pytest.raises(ValueError, match=f"{name} is -1"):
            PrioritizedSampler(**{name: -1.0})


# -- slices --------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    capacity=st.sampled_from([None, 7, 20]),
    slice_len=st.integers(1, 8),
    strict=st.booleans(),
    keyed=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_slices_stay_in_their_episode(
    lengths: list[int], capacity: int | None, slice_len: int, strict: bool, keyed: bool, seed: int
) -> None:
    if capacity is not None:
        lengths = [min(length, capacity) for length in lengths]
    buffer = episodes(lengths, capacity)
    sampler = SliceSampler(slice_len, strict_length=strict, episode_key="number" if keyed else None, seed=seed)
    values = buffer.get_at(...)["number"]
    longest = max(Counter(values.tolist()).values())
    if strict and longest < slice_len:
        with pytest.raises(ValueError, match=f"no episode has {slice_len} samples"):
            sampler.sample(buffer, 3 * slice_len)
        return
    index, info = sampler.sample(buffer, 3 * slice_len)
    for row, mask in zip(index.reshape(3, -1), info["mask"].reshape(3, -1), strict=True):
        kept = row[mask]
        assert (np.diff(kept) == 1).all()
        assert len(set(values[row].tolist())) == 1
        episode = np.flatnonzero(values == values[row[0]])
        assert len(kept) == min(slice_len, len(episode))
        assert len(kept) == slice_len or not strict
        assert (row[~mask] == kept[-1]).all()


@pytest.mark.parametrize("lengths", [[3, 10, 5], [1] * 300 + [6]])
def test_every_start_is_as_likely(lengths: list[int]) -> None:
    buffer, sampler = episodes(lengths), SliceSampler(4, seed=0)
    starts = np.concatenate([sampler.sample(buffer, 400).index.reshape(-1, 4)[:, 0] for _ in range(40)])
    bounds = np.cumsum([0, *lengths])
    valid = [start for first, stop in itertools.pairwise(bounds) for start in range(first, stop - 3)]
    counts = np.bincount(starts, minlength=bounds[-1])
    assert set(np.flatnonzero(counts)) == set(valid)
    assert chi_square(counts[valid], np.full(len(valid), len(starts) / len(valid))) < 30


def test_slices_by_key_see_what_is_added() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=12)
    sampler = SliceSampler(3, episode_key=["number"], seed=0)
    for episode in range(30):
        for _ in range(2):  # an episode that goes on in the next call
            buffer.extend(numbers([episode] * (episode % 3 + 1)))
            values = buffer.get_at(...)["number"]
            if max(Counter(values.tolist()).values()) >= 3:
                index = sampler.sample(buffer, 30).index.reshape(-1, 3)
                assert (values[index] == values[index[:, :1]]).all()


def test_bad_slices_are_refused() -> None:
    with pytest.raises(TypeError, match="either slice_len or num_slices"):
        SliceSampler()
    with pytest.raises(ValueError, match="slice_len is 0"):
        SliceSampler(0)
    with pytest.raises(ValueError, match="batch_size 10 is not a multiple of slice_len 4"):
        SliceSampler(4).sample(episodes([8]), 10)
    with pytest.raises(ValueError, match="does not know its episodes"):
        SliceSampler(2).sample(range(10), 4)
    with pytest.raises(ValueError, match=r"inner/copies has values of shape \(3,\)"):
        SliceSampler(2, episode_key=("inner", "copies")).sample(episodes([8]), 4)
