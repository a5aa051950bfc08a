"""A few samples, as they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.space.space_utils import batch_space, get_at

from ._errors import CommandError, UsageError
from ._reading import columns_of, open_buffer


@dataclass(frozen=True)
class Sample:
    """One sample: its index, the [start, stop) of its episode if that is closed, and its values by column."""

    index: int
    episode: tuple[int, int] | None
    values: dict[str, Any]


@dataclass(frozen=True)
class Head:
    """Some samples one after the other, of `samples` in all."""

    path: str
    samples: int
    shown: list[Sample]


def head(path: Path, count: int, start: int = 0) -> Head:
    """`count` samples from `start` on; a negative start counts from the end."""
    if count < 0:
        raise UsageError(f"{count} samples were asked for, it must be 0 or more")
    with open_buffer(path) as buffer:
        length = len(buffer)
        first = max(0, start + length) if start < 0 else start
        if first > length:
            raise CommandError(f"{path}: there are {length} samples, none from {start} on")
        stop = min(first + count, length)
        batch, columns = buffer.get_at(slice(first, stop)), columns_of(buffer.single_space)
        space = batch_space(buffer.single_space, stop - first)
        shown = []
        for index in range(first, stop):
            sample = get_at(space, batch, index - first)
            values = {column.name: _plain(column.pick(sample), buffer.backend) for column in columns}
            shown.append(Sample(index, buffer.segment_of(index), values))
        return Head(str(path), length, shown)


def _plain(value: Any, backend: Any) -> Any:
    """A value as an array of NumPy, or as it is if it is none."""
    return np.asarray(backend.to_numpy(value)) if backend.is_backendarray(value) else value
