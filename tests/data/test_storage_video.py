"""Frames as video: what is read before, while and after they are encoded, and what a kill leaves."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames import frame, frames

from unienv_data import ReplayBuffer, StorageCorruptedError
from unienv_data.storages import _episode_encoder, _raw_frames
from unienv_data.storages.video_storage import Video, VideoStorage
from unienv_data.testing import check_storage
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.spaces import BoxSpace

av = pytest.importorskip("av")

SHAPE = (24, 32, 3)
LOAD: Any = {"backend": NumpyComputeBackend}


def box(shape: tuple[int, ...] = SHAPE, dtype: str = "uint8", backend: Any = NumpyComputeBackend) -> Any:
    return BoxSpace(backend, 0, 255 if dtype == "uint8" else 65535, getattr(backend, dtype), shape=shape)


def create(folder: Path, space: Any = None, capacity: int | None = None, **options: Any) -> ReplayBuffer:
    options = {"codec": "ffv1", **options}
    return ReplayBuffer.create(VideoStorage, space or box(), capacity=capacity, cache_path=folder, **options)


def settled(buffer: ReplayBuffer) -> ReplayBuffer:
    buffer.storage.settle()
    return buffer


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in (folder / "storage").glob(pattern))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Encoding waits until this event is set."""
    event, encode = threading.Event(), _episode_encoder.encode_video

    def wait(*arguments: Any) -> int:
        assert event.wait(60)
        return encode(*arguments)

    monkeypatch.setattr(_episode_encoder, "encode_video", wait)
    yield event
    event.set()


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    check_storage(VideoStorage, tmp_path, spaces=(box((4, 6)), box((4, 6, 3))), codec="ffv1")


