"""Imitation learning from cameras: record demonstrations, inspect them, train a policy and evaluate it, in PyTorch.

`python examples/imitation.py` records 80 demonstrations and trains for 800 updates; `--lerobot OUT` also exports them.

An arm moves over a table and has to reach a red disc. An observation has the arm's position, an image from above and an
image from the wrist. The demonstrations come from a scripted expert; the policy maps two observations to 16 actions.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unienv_data import (
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    StepSampler,
    Video,
    WindowedBatch,
    check,
    column_stats,
    export_lerobot,
    split,
    transition_space,
)
from unienv_interface import Env
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace, DictSpace
from unienv_interface.transformations import NormalizeTransformation

NUMPY = NumpyComputeBackend
HEIGHT, WIDTH, RATE = 48, 64, 20
OBSERVATIONS, ACTIONS, EXECUTED = 2, 16, 8
WINDOWS = {"obs": range(1 - OBSERVATIONS, 1), "action": range(ACTIONS)}
CAMERAS = dict.fromkeys(["obs/top", "obs/wrist"], Video(fps=RATE, crf=20))


class Reach(Env):
    """A point on the unit square that has to come within 0.06 of a disc in 60 steps; actions are velocities."""

    def __init__(self, seed: int = 0) -> None:
        self.backend = NUMPY
        self.action_space = BoxSpace(NUMPY, -1.0, 1.0, "float32", shape=(2,))
        camera = BoxSpace(NUMPY, 0, 255, "uint8", shape=(HEIGHT, WIDTH, 3))
        state = BoxSpace(NUMPY, 0.0, 1.0, "float32", shape=(2,))
        self.observation_space = DictSpace(NUMPY, {"state": state, "top": camera, "wrist": camera})
        self._rng = np.random.default_rng(seed)
        rows, columns = np.mgrid[:HEIGHT, :WIDTH]
        self._grid = np.stack([(columns + 0.5) / WIDTH, (rows + 0.5) / HEIGHT], -1)
        self._table = (90 + 20 * np.sin(12 * self._grid[..., :1]) * np.cos(9 * self._grid[..., 1:])) * [1.0, 0.9, 0.7]

    def reset(self, *, mask: Any = None, seed: int | None = None, **kwargs: Any) -> tuple[None, Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.arm, self.disc = self._rng.uniform(0.1, 0.9, (2, 2))
        self.steps = 0
        return None, self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.arm = np.clip(self.arm + 0.04 * np.clip(action, -1, 1), 0, 1)
        self.steps += 1
        distance = float(np.linalg.norm(self.arm - self.disc))
        return self._observation(), -distance, distance < 0.06, self.steps >= 60, {}

    def render(self) -> np.ndarray:
        return self._picture(self._grid)

    def _observation(self) -> dict[str, np.ndarray]:
        return {
            "state": self.arm.astype(np.float32),
            "top": self._picture(self._grid),
            "wrist": self._picture(self.arm + (self._grid - 0.5) * 0.5),
        }

    def _picture(self, places: np.ndarray) -> np.ndarray:
        """What a camera sees whose pixels look at these places of the table."""
        image = self._table.copy()
        for place, radius, colour in ((self.disc, 0.08, (220, 30, 30)), (self.arm, 0.04, (40, 60, 220))):
            image[np.linalg.norm(places - place, axis=-1) < radius] = colour
        noise = self._rng.integers(-4, 5, image.shape)
        return np.clip(image + noise, 0, 255).astype(np.uint8)


def expert(env: Reach, rng: np.random.Generator) -> np.ndarray:
    """Towards the disc, with the tremor of a hand."""
    return np.clip((env.disc - env.arm) * 4 + rng.normal(0, 0.15, 2), -1, 1).astype(np.float32)


def record(folder: Path, demonstrations: int) -> None:
    """Record demonstrations, the cameras as video; those that take too long are discarded."""
    env, rng, kept = Reach(seed=1), np.random.default_rng(2), 0
    space = transition_space(env, next_obs=False, timestamp=True)
    ticks = itertools.count()
    with ReplayBuffer.create(space, cache_path=folder, columns=CAMERAS, keep_episodes=True) as buffer:
        recorder = ReplayBufferCollectionWrapper(env, buffer, clock=lambda: next(ticks) / RATE)
        while kept < demonstrations:
            recorder.reset()
            ended = False
            while not ended:
                _, _, terminated, truncated, _ = recorder.step(expert(env, rng))
                ended = terminated or truncated
                if env.steps > 35 and not ended:
                    recorder.discard_episode()
                    break
            kept += terminated


class Policy(nn.Module):
    """From two observations, with both cameras, to 16 actions."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(
            nn.AvgPool2d(2),
            nn.Conv2d(6 * OBSERVATIONS, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (HEIGHT // 8) * (WIDTH // 8), 128),
            nn.ReLU(),
        )
        self.act = nn.Sequential(nn.Linear(128 + 2 * OBSERVATIONS, 128), nn.ReLU(), nn.Linear(128, ACTIONS * 2))

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        images = torch.cat([obs["top"], obs["wrist"]], dim=-1).float() / 255 - 0.5  # (B, 2, H, W, 6)
        images = images.permute(0, 1, 4, 2, 3).flatten(1, 2)
        seen = self.see(images)
        return self.act(torch.cat([seen, obs["state"].flatten(1) - 0.5], dim=1)).view(-1, ACTIONS, 2)


def train(folder: Path, updates: int, batch: int) -> tuple[Policy, NormalizeTransformation, BoxSpace]:
    """Train on windows of two observations and 16 actions; actions beyond the end of an episode do not count."""
    torch.manual_seed(0)
    with ReplayBuffer.load_from(folder, backend=NUMPY, frame_cache="1GB") as buffer:  # each frame is decoded once
        normalize = NormalizeTransformation.from_stats(column_stats(buffer, ["action"])["action"])
        space = buffer.single_space["action"]
        parts = split(buffer.select(["obs", "action"]), {"train": 0.9, "val": 0.1}, seed=0)
        sampler = StepSampler(WindowedBatch(parts["train"], WINDOWS), batch, seed=0)
        policy = Policy()
        optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
        for update in range(updates):
            loss = _loss(policy, normalize, space, *sampler.sample_with_metadata())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if update % 100 == 0:
                print(f"update {update}: loss {loss.item():.3f}")
        held_out = WindowedBatch(parts["val"], WINDOWS).get_at_with_metadata(...)
        with torch.no_grad():
            print(f"loss on held-out demonstrations: {_loss(policy, normalize, space, *held_out).item():.3f}")
        return policy, normalize, space


def _loss(policy: Policy, normalize: NormalizeTransformation, space: BoxSpace, data: Any, metadata: Any) -> Any:
    wanted = torch.from_numpy(normalize.transform(space, data["action"]))
    valid = torch.from_numpy(metadata["slice_valid_mask"]["action"])
    found = policy({name: torch.from_numpy(values) for name, values in data["obs"].items()})
    return ((found - wanted) ** 2).mean(-1)[valid].mean()


def evaluate(policy: Policy, normalize: NormalizeTransformation, space: BoxSpace, episodes: int) -> float:
    """The share of new tasks that the policy solves; it executes 8 of the 16 actions before it looks again."""
    env, solved = Reach(), 0
    back = normalize.direction_inverse(space)
    target = normalize.get_target_space_from_source(space)
    for episode in range(episodes):
        _, obs, _ = env.reset(seed=1000 + episode)
        seen, ended = [obs] * OBSERVATIONS, False
        while not ended:
            stacked = {name: torch.from_numpy(np.stack([o[name] for o in seen])[None]) for name in obs}
            with torch.no_grad():
                actions = back.transform(target, policy(stacked)[0].numpy())
            for action in actions[:EXECUTED]:
                obs, _, terminated, truncated, _ = env.step(action)
                seen = [*seen[1:], obs]
                ended = terminated or truncated
                if ended:
                    solved += terminated
                    break
    return solved / episodes


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to record, by default a temporary folder")
    parser.add_argument("--demonstrations", type=int, default=80)
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--batch", type=int, default=64, help="windows in an update")
    parser.add_argument("--episodes", type=int, default=50, help="how many the policy is evaluated on")
    parser.add_argument("--lerobot", type=Path, help="write the demonstrations as a LeRobot dataset, too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "reach"
        record(folder, options.demonstrations)
        report = check(folder)
        print(f"{report.samples} samples, {len(report.findings)} findings")
        success = evaluate(*train(folder, options.updates, options.batch), options.episodes)
        print(f"success: {success:.0%} of {options.episodes} new tasks")
        if options.lerobot is not None:
            with ReplayBuffer.load_from(folder, backend=NUMPY) as buffer:
                mapping = {
                    "observation.state": "obs/state",
                    "observation.images.top": "obs/top",
                    "observation.images.wrist": "obs/wrist",
                    "action": "action",
                }
                export_lerobot(buffer, options.lerobot, mapping=mapping, fps=RATE, task="reach the red disc")
    return success


if __name__ == "__main__":
    main()
