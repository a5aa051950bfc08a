"""Hindsight experience replay: DDPG on transitions with goals that were reached later, in PyTorch.

`python examples/her.py` reaches 95 of 100 goals in about two minutes on one core. The reward is sparse: -1 until the
goal is reached. `HindsightBatch` replaces the goals of most transitions with goals that their episode reached, and
computes the reward for them. `--k 0` trains without hindsight.
"""

import copy
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.spaces import Box, Dict
from PIL import Image, ImageDraw
from torch import nn
from tqdm import tqdm

import unienv
from unienv_data import HindsightBatch, ReplayBuffer, ReplayBufferCollectionWrapper, StepSampler, transition_space
from unienv_interface import Env
from unienv_interface.wrapper import AutoresetWrapper

GOAL = 0.95
GAMMA, LEARNING_RATE, BATCH, CAPACITY, TAU = 0.95, 1e-3, 256, 100_000, 0.02
LENGTH, SPEED, NEAR, UPDATES = 40, 0.1, 0.05, 40  # of an episode; of a step; what counts as reached; between episodes


def reward_of(achieved: Any, goal: Any) -> Any:
    """0 where a goal is reached, else -1: for arrays of any library."""
    return -1.0 * (((achieved - goal) ** 2).sum(-1) > NEAR**2)


class PointReach(gymnasium.Env):
    """A point in a square, to be moved to another: a goal environment as Gymnasium has them."""

    def __init__(self) -> None:
        place = Box(-1, 1, (2,), np.float32)
        self.observation_space = Dict({"observation": place, "achieved_goal": place, "desired_goal": place})
        self.action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> dict[str, np.ndarray]:
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict]:
        self.place = np.clip(self.place + SPEED * np.clip(action, -1, 1), -1, 1).astype(np.float32)
        self.steps += 1
        return self._observation(), float(reward_of(self.place, self.goal)), False, self.steps >= LENGTH, {}


def make_replay(env: Env, k: float, seed: int) -> tuple[Env, Any]:
    """The environments with a recorder around them, and what draws batches of what it has recorded."""
    buffer = ReplayBuffer.create(transition_space(env), capacity=CAPACITY, lanes=env.batch_size or 1)
    recorder = AutoresetWrapper(ReplayBufferCollectionWrapper(env, buffer), mode="same_step")
    return recorder, StepSampler(HindsightBatch(buffer, "future", k, reward=reward_of, seed=seed), BATCH, seed=seed)


def make_network(inputs: int, *last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), *last)


def seen_by(observation: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([observation["observation"], observation["desired_goal"]], -1)


class Learner:
    """A policy and a critic, each with its target."""

    def __init__(self) -> None:
        self.actor = make_network(4, nn.Linear(64, 2), nn.Tanh())
        self.critic = make_network(6, nn.Linear(64, 1))
        self.targets = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.optimizers = [torch.optim.Adam(net.parameters(), LEARNING_RATE) for net in (self.actor, self.critic)]

    def update(self, batch: dict[str, Any]) -> None:
        """One step of gradient descent of both."""
        state, next_state = seen_by(batch["obs"]), seen_by(batch["next_obs"])
        with torch.no_grad():
            actor, critic = self.targets
            value = critic(torch.cat([next_state, actor(next_state)], -1))[:, 0]
            wanted = (batch["reward"] + GAMMA * value).clamp(-1 / (1 - GAMMA), 0)
        error = self.critic(torch.cat([state, batch["action"]], -1))[:, 0] - wanted
        self._descend(1, error.square().mean())
        action = self.actor(state)
        value = self.critic(torch.cat([state, action], -1))
        self._descend(0, 0.05 * action.square().mean() - value.mean())
        with torch.no_grad():
            for target, net in zip(self.targets, (self.actor, self.critic), strict=True):
                for kept, new in zip(target.parameters(), net.parameters(), strict=True):
                    kept.lerp_(new, TAU)

    def _descend(self, place: int, loss: torch.Tensor) -> None:
        self.optimizers[place].zero_grad()
        loss.backward()
        self.optimizers[place].step()


@torch.no_grad()
def evaluate(actor: nn.Module, episodes: int, seed: int) -> float:
    """The share of goals that are reached at the end of an episode, one in each of so many environments."""
    env = unienv.make(PointReach, num_envs=episodes, backend="torch", seed=seed)
    observation = env.reset(seed=seed)[1]
    for _ in range(LENGTH):
        observation, reward, *_ = env.step(actor(seen_by(observation)))
    env.close()
    return float((reward == 0).float().mean())


def draw_curve(points: list[tuple[int, float]], path: Path) -> None:
    """Shares of goals reached over steps as a picture."""
    image = Image.new("RGB", (680, 440), "white")
    draw = ImageDraw.Draw(image)
    for level in range(0, 101, 20):
        draw.line((60, 400 - 3.5 * level, 660, 400 - 3.5 * level), fill="lightgray")
        draw.text((20, 394 - 3.5 * level), f"{level} %", fill="black")
    last = points[-1][0]
    draw.line([(60 + 600 * step / last, 400 - 350 * share) for step, share in points], fill="navy", width=2)
    draw.text((270, 415), f"goals reached, {last:,} steps", fill="black")
    image.save(path, format="png")


def main(
    episodes: Annotated[int, typer.Option(help="episodes of each environment")] = 80,
    envs: Annotated[int, typer.Option(help="environments side by side")] = 8,
    k: Annotated[float, typer.Option(help="transitions relabelled for each that is not")] = 4,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    curve: Annotated[Path, typer.Option(help="where the learning curve goes")] = Path("her.png"),
) -> float:
    """Train, draw the learning curve and evaluate."""
    torch.manual_seed(seed)
    env, replay = make_replay(unienv.make(PointReach, num_envs=envs, backend="torch", seed=seed), k, seed)
    learner = Learner()
    observation, points = env.reset(seed=seed)[1], [(0, evaluate(learner.actor, 50, seed + 1))]
    for episode in (bar := tqdm(range(1, episodes + 1), unit=" episodes")):
        for _ in range(LENGTH):
            with torch.no_grad():
                action = learner.actor(seen_by(observation)) + 0.2 * torch.randn(envs, 2)
            explores = torch.rand(envs, 1) < 0.3
            observation = env.step(torch.where(explores, 2 * torch.rand(envs, 2) - 1, action.clamp(-1, 1)))[0]
        for _ in range(UPDATES):
            learner.update(replay.sample())
        if episode % 5 == 0 or episode == episodes:
            points.append((episode * LENGTH * envs, evaluate(learner.actor, 50, seed + 1)))
            bar.set_postfix(reached=f"{points[-1][1]:.0%}")
    env.close()
    draw_curve(points, curve)
    score = evaluate(learner.actor, 100, seed + 1000)
    print(f"{points[-1][0]:,} steps, evaluation {score:.0%}, learning curve in {curve}")
    return score


if __name__ == "__main__":
    typer.run(main)
