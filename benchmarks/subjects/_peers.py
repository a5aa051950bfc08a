"""The buffers of other libraries, full of the same transitions, set up as their documentation says is fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._data import BATCH, FLAGS, FLOAT_SHAPES, ROWS, Columns, in_chunks, transitions

TORCHRL = ("torchrl", "tensordict")
CPPRB = ("cpprb",)
SB3 = ("stable_baselines3", "gymnasium")
TIANSHOU = ("tianshou",)
FLASHBAX = ("flashbax", "jax")


# -- TorchRL -----------------------------------------------------------------------------------------------


def as_tensordict(columns: Columns) -> Any:
    import torch
    from tensordict import TensorDict

    tensors = {name: torch.from_numpy(np.asarray(column)) for name, column in columns.items()}
    return TensorDict(tensors, batch_size=np.shape(columns["reward"]))


def torchrl_buffer(
    count: int = ROWS,
    *,
    fill: bool = True,
    batch: int = BATCH,
    sampler: Any = None,
    storage: Any = None,
    kind: str = "ReplayBuffer",
    prefetch: int | None = None,
) -> Any:
    import torchrl.data

    buffer = getattr(torchrl.data, kind)(
        storage=torchrl.data.LazyTensorStorage(count) if storage is None else storage,
        sampler=sampler,
        batch_size=batch,
        prefetch=prefetch,
    )
    for columns in in_chunks(count) if fill else ():
        buffer.extend(as_tensordict(columns))
    return buffer


# -- cpprb -------------------------------------------------------------------------------------------------


def cpprb_fields() -> dict[str, dict[str, Any]]:
    """A flag is a byte, as in ours."""
    floats = {name: {"shape": shape or 1} for name, shape in FLOAT_SHAPES.items()}
    return {**floats, **{name: {"shape": 1, "dtype": np.bool_} for name in FLAGS}}


def cpprb_buffer(count: int = ROWS, *, fill: bool = True, kind: str = "ReplayBuffer", **options: Any) -> Any:
    import cpprb

    buffer = getattr(cpprb, kind)(count, cpprb_fields(), **options)
    for columns in in_chunks(count) if fill else ():
        buffer.add(**columns)
    return buffer


# -- Stable-Baselines3 -------------------------------------------------------------------------------------


def sb3_buffer(count: int = ROWS, *, fill: bool = True) -> Any:
    """Its columns are written as a whole: it adds one step at a time, which is measured elsewhere."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    observation, action = (Box(-np.inf, np.inf, FLOAT_SHAPES[name], np.float32) for name in ("obs", "action"))
    buffer = ReplayBuffer(count, observation, action, device="cpu")
    start = 0
    for columns in in_chunks(count) if fill else ():
        stop = start + len(columns["reward"])
        buffer.observations[start:stop, 0], buffer.next_observations[start:stop, 0] = (
            columns["obs"],
            columns["next_obs"],
        )
        buffer.actions[start:stop, 0], buffer.rewards[start:stop, 0] = columns["action"], columns["reward"]
        buffer.dones[start:stop, 0] = columns["terminated"] | columns["truncated"]
        buffer.timeouts[start:stop, 0] = columns["truncated"]
        start = stop
    buffer.full = fill
    return buffer


def sb3_step(columns: Columns) -> tuple[Any, ...]:
    """One transition as the arguments of its `add`."""
    done = np.array([columns["terminated"] | columns["truncated"]])
    infos = [{"TimeLimit.truncated": bool(columns["truncated"])}]
    arrays = (np.asarray(columns[name])[None] for name in ("obs", "next_obs", "action", "reward"))
    return (*arrays, done, infos)


# -- tianshou ----------------------------------------------------------------------------------------------


def tianshou_buffer(count: int = ROWS) -> Any:
    from tianshou.data import ReplayBuffer

    columns = transitions(count)
    return ReplayBuffer.from_data(
        obs=columns["obs"],
        act=columns["action"],
        rew=columns["reward"],
        terminated=columns["terminated"],
        truncated=columns["truncated"],
        done=columns["terminated"] | columns["truncated"],
        obs_next=columns["next_obs"],
    )


def tianshou_step(columns: Columns) -> Any:
    """One transition, or several, as its `add` wants them."""
    from tianshou.data import Batch

    return Batch(
        obs=columns["obs"],
        act=columns["action"],
        rew=columns["reward"],
        terminated=columns["terminated"],
        truncated=columns["truncated"],
        obs_next=columns["next_obs"],
        info={},
    )


# -- flashbax ----------------------------------------------------------------------------------------------


def flashbax_items(count: int = ROWS, *, fill: bool = True, batches: bool = True) -> tuple[Any, Any]:
    """An item buffer and its state; filled, `batches` of transitions are what is added to it."""
    import flashbax
    import jax

    buffer = flashbax.make_item_buffer(count, 1, BATCH, add_batches=batches)
    one = {name: column[0] for name, column in transitions(1).items()}
    state = buffer.init(jax.tree.map(jax.numpy.asarray, one))
    add = jax.jit(buffer.add, donate_argnums=0)
    for columns in in_chunks(count) if fill else ():
        state = add(state, jax.tree.map(jax.numpy.asarray, columns))
    return buffer, state


def jitted(draw: Callable[[Any, Any], Any], data: Any) -> Callable[[], Any]:
    """A call of `draw(data, key)`, jitted, with another key each time, that waits for what it gives."""
    import jax

    @jax.jit
    def step(data: Any, key: Any) -> Any:
        key, drawn = jax.random.split(key)
        return draw(data, drawn), key

    key = jax.random.key(0)

    def call() -> Any:
        nonlocal key
        batch, key = step(data, key)
        return jax.block_until_ready(batch)

    return call
