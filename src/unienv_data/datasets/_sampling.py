"""Drawing batches with samplers of UniEnv and TorchRL behind one interface, and prefetching them in order."""

from __future__ import annotations

import abc
import functools
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.threads import ThreadCall
from ..samplers.index_sampler import IndexSampler
from ._saving import read_state, write_state
from ._storage import SampleStorage
from .tensordicts import torch

Info = dict[Any, torch.Tensor]


@dataclass(slots=True)
class Draw:
    """The indices of a batch, the sampler's info about each, and whether the batch is the last of an epoch."""

    index: np.ndarray
    info: Info
    is_last: bool


class Drawer(abc.ABC):
    """Draws indices with a sampler, and reports changes of the samples to the sampler."""

    sampler: Any

    @abc.abstractmethod
    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        """Draw the next batch."""

    @abc.abstractmethod
    def begin(self) -> None:
        """Begin a new iteration."""

    @abc.abstractmethod
    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        """Report written samples to the sampler; `is_new` if they were added."""

    @abc.abstractmethod
    def emptied(self) -> None:
        """Report to the sampler that all samples were dropped."""

    @abc.abstractmethod
    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        """Set priorities of samples by index, or by `numbers` if these are known."""

    @abc.abstractmethod
    def dumps(self, folder: Path) -> None:
        """Save the sampler's state to a new folder."""

    @abc.abstractmethod
    def loads(self, folder: Path) -> None:
        """Restore the sampler's state from a folder."""

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state."""
        return {"sampler": type(self.sampler).__name__, "state": self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sampler's state."""
        self.sampler.load_state_dict(state["state"])


def drawer(sampler: Any) -> Drawer:
    """Make the drawer for a sampler, or for the result of a function; a TypeError for other objects."""
    if isinstance(sampler, IndexSampler):
        return IndexDrawer(sampler)
    has_methods = callable(getattr(sampler, "sample", None)) and callable(getattr(sampler, "mark_update", None))
    if has_methods and not isinstance(sampler, type):
        from ._torchrl import TorchRLDrawer

        return TorchRLDrawer(sampler)
    if callable(sampler):
        return drawer(sampler())
    raise TypeError(
        f"sampler is {type(sampler).__name__}: wanted one of unienv_data.samplers, such as RandomSampler, or an "
        f"object with the methods of a TorchRL sampler"
    )


class IndexDrawer(Drawer):
    """Draws with a sampler of UniEnv, which needs no reports."""

    def __init__(self, sampler: IndexSampler) -> None:
        self.sampler: Any = sampler
        self._has_epochs = hasattr(sampler, "ran_out")

    def begin(self) -> None:
        pass

    def wrote(self, storage: SampleStorage, index: np.ndarray, *, is_new: bool) -> None:
        pass

    def emptied(self) -> None:
        pass

    def draw(self, storage: SampleStorage, batch_size: int) -> Draw:
        positions, info = self.sampler.sample(storage, batch_size)
        tensors = {key: torch.from_numpy(value) for key, value in info.items()} if info else {}
        return Draw(storage.index_of(positions), tensors, self._has_epochs and self.sampler.ran_out)

    def update_priority(self, storage: SampleStorage, index: np.ndarray, numbers: Any, priority: Any) -> None:
        update = getattr(self.sampler, "update_priority_of", None)
        if update is None:
            raise TypeError(f"{type(self.sampler).__name__} has no priorities: use a PrioritizedSampler")
        update(storage.numbers_at(index) if numbers is None else np.asarray(numbers), np.asarray(priority))

    def dumps(self, folder: Path) -> None:
        write_state(folder, self.sampler.state_dict())

    def loads(self, folder: Path) -> None:
        self.sampler.load_state_dict(read_state(folder))


# -- prefetching -------------------------------------------------------------------------------------------

Fetch = Callable[[Draw], Any]


class _Batch(NamedTuple):
    draw: Draw
    fetched: ThreadCall[Any]


class Prefetcher:
    """Fetches `depth` batches in advance; with 0 on demand.

    Parameters
    ----------
    depth
        The number of batches in advance.
    lock
        The lock of the replay, held while indices are drawn or samples change.
    fetch
        Fetches the batch of a draw.
    """

    def __init__(self, depth: int, lock: AbstractContextManager[Any], fetch: Fetch) -> None:
        if depth < 0:
            raise ValueError(f"prefetch is {depth}, it must not be negative")
        self.depth, self._lock, self._fetch = depth, lock, fetch
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._batches: deque[_Batch] = deque()

    def next(self, draw: Callable[[], Draw]) -> tuple[Any, Draw]:
        """Return the next batch and its draw."""
        if not self.depth:
            drawn = draw()
            return self._fetch(drawn), drawn
        with self._lock:
            if self._process != os.getpid():
                self._restart()
            while len(self._batches) <= self.depth:
                self._start(draw())
            batch = self._batches.popleft()
        return batch.fetched.result(), batch.draw

    def _restart(self) -> None:
        """Fetch the batches again in a forked process, which has no threads."""
        draws = [batch.draw for batch in self._batches]
        self._batches.clear()
        self._threads, self._process = None, os.getpid()
        for draw in draws:
            self._start(draw)

    def _start(self, draw: Draw) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.depth, thread_name_prefix="unienv-prefetch")
        self._batches.append(_Batch(draw, ThreadCall(self._threads, functools.partial(self._fetch, draw))))

    def pending(self) -> list[dict[str, Any]]:
        """Return the draws of batches that were not handed out, as plain values and arrays."""
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
        """Fetch the pending batches of a saved state."""
        if pending and not self.depth:
            raise ValueError("the state has batches fetched in advance: make the replay with prefetch as before")
        for batch in pending:
            keys = (tuple(key) if isinstance(key, list) else key for key in batch["keys"])
            values = (torch.from_numpy(np.asarray(value)) for value in batch["values"])
            self._start(Draw(batch["index"], dict(zip(keys, values, strict=True)), batch["is_last"]))

    def clear(self) -> None:
        """Drop the batches fetched in advance."""
        for batch in self._batches:
            batch.fetched.cancel()
        self._batches.clear()

    def close(self) -> None:
        """End the threads."""
        self.clear()
        if self._threads is not None and self._process == os.getpid():
            self._threads.shutdown(wait=True)
        self._threads = None
