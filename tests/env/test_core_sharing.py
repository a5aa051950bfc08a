"""Workers that share a core while the parent has one to itself, with real processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import pytest
from vec_processes import forks_with_threads

from unienv_interface.env_base._core_sharing import CoreSharing, core_of, part

pytestmark = [
    *forks_with_threads,
    pytest.mark.skipif(
        not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores of Linux"
    ),
]


def work_for_ever(go_on: Any) -> None:
    while go_on.value:
        pass


@pytest.fixture
def workers() -> Iterator[list[int]]:
    """Two processes at work."""
    ctx = multiprocessing.get_context("fork")
    go_on = ctx.Value("b", True, lock=False)
    processes = [ctx.Process(target=work_for_ever, args=(go_on,), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    yield [process.pid or 0 for process in processes]
    go_on.value = False
    for process in processes:
        process.join(5)
        process.kill()


@pytest.fixture
def cores() -> Iterator[tuple[int, int]]:
    """The core that this process is kept on, and another one."""
    allowed = os.sched_getaffinity(0)
    here, there, *_ = sorted(allowed)
    os.sched_setaffinity(0, {here})
    yield here, there
    os.sched_setaffinity(0, allowed)


def crowd(pids: list[int], there: int) -> None:
    for pid in pids:
        os.sched_setaffinity(pid, {there})


def test_one_of_two_that_share_a_core_is_drawn_here_and_stays_free(workers: list[int], cores: tuple[int, int]) -> None:
    here, there = cores
    found: list[tuple[int | None, int]] = []
    for _ in range(50):  # the scheduler may part them itself before, or move one of them again after
        crowd(workers, there)
        for pid in workers:
            os.sched_setaffinity(pid, {here, there})
        moved = part(workers)
        found.append((moved, there if moved is None else core_of(moved)))
        assert all(os.sched_getaffinity(pid) == {here, there} for pid in workers)
    assert (workers[0], here) in found


def test_those_whose_cores_were_chosen_are_left_where_they_are(workers: list[int], cores: tuple[int, int]) -> None:
    _, there = cores
    crowd(workers, there)
    assert part(workers) is None
    assert [os.sched_getaffinity(pid) for pid in workers] == [{there}] * 2


def test_those_that_do_not_share_a_core_are_left_where_they_are(workers: list[int], cores: tuple[int, int]) -> None:
    here, there = cores
    os.sched_setaffinity(workers[0], {here})
    os.sched_setaffinity(workers[1], {there})
    assert part(workers) is None


def test_one_that_has_ended_is_no_error(workers: list[int], cores: tuple[int, int]) -> None:
    ctx = multiprocessing.get_context("fork")
    ended = ctx.Process(target=int)
    ended.start()
    ended.join()
    assert part([*workers, ended.pid or 0]) is None


def test_only_with_as_many_workers_as_cores() -> None:
    count = len(os.sched_getaffinity(0))
    assert not CoreSharing(count - 1).is_possible
    assert CoreSharing(count).is_possible


def test_it_takes_more_and_more_to_be_likely_again() -> None:
    sharing = CoreSharing(2)

    def waits_until_likely() -> int:
        return next(waits for waits in range(1, 10_000) if sharing.is_likely(True))

    assert [waits_until_likely() for _ in range(12)] == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert not any(sharing.is_likely(False) for _ in range(2000))
    assert waits_until_likely() == 2


def test_a_wait_that_was_not_alone_begins_the_count_anew() -> None:
    sharing = CoreSharing(2)
    assert not any(sharing.is_likely(was_alone) for was_alone in [True, False] * 100)
