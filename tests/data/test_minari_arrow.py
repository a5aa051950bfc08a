"""Arrow and Parquet datasets are read in pieces of an episode, with the values that Minari was given."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from minari_cases import BOXES, CASES, boxes, minari_folder, quiet, record

from unienv_data import StorageCorruptedError
from unienv_data.datasets import MinariExperienceReplay

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FORMATS = ["arrow", "parquet"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    with minari_folder(tmp_path / "minari"):
        yield


def replay(tmp_path: Path, dataset_id: str = "some-v0", **options: Any) -> MinariExperienceReplay:
    options = {"load_from_local_minari": True, "progress": False, **options}
    return MinariExperienceReplay(dataset_id, 4, root=tmp_path / "converted", **options)


def write(dataset_id: str, data_format: str, episodes: list[dict[str, Any]]) -> Path:
    """Write episodes of numbers; the folder of the data."""
    import os

    from minari_cases import EpisodeBuffer, minari

    with quiet():
        minari.create_dataset_from_buffers(
            dataset_id,
            [EpisodeBuffer(id=number, **episode) for number, episode in enumerate(episodes)],
            observation_space=BOXES[0],
            action_space=BOXES[1],
            data_format=data_format,
        )
    return Path(os.environ["MINARI_DATASETS_PATH"]) / dataset_id / "data"


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_same_dataset_in_hdf5(case: str, data_format: str, tmp_path: Path) -> None:
    record(case, "one-v0", infos=True)
    record(case, "two-v0", infos=True, data_format=data_format)
    with replay(tmp_path, "one-v0") as one, replay(tmp_path, "two-v0") as two:
        assert (one[:] == two[:]).all()
        assert one.as_batch().single_space == two.as_batch().single_space


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(("piece", "chunk"), [(1, 1), (7, 3), (100, 1000), (350, 40)])
def test_pieces_of_any_size_give_the_same(
    piece: int, chunk: int, data_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`piece` bytes are decoded at a time, and `chunk` bytes written."""
    from unienv_data.datasets import _minari_arrow, _minari_convert

    infos = {"flat": np.arange(51), "pair": np.arange(102.0).reshape(51, 2), "word": [f"w{i % 4}" for i in range(51)]}
    episodes = [boxes(50, infos=infos), boxes(3, seed=1, infos={key: value[:4] for key, value in infos.items()})]
    write("some-v0", data_format, episodes)
    monkeypatch.setattr(_minari_arrow, "_CHUNK_BYTES", piece)
    monkeypatch.setattr(_minari_arrow, "_VARIABLE_BYTES", 8)
    monkeypatch.setattr(_minari_convert, "_CHUNK_BYTES", chunk)
    monkeypatch.setattr(_minari_convert, "_TEXTS_AT_ONCE", 5)
    with replay(tmp_path) as data:
        for number, (start, stop) in enumerate(((0, 50), (50, 53))):
            found, wanted = data[start:stop], episodes[number]
            np.testing.assert_array_equal(found["observation"], wanted["observations"][:-1])
            np.testing.assert_array_equal(found["next", "observation"], wanted["observations"][1:])
            np.testing.assert_array_equal(found["action"], wanted["actions"])
            np.testing.assert_array_equal(found["next", "reward"][:, 0], wanted["rewards"])
            np.testing.assert_array_equal(found["next", "info", "flat"], wanted["infos"]["flat"][1:])
            np.testing.assert_array_equal(found["info", "pair"], wanted["infos"]["pair"][:-1])
        texts = data.as_batch().get_column_at(["info", "word"], slice(0, 50))
        assert texts.tolist() == infos["word"][:-1]


@pytest.mark.parametrize("data_format", FORMATS)
def test_an_episode_in_several_files_and_batches(data_format: str, tmp_path: Path) -> None:
    episode = boxes(50)
    folder = write("some-v0", data_format, [episode]) / "0"
    (path,) = folder.glob(f"*.{data_format}")
    if data_format == "parquet":
        table = pq.read_table(path)
        pq.write_table(table.slice(0, 20), path, row_group_size=7)
        pq.write_table(table.slice(20, 15), folder / "part-10.parquet")
        pq.write_table(table.slice(35), folder / "part-2.parquet")  # sorted as a number
    else:
        with pa.memory_map(str(path)) as memory:
            table = pa.ipc.open_file(memory).read_all()
        for name, part in (("0", table.slice(0, 20)), ("10", table.slice(20, 15)), ("2", table.slice(35))):
            with pa.ipc.new_file(str(folder / f"new-{name}.arrow"), table.schema) as file:
                file.write_table(part.combine_chunks(), max_chunksize=7)
        path.unlink()
    with replay(tmp_path) as data:
        order = [*range(20), *range(35, 51), *range(20, 35)]
        wanted = episode["observations"][order]
        np.testing.assert_array_equal(data["observation"], wanted[:-1])
        np.testing.assert_array_equal(data["next", "observation"], wanted[1:])


