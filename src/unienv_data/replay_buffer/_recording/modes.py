"""The modes of recording, checks of environment and buffers, and dumps."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from unienv_interface.env_base.env import Env
from unienv_interface.wrapper.autoreset import autoreset_mode

from ...base.windows import UnknownEpisodesWarning
from ...storages.shared_next_obs import SharedNextObsStorage
from ..replay_buffer import ReplayBuffer

PathLike = str | os.PathLike[str]
ReplayMode = Literal["auto", "shared", "per_env", "interleaved"]


def as_list(buffers: ReplayBuffer | Sequence[ReplayBuffer]) -> list[ReplayBuffer]:
    """One buffer or several as a list of checked buffers."""
    listed = [buffers] if isinstance(buffers, ReplayBuffer) else list(buffers)
    for index, buffer in enumerate(listed):
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(f"replay_buffers[{index}] is {type(buffer).__name__}, wanted a ReplayBuffer")
        if buffer.is_closed:
            raise RuntimeError(f"replay_buffers[{index}] ({buffer.cache_path or 'in memory'}) is closed")
        if not buffer.is_mutable:
            raise PermissionError(f"replay_buffers[{index}] ({buffer.cache_path}) is read-only: load it to write")
    if len({id(buffer._state) for buffer in listed}) < len(listed):  # copies have the samples in common
        raise ValueError("replay_buffers has one buffer twice: episodes of two slots would be mixed in it")
    return listed


def resolve_mode(mode: ReplayMode, env: Env, buffers: Sequence[ReplayBuffer]) -> ReplayMode:
    """Resolve "auto"; a ValueError if environment and buffers do not fit the mode."""
    if mode not in get_args(ReplayMode):
        raise ValueError(f"replay_mode is {mode!r}, it must be one of {', '.join(get_args(ReplayMode))}")
    resolved = _auto_mode(env, buffers) if mode == "auto" else mode
    check = {"shared": _check_shared, "per_env": _check_per_env, "interleaved": _check_interleaved}[resolved]
    check(env.batch_size, buffers)
    if resolved == "interleaved" and autoreset_mode(env) == "next_step":
        raise ValueError(
            "replay_mode='interleaved' over an AutoresetWrapper in the mode 'next_step': a slot that restarts has no "
            "transition in that step, and all lanes advance together: restart in the step that ends the episode, "
            "AutoresetWrapper(recorder, mode='same_step'), or record into one buffer per slot"
        )
    for buffer in buffers:
        if buffer.backend is not env.backend:
            raise ValueError(
                f"the buffer is on {buffer.backend}, the environment on {env.backend}: make the buffer on the "
                f"environment's backend, or wrap the environment in ToBackendOrDeviceWrapper"
            )
    return resolved


def _auto_mode(env: Env, buffers: Sequence[ReplayBuffer]) -> ReplayMode:
    slots, count = env.batch_size or 1, len(buffers)
    if count == 1 and slots > 1 and buffers[0].lanes > 1:
        return "interleaved"
    if count == 1 and slots > 1 and buffers[0].is_segment_aware:
        raise ValueError(
            f"replay_mode='auto': one segment-aware buffer cannot keep the episodes of {slots} slots apart: make it "
            f"with lanes={slots}, pass one buffer per slot, or a buffer without segments (keep_episodes=False)"
        )
    if count == 1:
        return "shared"
    if count == slots:
        return "per_env"
    raise ValueError(
        f"Cannot auto-resolve replay_mode: {count} replay buffers for an environment with batch_size "
        f"{env.batch_size}; pass 1, or as many as there are slots"
    )


def _check_shared(batch_size: int | None, buffers: Sequence[ReplayBuffer]) -> None:
    if len(buffers) != 1:
        raise ValueError(f"replay_mode='shared' wants exactly 1 replay buffer, there are {len(buffers)}")
    if (batch_size or 1) > 1 and buffers[0].is_segment_aware:
        raise ValueError(
            f"replay_mode='shared' with batch_size {batch_size} wants a segment-unaware buffer, since rows of all "
            f"slots are mixed in it: for episodes use replay_mode='interleaved' and a buffer with lanes={batch_size}, "
            f"or make it with keep_episodes=False"
        )
    if (batch_size or 1) > 1 and isinstance(buffers[0].storage, SharedNextObsStorage):
        raise ValueError(
            f"replay_mode='shared' with batch_size {batch_size} mixes the rows of all slots, so no observation is that "
            f"of the row before and could be stored once: make the buffer with lanes={batch_size}"
        )
    _check_no_lanes(buffers)


def _check_per_env(batch_size: int | None, buffers: Sequence[ReplayBuffer]) -> None:
    if batch_size is None or batch_size == 1:
        raise ValueError(f"replay_mode='per_env' wants an environment with batch_size > 1, it is {batch_size}")
    if len(buffers) != batch_size:
        raise ValueError(
            f"replay_mode='per_env' wants exactly one replay buffer per slot: {batch_size}, there are {len(buffers)}"
        )
    _check_no_lanes(buffers)


def _check_interleaved(batch_size: int | None, buffers: Sequence[ReplayBuffer]) -> None:
    if batch_size is None or batch_size == 1:
        raise ValueError(f"replay_mode='interleaved' wants an environment with batch_size > 1, it is {batch_size}")
    if len(buffers) != 1:
        raise ValueError(f"replay_mode='interleaved' wants exactly 1 replay buffer, there are {len(buffers)}")
    if buffers[0].lanes != batch_size:
        raise ValueError(
            f"replay_mode='interleaved' wants a buffer with a lane for each of {batch_size} slots, it has "
            f"{buffers[0].lanes}: make it with ReplayBuffer.create(..., lanes={batch_size})"
        )


def warn_if_mixed(mode: ReplayMode, env: Env) -> None:
    """Warn of recording several environments into one buffer that mixes them."""
    slots = env.batch_size or 1
    if mode == "shared" and slots > 1:
        warnings.warn(
            f"{slots} environments are mixed in one buffer that keeps no episodes, so windows and slices of it reach "
            f"from one environment into another: make the buffer with ReplayBuffer.create(..., lanes={slots}), or "
            f'write ReplayBufferCollectionWrapper(..., episodes="ignore") if that is meant',
            UnknownEpisodesWarning,
            stacklevel=3,
        )


def _check_no_lanes(buffers: Sequence[ReplayBuffer]) -> None:
    for index, buffer in enumerate(buffers):
        if buffer.lanes > 1:
            raise ValueError(
                f"replay_buffers[{index}] has {buffer.lanes} lanes: those are for replay_mode='interleaved' and an "
                f"environment with batch_size {buffer.lanes}"
            )


def check_same_space(old: Sequence[ReplayBuffer], new: Sequence[ReplayBuffer]) -> None:
    """A ValueError unless new buffers have the space of the buffers that they replace."""
    for index, buffer in enumerate(new):
        known = old[index if len(old) == len(new) else 0].single_space
        if buffer.single_space != known:
            raise ValueError(
                f"replay_buffers[{index}] has a different single_space, {buffer.single_space}, than {known} before: "
                f"pass require_same_space=False if that is meant"
            )


def check_steps_of_some(mode: ReplayMode, slots: int, what: str) -> None:
    """Raise a ValueError for a mode that cannot record some slots without the others."""
    if mode == "interleaved":
        raise ValueError(
            f"{what}: in replay_mode='interleaved' all {slots} lanes advance together (sample s belongs to lane "
            f"s % {slots}), so a step must be of all slots. Steps of some are recorded with replay_mode='per_env' and "
            f"a buffer per slot, which keeps episodes, or 'shared' and one buffer without"
        )


# -- dumps -----------------------------------------------------------------------------------------------------


def dump(buffers: Sequence[ReplayBuffer], chosen: Iterable[int], path: PathLike | None) -> None:
    """Dump the chosen buffers: a single buffer to the path itself, several to a folder each under the path.

    Empty buffers are left out, so that they do not replace the dump of an earlier run.
    """
    if path is None:
        raise ValueError("dump_path must be provided to dump replay buffers: assign wrapper.dump_path")
    for index in chosen:
        if len(buffers[index]):
            buffers[index].dumps(target(path, index, len(buffers)))


def target(path: PathLike, index: int, count: int) -> Path:
    """The path that the buffer with this index, of `count` buffers, is dumped to."""
    return Path(path) if count == 1 else Path(path) / f"env_{index}"
