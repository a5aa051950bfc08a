"""Mailboxes: nothing that is left in them is lost, taken twice or out of order, and nobody sleeps through it."""

from __future__ import annotations

import os
import select
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vec_envs import CounterEnv, counters
from vec_faults import ACTIONS
from vec_processes import context, forks_with_threads, only_on_linux

from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.env_base import _worker_pool
from unienv_interface.env_base._channel import Channel, Message, Waiter
from unienv_interface.env_base._mailbox import CAPACITY, SIZE, Mailbox
from unienv_interface.utils.shared_block import SharedBlock

pytestmark = forks_with_threads


def two_ends() -> tuple[Mailbox, Mailbox]:
    """One mailbox, as its writer and its reader have it."""
    block = SharedBlock.create(SIZE)
    return Mailbox(block, 0), Mailbox(block, 0)


def two_channels() -> tuple[Channel, Channel]:
    """Two ends that can send and leave."""
    block, (one, other) = SharedBlock.create(2 * SIZE), context("fork").Pipe()
    return (
        Channel(one, Mailbox(block, 0), Mailbox(block, SIZE)),
        Channel(other, Mailbox(block, SIZE), Mailbox(block, 0)),
    )


def is_full(mailbox: Mailbox) -> bool:
    return mailbox.is_full  # a property that changes by itself, which mypy does not expect


# -- one message -------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=CAPACITY)), max_size=8))
def test_a_message_is_taken_once_and_as_it_was_left(messages: list[tuple[int, bytes]]) -> None:
    writer, reader = two_ends()
    for number, (code, payload) in enumerate(messages, start=1):
        assert not is_full(reader)
        assert writer.leave(number, code, payload)
        assert is_full(reader)
        assert reader.take() == (number, code, payload)
    assert not reader.is_full


def test_either_the_writer_sees_the_sleeper_or_the_sleeper_the_message() -> None:
    writer, reader = two_ends()
    assert writer.leave(1, 0, b"")
    reader.fall_asleep()
    assert reader.is_full  # left before: it is seen on the way to sleep
    reader.take()
    assert not writer.leave(2, 0, b"")  # left after: the writer has to wake it
    reader.wake_up()
    assert reader.is_full
    reader.take()
    assert writer.leave(3, 0, b"")


def test_who_comes_late_finds_what_is_there() -> None:
    block = SharedBlock.create(SIZE)
    Mailbox(block, 0).leave(1, 2, b"early")
    assert Mailbox(block, 0).take() == (1, 2, b"early")


def test_a_cleared_mailbox_is_as_it_was_in_the_beginning() -> None:
    writer, reader = two_ends()
    writer.leave(7, 1, b"abc")
    writer.served = 7
    reader.fall_asleep()
    writer.clear()
    assert writer.served == 0
    assert not is_full(writer)
    assert writer.leave(1, 2, b"d")


# -- beside a pipe -----------------------------------------------------------------------------------------


def test_what_was_left_is_received_before_what_was_sent_later() -> None:
    here, there = two_channels()
    here.leave(1, 5, b"short")
    here.send(2, 6, b"x" * 100)
    assert [message[:3] for message in (there.receive(), there.receive())] == [(1, 5, b"short"), (2, 6, b"x" * 100)]
    assert not there.has_unread


def test_a_sleeper_is_woken_and_does_not_see_by_what() -> None:
    here, there = two_channels()
    there.inboxes[0].fall_asleep()
    here.leave(1, 5, b"left")
    assert select.select([there.fd], [], [], 5)[0]  # something has come that wakes it
    there.inboxes[0].wake_up()
    assert there.receive()[:3] == (1, 5, b"left")
    here.send(2, 6, b"sent")
    assert there.receive()[:3] == (2, 6, b"sent")


def test_a_message_that_is_there_already_is_not_slept_through() -> None:
    here, there = two_channels()
    here.leave(1, 0, b"")
    poll, start = select.poll(), time.monotonic()
    assert Waiter().wait(poll, there.inboxes, seconds=30) == []  # a Waiter that is new goes to sleep at once
    assert time.monotonic() - start < 15
    assert there.receive().number == 1


def test_a_channel_without_a_mailbox_only_sends() -> None:
    one, _ = context("fork").Pipe()
    with pytest.raises(ValueError, match="can only send"):
        Channel(one).leave(1, 0, b"")


def test_who_was_woken_in_vain_is_woken_the_next_time() -> None:
    """A pipe that is full takes no message that wakes; once there is room, the next one does."""
    here, there = two_channels()
    while here.send(9, 0, bytes(4096)):
        pass
    there.inboxes[0].fall_asleep()
    here.leave(1, 5, b"")
    assert there.receive().number == 1
    while there.has_unread:
        there.arrived()
    here.leave(2, 5, b"")
    assert select.select([there.fd], [], [], 5)[0]
    assert [there.receive().number for _ in range(2)] == [2, 9]  # that, and the rest of what did not fit


def _echo(connection: Connection, block: SharedBlock, count: int, seed: int) -> None:
    channel, pauses = Channel(connection, Mailbox(block, 0), Mailbox(block, SIZE)), np.random.default_rng(seed)
    for _ in range(count):
        message = channel.receive()
        time.sleep(pauses.choice(PAUSES))
        channel.leave(message.number, message.code, message.payload)


