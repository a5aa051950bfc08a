"""The clauses of the environment contract. Each clause is a function of an environment; they run in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends.base import ComputeBackend
from ..env_base.env import Env
from ..env_base.funcenv import FuncEnvBasedEnv
from ..space import Space
from ..space.space_utils import batch_utils
from ..space.spaces import CompositeSpace
from ..utils.optional import need
from ._env_probe import (
    STEPS,
    clause,
    episode,
    every_other,
    has_ended,
    mask_of,
    overwrite,
    require_info,
    require_signal,
    require_value,
    reset,
    rows_of,
    sample_actions,
    step,
)
from .clauses import BreachError, require
from .snapshots import difference, snapshot

# -- spaces and values -------------------------------------------------------------------------------------


@clause
def spaces_are_batched_already(env: Env) -> None:
    """The spaces are on the environment's backend and device, and hold the batch axis if there is one."""
    require(isinstance(env.backend, ComputeBackend), f"backend {env.backend!r}", "a ComputeBackend")
    size = env.batch_size
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    require(size is None or is_size, f"batch_size {size!r}", "None, or a number of at least 1")
    for name in ("action_space", "observation_space", "context_space"):
        space: Any = getattr(env, name, None)
        if space is None and name == "context_space":
            continue
        require(isinstance(space, Space), f"{name} {space!r}", "a Space")
        require(space.backend is env.backend, f"{name} on {space.backend}", f"the environment's {env.backend}")
        apart = None not in (env.device, space.device) and not env.backend.same_device(env.device, space.device)
        require(not apart, f"{name} on device {space.device}", f"the environment's {env.device}")
        if size is not None and not (isinstance(space, CompositeSpace) and len(space) == 0):
            axis = batch_utils.batch_size(space)
            require(
                axis == size,
                f"{name} {space} with a batch axis of {axis}",
                f"spaces that hold the batch axis of {size} already",
            )


@clause
def reset_returns_values_of_the_spaces(env: Env) -> None:
    """A reset, with a seed or without, returns a context, an observation and infos."""
    for seed in (0, None):
        context, observation, info = reset(env, seed=seed)
        require_value(env.context_space, context, "the context of reset")
        require_value(env.observation_space, observation, "the observation of reset")
        require_info(info, "reset")


@clause
def step_returns_values_of_the_spaces(env: Env) -> None:
    """A step returns observation, reward, two flags and infos; in a batch one reward and flag per slot."""
    reset(env, seed=0)
    for action in sample_actions(env, STEPS):
        observation, reward, terminated, truncated, info = step(env, action)
        require_value(env.observation_space, observation, "the observation of step")
        require_signal(env, reward, "reward", is_flag=False)
        require_signal(env, terminated, "terminated", is_flag=True)
        require_signal(env, truncated, "truncated", is_flag=True)
        require_info(info, "step")
        if has_ended(env, terminated, truncated):
            reset(env)


@clause
def samples_are_values_of_the_spaces(env: Env) -> None:
    """The sampling helpers draw from the spaces."""
    require_value(env.action_space, env.sample_action(), "sample_action()")
    require_value(env.observation_space, env.sample_observation(), "sample_observation()")
    require_value(env.context_space, env.sample_context(), "sample_context()")


# -- masked resets -----------------------------------------------------------------------------------------


@clause
def functional_reset_returns_every_slot(env: Env) -> None:
    """A masked reset of the functional environment below returns every slot, and does not change the other slots."""
    base = env.unwrapped
    if not isinstance(base, FuncEnvBasedEnv) or base.batch_size is None:
        return
    func_env = base.func_env
    state, old_context, _, _ = func_env.initial(seed=0)
    state, old_observation, *_ = func_env.step(state, sample_actions(base, 1)[0])
    none, every = np.zeros(base.batch_size, bool), np.ones(base.batch_size, bool)
    for slots in (every_other(base.batch_size), none, every):
        _, context, observation, info = func_env.reset(state, mask=mask_of(base, slots))
        call_name = f"FuncEnv.reset with the mask {slots.tolist()}"
        require_info(info, call_name)
        values = (
            ("context", func_env.context_space, old_context, context),
            ("observation", func_env.observation_space, old_observation, observation),
        )
        for name, space, old, new in values:
            require_value(space, new, f"the {name} of {call_name}")
            if space is not None:
                before, after = (snapshot(batch_utils.take_slots(space, value, ~slots)) for value in (old, new))
                changed = difference(before, after, name)
                require(changed is None, f"in slots that {call_name} leaves alone {changed}", "no change there")


@clause
def functional_reset_compiles_where_step_does(env: Env) -> None:
    """If JAX can trace the step of the functional environment below, it can trace a reset with a mask."""
    base = env.unwrapped
    if not isinstance(base, FuncEnvBasedEnv) or base.batch_size is None or base.backend.simplified_name != "jax":
        return
    jax = need("jax", extra="jax")
    func_env = base.func_env
    state, *_ = func_env.initial(seed=0)
    try:
        jax.eval_shape(lambda state, action: func_env.step(state, action)[:5], state, sample_actions(base, 1)[0])
    except Exception:  # it may be a simulator on the host
        return
    mask = mask_of(base, every_other(base.batch_size))
    jax.eval_shape(lambda state, mask: func_env.reset(state, mask=mask)[:3], state, mask)


