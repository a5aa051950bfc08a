"""Column statistics cached in the folder of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..base.common import BatchBase
from ..base.files import replacing

FILE_NAME = "column_stats.json"
_VERSION = 1


class KeptStatistics:
    """The cache of a batch's statistics in its folder, valid as long as the batch has the same fingerprint."""

    def __init__(self, batch: BatchBase, image_frames: int) -> None:
        self._fingerprint = batch.fingerprint()
        folder = getattr(batch, "cache_path", None)
        self._path = None if folder is None or self._fingerprint is None else Path(folder) / FILE_NAME
        self._image_frames = image_frames
        self._columns: dict[str, Any] = {}
        if self._path is not None:
            self._columns = self._load(self._path)

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            header = (content["version"], content["fingerprint"], content["image_frames"])
            columns: dict[str, Any] = content["columns"]
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # the caller computes them again
        return columns if header == (_VERSION, self._fingerprint, self._image_frames) else {}

    def read(self, names: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
        """Return the cached statistics of these columns."""
        kept = {}
        for name in names:
            try:
                figures = {key: _as_array(*figure) for key, figure in self._columns[name].items()}
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
            kept[name] = figures
        return kept

    def write(self, columns: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add these statistics to the cache, if the folder can be written."""
        if self._path is None or all(name in self._columns for name in columns):
            return
        for name, figures in columns.items():
            self._columns[name] = {
                key: [value.dtype.name, list(value.shape), value.reshape(-1).tolist()] for key, value in figures.items()
            }
        content = {
            "version": _VERSION,
            "fingerprint": self._fingerprint,
            "image_frames": self._image_frames,
            "columns": self._columns,
        }
        try:
            with replacing(self._path, durable=False) as file:
                file.write(json.dumps(content).encode())
        except OSError:
            self._path = None  # the folder is read-only


def _as_array(dtype: str, shape: list[int], values: list[Any]) -> np.ndarray:
    return np.array(values, dtype).reshape(shape)
