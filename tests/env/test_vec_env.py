"""SyncVecEnv and AsyncVecEnv where all goes well, or the caller is wrong; faults have files of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from vec_envs import (
    CounterEnv,
    SamplingEnv,
    both,
    counters,
    frozen,
    make_async,
    rich_space,
    zeros,
)
from vec_processes import (
    forks_with_threads,
    leaving_nothing,
)

from unienv_interface import Env, SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.vec_env import VecEnv
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import BoxSpace, DynamicBoxSpace, TextSpace
from unienv_interface.testing import EnvContract

pytestmark = forks_with_threads
np_backend = NumpyComputeBackend
Maker = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


# -- what they are made of -------------------------------------------------------------------------------


@both
def test_it_is_a_batch_of_its_environments(make: Maker) -> None:
    with make(factory for factory in counters(3)) as env:
        assert isinstance(env, VecEnv)
        assert env.batch_size == 3
        assert env.backend is np_backend
        assert env.device is None
        assert env.metadata == {"render_modes": ["rgb_array"]}
        assert (env.render_mode, env.render_fps) == ("rgb_array", 20)
        assert env.context_space is None
        assert env.observation_space == BoxSpace(np_backend, -np.inf, np.inf, "float32", shape=(3, 4))
        assert env.action_space == BoxSpace(np_backend, -1.0, 1.0, "float32", shape=(3, 2))
        assert env.unwrapped is env
        assert env.prev_wrapper_layer is None
        context_, observation, info = env.reset(seed=0)
        assert context_ is None
        assert observation in env.observation_space
        assert set(info) == {"seed"}
        observation, reward, terminated, truncated, info = env.step(np.full((3, 2), 0.25, np.float32))
        assert observation[:, :3].tolist() == [[0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]]
        assert (reward.tolist(), reward.dtype) == ([0.5, 0.5, 0.5], np.float64)
        assert terminated.tolist() == truncated.tolist() == [False] * 3
        assert terminated.dtype == truncated.dtype == bool


@both
def test_bounds_may_differ_between_environments(make: Maker) -> None:
    with make([lambda bound=bound: CounterEnv(bound=bound) for bound in (1.0, 2.0, 3.0)], validate=True) as env:
        assert env.action_space.high.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
        env.reset(seed=0)
        env.step(np.array([[1, 1], [2, 2], [3, 3]], np.float32))
        with pytest.raises(ValueError, match="action: "):
            env.step(np.array([[2, 2], [2, 2], [2, 2]], np.float32))
        assert env.get_attr("steps") == [1, 1, 1]


@both
def test_sizes_of_dynamic_boxes_may_differ_between_environments(make: Maker) -> None:
    spaces = [DynamicBoxSpace(np_backend, -1.0, 1.0, (low,), (high,), "float32") for low, high in ((1, 2), (3, 5))]
    action = BoxSpace(np_backend, 0, 3, "int64", shape=())
    with make([lambda space=space: SamplingEnv(space, action) for space in spaces]) as env:
        observation = env.reset(seed=0)[1]
        assert observation in env.observation_space
        assert len(observation[0]) < 3 <= len(observation[1])


BOX = BoxSpace(np_backend, 0.0, 1.0, "float32", shape=(2,))


@both
@pytest.mark.parametrize(
    ("factories", "text"),
    [
        ([], "env_fn gives no environments"),
        ([lambda: SyncVecEnv(counters(2))], r"SyncVecEnv\(.*\) is batched: a vector environment takes single env"),
        (
            [lambda: SamplingEnv(BOX, BOX), lambda: SamplingEnv(BoxSpace(np_backend, 0.0, 1.0, "float32"), BOX)],
            "observation_space: the environments' spaces cannot be batched: space 1 has shape",
        ),
        (
            [lambda: SamplingEnv(BOX, TextSpace(np_backend, 2)), lambda: SamplingEnv(BOX, TextSpace(np_backend, 3))],
            "action_space: the environments' spaces cannot be batched: space 1 is .*they must be equal",
        ),
        (
            [lambda: SamplingEnv(BOX, BOX), lambda: SamplingEnv(BOX, BOX, BOX)],
            "only one of environment 1 and environment 0 has a context space",
        ),
    ],
    ids=["none", "batched", "shape", "text", "context"],
)
def test_what_cannot_be_batched_says_why(make: Maker, factories: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(factories)


@both
def test_environments_on_different_backends_are_refused(make: Maker) -> None:
    if len(BACKENDS) < 2:
        pytest.skip("needs a second backend")
    with pytest.raises(ValueError, match=f"environment 1 is on {BACKENDS[1]}, environment 0 on numpy"):
        make([lambda backend=backend: CounterEnv(backend=backend) for backend in BACKENDS[:2]])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_workers": 0}, "num_workers is 0, there must be at least one"),
        ({"on_worker_error": "ignore"}, "on_worker_error is 'ignore', it must be 'raise' or 'restart'"),
        ({"timeout": 0}, "timeout is 0, it must be a number of seconds above 0, or None"),
    ],
)
def test_settings_are_checked(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_async(counters(2), **wrong)


# -- seeds -----------------------------------------------------------------------------------------------


def trajectory(env: Any, seed: int | None, steps: int = 3) -> list[Any]:
    """Everything that comes of a seed and of actions drawn from the environment's generator."""
    seen = [frozen(env.reset(seed=seed))]
    for _ in range(steps):
        seen.append(frozen(env.step(env.sample_action())))
    seen.append(frozen(env.reset(mask=np.array([True, False, True, False, False]))))
    return seen