@pytest.mark.parametrize(
    ("codec", "shape", "dtype"),
    [
        ("ffv1", (15, 17), "uint8"),
        ("ffv1", (16, 16, 3), "uint8"),
        ("ffv1", (16, 18, 4), "uint8"),
        ("ffv1", (15, 17, 1), "uint16"),
        ("h264", (48, 64, 3), "uint8"),
        ("h264", (48, 64), "uint8"),
        ("hevc", (64, 80, 3), "uint8"),
        ("av1", (64, 64, 3), "uint8"),
    ],
)
def test_every_codec_gives_the_frames_back(codec: str, shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    wanted = frames(14, shape, dtype)
    with create(tmp_path / "a", box(shape, dtype), codec=codec, fps=29.97) as buffer:
        buffer.extend(wanted[:9])
        buffer.extend(wanted[9:])
        assert np.array_equal(settled(buffer).get_at([]), wanted[:0])
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        found = buffer.get_at(...)
        assert found.dtype == dtype
        assert np.array_equal(found[[13, 0, 5]], buffer.get_at([13, 0, 5]))
        if codec == "ffv1":
            assert np.array_equal(found, wanted)
        else:
            far = np.abs(found.astype(int) - wanted).mean(axis=tuple(range(1, found.ndim)))
            assert far.max() < 20
            others = np.abs(found[3].astype(int) - wanted).mean(axis=tuple(range(1, found.ndim)))
            assert others.argmin() == 3
        assert buffer.verify() == []
    assert len(names(tmp_path / "a", "*-*-*.*")) == 2
    assert names(tmp_path / "a", "raw-*") == []


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_grey_frames_keep_their_range(codec: str, tmp_path: Path) -> None:
    wanted = frames(4, (64, 64))
    with create(tmp_path / "a", box((64, 64)), codec=codec, crf=1) as buffer:
        buffer.extend(wanted)
        found = settled(buffer).get_at(...)
    assert np.abs(found.astype(int) - wanted).mean() < 1.5


@pytest.mark.parametrize(
    ("options", "shape", "dtype", "text"),
    [
        ({"codec": "vp8"}, SHAPE, "uint8", "video codec 'vp8', it must be one of h264"),
        ({"codec": "h264"}, (24, 33, 3), "uint8", "take pixel_format='yuv444p' or codec='ffv1'"),
        ({"codec": "hevc"}, (48, 48, 3), "uint8", "48 x 48, hevc wants at least 64 x 64: take codec='h264' or 'ffv1'"),
        ({"codec": "h264"}, (24, 32), "uint16", "ffv1 does"),
        ({"codec": "h264"}, (24, 32, 4), "uint8", "ffv1 does"),
        ({"codec": "ffv1"}, (24, 32, 3), "uint16", "ffv1 has uint16 with one channel"),
        ({"codec": "h264", "crf": 60}, SHAPE, "uint8", "from 0 .best. to 51"),
        ({"pixel_format": "nonsense"}, SHAPE, "uint8", "pixel_format is 'nonsense', ffv1 has yuv420p, "),
        ({"codec": "av1", "pixel_format": "gray"}, SHAPE, "uint8", "pixel_format is 'gray', av1 has yuv420p, "),
        ({"fps": 0}, SHAPE, "uint8", "fps must be above 0"),
        ({"multiprocessing": True}, SHAPE, "uint8", "one process encodes videos"),
        ({"lanes": 2}, SHAPE, "uint8", "lanes must be 1"),
    ],
)
def test_what_cannot_be_encoded_is_refused_at_once(
    options: Any, shape: tuple[int, ...], dtype: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=text):
        create(tmp_path / "a", box(shape, dtype), **options)
    assert not (tmp_path / "a").exists() or not list((tmp_path / "a").iterdir())


def test_without_a_folder_there_is_no_video() -> None:
    with pytest.raises(ValueError, match="give cache_path, or keep the frames in an ImageStorage"):
        ReplayBuffer.create(VideoStorage, box(), capacity=3)


def test_raw_frames_are_read_until_they_are_encoded(tmp_path: Path, held: threading.Event) -> None:
    wanted = frames(12, SHAPE)
    with create(tmp_path / "a") as buffer:
        reader = ReplayBuffer.load_from(tmp_path / "a", **LOAD)
        for n in range(5):
            buffer.append(wanted[n])
            assert np.array_equal(buffer.get_at(n), wanted[n])
        buffer.mark_segment_end()
        buffer.extend(wanted[5:])
        assert names(tmp_path / "a", "*.avi") == []
        assert np.array_equal(buffer.get_at(...), wanted)
        assert np.array_equal(reader.get_at(...), wanted)
        held.set()
        settled(buffer)
        assert len(names(tmp_path / "a", "*.avi")) == 2
        assert np.array_equal(reader.get_at(...), wanted)
        assert np.array_equal(buffer.get_at(...), wanted)
        assert buffer.get_segments() == [(0, 5), (5, 12)]
        reader.close()


def test_frames_of_the_open_episode_can_be_changed_and_no_others(tmp_path: Path) -> None:
    with create(tmp_path / "a") as buffer:
        buffer.extend(frames(4, SHAPE))
        for n in range(4, 8):
            buffer.append(frame(n, SHAPE))
        buffer.set_at(5, frame(99, SHAPE))
        buffer.set_at([7, 4], frames(2, SHAPE, first=50))
        buffer.remove_at(6)
        wanted = [frame(n, SHAPE) for n in (0, 1, 2, 3, 51, 99, 50)]
        for change in (
            lambda: buffer.set_at(3, frame(0, SHAPE)),
            lambda: buffer.set_at([3, 5], frames(2, SHAPE)),
            lambda: buffer.remove_at(1),
        ):
            with pytest.raises(PermissionError, match=r"copy the samples into a buffer .*\(extend_from\)"):
                change()
        assert np.array_equal(buffer.get_at(...), np.stack(wanted))
        buffer.remove_at([0, 1])  # the oldest
        buffer.mark_segment_end()
        assert np.array_equal(settled(buffer).get_at(...), np.stack(wanted[2:]))
        assert buffer.verify() == []


@pytest.mark.parametrize("capacity", [7, 20])
def test_a_ring_keeps_the_newest_and_deletes_videos(capacity: int, tmp_path: Path) -> None:
    rng, count = np.random.default_rng(0), 0
    with create(tmp_path / "a", capacity=capacity) as buffer:
        for _ in range(25):
            length = int(rng.integers(1, 6))
            for n in range(count, count + length):
                buffer.append(frame(n, SHAPE))
            count += length
            buffer.mark_segment_end()
            if rng.random() < 0.5:
                settled(buffer)
            kept = min(count, capacity)
            assert np.array_equal(buffer.get_at(...), frames(kept, SHAPE, first=count - kept))
        assert buffer.verify() == []
        assert len(names(tmp_path / "a", "*.avi")) <= capacity + 1
    with ReplayBuffer.load_from(tmp_path / "a", read_only=False, **LOAD) as buffer:
        assert np.array_equal(buffer.get_at(...), frames(capacity, SHAPE, first=count - capacity))
        buffer.clear()
        assert names(tmp_path / "a", "*.avi") == []
        buffer.extend(frames(3, SHAPE))
        assert np.array_equal(buffer.get_at(...), frames(3, SHAPE))


def test_batches_over_many_pieces_of_a_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_raw_frames, "_PIECE_SLOTS", 4)
    rng, count = np.random.default_rng(1), 0
    with create(tmp_path / "a", capacity=50) as buffer:
        for _ in range(40):
            length = int(rng.integers(1, 25))
            buffer.extend(frames(length, SHAPE, first=count))
            count += length
            if rng.random() < 0.7:
                settled(buffer)
            kept = min(count, 50)
            assert np.array_equal(buffer.get_at(...), frames(kept, SHAPE, first=count - kept))
        assert buffer.verify() == []


