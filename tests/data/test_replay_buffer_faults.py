"""Damaged, hostile and read-only folders, and disks that fill up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers
from catalogue import SPACES, samples
from test_replay_buffer_processes import HERE, SOURCE, run

import unienv_data
from unienv_data import ReplayBuffer, StorageCorruptedError, check
from unienv_data.base.mapped import MappedFile
from unienv_data.base.storage import UnsupportedFormatError
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

NUMPY = NumpyComputeBackend
REFUSED = (StorageCorruptedError, ValueError)


def with_everything(folder: Path, capacity: int | None = 7) -> Path:
    """A buffer whose storage has every kind of file, closed in order."""
    space = DictSpace(
        NUMPY,
        {
            "number": BoxSpace(NUMPY, -1, 2**30, "int32", shape=()),
            "image": BoxSpace(NUMPY, 0, 255, "uint8", shape=(70, 70)),
            "points": SPACES["dynamic_box"](NUMPY),
        },
    )
    with ReplayBuffer.create(space, capacity=capacity, cache_path=folder, maintain_segment_metadata=True) as buffer:
        for value in samples(space, 11):
            buffer.append(value)
            if len(buffer) % 3 == 0:
                buffer.mark_segment_end()
        buffer.mark_segment_end()
    return folder


def is_found(path: Path) -> bool:
    """Whether opening, verifying or reading says that something is wrong. A signal would end the tests."""
    try:
        with ReplayBuffer.load_from(path, backend=NUMPY) as buffer:
            findings = buffer.verify()
            if not findings:
                buffer.get_at(...)
            return bool(findings)
    except (OSError, *REFUSED) as error:
        if path.name not in str(error):
            raise AssertionError(f"the error does not name the place: {error}") from error
        return True


def all_files(path: Path) -> list[Path]:
    # the lock and the journal of edits that are made hold nothing
    return [file for file in sorted(path.rglob("*")) if file.is_file() and file.name not in ("lock", "journal.bin")]


# -- flips and truncation ----------------------------------------------------------------------------------


def undetected_flips(path: Path, step: int, start: int) -> list[tuple[str, int, int]]:
    """The bits, every n-th of every file, whose flip goes unseen."""
    unseen = []
    for file in all_files(path):
        data = bytearray(file.read_bytes())
        for bit in range(start % step, 8 * len(data), step):
            data[bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            if not is_found(path):
                unseen.append((file.name, bit // 8, bit % 8))
            data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
    assert not is_found(path)
    return unseen


@pytest.mark.parametrize("capacity", [11, None])
def test_a_flipped_bit_is_found(tmp_path: Path, capacity: int | None) -> None:
    path = tmp_path / "buffer"
    if capacity is None:  # a snapshot, as the growing files themselves have much room for more
        buffer = ReplayBuffer.create(number_space(), maintain_segment_metadata=True)
        buffer.extend(numbers(range(30)))
        buffer.dumps(path)
    else:
        with_everything(path, capacity)
    assert undetected_flips(path, 2003, 11) == []


@pytest.mark.soak
def test_every_flipped_bit_of_the_small_files_is_found(tmp_path: Path) -> None:
    path = with_everything(tmp_path / "buffer", 11)  # just as many as there are: nothing is left over
    for name in ("header.bin", "metadata.json", "segments.bin", "storage/sums.bin", "storage/heap.bin"):
        keep = path / name
        data = bytearray(keep.read_bytes())
        for bit in range(8 * len(data)):
            data[bit // 8] ^= 1 << bit % 8
            keep.write_bytes(data)
            assert is_found(path), (name, bit)
            data[bit // 8] ^= 1 << bit % 8
        keep.write_bytes(data)


@pytest.mark.parametrize("name", ["metadata.json", "header.bin"])
def test_flipped_bits_of_the_head_are_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(BoxSpace(NUMPY, 0, 1, "float32", shape=(1,)), capacity=2, cache_path=path).close()
    data = bytearray((path / name).read_bytes())
    for bit in range(0, 8 * len(data), 5 if name == "metadata.json" else 97):
        data[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(data)
        assert is_found(path), (name, bit)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("capacity", [7, None])
def test_a_file_that_is_cut_or_longer_or_gone_is_found(tmp_path: Path, capacity: int | None) -> None:
    path = with_everything(tmp_path / "buffer", capacity)
    for file in all_files(path):
        data = file.read_bytes()
        cuts = {0, 1, len(data) // 2, max(len(data) - 1, 0), *range(0, min(len(data), 40_000), 4096)}
        for cut in sorted(cuts - {len(data)}):
            file.write_bytes(data[:cut])
            assert is_found(path), (file.name, cut)
        for extra in (b"\0", b"\0" * 4096, b"x" * 24):
            file.write_bytes(data + extra)
            assert is_found(path), (file.name, len(extra))
        file.unlink()
        assert is_found(path), file.name
        file.write_bytes(data)
    assert not is_found(path)


def test_files_that_grow_can_be_opened_at_any_instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown, written = set(), 0

    def watched(grow: Callable[[MappedFile, int], None]) -> Callable[[MappedFile, int], None]:
        def extend(file: MappedFile, length: int) -> None:
            grow(file, length)
            grown.add(file.path.name if file.path is not None else "")
            # as by a reader now, or after a kill
            with ReplayBuffer.load_from(tmp_path / "buffer", backend=NumpyComputeBackend) as reader:
                assert len(reader) == written

        return extend

    options = {"capacity": None, "cache_path": tmp_path / "buffer", "maintain_segment_metadata": True}
    with ReplayBuffer.create(number_space(), **options) as buffer:
        for name in ("extend", "extend_reserved"):
            monkeypatch.setattr(MappedFile, name, watched(getattr(MappedFile, name)))
        for written in range(0, 20_000, 100):
            buffer.extend(numbers(range(written, written + 100)))
    assert grown == {"rows.bin", "segments.bin", "sums.bin"}


def test_swapped_files_are_found(tmp_path: Path) -> None:
    path = with_everything(tmp_path / "buffer")
    files = all_files(path)
    for one in files:
        for other in files:
            if one < other:
                first, second = one.read_bytes(), other.read_bytes()
                one.write_bytes(second)
                other.write_bytes(first)
                assert is_found(path), (one.name, other.name)
                one.write_bytes(first)
                other.write_bytes(second)


def test_rows_of_another_buffer_are_found(tmp_path: Path) -> None:
    for name, first in (("one", 0), ("other", 100)):
        with ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / name) as buffer:
            buffer.extend(numbers(range(first, first + 3)))
    shutil.copy(tmp_path / "other" / "storage" / "rows.bin", tmp_path / "one" / "storage" / "rows.bin")
    with ReplayBuffer.load_from(tmp_path / "one", backend=NUMPY) as buffer:
        (finding,) = buffer.verify()
        assert "samples 0 to 2 do not match their checksum" in finding
        assert str(tmp_path / "one") in finding


def test_a_damaged_header_has_no_length(tmp_path: Path) -> None:
    path = with_everything(tmp_path / "buffer")
    header, data = path / "header.bin", (path / "header.bin").read_bytes()
    assert ReplayBuffer.get_length_from_path(path) == 7
    flips = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(0, len(data), 97)]
    for damaged in (b"", data[:-1], data + b"\0", *flips):
        header.write_bytes(damaged)
        with pytest.raises(StorageCorruptedError, match=r"header\.bin"):
            ReplayBuffer.get_length_from_path(path)
    header.unlink()
    with pytest.raises(StorageCorruptedError, match=r"header\.bin: the file is missing"):
        ReplayBuffer.get_length_from_path(path)


# -- power cuts --------------------------------------------------------------------------------------------


def pretend_the_machine_has_booted(path: Path) -> None:
    from unienv_data.base.mapped import MappedFile
    from unienv_data.replay_buffer._counters import MappedHeader

    file = MappedFile.open(path / "header.bin", np.uint8, writable=True)
    MappedHeader(file).counters.boot += 1
    file.close()


def killed_after_a_flush(path: Path, *, capacity: int | None = 8) -> None:
    """A buffer whose writer flushed 1 and 2, wrote 3, 4 and 5, and was killed; and the machine has booted since."""
    buffer = ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path, maintain_segment_metadata=True)
    buffer.extend(numbers([1, 2]))
    buffer.flush()
    buffer.extend(numbers([3, 4]))
    buffer.append(number(5))
    del buffer
    pretend_the_machine_has_booted(path)


@pytest.mark.parametrize("capacity", [8, None])
def test_after_a_restart_in_order_all_that_was_acknowledged_is_there(tmp_path: Path, capacity: int | None) -> None:
    killed_after_a_flush(tmp_path / "buffer", capacity=capacity)
    shutil.copytree(tmp_path / "buffer", tmp_path / "copy")
    for path in (tmp_path / "buffer", tmp_path / "copy"):
        assert ReplayBuffer.get_length_from_path(path) == 5
        for read_only in (True, False, True):
            with ReplayBuffer.load_from(path, backend=NUMPY, read_only=read_only) as found:
                assert contents(found) == [1, 2, 3, 4, 5]
                assert found.get_segments() == [(0, 2), (2, 4)]
                assert found.verify() == []


def test_what_a_power_cut_has_left_in_part_is_kept_out_of_reads(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    killed_after_a_flush(path)
    rows = path / "storage" / "rows.bin"
    size = rows.stat().st_size // 8
    with rows.open("r+b") as file:  # that of 4 has not reached the disk, that of 5 has
        file.seek(3 * size)
        file.write(bytes(size))
    with ReplayBuffer.load_from(path, backend=NUMPY) as found:
        assert contents(found) == [1, 2, 3]
        (finding,) = found.verify()
        assert "samples 3 to 4 (2) were written after the last flush" in finding
    with pytest.raises(StorageCorruptedError, match=r"samples 3 to 4 \(2\).* keep what is whole with `unienv repair`"):
        ReplayBuffer.load_from(path, backend=NUMPY, read_only=False)
    unienv_data.repair(path, tmp_path / "repaired")
    with ReplayBuffer.load_from(tmp_path / "repaired", backend=NUMPY) as found:
        assert contents(found) == [1, 2, 3, 5]


def test_samples_that_a_power_cut_has_let_be_overwritten_are_kept_out_of_reads(tmp_path: Path) -> None:
    """The counters have not reached the disk, the rows in the place of the oldest samples have."""
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), capacity=8, cache_path=path)
    buffer.extend(numbers(range(8)))
    buffer.flush()
    header = (path / "header.bin").read_bytes()
    buffer.extend(numbers([8, 9, 10]))
    del buffer
    (path / "header.bin").write_bytes(header)
    pretend_the_machine_has_booted(path)
    with ReplayBuffer.load_from(path, backend=NUMPY) as found:
        assert contents(found) == [3, 4, 5, 6, 7]
        (finding,) = found.verify()
        assert "the oldest 3 samples were overwritten after the last flush" in finding


def test_a_failed_flush_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=8, cache_path=tmp_path / "buffer")
    buffer.append(number(1))

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            buffer.flush()
    with pytest.raises(OSError, match="a flush has failed"):
        buffer.append(number(2))
    assert contents(buffer) == [1]
    del buffer
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as again:
        assert contents(again) == [1]


# -- disks -------------------------------------------------------------------------------------------------


def can_mount() -> bool:
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def run_on_a_small_disk(folder: Path, fills: int) -> None:
    if not can_mount():
        pytest.skip("no user namespaces here")
    script = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$2" -W error "$3" "$1" --fills "$4"'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", str(folder), sys.executable]
    command += [str(HERE / "disk_full.py"), str(fills)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert result.returncode == 0, f"{result.returncode} {result.stderr[-3000:]}"
    assert "nothing lost" in result.stdout


def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    run_on_a_small_disk(tmp_path, 20)


@pytest.mark.soak
def test_a_disk_may_be_full_two_hundred_times(tmp_path: Path) -> None:
    run_on_a_small_disk(tmp_path, 200)


def test_a_limit_to_file_sizes_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    run(str(HERE / "disk_full.py"), str(tmp_path), "--fills", "5", "--limit", "3000000")


READ = """
import sys
from buffers import contents
import unienv_data
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
buffer = ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend)
assert contents(buffer) == [1, 2, 3]
assert buffer.verify() == []
assert ReplayBuffer.get_length_from_path(sys.argv[1]) == 3
for act in (
    lambda: ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend, read_only=False),
    lambda: ReplayBuffer.create(buffer.single_space, capacity=3, cache_path=sys.argv[1] + "/inside"),
    lambda: buffer.dumps(sys.argv[1] + "/inside"),
):
    try:
        act()
    except OSError as error:
        assert sys.argv[1] in str(error), error
    else:
        raise AssertionError("written to a read-only disk")