def test_the_same_seed_is_the_same_trajectory_for_any_number_of_workers() -> None:
    wanted = trajectory(SyncVecEnv(counters(5)), 7)
    assert trajectory(SyncVecEnv(counters(5)), 8) != wanted
    for workers in (1, 2, 5):
        with make_async(counters(5), num_workers=workers) as env:
            assert env.num_workers == len(env.processes) == workers
            assert trajectory(env, 7) == wanted
            assert trajectory(env, 7)[0][2] == wanted[0][2]


@both
def test_every_environment_gets_a_seed_of_its_own_whatever_the_mask(make: Maker) -> None:
    with make(counters(4)) as env:
        seeds = env.reset(seed=11)[2]["seed"].tolist()
        assert seeds == np.random.SeedSequence(11).generate_state(4).tolist()
        assert len(set(seeds)) == 4
        mask = np.array([False, True, False, True])
        assert env.reset(seed=11, mask=mask)[2]["seed"].tolist() == [seeds[1], seeds[3]]


@both
def test_the_constructors_seed_fixes_the_seeds_that_are_drawn(make: Maker) -> None:
    drawn = []
    for seed in (3, 3, 4):
        with make(counters(3), seed=seed) as env:
            drawn.append([env.reset()[2]["seed"].tolist() for _ in range(2)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]
    with make(counters(3)) as one, make(counters(3)) as other:
        assert one.reset()[2]["seed"].tolist() != other.reset()[2]["seed"].tolist()


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_seeds_are_of_the_generator_that_is_there_and_never_the_same_again(backend: Any) -> None:
    """Also of one that was put back as it was: it is all that there is to their state."""

    def drawn(env: SyncVecEnv, resets: int) -> list[int]:
        return [seed for _ in range(resets) for seed in backend.to_numpy(env.reset()[2]["seed"]).tolist()]

    one, other = (SyncVecEnv(counters(2, backend=backend), seed=seed) for seed in (1, 2))
    of_one = drawn(one, 150)
    assert len(set(of_one)) == 300
    drawn(other, 3)
    other.rng = backend.random.random_number_generator(1)
    assert drawn(other, 150) == of_one
    if backend.simplified_name == "numpy":
        saved = one.rng.bit_generator.state
        afterwards = drawn(one, 3)
        one.rng.bit_generator.state = saved
        assert drawn(one, 3) == afterwards
    other.reset(seed=5)
    one.reset(seed=5)
    assert drawn(other, 3) == drawn(one, 3)
    assert not set(drawn(one, 100)) & set(of_one)


def test_adjacent_seeds_share_none_of_those_derived_from_them() -> None:
    env = SyncVecEnv(counters(16))
    seeds = [seed for base in range(100) for seed in env.reset(seed=base)[2]["seed"].tolist()]
    assert len(set(seeds)) == len(seeds)


# -- masked resets ---------------------------------------------------------------------------------------


@both
def test_a_masked_reset_returns_its_rows_and_touches_no_others(make: Maker) -> None:
    with make(counters(4)) as env:
        env.reset(seed=0)
        env.step(zeros(4))
        for mask in (np.array([True, False, False, True]), [True, False, False, True]):
            observation, info = env.reset(mask=mask, start=5)[1:]
            assert observation[:, [0, 2]].tolist() == [[0.0, 5.0], [3.0, 5.0]]
            assert len(info["seed"]) == 2
        assert env.step(zeros(4))[0][:, 1:3].tolist() == [[3.0, 6.0], [1.0, 2.0], [1.0, 2.0], [3.0, 6.0]]


@both
@pytest.mark.parametrize(
    "mask",
    [[True], [True] * 5, [1, 0, 0, 0], [0.0, 1.0, 0.0, 1.0], [[True] * 4], True, ["a"] * 4],
    ids=["short", "long", "ints", "floats", "axes", "scalar", "texts"],
)
def test_a_mask_of_the_wrong_length_or_dtype_is_refused(make: Maker, mask: Any) -> None:
    with make(counters(4)) as env:
        with pytest.raises(ValueError, match=r"the mask has dtype .* and shape .*it must be .* shape \(4,\)"):
            env.reset(mask=np.asarray(mask))
        assert env.get_attr("episodes") == [0, 0, 0, 0]


@both
def test_an_empty_mask_is_legal(make: Maker) -> None:
    space = rich_space(np_backend)
    action = BoxSpace(np_backend, 0, 3, "int64", shape=())
    with make([lambda: SamplingEnv(space, action, space)] * 2) as env:
        env.reset(seed=0)
        context_, observation, info = env.reset(mask=np.zeros(2, bool))
        empty = batch_utils.batch_space(space, 0)
        assert context_ in empty
        assert observation in empty
        assert info == {}
        assert env.step(np.zeros(2, np.int64))[0] in env.observation_space


# -- infos -----------------------------------------------------------------------------------------------


@both
def test_infos_become_one_dict_with_masks(make: Maker) -> None:
    with make(counters(3)) as env:
        env.reset(seed=0)
        info = env.step(zeros(3))[4]
        assert frozen(info) == {
            "odd": {"index": [0, 1, 0], "_index": [False, True, False]},
            "_odd": [False, True, False],
        }


# -- wrong actions ---------------------------------------------------------------------------------------


WRONG_ACTIONS = {
    "shape": (np.zeros((4, 3), np.float32), "shape"),
    "too few": (np.zeros((3, 2), np.float32), "shape"),
    "dtype": (np.zeros((4, 2), np.float64), "float64"),
    "nan": (np.full((4, 2), np.nan, np.float32), "nan|bound|outside|below|above"),
    "bounds": (np.array([[0, 0], [0, 0], [0, 0], [0, 1.5]], np.float32), "1.5"),
    "kind": ([[0.0, 0.0]] * 4, "list"),
}


@both
@pytest.mark.parametrize(("action", "text"), WRONG_ACTIONS.values(), ids=WRONG_ACTIONS)
def test_validate_refuses_a_wrong_action_before_any_environment_moves(make: Maker, action: Any, text: str) -> None:
    with make(counters(4), validate=True) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match=f"action: .*({text})"):
            env.step(action)
        if text == "shape" or isinstance(action, np.ndarray):
            with pytest.raises(ValueError, match=f"action: .*({text})"):
                env.step_async(action, index=[3, 1, 0, 2])
        assert env.get_attr("steps") == [0, 0, 0, 0]
        env.step_async(np.zeros((2, 2), np.float32), index=[3, 1])
        env.step_wait()
        assert env.get_attr("steps") == [0, 1, 0, 1]


