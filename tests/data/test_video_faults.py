"""Video columns where something fails: kills while frames are encoded, full disks, damage, codecs that do not work."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame, frames

from unienv_data import Image, ReplayBuffer, StorageCorruptedError, Video, repair
from unienv_data.storages import _episode_encoder, _raw_frames, row_memory
from unienv_data.storages.video_storage import VideoStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, DictSpace

pytest.importorskip("av")

# This process may have threads of other tests' libraries; the forks use none of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

SHAPE = (24, 32, 3)
LOAD: Any = {"backend": NumpyComputeBackend}
# The functions that encode, verify, commit and drop.
ENCODING = {
    "_encode",
    "_raw_frames",
    "encode_video",
    "verify_video",
    "crc_of",
    "_delete_clips",
    "_drop_if_empty",
    "drop",
}


def create(folder: Path, capacity: int | None = None, **options: Any) -> ReplayBuffer:
    space = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=SHAPE)
    options = {"codec": "ffv1", **options}
    return ReplayBuffer.create(VideoStorage, space, capacity=capacity, cache_path=folder, **options)


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted((folder / "storage").glob(pattern))


def numbers_of(found: np.ndarray) -> list[int | None]:
    """Which frames these are, of the first 200."""
    known = {frame(number, SHAPE).tobytes(): number for number in range(200)}
    return [known.get(one.tobytes()) for one in found]


# -- kills -------------------------------------------------------------------------------------------------


def record_and_kill(folder: Path, kill_at: int) -> int:
    """Record two episodes in a child that is killed before a line of encoding; the lines there were if it was not."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sender, str(_record(folder, kill_at)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sender)
    _, status = os.waitpid(child, 0)
    text = os.read(receiver, 100)
    os.close(receiver)
    assert os.WIFSIGNALED(status) == (not text), status
    return int(text or 0)


