"""Batches of 256 images of 84x84x4 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from harness import Work, floor, ours, peer, unable

from unienv_data import StepSampler

from ._data import BATCH, IMAGE_SHAPE, IMAGES, filled_with_images, images, index_stream
from ._peers import CPPRB, TIANSHOU, TORCHRL

SB3_STORES_TWO = "stores and returns a next observation with each, so twice the bytes"


def works() -> list[Work]:
    peers = (torchrl, cpprb, tianshou, unable("stable-baselines3", SB3_STORES_TWO))
    return [
        Work("images", f"get_at of {BATCH}, NumPy", "us", (get_at, memcpy, take, *peers)),
        Work("images", f"sample of {BATCH}, PyTorch", "us", (sample_torch, memcpy, torchrl)),
    ]


@ours("unienv", "ReplayBuffer.get_at")
def get_at() -> Iterator[Callable]:
    with filled_with_images() as buffer:
        index = index_stream(IMAGES)
        yield lambda: buffer.get_at(index())


@ours("unienv", "StepSampler.sample, PyTorch backend", "torch")
def sample_torch() -> Iterator[Callable]:
    from unienv_interface.backends.pytorch import PyTorchComputeBackend

    with filled_with_images(PyTorchComputeBackend) as buffer:
        yield StepSampler(buffer, BATCH, seed=0).sample


@floor("memcpy", "one copy of bytes per image, to a new array")
def memcpy() -> Iterator[Callable]:
    flat, index = _flat(), index_stream(IMAGES)

    def copy() -> np.ndarray:
        batch = np.empty((BATCH, flat.shape[1]), np.uint8)
        for row, at in enumerate(index().tolist()):
            batch[row] = flat[at]
        return batch

    yield copy


@floor("take", "numpy take of the images")
def take() -> Iterator[Callable]:
    flat, index = _flat(), index_stream(IMAGES)
    yield lambda: flat.take(index(), 0)


def _flat() -> np.ndarray:
    return np.concatenate([images(1024)] * (IMAGES // 1024)).reshape(IMAGES, -1)


@peer("torchrl", "ReplayBuffer, LazyTensorStorage", *TORCHRL)
def torchrl() -> Iterator[Callable]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    buffer = ReplayBuffer(storage=LazyTensorStorage(IMAGES), batch_size=BATCH)
    for _ in range(IMAGES // 1024):
        buffer.extend(TensorDict({"obs": torch.from_numpy(images(1024))}, batch_size=[1024]))
    yield buffer.sample


@peer("cpprb", "ReplayBuffer", *CPPRB)
def cpprb() -> Iterator[Callable]:
    from cpprb import ReplayBuffer

    buffer = ReplayBuffer(IMAGES, {"obs": {"shape": IMAGE_SHAPE, "dtype": np.uint8}})
    for _ in range(IMAGES // 1024):
        buffer.add(obs=images(1024))
    yield lambda: buffer.sample(BATCH)


@peer("tianshou", "ReplayBuffer(ignore_obs_next=True), get(indices, 'obs')", *TIANSHOU)
def tianshou() -> Iterator[Callable]:
    from tianshou.data import Batch, ReplayBuffer

    buffer = ReplayBuffer(IMAGES, ignore_obs_next=True)
    for image in np.concatenate([images(1024)] * (IMAGES // 1024)):
        buffer.add(Batch(obs=image, act=0, rew=0.0, terminated=False, truncated=False, info={}))
    yield lambda: buffer.get(buffer.sample_indices(BATCH), "obs")
