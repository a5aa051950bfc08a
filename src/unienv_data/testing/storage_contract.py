"""The contract of a storage as tests that you can run on your own storage.

    check_storage(MyStorage, folder)          # raises a StorageContractError at the first broken clause

    class TestMyStorage(StorageContract):     # or with pytest, one test a clause
        storage_cls = MyStorage

The contract itself is in `unienv_data.base.storage`. A clause is a function that checks storages from a `Maker`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import Space
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace

from ..base.storage import SpaceStorage
from . import _storage_clauses as clauses
from ._storage_probe import CLAUSES, Clause, Maker, StorageContractError

__all__ = ["StorageContract", "StorageContractError", "check_storage"]


def default_spaces(backend: Any = NumpyComputeBackend) -> list[Space]:
    """Return the default spaces: an array, and a nested dict."""
    box = BoxSpace(backend, -1.0, 1.0, "float32", shape=(3,))
    pixels = BoxSpace(backend, 0, 255, "uint8", shape=(2, 2))
    return [box, DictSpace(backend, {"obs": {"pose": box, "rgb": pixels}, "done": BinarySpace(backend, ())})]


def check_storage(
    storage_cls: type[SpaceStorage],
    folder: str | os.PathLike[str],
    *,
    spaces: Sequence[Space] | None = None,
    grows: bool = True,
    skip: Collection[str] = (),
    **options: Any,
) -> None:
    """Check a storage against every clause of the contract.

    Parameters
    ----------
    storage_cls
        The class of the storage.
    folder
        An empty folder to work in.
    spaces
        The spaces of samples; by default an array and a nested dict.
    grows
        Whether a capacity of None is possible.
    skip
        Names of clauses to leave out.
    **options
        Further arguments for `create`.

    Raises
    ------
    StorageContractError
        The storage breaks a clause; the message has its name, the result, and the rule.
    ValueError
        `skip` contains a name that is no clause.

    Examples
    --------
    >>> check_storage(ListStorage, "probe")
    """
    unknown = sorted(set(skip) - set(CLAUSES))
    if unknown:
        raise ValueError(f"there is no clause {unknown[0]!r}, the clauses are {', '.join(CLAUSES)}")
    for space in default_spaces() if spaces is None else spaces:
        for name, check in CLAUSES.items():
            if name not in skip:
                with Maker(storage_cls, space, Path(folder), grows=grows, options=options) as maker:
                    check(maker)


class StorageContract:
    """A pytest class for a storage: derive a class `Test...` and set `storage_cls`.

    Set `spaces` if the storage does not support the default spaces, and `options` for further arguments of `create`.

    Examples
    --------
    >>> class TestListStorage(StorageContract):  # pytest runs its tests
    ...     storage_cls = ListStorage
    """

    storage_cls: ClassVar[type[SpaceStorage]]
    spaces: ClassVar[Sequence[Space] | None] = None
    grows: ClassVar[bool] = True
    options: ClassVar[dict[str, Any]] = {}

    def _check(self, check: Clause, folder: Path) -> None:
        for space in default_spaces() if self.spaces is None else self.spaces:
            with Maker(self.storage_cls, space, folder, grows=self.grows, options=self.options) as maker:
                check(maker)

    def test_it_has_as_many_slots_as_were_asked_for(self, tmp_path: Path) -> None:
        self._check(clauses.it_has_as_many_slots_as_were_asked_for, tmp_path)

    def test_what_was_set_is_got(self, tmp_path: Path) -> None:
        self._check(clauses.what_was_set_is_got, tmp_path)

    def test_every_kind_of_index_reads_the_same(self, tmp_path: Path) -> None:
        self._check(clauses.every_kind_of_index_reads_the_same, tmp_path)

    def test_every_kind_of_index_writes_the_same(self, tmp_path: Path) -> None:
        self._check(clauses.every_kind_of_index_writes_the_same, tmp_path)

    def test_the_last_of_duplicates_stays(self, tmp_path: Path) -> None:
        self._check(clauses.the_last_of_duplicates_stays, tmp_path)

    def test_what_was_read_does_not_change(self, tmp_path: Path) -> None:
        self._check(clauses.what_was_read_does_not_change, tmp_path)

    def test_what_was_written_is_a_copy(self, tmp_path: Path) -> None:
        self._check(clauses.what_was_written_is_a_copy, tmp_path)

    def test_an_index_out_of_range_is_refused(self, tmp_path: Path) -> None:
        self._check(clauses.an_index_out_of_range_is_refused, tmp_path)

    def test_a_misfit_is_refused_and_changes_nothing(self, tmp_path: Path) -> None:
        self._check(clauses.a_misfit_is_refused_and_changes_nothing, tmp_path)

    def test_it_grows_and_shrinks(self, tmp_path: Path) -> None:
        self._check(clauses.it_grows_and_shrinks, tmp_path)

    def test_segments_are_appended(self, tmp_path: Path) -> None:
        self._check(clauses.segments_are_appended, tmp_path)

    def test_encoding_changes_nothing_and_writing_does(self, tmp_path: Path) -> None:
        self._check(clauses.encoding_changes_nothing_and_writing_does, tmp_path)

    def test_raw_rows_can_be_moved(self, tmp_path: Path) -> None:
        self._check(clauses.raw_rows_can_be_moved, tmp_path)

    def test_a_column_is_that_of_the_samples(self, tmp_path: Path) -> None:
        self._check(clauses.a_column_is_that_of_the_samples, tmp_path)

    def test_flat_samples_are_the_samples(self, tmp_path: Path) -> None:
        self._check(clauses.flat_samples_are_the_samples, tmp_path)

    def test_a_dump_is_loaded_equal(self, tmp_path: Path) -> None:
        self._check(clauses.a_dump_is_loaded_equal, tmp_path)

    def test_read_only_is_read_only(self, tmp_path: Path) -> None:
        self._check(clauses.read_only_is_read_only, tmp_path)

    def test_what_was_flushed_is_loaded(self, tmp_path: Path) -> None:
        self._check(clauses.what_was_flushed_is_loaded, tmp_path)

    def test_a_path_in_use_is_refused(self, tmp_path: Path) -> None:
        self._check(clauses.a_path_in_use_is_refused, tmp_path)

    def test_it_may_be_closed_twice(self, tmp_path: Path) -> None:
        self._check(clauses.it_may_be_closed_twice, tmp_path)
