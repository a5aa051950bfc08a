"""The samples of a replay by index, and their entries by key."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from unienv_interface.backends.numpy import NumpyComputeBackend

from ..base._index import is_single, resolve_index
from ._drawing import Drawer
from ._storage import SampleStorage
from ._tensordicts import Key, TensorDictBase, key_of, leaves, torch
from ._transforms import TransformChain

if TYPE_CHECKING:
    from typing_extensions import Self


class SampleAccess:
    """What a replay does with its storage apart from sampling and adding."""

    _storage: SampleStorage
    _drawer: Drawer
    _transforms: TransformChain
    _lock: threading.RLock

    def __len__(self) -> int:
        return len(self._storage)

    def _index(self, index: Any) -> int | np.ndarray:
        if isinstance(index, torch.Tensor):
            index = int(index) if is_single(index) and index.dtype != torch.bool else index.cpu().numpy()
        return resolve_index(NumpyComputeBackend, index, len(self))

    def __getitem__(self, index: Any) -> Any:
        """Samples by index, through the transforms; or one entry of all samples, by its key."""
        with self._lock:
            if isinstance(index, str) or (isinstance(index, tuple) and all(isinstance(key, str) for key in index)):
                return self._storage.get_column(self._known(index), np.arange(len(self)))
            data: Any = self._storage.get(self._index(index))
        return self._transforms.on_read(data) if len(self._transforms) else data

    def __setitem__(self, index: Any, data: Any) -> None:
        with self._lock:
            places = np.atleast_1d(self._index(index))
            data = self._transforms.on_write(data)
            self._storage.set(places, data.unsqueeze(0) if is_single(index) else data)
            self._drawer.wrote(self._storage, places, is_new=False)

    def _known(self, key: Any) -> Key:
        keys = key_of(key)
        if keys not in self._storage.entries():
            raise KeyError(f"there is no entry {keys}, there are {sorted(self._storage.entries())}")
        return keys

    def read_all_in_order(self, end: int | None = None) -> Any:
        """All samples, or the first `end`, in the order of their indices."""
        return self[: len(self) if end is None else end]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrite the first samples, `end` or as many as there are in `data`, in the order of their indices."""
        count = len(data) if end is None else end
        if not 0 <= count <= len(self) or count > len(data):
            raise ValueError(f"{count} samples of {len(data)} to write over {len(self)}: that does not fit")
        self[:count] = data[:count]

    def set_(self, key: Any, value: Any) -> Self:
        """Set an entry of all samples: one value for each, or one for all."""
        return self.set_at_(key, value, slice(None))

    def set_at_(self, key: Any, value: Any, index: Any) -> Self:
        """Set an entry of the samples at these indices. Of a recorded dataset only this replay's view changes."""
        with self._lock:
            keys, places = self._known(key), np.atleast_1d(self._index(index))
            entry = self._storage.get_column(keys, places[:1])
            wanted = (len(places), *entry.shape[1:])
            try:
                tensor = torch.as_tensor(value).to(entry.dtype).broadcast_to(wanted)
            except RuntimeError:
                shape = tuple(torch.as_tensor(value).shape)
                raise ValueError(f"{keys}: shape {shape}, the entries at these indices want {wanted}") from None
            self._storage.set_column(keys, places, tensor)
        return self

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> Self:
        """Set the entries of all samples that are in a dict or TensorDict, or those of `keys_to_update` of them.

        The values are copied in any case, `clone` makes no difference.
        """
        items = _flat(input_dict_or_td)
        if keys_to_update is not None:
            chosen = [key_of(key) for key in keys_to_update]
            items = {key: value for key, value in items.items() if any(key[: len(part)] == part for part in chosen)}
        for key in items:
            self._known(key)
        for key, value in items.items():
            self.set_(key, value)
        return self


def _flat(data: Any, path: Key = ()) -> dict[Key, Any]:
    """The values of a nested dict or a TensorDict by their keys."""
    if isinstance(data, TensorDictBase):
        return dict(leaves(data))
    found: dict[Key, Any] = {}
    for key, value in data.items():
        inner = (*path, *key_of(key))
        found |= _flat(value, inner) if isinstance(value, dict) else {inner: value}
    return found
