"""Benchmarks of reading a recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unienv_interface.space.row_layout import RowLayout

from ..batches import FrameStackedBatch
from ..checking import ProgressCallback
from ..checking.reading import chunks, open_folder, unwatched
from ..samplers import StepSampler
from ._errors import CommandError

_MEGABYTE = 10**6
_WARM_UP = 3


@dataclass(frozen=True)
class BenchReport:
    """Rates per second; bytes count the sampled data."""

    path: str
    samples: int
    batch_size: int
    samples_per_second: float
    samples_mb_per_second: float
    window: int
    windows: int
    windows_per_second: float
    windows_mb_per_second: float
    scan_mb_per_second: float


def bench(
    path: Path,
    *,
    batch_size: int = 256,
    window: int = 16,
    windows: int = 64,
    seconds: float = 1.0,
    progress: ProgressCallback = unwatched,
) -> BenchReport:
    """Draw random batches of samples, then of windows, then read all in order, each for `seconds`."""
    with open_folder(path) as buffer:
        if not len(buffer):
            raise CommandError(f"{path}: the recording has no samples to draw")
        nbytes = RowLayout(buffer.single_space).nbytes / _MEGABYTE
        progress(0, 3)
        single = _rate(StepSampler(buffer, batch_size, seed=0).sample, seconds) * batch_size
        progress(1, 3)
        stacked = FrameStackedBatch(buffer, prefetch_horizon=window - 1)
        stacks = _rate(StepSampler(stacked, windows, seed=0).sample, seconds) * windows
        progress(2, 3)
        scan = _scan_rate(buffer, seconds)
        progress(3, 3)
        return BenchReport(
            path=str(path),
            samples=len(buffer),
            batch_size=batch_size,
            samples_per_second=single,
            samples_mb_per_second=single * nbytes,
            window=window,
            windows=windows,
            windows_per_second=stacks,
            windows_mb_per_second=stacks * window * nbytes,
            scan_mb_per_second=scan * nbytes,
        )


def _rate(work: Callable[[], Any], seconds: float) -> float:
    """Return the number of calls of `work` per second."""
    for _ in range(_WARM_UP):
        work()
    done, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds or not done:
        work()
        done += 1
    return done / spent if spent else float(done)


def _scan_rate(buffer: Any, seconds: float) -> float:
    """Return the number of samples read in order per second; a short recording is read several times."""
    read, begun = 0, time.perf_counter()
    while True:
        for chunk in chunks(buffer):
            read += chunk.count
            spent = time.perf_counter() - begun
            if spent >= seconds:
                return read / spent
