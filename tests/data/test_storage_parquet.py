"""ParquetStorage: pieces, caches, what others wrote, and files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unienv_data import StorageCorruptedError
from unienv_data.base.thrift import I64, LIST, STRUCT, ThriftReader, write_struct
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, TextSpace

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ParquetStorage: Any = pytest.importorskip("unienv_data.storages.parquet").ParquetStorage

NUMPY = NumpyComputeBackend
BOX = BoxSpace(NUMPY, -1e6, 1e6, "float32", shape=(2, 2))
ROWS = np.arange(40, dtype=np.float32).reshape(10, 2, 2)
MIXED = DictSpace(
    NUMPY,
    {
        "obs": {
            "rgb": BoxSpace(NUMPY, 0, 255, "uint8", shape=(64, 64, 3)),
            "z": BoxSpace(NUMPY, -np.inf, np.inf, "complex64", shape=(2,)),
        },
        "half": BoxSpace(NUMPY, -1, 1, "bfloat16", shape=(3,)),
        "done": BinarySpace(NUMPY, ()),
        "task": TextSpace(NUMPY, 5),
    },
)


def filled(folder: Path, *, capacity: int | None = 10, **options: Any) -> Any:
    storage = ParquetStorage.create(BOX, capacity=capacity, cache_path=folder, **{"piece_size": 3, **options})
    storage.extend_length(10)
    storage.set(..., ROWS)
    storage.flush()
    return storage


def load(folder: Path, *, capacity: int | None = 10, **options: Any) -> Any:
    return ParquetStorage.load_from(folder, BOX, capacity=capacity, **options)


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*"))


# -- pieces ------------------------------------------------------------------------------------------------


def test_the_folder_has_pieces_and_their_description(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    assert parts(tmp_path / "a") == [f"part-00000{number}.parquet" for number in range(4)]
    content = json.loads((tmp_path / "a" / "_metadata.json").read_text())
    assert (content["piece_size"], content["num_rows"], content["compression"]) == (3, 10, "snappy")
    assert (content["column_shapes"], content["column_dtypes"]) == ({"data": [2, 2]}, {"data": "float32"})
    assert pq.read_table(tmp_path / "a" / "part-000003.parquet")["data"].to_pylist() == [[36.0, 37.0, 38.0, 39.0]]


@pytest.mark.parametrize(
    ("compression", "codec"),
    [({"data": "gzip"}, "GZIP"), ("zstd", "ZSTD"), (None, "UNCOMPRESSED"), ({}, "UNCOMPRESSED")],
)
def test_compression_reaches_the_physical_column(compression: Any, codec: str, tmp_path: Path) -> None:
    filled(tmp_path / "a", compression=compression).close()
    column = pq.ParquetFile(tmp_path / "a" / "part-000000.parquet").metadata.row_group(0).column(0)
    assert column.compression == codec
    storage = load(tmp_path / "a", read_only=False)
    storage.set(0, ROWS[1])
    storage.close()
    column = pq.ParquetFile(tmp_path / "a" / "part-000000.parquet").metadata.row_group(0).column(0)
    assert column.compression == codec


@pytest.mark.parametrize(("compression", "match"), [("snapy", "'snapy' is not one"), ({"dat": "gzip"}, "of 'dat'")])
def test_a_misspelt_compression_is_refused(compression: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=match):
        filled(tmp_path / "a", compression=compression)
    assert not (tmp_path / "a").exists()


def test_appending_touches_no_file_until_a_piece_must_go(tmp_path: Path) -> None:
    storage = ParquetStorage.create(BOX, capacity=None, cache_path=tmp_path / "a", piece_size=100, cache_bytes=2000)
    for slot in range(150):
        storage.reserve(slot, slot + 1)
        storage.write(slot, storage.encode(ROWS[slot % 10], None), slot)
        assert len(parts(tmp_path / "a")) == (slot >= 100)
    storage.close()
    assert np.array_equal(load(tmp_path / "a", capacity=None).get(...), np.tile(ROWS, (15, 1, 1)))


def test_read_only_reads_go_through_tables_and_keep_their_order(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    storage = load(tmp_path / "a")
    assert np.array_equal(storage.get(np.array([9, 0, 4, 9])), ROWS[[9, 0, 4, 9]])
    assert storage._piece_cache == {}
    assert sorted(storage._table_cache) == [(0, 0), (1, 0), (3, 0)]
    assert np.array_equal(storage.get(ROWS[:, 0, 0] > 10), ROWS[ROWS[:, 0, 0] > 10])


def test_the_caches_are_bounded(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    storage = load(tmp_path / "a", cache_bytes=100, read_only=False)
    for slot in (0, 3, 6, 9, 1, 4, 7):
        assert np.array_equal(storage.get(slot), ROWS[slot])
        assert storage._table_bytes == sum(column.nbytes for column in storage._table_cache.values()) <= 100
        storage.set(slot, ROWS[slot])
        assert len(storage._piece_cache) <= 2
    storage.close()
    assert load(tmp_path / "a").verify() == []


def test_stray_files_are_ignored(tmp_path: Path) -> None:
    filled(tmp_path / "a", capacity=None).close()
    stray = tmp_path / "a" / "part-000004.parquet"
    stray.write_bytes(b"nonsense")
    storage = load(tmp_path / "a", capacity=None, read_only=False)
    assert len(storage) == 10
    storage.extend_length(4)
    storage.set(slice(10, 14), ROWS[:4])
    storage.close()
    assert np.array_equal(load(tmp_path / "a", capacity=None).get(...), np.concatenate([ROWS, ROWS[:4]]))


def test_negative_indices(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    storage.set(-1, ROWS[0])
    storage.set([-2, -3], ROWS[[1, 2]])
    assert np.array_equal(storage.get([-1, -2, -3]), ROWS[[0, 1, 2]])
    storage.close()


def test_read_only_neither_grows_nor_shrinks(tmp_path: Path) -> None:
    filled(tmp_path / "a", capacity=None).close()
    storage = load(tmp_path / "a", capacity=None)
    assert not storage.is_mutable
    for act in (storage.extend_length, storage.shrink_length):
        with pytest.raises(PermissionError, match="read_only=False"):
            act(1)


def test_an_empty_one_may_be_cleared_and_one_that_shrank_grows_again(tmp_path: Path) -> None:
    storage = ParquetStorage.create(BOX, capacity=None, cache_path=tmp_path / "a", piece_size=3)
    storage.clear()
    storage.extend_length(8)
    storage.set(slice(0, 8), ROWS[:8])
    storage.flush()
    storage.shrink_length(4)
    storage.flush()
    assert parts(tmp_path / "a") == ["part-000000.parquet", "part-000001.parquet"]
    storage.extend_length(1)
    storage.set(4, ROWS[9])
    storage.close()
    assert np.array_equal(load(tmp_path / "a", capacity=None).get(...), ROWS[[0, 1, 2, 3, 9]])


def test_a_column_reads_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unienv_data.storages import _parquet_file

    storage = ParquetStorage.create(MIXED, capacity=4, cache_path=tmp_path / "a")
    _, value = MIXED.sample(NUMPY.random.random_number_generator(0))
    storage.set(1, value)
    storage.close()
    asked: list[str] = []
    read = _parquet_file.RowFile.column
    monkeypatch.setattr(
        _parquet_file.RowFile, "column", lambda self, name, leaf: asked.append(name) or read(self, name, leaf)
    )
    loaded = ParquetStorage.load_from(tmp_path / "a", MIXED, capacity=4)
    assert loaded.get_column(["task"]).get(1) == value["task"]
    assert loaded.get_column(["obs", "z"]).get(1).tolist() == value["obs"]["z"].tolist()
    assert asked == ["task", "obs/z"]
    assert np.array_equal(loaded.get(1)["obs"]["rgb"], value["obs"]["rgb"])


# -- spaces ------------------------------------------------------------------------------------------------


def test_the_space_of_an_empty_storage_is_in_its_metadata(tmp_path: Path) -> None:
    ParquetStorage.create(BOX, capacity=None, cache_path=tmp_path / "a").close()
    capacity, count, space = ParquetStorage.build_space_from_parquet_file(tmp_path / "a")
    assert (capacity, count) == (0, 0)
    assert isinstance(space, BoxSpace)
    assert (space.shape, space.dtype) == ((2, 2), np.float32)


def test_a_storage_is_a_buffer_without_its_space(tmp_path: Path) -> None:
    storage = ParquetStorage.create(MIXED, capacity=2, cache_path=tmp_path / "a")
    rng, value = MIXED.sample(NUMPY.random.random_number_generator(0))
    storage.set(0, value)
    storage.set(1, MIXED.sample(rng)[1])
    storage.close()
    with ParquetStorage.load_replay_buffer_from_raw_parquet(tmp_path / "a") as buffer:
        assert buffer.single_space.spaces["half"].dtype_name == "bfloat16"
        found = buffer.get_at(0)
        assert found["task"] == value["task"]
        assert np.array_equal(found["obs"]["rgb"], value["obs"]["rgb"])


def test_any_parquet_file_is_a_buffer(tmp_path: Path) -> None:
    table = pa.table(
        {
            "pose": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
            "grid": pa.array([[[1, 2]], [[3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.int16()))),
            "done": pa.array([False, True, False]),
            "task": pa.array(["a", "bcd", ""]),
        }
    )
    pq.write_table(table, tmp_path / "raw.parquet")
    with ParquetStorage.load_replay_buffer_from_raw_parquet(tmp_path / "raw.parquet") as buffer:
        batch = buffer.get_at([2, 0])
        assert batch["pose"].tolist() == [[5.0, 6.0], [1.0, 2.0]]
        assert batch["grid"].tolist() == [[[5, 6]], [[1, 2]]]
        assert batch["done"].tolist() == [False, False]
        assert batch["task"].tolist() == ["", "a"]
        assert not buffer.is_mutable
    pq.write_table(pa.table({"ragged": pa.array([[1.0], [1.0, 2.0]])}), tmp_path / "ragged.parquet")
    with pytest.raises(ValueError, match="'ragged' has lists of lengths"):
        ParquetStorage.build_space_from_parquet_file(tmp_path / "ragged.parquet")


def test_a_folder_of_the_reference_is_read(tmp_path: Path) -> None:
    for piece, rows in enumerate((ROWS[:6], ROWS[6:])):
        column = pa.array(rows.reshape(len(rows), -1).tolist(), pa.list_(pa.float32()))
        pq.write_table(pa.table({"data": column}), tmp_path / f"part-{piece:06d}.parquet")
    content = {"piece_size": 6, "num_rows": 10, "column_shapes": {"data": [2, 2]}, "compression": "snappy"}
    (tmp_path / "_metadata.json").write_text(json.dumps({**content, "column_dtypes": {"data": "float32"}}))
    assert np.array_equal(load(tmp_path).get([9, 2]), ROWS[[9, 2]])


def test_what_parquet_has_no_column_for_is_refused(tmp_path: Path) -> None:
    for space, match in (
        (BoxSpace(NUMPY, 0, 1, "float32", shape=(0,)), "no elements"),
        (DictSpace(NUMPY), "no leaves"),
    ):
        with pytest.raises(ValueError, match=match):
            ParquetStorage.create(space, capacity=3, cache_path=tmp_path / "a")
    with pytest.raises(ValueError, match="cache_path"):
        ParquetStorage.create(BOX, capacity=3)
    assert list(tmp_path.iterdir()) == []


# -- damage ------------------------------------------------------------------------------------------------


def test_a_piece_that_was_never_written_is_no_zeros(tmp_path: Path) -> None:
    storage = ParquetStorage.create(BOX, capacity=10, cache_path=tmp_path / "a", piece_size=3)
    storage.set(0, ROWS[0])
    with pytest.raises(StorageCorruptedError, match=r"part-000002\.parquet: nothing was written"):
        storage.get(7)
    storage.dumps(tmp_path / "b")
    assert np.array_equal(load(tmp_path / "b").get(0), ROWS[0])
    storage.close()


def test_every_flip_is_found(tmp_path: Path) -> None:
    filled(tmp_path / "a", compression=None).close()
    path = tmp_path / "a" / "part-000001.parquet"
    sound = path.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    for place in [*range(4, footer, 7), *range(footer, len(sound), 13)]:
        damaged = bytearray(sound)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        findings = load(tmp_path / "a").verify()
        if findings:
            assert len(findings) == 1
            with pytest.raises(StorageCorruptedError, match=r"part-000001\.parquet"):
                load(tmp_path / "a").get([3, 4, 5])
        else:  # of what no reader looks at: statistics, names of writers
            assert np.array_equal(load(tmp_path / "a").get([3, 4, 5]), ROWS[3:6])


def test_statistics_that_do_not_fit_end_no_process(tmp_path: Path) -> None:
    """PyArrow ends it when it is asked for the sizes in such a footer; its reader raises, or takes no notice."""
    filled(tmp_path / "a").close()
    path = tmp_path / "a" / "part-000001.parquet"
    sound = path.read_bytes()
    start = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    footer = ThriftReader(sound[start:-8]).struct()
    groups = footer[4][1][1]
    groups[0][1][1][1][0][3][1][16] = STRUCT, {3: (LIST, (I64, [0] * 9))}  # a histogram of more levels than there are
    damaged = write_struct(footer)
    path.write_bytes(sound[:start] + damaged + len(damaged).to_bytes(4, "little") + b"PAR1")
    storage = load(tmp_path / "a")
    if storage.verify():
        with pytest.raises(StorageCorruptedError, match=r"part-000001\.parquet"):
            storage.get([3, 4, 5])
    else:
        assert np.array_equal(storage.get([3, 4, 5]), ROWS[3:6])


def test_pieces_that_are_missing_cut_or_in_the_wrong_place_are_found(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    first, second = (tmp_path / "a" / f"part-00000{number}.parquet" for number in (0, 1))
    whole, other = first.read_bytes(), second.read_bytes()
    for damage, match in ((whole[:-1], "whole"), (whole[:40], "whole"), (b"", "whole"), (other, "not in its place")):
        first.write_bytes(damage)
        with pytest.raises(StorageCorruptedError, match=f"part-000000.parquet: .*{match}"):
            load(tmp_path / "a").get(0)
        assert len(load(tmp_path / "a").verify()) == 1
    first.unlink()
    with pytest.raises(StorageCorruptedError, match=r"part-000000\.parquet: the file is missing"):
        load(tmp_path / "a").get(0)
    first.symlink_to(second)
    with pytest.raises(StorageCorruptedError, match="not a plain file"):
        load(tmp_path / "a").get(0)


def test_a_reader_notices_that_a_piece_was_written_since(tmp_path: Path) -> None:
    storage = filled(tmp_path / "a")
    reader = load(tmp_path / "a")
    assert np.array_equal(reader.get(9), ROWS[9])
    storage.set(0, ROWS[5])
    storage.flush()
    with pytest.raises(StorageCorruptedError, match="written since this storage was opened"):
        reader.get(0)
    storage.close()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"piece_size": 0}, "piece_size"),
        ({"piece_size": "3"}, "piece_size"),
        ({"num_rows": -1}, "num_rows"),
        ({"num_rows": 11}, "11 rows, wanted the capacity"),
        ({"column_shapes": {"date": [2, 2]}}, "columns"),
        ({"generations": {"x": 1}}, "generations"),
        ({"generations": {"-1": 1}}, "generations"),
    ],
)
def test_metadata_that_cannot_be_right_is_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    from unienv_data.base.files import read_json, write_json

    filled(tmp_path / "a").close()
    file = tmp_path / "a" / "_metadata.json"
    write_json(file, {**read_json(file, checksum=True), **change})
    with pytest.raises(ValueError, match=match) as caught:
        load(tmp_path / "a")
    assert "_metadata.json" in str(caught.value)
    file.write_bytes(file.read_bytes().replace(b"3", b"4", 1))
    with pytest.raises(StorageCorruptedError, match="checksum"):
        load(tmp_path / "a")


def test_a_column_that_is_not_what_the_space_wants_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "a").close()
    path = tmp_path / "a" / "part-000000.parquet"
    stamp = pq.ParquetFile(path).metadata.metadata
    for column in (
        pa.array([[1.0] * 4] * 3, pa.list_(pa.float64())),
        pa.array([[1.0] * 3] * 3, pa.list_(pa.float32())),
        pa.array([[1.0] * 4, None, [1.0] * 4], pa.list_(pa.float32())),
        pa.array([b"abc"] * 3, pa.binary(3)),
        pa.array(["a"] * 3),
    ):
        table = pa.table({"data": column}).replace_schema_metadata(
            {key: value for key, value in stamp.items() if key.startswith(b"unienv")}
        )
        pq.write_table(table, path)
        with pytest.raises(StorageCorruptedError, match=r"part-000000\.parquet"):
            load(tmp_path / "a").get(0)


class Spy(pa.ExtensionType):  # type: ignore[misc, name-defined]
    """A type that remembers whether a file has made it."""

    made = 0

    def __init__(self) -> None:
        super().__init__(pa.int64(), "unienv.tests.spy")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"anything"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Any:
        cls.made += 1
        return cls()


def test_extension_types_are_refused_before_they_are_made(tmp_path: Path) -> None:
    pa.register_extension_type(Spy())
    try:
        column = pa.ExtensionArray.from_storage(Spy(), pa.array([1, 2, 3]))
        pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
        pq.read_table(tmp_path / "a.parquet")
        assert Spy.made > 0
        Spy.made = 0
        with pytest.raises(StorageCorruptedError, match="extension type"):
            ParquetStorage.load_replay_buffer_from_raw_parquet(tmp_path / "a.parquet")
        assert Spy.made == 0
    finally:
        pa.unregister_extension_type("unienv.tests.spy")
