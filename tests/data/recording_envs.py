"""Environments whose every observation is told apart, and a log of what a caller saw of them, slot by slot."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from unienv_data import ReplayBuffer, transition_space
from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace


class TallyEnv(Env):
    """Counts. The observation is [index, episode, step], and no two of an environment are alike.

    Episodes take turns in being terminated and truncated, and their lengths differ. With `reuses` all observations
    lie in one array, which breaks the contract of environments, as many do.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        backend: ComputeBackend = NumpyComputeBackend,
        has_context: bool = True,
        reuses: bool = False,
        dies_at: int | None = None,
    ) -> None:
        self.backend, self.index, self.reuses, self.dies_at = backend, index, reuses, dies_at
        self.action_space = BoxSpace(backend, -1.0, 1.0, "float32", shape=(2,))
        self.observation_space = BoxSpace(backend, 0.0, np.inf, "float32", shape=(3,))
        self.context_space = BoxSpace(backend, 0.0, np.inf, "float32", shape=()) if has_context else None
        self.episode = self.steps = self.total = 0
        self._array = np.zeros(3, np.float32)

    @property
    def length(self) -> int:
        return 1 + (self.index + 2 * self.episode) % 5

    def _observation(self) -> Any:
        array = self._array if self.reuses else np.zeros(3, np.float32)
        array[:] = self.index, self.episode, self.steps
        return self.backend.from_numpy(array, copy=not self.reuses)

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[Any, Any, dict[str, Any]]:
        self.episode, self.steps = self.episode + 1, 0
        context = None
        if self.context_space is not None:
            context = self.backend.from_numpy(np.array(100 * self.index + self.episode, np.float32))
        return context, self._observation(), {"begun": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.total += 1
        if self.dies_at == self.total:
            os._exit(3)
        self.steps += 1
        reward = float(self.backend.to_numpy(action).sum())
        is_over, is_terminal = self.steps >= self.length, self.episode % 2 == 0
        info = {"steps": self.steps, **({"odd": 0.5 * self.steps} if self.steps % 2 else {})}
        return self._observation(), reward, is_over and is_terminal, is_over and not is_terminal, info

    def render(self) -> None:
        return None


def tallies(count: int, **options: Any) -> list[Callable[[], TallyEnv]]:
    return [lambda index=index: TallyEnv(index, **options) for index in range(count)]


def vector(kind: str, count: int, **options: Any) -> Env:
    """Environments in a vector environment of either kind."""
    if kind == "sync":
        return SyncVecEnv(tallies(count, **options))
    method = "spawn" if "jax" in sys.modules else "fork"
    return AsyncVecEnv(tallies(count, **options), num_workers=2, ctx=multiprocessing.get_context(method))


def full_space(env: Env, *, infos: bool = True) -> DictSpace:
    """A transition with every column there is, with or without infos: without, all of them are plain arrays."""
    backend, slots = env.backend, env.batch_size or 1
    steps = BoxSpace(backend, 0, 1000, "int32", shape=())
    odd = BoxSpace(backend, 0.0, 1000.0, "float32", shape=())
    return transition_space(
        env,
        done=True,
        context=env.context_space is not None,
        env_index=slots > 1,
        episode_id=True,
        step=True,
        info={"steps": steps, "odd": odd, "_odd": BinarySpace(backend, ())} if infos else None,
    )


def buffers_for(mode: str, env: Env, *, infos: bool = True, **options: Any) -> Any:
    """What to record into, all columns, for a mode."""
    space, slots = full_space(env, infos=infos), env.batch_size or 1
    if mode == "per_env":
        return [ReplayBuffer.create(space, maintain_segment_metadata=True, **options) for _ in range(slots)]
    if mode == "interleaved":
        return ReplayBuffer.create(space, lanes=slots, **options)
    return ReplayBuffer.create(space, keep_episodes=slots == 1, **options)


class Log:
    """What a caller sees, as plain numbers: per slot a list of episodes, each a list of transitions."""

    def __init__(self, env: Env) -> None:
        self.env, self.slots = env, env.batch_size or 1
        self.episodes: list[list[list[dict[str, Any]]]] = [[[]] for _ in range(self.slots)]
        self.order: list[list[dict[str, Any]]] = []  # the same by steps, all slots of one together
        self._obs: list[Any] = [None] * self.slots
        self._context: list[Any] = [None] * self.slots
        self._next_id, self._ids = 0, [-1] * self.slots

    def _rows(self, value: Any) -> list[Any]:
        if value is None:
            return [None] * self.slots
        host = self.env.backend.to_numpy(value) if self.env.backend.is_backendarray(value) else np.asarray(value)
        return host.tolist() if self.env.batch_size is not None else [host.tolist()]

    def reset(self, result: Any, mask: np.ndarray | None = None) -> None:
        slots = range(self.slots) if mask is None else np.flatnonzero(mask).tolist()
        context, observation, _ = result
        rows = self._rows(observation)
        contexts = self._rows(context) if context is not None else [None] * len(rows)
        for slot, obs, one in zip(slots, rows, contexts, strict=False):
            self._obs[slot], self._context[slot] = obs, one
            self._end(slot)

    def _end(self, slot: int) -> None:
        if self.episodes[slot][-1]:
            self.episodes[slot].append([])

    def step(self, action: Any, result: Any) -> np.ndarray:
        """Note a step; which slots are done."""
        next_obs, reward, terminated, truncated, _ = result
        columns = [self._rows(part) for part in (action, next_obs, reward, terminated, truncated)]
        steps = []
        for slot, (act, after, gain, is_terminal, is_cut) in enumerate(zip(*columns, strict=True)):
            episode = self.episodes[slot][-1]
            if not episode:
                self._ids[slot], self._next_id = self._next_id, self._next_id + 1
            row = {
                "obs": self._obs[slot],
                "action": act,
                "reward": gain,
                "terminated": is_terminal,
                "truncated": is_cut,
                "next_obs": after,
                "done": is_terminal or is_cut,
                "episode_id": self._ids[slot],
                "step": len(episode),
                "info": {"steps": int(after[2]), "odd": 0.5 * after[2] * (after[2] % 2), "_odd": bool(after[2] % 2)},
            }
            if self._context[slot] is not None:
                row["context"] = self._context[slot]
            if self.slots > 1:
                row["env_index"] = slot
            episode.append(row)
            steps.append(row)
            self._obs[slot] = after
            if row["done"]:
                self._end(slot)
        self.order.append(steps)
        return np.array([row["done"] for row in steps])

    # -- what buffers must hold

    def rows_of(self, slot: int) -> list[dict[str, Any]]:
        return [row for episode in self.episodes[slot] for row in episode]

    def all_rows(self) -> list[dict[str, Any]]:
        return [row for step in self.order for row in step]

    def segments_of(self, slot: int, stride: int = 1, offset: int = 0) -> list[tuple[int, int]]:
        """The closed episodes of a slot whose rows lie so far apart."""
        found, first = [], offset
        for episode in self.episodes[slot]:
            found.append((first, first + stride * (len(episode) - 1) + 1))
            first += stride * len(episode)
        return found[:-1]  # the last is open, or empty


def as_rows(buffer: ReplayBuffer) -> list[dict[str, Any]]:
    """The samples of a buffer as plain numbers."""
    columns = _plain(buffer.backend, buffer.get_at(...))
    return [_at(columns, index) for index in range(len(buffer))]


def _plain(backend: ComputeBackend, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(backend, child) for key, child in value.items()}
    return backend.to_numpy(value).tolist()


def _at(columns: Any, index: int) -> Any:
    return {key: _at(child, index) for key, child in columns.items()} if isinstance(columns, dict) else columns[index]


def check_recording(mode: str, buffers: list[ReplayBuffer], log: Log) -> None:
    """Compare buffers with the log, value for value and episode for episode."""
    if mode == "per_env" or log.slots == 1:
        for slot, buffer in enumerate(buffers):
            _check_rows(as_rows(buffer), log.rows_of(slot))
            assert buffer.get_segments() == log.segments_of(slot)
        return
    (buffer,) = buffers
    _check_rows(as_rows(buffer), log.all_rows())
    if mode == "interleaved":
        wanted = [part for slot in range(log.slots) for part in log.segments_of(slot, log.slots, slot)]
        assert buffer.get_segments() == sorted(wanted)


def _check_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        unseen = set() if "info" in one else {"info"}  # it was not asked for
        assert one == {key: other[key] for key in other.keys() - unseen}, f"row {index}: {one}, wanted {other}"
