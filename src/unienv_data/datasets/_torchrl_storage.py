"""A storage that a TorchRL replay buffer can write to. Importing this module imports TorchRL.

TorchRL defines the names with an underscore: its buffers, writers and samplers access them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unienv_interface.utils.optional import need

from ._saving import samples_for
from .experience_replay import ExperienceReplay
from .tensordict_storage import TensorDictStorage
from .tensordicts import TensorDict, TensorDictBase, stacked, to_nested, torch

_torchrl = need("torchrl.data", extra="torch")


class _AllSamples(TensorDict):
    """A copy of all samples that writes in-place changes to the storage, too.

    `ReplayBuffer.set_`, `set_at_`, `update_` and assignments of TorchRL read all samples and change the result.
    """

    _editor: ExperienceReplay | None = None  # None for groups of entries and results of operations

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        is_key = isinstance(index, str) or (isinstance(index, tuple) and isinstance(index[0], str))
        if self._editor is not None and not is_key:
            self._editor[:] = self

    def set_(self, key: Any, value: Any, **options: Any) -> Any:
        if self._editor is not None:
            self._editor.set_(key, value)
        return super().set_(key, value, **options)

    def set_at_(self, key: Any, value: Any, index: Any, **options: Any) -> Any:
        if self._editor is not None:
            self._editor.set_at_(key, value, index)
        return super().set_at_(key, value, index, **options)

    def update_(self, values: Any, *args: Any, **options: Any) -> Any:
        if self._editor is not None:
            self._editor.update_(values, keys_to_update=options.get("keys_to_update"))
        return super().update_(values, *args, **options)


class _Loaded:
    """Receives the samples that a TorchRL checkpointer loads, in place of an uninitialized storage."""

    initialized = False
    data: TensorDictBase
    _len: int

    @property
    def _storage(self) -> _Loaded:
        return self

    def _init(self, sample: TensorDictBase) -> None:
        pass

    def update_(self, data: TensorDictBase) -> None:
        self.data = data


class TorchRLWritableStorage(_torchrl.TensorStorage):  # type: ignore[name-defined]
    """A TorchRL storage over a `TensorDictStorage` with a `max_size`, which replaces a `LazyTensorStorage`.

    TorchRL's writers begin at index 0, so the storage must be empty at first.
    """

    def __init__(self, samples: TensorDictStorage) -> None:
        _torchrl.Storage.__init__(self, samples.capacity)  # TensorStorage.__init__ needs the samples
        self.samples, self.ndim, self.device = samples, 1, torch.device("cpu")
        self._editor, self._last_cursor = ExperienceReplay(storage=samples), None

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("_last_cursor", "_attached_entities", "_attached_entities_list")
        state = {name: self.__dict__[name] for name in names if name in self.__dict__}
        return TorchRLWritableStorage, (self.samples,), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def initialized(self) -> bool:
        return self.samples.space is not None

    @property
    def _len(self) -> int:
        return len(self.samples)

    @property
    def _mutation_revision(self) -> int:
        return self.samples.revision

    @property
    def _last_cursor_index(self) -> int | None:
        count = len(self)
        return int(self.samples.index_of(np.array([count - 1]))[0]) if count else None

    @property
    def _total_shape(self) -> torch.Size:
        return torch.Size([self.max_size])

    @property
    def _storage(self) -> TensorDictBase | None:
        """The samples that a TorchRL checkpointer saves."""
        return samples_for(self.checkpointer._save_hooks, self.samples) if self.initialized else None

    def get(self, index: Any) -> Any:
        if self.initialized and isinstance(index, slice) and index == slice(None):
            data = self.samples.get(np.arange(len(self)))
            every = _AllSamples._new_unsafe(to_nested(data), batch_size=data.batch_size, device=data.device)
            every._editor = self._editor
            return every
        if not self.initialized:
            raise RuntimeError("Cannot get elements out of a non-initialized storage: add some samples first")
        if isinstance(index, tuple):
            (index,) = index  # one index for each axis of the storage
        return self.samples[list(index) if isinstance(index, range) else index]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        if isinstance(data, list):
            data = stacked(data)
        if not isinstance(data, TensorDictBase):
            raise TypeError(f"{type(data).__name__}, a TensorDictStorage keeps TensorDicts")
        if set_cursor:
            slots = np.arange(self.max_size)[cursor] if isinstance(cursor, slice) else np.asarray(cursor)
            samples = data if slots.ndim else data.unsqueeze(0)
            self._last_cursor = cursor
            self.samples.put(np.atleast_1d(slots), self._with_same_entries(samples, np.atleast_1d(slots)))
        else:
            self._editor[cursor] = data

    def _with_same_entries(self, data: TensorDictBase, slots: np.ndarray) -> TensorDictBase:
        """Add or remove the entry `index`, as in the first samples: TorchRL's writers add it in some calls only."""
        has_index, space = data.get("index", None) is not None, self.samples.space
        if space is None or has_index == ("index" in space.spaces):
            return data
        if has_index:
            return data.exclude("index")
        index = torch.from_numpy(slots).reshape(-1, *(1,) * (data.batch_dims - 1)).expand(data.batch_size)
        return data.copy().set("index", index)

    def _empty(self) -> None:
        self.samples.clear()

    def loads(self, path: Any) -> None:
        loaded = _Loaded()
        self.checkpointer.loads(loaded, Path(path))
        self.samples.replace(loaded.data[: int(loaded._len)])

    def state_dict(self) -> dict[str, Any]:
        return {"samples": self.samples.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.samples.load_state_dict(state_dict["samples"])
