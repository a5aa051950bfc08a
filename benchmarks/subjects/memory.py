"""Bytes for each of a million stored transitions, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import Work, floor, ours, peer, unable

from ._child import held_growth
from ._data import ROWS, filled, folder, one_transition
from ._peers import (
    CPPRB,
    FLASHBAX,
    SB3,
    TIANSHOU,
    TORCHRL,
    cpprb_buffer,
    flashbax_items,
    sb3_buffer,
    tianshou_buffer,
    torchrl_buffer,
)

SMALL = 10_000


def works() -> list[Work]:
    held = (in_memory, numbers, torchrl, cpprb, sb3, tianshou, flashbax)
    no_file = unable("flashbax", "keeps its buffer in memory; a vault is another format")
    stored = (on_disk, numbers, torchrl_on_disk, cpprb_on_disk, sb3_on_disk, tianshou_on_disk, no_file)
    return [
        Work("memory", "a transition in memory", "bytes", held, rounds=1),
        Work("memory", "a transition on disk", "bytes", stored, rounds=1),
    ]


def held_by(make: Callable[[int], Any]) -> Iterator[Callable]:
    """What a full buffer takes of a process that has made a small one before."""
    yield lambda: held_growth(make, [SMALL], [ROWS]) / ROWS


def stored_by(save: Callable[[Path], object]) -> Iterator[Callable]:
    """What a full buffer takes of the disk: blocks that were given to files, not their nominal size."""
    with folder() as path:
        save(path)
        yield lambda: sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file()) / ROWS


@floor("numbers", "the bytes of its numbers")
def numbers() -> Iterator[Callable]:
    yield lambda: sum(value.nbytes for value in one_transition().values())


@ours("unienv", "ReplayBuffer, packed rows")
def in_memory() -> Iterator[Callable]:
    yield from held_by(filled)


@ours("unienv", "ReplayBuffer(cache_path=...)")
def on_disk() -> Iterator[Callable]:
    yield from stored_by(lambda path: filled(cache_path=path / "buffer").close())


@peer("torchrl", "ReplayBuffer, LazyTensorStorage", *TORCHRL)
def torchrl() -> Iterator[Callable]:
    yield from held_by(torchrl_buffer)


@peer("torchrl", "ReplayBuffer.dumps", *TORCHRL)
def torchrl_on_disk() -> Iterator[Callable]:
    yield from stored_by(lambda path: torchrl_buffer().dumps(path))


@peer("cpprb", "ReplayBuffer", *CPPRB)
def cpprb() -> Iterator[Callable]:
    yield from held_by(cpprb_buffer)


@peer("cpprb", "save_transitions, not safe", *CPPRB)
def cpprb_on_disk() -> Iterator[Callable]:
    yield from stored_by(lambda path: cpprb_buffer().save_transitions(str(path / "buffer.npz"), safe=False))


@peer("stable-baselines3", "ReplayBuffer", *SB3)
def sb3() -> Iterator[Callable]:
    yield from held_by(sb3_buffer)


@peer("stable-baselines3", "save_to_pkl", *SB3)
def sb3_on_disk() -> Iterator[Callable]:
    from stable_baselines3.common.save_util import save_to_pkl

    yield from stored_by(lambda path: save_to_pkl(path / "buffer.pkl", sb3_buffer()))


@peer("tianshou", "ReplayBuffer", *TIANSHOU)
def tianshou() -> Iterator[Callable]:
    yield from held_by(tianshou_buffer)


@peer("tianshou", "save_hdf5", *TIANSHOU, "h5py")
def tianshou_on_disk() -> Iterator[Callable]:
    yield from stored_by(lambda path: tianshou_buffer().save_hdf5(str(path / "buffer.hdf5")))


@peer("flashbax", "item buffer", *FLASHBAX)
def flashbax() -> Iterator[Callable]:
    yield from held_by(flashbax_items)
