"""Work on several frames at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..base.threads import call_each

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

MOST_THREADS = 4


def map_in_threads(work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    """The results of `work` for each item, from a few threads at once where there are several items."""
    workers = min(len(items), MOST_THREADS, os.cpu_count() or 1)
    if workers < 2:
        return list(map(work, items))
    with ThreadPoolExecutor(workers) as pool:  # one that is kept would not survive a fork
        return call_each(pool, work, items)
