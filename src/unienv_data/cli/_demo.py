"""The demonstration: record environments, open the recording, and sample batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checking import InfoReport, ProgressCallback, info
from ..checking.reading import unwatched
from ._bench import BenchReport, bench
from ._collect import CollectReport, Plan

ENV_ID, STEPS, NUM_ENVS, WORKERS, WINDOW = "CartPole-v1", 50_000, 8, 2, 16
#: The duration of each measurement.
SECONDS = 1.0


@dataclass(frozen=True)
class DemoReport:
    """The reports of recording, of the folder, and of sampling."""

    collected: CollectReport
    info: InfoReport
    bench: BenchReport


def demo_plan(out: Path, steps: int = STEPS) -> Plan:
    """Return the plan of the demonstration's recording."""
    return Plan(ENV_ID, steps, out, num_envs=NUM_ENVS, workers=WORKERS, seed=0)


def read_back(collected: CollectReport, progress: ProgressCallback = unwatched) -> DemoReport:
    """Open the recording again and sample from it."""
    path = Path(collected.path)
    rates = bench(path, window=WINDOW, seconds=SECONDS, progress=progress)
    return DemoReport(collected, info(path), rates)