buffer.close()
print("read")
"""


def test_a_read_only_disk_is_read(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("no user namespaces here")
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=tmp_path / "buffer") as buffer:
        buffer.extend(numbers([1, 2, 3]))
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -W error -c "$3" "$1/buffer"'
    command = ["unshare", "-Urm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, READ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE)])}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout) == (0, "read\n"), result.stderr[-3000:]


def test_a_folder_removed_underneath_is_an_error_or_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), cache_path=path)
    buffer.extend(numbers(range(10)))
    reader = ReplayBuffer.load_from(path, backend=NUMPY)
    shutil.rmtree(path)
    assert contents(reader) == list(range(10))
    buffer.extend(numbers(range(5000)))
    assert len(buffer) == 5010
    with pytest.raises(OSError, match="buffer"):
        buffer.dumps("/proc/buffer")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        ReplayBuffer.load_from(path, backend=NUMPY)


# -- what was not written by us ----------------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata and give it a checksum that fits."""
    content = json.loads((path / "metadata.json").read_text())
    del content["checksum"]
    change(content)
    text = json.dumps({**content, "checksum": "0" * 8}, indent=1).encode() + b"\n"
    at = text.rindex(b"00000000")
    (path / "metadata.json").write_bytes(text[:at] + b"%08x" % zlib.crc32(text) + text[at + 8 :])


