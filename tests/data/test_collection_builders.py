"""How a step becomes a sample: keys, functions, transformations, infos, and the check of what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recording_envs import TallyEnv, full_space, vector

from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, transition_space
from unienv_interface import SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.env_base.env import Env
from unienv_interface.space import Space
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, TextSpace, TupleSpace
from unienv_interface.transformations import DataTransformation

NUMPY = NumpyComputeBackend
SLOTS = 2


def number(dtype: str = "float32", shape: tuple[int, ...] = ()) -> BoxSpace:
    return BoxSpace(NUMPY, -1000, 1000, dtype, shape=shape)


def step(env: Env, space: Space, times: int = 1, mode: Any = "auto", **options: Any) -> list[ReplayBuffer]:
    """Record a few steps into new buffers of a space."""
    slots = env.batch_size or 1
    if mode == "per_env":
        buffers = [ReplayBuffer.create(space, keep_episodes=False) for _ in range(slots)]
    else:
        buffers = [ReplayBuffer.create(space, keep_episodes=False, lanes=slots if mode == "interleaved" else 1)]
    wrapper = ReplayBufferCollectionWrapper(env, buffers, mode, on_ended="ignore", **options)
    wrapper.reset()
    for _ in range(times):
        wrapper.step(np.zeros((2,) if env.batch_size is None else (slots, 2), np.float32))
    return buffers


# -- keys ---------------------------------------------------------------------------------------------------


def test_exactly_the_keys_of_the_space_are_filled_and_cast() -> None:
    space = DictSpace(
        NUMPY,
        {
            "reward": number("float64"),
            "terminated": BoxSpace(NUMPY, 0, 1, "uint8", shape=()),
            "done": BoxSpace(NUMPY, 0.0, 1.0, "float32", shape=(1,)),
            "step": number("int16"),
        },
    )
    for env, mode in ((TallyEnv(), "auto"), (vector("sync", SLOTS), "shared"), (vector("sync", SLOTS), "per_env")):
        for buffer in step(env, space, mode=mode, validate_transition=True):
            batch = buffer.get_at(...)
            assert {key: column.dtype.name for key, column in batch.items()} == {
                "reward": "float64",
                "terminated": "uint8",
                "done": "float32",
                "step": "int16",
            }
            assert batch["done"].shape == (len(buffer), 1)


@pytest.mark.parametrize(
    ("key", "slots", "mode"),
    [("colour", None, "auto"), ("colour", SLOTS, "per_env"), ("context", None, "auto"), ("context", SLOTS, "shared"),
     ("env_index", None, "auto"), ("env_index", 1, "auto")],
)  # fmt: skip
@pytest.mark.parametrize("builder", [None, "transformation"])
def test_a_key_that_cannot_be_filled_is_named_before_the_step(key: str, slots: Any, mode: Any, builder: Any) -> None:
    env = TallyEnv(has_context=False) if slots is None else vector("sync", slots, has_context=False)
    chosen = Identity() if builder else None
    buffers = [
        ReplayBuffer.create(DictSpace(NUMPY, {key: number()}), keep_episodes=False)
        for _ in range(slots if mode == "per_env" else 1)
    ]
    wrapper = ReplayBufferCollectionWrapper(env, buffers, mode, transition_builder=chosen)
    wrapper.reset()
    with pytest.raises(KeyError, match=key):
        wrapper.step(np.zeros((2,) if slots is None else (slots, 2), np.float32))
    assert len(buffers[0]) == 0
    if slots is None:
        assert isinstance(env, TallyEnv)
        assert env.total == 0


def test_slots_are_numbered() -> None:
    space = DictSpace(NUMPY, {"env_index": number("int32")})
    env = vector("sync", 3)
    assert [buffer.get_at(0)["env_index"] for buffer in step(env, space, mode="per_env")] == [0, 1, 2]
    for mode in ("shared", "interleaved"):
        assert step(env, space, 2, mode=mode)[0].get_at(...)["env_index"].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_space_that_is_no_dict_takes_the_next_observation() -> None:
    env = TallyEnv(5)
    (buffer,) = step(env, env.observation_space, 2)
    assert buffer.get_at(...).tolist() == [[5, 1, 1], [5, 1, 2]]


# -- infos --------------------------------------------------------------------------------------------------


def infos(**spaces: Space) -> DictSpace:
    return DictSpace(NUMPY, {"info": DictSpace(NUMPY, spaces)})


def test_infos_that_are_always_there() -> None:
    (buffer,) = step(TallyEnv(), infos(steps=number("int32")), 3)
    assert buffer.get_at(...)["info"]["steps"].tolist() == [1, 2, 3]
    for mode in ("shared", "interleaved"):
        (buffer,) = step(vector("sync", SLOTS), infos(steps=number("int32")), 2, mode)
        assert buffer.get_at(...)["info"]["steps"].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("mode", ["auto", "shared", "per_env"])
def test_an_info_that_is_missing_is_an_error_unless_that_is_recorded(mode: Any) -> None:
    env = TallyEnv() if mode == "auto" else vector("sync", SLOTS)
    with pytest.raises(KeyError, match=r"info/odd.*is not in the infos.*'info/_odd'"):
        step(env, infos(odd=number()), 2, mode)
    for buffer in step(env, infos(odd=number(), _odd=BinarySpace(NUMPY, ())), 2, mode):
        info = buffer.get_at(slice(None, None, len(buffer) // 2))["info"]
        assert (info["odd"].tolist(), info["_odd"].tolist()) == ([0.5, 0.0], [True, False])


def test_infos_that_only_some_slots_have() -> None:
    class Sparse(TallyEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, **({"only": 7.0} if self.index else {})}

    from unienv_interface import SyncVecEnv

    def env() -> Env:
        return SyncVecEnv([lambda: Sparse(0), lambda: Sparse(1)])

    with pytest.raises(KeyError, match=r"info/only.* of slots .0."):
        step(env(), infos(only=number()), mode="shared")
    with pytest.raises(KeyError, match="info/only"):
        step(env(), infos(only=number()), mode="per_env")
    space = infos(only=number(), _only=BinarySpace(NUMPY, ()))
    info = step(env(), space, mode="interleaved")[0].get_at(...)["info"]
    assert (info["only"].tolist(), info["_only"].tolist()) == ([0.0, 7.0], [False, True])
    assert [buffer.get_at(0)["info"]["only"] for buffer in step(env(), space, mode="per_env")] == [0.0, 7.0]


@pytest.mark.parametrize("mode", ["shared", "per_env", "one"])
@pytest.mark.parametrize(("value", "dtype"), [(0.5, "int32"), (np.nan, "int32"), (np.inf, "int64"), (300, "uint8")])
def test_an_integer_column_takes_no_number_that_it_does_not_hold(mode: Any, value: Any, dtype: str) -> None:
    class Telling(TallyEnv):
        told: Any = 3.0  # which is an integer, whatever its dtype

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return (*super().step(action)[:4], {"told": self.told})

    envs = [Telling(index) for index in range(SLOTS)]
    env = envs[0] if mode == "one" else SyncVecEnv([lambda env=env: env for env in envs])
    space = transition_space(env, info={"told": BoxSpace(NUMPY, 0, 255, dtype, shape=())})
    count = SLOTS if mode == "per_env" else 1
    buffers = [ReplayBuffer.create(space, keep_episodes=False) for _ in range(count)]
    wrapper = ReplayBufferCollectionWrapper(env, buffers, "auto" if mode == "one" else mode)
    action = np.zeros((2,) if mode == "one" else (SLOTS, 2), np.float32)
    wrapper.reset()
    wrapper.step(action)
    kept = [len(buffer) for buffer in buffers]
    envs[0].told = value
    with pytest.raises(ValueError, match="told"):
        wrapper.step(action)
    assert [len(buffer) for buffer in buffers] == kept
    assert {number for buffer in buffers for number in buffer.get_at(...)["info"]["told"].tolist()} == {3}


class Describing(TallyEnv):
    """Infos that are texts, and infos in infos."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"name": f"n{self.steps}", "pos": {"x": 0.5 * self.steps, "deep": {"y": [self.index, 1.0]}}}


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("mode", ["auto", "shared", "per_env", "interleaved"])
def test_infos_that_are_texts_and_infos_in_infos(mode: Any, validates: bool) -> None:
    env = Describing() if mode == "auto" else SyncVecEnv([lambda i=i: Describing(i) for i in range(SLOTS)])
    deep = DictSpace(NUMPY, {"y": number(shape=(2,))})
    space = infos(name=TextSpace(NUMPY, 5), pos=DictSpace(NUMPY, {"x": number(), "deep": deep}))
    for slot, buffer in enumerate(step(env, space, 2, mode, validate_transition=validates)):
        for sample, info in enumerate(buffer[index]["info"] for index in range(len(buffer))):
            slots = SLOTS if mode in ("shared", "interleaved") else 1
            assert info["name"] == f"n{sample // slots + 1}"
            assert info["pos"]["x"] == 0.5 * (sample // slots + 1)
            assert info["pos"]["deep"]["y"].tolist() == [sample % slots + slot, 1.0]
    with pytest.raises(KeyError, match=r"info/pos/z.*'info/pos/_z'"):
        step(env, infos(pos=DictSpace(NUMPY, {"z": number()})), mode=mode)


@pytest.mark.parametrize("mode", ["shared", "per_env", "interleaved"])
def test_what_lies_where_an_info_is_not_there_is_not_recorded(mode: Any) -> None:
    class Leaving(SyncVecEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"odd": np.full((SLOTS, 3), 7.0), "_odd": np.array([True, False])}

    env = Leaving([TallyEnv] * SLOTS)
    buffers = step(env, infos(odd=number(shape=(3,)), _odd=BinarySpace(NUMPY, ())), mode=mode)
    samples = [buffer[index]["info"] for buffer in buffers for index in range(len(buffer))]
    assert [info["_odd"].item() for info in samples] == [True, False]
    assert [info["odd"].tolist() for info in samples] == [[7.0] * 3, [0.0] * 3]


@pytest.mark.parametrize(
    ("slots", "mode"), [(None, "auto"), (1, "auto"), (2, "shared"), (2, "per_env"), (2, "interleaved")]
)
def test_a_buffer_of_tuples(slots: int | None, mode: Any) -> None:
    env = TallyEnv() if slots is None else SyncVecEnv([lambda i=i: TallyEnv(i) for i in range(slots)])
    space = TupleSpace(NUMPY, (number(shape=(3,)), number("float64")))
    for buffer in step(env, space, 2, mode, transition_builder=lambda *, next_obs, reward, **_: (next_obs, reward)):
        assert buffer[0][0].tolist()[1:] == [1, 1]


def test_infos_need_a_dict_and_arrays_where_they_may_be_missing() -> None:
    with pytest.raises(KeyError, match="it must have a DictSpace"):
        step(TallyEnv(), DictSpace(NUMPY, {"info": number()}))
    with pytest.raises(KeyError, match="only arrays and numbers may be missing"):
        step(TallyEnv(), infos(name=TextSpace(NUMPY, 5), _name=BinarySpace(NUMPY, ())))


# -- the space of a transition ------------------------------------------------------------------------------


def test_the_space_of_a_transition() -> None:
    env, several = TallyEnv(), vector("sync", 3)
    assert set(transition_space(env).spaces) == {"obs", "action", "reward", "terminated", "truncated", "next_obs"}
    assert transition_space(env) == transition_space(several)
    assert "next_obs" not in transition_space(env, next_obs=False).spaces
    assert set(full_space(several).spaces) == {
        "obs", "action", "reward", "terminated", "truncated", "next_obs", "done", "context", "env_index", "episode_id",
        "step", "info",
    }  # fmt: skip
    with pytest.raises(ValueError, match="has no context_space"):
        transition_space(TallyEnv(has_context=False), context=True)
    with pytest.raises(ValueError, match="there is no slot to record"):
        transition_space(env, env_index=True)
    with pytest.raises(TypeError, match=r"info is \['steps'\], wanted the space of each info by its name"):
        transition_space(env, info=["steps"])  # type: ignore[arg-type]


def test_times_do_not_fit_into_32_bits() -> None:
    pytest.importorskip("jax")
    from unienv_interface.backends.jax import JaxComputeBackend

    with pytest.raises(ValueError, match="64-bit floats"):
        transition_space(TallyEnv(backend=JaxComputeBackend), timestamp=True)


# -- functions ----------------------------------------------------------------------------------------------


def test_a_function_gets_everything_by_keyword() -> None:
    env, calls = TallyEnv(3), []

    def build(**given: Any) -> Any:
        calls.append(given)
        return {"pair": np.concatenate([given["cached_obs"], given["next_obs"]])}

    space = DictSpace(NUMPY, {"pair": number("float32", (6,))})
    (buffer,) = step(env, space, 2, transition_builder=build)
    assert buffer.get_at(...)["pair"].tolist() == [[3, 1, 0, 3, 1, 1], [3, 1, 1, 3, 1, 2]]
    assert list(calls[0]) == [
        "cached_obs", "cached_context", "action", "next_obs", "reward", "terminated", "truncated", "env_index",
        "rb_single_space",
    ]  # fmt: skip
    assert calls[0]["rb_single_space"] is buffer.single_space
    assert calls[0]["env_index"] is None
    assert calls[0]["cached_context"] == 301
    assert calls[0]["reward"] == 0.0


def test_a_function_gets_one_slot_or_the_batch() -> None:
    shapes: list[Any] = []

    def build(**given: Any) -> Any:
        shapes.append((np.shape(given["cached_obs"]), np.shape(given["cached_context"]), np.shape(given["env_index"])))
        return {"reward": np.asarray(given["reward"], np.float32)}

    space = DictSpace(NUMPY, {"reward": number()})
    step(vector("sync", 3), space, mode="per_env", transition_builder=build)
    assert shapes == [((3,), (), ())] * 3
    shapes.clear()
    step(vector("sync", 3), space, mode="shared", transition_builder=build)
    assert shapes == [((3, 3), (3,), (3,))]


# -- transformations ----------------------------------------------------------------------------------------


class Identity(DataTransformation):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[DictSpace, Any]] = []

    def get_target_space_from_source(self, source_space: Space) -> Space:
        return source_space

    def transform(self, source_space: Any, data: Any) -> Any:
        self.given.append((source_space, data))
        return data

    def serialize(self, source_space: Space | None = None) -> dict[str, Any]:
        return {}

    @classmethod
    def deserialize_from(cls, json_data: Any, source_space: Space | None = None) -> Identity:
        return cls()


