"""Seeds, states and the spaces of rows."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from catalogue import backend_cases

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.space_utils.row_spaces import RowSpaces
from unienv_interface.space.spaces import BoxSpace, DictSpace, TextSpace
from unienv_interface.utils.seed_util import next_seed, next_seed_rng
from unienv_interface.utils.stateclass import StateClass, field, stateclass

np_backend = NumpyComputeBackend


# -- seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backend_cases())
def test_seeds_are_never_negative_and_follow_from_the_generator(backend: ComputeBackend) -> None:
    drawn: list[list[int]] = []
    for _ in range(2):
        rng, seeds = backend.random.random_number_generator(7), list[int]()
        for _ in range(50):
            rng, seed = next_seed_rng(rng, backend)
            seeds.append(seed)
        drawn.append(seeds)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 50
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in drawn[0])


def test_a_numpy_generator_gives_seeds_too() -> None:
    seeds = [next_seed(np.random.default_rng(seed)) for seed in range(100)]
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == 100


# -- states ------------------------------------------------------------------------------------------------


class Pose(StateClass):
    x: Any
    frame: str = field(pytree_node=False, default="world")


@stateclass
class Plain:
    y: Any


@stateclass(kw_only=True)
class ByName:
    z: Any = 0


def test_states_are_frozen_values() -> None:
    pose = Pose(1, "map")
    assert (pose.x, pose.frame, Pose(x=2).frame) == (1, "map", "world")
    with pytest.raises(FrozenInstanceError):
        pose.x = 2
    assert pose.replace(x=3) == Pose(3, "map")
    assert pose == Pose(1, "map")
    assert pickle.loads(pickle.dumps(pose)) == copy.deepcopy(pose) == pose
    assert Plain(1).replace(y=2) == Plain(2)  # type: ignore[attr-defined]
    assert ByName(z=1).z == 1
    with pytest.raises(TypeError):
        Pose()
    with pytest.raises(TypeError):
        ByName(1)  # type: ignore[misc]


def test_jax_takes_states_apart() -> None:
    jax = pytest.importorskip("jax")
    pose = Pose(np.float32(1.0), "map")
    assert jax.tree_util.tree_leaves(pose) == [np.float32(1.0)]
    doubled = jax.tree_util.tree_map(lambda leaf: leaf * 2, pose)
    assert (doubled.x, doubled.frame) == (2.0, "map")
    assert jax.tree_util.tree_leaves(Plain([1, 2])) == [1, 2]


def test_states_do_not_import_jax() -> None:
    code = """
import sys
from unienv_interface.func_wrapper import FuncFrameStackWrapperState
from unienv_interface import wrapper
FuncFrameStackWrapperState(1, None, None)
assert not {"jax", "torch", "gymnasium", "av"} & set(sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


# -- spaces of rows ----------------------------------------------------------------------------------------


def test_rows_of_slots_that_are_alike() -> None:
    space = DictSpace(np_backend, {"a": BoxSpace(np_backend, 0, 9, "int8", shape=(3, 2))})
    rows = RowSpaces(space)
    assert rows.of(np.array([True, True, True])) is space
    two = rows.of(np.array([True, False, True]))
    assert two["a"].shape == (2, 2)
    assert rows.of(np.array([False, True, True])) is two
    assert rows.of(np.array([False] * 3))["a"].shape == (0, 2)


def test_rows_of_slots_that_differ_keep_their_bounds() -> None:
    space = BoxSpace(np_backend, 0, [[1], [2], [3]], "int8", shape=(3, 1))
    rows = RowSpaces(space)
    assert rows.of(np.array([True, False, True])).high.tolist() == [[1], [3]]
    assert rows.of(np.array([False] * 3)).shape == (0, 1)


def test_rows_need_a_batch() -> None:
    assert RowSpaces(batch_utils.batch_space(TextSpace(np_backend, 3), 2)).of(np.array([True, False])).shape == (1,)
    with pytest.raises(ValueError, match="has no batch axis"):
        RowSpaces(TextSpace(np_backend, 3))


# -- the package -------------------------------------------------------------------------------------------


def test_the_wrapper_package_has_the_documented_names() -> None:
    from unienv_interface import wrapper

    documented = [
        "ContextObservationTransformWrapper",
        "ActionTransformWrapper",
        "ToBackendOrDeviceWrapper",
        "ToBackendWrapper",
        "ToDeviceWrapper",
        "EpisodeRenderStackWrapper",
        "EpisodeVideoWrapper",
        "EpisodeWandbVideoWrapper",
        "TimeLimitWrapper",
        "ControlFrequencyLimitWrapper",
        "ActionRescaleWrapper",
        "FlattenActionWrapper",
        "FlattenContextObservationWrapper",
        "FrameStackWrapper",
        "BatchifyWrapper",
        "UnBatchifyWrapper",
    ]
    assert set(documented) <= set(wrapper.__all__)
    assert set(documented) <= set(dir(wrapper))
    with pytest.raises(AttributeError, match="has no attribute 'NoWrapper'"):
        wrapper.NoWrapper  # noqa: B018
