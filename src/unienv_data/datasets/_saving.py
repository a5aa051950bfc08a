"""A saved experience replay: its samples, and the states of its sampler, writer and prefetcher, in one folder.

Everything but the samples is plain values with arrays among them, kept as JSON and one npz file. Reading a folder runs
nothing that is in it.
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
    """The parts of a replay that are saved; the caller holds the replay's lock."""

    storage: SampleStorage
    drawer: Drawer
    writer: Writer
    prefetcher: Prefetcher


def save(target: Path, parts: SavedParts, hooks: Hooks) -> None:
    """Write a folder in the place of an older one; at any instant one of the two is there, whole."""
    if target.exists() and any(target.iterdir()) and not (target / _STATE).exists():
        raise FileExistsError(f"{target} is there, and not a saved replay: give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir()
        hooks = hooks if len(parts.storage) else ()
        if hooks:
            _dump_hooked(temporary / _STORAGE, parts.storage, hooks)
        state = {
            "format": _FORMAT,
            "format_version": _VERSION,
            "is_hooked": bool(hooks),
            "storage": {} if hooks else parts.storage.dumps(temporary / _STORAGE),
            "sampler": type(parts.drawer.sampler).__name__,
            "writer": parts.writer.state_dict(),
            "pending": parts.prefetcher.pending(),
        }
        parts.drawer.dumps(temporary / _SAMPLER)
        write_state(temporary / _STATE, state)
        sync_folder(temporary)
        replace_folder(temporary, target)


def load(source: Path, parts: SavedParts, hooks: Hooks) -> None:
    """Restore what was saved. If it does not fit the parts, they stay as they were."""
    if not (source / _STATE).exists():
        raise FileNotFoundError(f"{source} is not a saved replay")
    state = read_state(source / _STATE)
    if (state.get("format"), state.get("format_version")) != (_FORMAT, _VERSION):
        stored = f"{state.get('format')!r}, version {state.get('format_version')}"
        raise StorageCorruptedError(f"{source}: {stored}, wanted {_FORMAT!r}, version {_VERSION}")
    check_kinds(parts, state["sampler"], state["writer"]["writer"])
    if state["is_hooked"]:
        _load_hooked(source / _STORAGE, parts.storage, hooks)
    else:
        parts.storage.loads(source / _STORAGE, state["storage"])
        if hooks and len(parts.storage):
            data = _after(hooks, parts.storage.get(np.arange(len(parts.storage))), "load hook")
            parts.storage.replace(data, parts.storage.sample_numbers)
    parts.prefetcher.clear()
    parts.drawer.loads(source / _SAMPLER)
    parts.writer.load_state_dict(state["writer"])
    parts.prefetcher.restore(state["pending"])


def check_kinds(parts: SavedParts, sampler: str, writer: str) -> None:
    """Raise a ValueError unless the sampler and the writer are of the kinds that were saved."""
    for saved, part in ((sampler, parts.drawer.sampler), (writer, parts.writer)):
        if saved != type(part).__name__:
            raise ValueError(f"the state was saved with a {saved}, this replay has a {type(part).__name__}")


# -- hooks -------------------------------------------------------------------------------------------------


def _after(hooks: Hooks, data: Any, kind: str) -> Any:
    for hook in hooks:
        data = hook(data)
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"the {kind} {hook!r} returned {type(data).__name__}, it must return a TensorDict")
    return data


def _dump_hooked(folder: Path, storage: SampleStorage, hooks: Hooks) -> None:
    """Save what the hooks make of all samples, whatever its axes are.

    A hook of TorchRL's, such as `TED2Flat`, is told by two attributes, if it has them, where the next sample would lie
    and whether the storage is full.
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
    """Read all samples; rows of zeros fill the storage up if a hook is told whether it is full, as TorchRL has them."""
    data: TensorDictBase = storage.get(np.arange(len(storage)))
    unused = (storage.capacity or len(data)) - len(data)
    if not unused or not any(hasattr(hook, "is_full") for hook in hooks):
        return data
    return torch.cat([data, torch.zeros_like(data[:1]).expand(unused, *data.batch_size[1:])])


def _settings(data: TensorDictBase) -> dict[str, Any]:
    """Collect what a hook has put beside the tensors: numbers, texts and shapes."""
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
        data = data[: len(numbers)]  # the rest was zeros, see `samples_for`
    try:
        storage.replace(data, numbers=numbers)
    except (ValueError, TypeError, KeyError) as error:
        way_out = "check register_load_hook" if hooks else "undo it with register_load_hook"
        raise ValueError(
            f"{folder.parent}: what its save hook saved does not fit this replay: {error}; {way_out}"
        ) from error


# -- plain values with arrays ------------------------------------------------------------------------------


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
    """Read what `write_state` has written."""
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
