"""`DictSpace`: dictionaries of values."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

from ...backends.base import BDeviceType, BDtypeType, BRNGType
from ...backends.serialization import BackendLike
from ..mismatch import at_path, join_path
from ..space import Space
from ._composite import CompositeSpace


class DictSpace(CompositeSpace[dict[str, Any], BDeviceType, BDtypeType, BRNGType]):
    """Dictionaries with exactly the keys of the space, and a space for each value.

    The order of the keys matters only for iteration, not for equality. Assigning or deleting a key changes the space:
    do so before any other object uses the space.

    Parameters
    ----------
    backend
        The library of the arrays.
    spaces
        The spaces by key: a mapping, whose keys are sorted, or pairs, whose order is kept. A nested mapping becomes a
        `DictSpace`.
    device
        The device of the arrays; None for any.

    Raises
    ------
    ValueError
        A key is given twice, or a child is on another backend.
    TypeError
        A key is no string, or a child no space.

    Examples
    --------
    >>> space = DictSpace("numpy", {"speed": BoxSpace("numpy", 0.0, 1.0, "float32", shape=())})
    >>> space.contains({"speed": np.float32(0.5)})
    True
    >>> space["speed"].shape
    ()
    """

    spaces: dict[str, Space]

    def __init__(
        self,
        backend: BackendLike,
        spaces: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
        device: Any = None,
    ) -> None:
        super().__init__(backend, device=device)
        self.spaces = {}
        self._fill(() if spaces is None else spaces, "")

    def _fill(self, spaces: Mapping[str, Any] | Iterable[tuple[str, Any]], path: str) -> None:
        """Add the children of the constructor's argument, or of the mapping at `path` in it."""
        if isinstance(spaces, Mapping):
            spaces = sorted(spaces.items(), key=lambda item: str(item[0]))
        for key, child in spaces:
            if key in self.spaces:
                raise ValueError(at_path(path, f"key {key!r} is given twice"))
            self._set(key, child, path)

    def _set(self, key: str, child: Any, path: str) -> None:
        if not isinstance(key, str):
            raise TypeError(at_path(path, f"key {key!r} is {type(key).__name__}, the keys of a DictSpace are strings"))
        child_path = join_path(path, key)
        if isinstance(child, Mapping):
            nested = DictSpace(self.backend)
            nested._fill(child, child_path)
            child = nested
        self.spaces[key] = self._adopt(child_path, child, self._device)

    def child_items(self) -> Sequence[tuple[str, Space]]:
        return sorted(self.spaces.items())

    def with_children(self, children: Iterable[Space], backend: BackendLike | None = None) -> DictSpace:
        by_key = dict(zip(sorted(self.spaces), children, strict=True))
        return DictSpace(backend or self.backend, [(key, by_key[key]) for key in self.spaces])

    def child_values(self, data: Mapping[str, Any]) -> Sequence[Any]:
        return [data[key] for key in sorted(self.spaces)]

    def build_value(self, values: Iterable[Any]) -> dict[str, Any]:
        by_key = dict(zip(sorted(self.spaces), values, strict=True))
        return {key: by_key[key] for key in self.spaces}

    def structure_mismatch(self, x: Any, path: str) -> str | None:
        if not isinstance(x, Mapping):
            return at_path(path, f"{type(x).__name__}, the space wants a dict with the keys {sorted(self.spaces)}")
        missing = [key for key in self.spaces if key not in x]
        if missing:
            return at_path(path, f"key {missing[0]!r} is missing, the space wants {sorted(self.spaces)}")
        surplus = [key for key in x if key not in self.spaces]
        if surplus:
            return at_path(path, f"key {surplus[0]!r} is not in the space, which has {sorted(self.spaces)}")
        return None

    def is_subspaceeq(self, other: Any) -> bool:
        """Whether every key is also in `other`, which may have more keys, and its space is a subspace there."""
        return (
            isinstance(other, DictSpace)
            and self.backend is other.backend
            and all(
                key in other.spaces and child.is_subspaceeq(other.spaces[key]) for key, child in self.spaces.items()
            )
        )

    def keys(self) -> KeysView[str]:
        """The keys, in order."""
        return self.spaces.keys()

    def values(self) -> ValuesView[Space]:
        """The spaces, in the order of the keys."""
        return self.spaces.values()

    def items(self) -> ItemsView[str, Space]:
        """The pairs of key and space, in the order of the keys."""
        return self.spaces.items()

    def __getitem__(self, key: str) -> Any:
        try:
            return self.spaces[key]
        except KeyError:
            raise KeyError(f"no key {key!r}, the space has {sorted(self.spaces)}") from None

    def __setitem__(self, key: str, child: Any) -> None:
        self._set(key, child, "")

    def __delitem__(self, key: str) -> None:
        self[key]  # raises the KeyError that lists the keys
        del self.spaces[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.spaces)

    def get_repr(
        self,
        abbreviate: bool = False,
        include_backend: bool = True,
        include_device: bool = True,
        include_dtype: bool = True,
    ) -> str:
        suffix = self._backend_repr(include_backend, include_device)
        inner = ", ".join(
            f"{key!r}: {child.get_repr(abbreviate, False, False, include_dtype)}" for key, child in self.spaces.items()
        )
        return f"{'Dict' if abbreviate else 'DictSpace'}({{{inner}}}{suffix})"
