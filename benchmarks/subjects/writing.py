"""Adding transitions to a full buffer of a million: one at a time, and 256 at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Work, floor, ours, peer

from unienv_data import ReplayBuffer

from ._data import (
    BATCH,
    EPISODE,
    FLOAT_SHAPES,
    ROWS,
    Columns,
    bare_columns,
    filled,
    folder,
    one_transition,
    transition_space,
    transitions,
)
from ._peers import (
    CPPRB,
    FLASHBAX,
    SB3,
    TIANSHOU,
    TORCHRL,
    as_tensordict,
    cpprb_buffer,
    flashbax_items,
    sb3_buffer,
    sb3_step,
    tianshou_buffer,
    tianshou_step,
    torchrl_buffer,
)

SMALL, LARGE, LANES = 1000, 10_000_000, 8


def works() -> list[Work]:
    def work(name: str, *contenders: Contender) -> Work:
        return Work("writing", name, "us", contenders)

    peers_adding = (torchrl_add, cpprb_add, sb3_add, tianshou_add, flashbax_add)
    peers_extending = (torchrl_extend, cpprb_extend, sb3_extend, tianshou_extend, flashbax_extend)
    appends = (append, append_arrays, append_on_disk, append_arrays_on_disk)
    sizes = (
        appending("small", SMALL, "capacity 1,000, full, without segments"),
        appending("small, segments", SMALL, "capacity 1,000, full, with segments", segments=True),
        appending("large", LARGE, "capacity 10^7, full, without segments"),
        appending("large, segments", LARGE, "capacity 10^7, full, with segments", segments=True),
        appending("large, empty", LARGE, "capacity 10^7, not full, with segments", segments=True, full=False),
    )
    return [
        work("append of one", *appends, write_columns, assign_scalars, assign_arrays, *peers_adding),
        work("append of one, by capacity", *sizes),
        work("extend of 256", extend, copy_columns, assign_batch, *peers_extending),
        work("extend_lanes of 8", extend_lanes, extend_lanes_ending, assign_lanes),
    ]


# -- ours --------------------------------------------------------------------------------------------------


def one_of_arrays() -> Columns:
    """A transition in which numbers are arrays of no dimension, as `sample_action()` gives them."""
    return {name: np.asarray(value) for name, value in one_transition().items()}


def _appending(one: Columns, **options: Any) -> Iterator[Callable]:
    with filled(chunk=EPISODE, keep_episodes=True, **options) as buffer:
        yield lambda: buffer.append(one)


@ours("unienv", "ReplayBuffer.append, in memory, with segments")
def append() -> Iterator[Callable]:
    return _appending(one_transition())


@ours("unienv, arrays", "the same, numbers as arrays of no dimension")
def append_arrays() -> Iterator[Callable]:
    return _appending(one_of_arrays())


@ours("unienv, on disk", "ReplayBuffer.append, cache_path: survives a kill -9")
def append_on_disk() -> Iterator[Callable]:
    with folder() as path:
        yield from _appending(one_transition(), cache_path=path / "buffer")


@ours("unienv, arrays, on disk", "the same, numbers as arrays of no dimension")
def append_arrays_on_disk() -> Iterator[Callable]:
    with folder() as path:
        yield from _appending(one_of_arrays(), cache_path=path / "buffer")


@ours("unienv", "ReplayBuffer.extend, in memory, with segments")
def extend() -> Iterator[Callable]:
    with filled(chunk=EPISODE, keep_episodes=True) as buffer:
        batch = transitions(BATCH)
        yield lambda: buffer.extend(batch)


@ours("unienv", "ReplayBuffer.extend_lanes, in memory: a row for each of 8 lanes")
def extend_lanes() -> Iterator[Callable]:
    with _lanes() as buffer:
        step = transitions(LANES)
        yield lambda: buffer.extend_lanes(step)


@ours("unienv, with ends", "the same, told which lanes end: none")
def extend_lanes_ending() -> Iterator[Callable]:
    with _lanes() as buffer:
        step, ended = transitions(LANES), np.zeros(LANES, np.bool_)
        yield lambda: buffer.extend_lanes(step, ended)


def _lanes() -> ReplayBuffer:
    """A buffer with lanes that is full of episodes."""
    buffer = ReplayBuffer.create(transition_space(), capacity=ROWS, lanes=LANES)
    step = transitions(LANES)
    for at in range(ROWS // LANES):
        buffer.extend_lanes(step)
        if at % EPISODE == 0:
            buffer.mark_segment_end()
    return buffer


def appending(name: str, capacity: int, setting: str, *, segments: bool = False, full: bool = True) -> Contender:
    @ours(name, setting)
    def append_one() -> Iterator[Callable]:
        with _buffer(capacity, segments, full) as buffer:
            one = one_transition()
            yield lambda: buffer.append(one)

    return append_one


def _buffer(capacity: int, segments: bool, full: bool) -> ReplayBuffer:
    options: dict[str, Any] = {"keep_episodes": segments}
    if full:
        return filled(capacity, chunk=EPISODE, **options)
    return ReplayBuffer.create(transition_space(), capacity=capacity, **options)


# -- floors ------------------------------------------------------------------------------------------------


def _assigning(columns: Columns, one: Columns) -> Iterator[Callable]:
    named, at = list(columns.items()), 0

    def write() -> None:
        nonlocal at
        at = (at + 1) % ROWS
        for name, column in named:
            column[at] = one[name]

    yield write


@floor("column writes", "one numpy assignment for each of six columns")
def write_columns() -> Iterator[Callable]:
    return _assigning(transitions(ROWS), one_transition())


@floor("bare assignment", "the same, columns of rows side by side")
def assign_scalars() -> Iterator[Callable]:
    return _assigning(bare_columns(), one_transition())


@floor("bare assignment, arrays", "the same, numbers as arrays of no dimension")
def assign_arrays() -> Iterator[Callable]:
    return _assigning(bare_columns(), one_of_arrays())


def _copying(columns: Columns, count: int) -> Iterator[Callable]:
    batch, named, at = transitions(count), list(columns.items()), 0

    def copy() -> None:
        nonlocal at
        at = (at + count) % (ROWS - count)
        for name, column in named:
            column[at : at + count] = batch[name]

    yield copy


@floor("column copies", "one numpy copy for each of six columns")
def copy_columns() -> Iterator[Callable]:
    return _copying(transitions(ROWS), BATCH)


@floor("bare assignment", "the same, columns of rows side by side")
def assign_batch() -> Iterator[Callable]:
    return _copying(bare_columns(), BATCH)


@floor("bare assignment", "one numpy copy of 8 for each of six columns of rows side by side")
def assign_lanes() -> Iterator[Callable]:
    return _copying(bare_columns(), LANES)


# -- peers -------------------------------------------------------------------------------------------------


@peer("torchrl", "ReplayBuffer.add, LazyTensorStorage", *TORCHRL)
def torchrl_add() -> Iterator[Callable]:
    buffer, one = torchrl_buffer(), as_tensordict(one_transition())
    yield lambda: buffer.add(one)


@peer("torchrl", "ReplayBuffer.extend, LazyTensorStorage", *TORCHRL)
def torchrl_extend() -> Iterator[Callable]:
    buffer, batch = torchrl_buffer(), as_tensordict(transitions(BATCH))
    yield lambda: buffer.extend(batch)


@peer("cpprb", "ReplayBuffer.add of one", *CPPRB)
def cpprb_add() -> Iterator[Callable]:
    buffer, one = cpprb_buffer(), one_transition()
    yield lambda: buffer.add(**one)


@peer("cpprb", "ReplayBuffer.add of 256", *CPPRB)
def cpprb_extend() -> Iterator[Callable]:
    buffer, batch = cpprb_buffer(), transitions(BATCH)
    yield lambda: buffer.add(**batch)


@peer("stable-baselines3", "ReplayBuffer.add", *SB3)
def sb3_add() -> Iterator[Callable]:
    buffer, step = sb3_buffer(), sb3_step(one_transition())
    yield lambda: buffer.add(*step)


@peer("stable-baselines3", "ReplayBuffer(n_envs=256).add", *SB3)
def sb3_extend() -> Iterator[Callable]:
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer as SB3Buffer

    observation, action = (Box(-np.inf, np.inf, FLOAT_SHAPES[name], np.float32) for name in ("obs", "action"))
    buffer, batch = SB3Buffer(ROWS, observation, action, device="cpu", n_envs=BATCH), transitions(BATCH)
    for column in (buffer.observations, buffer.next_observations, buffer.actions):
        column[...] = 1  # memory that was written before, as in a full buffer
    columns = [batch[name] for name in ("obs", "next_obs", "action", "reward", "terminated")]
    step: list[Any] = [*columns, [{"TimeLimit.truncated": bool(flag)} for flag in batch["truncated"]]]
    yield lambda: buffer.add(*step)


@peer("tianshou", "ReplayBuffer.add", *TIANSHOU)
def tianshou_add() -> Iterator[Callable]:
    buffer, step = tianshou_buffer(), tianshou_step(one_transition())
    yield lambda: buffer.add(step)


@peer("tianshou", "VectorReplayBuffer(buffer_num=256).add", *TIANSHOU)
def tianshou_extend() -> Iterator[Callable]:
    from tianshou.data import VectorReplayBuffer

    buffer, step = VectorReplayBuffer(ROWS, BATCH), tianshou_step(transitions(BATCH))
    step.info = np.array([{}] * BATCH)
    yield lambda: buffer.add(step)


def _flashbax_adding(columns: dict[str, np.ndarray], *, batches: bool) -> Callable[[], Any]:
    import jax

    buffer, state = flashbax_items(fill=False, batches=batches)
    add = jax.jit(buffer.add, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state = jax.block_until_ready(add(state, columns))
        return state

    return call


@peer("flashbax", "item buffer, jitted add, state donated, block_until_ready", *FLASHBAX)
def flashbax_add() -> Iterator[Callable]:
    yield _flashbax_adding(one_transition(), batches=False)


@peer("flashbax", "item buffer with add_batches, jitted add, state donated", *FLASHBAX)
def flashbax_extend() -> Iterator[Callable]:
    yield _flashbax_adding(transitions(BATCH), batches=True)
