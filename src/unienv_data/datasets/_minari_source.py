"""The episodes of a Minari dataset as columns, read a stretch at a time.

HDF5 is read with h5py, so that an episode need not fit in memory; Minari's Arrow and Parquet formats through Minari,
an episode at a time. What a dataset says about its environment is left alone: nothing it names is built or imported.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unienv_interface.utils.optional import need

from ..base.storage import StorageCorruptedError

METADATA = "metadata.json"
HDF5_FILE = "main_data.hdf5"
# What a dataset calls the parts of an episode, and what they are called in a sample.
PARTS = {"observations": "observation", "actions": "action", "infos": "info", "rewards": "reward"}
FLAGS = ("terminations", "truncations")

Path_ = tuple[str, ...]


class Leaf(Protocol):
    """One column of one episode: numbers, texts, or images that are kept as JPEG files."""

    kind: str  # "array", "text" or "jpeg"
    length: int
    shape: tuple[int, ...]  # of one entry
    dtype: np.dtype

    def read(self, start: int, stop: int) -> Any:
        """The entries [start, stop): an array, or for texts and images a sequence of bytes."""


class Episode:
    """One episode: how many steps it has, and its columns by their path in a sample."""

    def __init__(self, name: str, number: int, leaves: dict[Path_, Leaf], flags: Sequence[Leaf]) -> None:
        self.name, self.number, self.leaves, self._flags = name, number, leaves, flags
        if ("reward",) not in leaves:
            raise StorageCorruptedError(f"{name}: rewards are missing")
        self.steps = leaves[("reward",)].length
        for part, leaf in zip(FLAGS, flags, strict=True):
            self.check_length(part, leaf, self.steps)

    def check_length(self, what: str, leaf: Leaf, *allowed: int) -> None:
        """A StorageCorruptedError unless a column has one of these lengths."""
        if leaf.length not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise StorageCorruptedError(
                f"{self.name}: {what} has {leaf.length} entries, with {self.steps} rewards it must have {wanted}"
            )

    def flags(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Whether each of the steps [start, stop) was terminated, and whether truncated."""
        terminated, truncated = (np.asarray(leaf.read(start, stop), bool).reshape(-1) for leaf in self._flags)
        return terminated, truncated


def decoded_image(name: str, data: Any) -> np.ndarray:
    """The pixels of an image that is kept as a JPEG file."""
    image = need("PIL.Image", extra="minari")
    try:
        return np.array(image.open(io.BytesIO(bytes(data)), formats=["JPEG"]), np.uint8)
    except Exception as error:
        raise StorageCorruptedError(f"{name}: not a JPEG image, {error}") from error


class Source(Protocol):
    """A dataset's episodes; they can be gone through more than once."""

    metadata: dict[str, Any]
    observation_space: Any  # of Gymnasium; None where the dataset does not say
    action_space: Any

    def __len__(self) -> int:
        """The number of episodes."""

    def episodes(self) -> Iterator[Episode]:
        """The episodes in order."""

    def close(self) -> None:
        """Release what was opened."""


def open_source(folder: Path) -> Source:
    """The dataset in a folder, which is the `data` folder of Minari."""
    metadata = read_metadata(folder)
    spaces = tuple(_space(folder, metadata, key) for key in ("observation_space", "action_space"))
    if metadata.get("data_format", "hdf5") == "hdf5":
        from ._minari_hdf5 import Hdf5Source

        return Hdf5Source(folder / HDF5_FILE, metadata, *spaces)
    if None in spaces:
        raise StorageCorruptedError(f"{folder / METADATA}: no observation_space or no action_space")
    return MinariSource(folder, metadata, *spaces)


def read_metadata(folder: Path) -> dict[str, Any]:
    """What the dataset says about itself."""
    path = folder / METADATA
    try:
        metadata = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing: {folder} is not a Minari dataset") from None
    except ValueError as error:
        raise StorageCorruptedError(f"{path}: not JSON, {error}") from error
    if not isinstance(metadata, dict):
        raise StorageCorruptedError(f"{path}: {type(metadata).__name__}, wanted an object")
    return metadata


def _space(folder: Path, metadata: dict[str, Any], key: str) -> Any:
    if key not in metadata:
        return None
    deserialize = need("minari.serialization", extra="minari").deserialize_space
    try:
        return deserialize(metadata[key])
    except Exception as error:
        raise StorageCorruptedError(f"{folder / METADATA}: {key} cannot be read, {error!r}") from error


# -- through Minari ----------------------------------------------------------------------------------------


class MemoryLeaf:
    """A column in memory."""

    shape: tuple[int, ...]

    def __init__(self, name: str, values: Any) -> None:
        array = np.asarray(values)
        self._values: Any = array
        if array.ndim and array.dtype.kind in "biufc":
            self.kind, self.shape, self.dtype = "array", array.shape[1:], array.dtype
        elif array.ndim == 1 and all(isinstance(value, str) for value in array):
            self.kind, self.shape, self.dtype = "text", (), np.dtype("S")
            self._values = [str(value).encode() for value in values]
        else:
            raise StorageCorruptedError(f"{name}: {array.dtype} of shape {array.shape} are no values of equal size")
        self.length = len(array)

    def read(self, start: int, stop: int) -> Any:
        return self._values[start:stop]


class MinariSource:
    """A dataset in any format that Minari reads, one whole episode at a time."""

    def __init__(self, folder: Path, metadata: dict[str, Any], observation_space: Any, action_space: Any) -> None:
        self.metadata, self.observation_space, self.action_space = metadata, observation_space, action_space
        self._folder = folder
        storage = need("minari.dataset.minari_storage", extra="minari").MinariStorage
        self._storage = storage.read(folder)

    def __len__(self) -> int:
        return int(self.metadata.get("total_episodes", 0))

    def episodes(self) -> Iterator[Episode]:
        for number in range(len(self)):
            name = f"{self._folder}: episode {number}"
            try:
                (content,) = self._storage.get_episodes([number])
            except Exception as error:
                raise StorageCorruptedError(f"{name} cannot be read, {error!r}") from error
            leaves: dict[Path_, Leaf] = {}
            for part, key in PARTS.items():
                _collect(name, (key,), content.get(part), leaves)
            yield Episode(name, number, leaves, [MemoryLeaf(f"{name}: {flag}", content[flag]) for flag in FLAGS])

    def close(self) -> None:
        pass


def _collect(name: str, path: Path_, values: Any, leaves: dict[Path_, Leaf]) -> None:
    if values is None:
        return
    if isinstance(values, tuple):
        values = {str(index): value for index, value in enumerate(values)}
    elif isinstance(values, np.ndarray) and values.dtype == object and len(values) and isinstance(values[0], dict):
        values = {key: [value[key] for value in values] for key in values[0]}  # how Minari reads infos in infos
    if isinstance(values, dict):
        for key, value in values.items():
            _collect(name, (*path, str(key)), value, leaves)
        return
    leaves[path] = MemoryLeaf(f"{name}: {'/'.join(path)}", values)
