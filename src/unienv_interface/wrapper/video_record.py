"""Wrappers that collect rendered frames and write videos.

The frames of an episode stay in memory until it ends. A video needs at least two frames.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..backends import get_backend_from_tensor
from ..backends.base import BArrayType, BDeviceType, BDtypeType, BRNGType
from ..env_base.env import ActType, ContextType, Env, ObsType, RenderFrame, parse_mask
from ..env_base.wrapper import SameTypesWrapper
from ..utils.optional import need
from ._video_file import VideoFormat, as_image, check_format, write_video
from .autoreset import refuse_autoreset

__all__ = ["EpisodeRenderStackWrapper", "EpisodeVideoWrapper", "EpisodeWandbVideoWrapper"]


class EpisodeRenderStackWrapper(
    SameTypesWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Collects the frames of the current episode: one frame for every reset and every step.

    `episodic_frames` is a list of copies of the frames; for an environment that renders mappings, a dict of lists. The
    next episode starts a new list. If a frame is a list of frames (a mode such as "rgb_array_list"), all its frames
    are added.

    Parameters
    ----------
    env
        The environment below, made with a render mode that returns arrays.
    done_index
        The slot of a batch whose episodes are recorded; by default an episode ends when any slot ends, and a reset of
        any slot begins the next episode.
    rendered_index
        The index of this slot's image in every frame of a batch; by default the whole frames are collected.
    nested_separator
        The separator between the keys of nested mappings that the environment renders.

    Raises
    ------
    ValueError
        `done_index` is no slot of the batch, or `env` restarts by itself; see `AutoresetWrapper`.

    Examples
    --------
    >>> env = unienv.make("CartPole-v1", env_kwargs={"render_mode": "rgb_array"})
    >>> env = EpisodeRenderStackWrapper(env)  # doctest: +SKIP
    >>> _ = env.reset(seed=0)
    >>> result = env.step(env.sample_action())
    >>> len(env.episodic_frames)  # doctest: +SKIP
    2
    """

    def __init__(
        self,
        env: Env,
        *,
        done_index: int | None = None,
        rendered_index: int | None = None,
        nested_separator: str = ".",
    ) -> None:
        super().__init__(env)
        refuse_autoreset(env, type(self).__name__)
        if done_index is not None and not -(env.batch_size or 0) <= done_index < (env.batch_size or 0):
            raise ValueError(f"done_index is {done_index}, the environment's batch_size is {env.batch_size}")
        self.done_index = done_index
        self.rendered_index = rendered_index
        self.nested_separator = nested_separator
        self.episodic_frames: list[Any] | dict[str, list[Any]] = []
        self.video_episode_num = 0  # the number of the episode, from 0
        self.video_step_num = 0  # steps in all episodes so far
        self.video_episode_start_step = 0  # the value of video_step_num when the episode began
        self._is_recording = False
        self._has_recorded = False
        self._last_frame: Any = None

    def reset(
        self, *args: Any, mask: Any = None, seed: int | None = None, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Reset the environment; if this begins an episode, the frames of the last episode are used first."""
        begins = self._begins_episode(mask)
        if begins:
            self._finish_episode()
        result = self.env.reset(*args, mask=mask, seed=seed, **kwargs)
        self._last_frame = None
        if begins:
            self._begin_episode()
            self._keep_frame()
        return result

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environment and collect its frame; at the end of an episode, its frames are used."""
        result = self.env.step(action)
        if not self._is_recording:
            self._begin_episode()
        self.video_step_num += 1
        self._keep_frame()
        if self._has_ended(result[2]) or self._has_ended(result[3]):
            self._finish_episode()
        return result

    def render(self) -> Any:
        """The frame of the last reset or step, without rendering it again."""
        return self.env.render() if self._last_frame is None else self._last_frame

    def close(self) -> None:
        """Use the frames of the current episode and close the environment."""
        try:
            self._finish_episode()
        finally:
            self.env.close()

    # -- episodes ------------------------------------------------------------------------------------------

    def _begins_episode(self, mask: Any) -> bool:
        if mask is None or not self._has_recorded:
            return True
        chosen = parse_mask(mask, self.batch_size, self.backend)
        return bool(chosen.any() if self.done_index is None else chosen[self.done_index])

    def _has_ended(self, flag: Any) -> bool:
        if self.batch_size is None:
            return bool(flag)
        flags = self.backend.to_numpy(flag)
        return bool(flags.any() if self.done_index is None else flags[self.done_index])

    def _begin_episode(self) -> None:
        if self._has_recorded:
            self.video_episode_num += 1
        self._is_recording = self._has_recorded = True
        self.video_episode_start_step = self.video_step_num
        self.episodic_frames = []

    def _finish_episode(self) -> None:
        if self._is_recording:
            self._is_recording = False  # first: an error in the video of this episode must not affect the next one
            self._episode_ended()

    def _episode_ended(self) -> None:
        """Use the frames of an ended episode; subclasses override this."""

    # -- frames --------------------------------------------------------------------------------------------

    def _keep_frame(self) -> None:
        frame: Any = self.env.render()
        if frame is None:
            raise ValueError(
                "render() returned None: make the environment with a render mode that returns frames, such as "
                "'rgb_array'"
            )
        self._last_frame = frame
        is_mapping = isinstance(frame, Mapping)
        views = self._flat(frame) if is_mapping else {"": frame}
        earlier = self._frame_lists(views, is_mapping)
        prepared = {key: self._prepared_frames(key, view, earlier[key]) for key, view in views.items()}
        for key, frames in prepared.items():
            earlier[key].extend(frames)

    def _flat(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        views: dict[str, Any] = {}
        for key, view in frame.items():
            nested = self._flat(view) if isinstance(view, Mapping) else {None: view}
            for below, nested_view in nested.items():
                joined = str(key) if below is None else f"{key}{self.nested_separator}{below}"
                if joined in views:
                    raise ValueError(f"render: two frames have the key {joined!r}: use another nested_separator")
                views[joined] = nested_view
        return views

    def _frame_lists(self, views: Mapping[str, Any], is_mapping: bool) -> dict[str, list[Any]]:
        """The list of frames for each key; raises a ValueError if the keys changed within the episode."""
        if not self.episodic_frames:
            self.episodic_frames = {key: [] for key in views} if is_mapping else []
        if isinstance(self.episodic_frames, dict) != is_mapping:
            kinds = ("a mapping", "a plain frame")
            before, now = kinds if isinstance(self.episodic_frames, dict) else reversed(kinds)
            raise ValueError(f"Render frame type changed within an episode: it was {before}, now {now}")
        if isinstance(self.episodic_frames, list):
            return {"": self.episodic_frames}
        if self.episodic_frames.keys() != views.keys():
            raise ValueError(
                f"Flattened render keys changed within an episode: they were {sorted(self.episodic_frames)}, now "
                f"{sorted(views)}"
            )
        return self.episodic_frames

    def _prepared_frames(self, key: str, view: Any, earlier: list[Any]) -> list[Any]:
        if self.rendered_index is not None and (isinstance(view, (list, tuple)) or hasattr(view, "shape")):
            view = view[self.rendered_index]
        views = view if isinstance(view, (list, tuple)) else [view]
        return [self._prepared(key, single, earlier) for single in views]

    def _prepared(self, key: str, frame: Any, earlier: list[Any]) -> Any:
        """Copy a frame, since renderers reuse their memory; `earlier` are the frames of the episode so far."""
        try:
            backend = get_backend_from_tensor(frame)
        except TypeError:  # not an array, for example a text
            return frame
        return backend.asarray(frame, copy=True)


class _EncodingWrapper(
    EpisodeRenderStackWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """The base class of wrappers that write videos. Frames are uint8 arrays (height, width, 3)."""

    def __init__(
        self,
        env: Env,
        *,
        format: VideoFormat,  # noqa: A002
        done_index: int | None,
        rendered_index: int | None,
        nested_separator: str,
    ) -> None:
        super().__init__(env, done_index=done_index, rendered_index=rendered_index, nested_separator=nested_separator)
        self.store_format = check_format(format)

    def _prepared(self, key: str, frame: Any, earlier: list[Any]) -> np.ndarray:
        try:
            image = as_image(frame)
            if earlier and image.shape != earlier[0].shape:
                raise ValueError(f"frame of shape {image.shape}, the episode began with {earlier[0].shape}")
        except (TypeError, ValueError) as error:
            raise type(error)(f"render {key}: {error}" if key else f"render: {error}") from None
        return image

    def _videos(self) -> Iterator[tuple[str, list[np.ndarray]]]:
        """Yield the frames of the episode by key, "" without keys; skips lists of fewer than two frames."""
        frames = self.episodic_frames
        for key, images in frames.items() if isinstance(frames, dict) else [("", frames)]:
            if len(images) >= 2:
                yield key, images

    def _write(self, path: Path, images: list[np.ndarray]) -> None:
        write_video(path, images, fps=self.env.render_fps or 30, format=self.store_format)


class EpisodeVideoWrapper(
    _EncodingWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Writes a video of every episode to `store_dir`, when the episode ends, at a reset, or at `close`.

    Files have the name `episode_{number}_step_{start}.{format}`, where `start` is the number of steps before the
    episode. If the environment renders mappings, each key has a file with `_key_{key}` before the dot; the key is
    percent-encoded. A file gets its name when it is complete.

    Parameters
    ----------
    env
        The environment below, made with a render mode that returns arrays.
    store_dir
        The folder of the videos.
    format
        The format of the files.
    done_index, rendered_index, nested_separator
        As for `EpisodeRenderStackWrapper`.
    overwrite
        Replace videos of an earlier run.

    Raises
    ------
    FileExistsError
        `store_dir` holds videos of an earlier run, and `overwrite` is False.

    Examples
    --------
    >>> env = unienv.make("CartPole-v1", env_kwargs={"render_mode": "rgb_array"})
    >>> env = EpisodeVideoWrapper(EpisodeRenderStackWrapper(env), "videos", format="mp4")  # doctest: +SKIP
    """

    def __init__(
        self,
        env: Env,
        *,
        store_dir: str | os.PathLike[str],
        format: VideoFormat = "webm",  # noqa: A002
        done_index: int | None = None,
        rendered_index: int | None = None,
        nested_separator: str = ".",
        overwrite: bool = False,
    ) -> None:
        super().__init__(
            env,
            format=format,
            done_index=done_index,
            rendered_index=rendered_index,
            nested_separator=nested_separator,
        )
        self.store_dir = Path(store_dir)
        self.overwrite = overwrite
        self.store_dir.mkdir(parents=True, exist_ok=True)
        for earlier in self.store_dir.glob(f"episode_0_step_0*.{format}"):
            self._check_free(earlier)  # now, not only after the first episode

    def _episode_ended(self) -> None:
        for key, images in self._videos():
            suffix = f"_key_{quote(key, safe=' ')}" if key else ""
            name = f"episode_{self.video_episode_num}_step_{self.video_episode_start_step}{suffix}.{self.store_format}"
            path = self.store_dir / name
            self._check_free(path)
            self._write(path, images)

    def _check_free(self, path: Path) -> None:
        if not self.overwrite and path.exists():
            raise FileExistsError(f"{path} is there already: choose another store_dir, or pass overwrite=True")


class EpisodeWandbVideoWrapper(
    _EncodingWrapper[BArrayType, ContextType, ObsType, ActType, RenderFrame, BDeviceType, BDtypeType, BRNGType]
):
    """Logs a video of every episode to Weights & Biases, when the episode ends, at a reset, or at `close`.

    Call `wandb.init` first.

    Parameters
    ----------
    env
        The environment below, made with a render mode that returns arrays.
    wandb_log_key
        The name of the video; if the environment renders mappings, the names are `{wandb_log_key}/{key}`.
    format
        The format of the video.
    control_wandb_step
        Log at the step `video_step_num`; by default wandb counts steps itself.
    log_wandb_episode_id
        Log the number of the episode as `{wandb_log_key}_episode_id`.
    done_index, rendered_index, nested_separator
        As for `EpisodeRenderStackWrapper`.

    Raises
    ------
    ImportError
        Weights & Biases is not installed.

    Examples
    --------
    >>> wandb.init(project="cartpole")  # doctest: +SKIP
    >>> env = unienv.make("CartPole-v1", env_kwargs={"render_mode": "rgb_array"})
    >>> env = EpisodeWandbVideoWrapper(env, wandb_log_key="episode", format="mp4")  # doctest: +SKIP
    """

    def __init__(
        self,
        env: Env,
        *,
        wandb_log_key: str,
        format: VideoFormat = "webm",  # noqa: A002
        control_wandb_step: bool = False,
        log_wandb_episode_id: bool = True,
        done_index: int | None = None,
        rendered_index: int | None = None,
        nested_separator: str = ".",
    ) -> None:
        super().__init__(
            env,
            format=format,
            done_index=done_index,
            rendered_index=rendered_index,
            nested_separator=nested_separator,
        )
        self.wandb = need("wandb", extra="wandb")
        self.wandb_log_key = wandb_log_key
        self.control_wandb_step = control_wandb_step
        self.log_wandb_episode_id = log_wandb_episode_id

    def _episode_ended(self) -> None:
        with tempfile.TemporaryDirectory(prefix="unienv-video-") as folder:
            entries: dict[str, Any] = {}
            for number, (key, images) in enumerate(self._videos()):
                path = Path(folder) / f"{number}.{self.store_format}"
                self._write(path, images)
                name = f"{self.wandb_log_key}/{key}" if key else self.wandb_log_key
                entries[name] = self.wandb.Video(os.fspath(path), format=self.store_format)
            if not entries:
                return
            if self.log_wandb_episode_id:
                entries[f"{self.wandb_log_key}_episode_id"] = self.video_episode_num
            if self.control_wandb_step:
                self.wandb.log(entries, step=self.video_step_num)
            else:
                self.wandb.log(entries)
