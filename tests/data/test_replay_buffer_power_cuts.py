"""Power cuts: any of the pages that were written since the last sync may be lost. And boots, where none is."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers
from power_cut import SHARED, another_boot, batch, run, run_in_turn, sample, space_of, watched

import unienv_data
from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.base.row_storage import ROW_WHOLE, ROW_WRONG
from unienv_data.replay_buffer import _state
from unienv_data.storages.packed import PackedStorage
from unienv_interface.backends import NumpyComputeBackend

HERE, NUMPY = Path(__file__).parent, NumpyComputeBackend


def test_three_hundred_power_cuts(tmp_path: Path) -> None:
    assert run(tmp_path, 300, seed=0) == 300


def test_sixty_power_cuts_of_observations_stored_once(tmp_path: Path) -> None:
    assert run(tmp_path, 60, seed=0, kinds=sorted(SHARED)) == 60


def test_power_cuts_one_after_the_other(tmp_path: Path) -> None:
    """What is found is gone on with, until the power is cut again, be it while the buffer is opened."""
    assert run_in_turn(tmp_path, 12, seed=0) > 100


@pytest.mark.soak
def test_ten_thousand_images_of_power_cuts_one_after_the_other(tmp_path: Path) -> None:
    assert run_in_turn(tmp_path, 1000, seed=1000) > 10_000


@pytest.mark.soak
def test_five_thousand_power_cuts_of_observations_stored_once(tmp_path: Path) -> None:
    for part in range(10):
        assert run(tmp_path / str(part), 500, seed=1000 * (part + 1), kinds=sorted(SHARED)) == 500


@pytest.mark.soak
def test_ten_thousand_power_cuts(tmp_path: Path) -> None:
    for part in range(20):
        assert run(tmp_path / str(part), 500, seed=1000 * (part + 1)) == 500


# -- boots -------------------------------------------------------------------------------------------------


def kill_and(then: str, kills: int, seed: int) -> str:
    command = [sys.executable, "-W", "error", str(HERE / "kill_loop.py"), "--then", then]
    command += ["--kills", str(kills), "--seed", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize("then", ["boot", "copy"])
def test_nothing_is_lost_by_a_kill_and_a_boot_or_a_copy(then: str) -> None:
    assert "30 kills" in kill_and(then, 30, seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("then", ["boot", "copy"])
def test_nothing_is_lost_by_a_thousand_kills_and_boots_or_copies(then: str) -> None:
    assert "1000 kills" in kill_and(then, 1000, seed=100)


# -- readers on other machines -------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 12])
def test_a_reader_on_another_machine_sees_what_a_writer_writes(
    capacity: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each time that checksums are compared the writer has gone on meanwhile."""
    path, coming = tmp_path / "buffer", itertools.count(8)
    check_rows = PackedStorage.check_rows
    with ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path) as writer:
        writer.extend(numbers(range(8)))

        def check_beside_the_writer(*arguments: Any, **options: Any) -> np.ndarray:
            writer.extend(numbers([next(coming) for _ in range(5)]))
            return check_rows(*arguments, **options)

        with another_boot(), monkeypatch.context() as patch:
            patch.setattr(PackedStorage, "check_rows", check_beside_the_writer)
            reader = ReplayBuffer.load_from(path, backend=NUMPY)
            assert reader.verify() == []
        writer.extend(numbers([next(coming)]))
        assert contents(reader) == contents(writer)
        reader.close()


