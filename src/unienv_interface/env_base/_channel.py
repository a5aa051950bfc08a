"""Numbered messages between a vector environment and its workers.

Every request has a number and every reply carries it, so that an answer which comes too late can be told from the one
that is awaited. Reading never blocks for the rest of a message: a worker that stops in the middle of one cannot hold
up its parent.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

_HEADER = struct.Struct("<QQB")
_READ_SIZE = 1 << 20


class Message(NamedTuple):
    """A request or a reply: its number, what it is about, and bytes that go with it."""

    number: int
    code: int
    payload: bytes = b""


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end of a connection. The connection object is kept for its descriptor, and to be seen by users."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        os.set_blocking(self.fd, False)
        self._unread = bytearray()

    def send(self, message: Message, timeout: float | None = None) -> None:
        """Send a message whole, or raise a TimeoutError if the other side does not take it in time."""
        number, code, payload = message
        data = memoryview(_HEADER.pack(len(payload), number, code) + payload)
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(data):
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:
                _await_ready(self.fd, select.POLLOUT, deadline)
            except OSError as error:
                raise ChannelClosedError(str(error)) from error

    def receive(self) -> Message:
        """The next message, however long it takes."""
        while True:
            message = self._cut()
            if message is not None:
                return message
            self._fill(block=True)

    def arrived(self) -> list[Message]:
        """The messages that are there, without waiting."""
        self._fill(block=False)
        messages = []
        while (message := self._cut()) is not None:
            messages.append(message)
        return messages

    def _fill(self, block: bool) -> None:
        while True:
            try:
                data = os.read(self.fd, _READ_SIZE)
            except BlockingIOError:
                if not block:
                    return
                _await_ready(self.fd, select.POLLIN, None)
                continue
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            if not data:
                raise ChannelClosedError("end of stream")
            self._unread += data
            return

    def _cut(self) -> Message | None:
        """The first whole message of what was read, if there is one."""
        if len(self._unread) < _HEADER.size:
            return None
        length, number, code = _HEADER.unpack_from(self._unread)
        end = _HEADER.size + length
        if len(self._unread) < end:
            return None
        payload = bytes(self._unread[_HEADER.size : end])
        del self._unread[:end]
        return Message(number, code, payload)

    def send_descriptor(self, fd: int) -> None:
        """Hand a file descriptor over. The other side must be at `receive_descriptor`, with nothing sent since."""
        with socket.socket(fileno=os.dup(self.fd)) as stream:
            stream.setblocking(True)
            socket.send_fds(stream, [b"."], [fd])
            stream.setblocking(False)

    def receive_descriptor(self) -> int:
        """The file descriptor that the other side hands over."""
        _await_ready(self.fd, select.POLLIN, None)
        with socket.socket(fileno=os.dup(self.fd)) as stream:
            data, fds, _, _ = socket.recv_fds(stream, 1, 1)
        if not data or not fds:
            raise ChannelClosedError("end of stream where a file descriptor was due")
        return fds[0]

    def close(self) -> None:
        self.connection.close()


def _await_ready(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(wait):
        raise TimeoutError("the other side does not read")
