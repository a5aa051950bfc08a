"""What a recorder knows of each slot: the numbers of episodes and steps, and the action of a step under way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unienv_interface.space import DictSpace, Space
from unienv_interface.space.space_utils import batch_utils

from ..replay_buffer import ReplayBuffer

# Episode numbers are looked for in at most so many rows at a time.
_ROWS_AT_ONCE = 65536


class EpisodeCounts:
    """Counts the episodes and the steps of each slot, with work only where an episode begins.

    Episodes are numbered in the order of their first steps, and within one step in that of the slots.
    """

    def __init__(self, slots: int, first_id: int) -> None:
        self.recorded = 0  # steps of all slots; incremented by the caller
        self._next_id = first_id
        self._begun = [-1] * slots
        self._ids: list[int | None] = [None] * slots

    def begin(self, slots: Sequence[int]) -> bool:
        """Begin an episode in each slot that has made a step in its episode; return whether any has."""
        begun, recorded, cuts = self._begun, self.recorded, False
        for slot in slots:
            if begun[slot] != recorded:
                begun[slot], self._ids[slot], cuts = recorded, None, True
        return cuts

    def skip_to(self, number: int) -> None:
        """Raise the numbers of later episodes, and of episodes under way, to at least `number`."""
        self._next_id = max(self._next_id, number)
        self._ids = [None if own is None or own < number else own for own in self._ids]

    def doubt(self) -> None:
        """Count a step that may have been recorded in part; a reset of all slots follows."""
        self.recorded += 1

    def advance(self, slots: Sequence[int]) -> None:
        """Count a step of these slots only, by moving the begin of their episodes one step back."""
        for slot in slots:
            self._begun[slot] -= 1

    def ids(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """The episode number of each slot's next step."""
        ids = self._ids
        chosen = range(len(ids)) if slots is None else slots
        for slot in chosen:
            if ids[slot] is None:
                ids[slot], self._next_id = self._next_id, self._next_id + 1
        return np.array(ids if slots is None else [ids[slot] for slot in slots])

    def steps(self, slots: Sequence[int] | None = None) -> np.ndarray:
        """The step number, within its episode, of each slot's next step."""
        begun = self._begun if slots is None else [self._begun[slot] for slot in slots]
        return self.recorded - np.array(begun)


def next_episode_id(buffers: Sequence[ReplayBuffer]) -> int:
    """The first episode number that no episode in these buffers has, if a recorder has written them."""
    return 1 + max(map(_newest_episode, buffers), default=-1)


def _newest_episode(buffer: ReplayBuffer) -> int:
    """The largest episode number in a buffer; -1 if there is none.

    Since the newest episode began, no other lane has begun one. So the rows after its last row belong to one episode of
    each other lane, and the newest episode is among the last different episodes, as many as there are lanes. Where
    episodes are not kept, the number of recorded slots is unknown, and all rows are read.
    """
    newest: set[int] = set()
    wanted = buffer.lanes if buffer.maintain_segment_metadata else len(buffer)
    start, size = len(buffer), buffer.lanes
    space = buffer.single_space
    if not isinstance(space, DictSpace) or "episode_id" not in space.spaces:
        return -1
    while start and len(newest) < wanted:
        stop, start = start, max(start - size, 0)
        ids = buffer.get_column_at(("episode_id",), slice(start, stop))
        newest.update(np.unique(buffer.backend.to_numpy(ids)).tolist())
        size = min(2 * size, _ROWS_AT_ONCE)
    return max(newest, default=-1)


# -- steps of some slots -----------------------------------------------------------------------------------


class PendingSteps:
    """The slots that are stepping, with the action of each."""

    def __init__(self, action_space: Space) -> None:
        """`action_space` is that of the whole batch."""
        self.is_sound = True  # whether the observations of the other slots are known
        self._space = action_space
        self._actions: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._actions)

    def actions_for(self, slots: Sequence[int], action: Any) -> dict[int, Any]:
        """The action of each slot, out of a batch; an error if a slot is stepping already."""
        busy = sorted(self._actions.keys() & set(slots))
        if busy:
            raise RuntimeError(f"environments {busy} are stepping already: call step_wait first")
        rows = batch_utils.split(self._space, action)
        if len(rows) != len(slots):
            raise ValueError(f"{len(rows)} actions for the {len(slots)} environments {list(slots)}")
        return dict(zip(slots, rows, strict=True))

    def add(self, actions: dict[int, Any]) -> None:
        """Add slots that begin to step."""
        self._actions.update(actions)

    def take(self, slots: Sequence[int]) -> Any:
        """Remove slots that have finished their step, and return their actions as a batch, in order."""
        return batch_utils.concatenate(self._space, [self._actions.pop(slot) for slot in slots])

    @contextlib.contextmanager
    def in_doubt(self) -> Iterator[None]:
        """Mark the observations of the slots as unknown if the block fails."""
        was_sound, self.is_sound = self.is_sound, False
        yield
        self.is_sound = was_sound
