"""A dataset is converted once, all or nothing, again when it has changed, and in little memory and room."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari_cases import BOXES, boxes, minari, minari_folder, record, write

from unienv_data import StorageCorruptedError
from unienv_data.datasets import MinariExperienceReplay
from unienv_data.datasets import _minari_convert as conversion
from unienv_data.datasets import minari as ours

ID = "some-v0"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> Iterator[None]:
    with minari_folder(tmp_path / "minari"):
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "converted"


def replay(root: Path, dataset_id: str = ID, **options: Any) -> MinariExperienceReplay:
    options = {"load_from_local_minari": True, "progress": False, **options}
    return MinariExperienceReplay(dataset_id, 4, root=root, **options)


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """The files under a folder, with sizes and times."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


# -- once, and again ---------------------------------------------------------------------------------------


def test_a_converted_dataset_is_reused_and_the_source_left_alone(root: Path, tmp_path: Path) -> None:
    write(ID, [boxes(5)], *BOXES)
    source = snapshot(tmp_path / "minari")
    replay(root).close()
    before = snapshot(root)
    for download in (True, False):
        replay(root, download=download).close()
        replay(root, download=download, load_from_local_minari=False).close()
    assert snapshot(root) == before
    assert snapshot(tmp_path / "minari") == source


def test_a_changed_source_is_converted_again(root: Path) -> None:
    folder = write(ID, [boxes(5)], *BOXES)
    replay(root).close()
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"][2] = 99.0
    for local in (True, False):
        with replay(root, load_from_local_minari=local) as data:
            assert data["next", "reward"][2] == 99.0
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps({**metadata, "author": ["somebody"]}))
    with replay(root) as data:
        assert data.metadata["author"] == ["somebody"]


def test_force_converts_again(root: Path) -> None:
    write(ID, [boxes(5)], *BOXES)
    replay(root).close()
    before = snapshot(root)
    replay(root, download="force").close()
    after = snapshot(root)
    assert after.keys() == before.keys()
    assert after != before


def test_a_copy_whose_source_is_gone_still_serves(root: Path) -> None:
    minari_path = write(ID, [boxes(5)], *BOXES)
    replay(root).close()
    minari_path.rename(minari_path.with_name("gone"))
    with replay(root, load_from_local_minari=False) as data:
        assert len(data) == 5
    with pytest.raises(FileNotFoundError, match="no local Minari dataset 'some-v0'"):
        replay(root)


def test_delete_removes_the_copy_only(root: Path, tmp_path: Path) -> None:
    write(ID, [boxes(5)], *BOXES)
    data = replay(root)
    assert data.data_path_root == data.data_path == root / ID
    data.delete()
    assert not (root / ID).exists()
    assert (tmp_path / "minari" / ID).exists()


def test_the_default_root_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(ID, [boxes(2)], *BOXES)
    with MinariExperienceReplay(ID, 2, load_from_local_minari=True, progress=False) as data:
        assert data.data_path == tmp_path / "cache" / "unienv" / "minari" / ID


# -- downloads ---------------------------------------------------------------------------------------------


