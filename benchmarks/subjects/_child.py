"""Figures about memory, each taken in a process of its own: what one measurement leaves behind is not in the next."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any


def peak_growth(work: Callable[..., Any], warm_up: Sequence[Any], arguments: Sequence[Any]) -> float:
    """By how many bytes a call raises the highest memory of a process that has made a smaller one before.

    The smaller call, with the arguments `warm_up`, is for imports and everything else that comes once.
    """
    return _in_child(_peak_growth, work, tuple(warm_up), tuple(arguments))


def held_growth(make: Callable[..., Any], warm_up: Sequence[Any], arguments: Sequence[Any]) -> float:
    """By how many bytes what a call returns makes a process larger, for as long as it is there."""
    return _in_child(_held_growth, make, tuple(warm_up), tuple(arguments))


def _in_child(measure: Callable[..., float], *arguments: Any) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def _peak_growth(work: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float:
    work(*warm_up)
    gc.collect()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    work(*arguments)
    return _resident("VmHWM") - before


def _held_growth(make: Callable[..., Any], warm_up: tuple[Any, ...], arguments: tuple[Any, ...]) -> float:
    kept = [make(*warm_up)]
    gc.collect()
    before = _resident("VmRSS")
    kept.append(make(*arguments))
    gc.collect()
    return _resident("VmRSS") - before


def _resident(field: str) -> float:
    """Bytes that this process has in memory now (VmRSS), or had at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))
