"""Batches read ahead by threads, in the order in which their indices were drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from ._drawing import Draw
from ._tensordicts import torch

Fetch = Callable[[Draw], Any]


class _Batch(NamedTuple):
    draw: Draw
    result: Future[Any]


class Prefetcher:
    """Keeps `depth` batches ahead; with 0 they are read when they are asked for."""

    def __init__(self, depth: int, lock: AbstractContextManager[Any], fetch: Fetch) -> None:
        """`lock` is held while indices are drawn, and by whoever changes what is drawn from."""
        if depth < 0:
            raise ValueError(f"prefetch is {depth}, it must not be negative")
        self._depth, self._lock, self._fetch = depth, lock, fetch
        self._threads: ThreadPoolExecutor | None = None
        self._batches: deque[_Batch] = deque()

    def next(self, draw: Callable[[], Draw]) -> tuple[Any, Draw]:
        """The next batch and how it was drawn, while others are being read."""
        if not self._depth:
            drawn = draw()
            return self._fetch(drawn), drawn
        with self._lock:
            while len(self._batches) <= self._depth:
                self._start(draw())
            batch = self._batches.popleft()
        return batch.result.result(), batch.draw

    def _start(self, draw: Draw) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._depth, thread_name_prefix="unienv-prefetch")
        self._batches.append(_Batch(draw, self._threads.submit(self._fetch, draw)))

    def pending(self) -> list[dict[str, Any]]:
        """What has been drawn and not yet handed out, as plain values."""
        return [
            {
                "index": batch.draw.index,
                "is_last": batch.draw.is_last,
                "keys": [list(key) if isinstance(key, tuple) else key for key in batch.draw.info],
                "values": [value.numpy() for value in batch.draw.info.values()],
            }
            for batch in self._batches
        ]

    def restore(self, pending: list[dict[str, Any]]) -> None:
        """Begin with what another prefetcher had pending."""
        if pending and not self._depth:
            raise ValueError("batches drawn ahead were saved: make the replay with prefetch, as it was then")
        for batch in pending:
            keys = (tuple(key) if isinstance(key, list) else key for key in batch["keys"])
            values = (torch.from_numpy(np.asarray(value)) for value in batch["values"])
            self._start(Draw(batch["index"], dict(zip(keys, values, strict=True)), batch["is_last"]))

    def clear(self) -> None:
        """Forget the batches that were read ahead."""
        for batch in self._batches:
            batch.result.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the threads."""
        self.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None