def test_downloads_go_to_a_folder_that_does_not_stay(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def download(dataset_id: str) -> None:
        calls.append(os.environ["MINARI_DATASETS_PATH"])
        write(dataset_id, [boxes(4, seed=len(calls))], *BOXES)

    monkeypatch.setattr(minari, "download_dataset", download)
    remote = {"load_from_local_minari": False}
    with replay(root, **remote) as data:
        first = data["next", "reward"].tolist()
    with replay(root, **remote) as data:
        assert data["next", "reward"].tolist() == first
    with replay(root, download="force", **remote) as data:
        assert data["next", "reward"].tolist() != first
    assert len(calls) == 2
    assert not any(Path(path).exists() for path in calls)
    assert os.environ["MINARI_DATASETS_PATH"] == str(tmp_path / "minari")
    assert not (tmp_path / "minari").exists()


def test_without_a_network_the_copy_stays_and_the_error_says_what_there_is(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(dataset_id: str) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(minari, "download_dataset", unreachable)
    write(ID, [boxes(5)], *BOXES)
    with pytest.raises(ConnectionError, match=r"network is unreachable.*load_from_local_minari=True"):
        replay(root, load_from_local_minari=False)
    assert snapshot(root) == {}
    replay(root).close()
    before = snapshot(root)
    with pytest.raises(ConnectionError, match="'some-v0' could not be downloaded"):
        replay(root, load_from_local_minari=False, download="force")
    assert snapshot(root) == before


# -- interruptions -----------------------------------------------------------------------------------------


def _convert_in_two_parts(root: Path, pipe: Any) -> None:
    """Convert, and ask before the marker is written and the folder moved."""
    write_json = conversion.write_json

    def pause(path: Path, content: Any) -> None:
        pipe.send("converted")
        pipe.recv()
        write_json(path, content)

    conversion.write_json = pause  # type: ignore[assignment]
    replay(root).close()


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("ending", ["killed", "in peace"])
def test_another_process_that_converts_at_the_same_time(
    ending: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes second waits, and then uses what the first has made, or makes it if that one was killed."""
    write(ID, [boxes(5)], *BOXES)
    context = multiprocessing.get_context("fork")
    own, other = context.Pipe()
    process = context.Process(target=_convert_in_two_parts, args=(root, other))
    process.start()
    assert own.recv() == "converted"  # all but the marker and the move
    assert not (root / ID).exists()
    conversions = []
    convert = ours.convert
    monkeypatch.setattr(ours, "convert", lambda *args, **options: (conversions.append(args), convert(*args, **options)))
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(replay, root)
        if ending == "killed":
            process.kill()
        own.send("go on")
        with second.result(60) as data:
            assert len(data) == 5
    process.join(60)
    assert len(conversions) == (ending == "killed")
    assert [path.name for path in root.iterdir() if not path.name.endswith(".lock")] == [ID]


def test_threads_that_convert_at_once_do_no_harm(root: Path) -> None:
    write(ID, [boxes(20, seed=seed) for seed in range(5)], *BOXES)
    with ThreadPoolExecutor(4) as threads:
        for data in threads.map(lambda _: replay(root, download="force"), range(4)):
            with data:
                assert data.verify() == []
                assert len(data) == 100


# -- size and memory ---------------------------------------------------------------------------------------


def _column_bytes(folder: Path) -> int:
    total = 0

    def add(_: str, item: Any) -> None:
        nonlocal total
        total += item.nbytes if isinstance(item, h5py.Dataset) else 0

    with h5py.File(folder / "main_data.hdf5") as file:
        file.visititems(add)
    return total


@pytest.mark.parametrize("case", ["box", "goal", "discrete", "raw image"])
def test_the_copy_takes_hardly_more_than_the_columns(case: str, root: Path, tmp_path: Path) -> None:
    record(case, ID, script=[(200, "terminated")] * 8)
    replay(root).close()
    taken = sum(size for size, _ in snapshot(root / ID).values())
    marker = (root / ID / "dataset.json").stat().st_size
    assert taken - marker <= 1.1 * _column_bytes(tmp_path / "minari" / ID / "data")


def test_a_long_episode_is_read_in_stretches(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import unienv_data.datasets._minari_convert as convert

    infos = {"late": np.arange(50)}
    episode = boxes(50, infos=infos)
    write(ID, [episode, boxes(3, seed=1)], *BOXES)
    monkeypatch.setattr(convert, "_CHUNK_BYTES", 7 * 64)
    with replay(root) as data:
        np.testing.assert_array_equal(data["observation"][:50].numpy(), episode["observations"][:-1])
        np.testing.assert_array_equal(data["next", "observation"][:50].numpy(), episode["observations"][1:])
        np.testing.assert_array_equal(data["action"][:50].numpy(), episode["actions"])
        assert data["next", "info", "late"][:50].tolist() == list(range(50))
        assert data["next", "done"].flatten().nonzero().flatten().tolist() == [49, 52]


_BIG = """
import numpy as np, h5py, torch, tensordict, minari, gymnasium
import unienv_data.datasets._minari_convert as convert
from unienv_data.datasets import MinariExperienceReplay

def peak():  # of this process; what `resource` gives begins with that of its parent
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

before = peak()
data = MinariExperienceReplay({id!r}, 256, root={root!r}, load_from_local_minari=True, progress=False)
print((peak() - before) // 1024)
"""


def _write_big(folder: Path, episodes: int, steps: int) -> None:
    """Episodes of a thousand numbers a step, written without Minari, which would hold them in memory."""
    write(ID, [boxes(1)], *BOXES)
    metadata = json.loads((folder / "metadata.json").read_text())
    metadata |= {"total_episodes": episodes, "total_steps": episodes * steps}
    box = {"type": "Box", "dtype": "float64", "shape": [1000], "low": [-1e9] * 1000, "high": [1e9] * 1000}
    metadata["observation_space"] = json.dumps(box)
    (folder / "metadata.json").write_text(json.dumps(metadata))
    observations = np.random.default_rng(0).normal(size=(steps + 1, 1000))
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        for number in range(episodes):
            group = file.create_group(f"episode_{number}")
            group.create_dataset("observations", data=observations, chunks=True)
            group.create_dataset("actions", data=np.zeros((steps, 2), np.float32), chunks=True)
            for name, dtype in (("rewards", np.float64), ("terminations", bool), ("truncations", bool)):
                group.create_dataset(name, data=np.zeros(steps, dtype), chunks=True)


def _peak_megabytes(root: Path) -> int:
    script = textwrap.dedent(_BIG).format(id=ID, root=str(root))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(result.stdout)


def test_memory_is_bounded(root: Path, tmp_path: Path) -> None:
    _write_big(tmp_path / "minari" / ID / "data", episodes=3, steps=15_000)  # 360 MB
    assert _peak_megabytes(root) < 300


@pytest.mark.soak
def test_memory_is_bounded_for_four_gigabytes(root: Path, tmp_path: Path) -> None:
    _write_big(tmp_path / "minari" / ID / "data", episodes=25, steps=20_000)
    assert _peak_megabytes(root) < 300


# -- bad input ---------------------------------------------------------------------------------------------


def test_an_unknown_dataset_is_an_error_with_similar_names(root: Path) -> None:
    write("D4RL/door/human-v2", [boxes(2)], *BOXES)
    with pytest.raises(FileNotFoundError, match="similar names: D4RL/door/human-v2"):
        replay(root, "D4RL/door/humans-v2")
    with pytest.raises(FileNotFoundError, match="download is False"):
        replay(root, "D4RL/door/humans-v2", load_from_local_minari=False, download=False)
    with pytest.raises(ValueError, match="Malformed dataset ID"):
        replay(root, "../door-v2")
    with pytest.raises(ValueError, match="wants a version at its end"):
        replay(root, "door")
    with pytest.raises(ValueError, match="download is 'yes'"):
        replay(root, download="yes")
    assert snapshot(root) == {} if root.exists() else True


def _missing_file(folder: Path) -> None:
    (folder / "main_data.hdf5").unlink()


def _truncated(folder: Path) -> None:
    path = folder / "main_data.hdf5"
    os.truncate(path, path.stat().st_size // 2)


def _not_json(folder: Path) -> None:
    (folder / "metadata.json").write_text("{")


def _edit(folder: Path, change: Any) -> None:
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        change(file)


def _replaced(name: str, values: Any) -> Any:
    def damage(folder: Path) -> None:
        def change(file: Any) -> None:
            del file[name]
            file[name] = values

        _edit(folder, change)

    return damage


def _removed(name: str) -> Any:
    return lambda folder: _edit(folder, lambda file: file.pop(name))


def _external(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_bytes(bytes(96))

    def change(file: Any) -> None:
        del file["episode_1/observations"]
        file["episode_1"].create_dataset("observations", (4, 3), "f8", external=[(str(secret), 0, 96)])

    _edit(folder, change)


def _link(folder: Path) -> None:
    def change(file: Any) -> None:
        del file["episode_1/observations"]
        file["episode_1/observations"] = h5py.ExternalLink("/etc/passwd", "/")

    _edit(folder, change)


def _virtual(folder: Path) -> None:
    def change(file: Any) -> None:
        layout = h5py.VirtualLayout((4, 3), "f8")
        layout[:] = h5py.VirtualSource("other.hdf5", "x", (4, 3))
        del file["episode_1/observations"]
        file.create_virtual_dataset("episode_1/observations", layout)

    _edit(folder, change)


def _bomb(folder: Path) -> None:
    def change(file: Any) -> None:
        del file["episode_1/observations"]
        bomb = file.create_dataset("episode_1/observations", (2**36, 3), "f8", chunks=(1024, 3))
        bomb[0] = 1

    _edit(folder, change)


def _never_written(folder: Path) -> None:
    def change(file: Any) -> None:
        del file["episode_1/observations"]
        file.create_dataset("episode_1/observations", (4, 3), "f8", chunks=(4, 3))

    _edit(folder, change)


FAULTS = {
    "missing file": (_missing_file, FileNotFoundError, r"main_data.hdf5 is missing"),
    "truncated": (_truncated, StorageCorruptedError, r"main_data.hdf5"),
    "not json": (_not_json, StorageCorruptedError, r"metadata.json: not JSON"),
    "short observations": (
        _replaced("episode_1/observations", np.zeros((3, 3))),
        StorageCorruptedError,
        r"episode_1: observation has 3 entries, with 3 rewards it must have 4",
    ),
    "long actions": (
        _replaced("episode_1/actions", np.zeros((4, 2), np.float32)),
        StorageCorruptedError,
        r"episode_1: action has 4 entries",
    ),
    "short flags": (
        _replaced("episode_1/truncations", np.zeros(2, bool)),
        StorageCorruptedError,
        r"episode_1: truncations has 2 entries",
    ),
    "odd infos": (
        _replaced("episode_1/infos/x", np.zeros(9)),
        StorageCorruptedError,
        r"episode_1: info/x has 9 entries, with 3 rewards it must have 3 or 4",
    ),
    "other shape": (
        _replaced("episode_1/observations", np.zeros((4, 5))),
        StorageCorruptedError,
        r"episode_1: observation is array float64 of shape \(5,\), in .*episode_0 it is array float64 of shape \(3,\)",
    ),
    "no observations": (
        _removed("episode_1/observations"),
        StorageCorruptedError,
        r"episode_1: observation is missing",
    ),
    "no rewards": (_removed("episode_1/rewards"), StorageCorruptedError, r"episode_1: rewards are missing"),
    "no episode": (_removed("episode_1"), StorageCorruptedError, r"episode_1 is missing, the metadata counts 2"),
    "external file": (_external, StorageCorruptedError, r"episode_1/observations: its data lie in another file"),
    "link": (_link, StorageCorruptedError, r"episode_1/observations: a soft or external link"),
    "virtual": (_virtual, StorageCorruptedError, r"episode_1/observations: its data lie in another file"),
    "bomb": (_bomb, StorageCorruptedError, r"episode_1/observations: 1649267441664 bytes"),
    "never written": (_never_written, StorageCorruptedError, r"episode_1/observations: .* no entry was written"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_dataset_is_one_clear_error_and_leaves_nothing(fault: str, root: Path) -> None:
    damage, kind, message = FAULTS[fault]
    infos = {"x": np.arange(4.0)}
    folder = write(ID, [boxes(3, infos=infos), boxes(3, seed=1, infos=infos)], *BOXES)
    replay(root, ID).close()
    before = snapshot(root)
    damage(folder)
    for _ in range(2):
        with pytest.raises(kind, match=message):
            replay(root)
        assert snapshot(root) == before


def test_a_folder_that_is_not_ours_is_left_alone(root: Path) -> None:
    write(ID, [boxes(2)], *BOXES)
    (root / ID).mkdir(parents=True)
    (root / ID / "thesis.tex").write_text("all of it")
    for download in (True, "force"):
        with pytest.raises(FileExistsError, match="not a converted dataset"):
            replay(root, download=download)
    assert (root / ID / "thesis.tex").read_text() == "all of it"


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink], ids=["cut", "flipped", "removed"])
@pytest.mark.parametrize("name", ["dataset.json", "episodes.bin", "flags.bin", "rows.bin", "block-0.bin"])
def test_a_damaged_copy_says_what_to_do_and_force_repairs_it(name: str, damage: Any, root: Path) -> None:
    large = {"observations": np.arange(31.0 * 600).reshape(31, 600)}  # more than a page: with a file of its own
    write(ID, [{**boxes(30), **large}], spaces.Box(-np.inf, np.inf, (600,), np.float64), BOXES[1])
    with replay(root) as data:
        whole = data[:]
    damage(root / ID / name)
    if damage is _flip and name in ("flags.bin", "rows.bin", "block-0.bin"):
        with replay(root) as data:
            assert [finding.partition(": ")[0] for finding in data.verify()] == [str(root / ID / name)]
            if name == "flags.bin":
                with pytest.raises(StorageCorruptedError, match=r'flags.bin: .* download="force" makes'):
                    data["next", "done"]
    else:
        for local in (True, False):
            with pytest.raises(StorageCorruptedError, match=rf'{name}.* download="force" makes it again'):
                replay(root, load_from_local_minari=local)
    with replay(root, download="force") as data:
        assert data.verify() == []
        assert (data[:] == whole).all()


def test_a_half_made_copy_says_what_to_do_and_force_repairs_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a copy whose process was killed, and which somebody has moved to its place."""
    write(ID, [boxes(5)], *BOXES)
    (root / ID).mkdir(parents=True)
    for name in ("rows.bin", "flags.bin", ".dataset.json.123.tmp"):
        (root / ID / name).write_bytes(b"half")
    for options in ({}, {"load_from_local_minari": False}, {"load_from_local_minari": False, "download": False}):
        with pytest.raises(StorageCorruptedError, match=r'dataset.json is missing.* download="force" makes it again'):
            replay(root, **options)
    with replay(root, download="force") as data:
        assert len(data) == 5
    assert {path.name for path in (root / ID).iterdir()} == {"rows.bin", "flags.bin", "episodes.bin", "dataset.json"}
    (root / ID / "dataset.json").unlink()
    monkeypatch.setattr(minari, "download_dataset", lambda dataset_id: write(dataset_id, [boxes(7)], *BOXES))
    with replay(root, download="force", load_from_local_minari=False) as data:
        assert len(data) == 7


def test_a_copy_of_another_format_version_says_what_to_do(root: Path) -> None:
    from unienv_data.base.files import read_json, write_json

    write(ID, [boxes(5)], *BOXES)
    replay(root).close()
    marker = read_json(root / ID / "dataset.json", checksum=True)
    write_json(root / ID / "dataset.json", {**marker, "format_version": 1})
    with pytest.raises(StorageCorruptedError, match=r'format version 1.* download="force" makes it again'):
        replay(root)
    replay(root, download="force").close()


def test_similar_names_need_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "nowhere"))
    assert "has no similar name" in ours._hint("x-v0")