@clause
def masked_reset_returns_the_rows_of_the_mask(env: Env) -> None:
    """A reset with a mask returns the rows of the mask and no others; no rows for an empty mask."""
    if env.batch_size is None:
        return
    reset(env, seed=0)
    step(env, sample_actions(env, 1)[0])
    none, every = np.zeros(env.batch_size, bool), np.ones(env.batch_size, bool)
    for slots in (every_other(env.batch_size), none, every):
        context, observation, info = reset(env, mask=mask_of(env, slots))
        call_name = f"reset with the mask {slots.tolist()}"
        require_value(rows_of(env.context_space, slots), context, f"the context of a {call_name}")
        require_value(rows_of(env.observation_space, slots), observation, f"the observation of a {call_name}")
        require_info(info, call_name)


@clause
def masked_reset_leaves_the_other_slots(env: Env) -> None:
    """A reset with a mask changes nothing for the other slots.

    The clause compares the next step of the other slots with a run without the masked reset. It does not apply to an
    environment whose steps draw from `rng`, since a reset advances the generator of all slots.
    """
    if env.batch_size is None or env.batch_size < 2:
        return
    slots = every_other(env.batch_size)

    def run_with(interlude: Callable[[], Any]) -> Any:
        reset(env, seed=3)
        before, after = sample_actions(env, 2)
        if has_ended(env, *step(env, before)[2:4]):
            return None
        interlude()
        observation, *signals, _ = step(env, after)
        others = mask_of(env, ~slots)
        rows = batch_utils.get_at(env.observation_space, observation, others)
        return snapshot({"observation": rows, "signals": [signal[others] for signal in signals]})

    undisturbed = run_with(lambda: None)
    change = difference(undisturbed, run_with(lambda: reset(env, mask=mask_of(env, slots))))
    uses_rng = difference(undisturbed, run_with(env.sample_action)) is not None
    require(change is None or uses_rng, f"in slots that were not reset {change}", "no change in the other slots")


@clause
def merging_after_a_masked_reset(env: Env) -> None:
    """`update_observation_post_reset` and `update_context_post_reset` merge the rows and change no argument."""
    if env.batch_size is None:
        return
    slots = every_other(env.batch_size)
    old_context, _, _ = reset(env, seed=0)
    old_observation = step(env, sample_actions(env, 1)[0])[0]
    new_context, new_observation, _ = reset(env, mask=mask_of(env, slots))
    mask = mask_of(env, slots)
    merges: list[tuple[str, Space | None, Any, Any, Callable[..., Any]]] = [
        ("observation", env.observation_space, old_observation, new_observation, env.update_observation_post_reset),
        ("context", env.context_space, old_context, new_context, env.update_context_post_reset),
    ]
    for name, space, old, new, merge in merges:
        if space is None:
            continue
        before = snapshot((old, new, mask))
        merged = merge(old, new, mask)
        written = difference(before, snapshot((old, new, mask)), f"update_{name}_post_reset's arguments")
        require(written is None, f"{written}", "the arguments as they were")
        require_value(space, merged, f"the merged {name}")
        for rows, source, label in ((mask, new, "the new rows"), (mask_of(env, ~slots), None, "the old rows")):
            expected = batch_utils.get_at(space, old, rows) if source is None else source
            error = difference(snapshot(expected), snapshot(batch_utils.get_at(space, merged, rows)), name)
            require(error is None, f"{error}", f"{label} where they belong")


# -- randomness --------------------------------------------------------------------------------------------


@clause
def seed_fixes_the_episode(env: Env) -> None:
    """The same seed and the same actions give the same episode."""
    change = difference(episode(env, seed=5), episode(env, seed=5), "episode")
    require(change is None, f"with the seed 5 twice {change}", "the same episode from the same seed")


@clause
def seed_fixes_the_generator(env: Env) -> None:
    """The seed of `reset` seeds `rng`: the same seed gives the same samples, another seed gives other samples."""
    draws = []
    for seed in (5, 5, 6):
        reset(env, seed=seed)
        require(env.rng is not None, "rng is None after reset(seed=5)", "a generator seeded by reset")
        env.rng, values = env.backend.random.random_uniform((4,), rng=env.rng)
        draws.append(snapshot(values))
    change = difference(draws[0], draws[1], "rng after reset(seed=5), twice")
    require(change is None, f"{change}", "rng seeded by reset(seed=...)")
    differs = difference(draws[1], draws[2]) is not None
    require(differs, "the same draws from rng after reset(seed=5) and reset(seed=6)", "different seeds to differ")


