"""The bridge to Gymnasium: their environments as ours, ours as theirs, and round trips."""

from __future__ import annotations

import functools
import warnings
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from catalogue import BACKENDS, assert_same, backend_cases
from gym_envs import KINDS, EveryKind, Reusing, Walk
from gymnasium import spaces as gs
from gymnasium.utils.env_checker import check_env as check_gym_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from unienv_interface import SyncVecEnv
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import (
    BatchedSpace,
    BinarySpace,
    BoxSpace,
    DictSpace,
    GraphInstance,
    GraphSpace,
    describe_mismatch,
)
from unienv_interface.space.space_utils.gym_utils import from_gym_space, to_gym_data
from unienv_interface.testing import check_env
from unienv_interface.wrapper._gym_values import reader, writer
from unienv_interface.wrapper.gym_compat import FromGymnasiumEnv, ToGymnasiumEnv, ToGymnasiumVectorEnv
from unienv_interface.wrapper.time_limit import TimeLimitWrapper

NUMPY = NumpyComputeBackend
WITHOUT_JAX = [backend for backend in BACKENDS if backend.simplified_name != "jax"]
IDS = ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "FrozenLake-v1")


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values of Gymnasium are alike, entry by entry."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, str) or theirs is None:
        return ours == theirs
    return np.array_equal(ours, theirs) and np.shape(ours) == np.shape(theirs)


def close_to(ours: Any, theirs: Any) -> bool:
    """The same for arrays that went through a backend without 64 bits."""
    return np.allclose(np.asarray(ours), theirs, rtol=1e-6, atol=1e-6)


def ones(count: int, *, but: tuple[int, ...] = ()) -> np.ndarray:
    mask = np.ones(count, bool)
    mask[list(but)] = False
    return mask


# -- one environment of theirs -----------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("backend", WITHOUT_JAX, ids=str)
def test_episodes_are_those_without_the_bridge(env_id: str, backend: Any) -> None:
    plain, env = gymnasium.make(env_id), FromGymnasiumEnv(gymnasium.make(env_id), backend=backend)
    plain.action_space.seed(3)
    theirs, infos = plain.reset(seed=7)
    context, ours, our_infos = env.reset(seed=7)
    assert context is None
    assert our_infos == infos
    for _ in range(300):
        assert ours in env.observation_space
        assert same(to_gym_data(env.observation_space, ours), theirs)
        action = plain.action_space.sample()
        theirs, *signals, infos = plain.step(action)
        ours, *our_signals, our_infos = env.step(backend.from_numpy(np.asarray(action)))
        assert our_signals == signals
        assert [type(signal) for signal in our_signals] == [float, bool, bool]
        assert our_infos == infos
        if signals[1] or signals[2]:
            theirs, ours = plain.reset()[0], env.reset()[1]


@pytest.mark.skipif(len(BACKENDS) < 3, reason="needs JAX")
def test_episode_on_jax() -> None:
    backend = BACKENDS[-1]
    plain, env = gymnasium.make("CartPole-v1"), FromGymnasiumEnv(gymnasium.make("CartPole-v1"), backend=backend)
    theirs, ours = plain.reset(seed=7)[0], env.reset(seed=7)[1]
    for step in range(8):
        assert ours in env.observation_space
        assert close_to(ours, theirs)
        theirs, ours = plain.step(step % 2)[0], env.step(backend.asarray(step % 2))[0]


@pytest.mark.parametrize("backend", backend_cases())
def test_every_kind_of_space_goes_both_ways(backend: Any) -> None:
    is_jax = backend.simplified_name == "jax"  # which compiles every kind
    names = ("box", "box64", "discrete", "multi-binary", "text") if is_jax else tuple(KINDS)
    plain, env = EveryKind(*names), FromGymnasiumEnv(EveryKind(*names), backend=backend)
    theirs, ours = plain.reset(seed=1)[0], env.reset(seed=1)[1]
    for _ in range(2 if is_jax else 10):
        assert describe_mismatch(env.observation_space, ours) is None
        assert ours["text"] == theirs["text"]
        for key in ("box", "box64", "discrete", "multi-binary"):
            assert close_to(backend.to_numpy(ours[key]), theirs[key])
        action = env.sample_action()
        ours, _, _, _, info = env.step(action)  # looks closely at the action
        received = env.env.received
        assert received["text"] == action["text"]
        for key in ("box", "box64", "discrete", "multi-binary"):
            assert close_to(backend.to_numpy(action[key]), received[key])
        assert isinstance(received.get("stacked sequence", np.empty(0)), np.ndarray)
        assert info == {"kind": "step"}
        theirs = plain.step(received)[0]


