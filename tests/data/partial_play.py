"""A caller who asks slots for steps in an order drawn by lot, and what each slot must then have recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from unienv_interface.env_base.vector.base import derive_seeds

Rows = list[dict[str, Any]]


class Player:
    """Notes for each slot the episodes that it was asked for, each as a seed and the actions, and who came back when.

    Slots whose episode has ended wait until no slot is stepping any more, and are reset then.
    """

    def __init__(self, wrapper: Any, seed: int, draw_actions: Callable[[np.random.Generator, int], np.ndarray]) -> None:
        self.wrapper, self.rng, self.draw_actions = wrapper, np.random.default_rng(seed), draw_actions
        self.slots = wrapper.batch_size
        self.asked: list[list[tuple[int, list[Any]]]] = [[] for _ in range(self.slots)]
        self.came: list[list[int]] = []
        self._stepping: set[int] = set()
        self._ended: set[int] = set()

    def play(self, rounds: int) -> None:
        self._reset(set(range(self.slots)))
        for _ in range(rounds):
            self._ask()
            self._wait()
            if not self._stepping and (self._ended or self.rng.random() < 0.05):
                self._reset(self._ended | {int(self.rng.integers(self.slots))})
        while self._stepping:
            self._wait()

    def _reset(self, slots: set[int]) -> None:
        seed, mask = int(self.rng.integers(1000)), np.isin(np.arange(self.slots), list(slots))
        self.wrapper.reset(mask=None if mask.all() else self.wrapper.backend.from_numpy(mask), seed=seed)
        seeds = derive_seeds(seed, self.slots)
        for slot in slots:
            self.asked[slot].append((seeds[slot], []))
        self._ended -= slots

    def _ask(self) -> None:
        free = [slot for slot in range(self.slots) if slot not in self._stepping | self._ended]
        if not free:
            return
        is_whole = len(free) == self.slots and self.rng.random() < 0.3
        count = self.slots if is_whole else self.rng.integers(1, len(free) + 1)
        chosen = free if is_whole else self.rng.permutation(free)[:count].tolist()
        drawn = self.draw_actions(self.rng, len(chosen))
        for slot, action in zip(chosen, drawn.tolist(), strict=True):
            self.asked[slot][-1][1].append(action)
        actions = self.wrapper.backend.from_numpy(drawn, copy=True)
        self.wrapper.step_async(actions, **({} if is_whole else {"index": chosen}))
        if isinstance(actions, np.ndarray):
            actions[:] = 0  # which is the caller's again
        self._stepping |= set(chosen)

    def _wait(self) -> None:
        least = int(self.rng.integers(1, len(self._stepping) + 1)) if self.rng.random() < 0.7 else None
        observation, _, terminated, truncated, info = self.wrapper.step_wait(min_envs=least)
        if isinstance(observation, np.ndarray):
            observation[:] = -1  # which is the caller's
        to_numpy = self.wrapper.backend.to_numpy
        came = to_numpy(info["env_index"]).tolist() if "env_index" in info else list(range(self.slots))
        over = (to_numpy(terminated) | to_numpy(truncated)).tolist()
        self.came.append(came)
        self._stepping -= set(came)
        self._ended |= {slot for slot, is_over in zip(came, over, strict=True) if is_over}


def episodes_alone(reset: Callable[[int], Any], step: Callable[[Any], Any], asked: list[tuple[int, list[Any]]]) -> Any:
    """The episodes of one environment that has all to itself, with what was asked of a slot.

    `reset` gives the columns that hold for the whole episode, the first observation as `obs`; `step` the others.
    """
    episodes = []
    for seed, actions in asked:
        first, rows = reset(seed), []
        for number, action in enumerate(actions):
            row = {**first, "action": action, "step": number, **step(action)}
            first = {**first, "obs": row["next_obs"]}
            rows.append({**row, "done": row["terminated"] or row["truncated"]})
        if rows:
            episodes.append(rows)
    return episodes


def in_order_of_coming(episodes: list[list[Rows]], came: list[list[int]]) -> Rows:
    """The transitions of all slots as they came back, with the columns that this decides."""
    rows_of = [iter([row for episode in own for row in episode]) for own in episodes]
    ids: dict[int, int] = {}
    found, begun = [], 0
    for time, slots in enumerate(came):
        for slot in slots:
            row = next(rows_of[slot])
            if row["step"] == 0:
                ids[slot], begun = begun, begun + 1
            found.append({**row, "env_index": slot, "episode_id": ids[slot], "timestamp": float(time)})
    return found


def segments_of(episodes: list[Rows], is_last_open: bool) -> list[tuple[int, int]]:
    """Where the episodes of one buffer begin and end, but for the last if that still goes on."""
    edges = np.cumsum([0, *map(len, episodes)]).tolist()
    found = list(itertools.pairwise(edges))
    return found[:-1] if is_last_open else found
