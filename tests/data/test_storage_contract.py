"""Every registered storage keeps the contract, and one that breaks a clause is told which."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import SPACES, backend_cases
from transition_play import spaces_of

from unienv_data.base import SpaceStorage
from unienv_data.storages import registry
from unienv_data.storages.packed import PackedStorage
from unienv_data.testing import StorageContract, StorageContractError, check_storage
from unienv_data.testing._storage_probe import CLAUSES
from unienv_data.testing.storage_contract import default_spaces
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import DictSpace
from unienv_interface.transformations import IdentityTransformation


class TestPackedFiles(StorageContract):
    storage_cls = PackedStorage


class InMemory(PackedStorage):
    """The same without files."""

    @classmethod
    def create(cls, space: Any, **options: Any) -> PackedStorage:  # type: ignore[override]
        return PackedStorage.create(space, **{**options, "cache_path": None})


class TestPackedInMemory(StorageContract):
    storage_cls = InMemory


class TestPackedInSharedMemory(StorageContract):
    storage_cls = InMemory
    options = {"multiprocessing": True}  # noqa: RUF012


class TestPackedWithBlocksAndHeap(StorageContract):
    storage_cls = PackedStorage
    spaces = tuple(SPACES[name](NumpyComputeBackend) for name in ("everything", "dynamic_box"))


class TestPackedInMemoryWithHeap(StorageContract):
    storage_cls = InMemory
    spaces = (SPACES["everything"](NumpyComputeBackend),)


@pytest.mark.parametrize("backend", backend_cases())
def test_the_packed_storage_keeps_it_on_every_backend(backend: Any, tmp_path: Path) -> None:
    check_storage(PackedStorage, tmp_path, spaces=default_spaces(backend)[1:])


#: What holds frames and nothing else (see test_storage_frames.py), or only reads.
FRAMES = {"image", "video", "reference_images", "reference_videos"}


@pytest.mark.parametrize("name", sorted({*registry.storage_names()} - FRAMES))
def test_every_registered_storage_keeps_it(name: str, tmp_path: Path) -> None:
    try:
        storage_cls = registry.storage_by_name(name)
    except ImportError as error:
        pytest.skip(str(error))
    options: dict[str, Any] = {}
    if name == "pytorch":
        options = {"spaces": default_spaces(deserialize_backend("pytorch")), "grows": False}
    elif name == "shared_next_obs":
        options = {"spaces": [DictSpace(NumpyComputeBackend, spaces_of(kind)) for kind in ("vector", "mixed")]}
    elif name == "transformed":
        options = {"data_transformation": IdentityTransformation()}
    check_storage(storage_cls, tmp_path, **options)


def test_every_clause_is_a_test_of_the_class() -> None:
    assert {f"test_{name}" for name in CLAUSES} <= set(vars(StorageContract))


# -- storages that break it --------------------------------------------------------------------------------


class Broken(PackedStorage):
    pass


class LosesTheLast(Broken):
    def set(self, index: Any, value: Any) -> None:
        if not isinstance(index, int) or index != -1:
            super().set(index, value)


class HandsOutViews(Broken):
    def gather(self, slots: Any, length: int) -> Any:
        if isinstance(slots, int):
            return self.layout.unpack(self._memory.rows[slots])
        return super().gather(slots, length)


class StopsAtTheEnd(Broken):
    def gather(self, slots: Any, length: int) -> Any:
        return super().gather(np.minimum(slots, len(self) - 1) if isinstance(slots, np.ndarray) else slots, length)


class ClipsTheIndex(Broken):
    def get(self, index: Any) -> Any:
        return super().get(min(index, len(self) - 1) if isinstance(index, int) else index)


class WritesBeforeItLooks(Broken):
    def set(self, index: Any, value: Any) -> None:
        if isinstance(index, int) and 0 <= index < len(self):
            self._memory.rows.records[index] = np.zeros((), self.layout.dtype)
        super().set(index, value)


class KeepsTheFirst(Broken):
    def set(self, index: Any, value: Any) -> None:
        if isinstance(index, list) and index == [1, 1]:
            index, value = [1], self.layout.unpack(_rows_of(self, value)[:1])
        super().set(index, value)


def _rows_of(storage: PackedStorage, value: Any) -> Any:
    rows = storage.layout.empty(2)
    storage.layout.pack(rows, slice(None), value)
    return rows


class AppendsAnywhere(Broken):
    def append(self, value: Any) -> None:
        if not self.has_open_segment:
            self.mark_segment_start(0)
        super().append(value)


class IgnoresReadOnly(Broken):
    def _check_mutable(self) -> None:
        pass


class ForgetsOnDump(Broken):
    def snapshot(self, path: Any, slots: Any, number: int = 0) -> None:
        super().snapshot(path, [(0, len(self) - 1)])


class FlushesNothing(Broken):
    """Its samples are in memory, and in files only when it is told to dump them."""

    @classmethod
    def create(cls, space: Any, *, cache_path: Any = None, **options: Any) -> Any:  # type: ignore[override]
        storage = super().create(space, **options)
        storage.cache_filename = cache_path
        Path(cache_path).mkdir()
        return storage

    def dumps(self, path: Any) -> None:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.closing(PackedStorage.create(self.single_instance_space, capacity=5, cache_path=path)) as copy:
            copy.set(..., self.get(...))


class FlushesByDumping(FlushesNothing):
    """The same, and it leaves flushing as a storage has it that says nothing of it."""

    flush = SpaceStorage.flush


class EncodesInPlace(Broken):
    def encode(self, value: Any, count: int | None) -> Any:
        encoded = super().encode(value, count)
        if count == 3:
            self.write(slice(0, 3), encoded, 0)
        return encoded


class NeverGrows(Broken):
    def extend_length(self, length: int) -> None:
        pass


class MixesColumns(Broken):
    def get_column(self, nested_keys: Any) -> Any:
        return super().get_column(["done"])


class Overwrites(Broken):
    @classmethod
    def create(cls, space: Any, **options: Any) -> Any:
        if options["cache_path"] is not None:
            shutil.rmtree(options["cache_path"], ignore_errors=True)
        return super().create(space, **options)


@pytest.mark.parametrize(
    ("storage_cls", "clause"),
    [
        (LosesTheLast, "every_kind_of_index_writes_the_same"),
        (HandsOutViews, "what_was_read_does_not_change"),
        (StopsAtTheEnd, "encoding_changes_nothing_and_writing_does"),
        (ClipsTheIndex, "an_index_out_of_range_is_refused"),
        (WritesBeforeItLooks, "a_misfit_is_refused_and_changes_nothing"),
        (KeepsTheFirst, "the_last_of_duplicates_stays"),
        (AppendsAnywhere, "segments_are_appended"),
        (IgnoresReadOnly, "read_only_is_read_only"),
        (ForgetsOnDump, "a_dump_is_loaded_equal"),
        (FlushesNothing, "what_was_flushed_is_loaded"),
        (EncodesInPlace, "encoding_changes_nothing_and_writing_does"),
        (NeverGrows, "it_grows_and_shrinks"),
        (MixesColumns, "a_column_is_that_of_the_samples"),
        (Overwrites, "a_path_in_use_is_refused"),
    ],
)
def test_a_broken_storage_is_told_its_clause(storage_cls: type[SpaceStorage], clause: str, tmp_path: Path) -> None:
    with pytest.raises(StorageContractError, match=f"breaks the clause '{clause}'"):
        check_storage(storage_cls, tmp_path)


def test_a_storage_that_can_be_dumped_can_be_flushed(tmp_path: Path) -> None:
    check_storage(FlushesByDumping, str(tmp_path))


def test_a_clause_can_be_left_out(tmp_path: Path) -> None:
    check_storage(AppendsAnywhere, tmp_path, skip=["segments_are_appended"])
    with pytest.raises(ValueError, match="no clause 'nonsense'"):
        check_storage(AppendsAnywhere, tmp_path, skip=["nonsense"])