def fields(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(changes)


def space_fields(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["single_instance_space"].update(changes)


PICKLE = "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAV0b3VjaJSFlFKULg=="
HOSTILE = {
    **{
        f"storage_{name}": fields(storage_cls=name)
        for name in (
            "os.system",
            "subprocess:call",
            "builtins.eval",
            "evil.Storage",
            "evil:Storage",
            "unienv_data.storages.packed.PackedStorage.__init__",
            "..packed",
            "unienv_data.base.storage.SpaceStorage",
            "__import__",
            "",
            "packed\0",
            "PACKED",
        )
    },
    "storage_list": fields(storage_cls=["packed"]),
    "storage_pickle": fields(storage_cls={"mode": "pickle", "data": PICKLE}),
    "storage_missing": lambda content: content.pop("storage_cls"),
    **{
        f"path_{number}": fields(storage_path_relative=path)
        for number, path in enumerate(
            [
                "../outside",
                "..",
                ".",
                "",
                "/etc",
                "/proc/self/root",
                "storage/../../outside",
                "storage\0",
                "storage\\..\\outside",
                "C:\\outside",
                "\\\\host\\share",
                "link",
                "stor\u0430ge",
                "stor\ud800ge",
                None,
                7,
                ["storage"],
                {"path": "storage"},
                "a" * 5000,
            ]
        )
    },
    **{
        f"count_{number}": fields(**change)
        for number, change in enumerate(
            [
                {"count": -1},
                {"count": 10**9},
                {"count": 1.0},
                {"count": True},
                {"count": "3"},
                {"count": None},
                {"count": 10**400},
                {"offset": -1},
                {"offset": 4},
                {"offset": None},
                {"capacity": 0},
                {"capacity": -4},
                {"capacity": 5},
                {"capacity": 10**12},
                {"capacity": 2**63},
                {"capacity": "4"},
                {"capacity": 4.0},
                {"capacity": None, "count": 10**9},
                {"physical_segments": [[0]]},
                {"physical_segments": [["a", "b"]]},
                {"physical_segments": {"0": 1}},
                {"physical_segments": [[-1, 2]]},
                {"maintain_segment_metadata": "yes"},
                {"durable": 1},
            ]
        )
    },
    "version_future": fields(format_version=99),
    "version_text": fields(format_version="1"),
    "version_negative": fields(format_version=-1),
    "version_float": fields(format_version=1.5),
    "type_other": fields(type="os.system"),
    "type_missing": lambda content: content.pop("type"),
    "space_missing": lambda content: content.pop("single_instance_space"),
    "space_unknown": space_fields(type="evil.Space"),
    "space_list": fields(single_instance_space=[]),
    "space_pickle": fields(single_instance_space={"mode": "pickle", "data": PICKLE}),
    "space_other": fields(single_instance_space={"type": "BinarySpace", "shape": [3], "dtype": "bool"}),
    "space_huge": fields(single_instance_space={"type": "BinarySpace", "shape": [10**9, 10**9], "dtype": "bool"}),
    "space_negative": fields(single_instance_space={"type": "BinarySpace", "shape": [-1], "dtype": "bool"}),
    "space_deep": lambda content: content.update(single_instance_space=_deep(60)),
    "deep": lambda content: content.update(extra=_deep(100)),
}


def _deep(levels: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "BinarySpace", "shape": [1], "dtype": "bool"}
    for _ in range(levels):
        node = {"type": "TupleSpace", "spaces": [node]}
    return node


WATCHED = """
import gc, sys
from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_data.storages.registry import storage_names

storage_names()
ReplayBuffer.load_from(sys.argv[1], backend=NumpyComputeBackend).get_at(...)  # a good one, which imports what it needs
known = set(sys.modules)

def watch(event, arguments):
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.__new__", "pickle.find_class"):
        raise SystemExit(f"forbidden: {event} {arguments}")
    if event == "import" and arguments[0] not in known and not arguments[0].startswith(("importlib", "email", "_")):
        raise SystemExit(f"forbidden: import {arguments[0]}")
    if event == "open" and isinstance(arguments[0], str) and "/outside" in arguments[0]:
        raise SystemExit(f"forbidden: open {arguments[0]}")

sys.addaudithook(watch)
for folder in sys.stdin.read().split():
    sys.path.insert(0, folder)
    try:
        buffer = ReplayBuffer.load_from(folder, backend=NumpyComputeBackend)
        buffer.get_at(...)
    except ValueError as error:
        if folder not in str(error) and "storage is registered" not in str(error):
            raise SystemExit(f"{folder}: the error does not name it: {error}")
    else:
        raise SystemExit(f"{folder} was opened")
    finally:
        sys.path.remove(folder)
print("all refused")
"""


def test_hostile_metadata_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    with ReplayBuffer.create(number_space(), capacity=4, cache_path=origin) as buffer:
        buffer.extend(numbers([1, 2, 3]))
    outside = tmp_path / "outside"
    shutil.copytree(origin / "storage", outside)
    (origin / "evil.py").write_text("import os\nos.system('touch ran')\nclass Storage: pass\n")
    folders = []
    for name, change in HOSTILE.items():
        folder = tmp_path / name.replace("/", "_").replace("\0", "_").replace(":", "_")
        shutil.copytree(origin, folder)
        (folder / "link").symlink_to(outside)
        rewrite(folder, change)
        folders.append(str(folder))
    assert len(folders) >= 60
    assert "all refused" in run("-c", WATCHED, str(origin), given="\n".join(folders))


@pytest.mark.parametrize("name", ["rows.bin", "sums.bin", "header.bin", "segments.bin", "metadata.json"])
@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "absolute link"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    (file,) = path.rglob(name)
    shutil.move(file, tmp_path / name)
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        target = tmp_path / name
        file.symlink_to(target if kind == "absolute link" else os.path.relpath(target, file.parent))
    before = (tmp_path / name).read_bytes()
    for read_only in (True, False):
        with pytest.raises(REFUSED, match=name):
            ReplayBuffer.load_from(path, backend=NUMPY, read_only=read_only)
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("start", "stop", "match"),
    [(8, 4096, "neither copy of the counters"), (64, 168, "say less than was flushed|does not match")],
)
def test_counters_that_are_zeros_are_no_empty_buffer(
    start: int, stop: int, match: str, is_closed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), cache_path=path)
    buffer.extend(numbers([1, 2, 3]))
    buffer.flush()
    if is_closed:
        buffer.close()
    else:
        buffer._state.folder_lock.release()
    content = bytearray((path / "header.bin").read_bytes())
    content[start:stop] = bytes(stop - start)
    (path / "header.bin").write_bytes(content)
    for read_only in (True, False):
        with pytest.raises(StorageCorruptedError, match=f"header.bin: .*({match})"):
            ReplayBuffer.load_from(path, backend=NUMPY, read_only=read_only)
    with pytest.raises(StorageCorruptedError, match=match):
        ReplayBuffer.get_length_from_path(path)
    assert unienv_data.repair(path, tmp_path / "repaired").samples == 3


