"""Samples as PyTorch tensors, one per leaf, on any device or in a mapped file. Importing this module imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.backends.pytorch import SIGNED_OF_UNSIGNED, PyTorchComputeBackend, torch
from unienv_interface.space import Space
from unienv_interface.space.row_layout import RowLayout, RowLeaf
from unienv_interface.space.row_structure import builder, collector, structure_finding
from unienv_interface.space.spaces import ArraySpace
from unienv_interface.space.spaces.array import array_mismatch

from ..base.files import check_memory, replacing
from ..base.index import resolve_index
from ..base.nested import nested_item
from ..base.row_storage import RowStorage
from ._column_storage import columns_from_raw, is_increasing, last_of_each
from ._column_view import ColumnView
from ._options import checks_options
from ._tensor_file import TensorFile, load_pickled, save_pickled, write_tensors
from .registry import register_storage

__all__ = ["PytorchTensorStorage"]

_PICKLED = ".pt"
PathLike = str | os.PathLike[str]


@register_storage("pytorch")
class PytorchTensorStorage(RowStorage):
    """Samples as tensors, one per leaf of a space on PyTorch: where the space's device is, or in a mapped file.

    The capacity is fixed. With `is_memmap` (on the CPU, with a `cache_path`) the tensors are a file. Otherwise they are
    in the memory of the device, and with a `cache_path` all that is written goes to a file too. Either way it survives
    a kill, and other processes see it if they map the file.

    The file has the raw tensor of each leaf, one after the other from whole pages on; of a space that is one array it
    is that tensor of shape (capacity, *shape). Nothing tells whether values were damaged on disk: `verify` finds
    nothing. A path that ends in ".pt" has what `torch.save` writes, when the storage is flushed, dumped or closed; it
    is loaded as data only.

    Examples
    --------
    >>> space = transition_space(env).to("torch")
    >>> buffer = ReplayBuffer.create("pytorch", space, capacity=100_000, is_memmap=False)  # on the device of the space
    """

    single_file_ext = ".memmap"
    has_column_access = True

    def __init__(
        self,
        single_instance_space: Space,
        data: Any,
        mutable: bool = True,
        *,
        path: Path | None = None,
        file: TensorFile | None = None,
    ) -> None:
        """A storage over tensors of the caller's.

        Parameters
        ----------
        single_instance_space
            The space of one sample, on PyTorch.
        data
            A batch of the space, of as many samples as the capacity.
        mutable
            Whether samples can be written.
        path
            The path of the storage; None in memory.
        file
            The file that the tensors lie in, or that all that is written goes to as well.

        Raises
        ------
        ValueError
            A tensor has another shape or dtype than the space wants.
        """
        super().__init__(single_instance_space)
        self.layout = _array_layout(single_instance_space)
        self.data, self.is_mutable, self.cache_filename, self._file = data, mutable, path, file
        self._hold()
        self.capacity = len(self._tensors[0])
        for leaf, tensor in zip(self.layout.leaves, self._tensors, strict=True):
            _check(leaf, tensor, (self.capacity,))
            if tensor.dtype != leaf.space.dtype:
                raise ValueError(f"{leaf.name}: a tensor of {tensor.dtype}, the space wants {leaf.space}")
        self._changed = False
        is_shared = all(tensor.device.type == "cpu" and tensor.is_shared() for tensor in self._tensors)
        self.is_multiprocessing_safe = self._is_mapped or is_shared
        self.survives_kill = file is not None and file.path is not None
        self.has_raw_rows = file is not None

    def _hold(self) -> None:
        """Find the tensors in `data`, and those of a file that has a copy of them."""
        space = self.single_instance_space
        self._collect, self._build = collector(space), builder(space)
        self._tensors: list[torch.Tensor] = []
        self._collect(self.data, self._tensors)
        self._is_mapped = self._file is not None and all(
            mine is mapped for mine, mapped in zip(self._tensors, self._file.tensors, strict=True)
        )
        self._copies = [] if self._file is None or self._is_mapped else [self._file.tensors]
        self._columns: dict[tuple[Any, ...], TensorColumn] = {}

    @property
    def is_memmap(self) -> bool:
        """Whether the tensors are a file."""
        return self._is_mapped and self.survives_kill

    # -- making ----------------------------------------------------------------------------------------------

    @classmethod
    @checks_options
    def create(  # type: ignore[override]
        cls,
        single_instance_space: Space,
        *,
        capacity: int | None,
        is_memmap: bool = True,
        cache_path: PathLike | None = None,
        multiprocessing: bool = False,
        memmap_existok: bool = False,
    ) -> PytorchTensorStorage:
        """Create new tensors of zeros.

        Parameters
        ----------
        single_instance_space
            The space of one sample, on PyTorch; the tensors are on its device.
        capacity
            How many samples; required.
        is_memmap
            The tensors are a mapped file, where there is a `cache_path` and the device is the CPU.
        cache_path
            The file; there must be none yet.
        multiprocessing
            Whether several processes write.
        memmap_existok
            Take over a file that is there and has just the size, with what it holds.

        Returns
        -------
        PytorchTensorStorage
            The storage.

        Raises
        ------
        ValueError
            `capacity` is missing or below 1, or an option needs a path or the CPU.
        FileExistsError
            There is something at `cache_path`.
        """
        if capacity is None or capacity < 1:
            raise ValueError(f"capacity is {capacity}: PytorchTensorStorage does not grow, it must be at least 1")
        layout = _array_layout(single_instance_space)
        path = None if cache_path is None else Path(cache_path)
        on_cpu = torch.device(single_instance_space.device or "cpu").type == "cpu"
        if is_memmap and (path is None or not on_cpu):
            what = "a cache_path" if path is None else f"a space on the CPU, not on {single_instance_space.device}"
            raise ValueError(f"is_memmap=True needs {what}; is_memmap=False keeps the tensors in memory")
        if multiprocessing and not on_cpu:
            raise ValueError(f"multiprocessing=True needs a space on the CPU, not on {single_instance_space.device}")
        if path is not None and path.exists() and not (is_memmap and memmap_existok):
            raise FileExistsError(f"{path} is there already: load it, or give another path")
        in_file = path is not None and path.suffix != _PICKLED
        if is_memmap and not in_file:
            raise ValueError(f"{path} is a file of torch.save, which is not mapped: give is_memmap=False")
        if path is not None and path.exists():
            return cls._over(TensorFile.open(layout, capacity, path, writable=True), path, mutable=True)
        if is_memmap or multiprocessing:
            # memory that processes share is a file too, with a name or without
            return cls._over(TensorFile.create(layout, capacity, path if in_file else None), path, mutable=True)
        data = _zeros(layout, capacity)
        file = TensorFile.create(layout, capacity, path) if in_file else None
        storage = cls(single_instance_space, data, path=path, file=file)
        if path is not None and not in_file:
            path.parent.mkdir(parents=True, exist_ok=True)
            storage._save(path)
        return storage

    @classmethod
    def _over(cls, file: TensorFile, path: Path | None, *, mutable: bool) -> PytorchTensorStorage:
        space = file.layout.space
        return cls(space, builder(space)(file.tensors), mutable, path=path, file=file)

    @classmethod
    def load_from(
        cls,
        path: PathLike,
        single_instance_space: Space,
        *,
        is_memmap: bool = True,
        capacity: int | None = None,
        read_only: bool = True,
        multiprocessing: bool = False,
        accept_damaged: bool = False,
        **kwargs: Any,
    ) -> PytorchTensorStorage:
        """Load the storage in a file.

        Parameters
        ----------
        path, single_instance_space, read_only, multiprocessing
            As for every storage.
        is_memmap
            Map the file; it is read into memory without, if it ends in ".pt", or if the device is another.
        capacity
            How many samples; None for as many as fit the file of a single tensor.
        accept_damaged
            Map a file that was cut, to read the samples that are still whole.
        **kwargs
            Arguments of other storages; ignored.
        """
        path, layout = Path(path), _array_layout(single_instance_space)
        device = torch.device(single_instance_space.device or "cpu")
        if path.suffix == _PICKLED:
            tensors = load_pickled(path, layout, capacity)
            return cls(single_instance_space, builder(single_instance_space)(tensors), not read_only, path=path)
        if accept_damaged and read_only and capacity is not None and device.type == "cpu":
            return cls._over(TensorFile.open_rest(layout, capacity, path), path, mutable=False)
        file = TensorFile.open(layout, capacity, path, writable=not read_only)
        if device.type == "cpu" and (is_memmap or multiprocessing):
            return cls._over(file, path, mutable=not read_only)
        data = builder(single_instance_space)([tensor.to(device, copy=True) for tensor in file.tensors])
        if not read_only:
            return cls(single_instance_space, data, path=path, file=file)
        file.close()
        return cls(single_instance_space, data, False, path=path)

    def __getstate__(self) -> dict[str, Any]:
        if self._copies:
            raise TypeError(f"{self.cache_filename} is written by this process: map it in the other one")
        left_out: dict[str, Any] = {"_tensors": [], "_columns": {}, "_collect": None, "_build": None}
        return {**self.__dict__, **left_out, **({"data": None} if self._is_mapped else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._is_mapped and self._file is not None:
            self.data = builder(self.single_instance_space)(self._file.tensors)
        self._hold()

    # -- the verbs -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.capacity or 0

    def get(self, index: Any) -> Any:
        return self.gather(resolve_index(self.backend, index, len(self)), len(self))

    def gather(self, slots: Any, length: int) -> Any:
        return self._build(_take(self._tensors, slots % length))

    def set(self, index: Any, value: Any) -> None:
        self._check_mutable()
        slots = resolve_index(self.backend, index, len(self))
        encoded = self.encode(value, None if isinstance(slots, int) else len(slots))
        if isinstance(slots, int):
            self.write(slots, encoded, slots)
        else:
            self._put(slots, encoded)

    def _put(self, slots: np.ndarray, values: list[torch.Tensor]) -> None:
        self._changed = True
        if not is_increasing(slots):
            slots, kept = last_of_each(slots)  # PyTorch does not say which of duplicates stays
            values = _take(values, kept)
        index = torch.from_numpy(slots.copy())
        for tensors in (self._tensors, *self._copies):
            for tensor, value in zip(tensors, values, strict=True):
                _bits(tensor).index_copy_(0, index.to(tensor.device), _bits(value.to(tensor.device)))

    def _check_mutable(self) -> None:
        if not self.is_mutable:
            raise PermissionError(f"{self.cache_filename} was opened read-only: open it with read_only=False to write")

    # -- how a replay buffer writes --------------------------------------------------------------------------

    def encode(self, value: Any, count: int | None) -> list[torch.Tensor]:
        lead, leaves = () if count is None else (count,), self.layout.leaves
        values: list[Any] = []
        try:
            self._collect(value, values)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ValueError(structure_finding(self.single_instance_space, value, "") or str(error)) from None
        return [
            _placed(leaf, value, lead, like) for leaf, value, like in zip(leaves, values, self._tensors, strict=True)
        ]

    def part(self, encoded: list[torch.Tensor], count: int, start: int, stop: int) -> list[torch.Tensor]:
        return [value[start:stop] for value in encoded]

    def write(self, slots: int | slice, encoded: list[torch.Tensor], number: int) -> None:
        self._changed = True
        for tensors in (self._tensors, *self._copies):
            for tensor, value in zip(tensors, encoded, strict=True):
                tensor[slots].copy_(value)

    @property
    def row_nbytes(self) -> int:
        return sum(leaf.codec.dtype.itemsize for leaf in self.layout.leaves)

    def raw_rows(self, slots: np.ndarray) -> Any:
        if not self.has_raw_rows:
            return super().raw_rows(slots)
        return _to_bytes(_take(self._tensors, slots % len(self)))

    def encoded_as_raw_rows(self, encoded: list[torch.Tensor], count: int | None) -> bytes:
        return _to_bytes(encoded)

    def write_raw_rows(self, slots: np.ndarray, raw: Any, numbers: np.ndarray) -> None:
        if not self.has_raw_rows:
            super().write_raw_rows(slots, raw, numbers)
            return
        columns = zip(self.layout.leaves, columns_from_raw(self.layout, raw, len(slots)), strict=True)
        self._put(
            slots,
            [PyTorchComputeBackend.from_raw(column, leaf.space.dtype_name) for leaf, column in columns],  # type: ignore[attr-defined]
        )

    # -- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.is_mutable:
            return
        if self.survives_kill and self._file is not None:
            self._file.sync()
        elif self.cache_filename is not None and self._changed:
            self._save(Path(self.cache_filename))

    def dumps(self, path: PathLike) -> None:
        own = self.cache_filename
        if own is not None and os.path.exists(path) and os.path.samefile(path, own):
            self.flush()
        elif os.path.exists(path):
            raise FileExistsError(f"{path} is there already: give another path")
        else:
            self._save(Path(path))

    def _save(self, path: Path) -> None:
        with replacing(path) as file:
            if path.suffix == _PICKLED:
                save_pickled(file, self._tensors, self.layout.leaves)
            else:
                write_tensors(file, self._tensors, self.layout.leaves, len(self))
        self._changed = False

    @property
    def nbytes(self) -> int | None:
        return len(self) * self.row_nbytes

    def get_column(self, nested_keys: Sequence[Any]) -> TensorColumn:
        keys = tuple(nested_keys)
        if keys not in self._columns:
            self._columns[keys] = TensorColumn(self, keys)
        return self._columns[keys]

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()


class TensorColumn(ColumnView):
    """One field of the samples in tensors: only its own are read."""

    def __init__(self, storage: PytorchTensorStorage, keys: tuple[Any, ...]) -> None:
        super().__init__(nested_item(storage.single_instance_space, keys))
        self.capacity = storage.capacity
        leaves = zip(storage.layout.leaves, storage._tensors, strict=True)
        self._tensors = [tensor for leaf, tensor in leaves if leaf.path[: len(keys)] == keys]
        self._build: Callable[[Sequence[Any]], Any] = builder(self.single_instance_space)

    def __len__(self) -> int:
        return self.capacity or 0

    def gather(self, slots: Any, length: int) -> Any:
        return self._build(_take(self._tensors, slots % length))


def _array_layout(space: Space) -> RowLayout:
    """The layout of a space of arrays on PyTorch; a ValueError if it is another."""
    if space.backend is not PyTorchComputeBackend:
        raise ValueError(
            f"PytorchTensorStorage keeps samples of a space on PyTorch, not on {space.backend}: put it into a "
            f"ToBackendOrDeviceStorage"
        )
    layout = RowLayout(space)
    for leaf in layout.leaves:
        if not isinstance(leaf.space, ArraySpace):
            raise ValueError(
                f"{leaf.name}: PytorchTensorStorage keeps arrays, not {leaf.space}; PackedStorage keeps it"
            )
    if not layout.leaves:
        raise ValueError(f"{space} has no leaves, and so no tensors")
    return layout


def _zeros(layout: RowLayout, capacity: int) -> Any:
    space = layout.space
    if torch.device(space.device or "cpu").type == "cpu":
        check_memory(capacity * layout.nbytes, f"{capacity} samples of {layout.nbytes} bytes")
    leaves: list[Any] = [leaf.space for leaf in layout.leaves]
    return builder(space)(
        [torch.zeros((capacity, *leaf.shape), dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
    )


def _take(tensors: Sequence[torch.Tensor], slots: Any) -> list[torch.Tensor]:
    """The samples of one slot, or of an array of slots, in memory of their own."""
    if isinstance(slots, int):
        return [tensor[slots].clone() for tensor in tensors]
    taken, index = [], torch.from_numpy(slots)
    for tensor in tensors:
        if index.device != tensor.device:
            index = index.to(tensor.device)
        taken.append(_bits(tensor).index_select(0, index).view(tensor.dtype))
    return taken


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as a dtype that PyTorch can index; it cannot all of the unsigned ones."""
    signed = SIGNED_OF_UNSIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def _check(leaf: RowLeaf, value: Any, lead: tuple[int, ...]) -> None:
    name = leaf.space.dtype_name  # type: ignore[attr-defined]
    finding = array_mismatch(PyTorchComputeBackend, name, value, "/".join(map(str, leaf.path)), lead + leaf.codec.shape)
    if finding is not None:
        raise ValueError(finding)


def _placed(leaf: RowLeaf, value: Any, lead: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """A value of a leaf where its tensor is, once it is known to fit."""
    if not isinstance(value, torch.Tensor):
        leaf.codec.encode(value, lead, "/".join(map(str, leaf.path)))  # a Python number may do
        value = torch.tensor(value, dtype=like.dtype)
    _check(leaf, value, lead)
    return value.detach().to(like.device, like.dtype)


def _to_bytes(tensors: Sequence[torch.Tensor]) -> bytes:
    return b"".join(PyTorchComputeBackend.to_raw(tensor.contiguous()).tobytes() for tensor in tensors)
