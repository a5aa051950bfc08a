"""The contract's own tests: an environment that breaks one clause is told which, and a good one passes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from envs import CountEnv, CountFuncEnv

from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.env_base import Env, FuncEnvBasedEnv, Wrapper
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.testing import EnvContract, EnvContractError, check_env
from unienv_interface.testing._env_probe import CLAUSES

np_backend = NumpyComputeBackend


class Altered(CountEnv):
    """A good environment with some of its methods and attributes replaced, given as keyword arguments.

    A replacement for `reset`, `step` and the like is called with the environment, the good result, and the
    arguments, and returns what to return instead.
    """

    def __init__(self, batch_size: int | None = None, *, with_context: bool = False, **changes: Any) -> None:
        render_mode = changes.pop("with_render_mode", None)
        super().__init__(np_backend, batch_size, with_context=with_context, render_mode=render_mode)
        self.after = {name: changes.pop(name) for name in ("reset", "step", "render", "close") if name in changes}
        for name, value in changes.items():
            setattr(self, name, value)

    def _altered(self, name: str, result: Any, *args: Any) -> Any:
        return self.after[name](self, result, *args) if name in self.after else result

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> Any:
        return self._altered("reset", super().reset(mask=mask, seed=seed), mask, seed)

    def step(self, action: Any) -> Any:
        return self._altered("step", super().step(action), action)

    def render(self) -> Any:
        return self._altered("render", super().render())

    def close(self) -> None:
        super().close()
        self._altered("close", None)


def _replaced(position: int, value: Any) -> Callable[..., Any]:
    """A result with one of its values replaced, by a value or by a function of the good one."""
    return lambda env, result, *args: (
        *result[:position],
        value(result[position]) if callable(value) else value,
        *result[position + 1 :],
    )


def _raises(*args: Any) -> Any:
    raise OSError("the cable is out")


def _ignore_mask(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    """Return all the rows, whatever the mask."""
    return result if mask is None else (result[0], env._observe(np.ones(3, bool)).astype(np.float32), result[2])


def _reset_all(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    """Reset all the slots, and return only those of the mask."""
    env.steps[:], env.total[:] = 0, 0.0
    return result


def _keep_generator(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    env.rng = env.__dict__.setdefault("first_rng", env.rng)
    return result


def _seed_by_constant(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    env.rng = env.backend.random.random_number_generator(seed and 1)
    return result


def _start_anywhere(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    """Draw the start from entropy, whatever the seed."""
    env.start[:] = np.random.default_rng().random(len(env.start))
    return (result[0], env._native(env.observation_space, env._observe(np.ones(len(env.start), bool))), result[2])


def _start_by_constant(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    """Any seed counts as the same one."""
    if seed is not None:
        env.host_rng = np.random.default_rng(42)
    env.start[:] = env.host_rng.random(len(env.start))
    return (result[0], env._native(env.observation_space, env._observe(np.ones(len(env.start), bool))), result[2])


def _reuse_observation(position: int) -> Callable[..., Any]:
    def alter(env: Altered, result: Any, *args: Any) -> Any:
        buffer = env.__dict__.setdefault("buffer", np.empty_like(result[position]))
        buffer[...] = result[position]
        return (*result[:position], buffer, *result[position + 1 :])

    return alter


def _reuse_info(env: Altered, result: Any, *args: Any) -> Any:
    env.__dict__.setdefault("infos", {}).update(result[-1])
    return (*result[:-1], env.infos)


def _reuse_frame(env: Altered, frame: Any) -> Any:
    buffer = env.__dict__.setdefault("frame", frame)
    buffer[...] = frame
    return buffer


def _clip_in_place(env: Altered, result: Any, action: Any) -> Any:
    np.clip(action, -0.05, 0.05, out=action)
    return result


def _write_mask(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
    if mask is not None:
        mask[:] = False
    return result


def _delay(env: Altered, result: Any, *args: Any) -> Any:
    """The reward is the sum of the last action, which was kept without copying it."""
    last = env.__dict__.get("last", np.zeros(2))
    env.last = args[0] if len(args) == 1 else np.zeros(2)
    return (result[0], float(np.sum(last)), *result[2:]) if len(result) == 5 else result


def _merge_in_place(old: Any, new: Any, mask: Any) -> Any:
    old[mask] = new
    return old


def _merge_first_rows(old: Any, new: Any, mask: Any) -> Any:
    merged = old.copy()
    merged[: len(new)] = new
    return merged


def _close_once(env: Altered, result: Any) -> None:
    if env.closed > 1:
        raise RuntimeError("closed already")


def _box(*shape: int, dtype: str = "float32") -> BoxSpace:
    return BoxSpace(np_backend, -1.0, 1.0, dtype, shape=shape)


class FixedLayer(Wrapper):
    """A wrapper that does not know what is below it."""

    @property
    def unwrapped(self) -> Env:
        return self


class Lenient(CountEnv):
    """An environment that has None for every attribute it does not have."""

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name, None)


class RowsOnly(CountFuncEnv):
    """A functional environment that selects with the mask, as an environment with a state does."""

    def reset(self, state: Any, *, mask: Any = None, **kwargs: Any) -> Any:
        state, context, observation, info = super().reset(state, mask=mask, **kwargs)
        return state, context, observation if mask is None else observation[mask], info


class ResetsAll(CountFuncEnv):
    """A functional environment that begins new episodes in all slots, whatever the mask."""

    def reset(self, state: Any, *, mask: Any = None, **kwargs: Any) -> Any:
        return super().reset(state, **kwargs)


class LooksAtTheMask(CountFuncEnv):
    """A functional environment whose reset hangs on the values of the mask."""

    def reset(self, state: Any, *, mask: Any = None, **kwargs: Any) -> Any:
        return super().reset(state, mask=None if mask is not None and bool(mask.all()) else mask, **kwargs)


def _on_jax() -> ComputeBackend:
    backend: ComputeBackend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend
    return backend


# The clause that breaks, what the error says, and the environment.
BROKEN: dict[str, tuple[str, str, Callable[[], Env]]] = {
    "unbatched spaces": (
        "spaces_are_batched_already",
        r"action_space .* with a batch axis of 2; wanted spaces that hold the batch axis of 3 already",
        lambda: Altered(3, action_space=_box(2)),
    ),
    "unbatched context": (
        "spaces_are_batched_already",
        "context_space .* wanted spaces that hold the batch axis of 3",
        lambda: Altered(3, context_space=_box(2)),
    ),
    "no batch": ("spaces_are_batched_already", "batch_size 0; wanted None, or", lambda: Altered(batch_size=0)),
    "no space": ("spaces_are_batched_already", "action_space None; wanted a Space", lambda: Altered(action_space=None)),
    "no backend": ("spaces_are_batched_already", "backend 'numpy'; wanted a Comp", lambda: Altered(backend="numpy")),
    "two values": (
        "reset_returns_values_of_the_spaces",
        "2 values from reset; wanted a tuple of context, observation and infos",
        lambda: Altered(reset=lambda env, result, *args: result[1:]),
    ),
    "observation alone": (
        "reset_returns_values_of_the_spaces",
        "a ndarray from reset",
        lambda: Altered(reset=lambda env, result, *args: result[1]),
    ),
    "reset dtype": (
        "reset_returns_values_of_the_spaces",
        "the observation of reset is wrong: dtype float64, the space wants float32",
        lambda: Altered(reset=_replaced(1, lambda observation: observation.astype(np.float64))),
    ),
    "surplus context": (
        "reset_returns_values_of_the_spaces",
        "the context of reset is a ndarray; wanted None, since there is no context_space",
        lambda: Altered(reset=_replaced(0, np.zeros(2, np.float32))),
    ),
    "missing context": (
        "reset_returns_values_of_the_spaces",
        "the context of reset is None; wanted a value of",
        lambda: Altered(with_context=True, reset=_replaced(0, None)),
    ),
    "no info": (
        "reset_returns_values_of_the_spaces",
        "infos of type NoneType from reset; wanted a dict",
        lambda: Altered(reset=_replaced(2, None)),
    ),
    "reset raises": (
        "reset_returns_values_of_the_spaces",
        "OSError: the cable is out; wanted that nothing is raised",
        lambda: Altered(reset=_raises),
    ),
    "four values": (
        "step_returns_values_of_the_spaces",
        "4 values from step; wanted a tuple of observation, reward, term",
        lambda: Altered(step=lambda env, result, *args: result[:4]),
    ),
    "step shape": (
        "step_returns_values_of_the_spaces",
        r"the observation of step is wrong: shape \(1, 3\), the space wants \(3,\)",
        lambda: Altered(step=_replaced(0, lambda observation: observation[None])),
    ),
    "no reward": (
        "step_returns_values_of_the_spaces",
        "reward of type NoneType; wanted a real number",
        lambda: Altered(step=_replaced(1, None)),
    ),
    "reward with an axis": (
        "step_returns_values_of_the_spaces",
        r"reward of dtype float64 and shape \(1,\); wanted a real number",
        lambda: Altered(step=_replaced(1, np.zeros(1))),
    ),
    "one reward for a batch": (
        "step_returns_values_of_the_spaces",
        r"reward of type float; wanted an array of numpy with a real number for each slot, \(3,\)",
        lambda: Altered(3, step=_replaced(1, 0.5)),
    ),
    "complex reward": (
        "step_returns_values_of_the_spaces",
        "reward of dtype complex128",
        lambda: Altered(3, step=_replaced(1, lambda reward: reward + 0j)),
    ),
    "number as a flag": (
        "step_returns_values_of_the_spaces",
        "terminated of type int; wanted a boolean",
        lambda: Altered(step=_replaced(2, 0)),
    ),
    "flags of a wrong shape": (
        "step_returns_values_of_the_spaces",
        r"truncated of dtype bool and shape \(3, 1\); wanted an array of numpy with a boolean for each slot",
        lambda: Altered(3, step=_replaced(3, lambda flags: flags[:, None])),
    ),
    "odd info keys": (
        "step_returns_values_of_the_spaces",
        r"the key \[0\] in the infos of step; wanted strings",
        lambda: Altered(step=_replaced(4, {0: 1})),
    ),
    "sample": (
        "samples_are_values_of_the_spaces",
        r"sample_action\(\) is wrong: shape \(3,\)",
        lambda: Altered(sample_action=lambda: np.zeros(3, np.float32)),
    ),
    "rows of a functional reset": (
        "functional_reset_returns_every_slot",
        r"observation of FuncEnv.reset with the mask \[True, False, True\] is wrong: shape \(2, 3\)",
        lambda: FuncEnvBasedEnv(RowsOnly(np_backend, 3)),
    ),
    "functional reset of all": (
        "functional_reset_returns_every_slot",
        "in slots that FuncEnv.reset with the mask .* leaves alone observation: .* wanted no change there",
        lambda: FuncEnvBasedEnv(ResetsAll(np_backend, 3)),
    ),
    "functional reset that looks at the mask": (
        "functional_reset_compiles_where_step_does",
        "TracerBoolConversionError",
        lambda: FuncEnvBasedEnv(LooksAtTheMask(_on_jax(), 3)),
    ),
    "mask ignored": (
        "masked_reset_returns_the_rows_of_the_mask",
        r"the observation of a reset with the mask \[True, False, True\] is wrong: shape \(3, 3\)",
        lambda: Altered(3, reset=_ignore_mask),
    ),
    "mask resets all": (
        "masked_reset_leaves_the_other_slots",
        "in slots that were not reset observation.*; wanted no change in the other slots",
        lambda: Altered(3, reset=_reset_all),
    ),
    "merge in place": (
        "merging_after_a_masked_reset",
        "update_observation_post_reset's arguments/0: .* wanted the arguments as they were",
        lambda: Altered(3, update_observation_post_reset=_merge_in_place),
    ),
    "context merged in wrong rows": (
        "merging_after_a_masked_reset",
        "context: .* wanted the new rows where they belong",
        lambda: Altered(3, with_context=True, update_context_post_reset=_merge_first_rows),
    ),
    "seed ignored": (
        "seed_fixes_the_episode",
        "with the seed 5 twice episode/0/observation: .* wanted the same episode from the same seed",
        lambda: Altered(reset=_start_anywhere),
    ),
    "no generator": (
        "seed_fixes_the_generator",
        "rng is None after reset",
        lambda: Altered(reset=lambda env, result, *args: (setattr(env, "rng", None), result)[1]),
    ),
    "generator not seeded": (
        "seed_fixes_the_generator",
        r"rng after reset\(seed=5\), twice: .* wanted rng seeded by reset",
        lambda: Altered(reset=_keep_generator),
    ),
    "generator of one seed": (
        "seed_fixes_the_generator",
        r"the same draws from rng after reset\(seed=5\) and reset\(seed=6\); wanted different seeds to differ",
        lambda: Altered(reset=_seed_by_constant),
    ),
    "one seed for all": (
        "seeds_differ",
        "episodes that differ without a seed, and are all alike for the seeds 0 to 3",
        lambda: Altered(reset=_start_by_constant),
    ),
    "observation reused in reset": (
        "returned_data_stays",
        r"after reset\(\) what reset returned/1: .* wanted returned data that is the caller's to keep",
        lambda: Altered(reset=_reuse_observation(1)),
    ),
    "observation reused in step": (
        "returned_data_stays",
        r"after step\(\) what step returned/0: ",
        lambda: Altered(step=_reuse_observation(0)),
    ),
    "info reused": ("returned_data_stays", "what step returned/4/steps: 1, then 2", lambda: Altered(step=_reuse_info)),
    "frame reused": (
        "returned_data_stays",
        r"after render\(\) what render returned: \[0, 0",
        lambda: Altered(with_render_mode="rgb_array", render=_reuse_frame),
    ),
    "action written to": (
        "actions_and_masks_are_the_callers",
        r"after step\(\) action: .* wanted the action as the caller gave it",
        lambda: Altered(step=_clip_in_place),
    ),
    "mask written to": (
        "actions_and_masks_are_the_callers",
        r"mask: \[True, False, True\], then \[False, False, False\]",
        lambda: Altered(3, reset=_write_mask),
    ),
    "action kept": (
        "actions_and_masks_are_the_callers",
        "after the action before it was overwritten by its owner: step/1: .* wanted an environment that keeps no",
        lambda: Altered(step=_delay, reset=_delay),
    ),
    "no render modes": (
        "render_follows_the_mode",
        r"metadata \{\}; wanted a dict with the key 'render_modes'",
        lambda: Altered(metadata={}),
    ),
    "unknown render mode": (
        "render_follows_the_mode",
        r"render_mode 'ansi'; wanted one of \['rgb_array'\]",
        lambda: Altered(with_render_mode="ansi"),
    ),
    "frame without a mode": (
        "render_follows_the_mode",
        "a frame of type int without a render_mode; wanted None",
        lambda: Altered(render=lambda env, frame: 0),
    ),
    "no frame": (
        "render_follows_the_mode",
        "None from render",
        lambda: Altered(with_render_mode="rgb_array", render=lambda env, frame: None),
    ),
    "no time": ("render_follows_the_mode", "render_fps 0; wanted None or a posi", lambda: Altered(render_fps=0)),
    "unwrapped": ("attributes_are_found_through_the_layers", "wanted them to be one", lambda: FixedLayer(Altered())),
    "has everything": (
        "attributes_are_found_through_the_layers",
        "wanted has_wrapper_attr to be False for it",
        lambda: Altered(has_wrapper_attr=lambda name: True),
    ),
    "None for what is not there": (
        "attributes_are_found_through_the_layers",
        "wanted an AttributeError from get_wrapper_attr",
        lambda: Lenient(np_backend),
    ),
    "sets nothing": (
        "attributes_are_found_through_the_layers",
        "None from get_wrapper_attr; wanted the value that set_wrapper_attr was given",
        lambda: Altered(set_wrapper_attr=lambda name, value: None),
    ),
    "closes once": (
        "close_may_be_called_twice",
        "RuntimeError: closed already; wanted that nothing is raised",
        lambda: Altered(close=_close_once),
    ),
}


@pytest.mark.parametrize(("clause", "text", "make"), BROKEN.values(), ids=BROKEN.keys())
def test_the_broken_clause_is_named(clause: str, text: str, make: Callable[[], Env]) -> None:
    with pytest.raises(EnvContractError, match=rf"breaks the clause '{clause}': found .*{text}"):
        check_env(make())


@pytest.mark.parametrize("case", ["sample", "generator not seeded", "merge in place", "unwrapped", "mask resets all"])
def test_a_clause_may_be_skipped(case: str) -> None:
    clause, _, make = BROKEN[case]
    check_env(make(), skip=[clause])


def test_every_clause_is_broken_by_some_environment() -> None:
    assert {clause for clause, _, _ in BROKEN.values()} == set(CLAUSES)


def test_skipping_an_unknown_clause_lists_the_clauses() -> None:
    with pytest.raises(ValueError, match=r"there is no clause 'seeds', the clauses are .*seeds_differ"):
        check_env(Altered(), skip=["seeds"])


def test_the_environment_is_closed_whatever_is_found() -> None:
    good, bad = Altered(), Altered(step=_raises)
    check_env(good)
    with pytest.raises(EnvContractError, match="the cable is out"):
        check_env(bad)
    assert good.closed
    assert bad.closed


def test_what_the_environment_raises_is_the_cause() -> None:
    with pytest.raises(EnvContractError) as caught:
        check_env(Altered(step=_raises))
    assert isinstance(caught.value.__cause__, OSError)


def test_slots_that_share_a_generator_are_excused() -> None:
    """Where steps draw from rng, a masked reset moves it for all: that says nothing about the other slots."""

    def noisy(env: Altered, result: Any, action: Any) -> Any:
        return (env.rng.random((3, 3)).astype(np.float32), *result[1:])

    check_env(Altered(3, step=noisy))


def test_an_environment_without_chance_passes() -> None:
    def start_at_zero(env: Altered, result: Any, mask: Any, seed: Any) -> Any:
        env.start[:] = 0.0
        return (result[0], np.zeros_like(result[1]), result[2])

    check_env(Altered(reset=start_at_zero))


class TestCount(EnvContract):
    def make_env(self) -> Env:
        return CountEnv(np_backend, with_context=True)


class TestCountBatch(EnvContract):
    def make_env(self) -> Env:
        return CountEnv(np_backend, 3, with_context=True)


def test_the_mixin_has_a_test_for_every_clause() -> None:
    tests = {name.removeprefix("test_") for name in dir(EnvContract) if name.startswith("test_")}
    assert tests == {*CLAUSES, "seed_fixes_the_episode_in_another_instance"}


@pytest.mark.parametrize(("clause", "text", "make"), BROKEN.values(), ids=BROKEN.keys())
def test_the_mixin_finds_what_check_env_finds(clause: str, text: str, make: Callable[[], Env]) -> None:
    class Contract(EnvContract):
        def make_env(self) -> Env:
            return make()

    with pytest.raises(EnvContractError, match=text):
        getattr(Contract(), f"test_{clause}")()


def test_the_mixin_compares_two_instances() -> None:
    made: list[Altered] = []

    class Contract(EnvContract):
        def make_env(self) -> Env:
            made.append(Altered(reset=lambda env, result, *args: (result[0], result[1] + made.index(env), result[2])))
            return made[-1]

    with pytest.raises(EnvContractError, match=r"two of .* with one seed: found episode/0/observation"):
        Contract().test_seed_fixes_the_episode_in_another_instance()
    assert all(env.closed for env in made)
