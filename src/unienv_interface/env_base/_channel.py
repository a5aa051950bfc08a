"""Numbered messages between a vector environment and its workers.

Every request has a number and every reply carries it, so that an answer which comes too late can be told from the one
that is awaited. Neither reading nor writing blocks for the rest of a message: a worker that stops in the middle of one
cannot hold up its parent, and two sides that both have much to say cannot block each other.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from ._mailbox import Mailbox

_HEADER = struct.Struct("<QQB")
_WAKE_UP = 0  # the number of a message that says no more than to look into the mailbox
_AT_ONCE = 5e-6  # seconds: sooner than that nobody comes back who has let another one go first
_READ_SIZE = 1 << 16  # a buffer of a megabyte would cost more than what is mostly read, a few bytes


def pickled(value: Any) -> bytes:
    """A value as bytes for `pickle.loads` on the other side.

    By name where that will do, which is faster and makes types the other side's own; else by value, as closures and
    local types need it.
    """
    try:
        return pickle.dumps(value)
    except Exception:
        return cloudpickle.dumps(value)


class Waiter:
    """Waits for descriptors and mailboxes: awake for as long as what it awaits tends to come soon, else asleep.

    To be woken takes tens of microseconds, on virtual machines above all, since a core that has nothing to do goes to
    sleep too. So one who has not waited long the last time looks again and again at first, and lets whoever has
    something to do go before it.
    """

    ALERT = 5e-4  # seconds

    def __init__(self) -> None:
        self._is_alert = False
        self.was_alone = False  # on its core, so that nobody else could go before it the last time

    def are_all_full(self, poll: select.poll, inboxes: Sequence[Mailbox]) -> bool:
        """Whether all mailboxes are full before something else happens, for as long as one who is awake stays so."""
        if not self._is_alert:
            return False
        start = time.monotonic()
        give_way()  # first of all: whom it waits for may be waiting for this core
        self.was_alone = time.monotonic() - start < _AT_ONCE
        while True:
            for inbox in inboxes:
                if not inbox.is_full:
                    break
            else:
                return True
            if poll.poll(0) or time.monotonic() >= start + self.ALERT:
                return False
            give_way()

    def wait(
        self,
        poll: select.poll,
        inboxes: Sequence[Mailbox] = (),
        seconds: float | None = None,
        since: float | None = None,
    ) -> list[tuple[int, int]]:
        """The events of `poll`; none if a mailbox is full, or if it takes longer than that.

        What comes in several parts is awaited `since` an instant before the first of them, by `time.monotonic`.
        """
        start, look = time.monotonic(), poll.poll
        since = start if since is None else since
        if self._is_alert:
            end = min(since + self.ALERT, start + (self.ALERT if seconds is None else seconds))
            while True:
                give_way()  # as above
                for inbox in inboxes:
                    if inbox.is_full:
                        return []
                events = look(0)
                if events:
                    return events
                if time.monotonic() >= end:
                    break
        for inbox in inboxes:
            inbox.fall_asleep()
        try:
            is_full = any(inbox.is_full for inbox in inboxes)
            left = None if seconds is None else max(0.0, start + seconds - time.monotonic()) * 1000
            events = look(0 if is_full else left)
        finally:
            for inbox in inboxes:
                inbox.wake_up()
        self._is_alert = (is_full or bool(events)) and time.monotonic() - since < self.ALERT
        return events


give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


class Message(NamedTuple):
    """A request or a reply: its number, what it is about, and bytes that go with it."""

    number: int
    code: int
    payload: bytes = b""
    is_boxed: bool = False  # it came through the mailbox


class ChannelClosedError(Exception):
    """The other side is gone, or this one is closed."""


class Channel:
    """One end of a connection. The connection object is kept for its descriptor, and to be seen by users.

    Two ends that have mailboxes can `leave` each other short messages there.
    """

    def __init__(self, connection: Connection, inbox: Mailbox | None = None, outbox: Mailbox | None = None) -> None:
        self.connection = connection
        self.inboxes = [] if inbox is None else [inbox]
        self.outbox = outbox
        self.fd = connection.fileno()
        os.set_blocking(self.fd, False)
        self._unread = bytearray()
        self._unsent = memoryview(b"")
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._waiter = Waiter()

    # -- sending -------------------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        """Whether the other side has not taken all that was sent; `flush` goes on with it."""
        return len(self._unsent) > 0

    def send(self, number: int, code: int, payload: bytes) -> bool:
        """Send a message, or as much of it as the other side takes at once: False if the rest is for `flush`."""
        data = _HEADER.pack(len(payload), number, code) + payload
        if self._unsent:
            self._unsent = self._unsent[self._write(self._unsent) :]
        if self._unsent:
            self._unsent = memoryview(self._unsent.tobytes() + data)
            return False
        sent = self._write(data)
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        return False

    def leave(self, number: int, code: int, payload: bytes) -> None:
        """Leave a short message in the mailbox, and wake the other side where it sleeps."""
        if self.outbox is None:
            raise ValueError("a channel without a mailbox can only send")
        if not self.outbox.leave(number, code, payload):
            self.send(_WAKE_UP, 0, b"")

    def flush(self, seconds: float | None = None) -> bool:
        """Send the rest of what was sent, reading what comes meanwhile; False if it takes longer than that."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._unsent:
            sent = self._write(self._unsent)
            self._unsent = self._unsent[sent:]
            if sent == 0 and not self._await_room(deadline):
                return False
        return True

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosedError(str(error)) from error

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
        while True:
            # in this order: what was left in the mailbox is older than what was sent since
            message = self._boxed() or self._cut()
            if message is None:
                if self._waiter.wait(self._poll, self.inboxes):
                    self._fill()
            elif message.number != _WAKE_UP:
                return message

    @property
    def has_unread(self) -> bool:
        """Whether there is something to be read, be it the end of the stream."""
        return any(inbox.is_full for inbox in self.inboxes) or bool(self._poll.poll(0))

    def arrived(self) -> list[Message]:
        """The messages that were sent and are there, without waiting.

        A ChannelClosedError once there are none and no more can come.
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
        """The messages that were read, by `flush` as a rule, and not yet taken. What was left is in the mailbox."""
        messages = []
        while self._unread and (message := self._cut()) is not None:
            messages.append(message)
        return messages

    def _boxed(self) -> Message | None:
        """The message in the mailbox, if there is one."""
        for inbox in self.inboxes:
            if inbox.is_full:
                return Message(*inbox.take(), True)
        return None

    def _fill(self) -> None:
        """Read what is there; nothing if there is nothing."""
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
        """Close this end. Nothing is written to its descriptor any more, whose number may soon be another file's."""
        self.fd = -1
        self.connection.close()
