"""Compare UniEnv with its peers and with the floor, side by side.

    python benchmarks/run.py [--quick] [--only SUBJECT ...] [--out FILE]

Each subject runs in a process of its own and prints its tables. A run of everything goes to `out/latest.json`, its
medians to `results/latest.json`, which git keeps. The quick form measures what `bars.toml` names, in shorter rounds. It
takes under three minutes on two cores that are otherwise idle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import bars
import record
import subjects
from harness import Result, blank_outcomes
from record import Run

HERE = Path(__file__).parent
SUBJECT_SECONDS = 3600.0  # after which a subject is taken to hang


def compare(names: Sequence[str], *, quick: bool) -> Run:
    """Measure subjects one after the other."""
    run = record.new_run(quick=quick)
    machine = run.machine
    print(f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {machine['threads']} thread(s)")
    print(", ".join(f"{name} {version}" for name, version in run.versions.items()))
    print(
        "Median and quartiles of the rounds; `ours is`: how many times as good ours, the first line, is as that line."
    )
    for name in names:
        run.results += _measured(name, quick=quick)
    return run


def _measured(subject: str, *, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="unienv-bench-") as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, str(HERE / "measure_subject.py"), subject, "--results", str(path)]
        how = _ended([*command, "--quick"] if quick else command, Path(folder))
        results = record.load_results(path) if path.exists() else []
    return results if how is None else [*results, *_cut_off(subject, results, how, quick=quick)]


def _ended(command: Sequence[str], folder: Path) -> str | None:
    """Run a command in a folder, where libraries may leave their logs; says how it ended where that was not well.

    What is written to stderr is shown only then: simulators fill pages with warnings.
    """
    with (folder / "stderr").open("w+b") as stderr:
        try:
            status = subprocess.run(command, check=False, timeout=SUBJECT_SECONDS, cwd=folder, stderr=stderr).returncode
        except subprocess.TimeoutExpired:
            return f"cannot: no end after {SUBJECT_SECONDS:g} s"
        if status == 0:
            return None
        stderr.seek(0)
        print(stderr.read().decode(errors="replace")[-3000:], file=sys.stderr)
    return f"cannot: its process ended with status {status}"


def _cut_off(subject: str, results: Sequence[Result], how: str, *, quick: bool) -> list[Result]:
    """What was still to be measured when the process of a subject ended, with how it did."""
    done = {result.name for result in results}
    named = bars.contenders_named(bars.load_bars()) if quick else None
    print(f"{subject}: {how}", flush=True)
    return [
        Result(work.subject, work.name, work.unit, blank_outcomes(work, how))
        for work in subjects.works_of(subject)
        if work.name not in done and (named is None or (work.subject, work.name) in named)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what a bar names, and shorter rounds")
    parser.add_argument("--only", nargs="+", choices=subjects.SUBJECTS, metavar="SUBJECT", help="only these subjects")
    parser.add_argument(
        "--out", type=Path, help="where the run goes (default: out/latest.json, if everything is measured)"
    )
    arguments = parser.parse_args()
    run = compare(arguments.only or subjects.SUBJECTS, quick=arguments.quick)
    is_whole = not (arguments.quick or arguments.only)
    path = arguments.out or (record.LATEST if is_whole else None)
    if path is not None:
        record.save_run(path, run)
        print(f"\nwritten to {path}")
    if path == record.LATEST:
        record.save_run(record.MEDIANS, record.medians_of(run))
        print(f"its medians to {record.MEDIANS}")


if __name__ == "__main__":
    main()