@clause
def seeds_differ(env: Env) -> None:
    """If episodes differ without a seed, they differ between seeds."""
    is_random = difference(episode(env, seed=None), episode(env, seed=None)) is not None
    episodes = [episode(env, seed=seed) for seed in range(4)]
    all_alike = all(difference(episodes[0], other) is None for other in episodes[1:])
    require(
        not (is_random and all_alike),
        "episodes that differ without a seed, and are all alike for the seeds 0 to 3",
        "different seeds to differ",
    )


# -- ownership ---------------------------------------------------------------------------------------------


@clause
def returned_data_stays(env: Env) -> None:
    """Later calls do not change returned data."""
    returned: list[tuple[str, Any, Any]] = []

    def keep(name: str, value: Any) -> None:
        for earlier, data, before in returned:
            change = difference(before, snapshot(data), f"what {earlier} returned")
            require(change is None, f"after {name}() {change}", "returned data that is the caller's to keep")
        returned.append((name, value, snapshot(value)))

    first, second = sample_actions(env, 2)
    keep("reset", reset(env, seed=0))
    keep("render", env.render())
    result = step(env, first)
    keep("step", result)
    keep("render", env.render())
    if not has_ended(env, *result[2:4]):
        keep("step", step(env, second))
    if env.batch_size is not None:
        keep("reset", reset(env, mask=mask_of(env, every_other(env.batch_size))))
    keep("reset", reset(env))
    keep("step", step(env, first))


@clause
def actions_and_masks_are_the_callers(env: Env) -> None:
    """The environment does not write to actions and masks, and the caller may overwrite them after the call."""
    reset(env, seed=0)
    (action,) = sample_actions(env, 1)
    before = snapshot(action)
    step(env, action)
    change = difference(before, snapshot(action), "action")
    require(change is None, f"after step() {change}", "the action as the caller gave it")
    if env.batch_size is not None:
        slots = every_other(env.batch_size)
        mask = mask_of(env, slots)
        reset(env, mask=mask)
        change = difference(snapshot(mask_of(env, slots)), snapshot(mask), "mask")
        require(change is None, f"after reset() {change}", "the mask as the caller gave it")

    def second_step(overwritten: bool) -> Any:
        reset(env, seed=0)
        first, second = sample_actions(env, 2)
        _, _, terminated, truncated, _ = step(env, first)
        if has_ended(env, terminated, truncated):
            return None
        if overwritten:
            overwrite(env.backend, first, second)
        return snapshot(step(env, second)[:4])

    change = difference(second_step(overwritten=False), second_step(overwritten=True), "step")
    require(
        change is None,
        f"another step after the action before it was overwritten by its owner: {change}",
        "an environment that keeps no action of the caller's, but a copy",
    )


# -- rendering, attributes, close --------------------------------------------------------------------------


@clause
def render_follows_the_mode(env: Env) -> None:
    """The metadata lists the render mode; without a render mode, `render` returns None."""
    modes = env.metadata.get("render_modes") if isinstance(env.metadata, dict) else None
    require(modes is not None, f"metadata {env.metadata!r}", "a dict with the key 'render_modes'")
    require(
        env.render_mode is None or env.render_mode in (modes or ()),
        f"render_mode {env.render_mode!r}",
        f"one of {modes}",
    )
    fps = env.render_fps
    require(fps is None or fps > 0, f"render_fps {fps!r}", "None or a positive number")
    reset(env, seed=0)
    frames = [env.render()]
    step(env, sample_actions(env, 1)[0])
    frames.append(env.render())
    for frame in frames:
        if env.render_mode is None:
            require(frame is None, f"a frame of type {type(frame).__name__} without a render_mode", "None")
        elif env.render_mode == "rgb_array":
            require(frame is not None, "None from render() in the mode 'rgb_array'", "a frame")


@clause
def attributes_are_found_through_the_layers(env: Env) -> None:
    """The last layer is `unwrapped`, and attributes are read and set through all layers."""
    layer, depth = env, 0
    while layer.prev_wrapper_layer is not None:
        layer, depth = layer.prev_wrapper_layer, depth + 1
    require(
        layer is env.unwrapped, f"{layer!r} {depth} layers down and {env.unwrapped!r} as unwrapped", "them to be one"
    )
    require(env.has_wrapper_attr("observation_space"), "no observation_space", "has_wrapper_attr to find it")
    value = env.get_wrapper_attr("observation_space")
    require(value == env.observation_space, f"{value} from get_wrapper_attr", f"{env.observation_space}")
    name = "an_attribute_that_check_env_made_up"
    require(not env.has_wrapper_attr(name), f"an attribute {name!r}", "has_wrapper_attr to be False for it")
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        pass
    else:
        raise BreachError(f"a value for {name!r}", "an AttributeError from get_wrapper_attr")
    env.set_wrapper_attr(name, "value")
    value = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    require(value == "value", f"{value!r} from get_wrapper_attr", "the value that set_wrapper_attr was given")


@clause
def close_may_be_called_twice(env: Env) -> None:
    """`close` may be called more than once."""
    reset(env, seed=0)
    env.close()
    env.close()
