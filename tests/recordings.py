"""Small recordings on disk, sound ones and such that something has happened to."""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_data import ReplayBuffer
from unienv_data.replay_buffer._segments import _RECORD, _pack_checked
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, Space

BACKEND = NumpyComputeBackend
# Enough for several stretches of checksums, and for several chunks where tests make those small.
LENGTHS = (300, 7, 1, 500, 40, 900, 252)


def transition_space(**more: Space) -> DictSpace:
    """Transitions as an environment gives them, with two sensors."""
    flag = BinarySpace(BACKEND, ())
    observation = {"joints": floats(3, low=-5.0, high=5.0), "force": floats()}
    spaces = {
        "obs": DictSpace(BACKEND, observation),
        "action": BoxSpace(BACKEND, 0, 3, "int64", shape=()),
        "reward": floats(dtype="float64"),
        "terminated": flag,
        "truncated": flag,
        "next_obs": DictSpace(BACKEND, observation),
        **more,
    }
    return DictSpace(BACKEND, spaces)


def floats(*shape: int, low: float = -np.inf, high: float = np.inf, dtype: str = "float32") -> BoxSpace:
    return BoxSpace(BACKEND, low, high, dtype, shape=shape)


def image(*shape: int) -> BoxSpace:
    return BoxSpace(BACKEND, 0, 255, "uint8", shape=shape)


def episode(length: int, seed: int) -> dict[str, Any]:
    """One episode, in which each step begins where the one before it has led to."""
    rng = np.random.default_rng(seed)
    joints = rng.uniform(-5, 5, (length + 1, 3)).astype(np.float32)
    force = rng.normal(size=length + 1).astype(np.float32)
    ended = np.arange(length) == length - 1
    return {
        "obs": {"joints": joints[:-1], "force": force[:-1]},
        "action": rng.integers(0, 4, length),
        "reward": rng.normal(size=length),
        "terminated": ended & (seed % 2 == 0),
        "truncated": ended & (seed % 2 == 1),
        "next_obs": {"joints": joints[1:], "force": force[1:]},
    }


def episodes(lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    return [episode(length, seed) for seed, length in enumerate(lengths)]


def write(path: Path, parts: Sequence[Any], space: Space | None = None, **options: Any) -> Path:
    """A recording of these episodes; closed in order."""
    options = {"maintain_segment_metadata": True, "storage_cls": None, **options}
    storage_cls = options.pop("storage_cls")
    with ReplayBuffer.create(storage_cls, space or transition_space(), cache_path=path, **options) as buffer:
        for part in parts:
            buffer.extend(part)
    return path


def write_lanes(path: Path, lanes: int = 3, steps: int = 400, seed: int = 0) -> Path:
    """A recording of several environments side by side, whose episodes end at different times."""
    with ReplayBuffer.create(transition_space(), cache_path=path, lanes=lanes) as buffer:
        for batch, ended in vector_steps(lanes, steps, seed):
            buffer.extend_lanes(batch, ended)
        buffer.mark_segment_end()
    return path


def vector_steps(lanes: int, steps: int, seed: int = 0) -> Iterator[tuple[Any, np.ndarray]]:
    rng = np.random.default_rng(seed)
    running = [episode(int(rng.integers(5, 60)), 10 * lane) for lane in range(lanes)]
    at = [0] * lanes
    for step in range(steps):
        rows = [leaf_map(lambda leaf, lane=lane: leaf[at[lane]], running[lane]) for lane in range(lanes)]
        ended = np.array([at[lane] == len(running[lane]["action"]) - 1 for lane in range(lanes)])
        yield stack(rows), ended
        for lane in range(lanes):
            at[lane] += 1
            if ended[lane]:
                running[lane], at[lane] = episode(int(rng.integers(5, 60)), 10 * lane + 1000 * (step + 1)), 0


def leaf_map(function: Any, value: Any) -> Any:
    return (
        {key: leaf_map(function, child) for key, child in value.items()} if isinstance(value, dict) else function(value)
    )


def stack(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def flat(value: Any, path: str = "") -> dict[str, np.ndarray]:
    """The leaves by name."""
    if isinstance(value, dict):
        return {name: leaf for key, child in value.items() for name, leaf in flat(child, f"{path}/{key}").items()}
    return {path.lstrip("/"): np.asarray(value)}


def same(one: Any, other: Any) -> bool:
    ours, theirs = flat(one), flat(other)
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def read_all(path: Path) -> tuple[Any, list[tuple[int, int]] | None]:
    """All samples and episodes of a recording, on NumPy."""
    with ReplayBuffer.load_from(path, backend=BACKEND) as buffer:
        return buffer.get_at(...), buffer.get_segments()


def live_copy(buffer: ReplayBuffer, path: Path) -> Path:
    """What a process that is killed now would leave."""
    shutil.copytree(buffer.cache_path, path)
    return path


def fingerprint(path: Path) -> dict[str, str]:
    """What is in the files of a folder."""
    files = sorted(found for found in path.rglob("*") if found.is_file())
    return {str(found.relative_to(path)): hashlib.sha256(found.read_bytes()).hexdigest() for found in files}


# -- damage ------------------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def move_segment(path: Path, place: int, start: int = 0, stop: int = 0) -> None:
    """Move the ends of a recorded episode, checksum included."""
    file = path / "segments.bin"
    records = np.frombuffer(file.read_bytes(), _RECORD).copy()
    old_start, old_stop, number, _ = records[place].tolist()
    checked = _pack_checked(old_start + start, old_stop + stop, number)
    records[place] = (old_start + start, old_stop + stop, number, zlib.crc32(checked))
    file.write_bytes(records.tobytes())


def rewrite(path: Path, index: Any, **columns: Any) -> Path:
    """Change samples of a recording as a program would, so that all checksums hold."""
    with ReplayBuffer.load_from(path, backend=BACKEND, read_only=False) as buffer:
        batch = leaf_map(np.copy, buffer.get_at(index))
        for name, values in columns.items():
            target, *keys = name.split("__")[::-1]
            place = batch
            for key in reversed(keys):
                place = place[key]
            place[target][...] = values
        buffer.set_at(index, batch)
    return path