@pytest.mark.parametrize(
    ("slots", "mode"), [(None, "auto"), (1, "auto"), (3, "shared"), (3, "per_env"), (3, "interleaved")]
)
def test_a_transformation_gets_values_of_the_space_it_gets(slots: int | None, mode: Any) -> None:
    env = TallyEnv() if slots is None else vector("sync", slots)
    full = full_space(env).spaces
    space = DictSpace(NUMPY, {key: full[key] for key in full if key != "info"})
    builder = Identity()
    buffers = step(env, space, 2, mode, transition_builder=builder, validate_transition=True)
    is_batch = mode in ("shared", "interleaved")
    assert len(builder.given) == 2 * (3 if mode == "per_env" else 1)
    for source, data in builder.given:
        assert set(source.spaces) == set(data) == set(space.spaces)
        assert data in source
        assert (source["obs"] == env.observation_space) is (slots is None or is_batch)
        assert source["reward"].shape == ((3,) if is_batch else ())
    assert sum(map(len, buffers)) == 2 * (slots or 1)


def test_a_transformation_for_a_space_that_is_no_dict() -> None:
    class Last(Identity):
        def transform(self, source_space: Any, data: Any) -> Any:
            super().transform(source_space, data)
            return data["next_obs"] + data["obs"]

    env, builder = TallyEnv(1), Last()
    (buffer,) = step(env, env.observation_space, transition_builder=builder)
    assert buffer.get_at(0).tolist() == [2, 2, 1]
    assert set(builder.given[0][1]) == set(transition_space(env).spaces)


# -- validation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["shared", "per_env", "interleaved"])
@pytest.mark.parametrize("builder", [None, "function", "transformation"])
def test_transitions_are_checked_when_asked_for(mode: Any, builder: Any) -> None:
    env = vector("sync", SLOTS)
    space = DictSpace(NUMPY, {"next_obs": BoxSpace(NUMPY, 0.0, 1.5, "float32", shape=(3,))})  # it goes up to 2
    chosen = {
        None: None,
        "function": lambda **given: {"next_obs": given["next_obs"]},
        "transformation": Identity(),
    }[builder]
    with pytest.raises(ValueError, match=r"does not match target space.*next_obs"):
        step(env, space, 3, mode, transition_builder=chosen, validate_transition=True)
    buffers = step(env, space, 3, mode, transition_builder=chosen)
    assert sum(map(len, buffers)) == 3 * SLOTS