@both
def test_also_without_validation_a_number_of_actions_that_does_not_fit_moves_nothing(make: Maker) -> None:
    with make(counters(4)) as env:
        env.reset(seed=0)
        for count in (3, 5):
            with pytest.raises(ValueError, match=r"\d actions for 4 environments|shape"):
                env.step(zeros(count))
        assert env.get_attr("steps") == [0, 0, 0, 0]
        assert env.step(zeros(4))[0].shape == (4, 4)


# -- closing, and the contract of every environment ------------------------------------------------------


class UnclosableEnv(CounterEnv):
    def close(self) -> None:
        self.index += 10
        if self.index == 11:
            raise RuntimeError("stuck")


def test_the_synchronous_one_closes_all_and_raises_the_first_failure() -> None:
    made = [UnclosableEnv(index) for index in range(3)]
    env = SyncVecEnv([lambda one=one: one for one in made])
    with pytest.raises(RuntimeError, match="stuck"):
        env.close()
    assert [one.index for one in made] == [10, 11, 12]
    env.close()
    with pytest.raises(RuntimeError, match="reset after close: the environments are closed"):
        env.reset()


@both
def test_environments_that_were_made_are_closed_if_another_cannot_be(make: Maker, tmp_path: Path) -> None:
    class ClosingEnv(CounterEnv):
        def close(self) -> None:
            (tmp_path / f"closed-{self.index}").touch()

    def fail() -> Env:
        raise OSError("no such robot")

    with pytest.raises(OSError, match="no such robot"):
        make([lambda: ClosingEnv(0), lambda: ClosingEnv(1), fail])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["closed-0", "closed-1"]


class TestSyncContract(EnvContract):
    def make_env(self) -> Env:
        return SyncVecEnv([lambda: SamplingEnv(BOX, BOX, BOX)] * 3)


class TestAsyncContract(EnvContract):
    def make_env(self) -> Env:
        return make_async([lambda: SamplingEnv(BOX, BOX, BOX)] * 3)