def test_a_storage_that_links_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), cache_path=path).close()
    shutil.rmtree(path / "storage")
    (path / "storage").symlink_to("storage")
    for read_only in (True, False):
        with pytest.raises(StorageCorruptedError, match="storage"):
            ReplayBuffer.load_from(path, backend=NUMPY, read_only=read_only)


def test_metadata_that_is_too_large_or_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    for text in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 100_000, b" " * (17 * 2**20), b"[" * 10**6):
        (path / "metadata.json").write_bytes(text)
        with pytest.raises(StorageCorruptedError, match=r"metadata\.json"):
            ReplayBuffer.load_from(path, backend=NUMPY)


def test_a_refused_folder_is_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    ReplayBuffer.create(number_space(), capacity=4, cache_path=path).close()
    rewrite(path, fields(format_version=3))
    before = {file: file.read_bytes() for file in all_files(path)}
    with pytest.raises(ValueError, match="format version 3, this release reads up to 2"):
        ReplayBuffer.load_from(path, backend=NUMPY, read_only=False)
    assert {file: file.read_bytes() for file in all_files(path)} == before


# -- paths that are none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://bucket/data", "gs://bucket/data", "hf://datasets/me/data", "memory://data"])
def test_urls_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = ReplayBuffer.create(number_space())
    for act in (
        lambda: ReplayBuffer.create(number_space(), cache_path=url),
        lambda: ReplayBuffer.load_from(url, backend=NUMPY),
        lambda: buffer.dumps(url),
    ):
        with pytest.raises(ValueError, match="is a URL, and buffers lie in local folders: copy the folder here first"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_not_called_corrupted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        ReplayBuffer.load_from(tmp_path / "nowhere", backend=NUMPY)


def test_sound_folders_of_something_else_are_not_called_corrupted(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"not a replay buffer, there is no metadata\.json"):
        ReplayBuffer.load_from(tmp_path, backend=NUMPY)
    (tmp_path / "metadata.json").write_text('{"data_format": "hdf5", "total_steps": 7}')
    with pytest.raises(UnsupportedFormatError, match=r"metadata\.json: of type None, wanted a ReplayBuffer"):
        ReplayBuffer.load_from(tmp_path, backend=NUMPY)


@pytest.mark.parametrize("url", ["file:///data/run", "FILE:/data/run", Path("file:///data/run")])
def test_urls_of_files_are_refused(url: Any) -> None:
    for act in (lambda: ReplayBuffer.create(number_space(), cache_path=url), lambda: check(url)):
        with pytest.raises(ValueError, match="is a URL: give the path, '/data/run'"):
            act()