_CONVERT = """
import numpy as np, torch, tensordict, minari, gymnasium
import pyarrow, pyarrow.dataset, pyarrow.parquet
from unienv_data.datasets import MinariExperienceReplay

def peak():  # of this process; what `resource` gives begins with that of its parent
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

options = dict(load_from_local_minari=True, progress=False)
for data_format in {formats!r}:
    MinariExperienceReplay(data_format + "/small-v0", 256, root={root!r}, **options).close()
before = peak()
for data_format in {formats!r}:
    MinariExperienceReplay(data_format + "/large-v0", 256, root={root!r}, **options).close()
print((peak() - before) // 1024)
"""


def _write_long(folder: Path, data_format: str, steps: int) -> int:
    """One episode of a thousand numbers a step in a single batch, as Minari writes it; returns its megabytes."""
    path = folder / "0" / f"part-0.{data_format}"
    observations = np.random.default_rng(0).integers(0, 2**60, (steps + 1, 1000)).view(np.float64)
    table = pa.table(
        {
            "observations": pa.FixedSizeListArray.from_arrays(pa.array(observations.reshape(-1)), 1000),
            "actions": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * (steps + 1), np.float32)), 2),
            "rewards": np.zeros(steps + 1),
            "terminations": np.zeros(steps + 1, bool),
            "truncations": np.zeros(steps + 1, bool),
        }
    )
    if data_format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table.combine_chunks())
    metadata = json.loads((folder / "metadata.json").read_text())
    box = {"type": "Box", "dtype": "float64", "shape": [1000], "low": [-1e308] * 1000, "high": [1e308] * 1000}
    content = {**metadata, "total_steps": steps, "observation_space": json.dumps(box)}
    (folder / "metadata.json").write_text(json.dumps(content))
    return observations.nbytes // 2**20


def test_memory_does_not_grow_with_the_longest_episode(tmp_path: Path) -> None:
    for data_format in FORMATS:
        write(f"{data_format}/small-v0", data_format, [boxes(3)])
        folder = write(f"{data_format}/large-v0", data_format, [boxes(3)])
        assert _write_long(folder, data_format, 15_000) > 110
    script = textwrap.dedent(_CONVERT).format(root=str(tmp_path / "converted"), formats=FORMATS)
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 60


# -- damage ------------------------------------------------------------------------------------------------


def _rewrite(folder: Path, data_format: str, change: Any) -> None:
    path = folder / "1" / f"part-0.{data_format}"
    table = pq.read_table(path) if data_format == "parquet" else pa.ipc.open_file(path).read_all()
    table = change(table)
    if data_format == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)


def _replaced(name: str, column: Any) -> Any:
    return lambda folder, kind: _rewrite(
        folder, kind, lambda table: table.set_column(table.schema.get_field_index(name), name, column)
    )


def _cut(folder: Path, data_format: str) -> None:
    path = folder / "1" / f"part-0.{data_format}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FAULTS: dict[str, tuple[Any, str]] = {
    "removed": (lambda folder, kind: (folder / "1" / f"part-0.{kind}").unlink(), r"episode 1: no \*"),
    "cut": (_cut, r"episode 1 cannot be read"),
    "nulls": (_replaced("rewards", pa.array([1.0, None, 2.0, 0.0])), r"episode 1: rewards: values are missing"),
    "lists": (
        _replaced("rewards", pa.array([[1.0], [], [2.0], [0.0]])),
        r"reward: list<.*>, wanted values of equal size",
    ),
    "other shape": (
        _replaced("observations", pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(20)), 5)),
        r"observation: lists of 5 numbers, wanted the shape \(3,\)",
    ),
    "no flags": (
        lambda folder, kind: _rewrite(folder, kind, lambda table: table.drop_columns(["truncations"])),
        r"episode 1: truncations are missing",
    ),
    "no rows": (
        lambda folder, kind: _rewrite(folder, kind, lambda table: table.slice(0, 0)),
        r"no observations",
    ),
}


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_dataset_is_one_clear_error_and_leaves_nothing(fault: str, data_format: str, tmp_path: Path) -> None:
    damage, message = FAULTS[fault]
    damage(write("some-v0", data_format, [boxes(3), boxes(3, seed=1)]), data_format)
    with pytest.raises(StorageCorruptedError, match=message):
        replay(tmp_path)
    assert not any(path.suffix != ".lock" for path in (tmp_path / "converted").iterdir())


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    folder = write("some-v0", "arrow", [boxes(3)])
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, "data_format": "zarr"}))
    with pytest.raises(StorageCorruptedError, match="data_format 'zarr', known are hdf5, arrow, parquet"):
        replay(tmp_path)