def test_copies_take_the_videos_as_they_are(tmp_path: Path) -> None:
    wanted = frames(9, SHAPE)
    with create(tmp_path / "a", codec="h264") as buffer:
        buffer.extend(wanted[:5])
        buffer.extend(wanted[5:])
        buffer.remove_at([0, 1])
        buffer.dumps(tmp_path / "b")
        found = buffer.get_at(...)
        with pytest.raises(TypeError, match="one writer"):
            buffer.storage.__reduce__()
    assert names(tmp_path / "b", "*.mp4") == names(tmp_path / "a", "*.mp4")
    with ReplayBuffer.load_from(tmp_path / "b", read_only=False, **LOAD) as copy:
        assert np.array_equal(copy.get_at(...), found)
        copy.extend(wanted[:2])
        assert copy.get_segments() == [(0, 3), (3, 7), (7, 9)]
    with ReplayBuffer.load_from(tmp_path / "b", **LOAD) as copy:
        assert len(copy) == 9
        assert copy.verify() == []


def test_damage_to_a_video_is_found(tmp_path: Path) -> None:
    with create(tmp_path / "a") as buffer:
        for first in (0, 6):
            buffer.extend(frames(6, SHAPE, first=first))
    (_, second) = sorted((tmp_path / "a" / "storage").glob("*.avi"))
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 4
    second.write_bytes(content)
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert "samples 6 to 11 do not match" in buffer.verify()[0]
        assert np.array_equal(buffer.get_at([0, 5]), frames(6, SHAPE)[[0, 5]])
    second.unlink()
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as buffer:
        assert "samples 6 to 11 do not match" in buffer.verify()[0]
        with pytest.raises(StorageCorruptedError, match="the frame in slot 6 is in no file"):
            buffer.get_at(6)


def test_who_is_ahead_of_the_encoder_waits_and_is_told(tmp_path: Path, held: threading.Event) -> None:
    bound = 40 * frame(0, SHAPE).nbytes
    with create(tmp_path / "a", raw_bytes=bound) as buffer:
        buffer.extend(frames(30, SHAPE))
        done = threading.Event()
        threading.Timer(0.2, held.set).start()
        with pytest.warns(RuntimeWarning, match=r"the writer waits: .* which is the bound \(raw_bytes\)"):
            buffer.extend(frames(30, SHAPE, first=30))
        done.set()
        assert np.array_equal(settled(buffer).get_at(...), frames(60, SHAPE))


def test_a_long_episode_is_encoded_before_it_ends(tmp_path: Path) -> None:
    bound = 40 * frame(0, SHAPE).nbytes
    with create(tmp_path / "a", raw_bytes=bound) as buffer:
        for n in range(100):
            buffer.append(frame(n, SHAPE))
            buffer.storage.settle()  # a writer that is not ahead of the encoder
        assert names(tmp_path / "a", "*.avi")
        assert np.array_equal(buffer.get_at(...), frames(100, SHAPE))
        buffer.mark_segment_end()
        assert np.array_equal(settled(buffer).get_at(...), frames(100, SHAPE))
        assert buffer.get_segments() == [(0, 100)]


