"""Numbered messages between two processes.

Every request has a number and its reply carries the same number, so a late reply is not taken for the awaited one.
Reading and writing never block in the middle of a message: a worker that stops there does not block its parent, and
two sides that send large messages at the same time do not block each other.
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
_READ_SIZE = 1 << 16  # most messages are a few bytes: allocating a larger buffer costs more than it saves


def pickled(value: Any) -> bytes:
    """Pickle a value for `pickle.loads` in another process.

    Types and functions are pickled by name if possible, which is faster and keeps types identical; else by value, as
    closures and local types need.
    """
    try:
        return pickle.dumps(value)
    except Exception:
        return cloudpickle.dumps(value)


class Portable:
    """A value for another process: a fork inherits it, otherwise cloudpickle sends it, also lambdas."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (cloudpickle.dumps(self.value),)


def _unpickled(data: bytes) -> Portable:
    return Portable(pickle.loads(data))


@contextlib.contextmanager
def no_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    This replaces the handler of SIGINT. Blocking the signal in this thread is not enough: another thread may receive
    it, and Python then calls the handler in the main thread anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Ctrl-C interrupts the main thread only
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    delayed: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *args: delayed.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if delayed:
            handler(*delayed[-1])


class Message(NamedTuple):
    """A request or a reply: its number, a code for its kind, and its payload."""

    number: int
    code: int
    payload: bytes = b""


class ChannelClosedError(Exception):
    """The other side has closed its end, or this end is closed."""


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
        """Whether bytes of a sent message are not in the pipe yet; `flush` writes them."""
        return len(self._unsent) > 0

    def send(self, number: int, code: int, payload: bytes) -> bool:
        """Send a message, or as much of it as fits into the pipe; returns False if `flush` must send the rest."""
        data = _HEADER.pack(len(payload), number, code) + payload
        with no_interrupt():
            self._unsent = memoryview(self._unsent.tobytes() + data if self._unsent else data)
            self._write_some()
        return not self._unsent

    def flush(self, seconds: float | None = None) -> bool:
        """Write all unsent bytes, reading what arrives meanwhile; returns False after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._unsent:
            with no_interrupt():
                sent = self._write_some()
            if sent == 0 and not self._await_writable(deadline):
                return False
        return True

    def _write_some(self) -> int:
        """Write the unsent bytes that fit into the pipe. Call it within `no_interrupt`, or bytes are sent twice."""
        try:
            sent = os.write(self.fd, self._unsent)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        self._unsent = self._unsent[sent:]
        return sent

    def _await_writable(self, deadline: float | None) -> bool:
        """Block until the pipe is writable, or data arrives and is read; returns False at the deadline."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        self._poll.modify(self.fd, select.POLLIN | select.POLLOUT)
        try:
            events = self._poll.poll(left)
        finally:
            self._poll.modify(self.fd, select.POLLIN)
        if events and events[0][1] & select.POLLIN:
            self._read_available()
        return bool(events)

    # -- receiving -----------------------------------------------------------------------------------------

    def receive(self) -> Message:
        """Block until a message arrives and return it."""
        while (message := self._next_message()) is None:
            self._poll.poll()
            self._read_available()
        return message

    @property
    def has_unread(self) -> bool:
        """Whether the pipe has data to read or has ended."""
        return bool(self._poll.poll(0))

    def arrived(self) -> list[Message]:
        """Read the messages that have arrived, without blocking.

        Raises
        ------
        ChannelClosedError
            No messages have arrived and the other side is closed.
        """
        try:
            self._read_available()
        except ChannelClosedError:
            messages = self.read_already()
            if not messages:
                raise
            return messages
        return self.read_already()

    def read_already(self) -> list[Message]:
        """Return the messages that were read from the pipe before, for example by `flush`."""
        messages = []
        while self._unread and (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def _read_available(self) -> None:
        """Read the bytes that are in the pipe, without blocking."""
        try:
            data = os.read(self.fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError as error:
            raise ChannelClosedError(str(error)) from error
        if not data:
            raise ChannelClosedError("end of stream")
        self._unread += data

    def _next_message(self) -> Message | None:
        """Remove the first complete message from the bytes read; None if it is not complete."""
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
        """Close this end of the connection."""
        self.fd = -1  # the next open file may get the same descriptor
        self.connection.close()