def test_a_reader_on_another_machine_waits_for_an_edit_that_is_being_made(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with ReplayBuffer.create(number_space(), cache_path=path) as writer:
        writer.extend(numbers([1, 2]))
        writer._counters.edit += 1
        ending = threading.Timer(0.05, lambda: setattr(writer._counters, "edit", 2))
        ending.start()
        with another_boot(), ReplayBuffer.load_from(path, backend=NUMPY) as reader:
            assert contents(reader) == [1, 2]
        ending.join()


# -- a buffer that was closed, or that several processes wrote ---------------------------------------------


@pytest.mark.parametrize("capacity", [None, 8])
def test_a_power_cut_after_a_closed_buffer_was_opened_again(capacity: int | None, tmp_path: Path) -> None:
    """A header that says that the buffer is closed must not stay on disk while the other files change."""
    path, image = tmp_path / "buffer", tmp_path / "image"
    with ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path) as buffer:
        buffer.extend(numbers(range(6)))
    with watched(path) as durable, ReplayBuffer.load_from(path, backend=NUMPY, read_only=False) as buffer:
        buffer.extend(numbers(range(6, 9)))
        shutil.copytree(path, image)  # all pages but those of the header are on disk
        (image / "header.bin").write_bytes(durable["header.bin"])
    with another_boot(), ReplayBuffer.load_from(image, backend=NUMPY) as found:
        assert contents(found) == [0, 1, 2, 3, 4, 5][0 if capacity is None else 1 :]
        assert bool(found.verify()) == (capacity is not None)