def test_frames_that_cannot_be_encoded_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError("no room")

    wanted = frames(8, SHAPE)
    with monkeypatch.context() as patched:
        patched.setattr(_episode_encoder, "encode_video", fail)
        buffer = create(tmp_path / "a")
        buffer.extend(wanted)
        with pytest.warns(RuntimeWarning, match=r"kept as they are until flush\(\), or whoever opens .*: no room"):
            buffer.close()
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD) as found:
        assert np.array_equal(found.get_at(...), wanted)
    with ReplayBuffer.load_from(tmp_path / "a", read_only=False, **LOAD) as found:
        assert np.array_equal(settled(found).get_at(...), wanted)
    assert len(names(tmp_path / "a", "*.avi")) == 1
    assert names(tmp_path / "a", "raw-*") == []


def test_a_video_that_lacks_frames_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = _episode_encoder.encode_video

    def lose_one(path: Path, pictures: Any, *rest: Any) -> int:
        return encode(path, list(pictures)[:-1], *rest)

    with create(tmp_path / "a") as buffer:
        with monkeypatch.context() as patched:
            patched.setattr(_episode_encoder, "encode_video", lose_one)
            buffer.extend(frames(8, SHAPE))
            with pytest.warns(RuntimeWarning, match="7 frames can be decoded, 8 were encoded"):
                buffer.flush()
            assert np.array_equal(buffer.get_at(...), frames(8, SHAPE))
            assert names(tmp_path / "a", "*.avi") == []
        buffer.flush()  # which tries again
        assert len(names(tmp_path / "a", "*.avi")) == 1
        assert np.array_equal(buffer.get_at(...), frames(8, SHAPE))


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_frames_come_as_arrays_of_the_backend(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    backend = deserialize_backend({"torch": "pytorch"}.get(library, library))
    wanted = frames(4, SHAPE)
    with create(tmp_path / "a", box(backend=backend)) as buffer:
        buffer.extend(backend.from_numpy(wanted, copy=True))
        assert np.array_equal(backend.to_numpy(buffer.get_at([3, 1])), wanted[[3, 1]])
        assert np.array_equal(backend.to_numpy(settled(buffer).get_at([3, 1])), wanted[[3, 1]])
        assert np.array_equal(backend.to_numpy(buffer.get_at(2)), wanted[2])


def test_resized_and_cropped_frames(tmp_path: Path) -> None:
    wanted = frames(6, (48, 64, 3))
    with create(tmp_path / "a", box((48, 64, 3))) as buffer:
        buffer.extend(wanted)
    crop = {"crop": (8, 16, 24, 32)}
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD, **crop) as found:
        assert found.single_space.shape == (24, 32, 3)
        assert np.array_equal(found.get_at([4, 1]), wanted[[4, 1], 8:32, 16:48])
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD, resize=(12, 16)) as found:
        means = wanted.reshape(6, 12, 4, 16, 4, 3).mean(axis=(2, 4))
        assert np.abs(found.get_at(...) - means).mean() < 2
    with ReplayBuffer.load_from(tmp_path / "a", **LOAD, **crop, resize=(12, 16)) as found:
        means = wanted[:, 8:32, 16:48].reshape(6, 12, 2, 16, 2, 3).mean(axis=(2, 4))
        assert np.abs(found.get_at(...) - means).mean() < 2
    with pytest.raises(ValueError, match="the frames are 48 x 64"):
        ReplayBuffer.load_from(tmp_path / "a", **LOAD, crop=(30, 0, 30, 10))
    with pytest.raises(ValueError, match="load with read_only=True"):
        ReplayBuffer.load_from(tmp_path / "a", **LOAD, read_only=False, **crop)


def test_a_rule_names_its_storage() -> None:
    cls, options = Video("av1", gop=8).storage()
    assert cls is VideoStorage
    assert (options["codec"], options["gop"], options["crf"]) == ("av1", 8, None)
