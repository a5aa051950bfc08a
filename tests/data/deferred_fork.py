"""Forks while steps are yet to be written."""

from __future__ import annotations

import multiprocessing
import threading

from deferred_play import Recording
from recording_envs import as_rows

from unienv_data import ReplayBuffer
from unienv_data.replay_buffer._deferred import AwaitingBuffer

TIMEOUT = 60


def count_in_child(buffer: ReplayBuffer) -> int:
    """How many samples a forked process finds."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send((len(buffer), len(as_rows(buffer)))), daemon=True)
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


if __name__ == "__main__":
    see_the_steps()
    fork_while_a_thread_writes()
