"""Runs every recipe of `examples/` over several seeds and checks that it learns: `make learn`.

Pictures go to `build/learn`. The same algorithm also runs on Stable-Baselines3's buffer, and both curves stand side by
side; but not behaviour cloning, which reads a recording, nor PPO inside `jit`. Takes about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ("behaviour_cloning", "dqn", "her", "ppo", "ppo_jax", "sac")
ON_SB3 = ("dqn", "her", "ppo", "sac")
PPO_JAX_GOAL = 475  # the others say theirs


def load_recipe(name: str) -> ModuleType:
    """A recipe as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"there is no recipe {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put_on_sb3(recipe: ModuleType) -> None:
    """Have a recipe learn from the buffer of Stable-Baselines3."""
    if hasattr(recipe, "gae"):
        _put_rollouts_on_sb3(recipe)
    else:
        _put_replay_on_sb3(recipe)


def _put_rollouts_on_sb3(recipe: ModuleType) -> None:
    """Have a recipe take its advantages from SB3's RolloutBuffer."""
    import numpy as np
    import torch
    from gymnasium.spaces import Discrete
    from stable_baselines3.common.buffers import RolloutBuffer

    from unienv_data import Advantages

    def gae(reward: Any, value: Any, terminated: Any, truncated: Any, after: Any, gamma: float, lam: float) -> Any:
        steps, envs = reward.shape
        ends = (terminated | truncated).numpy()
        # SB3 adds the value of the last observation to the reward where an episode is truncated
        rewards = (reward + gamma * after * (truncated & ~terminated)).numpy()
        buffer = RolloutBuffer(steps, Discrete(2), Discrete(2), gamma=gamma, gae_lambda=lam, n_envs=envs)
        begins, blank = np.ones(envs, bool), np.zeros((envs, 1))
        for step in range(steps):
            buffer.add(blank, blank, rewards[step], begins, value[step], torch.zeros(envs))
            begins = ends[step]
        buffer.compute_returns_and_advantage(after[-1], begins)
        return Advantages(torch.as_tensor(buffer.advantages), torch.as_tensor(buffer.returns))

    recipe.gae = gae  # type: ignore[attr-defined]


def _put_replay_on_sb3(recipe: ModuleType) -> None:
    """Have a recipe record into, and draw from, SB3's ReplayBuffer or HerReplayBuffer."""
    import gymnasium
    import numpy as np
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common.buffers import ReplayBuffer

    from unienv_interface import Wrapper
    from unienv_interface.wrapper import AutoresetWrapper

    def on_host(value: Any) -> Any:
        """Tensors, alone or in a dict, as NumPy has them."""
        return {key: np.asarray(part) for key, part in value.items()} if isinstance(value, dict) else np.asarray(value)

    class Recorder(Wrapper):
        """Adds each step to the buffer."""

        def __init__(self, env: Any, buffer: ReplayBuffer) -> None:
            super().__init__(env)
            self.buffer = buffer

        def reset(self, *args: Any, mask: Any = None, **kwargs: Any) -> Any:
            context, observation, info = self.env.reset(*args, mask=mask, **kwargs)
            self.observation = observation
            if mask is not None:
                self.observation = self.env.update_observation_post_reset(self.after, observation, mask)
            return context, observation, info

        def step(self, action: Any) -> Any:
            result = self.env.step(action)
            self.after, reward, terminated, truncated, _ = result
            cut = (truncated & ~terminated).tolist()
            arrays = [on_host(value) for value in (self.observation, self.after, action, reward)]
            done = np.asarray(terminated | truncated)
            self.buffer.add(*arrays, done, [{"TimeLimit.truncated": flag} for flag in cut])
            self.observation = self.after
            return result

    class Sampler:
        """Draws batches in the form that the recipe knows."""

        def __init__(self, buffer: ReplayBuffer, action_space: Any) -> None:
            self.buffer, self.is_discrete = buffer, isinstance(action_space, gymnasium.spaces.Discrete)

        def sample(self) -> dict[str, Any]:
            found = self.buffer.sample(recipe.BATCH)
            action = found.actions[:, 0] if self.is_discrete else found.actions
            batch = {"obs": found.observations, "action": action, "next_obs": found.next_observations}
            ended = found.dones[:, 0]
            return {
                **batch,
                "reward": found.rewards[:, 0],
                "terminated": ended > 0,
                "discount": recipe.GAMMA * (1 - ended),
            }

        def sample_with_metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
            return self.sample(), {}

    class Rewards:
        """What a goal buffer asks of the environments."""

        def env_method(self, name: str, achieved: Any, goal: Any, infos: Any, indices: Any) -> list[Any]:
            return [recipe.reward_of(achieved, goal)]

    def make_replay(env: Any, *settings: Any) -> tuple[Any, Sampler]:
        np.random.seed(settings[-1])  # the seed; SB3 draws with the generator that all share
        has_goals = hasattr(recipe, "PointReach")
        with recipe.PointReach() if has_goals else gymnasium.make(recipe.ID) as one:
            spaces = one.observation_space, one.action_space
        options: dict[str, Any] = {"device": "cpu", "n_envs": env.batch_size, "handle_timeout_termination": True}
        if has_goals:
            rewards: Any = Rewards()
            buffer: ReplayBuffer = HerReplayBuffer(
                recipe.CAPACITY, *spaces, env=rewards, n_sampled_goal=int(settings[0]), **options
            )
        else:
            buffer = ReplayBuffer(recipe.CAPACITY, *spaces, **options)
        return AutoresetWrapper(Recorder(env, buffer), mode="same_step"), Sampler(buffer, spaces[1])

    recipe.make_replay = make_replay  # type: ignore[attr-defined]


def side_by_side(ours: Path, theirs: Path, path: Path) -> None:
    """Two curves in one picture, each under the name of its buffer."""
    from PIL import Image, ImageDraw

    with Image.open(ours) as left, Image.open(theirs) as right:
        both = Image.new("RGB", (left.width + right.width, left.height), "white")
        both.paste(left, (0, 0))
        both.paste(right, (left.width, 0))
    draw = ImageDraw.Draw(both)
    draw.text((270, 20), "buffer of UniEnv", fill="black")
    draw.text((left.width + 270, 20), "buffer of Stable-Baselines3", fill="black")
    both.save(path, format="png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES), metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "learn")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    missed = []
    for name in options.recipes:
        for seed in range(options.seeds):
            recipe, curve = load_recipe(name), options.out / f"{name}-{seed}.png"
            score, goal = recipe.main(seed=seed, curve=curve), getattr(recipe, "GOAL", PPO_JAX_GOAL)
            said = f"{name}, seed {seed}: {score:.2f}, wanted {goal}"
            if name in ON_SB3:
                put_on_sb3(recipe)
                theirs = options.out / f"{name}-{seed}-sb3.png"
                said += f"; on the buffer of Stable-Baselines3 {recipe.main(seed=seed, curve=theirs):.2f}"
                side_by_side(curve, theirs, options.out / f"{name}-{seed}-both.png")
            print(said, flush=True)
            if score < goal:
                missed.append(said)
    print("\n".join(["", *("missed: " + said for said in missed)]) if missed else "all of them learn")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
