"""Steps of some slots of a batch, which begin and end at times of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from unienv_interface.env_base.env import Env
from unienv_interface.space import Space
from unienv_interface.space.space_utils import batch_utils

from ._recording import Recorder, TransitionBuilder, _BatchRecorder, _SlotRecorder
from ._recording_modes import ReplayMode
from ._transition import Builder, Setting, make_builder
from .replay_buffer import ReplayBuffer


class Part(NamedTuple):
    """Some slots that have stepped: how they are recorded, and what they started from, one row for each."""

    slots: list[int]
    recorder: Recorder
    observation: Any
    context: Any


class PendingSteps:
    """Which slots are stepping, and the action of each."""

    def __init__(self, action_space: Space) -> None:
        """`action_space` is that of the whole batch."""
        self.is_sound = True  # whether it is known what the slots that are not stepping are at
        self._space = action_space
        self._actions: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._actions)

    def actions_for(self, slots: Sequence[int], action: Any) -> dict[int, Any]:
        """The action of each of these slots, out of a batch of as many; an error if one of them is stepping already."""
        busy = sorted(self._actions.keys() & set(slots))
        if busy:
            raise RuntimeError(f"environments {busy} are stepping already: call step_wait first")
        rows = batch_utils.split(self._space, action)
        if len(rows) != len(slots):
            raise ValueError(f"{len(rows)} actions for the {len(slots)} environments {list(slots)}")
        return dict(zip(slots, rows, strict=True))

    def add(self, actions: dict[int, Any]) -> None:
        """Slots that have begun to step."""
        self._actions.update(actions)

    def take(self, slots: Sequence[int]) -> Any:
        """The actions of slots that have come back, as a batch in this order."""
        return batch_utils.concatenate(self._space, [self._actions.pop(slot) for slot in slots])

    @contextlib.contextmanager
    def in_doubt(self) -> Iterator[None]:
        """What fails in here leaves it open what the slots are at."""
        was_sound, self.is_sound = self.is_sound, False
        yield
        self.is_sound = was_sound


class PartialRecorders:
    """Recorders for some slots of a batch, into the buffers that all of them are recorded into."""

    def __init__(
        self,
        mode: ReplayMode,
        env: Env,
        buffers: Sequence[ReplayBuffer],
        chosen: TransitionBuilder | None,
        validate: bool,
    ) -> None:
        self._env, self._buffers, self._is_per_env = env, list(buffers), mode == "per_env"
        self._of_slots = self._is_per_env or env.batch_size == 1

        @cache
        def builder(place: int, count: int | None) -> Builder:
            has_env_index = count is not None or self._is_per_env
            return make_builder(Setting(env, buffers[place].single_space, count, has_env_index), chosen, validate)

        self._builder = builder

    def of(self, slots: list[int]) -> Recorder:
        """The recorder for rows of these slots, in this order."""
        if self._of_slots:
            buffers, builders = [self._buffers[slot] for slot in slots], [self._builder(slot, None) for slot in slots]
            recorder: Recorder = _SlotRecorder(self._env, buffers, builders, self._is_per_env)
            if self._is_per_env:
                recorder.env_index = slots
        else:
            recorder = _BatchRecorder(self._env, self._buffers[0], self._builder(0, len(slots)))
            recorder.env_index = recorder.env_index[np.array(slots)]
        return recorder


def check_takes_parts(mode: ReplayMode, slots: int, what: str) -> None:
    """A ValueError for a mode that cannot record some slots without the others."""
    if mode == "interleaved":
        raise ValueError(
            f"{what}: in replay_mode='interleaved' all {slots} lanes advance together (sample s belongs to lane "
            f"s % {slots}), so a step must be of all slots. Steps of some are recorded with replay_mode='per_env' and "
            f"a buffer per slot, which keeps episodes, or 'shared' and one buffer without"
        )
