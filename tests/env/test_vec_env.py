"""SyncVecEnv and AsyncVecEnv where all goes well, or the caller is wrong; faults have a file of their own."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS
from vec_envs import (
    METHODS,
    CounterEnv,
    SamplingEnv,
    Script,
    context,
    counters,
    frozen,
    leaving_nothing,
    rich_space,
    rows,
    wait_until,
)

from unienv_interface import AsyncVecEnv, Env, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base.vec_env import VecEnv
from unienv_interface.space.space_utils import batch_utils
from unienv_interface.space.spaces import (
    BinarySpace,
    BoxSpace,
    DictSpace,
    DynamicBoxSpace,
    Space,
    TextSpace,
    TupleSpace,
    UnionSpace,
)
from unienv_interface.testing import EnvContract
from unienv_interface.wrapper import TimeLimitWrapper

pytestmark = [
    # This process may have threads of other tests' libraries; the workers use none of them.
    pytest.mark.filterwarnings("ignore:.*os.fork.* was called:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

np_backend = NumpyComputeBackend
Maker = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    if not sys.platform.startswith("linux"):
        yield
        return
    with leaving_nothing():
        yield


def make_async(factories: Any, **kwargs: Any) -> AsyncVecEnv:
    return AsyncVecEnv(factories, **{"ctx": context("fork"), "num_workers": 2, **kwargs})


both = pytest.mark.parametrize("make", [SyncVecEnv, make_async], ids=["sync", "async"])


def zeros(count: int) -> np.ndarray:
    return np.zeros((count, 2), np.float32)


# -- what they are made of ---------------------------------------------------------------------------------


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
        ([lambda: SyncVecEnv(counters(2))], r"SyncVecEnv\(.*\) is batched, a vector environment takes environments"),
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
            "environment 1 and environment 0 do not both have a context space",
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


# -- seeds -------------------------------------------------------------------------------------------------


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


def test_adjacent_seeds_share_none_of_those_derived_from_them() -> None:
    env = SyncVecEnv(counters(16))
    seeds = [seed for base in range(100) for seed in env.reset(seed=base)[2]["seed"].tolist()]
    assert len(set(seeds)) == len(seeds)


# -- masked resets -----------------------------------------------------------------------------------------


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


# -- spaces of all kinds -----------------------------------------------------------------------------------


def discrete(backend: ComputeBackend) -> Space:
    return BoxSpace(backend, 0, 3, "int64", shape=())


def nested(backend: ComputeBackend) -> Space:
    return DictSpace(
        backend,
        {
            "move": BoxSpace(backend, -1.0, 1.0, "float32", shape=(3,)),
            "grip": TupleSpace(backend, [BinarySpace(backend, ()), discrete(backend)]),
        },
    )


ACTION_SPACES: dict[str, Callable[[ComputeBackend], Space]] = {
    "discrete": discrete,
    "nested": nested,
    "text": lambda backend: TextSpace(backend, 8),
    "dynamic": lambda backend: DynamicBoxSpace(backend, -1.0, 1.0, (0,), (4,), "float32"),
    "union": lambda backend: UnionSpace(backend, [discrete(backend), TextSpace(backend, 3)]),
    "image": lambda backend: BoxSpace(backend, 0, 255, "uint8", shape=(40, 40, 3)),
}


def run(env: Any, partly: bool) -> list[Any]:
    """Some steps, seen as plain data; partly some of them, in an order of their own."""
    seen = [frozen(env.reset(seed=3))]
    for _ in range(2):
        actions = env.sample_action()
        if not partly:
            seen.append(frozen(env.step(actions)))
            continue
        for index in ([2, 0], [1, 3]):
            part = batch_utils.get_at(env.action_space, actions, env.backend.from_numpy(np.array(index)))
            env.step_async(part, index=index)
        observation, reward, terminated, truncated, info = env.step_wait()
        assert sorted(info["env_index"].tolist()) == [0, 1, 2, 3]
        order = np.argsort(env.backend.to_numpy(info["env_index"]))
        values = rows(env.observation_space, observation)
        signals = [env.backend.to_numpy(signal)[order].tolist() for signal in (reward, terminated, truncated)]
        seen.append([[values[place] for place in order], *signals])
    return seen


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_values_of_all_kinds_travel_as_they_are(kind: str, shared_memory: bool) -> None:
    observation, action = rich_space(np_backend), ACTION_SPACES[kind](np_backend)
    factories = [lambda: SamplingEnv(observation, action, observation)] * 4
    wanted = [run(SyncVecEnv(factories), partly) for partly in (False, True)]
    with make_async(factories, shared_memory=shared_memory, num_workers=2 if shared_memory else 1) as env:
        assert [run(env, partly) for partly in (False, True)] == wanted
        assert env.reset(seed=0)[0] in env.context_space


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_every_backend(backend: ComputeBackend) -> None:
    is_jax = backend.simplified_name == "jax"
    method = "forkserver" if is_jax else "fork"
    factories = [lambda i=i: CounterEnv(i, backend=backend) for i in range(3)]
    seen = []
    for env in (SyncVecEnv(factories), make_async(factories, ctx=context(method), validate=True)):
        with env:
            assert env.backend is backend
            values: list[Any] = [*env.reset(seed=0)[1:], *env.step(env.sample_action())]
            mask = backend.from_numpy(np.array([False, True, False]))
            values += env.reset(seed=1, mask=mask)[1:]
            assert backend.is_backendarray(values[6].pop("_odd"))
            assert all(backend.is_backendarray(value) for value in values if not isinstance(value, dict))
            assert values[0] in env.observation_space
            seen.append(frozen(values))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend.simplified_name == "pytorch"], ids=str)
def test_rich_observations_on_pytorch(backend: ComputeBackend) -> None:
    observation, action = rich_space(backend), nested(backend)
    factories = [lambda: SamplingEnv(observation, action)] * 4
    wanted = run(SyncVecEnv(factories), False)
    with make_async(factories) as env:
        assert run(env, False) == wanted


@pytest.mark.skipif(not any(b.simplified_name == "pytorch" for b in BACKENDS), reason="needs PyTorch")
def test_pytorch_in_a_fork_of_a_process_that_has_used_its_threads(tmp_path: Path) -> None:
    code = """
