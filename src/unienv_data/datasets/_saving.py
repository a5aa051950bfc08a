"""Saving and loading an experience replay: samples, and the states of sampler, writer and prefetcher, in one folder.

States are plain values and arrays, stored as JSON and one npz file. Loading a folder executes no code from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.files import read_json, remove_leftovers, replace_folder, sync_folder, write_json
from ..base.storage import StorageCorruptedError
from .tensordicts import TensorDictBase, from_buffer, is_non_tensor, to_buffer, torch

if TYPE_CHECKING:
    from ._sampling import Drawer, Prefetcher
    from ._storage import SampleStorage, Writer

_FORMAT, _VERSION = "unienv-replay", 2
_STATE, _STORAGE, _SAMPLER = "state", "storage", "sampler"
_JSON, _ARRAYS = "state.json", "arrays.npz"
_ARRAY = "__array__"

Hooks = Sequence[Callable[[Any], Any]]


class SavedParts(NamedTuple):
    """The objects of a replay that are saved; the caller holds the replay's lock."""

    storage: SampleStorage
    drawer: Drawer
    writer: Writer
    prefetcher: Prefetcher


def save(target: Path, replay: SavedParts, hooks: Hooks) -> None:
    """Write a folder, or replace an older one atomically."""
    if target.exists() and any(target.iterdir()) and not (target / _STATE).exists():
        raise FileExistsError(f"{target} exists and is not a saved replay: give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir()
        hooks = hooks if len(replay.storage) else ()
        if hooks:
            _dump_hooked(temporary / _STORAGE, replay.storage, hooks)
        state = {
            "format": _FORMAT,
            "format_version": _VERSION,
            "is_hooked": bool(hooks),
            "storage": {} if hooks else replay.storage.dumps(temporary / _STORAGE),
            "sampler": type(replay.drawer.sampler).__name__,
            "writer": replay.writer.state_dict(),
            "pending": replay.prefetcher.pending(),
        }
        replay.drawer.dumps(temporary / _SAMPLER)
        write_state(temporary / _STATE, state)
        sync_folder(temporary)
        replace_folder(temporary, target)


def load(source: Path, replay: SavedParts, hooks: Hooks) -> None:
    """Restore a saved replay. If the folder does not fit the replay, the replay does not change."""
    if not (source / _STATE).exists():
        raise FileNotFoundError(f"{source} is not a saved replay")
    state = read_state(source / _STATE)
    if (state.get("format"), state.get("format_version")) != (_FORMAT, _VERSION):
        stored = f"{state.get('format')!r}, version {state.get('format_version')}"
        raise StorageCorruptedError(f"{source}: {stored}, wanted {_FORMAT!r}, version {_VERSION}")
    check_kinds(replay, state["sampler"], state["writer"]["writer"])
    storage = replay.storage
    if state["is_hooked"]:
        _load_hooked(source / _STORAGE, storage, hooks)
    else:
        storage.loads(source / _STORAGE, state["storage"])
        if hooks and len(storage):
            data = _after(hooks, storage.get(np.arange(len(storage))), "load hook")
            storage.replace(data, storage.sample_numbers)
    replay.prefetcher.clear()
    replay.drawer.loads(source / _SAMPLER)
    replay.writer.load_state_dict(state["writer"])
    replay.prefetcher.restore(state["pending"])


def check_kinds(replay: SavedParts, sampler: str, writer: str) -> None:
    """Raise a ValueError unless the sampler and the writer are of the saved classes."""
    for saved, current in ((sampler, replay.drawer.sampler), (writer, replay.writer)):
        if saved != type(current).__name__:
            raise ValueError(f"the state was saved with a {saved}, this replay has a {type(current).__name__}")


# -- hooks -------------------------------------------------------------------------------------------------


def _after(hooks: Hooks, data: Any, kind: str) -> Any:
    for hook in hooks:
        data = hook(data)
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"the {kind} {hook!r} returned {type(data).__name__}, it must return a TensorDict")
    return data


def _dump_hooked(folder: Path, storage: SampleStorage, hooks: Hooks) -> None:
    """Save all samples after the hooks, which may change the axes.

    Hooks of TorchRL, such as `TED2Flat`, have two attributes, which are set: `shift`, the index of the next sample, and
    `is_full`, whether the storage is full.
    """
    is_full, newest = len(storage) == storage.capacity, int(storage.index_of(np.array([len(storage) - 1]))[0])
    for hook in hooks:
        if hasattr(hook, "shift"):
            hook.shift = newest + 1
        if hasattr(hook, "is_full"):
            hook.is_full = is_full
    data = _after(hooks, samples_for(hooks, storage), "save hook")
    description, buffer = to_buffer(data)
    numbers, settings = storage.sample_numbers, _settings(data)
    write_state(
        folder, {**description, "buffer": buffer, "numbers": [numbers.start, numbers.stop], "settings": settings}
    )


def samples_for(hooks: Hooks, storage: SampleStorage) -> TensorDictBase:
    """Read all samples; if a hook has `is_full`, pad with zeros to the capacity, as TorchRL does."""
    data: TensorDictBase = storage.get(np.arange(len(storage)))
    unused = (storage.capacity or len(data)) - len(data)
    if not unused or not any(hasattr(hook, "is_full") for hook in hooks):
        return data
    return torch.cat([data, torch.zeros_like(data[:1]).expand(unused, *data.batch_size[1:])])


def _settings(data: TensorDictBase) -> dict[str, Any]:
    """Collect the non-tensor entries that a hook has added: numbers, strings and shapes."""
    settings: dict[str, Any] = {}
    for key, entry in data.items():
        if not is_non_tensor(entry):
            continue
        value = data.get_non_tensor(key)
        if isinstance(value, tuple) and all(type(size) is int for size in value):
            value = list(value)
        elif not isinstance(value, (bool, int, float, str, type(None))):
            raise TypeError(f"{key}: the save hook returned {type(value).__name__}, wanted a tensor, number or text")
        settings[str(key)] = value
    return settings


def _load_hooked(folder: Path, storage: SampleStorage, hooks: Hooks) -> None:
    state = read_state(folder)
    saved = from_buffer(state, state["buffer"])
    for key, value in state.get("settings", {}).items():
        saved.set_non_tensor(key, torch.Size(value) if isinstance(value, list) else value)
    data, numbers = _after(hooks, saved, "load hook"), range(*state["numbers"])
    if "is_full" in state.get("settings", {}):
        data = data[: len(numbers)]  # without the padding of `samples_for`
    try:
        storage.replace(data, numbers=numbers)
    except (ValueError, TypeError, KeyError) as error:
        way_out = "check register_load_hook" if hooks else "undo it with register_load_hook"
        raise ValueError(
            f"{folder.parent}: the data of its save hook does not fit this replay: {error}; {way_out}"
        ) from error


# -- plain values with arrays ------------------------------------------------------------------------------


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a dict of numbers, strings, lists, dicts and arrays to a new folder."""
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
    """Read a folder of `write_state`."""
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
