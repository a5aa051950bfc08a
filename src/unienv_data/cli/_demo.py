"""The whole path from environments to batches, in one go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checking import InfoReport, ProgressCallback, info
from ..checking.reading import unwatched
from ._bench import BenchReport, bench
from ._collect import CollectReport, Plan

ENV_ID, STEPS, NUM_ENVS, WORKERS, WINDOW = "CartPole-v1", 50_000, 8, 2, 16
#: How long each rate is measured.
SECONDS = 1.0


@dataclass(frozen=True)
class DemoReport:
    """What was recorded, what lies on disk, and how fast it is read back."""

    collected: CollectReport
    info: InfoReport
    bench: BenchReport


def demo_plan(out: Path, steps: int = STEPS) -> Plan:
    """What the demonstration records."""
    return Plan(ENV_ID, steps, out, num_envs=NUM_ENVS, workers=WORKERS, seed=0)


def read_back(collected: CollectReport, progress: ProgressCallback = unwatched) -> DemoReport:
    """Open what was recorded as another program would, and sample from it."""
    path = Path(collected.path)
    rates = bench(path, window=WINDOW, seconds=SECONDS, progress=progress)
    return DemoReport(collected, info(path), rates)
