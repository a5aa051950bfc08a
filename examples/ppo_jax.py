"""PPO on thousands of CartPoles, compiled by JAX: environments, rollout, advantages and updates.

`python examples/ppo_jax.py` reaches a return of 475 of 500 in a minute or two on two cores. `FuncEnv.reset` with a mask
returns all slots, so that episodes end and restart inside `jax.lax.scan`.
"""

from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from PIL import Image, ImageDraw
from tqdm import trange

from unienv_data import gae
from unienv_interface import FuncEnv
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.space.spaces import BoxSpace
from unienv_interface.utils.stateclass import StateClass

GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.99, 0.95, 0.2, 0.01, 2.5e-3
MINIBATCHES, EPOCHS, LONGEST = 8, 4, 500


class CartPoleState(StateClass):
    body: jax.Array  # position, speed, angle and its speed of each slot
    steps: jax.Array
    key: jax.Array


class CartPole(FuncEnv):
    """CartPole-v1 of Gymnasium as functions of a state, any number side by side."""

    def __init__(self, batch_size: int) -> None:
        self.backend, self.batch_size = JaxComputeBackend, batch_size
        self.action_space = BoxSpace(self.backend, 0, 1, "int32", shape=(batch_size,))
        self.observation_space = BoxSpace(self.backend, -np.inf, np.inf, "float32", shape=(batch_size, 4))

    def initial(self, *, seed: int | None = None, **kwargs: Any) -> tuple[CartPoleState, None, jax.Array, dict]:
        key = self.backend.random.random_number_generator(seed)
        return self.reset(CartPoleState(jnp.zeros((self.batch_size, 4)), jnp.zeros(self.batch_size, jnp.int32), key))

    def reset(
        self, state: CartPoleState, *, seed: int | None = None, mask: Any = None, **kwargs: Any
    ) -> tuple[CartPoleState, None, jax.Array, dict]:
        if seed is not None:
            state = state.replace(key=self.backend.random.random_number_generator(seed))
        key, draw = jax.random.split(state.key)
        mask = jnp.ones(self.batch_size, bool) if mask is None else mask
        fresh = jax.random.uniform(draw, (self.batch_size, 4), minval=-0.05, maxval=0.05)
        state = CartPoleState(jnp.where(mask[:, None], fresh, state.body), jnp.where(mask, 0, state.steps), key)
        return state, None, state.body, {}

    def step(self, state: CartPoleState, action: jax.Array) -> tuple[CartPoleState, jax.Array, Any, Any, Any, dict]:
        position, speed, angle, spin = state.body.T
        force, sin, cos = jnp.where(action == 1, 10.0, -10.0), jnp.sin(angle), jnp.cos(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        body = jnp.stack([position + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn], -1)
        state = state.replace(body=body, steps=state.steps + 1)
        terminated = (jnp.abs(body[:, 0]) > 2.4) | (jnp.abs(body[:, 2]) > 12 * jnp.pi / 180)
        return state, body, jnp.ones(self.batch_size), terminated, state.steps >= LONGEST, {}


def make_network(key: jax.Array, outputs: int, last_scale: float) -> list[tuple[jax.Array, jax.Array]]:
    sizes, scales = (4, 64, 64, outputs), (np.sqrt(2), np.sqrt(2), last_scale)
    keys = jax.random.split(key, 3)
    shapes = zip(keys, sizes[:-1], sizes[1:], scales, strict=True)
    return [(jax.nn.initializers.orthogonal(scale)(key, (m, n)), jnp.zeros(n)) for key, m, n, scale in shapes]


def network(layers: list[tuple[jax.Array, jax.Array]], value: jax.Array) -> jax.Array:
    *hidden, (last_weight, last_bias) = layers
    for weight, bias in hidden:
        value = jnp.tanh(value @ weight + bias)
    return value @ last_weight + last_bias


def logp_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def loss_of(params: Any, batch: Any) -> jax.Array:
    """The clipped loss of the policy, that of the value function, and the entropy."""
    logits = network(params["actor"], batch["obs"])
    ratio = jnp.exp(logp_of(logits, batch["action"]) - batch["logp"])
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages).mean()
    error = jnp.square(network(params["critic"], batch["obs"])[..., 0] - batch["returns"]).mean()
    entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
    return 0.5 * error - gain - ENTROPY * entropy


def adam(params: Any, moments: Any, gradients: Any, rate: jax.Array) -> tuple[Any, Any]:
    """One step of Adam, with the norm of the gradients clipped to 0.5."""
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.5 / (norm + 1e-6)), gradients)
    mean, square, count = *moments[:2], moments[2] + 1
    mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, mean, gradients)
    square = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, square, gradients)

    def move(value: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        return value - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-5)

    return jax.tree.map(move, params, mean, square), (mean, square, count)


