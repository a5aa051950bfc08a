"""PPO on CartPole-v1: rollouts of eight environments, generalized advantages, in PyTorch.

`python examples/ppo.py` reaches a return of 475 of 500 in about two minutes on one core. `rollout` resets slots whose
episodes end and keeps their last observation, so that `gae` bootstraps at truncations.
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
from unienv_data import Rollout, gae, rollout
from unienv_interface.wrapper import AutoresetWrapper

ID, GOAL = "CartPole-v1", 475
GAMMA, LAMBDA, LEARNING_RATE, CLIP, ENTROPY = 0.98, 0.9, 1e-3, 0.2, 0.002
EPOCHS, MINIBATCH = 10, 128


class Agent(nn.Module):
    """A policy and a value, each with a network of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self._network(2, 0.01), self._network(1, 1.0)

    def _network(self, outputs: int, last_scale: float) -> nn.Module:
        layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
        for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, last_scale), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    def value(self, observation: torch.Tensor) -> torch.Tensor:
        return self.critic(observation)[..., 0]

    def distribution(self, observation: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.actor(observation))

    @torch.no_grad()
    def act(self, observation: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """An action, and what the update wants to know of this moment."""
        distribution = self.distribution(observation)
        action = distribution.sample()
        return action, {"logp": distribution.log_prob(action), "value": self.value(observation)}


def update(agent: Agent, optimizer: torch.optim.Optimizer, seen: Rollout, generator: torch.Generator) -> None:
    """Some epochs over one rollout."""
    with torch.no_grad():
        next_value = agent.value(seen.next_obs)
    advantages, returns = gae(
        seen.reward, seen.extras["value"], seen.terminated, seen.truncated, next_value, GAMMA, LAMBDA
    )
    columns = [seen.obs, seen.action, seen.extras["logp"], advantages, returns]
    columns = [column.reshape(-1, *column.shape[2:]) for column in columns]  # steps and environments as one axis
    for _ in range(EPOCHS):
        for index in torch.randperm(len(columns[0]), generator=generator).split(MINIBATCH):
            obs, action, old_logp, advantage, wanted = (column[index] for column in columns)
            distribution = agent.distribution(obs)
            ratio = (distribution.log_prob(action) - old_logp).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            error = nn.functional.mse_loss(agent.value(obs), wanted)
            loss = 0.5 * error - gain.mean() - ENTROPY * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


@torch.no_grad()
def evaluate(agent: Agent, episodes: int, seed: int) -> float:
    """The mean return of the most probable actions, an episode in each of so many environments."""
    env = AutoresetWrapper(unienv.make(ID, num_envs=episodes, backend="torch", seed=seed), mode="same_step")
    observation = env.reset(seed=seed)[1]
    goes_on, total = torch.ones(episodes, dtype=torch.bool), torch.zeros(episodes)
    while goes_on.any():
        observation, reward, terminated, truncated, _ = env.step(agent.actor(observation).argmax(1))
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
    steps: Annotated[int, typer.Option(help="transitions in all")] = 100_000,
    envs: Annotated[int, typer.Option(help="environments side by side")] = 8,
    length: Annotated[int, typer.Option(help="steps of each environment in a rollout")] = 64,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    curve: Annotated[Path, typer.Option(help="where the learning curve goes")] = Path("ppo.png"),
) -> float:
    """Train, draw the learning curve and evaluate the best policy."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env = unienv.make(ID, num_envs=envs, backend="torch", seed=seed)
    agent = Agent()
    best, optimizer = copy.deepcopy(agent), torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    points, highest = [(0, evaluate(agent, 10, seed + 1))], 0.0
    seen: Any = None
    iterations = max(1, steps // (envs * length))
    with tqdm(total=iterations * envs * length, unit=" steps") as bar:
        for iteration in range(1, iterations + 1):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - (iteration - 1) / iterations)
            seen = rollout(env, agent.act, length, after=seen, seed=seed if seen is None else None)
            update(agent, optimizer, seen, generator)
            bar.update(envs * length)
            if iteration % 8 == 0 or iteration == iterations:
                points.append((iteration * envs * length, evaluate(agent, 10, seed + 1)))
                bar.set_postfix(mean_return=f"{points[-1][1]:.0f}")
                if points[-1][1] >= highest:
                    best, highest = copy.deepcopy(agent), points[-1][1]
    env.close()
    draw_curve(points, 0, 500, curve)
    score = evaluate(best, 50, seed + 1000)
    print(f"{points[-1][0]:,} steps, evaluation {score:.0f}, learning curve in {curve}")
    return score


if __name__ == "__main__":
    typer.run(main)
