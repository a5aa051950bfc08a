"""Two cameras of 480x640 RGB, a texture that moves with noise: recording as video, and random windows of 8 frames.

What is called lerobot's way does with PyAV what lerobot 0.4.4 does for each sample, through torchvision: opens the
file, seeks, decodes up to the last frame that is wanted, with the threads that PyAV has by itself, and makes floats of
all of them. Its settings are H.264, crf 30, a key frame in two.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Ready, Work, ours, peer

from unienv_data import Decode, ReplayBuffer, StepSampler, Video
from unienv_data.storages.video_frames import FrameReader, FrameRequest
from unienv_data.storages.video_storage import VideoStorage
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace

from ._child import peak_growth
from ._data import folder

SHAPE, FPS, WINDOW = (480, 640, 3), 30, 8
FRAMES, STEPS = 240, 120
RESIZED = (96, 128)
# What stands for a dataset of 20 GB: more than the bar, and more videos than are kept open.
EPISODES, LENGTH, SAMPLED, BATCH = 20, 60, 60, 32
LEROBOT = ("av", "torch")


def works() -> list[Work]:
    return [
        Work("cameras", "bytes of a frame, H.264", "bytes", (frame_bytes, lerobot_bytes), rounds=1),
        Work("cameras", "append of a step with two cameras, at 30 Hz", "ms", (append_step,)),
        Work("cameras", "append of a step, the slowest of 100", "ms of p99", (append_slowest,), rounds=1),
        Work("cameras", "window of 8 frames, no cache", "ms", (window, lerobot_window)),
        Work("cameras", "window of 8 frames at 96x128, cache warm", "ms", (window_cached, lerobot_window)),
        Work("cameras", "memory of sampling", "MB", (memory_of_video, memory_of_rows), rounds=1),
    ]


def two_cameras() -> DictSpace:
    state = BoxSpace(NumpyComputeBackend, -1.0, 1.0, np.float32, shape=(14,))
    return DictSpace(NumpyComputeBackend, {"cam_1": camera(), "cam_2": camera(), "state": state})


def frames(count: int) -> np.ndarray:
    """Frames of a smooth texture that moves by some pixels each, with noise."""
    rng, (height, width, channels) = np.random.default_rng(0), SHAPE
    coarse = rng.integers(0, 256, (height // 8 + 16, width // 8 + 16, channels))
    texture = np.kron(coarse, np.ones((8, 8, 1)))
    for axis in (0, 1):
        texture = sum(np.roll(texture, shift, axis) for shift in range(-3, 4)) / 7
    found = np.empty((count, *SHAPE), np.uint8)
    for number in range(count):
        top, left = 2 * number % 64, 3 * number % 64
        pixels = texture[top : top + height, left : left + width] + rng.normal(0, 3, SHAPE)
        found[number] = np.clip(pixels, 0, 255)
    return found


def camera() -> BoxSpace:
    return BoxSpace(NumpyComputeBackend, 0, 255, np.uint8, shape=SHAPE)


def video_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.mp4"))


@contextlib.contextmanager
def lerobot_file() -> Iterator[Path]:
    """A video with the settings of lerobot."""
    import av

    with folder() as path:
        with av.open(str(path / "a.mp4"), "w") as container:
            stream = container.add_stream("libx264", FPS, options={"g": "2", "crf": "30"})
            stream.height, stream.width = SHAPE[:2]
            stream.pix_fmt = "yuv420p"
            for frame in frames(FRAMES):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode())
        yield path / "a.mp4"


# -- size and recording ------------------------------------------------------------------------------------


@ours("unienv", "VideoStorage as it is made by default", "av")
def frame_bytes() -> Iterator[Callable]:
    with folder() as path:
        with ReplayBuffer.create(VideoStorage, camera(), cache_path=path / "a", fps=FPS) as buffer:
            buffer.extend(frames(FRAMES))
        yield lambda: video_bytes(path) / FRAMES


@peer("lerobot's settings", "PyAV: libx264, crf 30, g 2, yuv420p", "av")
def lerobot_bytes() -> Iterator[Callable]:
    with lerobot_file() as path:
        yield lambda: path.stat().st_size / FRAMES


@contextlib.contextmanager
def paced_append() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """A call that waits for the time of the next step, and one that records it; an episode ends every 60 steps."""
    pictures, state = frames(60), np.zeros(14, np.float32)
    with folder() as path:
        rules = {"cam_*": Video(fps=FPS)}
        with ReplayBuffer.create(two_cameras(), columns=rules, cache_path=path / "a") as buffer:
            due, count = time.perf_counter(), 0

            def wait() -> None:
                nonlocal due
                due = max(due + 1 / FPS, time.perf_counter())
                time.sleep(max(0.0, due - time.perf_counter()))

            def append() -> None:
                nonlocal count
                buffer.append({"cam_1": pictures[count % 60], "cam_2": pictures[(count + 17) % 60], "state": state})
                count += 1
                if count % 60 == 0:
                    buffer.mark_segment_end()

            yield wait, append


@ours("unienv", "ReplayBuffer of two columns of Video, encoded meanwhile", "av")
def append_step() -> Iterator[Ready]:
    with paced_append() as (wait, append):
        yield Ready(append, prepare=wait)


@ours("unienv", "the same, the 99th percentile of 120 steps", "av")
def append_slowest() -> Iterator[Callable]:
    with paced_append() as (wait, append):

        def record() -> float:
            took = []
            for _ in range(STEPS):
                wait()
                begun = time.perf_counter()
                append()
                took.append(1000 * (time.perf_counter() - begun))
            return float(np.percentile(took, 99))

        yield record


# -- windows -----------------------------------------------------------------------------------------------


def starts() -> Callable[[], int]:
    rng = np.random.default_rng(0)
    return lambda: int(rng.integers(0, FRAMES - WINDOW))


@ours("unienv", "FrameReader, on lerobot's file", "av")
def window() -> Iterator[Callable]:
    reader, start = FrameReader(), starts()
    with lerobot_file() as path:

        def read() -> Any:
            seconds = (start() + np.arange(WINDOW)) / FPS
            return reader.read([FrameRequest([path] * WINDOW, seconds, np.full(WINDOW, 1e-3), SHAPE)])

        yield read
        reader.close()


@peer("lerobot's way", "PyAV, on its own file", *LEROBOT)
def lerobot_window() -> Iterator[Callable]:
    start = starts()
    with lerobot_file() as path:
        yield lambda: _as_lerobot(path, [(first + offset) / FPS for first in (start(),) for offset in range(WINDOW)])


def _as_lerobot(path: Path, seconds: list[float]) -> Any:
    import av
    import torch

    pictures, times = [], []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        container.seek(round(seconds[0] / float(stream.time_base)), stream=stream)
        for frame in container.decode(stream):
            pictures.append(torch.from_numpy(frame.to_rgb().to_ndarray()).permute(2, 0, 1))
            times.append(frame.time)
            if frame.time >= seconds[-1]:
                break
    apart = torch.cdist(torch.tensor(seconds)[:, None], torch.tensor(times)[:, None], p=1)
    return torch.stack([pictures[place] for place in apart.argmin(1)]).type(torch.float32) / 255


@ours("unienv", "a column of Video, Decode(resize=(96, 128)), frame_cache, every frame read once", "av")
def window_cached() -> Iterator[Callable]:
    start = starts()
    space = DictSpace(
        NumpyComputeBackend,
        {"cam": camera(), "state": BoxSpace(NumpyComputeBackend, -1.0, 1.0, np.float32, shape=(14,))},
    )
    with folder() as path:
        with ReplayBuffer.create(space, columns={"cam": Video(fps=FPS)}, cache_path=path / "a") as buffer:
            buffer.extend({"cam": frames(FRAMES), "state": np.zeros((FRAMES, 14), np.float32)})
        wanted = {"columns": {"cam": Decode(resize=RESIZED)}, "frame_cache": "100MB"}
        with ReplayBuffer.load_from(path / "a", backend=NumpyComputeBackend, **wanted) as buffer:
            column = buffer.get_column(["cam"])
            column.get_at(...)

            def read() -> Any:
                first = start()
                return column.get_at(slice(first, first + WINDOW))

            yield read


# -- memory ------------------------------------------------------------------------------------------------


def record(path: Path, episodes: int, **options: Any) -> None:
    pictures, state = frames(LENGTH), np.zeros((LENGTH, 14), np.float32)
    with ReplayBuffer.create(two_cameras(), cache_path=path, keep_episodes=True, **options) as buffer:
        for _ in range(episodes):
            buffer.extend({"cam_1": pictures, "cam_2": pictures[::-1], "state": state})


def sample(path: Path, batches: int) -> None:
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend) as buffer:
        sampler = StepSampler(buffer, BATCH, seed=0)
        for _ in range(batches):
            sampler.sample()


def _memory(**options: Any) -> Iterator[Callable]:
    with folder() as path:
        record(path / "small", 1, **options)
        record(path / "large", EPISODES, **options)
        yield lambda: peak_growth(sample, [path / "small", 1], [path / "large", SAMPLED]) / 2**20


@ours("unienv", "StepSampler, batches of 32 of two cameras out of 40 videos", "av")
def memory_of_video() -> Iterator[Callable]:
    yield from _memory(columns={"cam_*": Video(fps=FPS)})


@ours("unienv, packed", "the same out of 2.2 GB of packed frames")
def memory_of_rows() -> Iterator[Callable]:
    yield from _memory()
