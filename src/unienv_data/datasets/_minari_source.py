"""The episodes of a Minari dataset as columns, read in chunks, so that an episode need not fit in memory.

HDF5 is read with h5py, Arrow and Parquet with pyarrow. Environments that a dataset names are never made or imported.
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
# The names of an episode's groups in a dataset, and in a sample.
SAMPLE_NAMES = {"observations": "observation", "actions": "action", "infos": "info", "rewards": "reward"}
FLAGS = ("terminations", "truncations")

Path_ = tuple[str, ...]


class Leaf(Protocol):
    """One column of one episode: numbers, texts, or JPEG images."""

    kind: str  # "array", "text" or "jpeg"
    length: int
    shape: tuple[int, ...]  # of one entry
    dtype: np.dtype

    def read(self, start: int, stop: int) -> Any:
        """Read the entries [start, stop): an array, or for texts and images a sequence of bytes."""


class Episode:
    """One episode: the number of its steps, and its columns by their path in a sample."""

    def __init__(self, name: str, number: int, leaves: dict[Path_, Leaf], flags: Sequence[Leaf]) -> None:
        self.name, self.number, self.leaves, self._flags = name, number, leaves, flags
        if ("reward",) not in leaves:
            raise StorageCorruptedError(f"{name}: rewards are missing")
        self.steps = leaves[("reward",)].length
        for flag, leaf in zip(FLAGS, flags, strict=True):
            self.check_length(flag, leaf, self.steps)

    def check_length(self, column: str, leaf: Leaf, *allowed: int) -> None:
        """Raise a StorageCorruptedError unless a column has an allowed length."""
        if leaf.length not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise StorageCorruptedError(
                f"{self.name}: {column} has {leaf.length} entries, with {self.steps} rewards it must have {wanted}"
            )

    def flags(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each of the steps [start, stop) was terminated, and whether truncated."""
        terminated, truncated = (np.asarray(leaf.read(start, stop), bool).reshape(-1) for leaf in self._flags)
        return terminated, truncated


def decoded_image(name: str, data: Any) -> np.ndarray:
    """Decode a JPEG image."""
    image = need("PIL.Image", extra="minari")
    try:
        return np.array(image.open(io.BytesIO(bytes(data)), formats=["JPEG"]), np.uint8)
    except Exception as error:
        raise StorageCorruptedError(f"{name}: not a JPEG image, {error}") from error


class Source(Protocol):
    """The episodes of a dataset; `episodes` can be called more than once."""

    metadata: dict[str, Any]
    observation_space: Any  # of Gymnasium; None if the metadata has none
    action_space: Any

    def __len__(self) -> int:
        """The number of episodes."""

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes in order."""

    def close(self) -> None:
        """Close all files."""


def open_source(folder: Path) -> Source:
    """Open the dataset in a `data` folder of Minari."""
    metadata = read_metadata(folder)
    spaces = tuple(_space(folder, metadata, key) for key in ("observation_space", "action_space"))
    if metadata.get("data_format", "hdf5") == "hdf5":
        from ._minari_hdf5 import Hdf5Source

        return Hdf5Source(folder / HDF5_FILE, metadata, *spaces)
    if None in spaces:
        raise StorageCorruptedError(f"{folder / METADATA}: no observation_space or no action_space")
    from ._minari_arrow import FORMATS, ArrowSource

    if metadata["data_format"] not in FORMATS:
        known = ", ".join(("hdf5", *FORMATS))
        raise StorageCorruptedError(f"{folder / METADATA}: data_format {metadata['data_format']!r}, known are {known}")
    return ArrowSource(folder, metadata, *spaces)


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata file of a dataset."""
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


def is_image(space: Any) -> bool:
    """Whether Minari stores values of a space as JPEG by default."""
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    return dtype == np.uint8 and shape is not None and len(shape) in (2, 3) and min(shape[:2]) >= 32
