"""Records numbered samples, says what it has done, and then waits to be killed.

    python tests/data/record_until_killed.py KIND FOLDER CAPACITY FLUSHED MORE

CAPACITY 0 grows. FLUSHED samples are appended and flushed, then MORE.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

from pathlib import Path

from buffers import number, number_space
from file_storages import KINDS


def main() -> None:
    name, folder, capacity, flushed, more = sys.argv[1:]
    kind = KINDS[name]
    buffer = kind.create(number_space(kind.backend), int(capacity) or None, Path(folder))
    for value in range(int(flushed)):
        buffer.append(number(value, kind.backend))
    buffer.mark_segment_end()
    buffer.flush()
    for value in range(int(flushed), int(flushed) + int(more)):
        buffer.append(number(value, kind.backend))
    sys.stdout.write("recorded\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
