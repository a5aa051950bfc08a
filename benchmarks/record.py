"""A run of the comparison as a JSON file: a line for each contender, and what it ran on.

Git keeps the medians alone (`MEDIANS`); the last whole run lies beside it, where git does not look (`LATEST`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from harness import Outcome, Result

FORMAT = 1
LATEST = Path(__file__).parent / "out" / "latest.json"
MEDIANS = Path(__file__).parent / "results" / "latest.json"
DISTRIBUTIONS = (
    "unienv",
    "numpy",
    "torch",
    "tensordict",
    "jax",
    "gymnasium",
    "mujoco",
    "h5py",
    "minari",
    "torchrl",
    "cpprb",
    "stable-baselines3",
    "tianshou",
    "flashbax",
)


@dataclass
class Run:
    """What was measured, where and when. `quick` is the form in which only what a bar names is measured."""

    quick: bool
    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    results: list[Result] = field(default_factory=list)

    def of(self, subject: str, work: str) -> Result | None:
        return next((found for found in self.results if (found.subject, found.name) == (subject, work)), None)


def new_run(*, quick: bool) -> Run:
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return Run(quick, date, _machine(), _versions())


def _machine() -> dict[str, Any]:
    """What figures depend on, and nothing that would tell whose machine it is."""
    return {
        "cpu": _first_in("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _first_in(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def _versions() -> dict[str, str]:
    """Of the libraries that take part; one that is missing is said to be."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def medians_of(run: Run) -> Run:
    """The run with the median of each contender in the place of its rounds. Ratios are then those of medians."""

    def shortened(outcome: Outcome) -> Outcome:
        return replace(outcome, calls=0, rounds=[outcome.median] if outcome.is_measured else [])

    results = [replace(result, outcomes=[shortened(each) for each in result.outcomes]) for result in run.results]
    return replace(run, results=results)


# -- files -------------------------------------------------------------------------------------------------


def save_results(path: Path, results: Iterable[Result]) -> None:
    """Write results, in the place of what is there all at once."""
    _replace(path, f"[{_lines(results)}]\n")


def load_results(path: Path) -> list[Result]:
    return [_result(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def save_run(path: Path, run: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"format": FORMAT, **{key: value for key, value in vars(run).items() if key != "results"}}
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    _replace(path, "{" + ",\n".join([*fields, f'"results": [{_lines(run.results)}]']) + "}\n")


def load_run(path: Path) -> Run:
    entries = json.loads(path.read_text(encoding="utf-8"))
    if entries.get("format") != FORMAT:
        raise ValueError(f"{path} has format {entries.get('format')!r}, this reads {FORMAT}: run the comparison again")
    results = [_result(entry) for entry in entries["results"]]
    return Run(entries["quick"], entries["date"], entries["machine"], entries["versions"], results)


def _result(entry: dict[str, Any]) -> Result:
    return Result(**{**entry, "outcomes": [Outcome(**outcome) for outcome in entry["outcomes"]]})


def _lines(results: Iterable[Result]) -> str:
    """The JSON of results: a line for each contender, so that a diff shows which have changed."""
    entries = []
    for result in results:
        outcomes = ",\n  ".join(json.dumps(_entry(outcome)) for outcome in result.outcomes)
        head = json.dumps({"subject": result.subject, "name": result.name, "unit": result.unit})
        entries.append(f'\n {head[:-1]}, "outcomes": [\n  {outcomes}\n ]}}')
    return ",".join(entries)


def _entry(outcome: Outcome) -> dict[str, Any]:
    """An outcome without what is as usual. Six digits of every figure: more would be noise."""
    usual = asdict(Outcome(outcome.name, outcome.kind, outcome.setting))
    entry = {key: value for key, value in asdict(outcome).items() if key in ("name", "kind") or value != usual[key]}
    rounds = [float(f"{figure:.6g}") for figure in outcome.rounds]
    return {**entry, "setting": outcome.setting, "rounds": rounds}


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
