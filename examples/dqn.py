"""Double DQN on CartPole-v1: recorder, replay buffer and sampler, in PyTorch.

`python examples/dqn.py` reaches a return of 475 of 500 in about two minutes on one core. `--per` draws transitions by
their error, and `--n-step 3` learns from three steps at a time. Each option is a line in `make_replay`.
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
from unienv_data import (
    LinearSchedule,
    NStepBatch,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    StepSampler,
    transition_space,
)
from unienv_interface import Env
from unienv_interface.wrapper import AutoresetWrapper

ID, GOAL = "CartPole-v1", 475
GAMMA, LEARNING_RATE, BATCH, CAPACITY, TAU = 0.99, 5e-4, 128, 100_000, 0.005
FIRST, ROUND, EVALUATE_EVERY = 1000, 128, 10  # steps before learning, steps and updates of a round, rounds


def make_replay(env: Env, per: bool, n_step: int, seed: int) -> tuple[Env, Any]:
    """The environments with a recorder around them, and what draws batches of what it has recorded."""
    buffer = ReplayBuffer.create(transition_space(env), capacity=CAPACITY, lanes=env.batch_size or 1)
    recorder = AutoresetWrapper(ReplayBufferCollectionWrapper(env, buffer), mode="same_step")
    priorities = PrioritizedSampler(beta=LinearSchedule(0.4, 1.0, 20_000), seed=seed) if per else None
    return recorder, StepSampler(NStepBatch(buffer, n_step, GAMMA), BATCH, seed=seed, sampler=priorities)


def make_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def update(network: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, replay: Any) -> None:
    """One step of gradient descent on a batch; where it was drawn by priority, these follow the errors."""
    batch, metadata = replay.sample_with_metadata()
    action = batch["action"].long()[:, None]
    with torch.no_grad():
        best = network(batch["next_obs"]).argmax(1, keepdim=True)
        value = target(batch["next_obs"]).gather(1, best)[:, 0]
        wanted = batch["reward"] + batch["discount"] * value
    error = network(batch["obs"]).gather(1, action)[:, 0] - wanted
    loss = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    if "weight" in metadata:
        loss = loss * metadata["weight"]
        replay.sampler.update_priority_of(metadata["number"], error.detach().abs())
    optimizer.zero_grad()
    loss.mean().backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10)
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(target.parameters(), network.parameters(), strict=True):
            kept.lerp_(new, TAU)


@torch.no_grad()
def evaluate(network: nn.Module, episodes: int, seed: int) -> float:
    """The mean return of the best actions, an episode in each of so many environments."""
    env = AutoresetWrapper(unienv.make(ID, num_envs=episodes, backend="torch", seed=seed), mode="same_step")
    observation = env.reset(seed=seed)[1]
    goes_on, total = torch.ones(episodes, dtype=torch.bool), torch.zeros(episodes)
    while goes_on.any():
        observation, reward, terminated, truncated, _ = env.step(network(observation).argmax(1))
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
    steps: Annotated[int, typer.Option(help="transitions in all")] = 40_000,
    envs: Annotated[int, typer.Option(help="environments side by side")] = 8,
    per: Annotated[bool, typer.Option(help="draw by priority")] = False,
    n_step: Annotated[int, typer.Option(help="steps in a transition")] = 1,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    curve: Annotated[Path, typer.Option(help="where the learning curve goes")] = Path("dqn.png"),
) -> float:
    """Train, draw the learning curve and evaluate the best network."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    env, replay = make_replay(unienv.make(ID, num_envs=envs, backend="torch", seed=seed), per, n_step, seed)
    network = make_network()
    target, best = copy.deepcopy(network), copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
    observation, points, highest = env.reset(seed=seed)[1], [(0, evaluate(network, 10, seed + 1))], 0.0
    with tqdm(total=steps, unit=" steps") as bar:
        for step in range(envs, steps + 1, envs):
            explores = torch.rand(envs, generator=generator) < max(0.05, 1 - step / (0.2 * steps))
            with torch.no_grad():
                greedy = network(observation).argmax(1)
            action = torch.where(explores, torch.randint(0, 2, (envs,), generator=generator), greedy)
            observation = env.step(action)[0]
            bar.update(envs)
            if step % ROUND or step < FIRST:
                continue
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * max(0.1, 1 - step / steps)
            for _ in range(ROUND):
                update(network, target, optimizer, replay)
            if step // ROUND % EVALUATE_EVERY == 0:
                points.append((step, evaluate(network, 10, seed + 1)))
                bar.set_postfix(mean_return=f"{points[-1][1]:.0f}")
                if points[-1][1] >= highest:
                    best, highest = copy.deepcopy(network), points[-1][1]
    env.close()
    points.append((steps, evaluate(network, 10, seed + 1)))
    draw_curve(points, 0, 500, curve)
    score = evaluate(best, 50, seed + 1000)
    print(f"{steps:,} steps, evaluation {score:.0f}, learning curve in {curve}")
    return score


if __name__ == "__main__":
    typer.run(main)
