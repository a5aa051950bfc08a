"""Batches of 256 transitions out of a million: read at given indices, and sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from harness import Contender, Ready, Work, fetching_ahead, floor, ours, peer

from unienv_data import StepSampler

from ._data import BATCH, ROWS, filled, filled_rows, index_stream, transitions
from ._peers import (
    CPPRB,
    FLASHBAX,
    SB3,
    TIANSHOU,
    TORCHRL,
    cpprb_buffer,
    flashbax_items,
    jitted,
    sb3_buffer,
    tianshou_buffer,
    torchrl_buffer,
)

SIZE = f"{BATCH} out of {ROWS:,}"


def works() -> list[Work]:
    def work(name: str, *contenders: Contender) -> Work:
        return Work("sampling", name, "us", contenders)

    return [
        work("get_at, NumPy, in memory", get_at_numpy, take_rows, take_columns, torchrl, torchrl_tensordict, cpprb),
        work("get_at, NumPy, in a ring that has wrapped", get_at_wrapped, take_rows),
        work("get_at, PyTorch, in memory", get_at_torch, take_rows, torchrl, torchrl_tensordict),
        work("sample, NumPy", sample_numpy, take_random, torchrl, torchrl_prefetch, cpprb, sb3, tianshou),
        work("sample, PyTorch", sample_torch, take_random, torchrl, torchrl_prefetch, cpprb, sb3, tianshou),
        work("sample, JAX", sample_jax, take_jax, flashbax),
    ]


# -- ours --------------------------------------------------------------------------------------------------


def _torch() -> Any:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    return PyTorchComputeBackend


@ours("unienv", f"ReplayBuffer.get_at of {SIZE}")
def get_at_numpy() -> Iterator[Callable]:
    with filled() as buffer:
        index = index_stream(ROWS)
        yield lambda: buffer.get_at(index())


@ours("unienv", f"ReplayBuffer.get_at of {SIZE}, the oldest in the middle")
def get_at_wrapped() -> Iterator[Callable]:
    with filled() as buffer:
        buffer.extend(transitions(ROWS // 3))
        index = index_stream(ROWS)
        yield lambda: buffer.get_at(index())


@ours("unienv", f"ReplayBuffer.get_at of {SIZE}, PyTorch backend", "torch")
def get_at_torch() -> Iterator[Callable]:
    with filled(backend=_torch()) as buffer:
        index = index_stream(ROWS)
        yield lambda: buffer.get_at(index())


@ours("unienv", f"StepSampler.sample of {SIZE}")
def sample_numpy() -> Iterator[Callable]:
    with filled() as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


@ours("unienv", f"StepSampler.sample of {SIZE}, PyTorch backend", "torch")
def sample_torch() -> Iterator[Callable]:
    with filled(backend=_torch()) as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


@ours("unienv", f"StepSampler.sample of {SIZE}, JAX backend, block_until_ready", "jax")
def sample_jax() -> Iterator[Callable]:
    import jax

    from unienv_interface.backends.jax import JaxComputeBackend

    with filled(backend=JaxComputeBackend) as buffer:
        sampler = StepSampler(buffer, BATCH, seed=0)
        yield lambda: jax.block_until_ready(sampler.sample())


# -- floors ------------------------------------------------------------------------------------------------


@floor("take", "numpy take of the rows")
def take_rows() -> Iterator[Callable]:
    records, index = filled_rows().records, index_stream(ROWS)
    yield lambda: records.take(index())


@floor("take, six columns", "numpy take of six arrays")
def take_columns() -> Iterator[Callable]:
    columns, index = list(transitions(ROWS).values()), index_stream(ROWS)

    def take() -> list[np.ndarray]:
        at = index()
        return [column.take(at, 0) for column in columns]

    yield take


@floor("take", "numpy take of the rows, random indices drawn with it")
def take_random() -> Iterator[Callable]:
    records, rng = filled_rows().records, np.random.default_rng(0)
    yield lambda: records.take(rng.integers(0, ROWS, BATCH))


@floor("take, six columns", "jitted jax take of six arrays, random indices drawn with it", "jax")
def take_jax() -> Iterator[Callable]:
    import jax

    columns = [jax.numpy.asarray(column) for column in transitions(ROWS).values()]

    def take(arrays: Any, key: Any) -> Any:
        index = jax.random.randint(key, (BATCH,), 0, ROWS)
        return [array[index] for array in arrays]

    yield jitted(take, columns)


# -- peers -------------------------------------------------------------------------------------------------


@peer("torchrl", "ReplayBuffer, LazyTensorStorage", *TORCHRL)
def torchrl() -> Iterator[Callable]:
    yield torchrl_buffer().sample


@peer("torchrl TensorDict", "TensorDictReplayBuffer, LazyTensorStorage", *TORCHRL)
def torchrl_tensordict() -> Iterator[Callable]:
    yield torchrl_buffer(kind="TensorDictReplayBuffer").sample


@peer("torchrl prefetch", "ReplayBuffer, LazyTensorStorage, prefetch=2", *TORCHRL)
def torchrl_prefetch() -> Iterator[Ready]:
    yield fetching_ahead(torchrl_buffer(prefetch=2).sample, ahead=2, repeats=500)


@peer("cpprb", "ReplayBuffer", *CPPRB)
def cpprb() -> Iterator[Callable]:
    buffer = cpprb_buffer()
    yield lambda: buffer.sample(BATCH)


@peer("stable-baselines3", "ReplayBuffer, device cpu", *SB3)
def sb3() -> Iterator[Callable]:
    buffer = sb3_buffer()
    yield lambda: buffer.sample(BATCH)


@peer("tianshou", "ReplayBuffer", *TIANSHOU)
def tianshou() -> Iterator[Callable]:
    buffer = tianshou_buffer()
    yield lambda: buffer.sample(BATCH)


@peer("flashbax", "item buffer, jitted sample, block_until_ready", *FLASHBAX)
def flashbax() -> Iterator[Callable]:
    buffer, state = flashbax_items()
    yield jitted(buffer.sample, state)
