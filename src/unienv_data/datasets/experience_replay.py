"""Experience replay of TensorDicts: a storage, a writer that fills it, and a sampler that draws batches."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from ..base.common import BatchBase
from ..samplers.index_sampler import parse_batch_size
from ..samplers.uniform_samplers import RandomSampler
from ._access import SampleAccess, Transform, TransformChain
from ._batch_storage import BatchStorage
from ._sampling import Draw, Prefetcher, drawer
from ._saving import SavedParts, check_kinds, load, save
from ._storage import (
    ImmutableDatasetError,
    ImmutableDatasetWriter,
    RoundRobinWriter,
    SampleStorage,
    SamplingError,
    Writer,
    check_writer,
)
from ._torchrl import TorchRLStorage, is_torchrl_storage, writer_of_ours
from .tensordict_storage import TensorDictStorage
from .tensordicts import TensorDictBase, put, stacked, torch

if TYPE_CHECKING:
    from typing_extensions import Self

PathLike = str | os.PathLike[str]

_replays: weakref.WeakSet[ExperienceReplay] = weakref.WeakSet()
_registry = threading.Lock()  # held while the set is changed or iterated over


class ExperienceReplay(SampleAccess):
    """A replay buffer of TensorDicts, in batches that a sampler draws.

    Methods may be called from several threads. A replay can be pickled if its storage can: a recorded dataset is opened
    again, samples in memory are copied. A replay can therefore be the dataset of a `torch.utils.data.DataLoader` with
    workers, with `collate_fn=lambda batch: batch`.

    Parameters
    ----------
    storage
        A `TensorDictStorage`, a batch (such as a `ReplayBuffer`) whose values are arrays in dicts, a TorchRL storage,
        or the number of samples to keep in memory. Or a function that returns one of these; the replay then closes the
        batch. With `as_remote` the function runs in the actor, and again after a restart of the actor.
    sampler
        One of `unienv_data.samplers`, an object with the methods of a TorchRL sampler, or a function that returns one.
        By default every sample is drawn with the same probability.
    writer
        Writes new samples; by default over the oldest samples, and a recorded dataset refuses writes. TorchRL's
        `RoundRobinWriter`, `TensorDictRoundRobinWriter` and `ImmutableDatasetWriter` are replaced by UniEnv's writers.
    collate_fn
        A function that is called with each batch before the transforms, and returns the batch.
    pin_memory
        Whether the memory of batches is pinned, if a GPU is present.
    prefetch
        The number of batches of the default size that threads fetch in advance. The batches are the same as without.
    transform
        A function of a TensorDict, such as a `torchrl.envs.Transform`.
    batch_size
        The default size of a batch.
    priority_key
        The entry of samples that holds their priority.

    Raises
    ------
    TypeError
        The storage, sampler or writer is none that a replay can use.
    ValueError
        `batch_size` is missing for a sampler that drops the last batch, or below 1.

    Examples
    --------
    >>> import torch
    >>> from tensordict import TensorDict
    >>> replay = ExperienceReplay(storage=1_000, batch_size=32)
    >>> _ = replay.extend(TensorDict({"obs": torch.zeros(100, 4)}, [100]))
    >>> replay.sample()["obs"].shape
    torch.Size([32, 4])
    """

    def __init__(
        self,
        *,
        storage: SampleStorage | BatchBase | int | Callable[[], Any] | None = None,
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
        self._pins_memory = pin_memory and torch.cuda.is_available()
        self._transforms = TransformChain(transform)
        writer = _default_writer(self._storage) if writer is None else writer_of_ours(writer)
        self._writer = check_writer(writer, self._storage)
        self._priority_key = priority_key
        self._save_hooks: list[Callable[[Any], Any]] = []
        self._load_hooks: list[Callable[[Any], Any]] = []
        self._drawer = drawer(RandomSampler() if sampler is None else sampler)
        if self._batch_size is None and getattr(self.sampler, "drop_last", False):
            raise ValueError("Samplers with drop_last=True need batches of one size: give batch_size to the replay")
        self._start(prefetch or 0)
        self._tell_sampler()

    def _start(self, prefetch: int) -> None:
        """Make the attributes that belong to this process."""
        self._lock = threading.RLock()
        self._prefetcher = Prefetcher(prefetch, self._lock, self._fetch)
        self._iterator: Iterator[Any] | None = None
        with _registry:
            _replays.add(self)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = {key: value for key, value in self.__dict__.items() if key not in _OF_THIS_PROCESS}
            functions = cloudpickle.dumps({key: state.pop(key) for key in _FUNCTIONS})
            pending = self._prefetcher.pending()
            return {**state, "functions": functions, "prefetch": self._prefetcher.depth, "pending": pending}

    def __setstate__(self, state: dict[str, Any]) -> None:
        pending, prefetch = state.pop("pending"), state.pop("prefetch")
        self.__dict__.update(cloudpickle.loads(state.pop("functions")))
        self.__dict__.update(state)
        self._start(prefetch)
        self._prefetcher.restore(pending)

    def _tell_sampler(self) -> None:
        """Report the present samples to the sampler."""
        self._drawer.wrote(self._storage, np.arange(len(self._storage)), is_new=False)

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Draw a batch of samples.

        Parameters
        ----------
        batch_size
            The size of the batch, by default the size of the replay.
        return_info
            Whether a pair of the batch and a dict with the sampler's info is returned.
        include_info
            Whether `index` and the sampler's info are entries of the batch; by default they are.

        Returns
        -------
        TensorDict
            The batch, or a pair of the batch and a dict.
        """
        data, draw = self._next(self._size(batch_size), include_info is not False)
        return (data, {"index": torch.from_numpy(draw.index), **draw.info}) if return_info else data

    def _next(self, size: int, include_info: bool = True) -> tuple[Any, Draw]:
        """Return the next batch and its draw."""
        if size == self._batch_size and include_info:
            return self._prefetcher.next(lambda: self._draw(size))
        draw = self._draw(size)
        return self._fetch(draw, include_info), draw

    def _size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return parse_batch_size(batch_size)
        if self._batch_size is None:
            raise SamplingError("batch_size not specified: pass batch_size to sample(), or to the replay")
        return self._batch_size

    def _draw(self, size: int) -> Draw:
        with self._lock:
            if not len(self._storage):
                raise SamplingError("Cannot sample from an empty storage: add some samples first")
            return self._drawer.draw(self._storage, size)

    def _fetch(self, draw: Draw, include_info: bool = True) -> Any:
        with self._lock:
            data: Any = self._storage.get(draw.index)
        if include_info:
            inner = self._storage.inner_batch
            put(data, "index", _with_inner_axes(torch.from_numpy(draw.index), inner))
            for key, value in draw.info.items():
                put(data, key, _with_inner_axes(value, inner))
        if self._collate_fn is not None:
            data = self._collate_fn(data)
        if len(self._transforms):
            data = self._transforms.on_read(data)
        return data.pin_memory() if self._pins_memory else data

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches of the default size: for ever, or to the end of the epoch if the sampler has epochs."""
        if self._batch_size is None:
            raise SamplingError(
                "Cannot iterate over the replay buffer. Batch_size was not specified: pass batch_size to the replay"
            )
        size, is_last = self._batch_size, False
        self._drawer.begin()
        while not is_last:
            data, draw = self._next(size)
            yield data
            is_last = draw.is_last

    def next(self) -> Any:
        """Return the next batch of an iteration that continues from call to call; None at its end, then it restarts."""
        if self._iterator is None:
            self._iterator = iter(self)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, data: TensorDictBase) -> int:
        """Add one sample and return its index.

        Raises
        ------
        ImmutableDatasetError
            If the replay is of a recorded dataset.
        TypeError, ValueError
            If the data is no TensorDict, or does not fit the present samples.
        """
        self._writer.check(self._storage)
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"{type(data).__name__}, add wants a TensorDict")
        return int(self._write(data.unsqueeze(0), update_priority=True)[0])

    def extend(
        self, tensordicts: TensorDictBase | list[TensorDictBase], *, update_priority: bool | None = None
    ) -> torch.Tensor:
        """Add a batch of samples and return their indices.

        Parameters
        ----------
        tensordicts
            A TensorDict with a leading axis for the samples, or a list of TensorDicts, one for each sample.
        update_priority
            Whether the sampler gets the samples' priorities, if they have the entry `priority_key`; True by default.

        Raises
        ------
        ImmutableDatasetError
            If the replay is of a recorded dataset.
        TypeError, ValueError
            If the data is no TensorDict, or does not fit the present samples.
        """
        self._writer.check(self._storage)
        if isinstance(tensordicts, list) and tensordicts and all(isinstance(d, TensorDictBase) for d in tensordicts):
            tensordicts = stacked(tensordicts)
        return torch.from_numpy(self._write(tensordicts, update_priority=update_priority is not False))

    def _write(self, data: TensorDictBase, *, update_priority: bool) -> np.ndarray:
        if not isinstance(data, TensorDictBase) or not data.batch_dims:
            raise TypeError(f"{type(data).__name__}, extend wants a TensorDict with a leading axis for the samples")
        with self._lock:
            data = self._transforms.on_write(data)
            inner = tuple(data.batch_size[1:])
            if len(self._storage) and inner != self._storage.inner_batch:
                raise ValueError(
                    f"samples with inner axes {inner}, the present samples have {self._storage.inner_batch}: "
                    f"add() takes one sample, extend() a batch of samples"
                )
            if not len(data):
                return np.zeros(0, np.int64)
            index = self._writer.write(self._storage, data, len(data))
            newest = index[-len(self._storage) :] if len(index) > len(self._storage) else index
            self._drawer.wrote(self._storage, newest, is_new=True)
            priority = data.get(self._priority_key, None) if update_priority else None
            if priority is not None:
                self.update_priority(newest, priority[-len(newest) :])
            return index

    def empty(self, empty_write_count: bool = True) -> None:
        """Drop all samples; the next sample goes to index 0.

        Raises
        ------
        ImmutableDatasetError
            The replay is of a recorded dataset.
        """
        with self._lock:
            if isinstance(self._writer, ImmutableDatasetWriter):
                raise ImmutableDatasetError("this is a recorded dataset: delete() deletes its converted copy")
            self._storage.clear()
            self._writer.empty(empty_write_count)
            self._drawer.emptied()
            self._prefetcher.clear()

    def update_priority(self, index: Any, priority: Any) -> None:
        """Set the priorities of some samples.

        Parameters
        ----------
        index
            The indices of the samples, such as `info["index"]` of a batch.
        priority
            One priority for each sample, or one for all.
        """
        self._set_priority(index, None, priority)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Set the priorities of a batch's samples from its entry `priority_key`.

        A sample with inner axes, such as a trajectory, gets the highest of its priorities, or the result of the
        sampler's `reduction`.
        """
        first = (slice(None), *(0,) * (data.batch_dims - 1))
        numbers = data.get("number", None)
        numbers = None if numbers is None else numbers[first]
        self._set_priority(data.get("index")[first], numbers, data.get(self._priority_key))

    def _set_priority(self, index: Any, numbers: Any, priority: Any) -> None:
        with self._lock:
            indices = np.atleast_1d(self._index(index))
            if isinstance(priority, torch.Tensor):
                priority = self._reduced(priority.detach().cpu(), len(indices)).numpy()
            self._drawer.update_priority(self._storage, indices, numbers, priority)

    def _reduced(self, priority: torch.Tensor, count: int) -> torch.Tensor:
        """Reduce the priorities of samples with inner axes to one for each sample."""
        if priority.numel() in (1, count) or not self._storage.inner_batch:
            return priority.reshape(-1)
        reduction = getattr(self.sampler, "reduction", "max")
        reduced = getattr(torch, reduction)(priority.reshape(count, -1), dim=1)
        return reduced if isinstance(reduced, torch.Tensor) else reduced.values

    # -- storage, sampler, writer and transforms ---------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """The default number of samples of `sample()`; None if each call must pass it."""
        return self._batch_size

    @property
    def storage(self) -> SampleStorage:
        """The storage of the samples."""
        return self._storage

    @property
    def sampler(self) -> Any:
        """The sampler that draws the samples."""
        return self._drawer.sampler

    @property
    def writer(self) -> Writer:
        """The writer that `add` and `extend` go through."""
        return self._writer

    @property
    def transform(self) -> TransformChain:
        """The transforms that samples pass through, in order."""
        return self._transforms

    @property
    def priority_key(self) -> str:
        """The entry of samples that holds their priority."""
        return self._priority_key

    @property
    def initialized(self) -> bool:
        """Whether the storage has ever had samples."""
        return bool(self._storage.entries())

    @property
    def write_count(self) -> int:
        """The number of samples written through `add` and `extend`."""
        return self._writer.write_count

    def set_sampler(self, sampler: Any) -> Any:
        """Replace the sampler, and return the previous one."""
        with self._lock:
            previous, self._drawer = self._drawer, drawer(sampler)
            self._prefetcher.clear()
            self._tell_sampler()
            return previous.sampler

    def set_storage(self, storage: Any, collate_fn: Callable[[Any], Any] | None = None) -> SampleStorage:
        """Replace the storage.

        If the writer cannot write to the new storage, it is replaced by the default writer.

        Parameters
        ----------
        storage
            As for the constructor.
        collate_fn
            As for the constructor.

        Returns
        -------
        SampleStorage
            The previous storage.
        """
        with self._lock:
            previous, self._storage = self._storage, _as_storage(storage)
            if isinstance(self._writer, ImmutableDatasetWriter) is self._storage.is_mutable:
                self._writer = _default_writer(self._storage)
            self._collate_fn = collate_fn
            self._prefetcher.clear()
            self._drawer.emptied()
            self._tell_sampler()
            return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Replace the writer, and return the previous one."""
        with self._lock:
            previous, self._writer = self._writer, check_writer(writer_of_ours(writer), self._storage)
            return previous

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform at the end.

        Parameters
        ----------
        transform
            A function of a TensorDict; its method `inv`, if present, is its inverse.
        invert
            Whether the transform runs on writing and its inverse on reading, instead of the reverse.

        Returns
        -------
        ExperienceReplay
            This replay.
        """
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Insert a transform before the transform at `index`.

        Parameters
        ----------
        index
            The position in the chain of transforms.
        transform, invert
            As for `append_transform`.

        Returns
        -------
        ExperienceReplay
            This replay.
        """
        with self._lock:
            self._transforms.insert(index, transform, invert=invert)
            self._prefetcher.clear()
        return self

    # -- saving ----------------------------------------------------------------------------------------------

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Register a function that transforms all samples when the replay is saved.

        The function takes a TensorDict and returns another, with any entries and axes. Hooks are not saved: a replay
        that loads the dump registers a load hook that inverts the save hook, else it loads the transformed samples.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Register a function that transforms all samples when a replay is loaded; see `register_save_hook`."""
        self._load_hooks.append(hook)

    def dumps(self, path: PathLike) -> None:
        """Save samples, sampler, writer and the batches fetched in advance; an older folder is replaced atomically.

        A recorded dataset is saved as a reference, with the entries that were set.
        """
        with self._lock:
            save(Path(path), self._saved_parts(), self._save_hooks)

    def _saved_parts(self) -> SavedParts:
        return SavedParts(self._storage, self._drawer, self._writer, self._prefetcher)

    def loads(self, path: PathLike) -> None:
        """Load a folder of `dumps`, of a replay with the same kinds of storage, sampler and writer."""
        with self._lock:
            load(Path(path), self._saved_parts(), self._load_hooks)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the replay's state as nested dicts of plain values, arrays and tensors.

        The state contains the samples, or for a recorded dataset a reference and the entries that were set; the states
        of the sampler, the writer and the transforms; and the batches fetched in advance.
        """
        with self._lock:
            return {
                "storage": self._storage.state_dict(),
                "sampler": self._drawer.state_dict(),
                "writer": self._writer.state_dict(),
                "transforms": self._transforms.state_dicts(),
                "pending": self._prefetcher.pending(),
            }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`, of a replay with the same kinds of storage, sampler and writer."""
        with self._lock:
            check_kinds(self._saved_parts(), state_dict["sampler"]["sampler"], state_dict["writer"]["writer"])
            self._storage.load_state_dict(state_dict["storage"])
            self._prefetcher.clear()
            self._drawer.load_state_dict(state_dict["sampler"])
            self._writer.load_state_dict(state_dict["writer"])
            self._transforms.load_state_dicts(state_dict["transforms"])
            self._prefetcher.restore(state_dict["pending"])

    def dump(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `dumps`."""
        self.dumps(*args, **kwargs)

    def load(self, *args: Any, **kwargs: Any) -> None:
        """Alias for `loads`."""
        self.loads(*args, **kwargs)

    # -- derived storages and remote replays -----------------------------------------------------------------

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

        TorchRL's `ReplayBuffer(storage=...)` takes the storage, too. Other processes open it with
        `TensorDictStorage.open(dest)`.

        Parameters
        ----------
        fn
            A function that takes samples as a TensorDict with a leading axis (one sample if `chunksize` is 0), and
            returns the same number of samples, with any keys, shapes and dtypes.
        dim
            The axis of the samples, which is 0.
        num_workers
            The number of processes; without it, or a `pool`, this process calls the function.
        chunksize
            The number of samples in a chunk; by default a chunk takes a few megabytes.
        num_chunks
            The number of chunks.
        pool
            A `multiprocessing.Pool` that processes the chunks.
        generator
            Seeds PyTorch's random numbers, which are then the same for any number of workers.
        max_tasks_per_child
            The number of chunks after which a process is replaced.
        worker_threads
            The number of PyTorch threads in a process.
        index_with_generator
            Makes no difference: chunks are read on demand.
        pbar
            Whether a progress bar is shown.
        mp_start_method
            The start method of processes; "spawn" by default.
        num_frames
            The number of samples to use, from the first on; all by default.
        dest
            The new folder.
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
            raise ValueError(f"dim is {dim}, it must be 0, the axis of the samples")
        return preprocess(self._storage, fn, Path(dest), num_frames, plan)

    @classmethod
    def as_remote(cls, remote_config: dict[str, Any] | None = None) -> Any:
        """Make a class for replays in Ray actors, with the arguments of this class; its instances are proxies.

        A proxy has the methods of the replay, and can be passed to other processes of the Ray cluster.

        Parameters
        ----------
        remote_config
            Options of the actor, such as `num_cpus`, `name` or `max_restarts`.

        Returns
        -------
        RemoteClass
            Called with the arguments of this class, it returns a `RemoteReplay`.
        """
        from ..integrations.ray import remote_class

        return remote_class(cls, remote_config)

    def close(self) -> None:
        """Stop prefetching and close the storage."""
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


# The attributes made by `_start`, and the attributes that may contain lambdas, which pickle cannot save.
_OF_THIS_PROCESS = ("_lock", "_prefetcher", "_iterator")
_FUNCTIONS = ("_collate_fn", "_transforms", "_save_hooks", "_load_hooks")


def _as_storage(storage: Any) -> SampleStorage:
    if storage is None or (isinstance(storage, int) and not isinstance(storage, bool)):
        return TensorDictStorage(storage)
    if isinstance(storage, SampleStorage):
        return storage
    if isinstance(storage, BatchBase):
        return BatchStorage(storage)
    if is_torchrl_storage(storage):
        return TorchRLStorage(storage)
    if callable(storage):
        result = storage()
        return BatchStorage(result, is_owned=True) if isinstance(result, BatchBase) else _as_storage(result)
    raise TypeError(f"storage is {type(storage).__name__}: wanted a TensorDictStorage, a batch or a number of samples")


def _default_writer(storage: SampleStorage) -> Writer:
    return RoundRobinWriter() if storage.is_mutable else ImmutableDatasetWriter()


def _with_inner_axes(value: torch.Tensor, inner: tuple[int, ...]) -> torch.Tensor:
    """Expand one value for each sample along the inner axes of samples."""
    if not inner or value.ndim > len(inner):
        return value
    return value.reshape(len(value), *(1,) * len(inner)).expand(len(value), *inner)


# -- forking -----------------------------------------------------------------------------------------------

# A lock that another thread holds during a fork would stay locked in the child for ever.
_held: list[threading.RLock] = []


def _before_fork() -> None:
    _registry.acquire()
    _held[:] = [replay._lock for replay in _replays]
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _registry.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
