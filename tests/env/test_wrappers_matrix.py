"""Every wrapper around every environment it applies to keeps the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from catalogue import BACKENDS
from envs import ENVS, actions_of

from unienv_interface.env_base import Env, Wrapper
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.testing import check_env
from unienv_interface.transformations import CropTransformation, RescaleTransformation
from unienv_interface.wrapper import (
    ActionRescaleWrapper,
    ActionTransformWrapper,
    AutoresetWrapper,
    BatchifyWrapper,
    ClipActionWrapper,
    ContextObservationTransformWrapper,
    ControlFrequencyLimitWrapper,
    EpisodeStatisticsWrapper,
    FlattenActionWrapper,
    FlattenContextObservationWrapper,
    FrameStackWrapper,
    NormalizeObservationWrapper,
    NormalizeRewardWrapper,
    TimeLimitWrapper,
    ToBackendOrDeviceWrapper,
    TransformWrapper,
    UnBatchifyWrapper,
)


def _has_boxes(env: Env) -> bool:
    return isinstance(env.action_space, BoxSpace)


def _is_single(env: Env) -> bool:
    return env.batch_size is None


def _is_batch_of_one(env: Env) -> bool:
    return env.batch_size == 1


def _anything(env: Env) -> bool:
    return True


def _transform(env: Env) -> Env:
    context = None if env.context_space is None else RescaleTransformation(-3.0, 3.0)
    outer = BoxSpace(env.backend, -9.0, 9.0, env.action_space.dtype, shape=env.action_space.shape)
    low, high = env.action_space.bounds
    return TransformWrapper(env, context, CropTransformation(-2.0, 2.0), CropTransformation(low, high), outer)


def _other_backend(env: Env) -> Any:
    return BACKENDS[1 if env.backend is BACKENDS[0] else 0]


def _unhurried(env: Env) -> Env:
    ticks = itertools.count()
    return ControlFrequencyLimitWrapper(env, 1.0, clock=lambda: float(next(ticks)), sleep=lambda seconds: None)


def _normalized(env: Env) -> Env:
    """With moments that stand still after a few steps, since an episode has to be the same every time."""
    wrapped = NormalizeObservationWrapper(NormalizeRewardWrapper(env))
    wrapped.reset(seed=0)
    for action in actions_of(env, 2):
        wrapped.step(action)
    wrapped.update_running_mean = wrapped.env.update_running_mean = False  # type: ignore[attr-defined]
    return wrapped


WRAPPERS: dict[str, tuple[Callable[[Env], bool], Callable[[Env], Env]]] = {
    "plain": (_anything, Wrapper),
    "time_limit": (_anything, lambda env: TimeLimitWrapper(env, 2)),
    "frame_stack": (_anything, lambda env: FrameStackWrapper(env, 2)),
    "frame_stack_actions": (_anything, lambda env: FrameStackWrapper(env, 1, 2)),
    "frame_stack_only_actions": (_anything, lambda env: FrameStackWrapper(env, action_stack_size=1)),
    "action_rescale": (_has_boxes, ActionRescaleWrapper),
    "action_transform": (
        _has_boxes,
        lambda env: ActionTransformWrapper(
            env,
            RescaleTransformation(0.0, 0.1, "float32"),
            BoxSpace(env.backend, 0, 9, "int32", shape=env.action_space.shape),
        ),
    ),
    "flatten_action": (_anything, FlattenActionWrapper),
    "flatten": (_anything, lambda env: FlattenContextObservationWrapper(env, flatten_context=True)),
    "transform": (_has_boxes, _transform),
    "transform_observation": (
        _has_boxes,
        lambda env: ContextObservationTransformWrapper(env, None, CropTransformation(-1.0, 0.5)),
    ),
    "to_backend": (_anything, lambda env: ToBackendOrDeviceWrapper(env, _other_backend(env))),
    "to_device": (_anything, lambda env: ToBackendOrDeviceWrapper(env, device=None)),
    "batchify": (_is_single, BatchifyWrapper),
    "batchify_and_back": (_is_single, lambda env: UnBatchifyWrapper(BatchifyWrapper(env))),
    "unbatchify": (_is_batch_of_one, UnBatchifyWrapper),
    "control_frequency": (_anything, _unhurried),
    # a step that restarts draws what the next one begins with, so the two steps of a clause have none
    "autoreset_same_step": (_anything, lambda env: AutoresetWrapper(TimeLimitWrapper(env, 3), "same_step")),
    "autoreset_next_step": (_anything, lambda env: AutoresetWrapper(TimeLimitWrapper(env, 2), "next_step")),
    "statistics": (_anything, lambda env: EpisodeStatisticsWrapper(TimeLimitWrapper(env, 2))),
    "normalized": (_anything, _normalized),
    "clip_action": (_anything, ClipActionWrapper),
    "stack": (
        _has_boxes,
        lambda env: TimeLimitWrapper(
            FrameStackWrapper(FlattenContextObservationWrapper(ActionRescaleWrapper(env)), 2, 1), 3
        ),
    ),
}

# What has array work of its own; the rest is the same on every backend.
ON_JAX = {
    "jax-count_batch": (
        "time_limit",
        "frame_stack_actions",
        "transform",
        "to_backend",
        "autoreset_next_step",
        "statistics",
        "normalized",
        "clip_action",
    ),
    "jax-count": ("batchify", "action_rescale", "autoreset_same_step"),
}

CASES = [
    pytest.param(make, wrap, id=f"{name}-{wrapper}")
    for name, make in ENVS.items()
    for wrapper, (applies, wrap) in WRAPPERS.items()
    if not name.startswith("jax") or wrapper in ON_JAX.get(name, ())
    if applies(make())
]


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in ENVS.items()])
def test_the_environments_keep_the_contract(make: Callable[[], Env]) -> None:
    check_env(make())


@pytest.mark.parametrize(("make", "wrap"), CASES)
def test_wrapped_environments_keep_the_contract(make: Callable[[], Env], wrap: Callable[[Env], Env]) -> None:
    check_env(wrap(make()))


@pytest.mark.parametrize("name", ["numpy-count_batch", "pytorch-count"])
def test_environments_on_jax_keep_the_contract(name: str) -> None:
    jax = pytest.importorskip("unienv_interface.backends.jax")
    check_env(ToBackendOrDeviceWrapper(ENVS[name](), jax.JaxComputeBackend))
