"""Numbered messages between two processes.

Every request has a number and every reply carries it, so an answer that comes too late is told from the awaited one.
Reading and writing never block in the middle of a message: a worker that stops there cannot hold up its parent, and
two sides that send much at once cannot block each other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

_HEADER = struct.Struct("<QQB")
_READ_SIZE = 1 << 16  # a buffer of a megabyte would cost more than the few bytes that are mostly read


def pickled(value: Any) -> bytes:
    """Pickle a value for `pickle.loads` in another process.

    By name where that works, which is faster and keeps types identical; else by value, as closures and local types
    need it.
    """
    try:
        return pickle.dumps(value)
    except Exception:
        return cloudpickle.dumps(value)


class Portable:
    """A value on its way to another process: as it is to a forked one, pickled for others, lambdas included."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (cloudpickle.dumps(self.value),)


def _unpickled(data: bytes) -> Portable:
    return Portable(pickle.loads(data))


@contextlib.contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block.

    By way of its handler: to block the signal in this thread is not enough, since another thread of the process may
    receive it, and Python then calls the handler in the main thread all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads are never interrupted
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    held_back: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *args: held_back.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held_back:
            handler(*held_back[-1])


class Message(NamedTuple):
    """A request or a reply: its number, a code for its kind, and the bytes that go with it."""

    number: int
    code: int
    payload: bytes = b""


class ChannelClosedError(Exception):
    """The other side is gone, or this one is closed."""


class Channel:
    """One end of a connection between two processes.

    Parameters
    ----------
    connection
        One end of a duplex `multiprocessing` pipe. The channel makes it non-blocking and closes it in `close`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        os.set_blocking(self.fd, False)
        self._unread = bytearray()
        self._unsent = memoryview(b"")
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    # -- sending -------------------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        """Whether a part of what was sent still waits here, for `flush`."""
        return len(self._unsent) > 0

    def send(self, number: int, code: int, payload: bytes) -> bool:
        """Send a message, or as much of it as fits into the pipe: False if the rest is left to `flush`."""
        data = _HEADER.pack(len(payload), number, code) + payload
        with no_interrupt():
            self._unsent = memoryview(self._unsent.tobytes() + data if self._unsent else data)
            self._write_some()
        return not self._unsent

    def flush(self, seconds: float | None = None) -> bool:
        """Send the rest of what was sent, reading what arrives meanwhile; False if it takes longer than that."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._unsent:
            with no_interrupt():
                sent = self._write_some()
            if sent == 0 and not self._await_room(deadline):
                return False
        return True

    def _write_some(self) -> int:
        """Write what fits into the pipe; Ctrl-C must not come between that and forgetting what was written."""
        try:
            sent = os.write(self.fd, self._unsent)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        self._unsent = self._unsent[sent:]
        return sent

    def _await_room(self, deadline: float | None) -> bool:
        """Wait until the other side reads, or sends something itself, which is then read; False at the deadline."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        self._poll.modify(self.fd, select.POLLIN | select.POLLOUT)
        try:
            events = self._poll.poll(left)
        finally:
            self._poll.modify(self.fd, select.POLLIN)
        if events and events[0][1] & select.POLLIN:
            self._fill()
        return bool(events)

    # -- receiving -----------------------------------------------------------------------------------------

    def receive(self) -> Message:
        """The next message, however long it takes."""
        while (message := self._cut()) is None:
            self._poll.poll()
            self._fill()
        return message

    @property
    def has_unread(self) -> bool:
        """Whether there is something to read, be it the end of the stream."""
        return bool(self._poll.poll(0))

    def arrived(self) -> list[Message]:
        """The messages that have arrived, without waiting.

        Raises
        ------
        ChannelClosedError
            If there are none and no more can come.
        """
        try:
            self._fill()
        except ChannelClosedError:
            messages = self.read_already()
            if not messages:
                raise
            return messages
        return self.read_already()

    def read_already(self) -> list[Message]:
        """The messages that were read from the pipe, mostly by `flush`, and not yet returned."""
        messages = []
        while self._unread and (message := self._cut()) is not None:
            messages.append(message)
        return messages

    def _fill(self) -> None:
        """Read what is in the pipe; nothing if it is empty."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("end of stream")
        self._unread += data

    def _cut(self) -> Message | None:
        """The first whole message of what was read, if there is one."""
        unread = self._unread
        if len(unread) < _HEADER.size:
            return None
        length, number, code = _HEADER.unpack_from(unread)
        end = _HEADER.size + length
        if len(unread) < end:
            return None
        payload = bytes(unread[_HEADER.size : end]) if length else b""
        del unread[:end]
        return Message(number, code, payload)

    def close(self) -> None:
        """Close this end; its descriptor's number may soon be another file's, so nothing is written any more."""
        self.fd = -1
        self.connection.close()
