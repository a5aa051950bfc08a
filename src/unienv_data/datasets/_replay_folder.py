"""A saved experience replay: its samples, and the states of its sampler and writer, in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.files import remove_leftovers, replace_folder, sync_folder
from ..base.storage import StorageCorruptedError
from ._drawing import Drawer
from ._prefetch import Prefetcher
from ._saved_state import read_state, write_state
from ._storage import SampleStorage
from ._tensordict_storage import TensorDictStorage
from ._writers import Writer

_FORMAT, _VERSION = "unienv-replay", 1
_STATE, _STORAGE, _SAMPLER = "state", "storage", "sampler"

Hooks = Sequence[Callable[[Any], Any]]


class SavedParts(NamedTuple):
    """The parts of a replay that are saved; nobody may use them meanwhile."""

    storage: SampleStorage
    drawer: Drawer
    writer: Writer
    prefetcher: Prefetcher


def save(target: Path, parts: SavedParts, hooks: Hooks) -> None:
    """Write a folder, in the place of an older one; at any instant one of them is there, whole."""
    if target.exists() and any(target.iterdir()) and not (target / _STATE).exists():
        raise FileExistsError(f"{target} is there, and not a saved replay: give another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.mkdir()
        state = {
            "format": _FORMAT,
            "format_version": _VERSION,
            "storage": _after_hooks(parts.storage, hooks).dumps(temporary / _STORAGE),
            "sampler": type(parts.drawer.sampler).__name__,
            "writer": parts.writer.state_dict(),
            "pending": parts.prefetcher.pending(),
        }
        parts.drawer.dumps(temporary / _SAMPLER)
        write_state(temporary / _STATE, state)
        sync_folder(temporary)
        replace_folder(temporary, target)


def _after_hooks(storage: SampleStorage, hooks: Hooks) -> SampleStorage:
    """What is to be saved; with hooks, a storage of what they make of all samples."""
    if not hooks:
        return storage
    data: Any = storage.get(np.arange(len(storage)))
    for hook in hooks:
        data = hook(data)
    changed = TensorDictStorage(storage.capacity)
    changed.extend(data, len(data))
    return changed


def load(source: Path, parts: SavedParts, hooks: Hooks) -> None:
    """Take over what was saved. If it does not fit the parts, they are as they were."""
    if not (source / _STATE).exists():
        raise FileNotFoundError(f"{source} is not a saved replay")
    state = read_state(source / _STATE)
    if (state.get("format"), state.get("format_version")) != (_FORMAT, _VERSION):
        found = f"{state.get('format')!r}, version {state.get('format_version')}"
        raise StorageCorruptedError(f"{source}: {found}, wanted {_FORMAT!r}, version {_VERSION}")
    for saved, part in ((state["sampler"], parts.drawer.sampler), (state["writer"]["writer"], parts.writer)):
        if saved != type(part).__name__:
            raise ValueError(f"{source} was saved with a {saved}, this replay has a {type(part).__name__}")
    if hooks:
        _load_through(hooks, source / _STORAGE, parts.storage)
    else:
        parts.storage.loads(source / _STORAGE, state["storage"])
    parts.prefetcher.clear()
    parts.drawer.loads(source / _SAMPLER)
    parts.writer.load_state_dict(state["writer"])
    parts.prefetcher.restore(state["pending"])


def _load_through(hooks: Hooks, folder: Path, storage: SampleStorage) -> None:
    saved = TensorDictStorage.open(folder)
    try:
        data: Any = saved.get(np.arange(len(saved)))
    finally:
        saved.close()
    for hook in hooks:
        data = hook(data)
    storage.clear()
    storage.extend(data, len(data))
