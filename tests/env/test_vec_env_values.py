"""What goes through vector environments: values of every kind and backend, and whose they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
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
    rows,
    zeros,
)
from vec_processes import (
    Script,
    context,
    forks_with_threads,
    leaving_nothing,
)

from unienv_interface import Env, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
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

pytestmark = forks_with_threads
np_backend = NumpyComputeBackend
Maker = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leaving_nothing():
        yield


# -- spaces of all kinds ---------------------------------------------------------------------------------


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


# -- observations as environments give them ----------------------------------------------------------------


class OddEnv(CounterEnv):
    """Gives its observations in a form of its own, after the first."""

    def __init__(self, form: Callable[[np.ndarray], Any]) -> None:
        super().__init__(3)
        self.form = form

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return (self.form(observation), *others)


FITTING: dict[str, Callable[[np.ndarray], Any]] = {
    "reversed in memory": lambda values: values[::-1].copy()[::-1],
    "every other one": lambda values: np.repeat(values, 2)[::2],
    "the other byte order": lambda values: values.astype(">f4"),
    "read only": lambda values: np.frombuffer(values.tobytes(), np.float32),
}
NOT_FITTING: dict[str, Callable[[np.ndarray], Any]] = {
    "one for all": lambda values: values[:1],
    "no axis": lambda values: values[0],
    "an axis more": lambda values: values[None],
    "other numbers": lambda values: values.astype(np.float64),
    "as many bytes": lambda values: values.view(np.int32),
    "bytes": lambda values: values.tobytes(),
    "nothing": lambda values: None,
}


@both
@pytest.mark.parametrize("form", FITTING)
def test_an_observation_may_lie_in_memory_as_it_likes(make: Maker, form: str) -> None:
    with make([lambda: OddEnv(FITTING[form])] * 2) as env:
        env.reset(seed=0)
        assert env.step(zeros(2))[0][:, :3].tolist() == [[3.0, 1.0, 1.0]] * 2


@both
@pytest.mark.parametrize("form", NOT_FITTING)
def test_an_observation_that_is_not_of_the_space_is_an_error(make: Maker, form: str) -> None:
    with make([lambda: OddEnv(NOT_FITTING[form])] * 2) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"the space wants|wanted|an array"):
            env.step(zeros(2))


@pytest.mark.skipif(not any(b.simplified_name == "jax" for b in BACKENDS), reason="needs JAX")
def test_an_array_of_another_library_that_lends_no_memory_is_read_in_the_usual_way() -> None:
    import jax.numpy as jnp

    with SyncVecEnv([lambda: OddEnv(lambda values: jnp.asarray(values, jnp.bfloat16))] * 2) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match="the space wants an array of numpy"):
            env.step(zeros(2))


# -- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(cloudpickle.dumps(env))])
@pytest.mark.parametrize("space", [discrete, nested, rich_space])
def test_a_copy_goes_on_by_itself(space: Callable[[ComputeBackend], Space], copied: Callable[[Any], Any]) -> None:
    observation, action = space(np_backend), discrete(np_backend)
    env = SyncVecEnv([lambda: SamplingEnv(observation, action, observation)] * 3)
    env.reset(seed=0)
    actions = np.zeros(3, np.int64)
    kept = env.step(actions)
    before, other = frozen(kept), copied(env)
    assert [frozen(env.step(actions)) for _ in range(3)] == [frozen(other.step(actions)) for _ in range(3)]
    other.reset(seed=1)
    assert frozen(env.step(actions)) != frozen(other.step(actions))
    assert frozen(kept) == before


# -- whose the results are -------------------------------------------------------------------------------


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


@both
def test_without_a_copy_the_batch_is_the_memory_itself(make: Maker) -> None:
    with make(counters(3), copy=False) as env:
        first = env.reset(seed=0)[1]
        second = env.step(zeros(3))[0]
        assert np.shares_memory(first, second)
        assert first[:, 2].tolist() == [1.0, 1.0, 1.0]
        env.step_async(zeros(2), index=[0, 1])
        assert not np.shares_memory(env.step_wait()[0], first)  # rows of some are gathered
        copied = first.copy()
    assert first.tolist() == copied.tolist()  # also after close


def test_without_shared_memory_there_is_always_a_copy() -> None:
    with make_async(counters(3), copy=False, shared_memory=False) as env:
        assert not np.shares_memory(env.reset(seed=0)[1], env.step(zeros(3))[0])


class TestRichContract(EnvContract):
    def make_env(self) -> Env:
        space = rich_space(np_backend)
        return make_async([lambda: SamplingEnv(space, nested(np_backend), space)] * 3)