def test_what_it_returns_is_never_changed() -> None:
    env = FromGymnasiumEnv(Reusing())
    _, first, first_info = env.reset(seed=1)
    frames = [env.render()]
    kept = first["a"].copy()
    action = np.ones(2, np.float32)
    _, _, _, _, info = env.step(action)
    frames.append(env.render())
    env.step(action)
    assert np.array_equal(first["a"], kept)
    assert first["b"][0] == 0
    assert np.array_equal(action, [1, 1])
    assert first_info == {"steps": np.zeros(1), "nested": {"options": {}}}
    assert info["steps"] == 1
    assert [frame[0, 0, 0] for frame in frames] == [0, 1]


class Doubling(FromGymnasiumEnv):
    """A bridge of a user's, with a step of its own."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation * 2, reward * 2, *rest  # type: ignore[return-value]


def test_a_step_that_a_subclass_overrides_is_the_one_that_is_taken() -> None:
    kinds = FromGymnasiumEnv, Doubling
    plain, doubling = (SyncVecEnv([lambda kind=kind: kind(gymnasium.make("CartPole-v1"))]) for kind in kinds)
    for env in (plain, doubling):
        env.reset(seed=0)
    ones, twos = (env.step(np.array([1])) for env in (plain, doubling))
    assert np.array_equal(twos[0], 2 * ones[0])
    assert twos[1] == 2 * ones[1]


class Keeping(gymnasium.Env):
    """Keeps and changes the action it is given, and does not say its observation in the dtype of its space."""

    action_space = gs.Box(-1, 1, (2,), np.float32)
    observation_space = gs.Box(-4, 4, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.kept = np.zeros(2, np.float32)
        return self.kept, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        before = self.kept.astype(np.float64)
        action *= 2
        self.kept = action
        return before, np.float32(1.5), np.bool_(False), 0, {}


def test_an_action_is_the_environments_own() -> None:
    """One that keeps its action finds it as it was, whatever the caller does to the array; and the other way round."""
    with SyncVecEnv([lambda: FromGymnasiumEnv(Keeping())] * 2) as env:
        env.reset(seed=0)
        given = np.array([[0.25, 0.5], [0.75, 1.0]], np.float32)
        env.step(given)
        assert given.tolist() == [[0.25, 0.5], [0.75, 1.0]]
        given[:] = 0
        observation, reward, terminated, truncated, _ = env.step(given)
        assert (observation.dtype, observation.tolist()) == (np.float32, [[0.5, 1.0], [1.5, 2.0]])
        assert (reward.tolist(), terminated.any(), truncated.any()) == ([1.5, 1.5], False, False)


class Telling(Keeping):
    """Says things in arrays and a dict of its own, which it uses again; all of its kind share the dict."""

    told: ClassVar[dict[str, Any]] = {}

    def __init__(self, size: int) -> None:
        self.size, self.said = size, np.zeros(size)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.said += self.size
        self.told["said"], self.told["size"] = self.said, np.float64(self.size)
        return super().step(action)[0], 0.0, False, False, self.told


def test_infos_are_the_callers_and_each_environments_own() -> None:
    with SyncVecEnv([lambda size=size: FromGymnasiumEnv(Telling(size)) for size in (1, 2)]) as env:
        env.reset(seed=0)
        first = env.step(np.zeros((2, 2), np.float32))[4]
        env.step(np.zeros((2, 2), np.float32))
        assert [said.tolist() for said in first["said"]] == [[1.0], [2.0, 2.0]]
        assert first["size"].tolist() == [1.0, 2.0]


def test_a_step_or_an_environment_that_is_replaced_is_not_passed_by() -> None:
    env = SyncVecEnv([lambda: FromGymnasiumEnv(gymnasium.make("CartPole-v1"))] * 2)
    env.reset(seed=0)
    seen: list[Any] = []
    bridge = env.envs[0]
    bridge.step = lambda action: seen.append(action) or FromGymnasiumEnv.step(bridge, action)
    env.step(np.array([1, 0]))
    assert seen == [1]
    env.envs[1] = TimeLimitWrapper(env.envs[1], 1)
    env.envs[1].reset(seed=0)
    assert env.step(np.array([1, 0]))[3].tolist() == [False, True]


def test_a_step_that_is_there_before_the_bridge_is_made_is_not_passed_by() -> None:
    class Richer(FromGymnasiumEnv):
        def __init__(self, env: gymnasium.Env) -> None:
            self.step = self.richer  # type: ignore[method-assign]
            super().__init__(env)

        def richer(self, action: Any) -> Any:
            observation, reward, *others = FromGymnasiumEnv.step(self, action)
            return (observation, reward + 99.0, *others)

    env = SyncVecEnv([lambda: Richer(gymnasium.make("CartPole-v1"))] * 2)
    env.reset(seed=0)
    assert env.step(np.array([0, 1]))[1].tolist() == [100.0, 100.0]


def test_an_environment_put_in_the_place_of_another_is_the_one_that_steps() -> None:
    env = SyncVecEnv([lambda: FromGymnasiumEnv(gymnasium.make("CartPole-v1"))])
    env.reset(seed=0)
    env.envs[0].env = gymnasium.wrappers.TransformReward(env.envs[0].env, lambda reward: 7.0)
    assert env.step(np.array([0]))[1].tolist() == [7.0]


@pytest.mark.parametrize("kind", KINDS)
def test_values_share_no_memory(kind: str) -> None:
    gym_space = KINDS[kind]
    space = from_gym_space(gym_space, NUMPY)
    gym_space.seed(3)
    for _ in range(5):  # some samples hold nothing
        theirs = gym_space.sample()
        ours = reader(gym_space, space, "value")(theirs)
        again = writer(gym_space, space, "value")(ours)
        assert again in gym_space
        for mine in arrays_in(ours):
            assert mine.flags.writeable
            assert not any(np.shares_memory(mine, array) for array in arrays_in(theirs) + arrays_in(again))


def arrays_in(data: Any) -> list[np.ndarray]:
    """The arrays with entries in a value, of theirs or of ours."""
    if isinstance(data, GraphInstance):
        data = tuple(vars(data).values())
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, np.ndarray) and data.dtype == object:
        data = tuple(data)
    if isinstance(data, tuple):
        return [array for part in data for array in arrays_in(part)]
    return [data] if isinstance(data, np.ndarray) and data.size else []


@pytest.mark.parametrize(
    ("make", "skip"),
    [
        pytest.param(lambda: FromGymnasiumEnv(gymnasium.make("CartPole-v1")), (), id="cart pole"),
        pytest.param(lambda: FromGymnasiumEnv(gymnasium.make("FrozenLake-v1")), ("seeds_differ",), id="frozen lake"),
        pytest.param(lambda: FromGymnasiumEnv(Reusing()), (), id="reusing"),
        pytest.param(lambda: FromGymnasiumEnv(EveryKind()), (), id="every kind"),
        pytest.param(lambda: FromGymnasiumEnv(Reusing(), backend=WITHOUT_JAX[-1]), (), id="reusing on torch"),
        pytest.param(lambda: FromGymnasiumEnv(SyncVectorEnv([Reusing] * 3)), (), id="batch"),
        pytest.param(lambda: FromGymnasiumEnv(SyncVectorEnv([EveryKind] * 2)), (), id="batch of every kind"),
        pytest.param(lambda: FromGymnasiumEnv(ToGymnasiumEnv(Walk())), (), id="there and back"),
        pytest.param(lambda: FromGymnasiumEnv(ToGymnasiumVectorEnv(Walk(batch_size=3))), (), id="batch there and back"),
    ],
)
def test_keeps_the_contract(make: Any, skip: tuple[str, ...]) -> None:
    check_env(make(), skip=skip)


def test_plain_ints_are_actions_of_a_discrete_space() -> None:
    envs = [FromGymnasiumEnv(gymnasium.make("CartPole-v1"), backend=backend) for backend in WITHOUT_JAX]
    for env in envs:
        env.reset(seed=0)
        env.step(1)


def test_a_wrong_action_says_what_is_wrong() -> None:
    env = FromGymnasiumEnv(gymnasium.make("Pendulum-v1"))
    env.reset()
    with pytest.raises(ValueError, match=r"^action: shape \(2,\), the space wants \(1,\)$"):
        env.step(np.zeros(2, np.float32))
    nested = FromGymnasiumEnv(EveryKind())
    nested.reset()
    with pytest.raises(ValueError, match=r"^action: keys .*'box'.*, the space wants a dict with the keys"):
        nested.step({"box": np.zeros((2, 3), np.float32)})
    with pytest.raises(ValueError, match=r"^action/tuple: 1 items, the space wants a tuple of 2$"):
        nested.step({**nested.sample_action(), "tuple": (np.array(1),)})
    with pytest.raises(ValueError, match=r"^action/text: int, the space wants a string$"):
        nested.step({**nested.sample_action(), "text": 3})


def test_a_wrong_observation_says_what_is_wrong() -> None:
    gym_env = Reusing()
    env = FromGymnasiumEnv(gym_env)
    gym_env.observation["b"] = (np.zeros(2, np.int64),)
    with pytest.raises(ValueError, match=r"^observation/b/0: shape \(2,\), the space wants \(1,\)$"):
        env.reset()
    gym_env.observation = {"a": gym_env.observation["a"], "b": (np.zeros(1, np.int64),), "c": 1}
    with pytest.raises(ValueError, match=r"^observation: keys .*'c'"):
        env.reset()


def test_python_numbers_and_other_dtypes_are_read() -> None:
    env = FromGymnasiumEnv(gymnasium.make("FrozenLake-v1"))  # whose observations are ints
    assert env.reset(seed=0)[1].dtype == np.int64
    gym_env = Reusing()
    env = FromGymnasiumEnv(gym_env)
    env.reset()
    gym_env.observation["a"] = np.array([0.1, 0.2])
    observation = env.step(np.zeros(2, np.float32))[0]
    assert observation["a"].dtype == np.float32


def test_options_come_as_such_or_as_keywords() -> None:
    env = FromGymnasiumEnv(Reusing())
    assert env.reset(options={"low": 1})[2]["nested"]["options"] == {"low": 1}
    assert env.reset(low=2)[2]["nested"]["options"] == {"low": 2}
    assert env.reset(options={"low": 1}, high=3)[2]["nested"]["options"] == {"low": 1, "high": 3}
    assert env.reset()[2]["nested"]["options"] == {}


def test_sampling_leaves_the_episode_alone_and_follows_the_seed() -> None:
    one, other = (FromGymnasiumEnv(gymnasium.make("MountainCarContinuous-v0")) for _ in range(2))
    one.reset(seed=4)
    actions = [one.sample_action() for _ in range(3)]
    one.sample_observation()
    other.reset(seed=4)
    assert_same(None, one.reset()[1], other.reset()[1])
    one.reset(seed=4)
    for action in actions:
        assert_same(None, one.sample_action(), action)
    one.rng = np.random.default_rng(0)
    assert one.sample_action() in one.action_space
    one.reset(seed=4)  # the numbers drawn here are others than those the environment draws
    assert one.rng.bit_generator.state != one.env.np_random.bit_generator.state
    assert one.rng.bit_generator.state != np.random.default_rng(4).bit_generator.state


def test_attributes_of_the_layers_below() -> None:
    env = FromGymnasiumEnv(gymnasium.make("CartPole-v1"))
    assert env.has_wrapper_attr("gravity")
    assert env.get_wrapper_attr("gravity") == 9.8
    assert env.get_wrapper_attr("batch_size") is None
    env.set_wrapper_attr("gravity", 3.7)
    assert env.env.unwrapped.gravity == 3.7
    env.set_wrapper_attr("mine", 1)
    assert env.env.unwrapped.mine == 1
    assert not env.has_wrapper_attr("absent")
    with pytest.raises(AttributeError, match=r"neither FromGymnasiumEnv nor a layer of .*CartPole.* has 'absent'"):
        env.get_wrapper_attr("absent")
    assert env.unwrapped is env
    assert env.prev_wrapper_layer is None
    assert "CartPole-v1" in repr(env)
    batch = FromGymnasiumEnv(gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([Reusing] * 2)))
    assert batch.get_wrapper_attr("episode_count") == 0
    assert batch.get_wrapper_attr("envs") is batch.env.env.envs


def test_rendering_and_closing() -> None:
    gym_env = Reusing()
    with FromGymnasiumEnv(gym_env) as env:
        assert (env.render_mode, env.render_fps) == ("rgb_array", 20)
        assert env.metadata["render_modes"] == ["rgb_array"]
        env.reset()
        assert env.render().shape == (6, 8, 3)
        env.render_fps = 7
        assert env.render_fps == 7
        assert Reusing.metadata["render_fps"] == 20  # that of the class stays
        env.render_mode = None
        assert gym_env.render_mode is None
        assert env.render() is None
        env.metadata = {"render_modes": []}
        assert env.render_fps is None
    env.close()
    assert gym_env.closed == 1


def test_what_is_no_environment_of_theirs_is_refused() -> None:
    with pytest.raises(TypeError, match=r"env is Walk, wanted a gymnasium\.Env or"):
        FromGymnasiumEnv(Walk())  # type: ignore[arg-type]
    env = FromGymnasiumEnv(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="not batched"):
        env.reset(mask=np.array([True]))


# -- vector environments of theirs -------------------------------------------------------------------------


def compare_batches(env: FromGymnasiumEnv, plain: Any, steps: int) -> None:
    """Step both with the same actions, and reset what has ended; `plain` must not restart by itself."""
    backend = env.backend
    theirs, ours = plain.reset(seed=11)[0], env.reset(seed=11)[1]
    plain.action_space.seed(2)
    for _ in range(steps):
        assert describe_mismatch(env.observation_space, ours) is None
        assert close_to(ours, theirs)
        action = plain.action_space.sample()
        theirs, *signals, _ = plain.step(action)
        ours, *our_signals, _ = env.step(backend.from_numpy(action))
        for mine, signal in zip(our_signals, signals, strict=True):
            assert backend.is_backendarray(mine)
            assert close_to(mine, signal)
        ended = signals[1] | signals[2]
        if ended.any():
            theirs = plain.reset(options={"reset_mask": ended.copy()})[0]
            mask = backend.from_numpy(ended)
            _, rows, _ = env.reset(mask=mask)
            assert rows.shape[0] == ended.sum()
            ours = env.update_observation_post_reset(ours, rows, mask)


def cart_poles(count: int, mode: AutoresetMode = AutoresetMode.DISABLED) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(gymnasium.make, "CartPole-v1")] * count, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("backend", WITHOUT_JAX, ids=str)
def test_batches_are_those_without_the_bridge(mode: AutoresetMode, backend: Any) -> None:
    env = FromGymnasiumEnv(cart_poles(3, mode), backend=backend)
    assert env.batch_size == 3
    assert env.action_space.shape == (3,)
    assert env.observation_space.shape == (3, 4)
    compare_batches(env, cart_poles(3), 120)


@pytest.mark.skipif(len(BACKENDS) < 3, reason="needs JAX")
def test_batch_on_jax() -> None:
    compare_batches(FromGymnasiumEnv(cart_poles(2), backend=BACKENDS[-1]), cart_poles(2), 25)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_asynchronous_batches(shared_memory: bool) -> None:
    """Spawned, since libraries with threads are loaded here; so their workers import nothing of this file."""
    make = functools.partial(gymnasium.make, "CartPole-v1")
    mode = AutoresetMode.NEXT_STEP if shared_memory else AutoresetMode.DISABLED
    vector = AsyncVectorEnv([make] * 2, context="spawn", shared_memory=shared_memory, autoreset_mode=mode)
    with FromGymnasiumEnv(vector) as env:
        compare_batches(env, cart_poles(2), 60)
        vector.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
        # workers without shared memory would restart a slot that was reset in time
        assert FromGymnasiumEnv(vector)._resets_some is shared_memory


def test_a_batch_is_not_restarted_by_itself() -> None:
    env = FromGymnasiumEnv(SyncVectorEnv([Reusing] * 2))
    with pytest.raises(RuntimeError, match="step before reset"):
        env.step(env.sample_action())
    with pytest.raises(RuntimeError, match="mask before any reset"):
        env.reset(mask=ones(2, but=(0,)))
    env.reset()
    for _ in range(5):
        *_, truncated, _ = env.step(np.zeros((2, 2), np.float32))
    assert truncated.all()
    with pytest.raises(RuntimeError, match=r"slots \[0 1\] have ended"):
        env.step(np.zeros((2, 2), np.float32))
    env.reset(mask=ones(2, but=(0,)))
    with pytest.raises(RuntimeError, match=r"slots \[0\] have ended"):
        env.step(np.zeros((2, 2), np.float32))
    env.reset(mask=ones(2))
    env.step(np.zeros((2, 2), np.float32))


def test_masks() -> None:
    env = FromGymnasiumEnv(SyncVectorEnv([Reusing] * 3))
    env.reset(seed=1)
    env.step(np.zeros((3, 2), np.float32))
    options = {"low": 1}
    _, rows, infos = env.reset(mask=ones(3, but=(1,)), options=options)
    assert options == {"low": 1}
    assert rows["a"].shape == (2, 2)
    assert rows["b"][0].shape == (2, 1)
    assert infos["steps"].tolist() == [[0], [0]]
    assert infos["_steps"].tolist() == [True, True]
    assert infos["nested"]["_options"].tolist() == [True, True]
    _, rows, infos = env.reset(mask=np.zeros(3, bool))
    assert rows["a"].shape == (0, 2)
    assert infos == {}
    observation = env.step(np.zeros((3, 2), np.float32))[0]
    assert observation["b"][0].tolist() == [[1], [2], [1]]  # only slot 1 was left to go on
    for wrong in (ones(2), np.array([1, 0, 1]), np.ones((3, 1), bool)):
        with pytest.raises(ValueError, match=r"one boolean per slot: shape \(3,\)"):
            env.reset(mask=wrong)


@pytest.mark.parametrize("name", ["SameStep", AutoresetMode.SAME_STEP])
def test_a_batch_that_hides_last_observations_is_refused(name: Any) -> None:
    vector = cart_poles(2, AutoresetMode.SAME_STEP)
    vector.metadata["autoreset_mode"] = name
    with pytest.raises(ValueError, match=r"hides its last observation: make it with autoreset_mode=.*DISABLED"):
        FromGymnasiumEnv(vector)


def test_a_batch_that_is_reset_as_a_whole() -> None:
    env = FromGymnasiumEnv(gymnasium.make_vec("CartPole-v1", num_envs=2))  # a vector environment of its own kind
    env.reset(seed=1)
    env.step(np.array([0, 1]))
    with pytest.raises(ValueError, match=r"can only be reset as a whole, not slots \[1\]: make it with"):
        env.reset(mask=ones(2, but=(0,)))
    observation = env.reset(mask=ones(2), seed=1)[1]
    assert_same(None, observation, env.reset(seed=1)[1])
    assert env.step(np.array([0, 1]))[1].dtype == np.float64


def test_batches_of_every_kind_of_space() -> None:
    env = FromGymnasiumEnv(SyncVectorEnv([EveryKind] * 2))
    spaces = env.observation_space
    assert isinstance(spaces, DictSpace)
    assert isinstance(spaces["multi-binary"], BinarySpace)
    assert isinstance(spaces["text"], BatchedSpace)
    assert isinstance(spaces["graph"], GraphSpace)
    assert isinstance(spaces["discrete"], BoxSpace)
    assert spaces["tuple"][0].shape == (2,)
    plain = SyncVectorEnv([EveryKind] * 2)
    theirs, ours = plain.reset(seed=3)[0], env.reset(seed=3)[1]
    for _ in range(3):
        assert describe_mismatch(spaces, ours) is None
        assert tuple(ours["text"]) == theirs["text"]
        assert same({"box": ours["box"], "flags": ours["flags"]}, {"box": theirs["box"], "flags": theirs["flags"]})
        action = env.sample_action()
        ours = env.step(action)[0]  # every environment checks its action
        received = [slot.received for slot in env.env.envs]
        assert [slot["text"] for slot in received] == list(action["text"])
        theirs = plain.step(
            gymnasium.vector.utils.concatenate(KINDS, received, gymnasium.vector.utils.create_empty_array(KINDS, 2))
        )[0]


def test_bounds_may_differ_from_slot_to_slot() -> None:
    class Wide(Reusing):
        def __init__(self, width: float) -> None:
            super().__init__()
            self.observation_space = gs.Dict({**Reusing.observation_space, "a": gs.Box(-width, width, (2,))})

    makers = [functools.partial(Wide, width) for width in (50.0, 70.0)]
    env = FromGymnasiumEnv(SyncVectorEnv(makers, observation_mode="different"))
    assert env.observation_space["a"].high.tolist() == [[50, 50], [70, 70]]
    env.reset()


def test_frames_of_a_batch() -> None:
    env = FromGymnasiumEnv(SyncVectorEnv([Reusing] * 2))
    env.reset()
    assert env.render().shape == (2, 6, 8, 3)
    env.env.envs[1].frame = np.zeros((2, 2, 3), np.uint8)
    assert [frame.shape for frame in env.render()] == [(6, 8, 3), (2, 2, 3)]


# -- our environments as theirs ----------------------------------------------------------------------------


@pytest.fixture
def registered() -> Any:
    """A function that registers a maker with Gymnasium and makes the environment, as `gymnasium.make` does."""
    names = []

    def make(entry_point: Any, **kwargs: Any) -> gymnasium.Env:
        names.append(f"UniEnvTest{len(names)}-v0")
        gymnasium.register(names[-1], entry_point=entry_point)
        return gymnasium.make(names[-1], **kwargs).unwrapped

    yield make
    for name in names:
        del gymnasium.registry[name]


@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
@pytest.mark.parametrize("has_context", [True, False])
@pytest.mark.parametrize("backend", backend_cases())
def test_gymnasium_finds_nothing_wrong(registered: Any, backend: Any, has_context: bool, render_mode: Any) -> None:
    """With a spec, so that Gymnasium makes more of them and renders; all its warnings are errors here."""

    def make(render_mode: str | None = None) -> gymnasium.Env:
        return ToGymnasiumEnv(Walk(backend, render_mode=render_mode, has_context=has_context))

    check_gym_env(registered(make, render_mode=render_mode))


@pytest.mark.parametrize("make", [functools.partial(gymnasium.make, env_id) for env_id in IDS] + [EveryKind, Reusing])
def test_gymnasium_finds_nothing_wrong_after_a_round_trip(make: Any) -> None:
    with warnings.catch_warnings():
        # what it says without the bridge too: bounds of infinity, actions beyond 1, integers that are not np.int64
        warnings.filterwarnings("ignore", message=".*(infinity|symmetric and normalized|int or np.int64).*")
        check_gym_env(ToGymnasiumEnv(FromGymnasiumEnv(make())), skip_render_check=True)


@pytest.mark.parametrize("env_id", IDS)
def test_round_trip_of_theirs(env_id: str) -> None:
    plain, env = gymnasium.make(env_id), ToGymnasiumEnv(FromGymnasiumEnv(gymnasium.make(env_id)))
    assert env.observation_space == plain.observation_space
    assert env.action_space == plain.action_space
    assert same(env.reset(seed=5), plain.reset(seed=5))
    plain.action_space.seed(1)
    for _ in range(100):
        action = plain.action_space.sample()
        ours, theirs = env.step(action), plain.step(action)
        assert same(ours, theirs)
        if theirs[2] or theirs[3]:
            assert same(env.reset(), plain.reset())
    env.close()


@pytest.mark.parametrize("has_context", [True, False])
@pytest.mark.parametrize("backend", backend_cases())
def test_round_trip_of_ours(backend: Any, has_context: bool) -> None:
    plain = Walk(backend, has_context=has_context)
    env = FromGymnasiumEnv(ToGymnasiumEnv(Walk(backend, has_context=has_context)), backend=backend)
    expected = ToGymnasiumEnv.combine_context_obs_space(plain.context_space, plain.observation_space)
    assert env.observation_space == expected
    assert env.action_space == plain.action_space
    context, theirs, _ = plain.reset(seed=5)
    ours = env.reset(seed=5)[1]
    for _ in range(4):
        assert_same(None, ours, ToGymnasiumEnv.combine_context_obs(context, theirs))
        action = plain.sample_action()
        theirs, ours = plain.step(action)[0], env.step(action)[0]


@pytest.mark.parametrize("backend", backend_cases())
def test_arrays_are_numpy_and_the_callers(backend: Any) -> None:
    env = ToGymnasiumEnv(Walk(backend, render_mode="rgb_array"))
    observation, info = env.reset(seed=1)
    assert observation in env.observation_space
    assert type(info["steps"]) is np.int64 if backend.simplified_name != "jax" else np.int32
    assert info["names"] == "walker"
    assert env.render().dtype == np.uint8
    kept = observation["context"].copy()
    later, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert [type(signal) for signal in (reward, terminated, truncated)] == [float, bool, bool]
    later["context"][:] = 0  # writable, and not that of other steps
    assert np.array_equal(observation["context"], kept)
    assert np.array_equal(env.step(env.action_space.sample())[0]["context"], kept)


def test_actions_are_read_strictly() -> None:
    read = reader(gs.Discrete(2), BinarySpace(NUMPY, ()), "action")
    assert read(1).dtype == np.bool_
    with pytest.raises(ValueError, match=r"^action: value 5 of int64 does not fit bool"):
        read(5)
    with pytest.raises(ValueError, match=r"^action: value 0\.5 of float64 does not fit int64"):
        reader(gs.Discrete(2), BoxSpace(NUMPY, 0, 1, "int64", shape=()), "action")(0.5)


def test_options_become_keywords() -> None:
    env = ToGymnasiumEnv(Walk())
    env.reset(seed=1, options={"low": 1})
    assert env.env.options == {"low": 1}
    env.reset(options={})
    assert env.env.options == {}
    env.reset(low=3)
    assert env.env.options == {"low": 3}
    with pytest.raises(ValueError, match=r"options hold \['seed'\]"):
        env.reset(options={"seed": 1})
    theirs = ToGymnasiumEnv(FromGymnasiumEnv(Reusing()))
    assert theirs.reset(options={"low": 1})[1]["nested"]["options"] == {"low": 1}


def test_what_it_says_about_itself() -> None:
    env = ToGymnasiumEnv(Walk(render_mode="rgb_array"))
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 10}
    assert env.render_mode == "rgb_array"
    env.render_mode = None
    assert env.env.render_mode is None
    env.metadata = {"render_modes": []}
    assert env.metadata == {"render_modes": []}
    assert Walk.metadata == {"render_modes": ["rgb_array"]}
    undeclared = Walk(render_mode="depth_array")
    assert ToGymnasiumEnv(undeclared).metadata["render_modes"] == ["rgb_array", "depth_array"]
    assert env.unwrapped is env
    assert env.has_wrapper_attr("places")
    assert env.get_wrapper_attr("steps") == 0
    assert env.set_wrapper_attr("steps", np.array(3))
    assert env.env.steps == 3
    assert not env.set_wrapper_attr("absent", 1, force=False)
    assert env.set_wrapper_attr("absent", 1)
    assert env.env.absent == 1
    assert not env.has_wrapper_attr("nowhere")
    assert "Walk" in str(env)


def test_generators_follow_the_seed() -> None:
    env = ToGymnasiumEnv(Walk())
    env.reset(seed=3)
    drawn = env.np_random.random()
    env.reset(seed=3)
    assert env.np_random.random() == drawn
    assert env.np_random_seed == 3


def test_wrappers_of_gymnasium_go_around_ours() -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(
        gymnasium.wrappers.TimeLimit(gymnasium.wrappers.FlattenObservation(ToGymnasiumEnv(Walk())), 3)
    )
    assert env.reset(seed=0)[0].shape == (3,)
    done = False
    while not done:
        *_, terminated, truncated, info = env.step(np.zeros(1, np.float32))
        done = terminated or truncated
    assert info["episode"]["l"] == 3


def test_the_wrong_bridge_names_the_right_one() -> None:
    with pytest.raises(ValueError, match="is batched: ToGymnasiumVectorEnv"):
        ToGymnasiumEnv(Walk(batch_size=2))
    with pytest.raises(ValueError, match="is not batched: ToGymnasiumEnv"):
        ToGymnasiumVectorEnv(Walk())


# -- our batches as theirs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backend_cases())
def test_our_batches_as_theirs(backend: Any) -> None:
    plain, vector = Walk(backend, batch_size=3), ToGymnasiumVectorEnv(Walk(backend, batch_size=3))
    assert vector.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert vector.single_observation_space["observation"].shape == (2,)
    assert vector.observation_space["observation"].shape == (3, 2)
    context, _, _ = plain.reset(seed=2)
    observation, infos = vector.reset(seed=2)
    assert observation in vector.observation_space
    assert infos["steps"].tolist() == [0, 0, 0]
    assert infos["_steps"].tolist() == [True] * 3
    assert infos["names"].tolist() == ["walker"] * 3
    assert close_to(backend.to_numpy(context), observation["context"])
    vector.action_space.seed(0)
    for _ in range(3):
        action = vector.action_space.sample()
        ours, *signals, _ = plain.step(backend.from_numpy(action))
        observation, *their_signals, infos = vector.step(action)
        assert observation in vector.observation_space
        assert close_to(backend.to_numpy(ours), observation["observation"])
        for mine, signal in zip(signals, their_signals, strict=True):
            assert close_to(backend.to_numpy(mine), signal)
        assert [signal.dtype for signal in their_signals] == [np.float64, np.bool_, np.bool_]
    last = observation
    options = {"reset_mask": ones(3, but=(1,)), "low": 4}
    observation, infos = vector.reset(options=options)
    assert "reset_mask" in options
    assert vector.env.options == {"low": 4}
    for part in ("context", "observation"):
        kept = (observation[part] == last[part]).all(axis=1)
        assert kept.tolist() == [False, True, False], part
    assert infos["steps"].tolist() == [0, 0, 0]
    assert infos["_steps"].tolist() == [True, False, True]
    assert infos["names"].tolist() == ["walker", None, "walker"]
    vector.close()
    vector.close()


def test_batches_round_trip() -> None:
    compare_batches(FromGymnasiumEnv(ToGymnasiumVectorEnv(FromGymnasiumEnv(cart_poles(3)))), cart_poles(3), 60)
    kinds = ToGymnasiumVectorEnv(FromGymnasiumEnv(SyncVectorEnv([EveryKind] * 2)))
    plain = SyncVectorEnv([EveryKind] * 2)
    observation, theirs = kinds.reset(seed=1)[0], plain.reset(seed=1)[0]
    assert observation in kinds.observation_space
    for key in ("box", "discrete", "text", "multi-binary", "sequence"):
        assert same(observation[key], theirs[key]), key
    assert kinds.step(kinds.action_space.sample())[0] in kinds.observation_space


def test_vector_wrappers_of_gymnasium_go_around_ours() -> None:
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(ToGymnasiumVectorEnv(Walk(batch_size=2)))
    vector.reset(seed=0)
    for _ in range(6):
        *_, truncated, infos = vector.step(np.zeros((2, 1), np.float32))
    assert truncated.all()
    assert infos["episode"]["l"].tolist() == [6, 6]


def test_frames_of_our_batches() -> None:
    vector = ToGymnasiumVectorEnv(Walk(batch_size=2, render_mode="rgb_array"))
    vector.reset()
    frames = vector.render()
    assert isinstance(frames, tuple)
    assert [frame.shape for frame in frames] == [(6, 8, 3)] * 2
    assert ToGymnasiumVectorEnv(Walk(batch_size=2)).render() is None
