from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from catalogue import BACKENDS, as_host, assert_same, backend_cases
from envs import CountEnv, CountFuncEnv, DictEnv, actions_of, mask_of

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env, FuncEnvBasedEnv
from unienv_interface.space.spaces import DictSpace, TextSpace
from unienv_interface.wrapper import BatchifyWrapper, UnBatchifyWrapper

np_backend = NumpyComputeBackend


def _episode(env: Env, actions: list[Any]) -> Any:
    seen = [env.reset(seed=3), *(env.step(action) for action in actions)]
    return as_host(tuple(tuple(_plain(value) for value in values) for values in seen))


def _plain(value: Any) -> Any:
    """Numbers and arrays without axes as one and the same."""
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, (bool, float, int, np.generic)) or getattr(value, "shape", None) == ():
        return np.asarray(value.item() if hasattr(value, "item") else value)
    return value


@pytest.mark.parametrize("backend", backend_cases())
def test_batchify_adds_an_axis_everywhere(backend: ComputeBackend) -> None:
    below = CountEnv(backend, with_context=True)
    env = BatchifyWrapper(below)
    assert env.batch_size == 1
    assert env.action_space.shape == (1, 2)
    context, observation, info = env.reset(seed=0)
    assert context in env.context_space
    assert observation in env.observation_space
    assert info["steps"].shape == (1,)
    _, reward, terminated, truncated, info = env.step(actions_of(env, 1)[0])
    for value in (reward, terminated, truncated, info["steps"]):
        assert backend.is_backendarray(value)
        assert value.shape == (1,)
    assert backend.dtype_is_boolean(terminated.dtype)
    assert backend.to_host(reward).tolist() == pytest.approx(below.total.tolist())


@pytest.mark.parametrize("backend", [backend for backend in BACKENDS if backend.simplified_name != "jax"], ids=str)
def test_unbatchify_undoes_batchify(backend: ComputeBackend) -> None:
    def make() -> list[Env]:
        return [DictEnv(backend, with_context=True), FuncEnvBasedEnv(CountFuncEnv(backend, with_context=True))]

    for plain, below in zip(make(), make(), strict=True):
        env = UnBatchifyWrapper(BatchifyWrapper(below))
        assert env.batch_size is None
        assert env.action_space == plain.action_space
        assert env.observation_space == plain.observation_space
        assert env.context_space == plain.context_space
        actions = actions_of(plain, 3)
        assert_same(None, _episode(env, actions), _episode(plain, actions))


def test_batchify_undoes_unbatchify() -> None:
    plain, below = (CountEnv(np_backend, 1, with_context=True) for _ in range(2))
    env = BatchifyWrapper(UnBatchifyWrapper(below))
    actions = actions_of(plain, 3)
    assert env.action_space == plain.action_space
    assert env.observation_space == plain.observation_space
    assert_same(None, _episode(env, actions), _episode(plain, actions))


def test_a_mask_resets_the_one_slot_or_none() -> None:
    below = DictEnv(np_backend, with_context=True)
    env = BatchifyWrapper(below)
    env.reset(seed=0)
    env.step(actions_of(env, 1)[0])
    context, observation, info = env.reset(mask=mask_of(env, False))
    assert context["goal"].shape == (0, 2)
    assert observation["image"].shape == (0, 2, 2, 1)
    assert info == {}
    assert below.steps.tolist() == [1]
    _, observation, _ = env.reset(mask=mask_of(env, True))
    assert observation["image"].shape == (1, 2, 2, 1)
    assert below.steps.tolist() == [0]
    with pytest.raises(ValueError, match="one boolean per slot"):
        env.reset(mask=mask_of(env, True, True))


def test_a_single_environment_takes_no_mask() -> None:
    env = UnBatchifyWrapper(CountEnv(np_backend, 1))
    with pytest.raises(ValueError, match="not batched, so a mask has nothing to select"):
        env.reset(mask=np.array([True]))


class Talker(CountEnv):
    """Infos of all sorts."""

    def _info(self, slots: np.ndarray) -> dict[str, Any]:
        return {
            "number": 3,
            "array": np.arange(2),
            "row": np.arange(1),
            "text": "hello",
            "pair": (1.5, "left"),
            "list": [7],
            "nested": {"flag": True, "none": None},
        }


def test_infos_come_back_as_they_were() -> None:
    plain = Talker(np_backend)
    below = BatchifyWrapper(Talker(np_backend))
    wanted = plain.reset(seed=0)[2]
    batched = below.reset(seed=0)[2]
    assert batched["number"].tolist() == [3]
    assert batched["array"].tolist() == [[0, 1]]
    assert batched["nested"]["flag"].tolist() == [True]
    found = UnBatchifyWrapper(below).reset(seed=0)[2]
    assert found.keys() == wanted.keys()
    assert (found["number"], found["text"], found["pair"], found["list"]) == (3, "hello", (1.5, "left"), [7])
    assert (found["array"].tolist(), found["row"].tolist()) == ([0, 1], [0])
    assert found["nested"] == {"flag": True, "none": None}


def test_infos_that_the_slot_lacks_are_left_out() -> None:
    below = CountEnv(np_backend, 1)
    infos = {"here": np.ones(1), "_here": np.ones(1, bool), "gone": np.ones(1), "_gone": np.zeros(1, bool), "all": 5}
    below._info = lambda slots: infos  # type: ignore[method-assign]
    assert UnBatchifyWrapper(below).reset(seed=0)[2] == {"here": 1.0, "all": 5}


def test_texts_become_a_batch_of_one() -> None:
    class Speaker(CountEnv):
        def _observation_space(self) -> Any:
            return DictSpace(np_backend, {"words": TextSpace(np_backend, 5)})

        def _native(self, space: Any, rows: Any) -> Any:
            return {"words": "hello"}

    env = BatchifyWrapper(Speaker(np_backend))
    _, observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert observation["words"].tolist() == ["hello"]
    assert UnBatchifyWrapper(env).reset(seed=0)[1] == {"words": "hello"}


def test_only_a_single_one_is_batched_and_only_a_batch_of_one_unbatched() -> None:
    with pytest.raises(ValueError, match="is a batch of 3 already"):
        BatchifyWrapper(CountEnv(np_backend, 3))
    for batch_size in (None, 3):
        with pytest.raises(ValueError, match=f"has batch_size {batch_size}, only a batch of one is"):
            UnBatchifyWrapper(CountEnv(np_backend, batch_size))
