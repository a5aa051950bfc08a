"""Soft actor-critic on Pendulum-v1: recorder, replay buffer and sampler, in PyTorch.

`python examples/sac.py` reaches a return of -250 in about three minutes on one core; random actions have about -1200.
"""

import copy
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from PIL import Image, ImageDraw
from torch import nn
from tqdm import tqdm

import unienv
from unienv_data import ReplayBuffer, ReplayBufferCollectionWrapper, StepSampler, transition_space
from unienv_interface import Env
from unienv_interface.wrapper import AutoresetWrapper

ID, GOAL = "Pendulum-v1", -250
GAMMA, LEARNING_RATE, BATCH, CAPACITY, TAU = 0.98, 1e-3, 256, 100_000, 0.01
FIRST, TARGET_ENTROPY, LARGEST = 500, -1.0, 2.0  # steps before learning; of the policy; action


def make_replay(env: Env, seed: int) -> tuple[Env, Any]:
    """The environments with a recorder around them, and what draws batches of what it has recorded."""
    buffer = ReplayBuffer.create(transition_space(env), capacity=CAPACITY, lanes=env.batch_size or 1)
    recorder = AutoresetWrapper(ReplayBufferCollectionWrapper(env, buffer), mode="same_step")
    return recorder, StepSampler(buffer, BATCH, seed=seed)


def make_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class Learner:
    """A policy, two critics with their targets, and the temperature."""

    def __init__(self) -> None:
        self.actor = make_network(3, 2)
        self.critics = nn.ModuleList(make_network(4, 1) for _ in range(2))
        self.targets = copy.deepcopy(self.critics)
        self.log_temperature = torch.zeros((), requires_grad=True)
        parameters = (self.actor.parameters(), self.critics.parameters(), [self.log_temperature])
        self.optimizers = [torch.optim.Adam(group, LEARNING_RATE) for group in parameters]

    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions from -1 to 1 and the logarithms of their densities."""
        mean, log_std = self.actor(observation).chunk(2, -1)
        distribution = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = distribution.rsample()
        squash = 2 * (0.6931472 - raw - nn.functional.softplus(-2 * raw))  # log(1 - tanh(raw)**2)
        return raw.tanh(), (distribution.log_prob(raw) - squash).sum(-1)

    @staticmethod
    def values(critics: nn.ModuleList, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        both = torch.cat([observation, action], -1)
        return torch.stack([critic(both)[:, 0] for critic in critics])

    def _descend(self, place: int, loss: torch.Tensor) -> None:
        self.optimizers[place].zero_grad()
        loss.backward()
        self.optimizers[place].step()

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        """One step of gradient descent of everything."""
        obs, next_obs, temperature = batch["obs"], batch["next_obs"], self.log_temperature.exp().detach()
        with torch.no_grad():
            next_action, next_logp = self.act(next_obs)
            value = self.values(self.targets, next_obs, next_action).min(0).values - temperature * next_logp
            wanted = batch["reward"] + GAMMA * ~batch["terminated"] * value  # a truncation is no end
        values = self.values(self.critics, obs, batch["action"] / LARGEST)
        self._descend(1, (values - wanted).square().mean())
        action, logp = self.act(obs)
        self._descend(0, (temperature * logp - self.values(self.critics, obs, action).min(0).values).mean())
        self._descend(2, -(self.log_temperature * (logp.detach() + TARGET_ENTROPY)).mean())
        with torch.no_grad():
            for kept, new in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                kept.lerp_(new, TAU)


@torch.no_grad()
def evaluate(actor: nn.Module, episodes: int, seed: int) -> float:
    """The mean return of the mean actions, an episode in each of so many environments."""
    env = AutoresetWrapper(unienv.make(ID, num_envs=episodes, backend="torch", seed=seed), mode="same_step")
    observation = env.reset(seed=seed)[1]
    goes_on, total = torch.ones(episodes, dtype=torch.bool), torch.zeros(episodes)
    while goes_on.any():
        action = LARGEST * actor(observation)[:, :1].tanh()
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward * goes_on
        goes_on &= ~(terminated | truncated)
    env.close()
    return float(total.mean())


def draw_curve(points: list[tuple[int, float]], low: float, high: float, path: Path) -> None:
    """Mean returns over steps as a picture."""
    image = Image.new("RGB", (680, 440), "white")
    draw, scale = ImageDraw.Draw(image), 350 / (high - low)
    for level in (low + (high - low) * fifth / 5 for fifth in range(6)):
        draw.line((60, 400 - scale * (level - low), 660, 400 - scale * (level - low)), fill="lightgray")
        draw.text((20, 394 - scale * (level - low)), f"{level:.0f}", fill="black")
    last = points[-1][0]
    line = [(60 + 600 * step / last, 400 - scale * (min(max(mean, low), high) - low)) for step, mean in points]
    draw.line(line, fill="navy", width=2)
    draw.text((270, 415), f"mean return, {last:,} steps", fill="black")
    image.save(path, format="png")


def main(
    steps: Annotated[int, typer.Option(help="transitions in all")] = 16_000,
    envs: Annotated[int, typer.Option(help="environments side by side")] = 4,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    curve: Annotated[Path, typer.Option(help="where the learning curve goes")] = Path("sac.png"),
) -> float:
    """Train, draw the learning curve and evaluate."""
    torch.manual_seed(seed)
    env, replay = make_replay(unienv.make(ID, num_envs=envs, backend="torch", seed=seed), seed)
    learner = Learner()
    observation, points = env.reset(seed=seed)[1], [(0, evaluate(learner.actor, 10, seed + 1))]
    evaluate_every = max(envs, steps // 20 // envs * envs)
    with tqdm(total=steps, unit=" steps") as bar:
        for step in range(envs, steps + 1, envs):
            with torch.no_grad():
                action = LARGEST * learner.act(observation)[0] if step > FIRST else env.sample_action()
            observation = env.step(action)[0]
            bar.update(envs)
            if step >= FIRST:
                for _ in range(envs // 2 or 1):
                    learner.update(replay.sample())
            if step % evaluate_every == 0:
                points.append((step, evaluate(learner.actor, 10, seed + 1)))
                bar.set_postfix(mean_return=f"{points[-1][1]:.0f}")
    env.close()
    draw_curve(points, -1600, 0, curve)
    score = evaluate(learner.actor, 50, seed + 1000)
    print(f"{steps:,} steps, evaluation {score:.0f}, learning curve in {curve}")
    return score


if __name__ == "__main__":
    typer.run(main)
