"""Recording what environments render: which frames are kept, and the files that are made of them."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases
from gym_envs import Reusing, Walk
from gymnasium.vector import SyncVectorEnv

from unienv_interface.backends import get_backend_from_tensor
from unienv_interface.testing import check_env
from unienv_interface.wrapper import EpisodeRenderStackWrapper, EpisodeVideoWrapper, EpisodeWandbVideoWrapper
from unienv_interface.wrapper._video_file import as_image, write_video
from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv

av = pytest.importorskip("av")

STAY = {None: np.zeros(1, np.float32), 3: np.zeros((3, 1), np.float32)}


class Rendering(Walk):
    """Renders whatever it is told to, and counts how often; one episode is 6 steps."""

    def __init__(self, frame: Any, batch_size: int | None = None) -> None:
        super().__init__(batch_size=batch_size, render_mode="rgb_array")
        self.frame = frame
        self.times = 0
        self.masks: list[Any] = []

    def reset(self, *, mask: Any = None, seed: int | None = None, **options: Any) -> Any:
        self.masks.append(mask)
        return super().reset(mask=mask, seed=seed, **options)

    def render(self) -> Any:
        self.times += 1
        return self.frame(self) if callable(self.frame) else self.frame


def grey(env: Walk) -> np.ndarray:
    return np.full((6, 8, 3), env.steps * 20, np.uint8)


def run(env: Any, steps: int, **options: Any) -> None:
    env.reset(seed=0, **options)
    for _ in range(steps):
        env.step(STAY[env.batch_size])


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def rate(path: Path) -> float:
    with av.open(str(path)) as container:
        return float(container.streams.video[0].average_rate)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- frames ------------------------------------------------------------------------------------------------


def test_one_frame_of_every_reset_and_step() -> None:
    below = Rendering(grey)
    env = EpisodeRenderStackWrapper(below)
    assert env.episodic_frames == []
    run(env, 3)
    assert below.times == 4
    assert [frame[0, 0, 0] for frame in env.episodic_frames] == [0, 20, 40, 60]
    assert (env.video_episode_num, env.video_episode_start_step, env.video_step_num) == (0, 0, 3)
    run(env, 6)  # to the end: the frames can still be read
    assert len(env.episodic_frames) == 7
    assert (env.video_episode_num, env.video_episode_start_step, env.video_step_num) == (1, 3, 9)
    run(env, 0)
    assert len(env.episodic_frames) == 1
    assert (env.video_episode_num, env.video_episode_start_step) == (2, 9)


def test_frames_are_copies() -> None:
    env = EpisodeRenderStackWrapper(FromGymnasiumEnv(Reusing()))
    env.env.render = env.env.env.render  # straight from the memory that is used again
    env.reset()
    env.step(np.zeros(2, np.float32))
    assert [frame[0, 0, 0] for frame in env.episodic_frames] == [0, 1]


def test_rendering_again_costs_nothing() -> None:
    below = Rendering(grey)
    env = EpisodeRenderStackWrapper(below)
    env.render()
    run(env, 1)
    times = below.times
    assert env.render()[0, 0, 0] == 20
    assert below.times == times


@pytest.mark.parametrize("backend", backend_cases())
def test_frames_stay_arrays_of_their_backend(backend: Any) -> None:
    env = EpisodeRenderStackWrapper(Walk(backend, render_mode="rgb_array"))
    env.reset()
    assert get_backend_from_tensor(env.episodic_frames[0]) is backend


def test_nested_frames() -> None:
    image = np.zeros((6, 8, 3), np.uint8)
    env = EpisodeRenderStackWrapper(Rendering({"front": {"rgb": image, "depth": image[..., :1]}, "note": "text"}))
    run(env, 2)
    assert list(env.episodic_frames) == ["front.rgb", "front.depth", "note"]
    assert [len(frames) for frames in env.episodic_frames.values()] == [3, 3, 3]
    env = EpisodeRenderStackWrapper(Rendering({"front": {"rgb": image}}), nested_separator="/")
    run(env, 1)
    assert list(env.episodic_frames) == ["front/rgb"]
    env = EpisodeRenderStackWrapper(Rendering({"a": {"b": image}, "a.b": image}))
    with pytest.raises(ValueError, match=r"two frames have the key 'a\.b'"):
        env.reset()


def test_lists_of_frames_count_as_all_of_these() -> None:
    env = EpisodeRenderStackWrapper(Rendering(lambda below: [grey(below)] * 2))
    run(env, 2)
    assert len(env.episodic_frames) == 6


def test_frames_that_change_within_an_episode() -> None:
    image = np.zeros((6, 8, 3), np.uint8)
    below = Rendering({"a": image})
    env = EpisodeRenderStackWrapper(below)
    run(env, 1)
    below.frame = {"a": image, "b": image}
    with pytest.raises(ValueError, match=r"Flattened render keys changed within an episode: they were .*'a'.*, now"):
        env.step(STAY[None])
    assert len(env.episodic_frames["a"]) == 2
    below.frame = image
    with pytest.raises(ValueError, match="Render frame type changed within an episode: it was a mapping, now a plain"):
        env.step(STAY[None])
    env.reset()  # another episode may render something else
    below.frame = {"a": image}
    with pytest.raises(ValueError, match="Render frame type changed within an episode: it was a plain frame, now a"):
        env.step(STAY[None])


def test_no_frame_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"render\(\) returned None: make the environment with a render mode"):
        EpisodeRenderStackWrapper(Walk()).reset()


# -- batches -----------------------------------------------------------------------------------------------


def batch(**options: Any) -> EpisodeRenderStackWrapper:
    return EpisodeRenderStackWrapper(Rendering(Walk.render, batch_size=3), **options)


def test_one_slot_of_a_batch_is_kept() -> None:
    env = batch(rendered_index=1)
    run(env, 2)
    assert [frame.shape for frame in env.episodic_frames] == [(6, 8, 3)] * 3
    env = EpisodeRenderStackWrapper(
        Rendering({"a": np.zeros((3, 6, 8, 3), np.uint8), "b": (1, 2, 3), "note": "x"}, batch_size=3), rendered_index=1
    )
    run(env, 0)
    assert env.episodic_frames["a"][0].shape == (6, 8, 3)
    assert env.episodic_frames["b"] == [2]
    assert env.episodic_frames["note"] == ["x"]


def test_masks_are_handed_on() -> None:
    env = batch()
    run(env, 2)
    mask = np.array([True, False, False])
    _, observation, _ = env.reset(mask=mask)
    assert observation.shape == (1, 2)
    assert env.env.masks[-1] is mask
    assert env.env.steps.tolist() == [0, 2, 2]


def test_any_slot_ends_and_begins_an_episode() -> None:
    env = batch()
    run(env, 2)
    env.reset(mask=np.array([False, False, False]))
    assert len(env.episodic_frames) == 3
    env.reset(mask=np.array([False, True, False]))
    assert (env.video_episode_num, len(env.episodic_frames)) == (1, 1)
    for _ in range(4):  # ends slots 0 and 2
        env.step(STAY[3])
    env.step(STAY[3])
    assert (env.video_episode_num, len(env.episodic_frames)) == (2, 1)


def test_one_slot_ends_and_begins_an_episode() -> None:
    env = batch(done_index=1)
    run(env, 2)
    env.reset(mask=np.array([True, False, True]))
    assert (env.video_episode_num, len(env.episodic_frames)) == (0, 3)
    assert env.render()[:, 0, 0, 0].tolist() == [0, 2, 0]  # not the frame of the last step
    env.env.steps[0] = 5
    env.step(STAY[3])  # ends slot 0
    env.step(STAY[3])
    assert (env.video_episode_num, len(env.episodic_frames)) == (0, 5)
    env.reset(mask=np.array([False, True, False]))
    assert (env.video_episode_num, len(env.episodic_frames)) == (1, 1)


@pytest.mark.parametrize(("size", "index"), [(None, 0), (3, 3), (3, -4)])
def test_slots_that_are_not_there(size: int | None, index: int) -> None:
    with pytest.raises(ValueError, match=f"done_index is {index}, the environment's batch_size is {size}"):
        EpisodeRenderStackWrapper(Walk(batch_size=size), done_index=index)


@pytest.mark.parametrize("size", [None, 3])
def test_keeps_the_contract(size: int | None, tmp_path: Path) -> None:
    check_env(EpisodeRenderStackWrapper(Walk(batch_size=size, render_mode="rgb_array")))
    index = None if size is None else 0
    below = Walk(batch_size=size, render_mode="rgb_array")
    check_env(EpisodeVideoWrapper(below, store_dir=tmp_path, done_index=index, rendered_index=index))


# -- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mp4", "gif", "webm"])
@pytest.mark.parametrize("size", [(48, 64), (47, 63), (1, 1)])
def test_files_are_read_back(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    colours = [(0, 0, 0), (250, 10, 10), (10, 250, 10), (10, 250, 10), (90, 120, 200)]  # two frames are alike
    frames = [np.full((*size, 3), colour, np.uint8) for colour in colours]
    path = tmp_path / f"video.{name}"
    write_video(path, frames, fps=12.5, format=name)
    assert names(tmp_path) == [path.name]
    found = decoded(path)
    assert len(found) == len(frames)
    expected = tuple(side + side % 2 for side in size) if name == "mp4" else size
    for frame, colour in zip(found, colours, strict=True):
        assert frame.shape == (*expected, 3)
        assert abs(frame.astype(int) - colour).max() < 16
    assert rate(path) == pytest.approx(12.5)


def test_what_moves_is_where_it_was(tmp_path: Path) -> None:
    frames = [np.zeros((32, 48, 3), np.uint8) for _ in range(20)]
    for step, frame in enumerate(frames):
        frame[8:16, 2 * step : 2 * step + 8] = (255, 255, 0)
    for name in ("mp4", "gif", "webm"):
        path = tmp_path / f"video.{name}"
        write_video(path, frames, fps=30, format=name)
        for found, frame in zip(decoded(path), frames, strict=True):
            assert abs(found.astype(int) - frame).mean() < 6, name


def test_a_gif_is_not_faster_than_gifs_can_be(tmp_path: Path) -> None:
    path = tmp_path / "video.gif"
    write_video(path, [np.full((4, 4, 3), level, np.uint8) for level in range(6)], fps=1000, format="gif")
    with av.open(str(path)) as container:
        assert [frame.pts for frame in container.decode(video=0)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["mp4", "gif", "webm"])
def test_nothing_is_left_of_a_file_that_failed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"video.{name}"
    path.write_bytes(b"earlier")
    frames = [np.zeros((6, 8, 3), np.uint8)] * 200
    with pytest.raises(ValueError, match=r"float32|dtype"):
        write_video(path, [*frames, np.zeros((6, 8, 3), np.float32)], fps=30, format=name)

    def interrupt(*paths: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_video(path, frames, fps=30, format=name)
    assert names(tmp_path) == [path.name]
    assert path.read_bytes() == b"earlier"


@pytest.mark.parametrize("backend", backend_cases())
def test_images_of_every_backend(backend: Any) -> None:
    values = np.arange(72, dtype=np.uint8).reshape(6, 4, 3)
    image = as_image(backend.from_numpy(values))
    assert type(image) is np.ndarray
    assert np.array_equal(image, values)


def test_images_of_every_shape() -> None:
    grey_levels = np.arange(24, dtype=np.uint8).reshape(6, 4)
    for frame in (grey_levels, grey_levels[:, :, None]):
        assert np.array_equal(as_image(frame), np.stack([grey_levels] * 3, axis=2))
    with_alpha = np.arange(96, dtype=np.uint8).reshape(6, 4, 4)
    assert np.array_equal(as_image(with_alpha), with_alpha[:, :, :3])
    upside_down = with_alpha[::-1, :, :3]
    assert np.array_equal(as_image(upside_down), upside_down)
    assert as_image(upside_down).flags.c_contiguous
    assert not np.shares_memory(as_image(grey_levels[:, :, None]), grey_levels)


@pytest.mark.parametrize(
    ("frame", "error", "text"),
    [
        (np.zeros((6, 8, 3)), ValueError, r"frame of float64, a video wants uint8: .* \(255 \* frame\)"),
        (np.zeros((2, 6, 8, 3), np.uint8), ValueError, r"\(2, 6, 8, 3\) is a batch of images: .* rendered_index"),
        (np.zeros((3, 6, 8), np.uint8), ValueError, r"frame of shape \(3, 6, 8\), a video wants \(height, width\)"),
        (np.zeros((0, 8, 3), np.uint8), ValueError, r"frame of shape \(0, 8, 3\)"),
        (np.zeros(8, np.uint8), ValueError, r"frame of shape \(8,\)"),
        ("text", TypeError, "str is not an array"),
    ],
)
def test_what_is_no_image(frame: Any, error: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=text):
        as_image(frame)
    env = EpisodeVideoWrapper(Rendering({"front": frame}), store_dir=tmp_path)
    with pytest.raises(error, match=f"render front: .*{text}"):
        env.reset()


# -- videos of episodes ------------------------------------------------------------------------------------


def test_videos_are_written_at_the_end_at_a_reset_and_at_close(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    env = EpisodeVideoWrapper(Rendering(grey), store_dir=folder, format="mp4")
    assert folder.is_dir()
    run(env, 6)
    assert names(folder) == ["episode_0_step_0.mp4"]
    run(env, 3)
    assert names(folder) == ["episode_0_step_0.mp4"]
    run(env, 0)
    assert names(folder) == ["episode_0_step_0.mp4", "episode_1_step_6.mp4"]
    run(env, 2)  # the one before had one frame
    env.close()
    env.close()
    assert names(folder) == ["episode_0_step_0.mp4", "episode_1_step_6.mp4", "episode_3_step_9.mp4"]
    lengths = [len(decoded(folder / name)) for name in names(folder)]
    assert lengths == [7, 4, 3]
    assert rate(folder / "episode_0_step_0.mp4") == 10
    assert abs(decoded(folder / "episode_0_step_0.mp4")[-1].astype(int) - 120).max() < 8


def test_thirty_frames_a_second_unless_told(tmp_path: Path) -> None:
    below = Rendering(grey)
    below.render_fps = None
    run(EpisodeVideoWrapper(below, store_dir=tmp_path), 6)
    assert names(tmp_path) == ["episode_0_step_0.webm"]
    assert rate(tmp_path / "episode_0_step_0.webm") == 30


def test_one_video_per_key(tmp_path: Path) -> None:
    image = np.zeros((6, 8, 3), np.uint8)
    env = EpisodeVideoWrapper(Rendering({"front": {"rgb": image}, "a/b": image[:4]}), store_dir=tmp_path, format="gif")
    run(env, 6)
    assert names(tmp_path) == ["episode_0_step_0_key_a%2Fb.gif", "episode_0_step_0_key_front.rgb.gif"]
    assert [decoded(tmp_path / name)[0].shape[0] for name in names(tmp_path)] == [4, 6]


def test_videos_of_one_slot_of_a_vector_environment(tmp_path: Path) -> None:
    below = FromGymnasiumEnv(SyncVectorEnv([Reusing] * 3))
    env = EpisodeVideoWrapper(below, store_dir=tmp_path, done_index=2, rendered_index=2, format="mp4")
    env.reset(seed=0)
    for _ in range(5):
        env.step(np.zeros((3, 2), np.float32))
    assert names(tmp_path) == ["episode_0_step_0.mp4"]
    env.reset(mask=np.ones(3, bool))
    env.step(np.zeros((3, 2), np.float32))
    env.close()
    assert [len(decoded(tmp_path / name)) for name in names(tmp_path)] == [6, 2]


def test_videos_of_an_earlier_run_stay(tmp_path: Path) -> None:
    run(EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path), 6)
    with pytest.raises(FileExistsError, match=r"episode_0_step_0\.webm is there already: .* overwrite=True"):
        EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path)
    EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path, format="gif")
    (tmp_path / "episode_0_step_0.webm").write_bytes(b"")
    run(EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path, overwrite=True), 6)
    assert len(decoded(tmp_path / "episode_0_step_0.webm")) == 7
    late = EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path / "other")
    run(late, 5)
    (tmp_path / "other" / "episode_0_step_0.webm").write_bytes(b"")
    with pytest.raises(FileExistsError, match="is there already"):
        late.step(STAY[None])
    late.reset()  # which goes on with the next episode


def test_frames_of_another_size_are_refused_at_once(tmp_path: Path) -> None:
    below = Rendering(grey)
    env = EpisodeVideoWrapper(below, store_dir=tmp_path)
    run(env, 1)
    below.frame = np.zeros((6, 9, 3), np.uint8)
    with pytest.raises(ValueError, match=r"render: frame of shape \(6, 9, 3\), the episode began with \(6, 8, 3\)"):
        env.step(STAY[None])


def test_a_failing_video_leaves_the_environment_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    env = EpisodeVideoWrapper(Rendering(grey), store_dir=tmp_path)
    run(env, 2)
    with monkeypatch.context() as patch:
        patch.setattr("unienv_interface.wrapper.video_record.write_video", full_disk)
        with pytest.raises(OSError, match="No space"):
            env.reset()
    run(env, 6)
    assert names(tmp_path) == ["episode_1_step_2.webm"]


def test_unknown_formats(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"format is 'avi', videos are written as one of \['mp4', 'gif', 'webm'\]"):
        EpisodeVideoWrapper(Walk(), store_dir=tmp_path, format="avi")  # type: ignore[arg-type]


def test_frames_on_a_wrapper_below_do_not_matter(tmp_path: Path) -> None:
    env = EpisodeVideoWrapper(EpisodeRenderStackWrapper(Rendering(grey)), store_dir=tmp_path)
    run(env, 6)
    assert env.env.env.times == 7
    assert len(decoded(tmp_path / "episode_0_step_0.webm")) == 7


# -- Weights & Biases --------------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """A stand-in for wandb, which needs a server; the list of what was logged, videos as lists of their frames."""
    logged: list[tuple[dict[str, Any], dict[str, Any]]] = []

    class Video:
        def __init__(self, path: str, format: str) -> None:  # noqa: A002
            assert path.endswith(f".{format}")
            self.frames = decoded(Path(path))

    def log(entries: dict[str, Any], **options: Any) -> None:
        logged.append(({key: getattr(value, "frames", value) for key, value in entries.items()}, options))

    module: Any = types.ModuleType("wandb")
    module.Video, module.log = Video, log
    monkeypatch.setitem(sys.modules, "wandb", module)
    return logged


def test_episodes_are_logged(wandb: list[Any]) -> None:
    env = EpisodeWandbVideoWrapper(Rendering(grey), wandb_log_key="eval/video", format="mp4")
    run(env, 6)
    run(env, 2)
    env.close()
    (first, options), (second, _) = wandb
    assert options == {}
    assert len(first["eval/video"]) == 7
    assert first["eval/video_episode_id"] == 0
    assert len(second["eval/video"]) == 3
    assert second["eval/video_episode_id"] == 1


def test_what_is_logged_can_be_chosen(wandb: list[Any]) -> None:
    image = np.zeros((6, 8, 3), np.uint8)
    env = EpisodeWandbVideoWrapper(
        Rendering({"front": image, "back": {"rgb": image}}),
        wandb_log_key="video",
        control_wandb_step=True,
        log_wandb_episode_id=False,
    )
    run(env, 0)
    run(env, 2)
    run(env, 6)
    assert [options for _, options in wandb] == [{"step": 2}, {"step": 8}]
    assert [sorted(entries) for entries, _ in wandb] == [["video/back.rgb", "video/front"]] * 2


def test_without_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"wandb is not installed; get it with: pip install"):
        EpisodeWandbVideoWrapper(Walk(), wandb_log_key="video")


def test_without_av(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"av is not installed; get it with: pip install 'unienv\[video\]'"):
        EpisodeVideoWrapper(Walk(), store_dir=tmp_path)
    EpisodeRenderStackWrapper(Walk(render_mode="rgb_array"))


def test_importing_the_wrappers_imports_neither() -> None:
    code = (
        "import sys, unienv_interface.wrapper.video_record; "
        "assert not {'av', 'wandb', 'gymnasium', 'torch', 'jax'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
