"""Recordings of which steps are yet to be written, and the same of which none is."""

from __future__ import annotations

from typing import Any

import numpy as np
from recording_envs import as_rows, buffers_for, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper
from unienv_data.replay_buffer._deferred import AwaitingBuffer

MODES = ["shared", "per_env", "interleaved"]


class DirectBuffer(ReplayBuffer):
    """Not just a ReplayBuffer, so every step is written as it comes."""


class Recording:
    """Some environments that count, and buffers in memory around them."""

    def __init__(self, mode: str, slots: int, *, capacity: int | None = 1200, is_direct: bool = False) -> None:
        env = vector("sync", slots)
        buffers = buffers_for(mode, env, infos=False, capacity=capacity)
        self.buffers: list[ReplayBuffer] = buffers if isinstance(buffers, list) else [buffers]
        if is_direct:
            for buffer in self.buffers:
                buffer.__class__ = DirectBuffer
        self.env: Any = ReplayBufferCollectionWrapper(env, self.buffers, mode)  # type: ignore[arg-type]
        self.slots, self.returned, self.interrupted, self._done = slots, 0, 0, np.zeros(slots, bool)
        self.env.reset()

    def step(self, count: int = 1) -> None:
        """Take steps, and reset what is over before each."""
        for _ in range(count):
            if self._done.any():
                self.env.reset(mask=self._done)
                self._done = np.zeros(self.slots, bool)
            action = np.full((self.slots, 2), self.returned % 7, np.float32)
            self.interrupted += 1  # until it has returned
            _, _, terminated, truncated, _ = self.env.step(action)
            self._done, self.returned, self.interrupted = (
                terminated | truncated,
                self.returned + 1,
                self.interrupted - 1,
            )

    def reset(self, mask: Any = None) -> None:
        """Reset slots, whether they are over or not."""
        self.env.reset(mask=mask)
        self._done = np.zeros(self.slots, bool) if mask is None else self._done & ~np.asarray(mask)

    @property
    def is_awaiting(self) -> bool:
        """Whether some buffer has yet to get steps."""
        return any(type(buffer) is AwaitingBuffer for buffer in self.buffers)


def contents(buffer: ReplayBuffer) -> dict[str, Any]:
    """All that there is to know of a buffer, down to its counters."""
    return {
        "rows": as_rows(buffer),
        "numbers": buffer.sample_numbers,
        "slots": len(buffer.storage),
        "segments": buffer.get_segments(),
        "is open": buffer.has_open_segment,
        "counters": bytes(buffer._counters),
        "records": buffer._state.segments._records.tolist(),
    }
