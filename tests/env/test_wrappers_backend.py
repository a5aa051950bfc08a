from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from catalogue import BACKENDS, backend_cases
from envs import CountEnv, DictEnv, UnevenEnv, actions_of, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.spaces import BoxSpace, GraphInstance
from unienv_interface.wrapper import FrameStackWrapper, ToBackendOrDeviceWrapper, ToBackendWrapper, ToDeviceWrapper
from unienv_interface.wrapper.backend_compat import data_to

np_backend = NumpyComputeBackend

PAIRS = [
    pytest.param(source, target, id=f"{source}-{target}") for source, target in itertools.permutations(BACKENDS, 2)
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_everything_is_on_the_other_backend(source: ComputeBackend, target: ComputeBackend) -> None:
    below, twin = (CountEnv(source, 3, with_context=True) for _ in range(2))
    env = ToBackendOrDeviceWrapper(below, target)
    assert env.backend is target
    assert env.observation_space.backend is env.action_space.backend is env.context_space.backend is target
    results = [env.reset(seed=0), twin.reset(seed=0)]
    action = actions_of(env, 1)[0]
    assert target.is_backendarray(action)
    results += [env.step(action), twin.step(source.from_other_backend(target, action))]
    results += [env.reset(mask=mask_of(env, True, False, True)), twin.reset(mask=mask_of(twin, True, False, True))]
    for mine, plain in zip(results[::2], results[1::2], strict=True):
        for value, wanted in zip(mine[:-1], plain[:-1], strict=True):
            assert target.is_backendarray(value)
            assert np.allclose(target.to_host(value), source.to_host(wanted))
        assert target.is_backendarray(mine[-1]["steps"])
        assert target.to_host(mine[-1]["steps"]).tolist() == source.to_host(plain[-1]["steps"]).tolist()
    assert below.steps.tolist() == [0, 1, 0]


@pytest.mark.parametrize("target", backend_cases())
@pytest.mark.parametrize("seed", range(5))
def test_its_generator_is_of_the_backend_and_follows_the_seed(target: ComputeBackend, seed: int) -> None:
    below = CountEnv(np_backend)
    below.rng = np.random.default_rng(seed)
    env = ToBackendOrDeviceWrapper(below, target)
    assert env.sample_action() in env.action_space
    assert env.rng is not below.rng
    draws = []
    for _ in range(2):
        env.reset(seed=seed)
        draws.append(target.to_host(env.sample_action()).tolist())
    assert draws[0] == draws[1]


def test_its_generator_follows_from_the_one_below() -> None:
    def first_sample(seed: int) -> list[float]:
        below = CountEnv(np_backend)
        below.rng = np.random.default_rng(seed)
        return ToBackendOrDeviceWrapper(below, np_backend).sample_action().tolist()

    assert first_sample(1) == first_sample(1)
    assert first_sample(1) != first_sample(2)
    below = CountEnv(np_backend)
    below.rng = None
    assert ToBackendOrDeviceWrapper(below, np_backend).sample_action() in below.action_space


def test_values_without_axes_stay_what_they_are() -> None:
    env = ToBackendOrDeviceWrapper(CountEnv(np_backend), BACKENDS[-1])
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(actions_of(env, 1)[0])
    assert isinstance(reward, float)
    assert (terminated, truncated, info) == (False, False, {"steps": 1})


def test_frames_are_moved_too() -> None:
    target = BACKENDS[1] if len(BACKENDS) > 1 else np_backend
    env = ToBackendOrDeviceWrapper(CountEnv(np_backend, render_mode="rgb_array"), target)
    env.reset(seed=0)
    assert target.is_backendarray(env.render())


def test_values_that_are_narrowed_stay_in_their_bounds() -> None:
    """JAX has no float64 by default; the slots of this batch have bounds of their own."""
    jax = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    below = UnevenEnv(np_backend, 3, with_context=True)
    below.context_space = BoxSpace(np_backend, [[0.0], [0.1], [0.2]], [[1.1], [1.2], [1.3]], "float64", shape=(3, 2))
    env = ToBackendOrDeviceWrapper(below, jax)
    below.goal[:] = 1.1
    assert env.reset(seed=0)[0] in env.context_space
    context, _, _ = env.reset(mask=mask_of(env, False, True, True))
    assert context.shape == (2, 2)


def test_masks_of_any_backend_are_taken() -> None:
    env = ToBackendOrDeviceWrapper(CountEnv(np_backend, 3), BACKENDS[-1])
    env.reset(seed=0)
    assert env.reset(mask=np.array([True, False, True]))[1].shape == (2, 3)
    with pytest.raises(ValueError, match="one boolean per slot"):
        env.reset(mask=mask_of(env, True))


def test_the_short_forms() -> None:
    env = ToBackendWrapper(CountEnv(np_backend), BACKENDS[-1])
    assert isinstance(env, ToBackendOrDeviceWrapper)
    assert env.backend is BACKENDS[-1]


# -- devices -----------------------------------------------------------------------------------------------

# JAX makes two devices of one processor, but only in a process that has not yet asked for any.
ON_TWO_DEVICES = """
import jax
from envs import CountEnv, actions_of, mask_of
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.wrapper import FrameStackWrapper, TimeLimitWrapper, ToDeviceWrapper

home, away = jax.devices()

class Homebound(CountEnv):
    def step(self, action):
        assert action.device == home
        return super().step(action)

    def reset(self, *, mask=None, seed=None):
        assert mask is None or mask.device == home
        return super().reset(mask=mask, seed=seed)

def check(value, device=away):
    for leaf in jax.tree.leaves(value):
        assert not isinstance(leaf, jax.Array) or leaf.device == device, (leaf.device, device)

env = ToDeviceWrapper(Homebound(JaxComputeBackend, 2, with_context=True), away)
env = TimeLimitWrapper(FrameStackWrapper(env, 1, 1), 1)
assert env.device == env.observation_space.device == away
check(env.reset(seed=0))
action = env.sample_action()
check(action)
result = env.step(action)
check(result)
mask = jax.device_put(mask_of(env, True, False), away)
_, rows, _ = reset = env.reset(mask=mask)
check(reset)
check(env.update_observation_post_reset(result[0], rows, mask))
back = ToDeviceWrapper(env, home, original_device=away)
check(back.reset(seed=0), home)
"""


def test_everything_is_moved_between_devices() -> None:
    pytest.importorskip("jax")
    setting = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES], env={**os.environ, **setting, "PYTHONPATH": path}, check=True
    )


