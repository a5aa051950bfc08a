"""What windows and combinations of batches cost, beside the bare NumPy gather of the same rows and other libraries.

    python benchmarks/views.py

Windows are of 16 samples, 64 of them a batch, with their masks. Ours and the other are measured in turn, the median of
the ratios of neighbouring rounds counts, and the exit status is 1 where a bar is missed. TorchRL is compared with where
it is installed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from replay_buffer import NUMPY, Report, Work, transitions
from rows import transition_space

from unienv_data import CombinedBatch, FrameStackedBatch, ReplayBuffer, SliceStackedBatch
from unienv_interface.space import BoxSpace, DictSpace

BATCH, FRAMES, EPISODE = 64, 16, 200


def small_space() -> DictSpace:
    """Rows of 16 bytes, of which many fit."""
    shapes = {"obs": (3,), "reward": ()}
    boxes = {name: BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=shape) for name, shape in shapes.items()}
    return DictSpace(NUMPY, boxes)


def filled(space: DictSpace, episode: dict[str, np.ndarray], count: int, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(space, maintain_segment_metadata=True, **options)
    for _ in range(count // EPISODE):
        buffer.extend(episode)
    return buffer


def small(count: int) -> ReplayBuffer:
    return filled(small_space(), {"obs": np.zeros((EPISODE, 3), "f4"), "reward": np.zeros(EPISODE, "f4")}, count)


def ours(stack: SliceStackedBatch) -> Work:
    rng = np.random.default_rng(0)
    indices = [rng.integers(0, len(stack), BATCH) for _ in range(1024)]
    return lambda call: stack.get_at_with_metadata(indices[call % 1024])


def bare(buffer: ReplayBuffer) -> Work:
    """The same rows by one gather, whatever episode they are of."""
    records = buffer.storage._memory.rows.records  # type: ignore[attr-defined]
    rng, offsets = np.random.default_rng(0), np.arange(FRAMES)
    indices = [rng.integers(0, len(buffer) - FRAMES, BATCH) for _ in range(1024)]
    return lambda call: records.take(indices[call % 1024][:, None] + offsets, 0, None, "wrap")


def windows(report: Report) -> None:
    name = f"windows of {FRAMES}, {BATCH} a batch"
    large, little = (ours(FrameStackedBatch(small(count), FRAMES - 1)) for count in (10_000_000, 10_000))
    report.ratio(f"{name}, of 10 million rows, against 10,000", large, little, 200, 2)
    del large, little
    buffer = filled(transition_space(), transitions(EPISODE), 200_000)
    stack = FrameStackedBatch(buffer, FRAMES - 1)
    report.ratio(f"{name}, against take of the same rows", ours(stack), bare(buffer), 200, 4)
    column = FrameStackedBatch(buffer.get_column(["action"]), FRAMES - 1)
    report.ratio("  of one column", ours(column), bare(buffer), 200, 5)
    ring = filled(transition_space(), transitions(EPISODE), 300_000, capacity=200_000)
    report.ratio("  of a ring that has wrapped", ours(FrameStackedBatch(ring, FRAMES - 1)), bare(ring), 200, 5)
    gaps = SliceStackedBatch(buffer, np.arange(0, 2 * FRAMES, 2))
    report.ratio("  with gaps between the offsets", ours(gaps), bare(buffer), 200, 6)
    report.faster(f"{name}, against TorchRL's SliceSampler", ours(stack), torchrl(cached=False), 10, 40)
    report.faster("  against its cached form", ours(stack), torchrl(cached=True), 10, 10)


def torchrl(*, cached: bool) -> Work | None:
    try:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, SliceSampler
        from torchrl.data import ReplayBuffer as TorchRLBuffer
    except ImportError:
        return None
    count = 200_000
    sampler = SliceSampler(slice_len=FRAMES, traj_key="episode", cache_values=cached)
    buffer = TorchRLBuffer(storage=LazyTensorStorage(count), sampler=sampler, batch_size=BATCH * FRAMES)
    data = {name: torch.from_numpy(column) for name, column in transitions(count).items()}
    data["episode"] = torch.arange(count) // EPISODE
    buffer.extend(TensorDict(data, batch_size=[count]))
    return lambda _: buffer.sample()


def combinations(report: Report) -> None:
    """A batch of 256 from one source, where looking it up is all that is added, and from about as many sources."""
    episode = {"obs": np.zeros((10, 3), "f4"), "reward": np.zeros(10, "f4")}
    rng = np.random.default_rng(0)
    indices = [rng.integers(0, 100_000, 256) for _ in range(256)]
    one = ReplayBuffer.create(small_space())
    for _ in range(10_000):
        one.extend(episode)
    alone = CombinedBatch([one])
    report.ratio(
        "a batch of 256 of a combination of one, against get_at",
        lambda call: alone.get_at(indices[call % 256]),
        lambda call: one.get_at(indices[call % 256]),
        200,
        6,
    )
    buffers = [one.get_slice(slice(start, start + 10)) for start in range(0, 100_000, 10)]
    many = CombinedBatch(buffers)
    few = CombinedBatch(buffers[:1000])
    report.ratio(
        "a batch of 256 of 10,000 sources, against 1,000",
        lambda call: many.get_at(indices[call % 256]),
        lambda call: few.get_at(indices[call % 256] % 10_000),
        5,
        1.5,
    )


def main() -> int:
    report = Report()
    windows(report)
    combinations(report)
    return int(report.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
