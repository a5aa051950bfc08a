"""The order of epochs: each sample once, another order for each seed and epoch, none favoured."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from unienv_data.base.epoch_order import _BLOCK, Epoch, EpochOrder

LENGTHS = [*range(70), 97, 1009, 4093, _BLOCK - 1, _BLOCK, _BLOCK + 1, 5000, 2**13, 10_007, 2**16, 100_001]


def whole(length: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return EpochOrder(length, seed, epoch).at(0, length)


@pytest.mark.parametrize("seed", [0, 1, 2**64 + 5])
def test_each_sample_comes_once(seed: int) -> None:
    for length in LENGTHS:
        order = whole(length, seed)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(length)), length


@pytest.mark.parametrize("length", [1000, _BLOCK + 1, 3 * _BLOCK + 17])
def test_positions_give_the_same_in_any_pieces(length: int) -> None:
    order, expected = EpochOrder(length, 3, 4), whole(length, 3, 4)
    for size in (1, 7, 1000, _BLOCK, 5000):
        for start in range(0, length, max(size, length // 50)):
            stop = min(start + size, length)
            assert np.array_equal(order.at(start, stop), expected[start:stop])


def test_what_was_handed_out_is_not_shared() -> None:
    order = EpochOrder(100, 0, 0)
    before = order.at(0, 100).copy()
    order.at(0, 50)[:] = -1
    assert np.array_equal(order.at(0, 100), before)


def test_positions_outside_are_refused() -> None:
    with pytest.raises(IndexError, match="positions 3 to 11 of an epoch over 10"):
        EpochOrder(10, 0, 0).at(3, 11)


@pytest.mark.parametrize("length", [50, 20_000])
def test_seeds_and_epochs_give_orders_of_their_own(length: int) -> None:
    orders = [whole(length, seed, epoch) for seed in range(6) for epoch in range(6)]
    for one in range(len(orders)):
        for other in range(one):
            # two random orders agree in about one place
            assert (orders[one] == orders[other]).sum() < 12
    assert np.array_equal(whole(length, 2, 3), whole(length, 2, 3))


def test_every_order_of_few_samples_is_as_likely() -> None:
    counts = Counter(tuple(whole(4, seed)) for seed in range(4800))
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7  # p = 0.001 with 23 degrees of freedom


def test_large_orders_favour_no_place() -> None:
    length, cells = _BLOCK + 907, 20
    places = np.arange(length) * cells // length
    table = np.zeros((cells, cells))
    for seed in range(300):
        np.add.at(table, (places, places[whole(length, seed)]), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 450  # p = 0.001 with 361 degrees of freedom
    order = whole(200_000)
    steps = np.diff(order)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.01
    assert len(np.unique(steps)) > 0.5 * len(steps)


def test_a_billion_samples_begin_at_once() -> None:
    tracemalloc.start()
    numbers = range(10**9)
    epoch = Epoch(numbers, 0, 1, 0)
    drawn = np.concatenate([epoch.after(start, 256, numbers, 0)[0] for start in range(0, 25_600, 256)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20
    assert len(np.unique(drawn)) == len(drawn)
    assert drawn.min() >= 0
    assert drawn.max() < 10**9
    assert drawn.mean() == pytest.approx(5e8, rel=0.02)