def test_without_a_device_nothing_changes() -> None:
    below = CountEnv(np_backend)
    env = ToBackendOrDeviceWrapper(below)
    assert env.device is None
    assert env.observation_space is below.observation_space


def test_a_device_that_the_backend_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no device 'cuda'"):
        ToDeviceWrapper(CountEnv(np_backend), "cuda")


# -- data_to -----------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("target", backend_cases())
def test_nested_data_is_moved(target: ComputeBackend) -> None:
    array = np.arange(3, dtype=np.int32)
    objects = np.empty(1, object)
    objects[0] = {"inner": array}
    graph = GraphInstance(n_nodes=array)
    data = {"a": [array, (array, "text")], "b": Pair(array, None), "c": objects, "d": graph, "e": 5}
    moved = data_to(data, np_backend, target)
    found = [moved["a"][0], moved["a"][1][0], moved["b"].left, moved["c"][0]["inner"], moved["d"].n_nodes]
    assert all(target.is_backendarray(value) for value in found)
    assert (moved["a"][1][1], moved["b"].right, moved["d"].n_edges, moved["e"]) == ("text", None, None, 5)
    assert isinstance(moved["b"], Pair)


def test_only_arrays_of_the_source_are_moved() -> None:
    target = BACKENDS[-1]
    mine, other = np.zeros(2, np.float32), target.from_numpy(np.zeros(2, np.float32))
    assert data_to([mine, other], target, np_backend)[0] is mine
    assert all(isinstance(value, np.ndarray) for value in data_to([mine, other], None, np_backend))
    assert data_to([mine, other])[0] is mine
    assert data_to("text", None, target) == "text"


def test_stacks_of_frames_are_moved() -> None:
    env = ToBackendOrDeviceWrapper(FrameStackWrapper(DictEnv(np_backend), 1, 1), BACKENDS[-1])
    assert env.reset(seed=0)[1] in env.observation_space
