"""A replay buffer inside `jax.jit`: adding a step of 64 environments, drawing 256 transitions, and both in a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from harness import Ready, Work, ours, peer

from unienv_data import FuncReplayBuffer

from ._data import BATCH, transition_space, transitions
from ._peers import FLASHBAX

ENVS, STEPS, SCANNED = 64, 16_384, 100  # a million transitions in all


def works() -> list[Work]:
    return [
        Work("functional", "add a step of 64", "us", (add, flashbax_add)),
        Work("functional", "sample 256", "us", (sample, flashbax_sample)),
        Work("functional", "add and sample in a scan", "us", (scan, flashbax_scan), per_call=SCANNED),
    ]


# -- what is measured, of any buffer with functions of a state ---------------------------------------------


def adding(buffer: Any, state: Any, step: Any) -> Callable[[], Any]:
    import jax

    compiled = jax.jit(buffer.add, donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state = compiled(state, step)
        return jax.block_until_ready(state)

    return call


def drawing(draw: Callable[[Any, Any], Any], state: Any) -> Callable[[], Any]:
    import jax

    compiled, keys = jax.jit(draw), list(jax.random.split(jax.random.PRNGKey(0), 64))

    def call() -> Any:
        keys.append(keys.pop(0))
        return jax.block_until_ready(compiled(state, keys[0]))

    return call


def scanning(buffer: Any, draw: Callable[[Any, Any], Any], state: Any, step: Any) -> Ready:
    """A hundred times a step that is added and a batch that is drawn, whose rewards are looked at."""
    import jax

    def both(state: Any, key: Any) -> Any:
        state = buffer.add(state, step)
        return state, draw(state, key)["reward"].sum()

    keys = jax.random.split(jax.random.PRNGKey(0), SCANNED)
    compiled = jax.jit(lambda state: jax.lax.scan(both, state, keys), donate_argnums=0)

    def call() -> Any:
        nonlocal state
        state, rewards = compiled(state)
        return rewards.block_until_ready()

    return Ready(call)


# -- the contenders ----------------------------------------------------------------------------------------


def functional() -> tuple[FuncReplayBuffer, Any, Any]:
    """Ours, full, and a step to add."""
    import jax

    from unienv_interface.backends.jax import JaxComputeBackend

    buffer = FuncReplayBuffer(transition_space(JaxComputeBackend), ENVS * STEPS, batch=ENVS)
    step = jax.tree.map(jax.numpy.asarray, transitions(ENVS))
    blocks = jax.tree.map(lambda column: jax.numpy.stack([column] * 256), step)
    add, state = jax.jit(buffer.add, donate_argnums=0), buffer.init()
    for _ in range(STEPS // 256):
        state = add(state, blocks)
    return buffer, state, step


def draw_of(buffer: FuncReplayBuffer) -> Callable[[Any, Any], Any]:
    return lambda state, key: buffer.sample(state, key, BATCH)


@ours("unienv", "FuncReplayBuffer, jitted, the state donated", "jax")
def add() -> Iterator[Callable]:
    yield adding(*functional())


@ours("unienv", "FuncReplayBuffer, jitted", "jax")
def sample() -> Iterator[Callable]:
    buffer, state, _ = functional()
    yield drawing(draw_of(buffer), state)


@ours("unienv", "FuncReplayBuffer, jitted", "jax")
def scan() -> Iterator[Ready]:
    buffer, state, step = functional()
    yield scanning(buffer, draw_of(buffer), state, step)


def flashbax() -> tuple[Any, Any, Any]:
    """The same of flashbax: sequences of one step, which have all of a transition."""
    import flashbax
    import jax

    buffer = flashbax.make_trajectory_buffer(ENVS, BATCH, 1, 1, 1, max_length_time_axis=STEPS)
    step = jax.tree.map(lambda column: jax.numpy.asarray(column)[:, None], transitions(ENVS))
    blocks = jax.tree.map(lambda column: jax.numpy.concatenate([column] * 256, axis=1), step)
    state = buffer.init(jax.tree.map(lambda column: column[0, 0], step))
    add = jax.jit(buffer.add, donate_argnums=0)
    for _ in range(STEPS // 256):
        state = add(state, blocks)
    return buffer, state, step


def flashbax_draw_of(buffer: Any) -> Callable[[Any, Any], Any]:
    return lambda state, key: buffer.sample(state, key).experience


@peer("flashbax", "trajectory buffer with sequences of one, jitted, the state donated", *FLASHBAX)
def flashbax_add() -> Iterator[Callable]:
    yield adding(*flashbax())


@peer("flashbax", "trajectory buffer with sequences of one, jitted", *FLASHBAX)
def flashbax_sample() -> Iterator[Callable]:
    buffer, state, _ = flashbax()
    yield drawing(flashbax_draw_of(buffer), state)


@peer("flashbax", "trajectory buffer with sequences of one, jitted", *FLASHBAX)
def flashbax_scan() -> Iterator[Ready]:
    buffer, state, step = flashbax()
    yield scanning(buffer, flashbax_draw_of(buffer), state, step)