import torch

def compute():
    return torch.sin(torch.ones(1_000_000)).sum()

class ThreadedEnv(CounterEnv):
    def step(self, action):
        compute()
        return super().step(action)

torch.set_num_threads(2)
compute()
with AsyncVecEnv([ThreadedEnv] * 2, ctx=context("fork"), timeout=20) as env:
    env.reset(seed=0)
    env.step(np.zeros((2, 2), np.float32))
print("done", flush=True)
"""
    with Script(tmp_path / "script.py", code) as script:
        script.says("done")
        assert script.ends(20) == 0


# -- whose the results are ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_memory", [None, True, False], ids=["sync", "shared", "pipe"])
def test_what_was_returned_does_not_change(shared_memory: bool | None) -> None:
    space, action = rich_space(np_backend), discrete(np_backend)
    factories = [lambda: SamplingEnv(space, action, space)] * 3
    env = SyncVecEnv(factories) if shared_memory is None else make_async(factories, shared_memory=shared_memory)
    kept, actions = [env.reset(seed=0)], np.zeros(3, np.int64)
    kept += [env.step(actions) for _ in range(2)]
    env.step_async(actions[:2], index=[2, 0])
    kept += [env.step_wait(), env.reset(mask=np.array([True, False, True]))]
    before = frozen(kept)
    env.step(actions)
    env.reset(seed=1)
    env.close()
    assert frozen(kept) == before


@both
def test_what_the_caller_gave_may_change_at_once_and_what_it_got_may_be_written_to(make: Maker) -> None:
    with make(counters(3)) as env:
        env.reset(seed=0)
        index, action = np.array([2, 0]), np.ones((2, 2), np.float32)
        env.step_async(action, index=index)
        index[:], action[:] = 1, 0
        observation, reward, *_, info = env.step_wait()
        order = np.argsort(info["env_index"])
        assert observation[order][:, 0].tolist() == [0.0, 2.0]
        assert reward.tolist() == [2.0, 2.0]
        env.step_async(zeros(3))
        observation, reward, terminated, truncated, info = env.step_wait(min_envs=3)
        for array in (observation, reward, terminated, truncated, info["env_index"]):
            array[:] = 0
        assert env.step(zeros(3))[0][:, [0, 2]].tolist() == [[0.0, 3.0], [1.0, 2.0], [2.0, 3.0]]


def test_without_a_copy_the_batch_is_the_shared_memory_itself() -> None:
    with make_async(counters(3), copy=False) as env:
        first = env.reset(seed=0)[1]
        second = env.step(zeros(3))[0]
        assert np.shares_memory(first, second)
        assert first[:, 2].tolist() == [1.0, 1.0, 1.0]
        env.step_async(zeros(2), index=[0, 1])
        assert not np.shares_memory(env.step_wait()[0], first)  # rows of some are gathered
        copied = first.copy()
    assert first.tolist() == copied.tolist()  # also after close
    with make_async(counters(3), copy=False, shared_memory=False) as env:
        assert not np.shares_memory(env.reset(seed=0)[1], env.step(zeros(3))[0])


# -- infos -------------------------------------------------------------------------------------------------


@both
def test_infos_become_one_dict_with_masks(make: Maker) -> None:
    with make(counters(3)) as env:
        env.reset(seed=0)
        info = env.step(zeros(3))[4]
        assert frozen(info) == {
            "odd": {"index": [0, 1, 0], "_index": [False, True, False]},
            "_odd": [False, True, False],
        }


# -- the workers of AsyncVecEnv ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_start_method_runs_closures_and_builds_nothing_here(method: str, tmp_path: Path) -> None:
    folder = str(tmp_path)

    class LocalEnv(CounterEnv):
        def __init__(self, index: int) -> None:
            super().__init__(index)
            Path(folder, f"{os.getpid()}-{index}").touch()

    with make_async([lambda i=i: LocalEnv(i) for i in range(3)], ctx=context(method)) as env:
        env.reset(seed=0)
        assert env.step(zeros(3))[0][:, 0].tolist() == [0.0, 1.0, 2.0]
        first, second = (process.pid for process in env.processes)
        assert env.get_attr("pid") == [first, second, second]
        assert os.getpid() not in (first, second)
        assert {path.name for path in tmp_path.iterdir()} == {f"{first}-0", f"{second}-1", f"{second}-2"}


def test_a_fork_takes_factories_that_cannot_be_pickled_and_the_others_say_so() -> None:
    lock = threading.Lock()
    factories = [lambda: CounterEnv(0 if lock.acquire(blocking=False) else 1)] * 2
    with make_async(factories) as env:
        assert env.get_attr("index") == [0, 0]
    with pytest.raises(TypeError, match=r"the factories of environments 0 to 0 cannot be sent.*cannot pickle"):
        make_async(factories, ctx=context("spawn"))


def test_the_documented_attributes() -> None:
    with make_async(counters(3), seed=1) as env:
        assert all(isinstance(pipe, multiprocessing.connection.Connection) for pipe in env.command_pipes)
        assert all(isinstance(process, multiprocessing.process.BaseProcess) for process in env.processes)
        assert all(process.daemon for process in env.processes)
        assert len(env.command_pipes) == len(env.processes) == env.num_workers == 2
        assert env.error_queue.empty()
        with pytest.raises(AttributeError):
            env.get_attr("missing")
        report = env.error_queue.get_nowait()
        assert (report.env_index, report.command) in {(0, "get_attr missing"), (1, "get_attr missing")}
    with make_async(counters(1), daemon=False) as env:
        assert not env.processes[0].daemon


def test_as_many_workers_as_cores_by_default_but_no_more_than_environments() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with AsyncVecEnv(counters(3), ctx=context("fork")) as env:
        assert env.num_workers == min(cores or 1, 3)
    with make_async(counters(2), num_workers=64) as env:
        assert env.num_workers == 2


def test_commands_go_to_one_environment_and_results_come_in_order() -> None:
    with make_async(counters(3)) as env:
        for index in (2, 0):
            env.send_command(index, "reset", seed=5, start=index)
        env.send_command(2, "step", np.ones(2, np.float32))
        env.send_command(2, "render")
        assert env.get_command_result(2)[1][2] == 2.0
        observation, reward, terminated, _, _ = env.get_command_result(2)
        assert (observation[2], reward, terminated) == (3.0, 2.0, False)
        assert env.get_command_result(2).shape == (2, 2, 3)
        assert env.get_command_result(0)[2] == {"seed": 5}
        env.send_command(1, "step", "not an action")  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="environment 1, step"):
            env.get_command_result(1)
        env.send_command(1, "close")
        assert env.get_command_result(1) is None
        with pytest.raises(RuntimeError, match="no command was sent to environment 1"):
            env.get_command_result(1)
        for wrong in (3, -1):
            with pytest.raises(IndexError, match=f"index {wrong}, there are 3 environments"):
                env.send_command(wrong, "render")
        # a command may wait for its result while others go on
        env.reset(seed=0)
        env.send_command(0, "render")
        assert env.step(zeros(3))[0][:, 2].tolist() == [1.0, 1.0, 1.0]
        assert env.get_command_result(0).max() == 0


@both
def test_call_get_and_set_over_all_or_some(make: Maker) -> None:
    with make([lambda i=i: TimeLimitWrapper(CounterEnv(i), 9) for i in range(3)]) as env:
        assert env.call("scaled", 2.0, offset=1.0) == [1.0, 3.0, 5.0]
        assert env.call("scaled", 2.0, index=[2, 0]) == [4.0, 0.0]
        assert env.get_attr("index", index=[1]) == [1]
        env.set_attr("index", 7)
        env.set_attr("index", [8, 9], index=(0, 2))
        assert env.get_attr("index") == [8, 7, 9]
        frames = env.render()
        assert frames is not None
        assert [frame[0, 0, 0] for frame in frames] == [8, 7, 9]
        with pytest.raises(ValueError, match="2 values for 3 environments"):
            env.set_attr("index", [1, 2])
        with pytest.raises(IndexError, match="index 3, there are 3 environments"):
            env.call("scaled", 1.0, index=[3])
        with pytest.raises(AttributeError, match="missing"):
            env.call("missing")


@both
def test_render_has_the_frames_of_those_that_give_one(make: Maker) -> None:
    with make(counters(3)) as env:
        assert [frame[0, 0, 0] for frame in env.render()] == [0, 2]
    with make([lambda: CounterEnv(1)]) as env:
        assert env.render() is None


# -- stepping some of them ---------------------------------------------------------------------------------


class GatedEnv(CounterEnv):
    """Steps when a file is there."""

    def __init__(self, index: int, gate: Path) -> None:
        super().__init__(index)
        self.gate = gate

    def step(self, action: Any) -> Any:
        if not wait_until(lambda: Path(f"{self.gate}-{self.index}").exists()):
            raise AssertionError("the gate stayed shut")
        return super().step(action)


def test_a_learner_may_go_on_with_those_that_are_ready(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with make_async([lambda i=i: GatedEnv(i, gate) for i in range(4)], num_workers=4) as env:
        env.reset(seed=0)
        for index in (1, 3):
            Path(f"{gate}-{index}").touch()
        env.step_async(np.arange(8, dtype=np.float32).reshape(4, 2))
        observation, reward, _, _, info = env.step_wait(min_envs=2)
        assert info["env_index"].tolist() == [1, 3]
        assert observation[:, 0].tolist() == [1.0, 3.0]
        assert reward.tolist() == [5.0, 13.0]
        # these go on, in an order of the caller's, while the others are still at their first step
        env.step_async(np.array([[3, 3], [1, 1]], np.float32), index=[3, 1])
        seen = []
        for _ in range(2):
            observation, reward, _, _, info = env.step_wait(min_envs=1)
            seen += zip(info["env_index"].tolist(), observation[:, 2].tolist(), reward.tolist(), strict=True)
            if len(seen) == 2:
                break
        assert sorted(seen) == [(1, 2.0, 2.0), (3, 2.0, 6.0)]
        for index in (0, 2):
            Path(f"{gate}-{index}").touch()
        observation, _, _, _, info = env.step_wait()
        assert info["env_index"].tolist() == [0, 2]
        assert observation[:, 2].tolist() == [1.0, 1.0]
        assert env.step(zeros(4))[0][:, 2].tolist() == [2.0, 3.0, 2.0, 3.0]


def test_environments_of_one_worker_may_be_asked_one_after_the_other(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with make_async([lambda i=i: GatedEnv(i, gate) for i in range(3)], num_workers=1) as env:
        env.reset(seed=0)
        env.step_async(zeros(1), index=[2])
        env.step_async(np.ones((2, 2), np.float32), index=[1, 0])
        for index in range(3):
            Path(f"{gate}-{index}").touch()
        observation, reward, _, _, info = env.step_wait()
        assert dict(zip(info["env_index"].tolist(), reward.tolist(), strict=True)) == {2: 0.0, 1: 2.0, 0: 2.0}
        assert observation[:, 0].tolist() == info["env_index"].tolist()


@both
def test_all_of_them_in_another_order(make: Maker) -> None:
    with make(counters(4)) as env:
        env.reset(seed=0)
        order = [0, 2, 1, 3]
        env.step_async(np.repeat(np.array(order, np.float32), 2).reshape(4, 2), index=order)
        observation, reward, _, _, info = env.step_wait()
        assert info["env_index"].tolist() == observation[:, 0].tolist() == order
        assert reward.tolist() == [0.0, 4.0, 2.0, 6.0]


@both
def test_wrong_uses_of_asking_and_waiting(make: Maker) -> None:
    with make(counters(4)) as env:
        for wait in (env.step_wait, env.reset_wait):
            with pytest.raises(RuntimeError, match=r"(step|reset)_wait without (step|reset)_async"):
                wait()
        env.reset_async(seed=0)
        for command in (lambda: env.step_async(zeros(4)), lambda: env.step_async(zeros(1), index=[0])):
            with pytest.raises(RuntimeError, match="step while a reset is under way: call reset_wait first"):
                command()
        with pytest.raises(RuntimeError, match="reset while a reset is under way"):
            env.reset()
        env.reset_wait()
        env.step_async(zeros(2), index=[0, 1])
        for command in (env.reset, env.render, lambda: env.step(zeros(4)), lambda: env.get_attr("pid")):
            with pytest.raises(RuntimeError, match="while a step is under way: call step_wait first"):
                command()
        with pytest.raises(RuntimeError, match=r"environments \[1\] are stepping already"):
            env.step_async(zeros(2), index=[2, 1])
        for least in (0, 3):
            with pytest.raises(ValueError, match=f"min_envs is {least}, 2 environments are stepping"):
                env.step_wait(min_envs=least)
        assert env.step_wait()[0].shape == (2, 4)
        for wrong in ([], 0, [0.0], [True], [[0]], "a"):
            with pytest.raises(ValueError, match="it wants a list or an array of environment indices"):
                env.step_async(zeros(1), index=wrong)
        with pytest.raises(ValueError, match="names an environment twice"):
            env.step_async(zeros(2), index=[1, 1])
        for beyond in (-1, 4):
            with pytest.raises(IndexError, match="there are 4 environments"):
                env.step_async(zeros(1), index=[beyond])
        assert env.get_attr("steps") == [1, 1, 0, 0]


# -- wrong actions -----------------------------------------------------------------------------------------


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


# -- closing, and the contract of every environment --------------------------------------------------------


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
    with pytest.raises(RuntimeError, match="reset after close: the environments are gone"):
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


class TestRichContract(EnvContract):
    def make_env(self) -> Env:
        space = rich_space(np_backend)
        return make_async([lambda: SamplingEnv(space, nested(np_backend), space)] * 3)
