"""Records until no file may become longer, then again with room, and says what was found.

    python tests/data/fill_up.py KIND FOLDER

The limit of the size of files stands for a full disk: it needs no rights, and the same calls fail.
"""

from __future__ import annotations

import os
import resource
import sys

sys.path.insert(0, os.path.dirname(__file__))

from pathlib import Path

import numpy as np
from file_storages import KINDS

from unienv_data import ReplayBuffer
from unienv_interface.space.spaces import BoxSpace

ROW = 50_000
LIMIT = 4_000_000
# A piece is larger than the limit, and must go when the next one begins; an HDF5 file grows past it.
OPTIONS: dict[str, dict[str, object]] = {"hdf5": {}, "parquet": {"piece_size": 100, "cache_bytes": 100 * ROW}}


def sample(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, ROW, dtype=np.uint8)  # nothing that can be compressed


def main() -> None:
    kind, folder = KINDS[sys.argv[1]], Path(sys.argv[2])
    buffer = kind.create(BoxSpace(kind.backend, 0, 255, "uint8", shape=(ROW,)), None, folder, **OPTIONS[kind.storage])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    kept = fill(buffer, folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    check(buffer, kept)
    buffer.append(sample(kept))
    buffer.mark_segment_end()
    buffer.flush()
    check(buffer, kept + 1)
    buffer.close()
    with ReplayBuffer.load_from(folder, backend=kind.backend) as loaded:
        check(loaded, kept + 1)
        assert loaded.verify() == []
    sys.stdout.write(f"{kept} samples, then no room, then room again\n")


def fill(buffer: ReplayBuffer, folder: Path) -> int:
    """Append until that fails; the number of samples that were appended."""
    for number in range(200):
        try:
            buffer.append(sample(number))
        except OSError as error:
            if str(folder) not in str(error):
                raise
            return number
    raise SystemExit("there was room for everything")


def check(buffer: ReplayBuffer, count: int) -> None:
    assert len(buffer) == count, (len(buffer), count)
    for number in range(count):
        assert np.array_equal(buffer.get_at(number), sample(number)), number


if __name__ == "__main__":
    main()
