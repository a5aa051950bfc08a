"""Files that are not in memory: what a program meets that opens a recording of yesterday."""

from __future__ import annotations

import os
from pathlib import Path

_ATTEMPTS = 20  # pages that another core has just touched stay for a moment


def drop(folder: Path) -> None:
    """Have the system forget the contents of all files in a folder. Nobody may have them mapped.

    Where it does not forget them, figures would not be those of cold files: that is an error.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    for _ in range(_ATTEMPTS):
        for path in files:
            _drop(path)
        if _is_cold(largest):
            return
    raise OSError(f"{largest.name} stays in the page cache: set TMPDIR to a folder on a disk")


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)  # pages that are not yet on disk are not given up
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _is_cold(path: Path) -> bool:
    """Whether a page in the middle would have to be read from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:  # a file system that cannot say, such as one in memory
        return False
    finally:
        os.close(descriptor)
    return False
