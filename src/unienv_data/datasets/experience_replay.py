"""Samples in TED form to learn from: drawn by a sampler, from a storage that a writer fills."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.common import BatchBase
from ..samplers.index_sampler import parse_batch_size
from ..samplers.uniform_samplers import RandomSampler
from ._access import SampleAccess
from ._batch_storage import BatchStorage
from ._drawing import Draw, drawer
from ._prefetch import Prefetcher
from ._replay_folder import SavedParts, load, save
from ._storage import SampleStorage
from ._tensordict_storage import TensorDictStorage
from ._tensordicts import TensorDictBase, put, torch
from ._transforms import Transform, TransformChain
from ._writers import ImmutableDatasetWriter, RoundRobinWriter, Writer

if TYPE_CHECKING:
    from typing_extensions import Self

PathLike = str | os.PathLike[str]


class ExperienceReplay(SampleAccess):
    """Samples as TensorDicts, in batches that a sampler draws.

    `storage` is a `TensorDictStorage`, a batch of UniEnv's (a `ReplayBuffer`, for instance) whose values are arrays in
    dicts, or the number of samples to keep in memory. `sampler` is one of `unienv_data.samplers` or has the methods of
    a TorchRL sampler; by default every sample is drawn with the same probability. `transform` is a function of a
    TensorDict, such as a `torchrl.envs.Transform`. `collate_fn` is given the batch as it was read, before the
    transforms. With `prefetch` so many batches of the default size are read ahead by threads; their indices are drawn
    in order, so the batches are the same as without.

    Methods may be called from several threads.
    """

    def __init__(
        self,
        *,
        storage: SampleStorage | BatchBase | int | None = None,
        sampler: Any = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        priority_key: str = "td_error",
    ) -> None:
        self._batch_size = None if batch_size is None else parse_batch_size(batch_size)
        self._storage = _as_storage(storage)
        self._collate_fn = collate_fn
        self._pins = pin_memory and torch.cuda.is_available()
        self._transforms = TransformChain(transform)
        self._writer: Writer = _writer_for(self._storage) if writer is None else writer
        self._priority_key = priority_key
        self._save_hooks: list[Callable[[Any], Any]] = []
        self._load_hooks: list[Callable[[Any], Any]] = []
        self._lock = threading.RLock()
        self._prefetcher = Prefetcher(prefetch or 0, self._lock, self._fetch)
        self._iterator: Iterator[Any] | None = None
        self._drawer = drawer(RandomSampler() if sampler is None else sampler)
        self._introduce()

    def _introduce(self) -> None:
        """Tell the sampler of the samples that are there already."""
        self._drawer.wrote(self._storage, np.arange(len(self._storage)), is_new=False)

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """A batch of samples, of the replay's batch size if none is given.

        What the sampler says of the samples, and their `index`, are entries of the batch unless `include_info` is
        False; with `return_info` the result is a pair of the batch and a dict of these.
        """
        data, draw = self._next(self._size(batch_size), include_info is not False)
        return (data, {"index": torch.from_numpy(draw.index), **draw.info}) if return_info else data

    def _next(self, size: int, include_info: bool = True) -> tuple[Any, Draw]:
        """The next batch, and how it was drawn."""
        if size == self._batch_size and include_info:
            return self._prefetcher.next(lambda: self._draw(size))
        draw = self._draw(size)
        return self._fetch(draw, include_info), draw

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return parse_batch_size(batch_size)
        if self._batch_size is None:
            raise ValueError("no batch_size: give one to sample(), or to the replay when it is made")
        return self._batch_size

    def _draw(self, size: int) -> Draw:
        with self._lock:
            return self._drawer.draw(self._storage, size)

    def _fetch(self, draw: Draw, include_info: bool = True) -> Any:
        with self._lock:
            data: Any = self._storage.get(draw.index)
        if include_info:
            inner = self._storage.inner_batch
            put(data, "index", _as_deep(torch.from_numpy(draw.index), inner))
            for key, value in draw.info.items():
                put(data, key, _as_deep(value, inner))
        if self._collate_fn is not None:
            data = self._collate_fn(data)
        if len(self._transforms):
            data = self._transforms.on_read(data)
        return data.pin_memory() if self._pins else data

    def __iter__(self) -> Iterator[Any]:
        """Batches of the default size: for ever, or to the end of the epoch if the sampler knows epochs."""
        size, is_last = self._size(None), False
        self._drawer.begin()
        while not is_last:
            data, draw = self._next(size)
            yield data
            is_last = draw.is_last

    def next(self) -> Any:
        """The next batch of an iteration that goes on from call to call; None at its end, and then it begins anew."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, data: TensorDictBase) -> int:
        """Add one sample and return its index."""
        return int(self._write(data.unsqueeze(0), update_priority=True)[0])

    def extend(self, tensordicts: TensorDictBase, *, update_priority: bool | None = None) -> torch.Tensor:
        """Add a batch of samples and return their indices.

        If they have an entry for their priority, the sampler is told, unless `update_priority` is False.
        """
        return torch.from_numpy(self._write(tensordicts, update_priority=update_priority is not False))

    def _write(self, data: TensorDictBase, *, update_priority: bool) -> np.ndarray:
        if not isinstance(data, TensorDictBase) or not data.batch_dims:
            raise TypeError(f"{type(data).__name__}, extend wants a TensorDict with a leading axis for the samples")
        with self._lock:
            data = self._transforms.on_write(data)
            index = self._writer.write(self._storage, data, len(data))
            newest = index[-len(self._storage) :] if len(index) > len(self._storage) else index
            self._drawer.wrote(self._storage, newest, is_new=True)
            priority = data.get(self._priority_key, None) if update_priority else None
            if priority is not None:
                self.update_priority(newest, priority[-len(newest) :])
            return index

    def empty(self, empty_write_count: bool = True) -> None:
        """Drop all samples; the next one goes to index 0."""
        with self._lock:
            if isinstance(self._writer, ImmutableDatasetWriter):
                raise PermissionError("this is a recorded dataset: delete() deletes its converted copy")
            self._storage.clear()
            self._writer.empty(empty_write_count)
            self._drawer.emptied()
            self._prefetcher.clear()

    def update_priority(self, index: Any, priority: Any) -> None:
        """Give the samples at these indices new priorities."""
        self._set_priority(index, None, priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Give the samples of a batch the priorities in its entry `priority_key`."""
        self._set_priority(data.get("index"), data.get("number", None), data.get(self._priority_key))

    def _set_priority(self, index: Any, numbers: Any, priority: Any) -> None:
        with self._lock:
            places = np.atleast_1d(self._index(index))
            if isinstance(priority, torch.Tensor):
                priority = priority.detach().cpu().reshape(-1).numpy()
            self._drawer.update_priority(self._storage, places, numbers, priority)

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        return self._batch_size

    @property
    def storage(self) -> SampleStorage:
        return self._storage

    @property
    def sampler(self) -> Any:
        return self._drawer.sampler

    @property
    def writer(self) -> Writer:
        return self._writer

    @property
    def transform(self) -> TransformChain:
        return self._transforms

    @property
    def initialized(self) -> bool:
        """Whether there ever were samples."""
        return bool(self._storage.entries())

    @property
    def write_count(self) -> int:
        """The number of samples written through `add` and `extend`."""
        return self._writer.write_count

    def set_sampler(self, sampler: Any) -> Any:
        """Draw with another sampler from now on; the previous one is returned."""
        with self._lock:
            previous, self._drawer = self._drawer, drawer(sampler)
            self._prefetcher.clear()
            self._introduce()
            return previous.sampler

    def set_storage(self, storage: Any, collate_fn: Callable[[Any], Any] | None = None) -> SampleStorage:
        """Draw from another storage from now on; the previous one is returned."""
        with self._lock:
            previous, self._storage = self._storage, _as_storage(storage)
            self._collate_fn = collate_fn
            self._prefetcher.clear()
            self._drawer.emptied()
            self._introduce()
            return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Write with another writer from now on; the previous one is returned."""
        with self._lock:
            previous, self._writer = self._writer, writer
            return previous

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform at the end; with `invert` it runs when samples are written, and is undone on reading."""
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform before the one at `index`."""
        with self._lock:
            self._transforms.insert(index, transform, invert=invert)
            self._prefetcher.clear()
        return self

    # -- saving ----------------------------------------------------------------------------------------------

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have all samples go through a function when the replay is saved. Hooks are not saved themselves."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have all samples go through a function when the replay is loaded. Hooks are not saved themselves."""
        self._load_hooks.append(hook)

    def dumps(self, path: PathLike) -> None:
        """Save samples, sampler, writer and the batches drawn ahead, in the place of what was saved there before.

        At any instant the old or the new folder is there, whole. A recorded dataset is saved as a reference, with the
        entries that were set.
        """
        with self._lock:
            save(Path(path), self._saved_parts(), self._save_hooks)

    def _saved_parts(self) -> SavedParts:
        return SavedParts(self._storage, self._drawer, self._writer, self._prefetcher)

    def loads(self, path: PathLike) -> None:
        """Take over what a replay with the same kind of storage, sampler and writer has saved."""
        with self._lock:
            load(Path(path), self._saved_parts(), self._load_hooks)

    def dump(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def load(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `loads`."""
        self.loads(*args, **kwargs)

    # -- making others ---------------------------------------------------------------------------------------

    def preprocess(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
        num_frames: int | None = None,
        dest: PathLike,
    ) -> TensorDictStorage:
        """Apply a function to all samples and write the results to a new folder, as a storage.

        The function is given samples as a TensorDict with a leading axis, or with a `chunksize` of 0 one sample at a
        time, and returns as many, whose keys, shapes and dtypes may be others. The samples come in pieces of
        `chunksize`, or in `num_chunks` pieces, by default so that a piece takes a few megabytes. With `num_workers` or
        a `pool` pieces are worked on in other processes; by default in this one. With a `generator` the random numbers
        of PyTorch are the same for any number of workers. Pieces are read when they are due, so
        `index_with_generator` makes no difference. Only the first `num_frames` samples are used if it is given.

        The storage can be opened in any process: `TensorDictStorage.open(dest)`.
        """
        from ._preprocess import Plan, preprocess

        plan = Plan(
            chunksize=chunksize,
            num_chunks=num_chunks,
            num_workers=num_workers,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            progress=pbar,
            start_method=mp_start_method,
        )
        if dim not in (0, -1):
            raise ValueError(f"dim is {dim}, the samples of a replay lie along axis 0 only")
        return preprocess(self._storage, fn, Path(dest), num_frames, plan)

    @classmethod
    def as_remote(cls, remote_config: dict[str, Any] | None = None) -> Any:
        """What makes replays of this class in Ray actors: called as the class is, it returns a proxy of one.

        The proxy has the methods of the replay, and can be handed to other processes of the Ray cluster.
        `remote_config` are options of the actor, such as `num_cpus`, `name` or `max_restarts`.
        """
        from ..integrations.ray import remote_class

        return remote_class(cls, remote_config)

    def close(self) -> None:
        """Stop reading ahead and release the storage."""
        self._prefetcher.close()
        self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(storage={self._storage!r}, sampler={type(self.sampler).__name__}, "
            f"writer={self._writer!r}, batch_size={self._batch_size}, transform={self._transforms!r})"
        )


def _as_storage(storage: Any) -> SampleStorage:
    if storage is None or (isinstance(storage, int) and not isinstance(storage, bool)):
        return TensorDictStorage(storage)
    if isinstance(storage, SampleStorage):
        return storage
    if isinstance(storage, BatchBase):
        return BatchStorage(storage)
    raise TypeError(f"storage is {type(storage).__name__}: wanted a TensorDictStorage, a batch or a number of samples")


def _writer_for(storage: SampleStorage) -> Writer:
    return RoundRobinWriter() if storage.is_mutable else ImmutableDatasetWriter()


def _as_deep(value: torch.Tensor, inner: tuple[int, ...]) -> torch.Tensor:
    """A value of each sample as one of each part of the sample, where samples have axes of their own."""
    if not inner or value.ndim > len(inner):
        return value
    return value.reshape(len(value), *(1,) * len(inner)).expand(len(value), *inner)
