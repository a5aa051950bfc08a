"""Forks while steps are yet to be written."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from deferred_play import Recording
from recording_envs import as_rows

from unienv_data import ReplayBuffer
from unienv_data.replay_buffer._deferred import AwaitingBuffer, Share

TIMEOUT = 60


def count_in_child(buffer: ReplayBuffer, first: Callable[[], None] = lambda: None) -> int:
    """How many samples a forked process finds once it has done something."""

    def count() -> None:
        first()
        sender.send((len(buffer), len(as_rows(buffer))))

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=count, daemon=True)
    child.start()
    try:
        if not receiver.poll(TIMEOUT):
            raise TimeoutError("the child hangs")
        count, rows = receiver.recv()
    finally:
        child.kill()
        child.join()
    assert count == rows
    return count


def see_the_steps() -> None:
    recording = Recording("shared", 2)
    recording.step(15)
    assert recording.is_awaiting
    assert count_in_child(recording.buffers[0]) == 30
    assert type(recording.buffers[0]) is AwaitingBuffer  # in this process, nobody has looked
    print("a child has the steps, too")


def fork_while_a_thread_writes() -> None:
    """That thread is not there in the child, which would wait for it for ever."""
    recording = Recording("shared", 2)
    recording.step(15)
    buffer = recording.buffers[0]
    assert len(buffer) == 30
    recording.step(15)
    has_it, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with object.__getattribute__(buffer, "_writer").writing:
            has_it.set()
            is_over.wait(TIMEOUT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_it.wait(TIMEOUT)
    try:
        assert count_in_child(buffer) == 60
    finally:
        is_over.set()
        thread.join(TIMEOUT)
    assert len(buffer) == 60
    print("a child does not hang")


def fork_while_a_thread_is_about_to_wait() -> None:
    """Whatever it has said, in the child it does not get to it."""
    recording = Recording("shared", 2)
    has_begun, is_over, await_steps = threading.Event(), threading.Event(), Share.await_steps

    def slowly(*arguments: Any) -> None:
        has_begun.set()
        is_over.wait(TIMEOUT)
        await_steps(*arguments)

    def go_on() -> None:
        Share.await_steps = await_steps  # type: ignore[method-assign]
        recording.reset()
        recording.step(20)

    Share.await_steps = slowly  # type: ignore[method-assign]
    thread = threading.Thread(target=recording.step)
    thread.start()
    assert has_begun.wait(TIMEOUT)
    try:
        assert count_in_child(recording.buffers[0], go_on) == 40
    finally:
        is_over.set()
        thread.join(TIMEOUT)
        Share.await_steps = await_steps  # type: ignore[method-assign]
    assert len(recording.buffers[0]) == 2
    print("a child goes on")


if __name__ == "__main__":
    see_the_steps()
    fork_while_a_thread_writes()
    fork_while_a_thread_is_about_to_wait()