# Such that both sides are found awake, falling asleep and asleep: `Waiter.ALERT` lies between them.
PAUSES = (0.0, 0.0, 0.0, 0.0002, 0.0005, 0.001)


def test_two_processes_that_pause_as_they_like_miss_no_message() -> None:
    count, pauses = 1500, np.random.default_rng(0)
    block, (one, other) = SharedBlock.create(2 * SIZE), context("fork").Pipe()
    process = context("fork").Process(target=_echo, args=(other, block, count, 1), daemon=True)
    process.start()
    channel, poll, waiter = Channel(one, Mailbox(block, SIZE), Mailbox(block, 0)), select.poll(), Waiter()
    poll.register(channel.fd, select.POLLIN)
    try:
        for number in range(1, count + 1):
            time.sleep(pauses.choice(PAUSES))
            channel.leave(number, number % 200, number.to_bytes(4, "little"))
            deadline, (inbox,) = time.monotonic() + 30, channel.inboxes
            while not inbox.is_full:
                # without an end to the wait, a message that nobody is woken for would be a hang
                assert time.monotonic() < deadline, f"message {number} was slept through"
                waiter.wait(poll, channel.inboxes, seconds=30)
                assert all(not message.number for message in channel.arrived())  # what wakes says no more than that
            assert inbox.take() == (number, number % 200, number.to_bytes(4, "little"))
    finally:
        process.kill()
        process.join()


# -- in a vector environment -------------------------------------------------------------------------------


class PausingEnv(CounterEnv):
    """Takes no time, or so much that whoever waits for it falls asleep."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(PAUSES[(7 * self.index + 3 * self.steps) % len(PAUSES)])
        return super().step(action)


def test_workers_of_uneven_pace_give_what_one_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # so that a worker which answers without waking its parent is a TimeoutError, not a little slow
    monkeypatch.setattr(_worker_pool, "_LIVENESS_PERIOD", 60.0)
    factories = [lambda index=index: PausingEnv(index, length=9) for index in range(5)]
    env, twin = (
        AsyncVecEnv(factories, ctx=context("fork"), num_workers=3, timeout=20.0),
        SyncVecEnv(counters(5, length=9)),
    )
    actions = np.random.default_rng(0).uniform(-1, 1, (150, 5, 2)).astype(np.float32)
    with env:
        assert env.reset(seed=0)[1].tolist() == twin.reset(seed=0)[1].tolist()
        for action in actions:
            (seen, *signals, _), (wanted, *others, _) = env.step(action), twin.step(action)
            assert seen.tolist() == wanted.tolist()
            assert [part.tolist() for part in signals] == [part.tolist() for part in others]
            ended = signals[1] | signals[2]
            if ended.any():
                assert env.reset(mask=ended)[1].tolist() == twin.reset(mask=ended)[1].tolist()


@only_on_linux
def test_a_step_that_a_stopped_worker_took_up_late_is_not_taken_for_the_next() -> None:
    env, twin = AsyncVecEnv(counters(3), ctx=context("fork"), num_workers=2, timeout=0.3), SyncVecEnv(counters(3))
    with env:
        env.reset(seed=1)
        env.step(ACTIONS)
        os.kill(env.processes[1].pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="environments 1 to 2"):
            env.step(ACTIONS)  # left in the mailbox of one who does not look
        with pytest.raises(TimeoutError):
            env.reset(seed=5)
        os.kill(env.processes[1].pid, signal.SIGCONT)
        env.timeout = 30.0
        for seed in (2, 3):
            assert env.reset(seed=seed)[1][:, 2:].tolist() == twin.reset(seed=seed)[1][:, 2:].tolist()
            for _ in range(3):
                assert env.step(ACTIONS)[0][:, 2:].tolist() == twin.step(ACTIONS)[0][:, 2:].tolist()


def test_an_interrupt_while_something_else_is_waited_for_loses_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        AsyncVecEnv(counters(3), ctx=context("fork"), num_workers=2, timeout=20.0) as env,
        monkeypatch.context() as patch,
    ):
        env.reset(seed=0)
        env.send_command(2, "render")
        env.step_async(ACTIONS)
        pool, sort_in = env._pool, env._pool._sort_in

        def interrupted(worker: int, messages: list[Message]) -> None:
            if any(message.is_boxed for message in messages):
                patch.undo()
                raise KeyboardInterrupt
            sort_in(worker, messages)

        patch.setattr(pool, "_sort_in", interrupted)
        deadline = time.monotonic() + 20
        while not pool._inboxes[0].is_full and time.monotonic() < deadline:
            time.sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            env.get_command_result(2)
        assert env.step_wait()[0][:, 2].tolist() == [1, 1, 1]


def test_commands_of_ones_own_go_between_steps() -> None:
    """`send_command` while nothing is under way, and before its result was asked for: each gets its own answer."""
    with AsyncVecEnv(counters(3), ctx=context("fork"), num_workers=2) as env:
        env.reset(seed=0)
        for count in range(1, 6):
            env.send_command(2, "render")
            assert env.step(ACTIONS)[0][:, 2].tolist() == [count] * 3
            assert env.get_command_result(2).tolist() == np.full((2, 2, 3), 2).tolist()
