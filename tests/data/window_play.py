"""Windows of a ring that another process writes. Run as a program, as it forks.

python tests/data/window_play.py --seconds 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import numpy as np

from unienv_data import BatchBase, CombinedBatch, ReplayBuffer, SliceStackedBatch
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

RING, PAYLOAD = 64, 600
OFFSETS = {"dense": list(range(-5, 6)), "gaps": [-7, -3, 0, 2, 6]}


def space() -> DictSpace:
    """The episode and the step in it, alone and in a payload long enough to be torn, and the episode as a key."""
    shapes = {"at": (2,), "load": (PAYLOAD,), "episode_id": ()}
    spaces = {name: BoxSpace(NumpyComputeBackend, 0, 2**62, "int64", shape=shape) for name, shape in shapes.items()}
    return DictSpace(NumpyComputeBackend, spaces)


def length_of(episode: Any) -> Any:
    return 1 + episode * 7 % 13


def episode_of(number: int) -> dict[str, np.ndarray]:
    steps = np.arange(length_of(number))
    at = np.stack([np.full_like(steps, number), steps], axis=1)
    load = np.repeat(number * 1000 + steps[:, None], PAYLOAD, axis=1)
    return {"at": at, "load": load, "episode_id": np.full_like(steps, number)}


def write_on(folder: Path) -> None:
    """Episodes one after the other until killed, whole or sample by sample; now and then the oldest are removed."""
    chance = random.Random(0)
    with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend, read_only=False) as buffer:
        number = 1
        while True:
            episode = episode_of(number)
            if chance.random() < 0.5:
                buffer.extend(episode)
            else:
                for step in range(length_of(number)):
                    buffer.append({key: column[step] for key, column in episode.items()})
                buffer.mark_segment_end()
            if chance.random() < 0.05:
                buffer.remove_at(slice(0, chance.randrange(1, 20)))
            number += 1


def read_on(stack: BatchBase, offsets: list[int], size: int) -> int:
    """Check windows of random samples; how many there were."""
    count = len(stack)
    if not count:
        return 0
    try:
        data, metadata = stack.get_at_with_metadata(np.random.default_rng().integers(0, count, size))
    except IndexError:  # removing has made it shorter
        return 0
    assert metadata is not None
    check(data["at"], data["load"], metadata["slice_valid_mask"], np.array(offsets))
    return size


def check(at: np.ndarray, load: np.ndarray, valid: np.ndarray, offsets: np.ndarray) -> None:
    """No sample is torn, and no window has samples of two episodes, or of one in another order than the offsets."""
    episodes, steps = at[..., 0], at[..., 1]
    assert np.all(load == (episodes * 1000 + steps)[..., None]), "a torn sample"
    zero = int(np.flatnonzero(offsets == 0)[0])
    assert np.all(episodes == episodes[:, [zero]]), f"a window of several episodes: {episodes.tolist()}"
    wanted = steps[:, [zero]] + offsets
    assert np.all(valid[:, zero])
    assert np.all((steps == wanted) == valid), f"steps {steps.tolist()} marked as {valid.tolist()}"
    assert np.all(((wanted >= 0) & (wanted < length_of(episodes)))[valid]), "valid beyond the episode"
    inner = np.diff(valid.astype(np.int8), axis=1)
    assert np.all((inner == 1).sum(axis=1) <= 1), f"a hole in {valid.tolist()}"


def play(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "buffer"
        ReplayBuffer.create(space(), capacity=RING, cache_path=folder, maintain_segment_metadata=True).close()
        writer = multiprocessing.get_context("fork").Process(target=write_on, args=(folder,), daemon=True)
        writer.start()
        counts = dict.fromkeys(("dense", "gaps", "masked", "combined", "part", "every_other"), 0)
        with ReplayBuffer.load_from(folder, backend=NumpyComputeBackend) as buffer:
            while len(buffer) < RING // 2:
                time.sleep(0.001)
            part = buffer.get_slice(slice(3, 25))
            by_id = SliceStackedBatch.get_valid_mask_function_with_episodeid_key()
            stacks = {
                "dense": (SliceStackedBatch(buffer, OFFSETS["dense"]), OFFSETS["dense"]),
                "gaps": (SliceStackedBatch(buffer, OFFSETS["gaps"]), OFFSETS["gaps"]),
                "masked": (SliceStackedBatch(buffer, OFFSETS["dense"], by_id), OFFSETS["dense"]),
                "combined": (SliceStackedBatch(CombinedBatch([buffer, buffer]), OFFSETS["dense"]), OFFSETS["dense"]),
                "part": (SliceStackedBatch(part, OFFSETS["dense"]), OFFSETS["dense"]),
                "every_other": (SliceStackedBatch(buffer.get_slice(slice(1, 30, 2)), [-2, -1, 0, 1]), [-4, -2, 0, 2]),
            }
            before, deadline = buffer.stats().written, time.monotonic() + seconds
            while time.monotonic() < deadline:
                for name, (stack, offsets) in stacks.items():
                    counts[name] += read_on(stack, offsets, 16)
            written = buffer.stats().written - before
        assert writer.is_alive()
        writer.kill()
        writer.join()
        assert min(counts.values()) > 0, counts
        assert written > RING, f"the writer only got to {written}"
        print(f"{sum(counts.values())} windows beside {written} samples, none mixed")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2)
    play(parser.parse_args().seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
