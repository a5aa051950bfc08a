"""Plain values with arrays among them, in a folder: JSON and one npz file. Nothing in it is run when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..base.files import read_json, write_json
from ..base.storage import StorageCorruptedError

_JSON, _ARRAYS = "state.json", "arrays.npz"
_ARRAY = "__array__"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a dict of numbers, texts, lists, dicts and arrays to a new folder."""
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = f"array{len(arrays)}"
            arrays[name] = value
            return {_ARRAY: name}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    folder.mkdir()
    content = plain(state)
    np.savez(folder / _ARRAYS, **arrays)  # type: ignore[arg-type]
    write_json(folder / _JSON, content)


def read_state(folder: Path) -> dict[str, Any]:
    """What `write_state` has written."""
    content = read_json(folder / _JSON, checksum=True)
    try:
        with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
            return _with_arrays(content, arrays)
    except (OSError, ValueError, KeyError) as error:
        raise StorageCorruptedError(f"{folder / _ARRAYS}: {error}") from error


def _with_arrays(value: Any, arrays: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    return [_with_arrays(item, arrays) for item in value] if isinstance(value, list) else value
