"""Short messages between two processes that are both awake, through memory that they share.

A message through a pipe takes tens of microseconds of Python and of the kernel on its way, one that is left in memory
next to none. But nobody is woken by it. So the reader says when it goes to sleep, and a writer that finds it asleep
has to wake it by other means. Each side says its own part first and looks at the other's then, with a fence between the
two, so that at least one of them sees the other: the writer the sleeper, or the sleeper the message.
"""

from __future__ import annotations

import threading

import numpy as np

from ..utils.shared_block import SharedBlock

# A cache line for each of them, so that the two sides do not wait for each other's.
SIZE = 128
_WORDS = SIZE // 8
# What the writer writes, in the first line, and what the reader does, in the second.
_NUMBER, _CODE, _LENGTH, _PAYLOAD, _SERVED = range(5)
_IS_ASLEEP = 8
#: Bytes that a message may have.
CAPACITY = 8


class Mailbox:
    """Room for one message, in shared memory. It has one writer and one reader.

    The writer leaves a message only when the one before has been taken, which is for it to know. Numbers are not 0.
    """

    def __init__(self, block: SharedBlock, offset: int) -> None:
        self._words = block.array(np.uint64, (_WORDS,), offset).data
        self._taken = 0  # so that who comes late to a mailbox finds what is there
        # There is nobody to keep out. But what is done while it is held comes to pass, for other processors too, before
        # what is done when it is held again. A process that is forked makes its own: one that is just being held would
        # be held there for ever.
        self._fence = threading.Lock()

    def clear(self) -> None:
        """Make it what it was in the beginning, when there is nobody else to see it."""
        for place in range(_WORDS):
            self._words[place] = 0
        self._taken = 0

    # -- the writer's side ---------------------------------------------------------------------------------

    def leave(self, number: int, code: int, payload: bytes) -> bool:
        """Leave a message with a number other than the last one's; False if the reader sleeps and has to be woken."""
        words = self._words
        with self._fence:
            words[_CODE], words[_LENGTH], words[_PAYLOAD] = code, len(payload), int.from_bytes(payload, "little")
        with self._fence:
            words[_NUMBER] = number
        with self._fence:
            return not words[_IS_ASLEEP]

    @property
    def served(self) -> int:
        """The number of the last request that the writer has dealt with, whichever way it came and was answered."""
        return self._words[_SERVED]

    @served.setter
    def served(self, number: int) -> None:
        self._words[_SERVED] = number

    # -- the reader's side ---------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether there is a message that was not taken."""
        return self._words[_NUMBER] != self._taken

    def peek(self) -> tuple[int, int, bytes]:
        """The message that is there, number, code and payload; it stays there until it is `take_out`."""
        words = self._words
        with self._fence:
            number = words[_NUMBER]
        with self._fence:
            length = words[_LENGTH]
            return number, words[_CODE], words[_PAYLOAD].to_bytes(CAPACITY, "little")[:length] if length else b""

    def take_out(self, number: int) -> None:
        """Take the message of this number for taken."""
        self._taken = number

    def take(self) -> tuple[int, int, bytes]:
        """The message that is there, taken out."""
        message = self.peek()
        self.take_out(message[0])
        return message

    def fall_asleep(self) -> None:
        """Say that from now on somebody has to wake the reader. It looks for a message once more after that."""
        with self._fence:
            self._words[_IS_ASLEEP] = 1
        with self._fence:
            pass

    def wake_up(self) -> None:
        """Say that the reader looks by itself again."""
        self._words[_IS_ASLEEP] = 0
