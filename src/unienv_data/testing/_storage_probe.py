"""Helpers for the clauses of the storage contract: making storages and comparing values."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typing_extensions import Self

from unienv_interface.space import Space
from unienv_interface.space.space_utils import concatenate
from unienv_interface.testing.clauses import BreachError, Clause, registering_in, require
from unienv_interface.testing.snapshots import difference, snapshot

from ..base.storage import SpaceStorage

SLOTS = 5


class StorageContractError(AssertionError):
    """A storage breaks a clause; the message has its name, the result and the rule.

    Examples
    --------
    >>> class Forgetful(ListStorage):
    ...     def set(self, index, value):
    ...         pass
    >>> check_storage(Forgetful, "probe")
    Traceback (most recent call last):
        ...
    unienv_data.testing._storage_probe.StorageContractError: ...
    """


class Maker:
    """Makes storages of one class for one space, and closes them at the end of a `with` block."""

    _numbers = itertools.count()

    def __init__(
        self, storage_cls: type[SpaceStorage], space: Space, folder: Path, *, grows: bool, options: dict[str, Any]
    ) -> None:
        self.storage_cls, self.space, self.grows = storage_cls, space, grows
        self._folder, self._options = folder, options
        self._made: list[SpaceStorage] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for storage in self._made:
            storage.close()

    def __repr__(self) -> str:
        return f"{self.storage_cls.__name__} of {self.space}"

    def new_path(self) -> Path:
        return self._folder / f"{next(self._numbers)}{self.storage_cls.single_file_ext or ''}"

    def make(self, capacity: int | None = SLOTS, path: Path | None = None) -> SpaceStorage:
        """Create a storage, by default at a new path."""
        path = self.new_path() if path is None else path
        self._made.append(self.storage_cls.create(self.space, capacity=capacity, cache_path=path, **self._options))
        return self._made[-1]

    def load(self, path: Path, capacity: int | None = SLOTS, *, read_only: bool = True) -> SpaceStorage:
        self._made.append(self.storage_cls.load_from(path, self.space, capacity=capacity, read_only=read_only))
        return self._made[-1]

    def filled(self, path: Path | None = None) -> tuple[SpaceStorage, list[Any]]:
        """Create a storage with a sample in every slot; return it with the samples."""
        storage, values = self.make(path=path), self.values(SLOTS)
        storage.set(slice(0, SLOTS), self.batch(values))
        return storage, values

    def values(self, count: int, seed: int = 0) -> list[Any]:
        """Draw samples, all different."""
        rng, values = self.space.backend.random.random_number_generator(seed), []
        for _ in range(count):
            rng, value = self.space.sample(rng)
            values.append(value)
        return values

    def batch(self, values: list[Any]) -> Any:
        return concatenate(self.space, values)


# By name, in the order of the checks: later clauses rely on earlier ones.
CLAUSES: dict[str, Clause] = {}
clause = registering_in(CLAUSES, StorageContractError)


def require_same(value: Any, wanted: Any, what: str) -> None:
    """Raise unless values are equal bit by bit."""
    differs = difference(snapshot(wanted), snapshot(value))
    require(differs is None, f"{what} that differs ({differs})", "what was written")


def require_error(act: Callable[[], object], errors: type[Exception] | tuple[type[Exception], ...], what: str) -> None:
    wanted = errors.__name__ if isinstance(errors, type) else " or ".join(error.__name__ for error in errors)
    try:
        act()
    except errors:
        return
    except Exception as error:
        raise BreachError(f"{type(error).__name__} for {what}: {error}", wanted) from error
    raise BreachError(f"that {what} goes through", wanted)
