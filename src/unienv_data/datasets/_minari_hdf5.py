"""Minari's HDF5 files, read with h5py.

Files are not trusted. References out of a file (external files, links, virtual datasets), and datasets that claim to
be far larger than their stored bytes, are refused before they are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError
from ._minari_source import FLAGS, SAMPLE_NAMES, Episode, Leaf, Path_, is_image

# The largest compression ratio of real data; a higher ratio is an attempt to fill the memory.
_RATIO, _HARMLESS_BYTES = 200, 64 * 2**20
_LEVELS = 32


class Hdf5Leaf:
    """A column of an episode in a file."""

    def __init__(self, name: str, dataset: Any, is_image: bool) -> None:
        self._name, self._id = name, dataset
        h5py = need("h5py", extra="minari")
        shape, dtype = dataset.shape, dataset.dtype
        if not shape:
            raise StorageCorruptedError(f"{name}: a scalar, wanted one value for every step")
        self.length, self.shape, self.dtype = shape[0], shape[1:], dtype
        if dtype.kind in "biufc":
            self.kind = "jpeg" if is_image and dtype == np.uint8 and len(shape) == 2 else "array"
            self.dtype = dtype.newbyteorder("=")
        elif len(shape) == 1 and h5py.check_string_dtype(dtype) is not None:
            self.kind = "text"
        elif len(shape) == 1 and is_image and h5py.check_vlen_dtype(dtype) == np.uint8:
            self.kind = "jpeg"
        else:
            raise StorageCorruptedError(f"{name}: {dtype} of shape {shape}, wanted values of equal size")

    def read(self, start: int, stop: int) -> Any:
        h5py = need("h5py", extra="minari")
        try:
            if self.kind != "array":
                return h5py.Dataset(self._id)[start:stop]
            values = np.empty((stop - start, *self.shape), self.dtype)
            hyperslab = self._id.get_space()
            hyperslab.select_hyperslab((start, *(0,) * len(self.shape)), values.shape)
            self._id.read(h5py.h5s.create_simple(values.shape), hyperslab, values)
            return values
        except (OSError, RuntimeError, KeyError) as error:
            raise StorageCorruptedError(f"{self._name} cannot be read, {error}") from error


class Hdf5Source:
    """A dataset in one HDF5 file.

    Files have many small datasets, and h5py's high-level objects cost more time than reading one. So this class uses
    h5py's low-level interface, the functions of the HDF5 library.
    """

    def __init__(self, path: Path, metadata: dict[str, Any], observation_space: Any, action_space: Any) -> None:
        self.metadata, self.observation_space, self.action_space = metadata, observation_space, action_space
        self._path, self._h5py = path, need("h5py", extra="minari")
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing, the metadata beside it names the format HDF5")
        try:
            self._file = self._h5py.File(path, "r")
        except OSError as error:
            raise StorageCorruptedError(f"{path} cannot be opened, it is damaged or incomplete: {error}") from error
        self._is_checked = False  # set when all episodes were read once

    def __len__(self) -> int:
        return int(self.metadata.get("total_episodes", len(self._file)))

    def episodes(self) -> Iterator[Episode]:
        spaces = {b"observations": self.observation_space, b"actions": self.action_space}
        root = self._h5py.h5g.open(self._file.id, b"/")
        for number in range(len(self)):
            name = f"{self._path}: episode_{number}"
            try:
                yield self._episode(root, number, name, spaces)
            except (OSError, RuntimeError, KeyError) as error:
                raise StorageCorruptedError(f"{name} cannot be read, {error}") from error
        self._is_checked = True

    def _episode(self, root: Any, number: int, name: str, spaces: dict[bytes, Any]) -> Episode:
        key = f"episode_{number}".encode()
        if key not in root:
            raise StorageCorruptedError(f"{name} is missing, the metadata counts {len(self)} episodes")
        group = self._checked(root, key, name)
        if not isinstance(group, self._h5py.h5g.GroupID):
            raise StorageCorruptedError(f"{name} is no group")
        leaves: dict[Path_, Leaf] = {}
        for child in group:
            text = child.decode()
            self._collect(group, child, f"{name}/{text}", (SAMPLE_NAMES.get(text, text),), spaces.get(child), leaves)
        for flag in FLAGS:
            if (flag,) not in leaves:
                raise StorageCorruptedError(f"{name}: {flag} are missing")
        flags = [leaves.pop((flag,)) for flag in FLAGS]
        return Episode(name, number, leaves, flags)

    def _collect(self, group: Any, key: bytes, name: str, path: Path_, space: Any, leaves: dict[Path_, Leaf]) -> None:
        """Collect the columns under a key of a group; a tuple is a group with the keys `_index_0`, `_index_1`, ..."""
        item = self._checked(group, key, name)
        if isinstance(item, self._h5py.h5d.DatasetID):
            leaves[path] = Hdf5Leaf(name, item, is_image(space))
            return
        if len(path) > _LEVELS:
            raise StorageCorruptedError(f"{name}: more than {_LEVELS} nested groups")
        children = getattr(space, "spaces", {})
        if isinstance(children, tuple):
            children = {f"_index_{index}": child for index, child in enumerate(children)}
            for child in item:
                text = child.decode()
                below = (*path, text.removeprefix("_index_"))
                self._collect(item, child, f"{name}/{text}", below, children.get(text), leaves)
            return
        for child in item:
            text = child.decode()
            self._collect(item, child, f"{name}/{text}", (*path, text), children.get(text), leaves)

    def _checked(self, group: Any, key: bytes, name: str) -> Any:
        """Open a group or a dataset, and check once that it is in this file."""
        h5py = self._h5py
        if self._is_checked:
            return h5py.h5o.open(group, key)
        if group.links.get_info(key).type != h5py.h5l.TYPE_HARD:
            raise StorageCorruptedError(f"{name}: a soft or external link, which is not followed")
        item = h5py.h5o.open(group, key)
        if isinstance(item, h5py.h5d.DatasetID):
            plan = item.get_create_plist()
            if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
                raise StorageCorruptedError(f"{name}: its data lie in another file, which is not read")
            stored, claimed = item.get_storage_size(), math.prod(item.shape) * item.dtype.itemsize
            if claimed and not stored:
                raise StorageCorruptedError(f"{name}: shape {item.shape}, but no entry was written")
            if claimed > max(_HARMLESS_BYTES, _RATIO * stored):
                raise StorageCorruptedError(f"{name}: {claimed} bytes, but the file stores only {stored} of them")
        elif not isinstance(item, h5py.h5g.GroupID):
            raise StorageCorruptedError(f"{name}: neither a group nor a dataset")
        return item

    def close(self) -> None:
        self._file.close()