def _record(folder: Path, kill_at: int) -> int:
    lines = 0

    def trace(code: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if code.f_code.co_name not in ENCODING:
            return None
        if event == "line":
            lines += 1
            if lines == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    buffer = ReplayBuffer.load_from(folder, read_only=False, **LOAD)
    buffer.extend(frames(3, SHAPE))
    buffer.extend(frames(2, SHAPE, first=3))
    buffer.storage.settle()
    return lines


def check_kill(tmp_path: Path, line: int) -> None:
    folder = tmp_path / f"line{line}"
    create(folder).close()
    record_and_kill(folder, line)
    with ReplayBuffer.load_from(folder, **LOAD) as reader:
        assert numbers_of(reader.get_at(...)) in ([0, 1, 2], [0, 1, 2, 3, 4]), line
        count = len(reader)
        assert reader.verify() == [], line
    with ReplayBuffer.load_from(folder, read_only=False, **LOAD) as writer:
        writer.extend(frames(4, SHAPE, first=count))
        writer.storage.settle()
        assert numbers_of(writer.get_at(...)) == list(range(count + 4)), line
    assert len(files(folder, "*.avi")) == len(writer_episodes(folder)), line
    assert not files(folder, "*raw-*") + files(folder, ".*"), line


def writer_episodes(folder: Path) -> Any:
    with ReplayBuffer.load_from(folder, **LOAD) as reader:
        assert reader.verify() == []
        return reader.get_segments()


def test_a_kill_at_any_line_of_encoding_loses_nothing(tmp_path: Path) -> None:
    create(tmp_path / "count").close()
    total = record_and_kill(tmp_path / "count", 0)
    assert total > 60
    for line in range(1 + os.getpid() % 16, total, 16):
        check_kill(tmp_path, line)


@pytest.mark.soak
def test_a_kill_at_every_line_of_encoding_loses_nothing(tmp_path: Path) -> None:
    create(tmp_path / "count").close()
    for line in range(1, record_and_kill(tmp_path / "count", 0)):
        check_kill(tmp_path, line)
        shutil.rmtree(tmp_path / f"line{line}")


# -- writes that fail --------------------------------------------------------------------------------------


def test_frames_of_a_write_that_failed_are_in_no_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = create(tmp_path / "a", raw_bytes=60 * frame(0, SHAPE).nbytes)
    write = VideoStorage.write

    def fail_afterwards(self: VideoStorage, *arguments: Any) -> None:
        write(self, *arguments)
        raise OSError("the next column has no room")

    with monkeypatch.context() as patched:
        patched.setattr(VideoStorage, "write", fail_afterwards)
        with pytest.raises(OSError, match="the next column"):
            buffer.extend(frames(30, SHAPE, first=100))
    for number in range(45):
        buffer.append(frame(number, SHAPE))
    buffer.mark_segment_end()
    buffer.storage.settle()
    assert numbers_of(buffer.get_at(...)) == list(range(45))
    buffer.close()


@pytest.fixture
def broken_codec(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Encoding fails until this is called."""
    encode = _episode_encoder.encode_video

    def fail(path: Path, *arguments: Any) -> int:
        path.write_bytes(b"half a video")
        raise RuntimeError("the codec does not work")

    monkeypatch.setattr(_episode_encoder, "encode_video", fail)
    return lambda: monkeypatch.setattr(_episode_encoder, "encode_video", encode)


def test_a_writer_is_refused_while_no_frame_can_be_encoded(tmp_path: Path, broken_codec: Callable[[], None]) -> None:
    nbytes = frame(0, SHAPE).nbytes
    with create(tmp_path / "a", raw_bytes=40 * nbytes) as buffer, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(OSError, match="cannot be encoded, and no more may wait: the codec does not work"):
            _append_episodes(buffer, 200, length=10)
        number = len(buffer)
        assert 30 <= number <= 60
        assert buffer.storage.settle(60) == 0  # what was tried once more may be under way
        assert not files(tmp_path / "a", ".*.tmp")
        assert numbers_of(buffer.get_at(...)) == list(range(number))
        broken_codec()  # it works again
        for n in range(number, number + 20):
            buffer.append(frame(n, SHAPE))
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert numbers_of(buffer.get_at(...)) == list(range(number + 20))


def _append_episodes(buffer: ReplayBuffer, count: int, length: int) -> None:
    for number in range(count):
        buffer.append(frame(number, SHAPE))
        if number % length == length - 1:
            buffer.mark_segment_end()


def test_a_disk_that_was_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_raw_frames, "_PIECE_SLOTS", 4)
    with create(tmp_path / "a") as buffer:
        buffer.extend(frames(4, SHAPE))
        buffer.storage._encoder.await_piece()
        with monkeypatch.context() as patched:
            patched.setattr(_raw_frames.MappedMemory, "reserve", _no_room)
            with pytest.raises(OSError, match="no room"):
                buffer.extend(frames(8, SHAPE, first=4))
        buffer.storage.settle()  # a thread deletes the piece of the frames that it has encoded
        assert not files(tmp_path / "a", ".raw-*")
        buffer.extend(frames(8, SHAPE, first=4))
        assert numbers_of(buffer.get_at(...)) == list(range(12))


def _no_room(*arguments: Any) -> Any:
    raise OSError(28, "no room")


def test_the_end_of_an_episode_is_durable_while_pieces_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = _raw_frames.PackedStorage.flush

    def drop_first(piece: Any) -> None:
        number = int(Path(piece.cache_filename).name.partition("-")[2])
        if number == 0 and buffer.storage._raw.has(0):
            shutil.rmtree(buffer.storage._raw.drop(0))
        flush(piece)

    monkeypatch.setattr(_raw_frames, "_PIECE_SLOTS", 4)
    buffer = create(tmp_path / "a", durable=True)
    buffer.extend(frames(5, SHAPE))
    buffer.storage.settle()
    buffer.storage._raw.make(0)  # as the encoder would have left it
    monkeypatch.setattr(_raw_frames.PackedStorage, "flush", drop_first)
    buffer.extend(frames(3, SHAPE, first=5))
    assert numbers_of(buffer.get_at(...)) == list(range(8))
    buffer.close()


# -- damage ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording") / "a"
    with create(folder) as buffer:
        for first in (0, 6, 12):
            buffer.extend(frames(6, SHAPE, first=first))
    return folder


@pytest.fixture
def copied(recording: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recording, tmp_path / "copy"))


@pytest.mark.parametrize("kept", [0, 1, 100, -1000, -1])
def test_a_video_that_was_cut_costs_its_own_samples_alone(kept: int, copied: Path, tmp_path: Path) -> None:
    path = files(copied, "6-*.avi")[0]
    os.truncate(path, kept if kept >= 0 else path.stat().st_size + kept)
    with ReplayBuffer.load_from(copied, **LOAD) as buffer:
        assert "samples 6 to 11 do not match" in buffer.verify()[0]
        assert numbers_of(buffer.get_at([0, 17])) == [0, 17]
        if kept != -1:
            with pytest.raises(StorageCorruptedError, match="a video cannot be read"):
                buffer.get_at(range(6, 12))
    report = repair(copied, tmp_path / "repaired")
    assert (report.samples, report.episodes) == (12, 2)
    with ReplayBuffer.load_from(tmp_path / "repaired", **LOAD) as buffer:
        assert numbers_of(buffer.get_at(...)) == [*range(6), *range(12, 18)]


def test_damaged_videos_give_frames_or_errors_that_name_them(copied: Path) -> None:
    rng, (path, *_) = np.random.default_rng(0), files(copied, "*.avi")
    whole = path.read_bytes()
    for _ in range(40):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), rng.choice([1, 20])):
            content[place] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        with ReplayBuffer.load_from(copied, **LOAD) as buffer:
            assert buffer.verify()
            with contextlib.suppress(StorageCorruptedError):  # and nothing else
                buffer.get_at(range(6))


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 0), lambda path: path.unlink()])
def test_no_video_is_deleted_where_the_places_are_lost(damage: Any, copied: Path, tmp_path: Path) -> None:
    damage(copied / "storage" / "places.bin")
    for read_only in (True, False):
        with pytest.raises(StorageCorruptedError, match=r"places\.bin"):
            ReplayBuffer.load_from(copied, read_only=read_only, **LOAD)
    assert len(files(copied, "*.avi")) == 3
    report = repair(copied, tmp_path / "repaired")
    assert (report.samples, report.episodes) == (18, 3)
    with ReplayBuffer.load_from(tmp_path / "repaired", **LOAD) as buffer:
        assert numbers_of(buffer.get_at(...)) == list(range(18))


def test_a_list_of_other_files_is_no_video(copied: Path) -> None:
    first, second, _ = files(copied, "*.avi")
    first.write_text(f"ffconcat version 1.0\nfile {second.name}\n")
    with ReplayBuffer.load_from(copied, **LOAD) as buffer, pytest.raises(StorageCorruptedError, match="cannot be read"):
        buffer.get_at([0])


# -- episodes that are dropped -----------------------------------------------------------------------------


@pytest.mark.parametrize("settles", [True, False])
@pytest.mark.parametrize("before", [0, 5])
def test_an_open_episode_that_is_encoded_in_part_is_discarded(before: int, settles: bool, tmp_path: Path) -> None:
    bound = 40 * frame(0, SHAPE).nbytes
    with create(tmp_path / "a", raw_bytes=bound) as buffer, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it waits
        if before:
            buffer.extend(frames(before, SHAPE))
        for number in range(100, 190):
            buffer.append(frame(number, SHAPE))
            if settles:
                buffer.storage.settle()
        assert buffer.discard_open_segment() == 90
        assert numbers_of(buffer.get_at(...)) == list(range(before))
        for number in range(before, before + 30):
            buffer.append(frame(number, SHAPE))
        buffer.mark_segment_end()
        buffer.storage.settle()
        assert numbers_of(buffer.get_at(...)) == list(range(before + 30))
        assert buffer.verify() == []
    assert (
        sum(int(path.name.split("-")[1]) - int(path.name.split("-")[0]) + 1 for path in files(tmp_path / "a", "*.avi"))
        == before + 30
    )
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert numbers_of(buffer.get_at(...)) == list(range(before + 30))


def test_the_newest_samples_can_be_removed(tmp_path: Path) -> None:
    with create(tmp_path / "a") as buffer:
        buffer.extend(frames(6, SHAPE))
        buffer.extend(frames(6, SHAPE, first=6))
        buffer.storage.settle()
        buffer.remove_at(range(4, 12))
        assert numbers_of(buffer.get_at(...)) == [0, 1, 2, 3]
        buffer.extend(frames(5, SHAPE, first=50))
        buffer.storage.settle()
        assert numbers_of(buffer.get_at(...)) == [0, 1, 2, 3, 50, 51, 52, 53, 54]
        assert buffer.get_segments() == [(0, 4), (4, 9)]
        assert buffer.verify() == []


# -- what readers hold -------------------------------------------------------------------------------------


def test_a_reader_holds_few_pieces_and_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_raw_frames, "_PIECE_SLOTS", 4)
    with create(tmp_path / "a") as buffer, ReplayBuffer.load_from(tmp_path / "a", **LOAD) as reader:
        for number in range(80):
            buffer.append(frame(number, SHAPE))
            assert numbers_of(reader.get_at([number])) == [number]
            if number % 4 == 3:
                buffer.mark_segment_end()
                buffer.storage.settle()
        assert numbers_of(reader.get_at(range(0, 80, 4))) == list(range(0, 80, 4))
        assert len(reader.storage._raw._open) <= _raw_frames._MOST_OPEN
        assert sum(map(len, reader.storage._clips._reader._open.values())) <= 16


def test_a_snapshot_by_a_reader_of_a_ring_that_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path / "a", capacity=12) as buffer, ReplayBuffer.load_from(tmp_path / "a", **LOAD) as reader:
        buffer.extend(frames(6, SHAPE))
        buffer.extend(frames(6, SHAPE, first=6))
        buffer.storage.settle()
        copy = VideoStorage._copy_frames

        def overwrite_meanwhile(self: VideoStorage, *arguments: Any) -> Any:
            clips = copy(self, *arguments)
            if self is reader.storage and len(buffer) and buffer._counters.head == 12:
                buffer.extend(frames(7, SHAPE, first=12))
                buffer.storage.settle()
            return clips

        monkeypatch.setattr(VideoStorage, "_copy_frames", overwrite_meanwhile)
        reader.dumps(tmp_path / "b")
    with ReplayBuffer.load_from(tmp_path / "b", **LOAD) as copied:
        assert numbers_of(copied.get_at(...)) == list(range(7, 12))
        assert copied.verify() == []


def test_the_rule_that_does_not_fit_names_its_column(tmp_path: Path) -> None:
    state = BoxSpace(NumpyComputeBackend, -1, 1, "float32", shape=(3,))
    space = DictSpace(NumpyComputeBackend, {"obs": {"state": state}, "action": state})
    with pytest.raises(ValueError, match="obs/state: frames are uint8 or uint16"):
        ReplayBuffer.create(space, columns={"obs/*": Video()}, cache_path=tmp_path / "a")


def test_a_warning_names_the_column(tmp_path: Path, broken_codec: Callable[[], None]) -> None:
    camera = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=SHAPE)
    space = DictSpace(NumpyComputeBackend, {"obs": {"cam_a": camera, "cam_b": camera}})
    rules = {"obs/cam_a": Image("png"), "obs/cam_b": Video("ffv1")}
    buffer = ReplayBuffer.create(space, columns=rules, cache_path=tmp_path / "a")
    buffer.extend({"obs": {"cam_a": frames(4, SHAPE), "cam_b": frames(4, SHAPE)}})
    with pytest.warns(RuntimeWarning, match=f"{tmp_path / 'a' / 'storage'}, column 'obs/cam_b': frames could not"):
        buffer.close()


def file_pages() -> int:
    """The bytes of files that this process has mapped and in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssFile"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells how much memory a process takes")
def test_packed_frames_that_were_read_do_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "_MOST_READ", 2**20)
    space = BoxSpace(NumpyComputeBackend, 0, 255, "uint8", shape=(128, 128))
    with ReplayBuffer.create(space, cache_path=tmp_path / "a") as buffer:
        buffer.extend(np.full((2000, 128, 128), 7, np.uint8))
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        before = file_pages()
        for start in range(0, 2000, 50):
            assert (buffer.get_at(range(start, start + 50)) == 7).all()
        assert file_pages() - before < 16 * 2**20  # of 32 MiB