def make_iteration(env: CartPole, steps: int) -> Any:
    """A compiled function: a rollout of so many steps of all slots, and the updates on it."""

    def act(carry: Any, key: jax.Array) -> Any:
        params, state, obs = carry
        logits = network(params["actor"], obs)
        action = jax.random.categorical(key, logits).astype(jnp.int32)
        state, next_obs, reward, terminated, truncated, _ = env.step(state, action)
        row = {"obs": obs, "action": action, "logp": logp_of(logits, action), "reward": reward, "next_obs": next_obs}
        row |= {"terminated": terminated, "truncated": truncated, "length": state.steps}
        state, _, obs, _ = env.reset(state, mask=terminated | truncated)
        return (params, state, obs), row

    def update(carry: Any, batch: Any) -> Any:
        params, moments, rate = carry
        return (*adam(params, moments, jax.grad(loss_of)(params, batch), rate), rate), None

    @jax.jit
    def iterate(params: Any, moments: Any, state: Any, obs: Any, key: jax.Array, rate: float) -> Any:
        key, *keys = jax.random.split(key, 1 + EPOCHS)
        (_, state, obs), rows = jax.lax.scan(act, (params, state, obs), jax.random.split(key, steps))
        values, next_values = (network(params["critic"], rows[name])[..., 0] for name in ("obs", "next_obs"))
        found = gae(rows["reward"], values, rows["terminated"], rows["truncated"], next_values, GAMMA, LAMBDA)
        batch = {**found._asdict(), **{name: rows[name] for name in ("obs", "action", "logp")}}
        batch = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), batch)
        carry = (params, moments, rate)
        for shuffle in keys:
            order = jax.random.permutation(shuffle, steps * env.batch_size).reshape(MINIBATCHES, -1)
            carry, _ = jax.lax.scan(update, carry, jax.tree.map(lambda column, order=order: column[order], batch))
        ended = rows["terminated"] | rows["truncated"]
        return *carry[:2], state, obs, (rows["length"] * ended).sum() / ended.sum()

    return iterate


@jax.jit
def evaluate(actor: Any) -> jax.Array:
    """The mean return of 256 episodes of the most probable actions."""
    env = CartPole(256)
    state, _, obs, _ = env.initial(seed=1_000_000)

    def act(carry: Any, _: None) -> Any:
        state, obs, goes_on, total = carry
        state, obs, reward, terminated, truncated, _ = env.step(state, network(actor, obs).argmax(-1))
        return (state, obs, goes_on & ~(terminated | truncated), total + reward * goes_on), None

    return jax.lax.scan(act, (state, obs, jnp.ones(256, bool), jnp.zeros(256)), length=LONGEST)[0][3].mean()


def draw_curve(returns: list[float], path: Path) -> None:
    """The mean returns of the iterations as a picture."""
    image = Image.new("RGB", (680, 440), "white")
    draw = ImageDraw.Draw(image)
    for level in range(0, LONGEST + 1, 100):
        draw.line((60, 400 - 0.7 * level, 660, 400 - 0.7 * level), fill="lightgray")
        draw.text((30, 394 - 0.7 * level), str(level), fill="black")
    points = zip(np.linspace(60, 660, len(returns)), 400 - 0.7 * np.array(returns), strict=True)
    draw.line(list(points), fill="navy", width=2)
    draw.text((270, 415), f"mean return, {len(returns)} iterations", fill="black")
    image.save(path, format="png")


def main(
    envs: Annotated[int, typer.Option(help="environments side by side")] = 2048,
    steps: Annotated[int, typer.Option(help="steps of each environment in an iteration")] = 32,
    iterations: Annotated[int, typer.Option(help="rollouts, each with its updates")] = 60,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    curve: Annotated[Path, typer.Option(help="where the learning curve goes")] = Path("ppo_jax.png"),
) -> float:
    """Train, draw the learning curve and evaluate."""
    env = CartPole(envs)
    keys = jax.random.split(jax.random.PRNGKey(seed), iterations + 2)
    params = {"actor": make_network(keys[-1], 2, 0.01), "critic": make_network(keys[-2], 1, 1.0)}
    moments = (*(jax.tree.map(jnp.zeros_like, params) for _ in range(2)), 0)
    state, _, obs, _ = env.initial(seed=seed)
    iterate, returns = make_iteration(env, steps), []
    for number in (bar := trange(iterations, unit="iteration")):
        rate = LEARNING_RATE * (1 - number / iterations)
        params, moments, state, obs, mean = iterate(params, moments, state, obs, keys[number], rate)
        returns.append(float(mean) if np.isfinite(mean) else returns[-1] if returns else 0.0)  # none has ended
        bar.set_postfix(mean_return=f"{returns[-1]:.0f}")
    draw_curve(returns, curve)
    score = float(evaluate(params["actor"]))
    print(f"{iterations * steps * envs:,} steps, evaluation {score:.0f}, learning curve in {curve}")
    return score


if __name__ == "__main__":
    typer.run(main)