def test_what_is_found_after_a_power_cut_is_durable_once_it_is_opened_to_write(tmp_path: Path) -> None:
    path, image = tmp_path / "buffer", tmp_path / "image"
    buffer = ReplayBuffer.create(number_space(), capacity=4, cache_path=path)
    buffer.extend(numbers([1, 2, 3, 4]))
    buffer._state.folder_lock.release()
    with another_boot():
        with ReplayBuffer.load_from(path, backend=NUMPY, read_only=False) as again:
            header = (path / "header.bin").read_bytes()
            again.append(number(5))  # in the place of the oldest
            shutil.copytree(path, image)
        (image / "header.bin").write_bytes(header)
        with another_boot(), ReplayBuffer.load_from(image, backend=NUMPY) as found:
            assert contents(found) == [2, 3, 4]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_power_cut_in_an_edit_of_a_buffer_of_several_writers(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens it finds out what is there before it goes on with what the writer has left half done."""
    path, options = tmp_path / "buffer", {"backend": NUMPY, "read_only": False, "multiprocessing": True}
    buffer = ReplayBuffer.create(number_space(), cache_path=path, multiprocessing=True)
    buffer.extend(numbers([1, 2, 3]))
    buffer.flush()

    def cut(*arguments: Any) -> None:
        raise GeneratorExit

    monkeypatch.setattr(_state, "finish", cut)
    with pytest.raises(GeneratorExit):
        buffer.set_at(1, number(20))
    monkeypatch.undo()
    buffer._state.folder_lock.release()
    if is_damaged:
        os.truncate(path / "journal.bin", 0)  # which did not reach the disk
    with another_boot(), ReplayBuffer.load_from(path, **options) as found:
        assert contents(found) == [1, 2 if is_damaged else 20, 3]
        assert found.verify() == []


# -- files that are gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.bin", "sums.bin", "segments.bin", "header.bin"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
@pytest.mark.parametrize("durable", [False, True])
def test_files_that_are_gone_are_an_error(name: str, how: str, durable: bool, tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), cache_path=path, durable=durable, maintain_segment_metadata=True)
    buffer.extend(numbers([1, 2]))
    (file,) = path.rglob(name)
    content = file.read_bytes()
    file.unlink()
    if how == "replaced":
        file.write_bytes(content)
    with pytest.raises(FileNotFoundError, match=rf"{how} while it was being written.*{name}"):  # noqa: PT012
        buffer.extend(numbers([3]))  # an end that is durable
        buffer.flush()
    with pytest.raises(OSError, match="a flush has failed"):
        buffer.append(number(4))
    buffer.close()


def test_a_folder_that_is_removed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), cache_path=path)
    buffer.append(number(1))
    shutil.rmtree(path)
    with pytest.raises(FileNotFoundError, match="deleted while it was being written"):
        buffer.flush()
    buffer.close()


def test_a_folder_may_be_renamed(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    with ReplayBuffer.create(number_space(), cache_path=path) as buffer:
        buffer.append(number(1))
        path.rename(tmp_path / "moved")
        buffer.flush()
        buffer.append(number(2))
    with ReplayBuffer.load_from(tmp_path / "moved", backend=NumpyComputeBackend) as moved:
        assert contents(moved) == [1, 2]


# -- rows that were written and not acknowledged ------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 8])
@pytest.mark.parametrize("shared", [False, True])
def test_a_row_behind_the_head_does_not_pass_for_the_next_sample(
    capacity: int | None, shared: bool, tmp_path: Path
) -> None:
    path, options = tmp_path / "buffer", {"multiprocessing": True} if shared else {}
    buffer = ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path, **options)
    buffer.extend(numbers(range(5)))
    storage, slot = buffer.storage, 5
    storage.reserve(slot, slot + 1)
    storage.write(slot, storage.encode(number(99), None), 5)  # and killed before the head moves
    where, what = np.array([slot]), np.array([5])
    assert storage.check_rows(where, what) == ROW_WHOLE
    buffer._state.folder_lock.release()
    kept = shutil.copytree(path, tmp_path / "kept")
    with ReplayBuffer.load_from(kept, backend=NumpyComputeBackend, read_only=False, **options) as again:
        assert contents(again) == [0, 1, 2, 3, 4]
        assert again.storage.check_rows(where, what) == ROW_WRONG
        again.append(number(5))
        assert again.storage.check_rows(where, what) == ROW_WHOLE
        assert contents(again) == [0, 1, 2, 3, 4, 5]
        assert again.verify() == []


# -- small blocks ------------------------------------------------------------------------------------------


def fill_small_blocks(folder: Path, fills: int) -> None:
    """Fill a file system whose blocks are smaller than a page."""
    image, mount = folder / "image", folder / "mounted"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(12 * 2**20)
    make = ["mkfs.ext4", "-q", "-b", "1024", "-m", "0", "-O", "^has_journal", str(image)]
    can_make = shutil.which("mkfs.ext4") and subprocess.run(make, capture_output=True).returncode == 0
    if os.geteuid() or not can_make or subprocess.run(["mount", "-o", "loop", image, mount]).returncode:
        pytest.skip("only root may mount a file system")
    try:
        command = [sys.executable, "-W", "error", str(HERE / "disk_full.py"), str(mount), "--fills", str(fills)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        assert result.returncode == 0, f"{result.returncode} {result.stderr[-3000:]}"
    finally:
        subprocess.run(["umount", mount], check=True)


def test_small_blocks_are_filled_five_times(tmp_path: Path) -> None:
    fill_small_blocks(tmp_path, 5)


@pytest.mark.soak
def test_small_blocks_are_filled_two_hundred_times(tmp_path: Path) -> None:
    fill_small_blocks(tmp_path, 200)


# -- records of episodes that did not reach the disk --------------------------------------------------------


def test_a_ring_of_which_no_record_of_an_episode_is_there_can_be_read(tmp_path: Path) -> None:
    """Of more episodes than the ring has samples the oldest are not looked at, nor counted."""
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), capacity=4, cache_path=path, keep_episodes=True)
    for value in range(8):
        buffer.extend(numbers([value]))
    buffer._state.folder_lock.release()
    os.truncate(path / "segments.bin", 0)
    with another_boot():
        with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as found:
            assert contents(found) == []
            assert "records of episodes did not reach the disk" in str(found.verify())
        with pytest.raises(StorageCorruptedError, match="unienv repair"):
            ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False)


def test_repair_keeps_no_sample_whose_checksum_did_not_reach_the_disk(tmp_path: Path) -> None:
    path, repaired = tmp_path / "buffer", tmp_path / "repaired"
    buffer = ReplayBuffer.create(number_space(), cache_path=path, keep_episodes=True)
    buffer.extend(numbers([1, 2]))
    buffer.flush()
    buffer.extend(numbers([3, 4, 5]))
    buffer._state.folder_lock.release()
    os.truncate(path / "storage" / "sums.bin", 3 * 8)
    with another_boot():
        report = unienv_data.repair(path, repaired)
    assert report.samples == 3
    assert report.left_out == ["samples 3 to 4: written after the last flush, without a checksum on disk"]


# -- rows that were not acknowledged -------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 4])
def test_a_row_that_was_not_acknowledged_does_not_pass_for_the_next_of_its_number(
    capacity: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, image = tmp_path / "buffer", tmp_path / "image"
    buffer = ReplayBuffer.create(number_space(), capacity=capacity, cache_path=path)
    buffer.extend(numbers([1, 2]))
    write = type(buffer.storage).write

    def killed(*arguments: Any) -> None:
        write(*arguments)
        raise GeneratorExit  # before the head moves

    monkeypatch.setattr(type(buffer.storage), "write", killed)
    with pytest.raises(GeneratorExit):
        buffer.extend(numbers([70, 71]))
    monkeypatch.undo()
    buffer._state.folder_lock.release()
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False) as again:
        again.flush()
        shutil.copytree(path, image)
        again.extend(numbers([3, 4]))  # of which a power cut takes all but the counters
        shutil.copy(path / "header.bin", image / "header.bin")
    with another_boot(), ReplayBuffer.load_from(image, backend=NumpyComputeBackend) as found:
        assert contents(found) == [1, 2]
        assert "samples 2 to 3 (2) were written after the last flush" in str(found.verify())


# -- an edit whose values did not reach the disk -------------------------------------------------------------


def test_values_that_an_edit_refers_to_and_a_power_cut_has_taken_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make the edit again must not give what is left of them a checksum that it matches."""
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(space_of("heap"), cache_path=path)
    buffer.extend(batch([1, 2, 3], "heap"))
    buffer.flush()
    heap = path / "storage" / "heap.bin"
    durable = heap.stat().st_size

    def cut(*arguments: Any) -> None:
        raise GeneratorExit  # the edit is written down, and not made

    monkeypatch.setattr(_state, "finish", cut)
    with pytest.raises(GeneratorExit):
        buffer.set_at(1, sample(4, "heap"))
    monkeypatch.undo()
    buffer._state.folder_lock.release()
    with heap.open("r+b") as file:
        file.seek(durable)
        file.write(bytes(heap.stat().st_size - durable))
    with another_boot():
        ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False).close()
        with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as found:
            assert "samples 1 to 1 do not match their checksum" in str(found.verify())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_repair_of_a_buffer_of_which_samples_are_half_removed(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens it to write finishes that; without the journal nobody can, and repair says so."""
    path = tmp_path / "buffer"
    buffer = ReplayBuffer.create(number_space(), cache_path=path, keep_episodes=True)
    buffer.extend(numbers(range(6)))
    write = type(buffer.storage).write_raw_rows

    def cut(storage: Any, slots: Any, raw: bytes, of: Any) -> None:
        write(storage, slots[:1], raw[: len(raw) // len(slots)], of[:1])
        raise GeneratorExit

    monkeypatch.setattr(type(buffer.storage), "write_raw_rows", cut)
    with pytest.raises(GeneratorExit):
        buffer.remove_at([2])
    monkeypatch.undo()
    buffer._state.folder_lock.release()
    if is_damaged:
        os.truncate(path / "journal.bin", 20)
    with another_boot():
        if is_damaged:
            with pytest.raises(StorageCorruptedError, match="keep what is whole with `unienv repair`"):
                ReplayBuffer.load_from(path, backend=NumpyComputeBackend)
        else:
            with pytest.raises(StorageCorruptedError, match="open the buffer once with read_only=False"):
                unienv_data.repair(path, tmp_path / "repaired")
            ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False).close()
        report = unienv_data.repair(path, tmp_path / "repaired")
    if is_damaged:
        assert "what it was to write is damaged as well" in report.notes[0]
        return
    with ReplayBuffer.load_from(tmp_path / "repaired", backend=NumpyComputeBackend) as found:
        assert contents(found) == [0, 1, 3, 4, 5]
