"""Measure one subject, in this process: what `run.py` starts for each.

    python benchmarks/measure_subject.py SUBJECT --results FILE [--quick] [--work NAME] [--seconds S] [--rounds N]

A process of its own keeps the threads, the allocator and the imports of one subject out of the next. Results are
written after every work, so that a crash costs only the work it happens in.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import bars
import harness
import record
import subjects
import text_tables

# Set before a library is imported that reads them; what is set already counts.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # batches this small are read slower by several threads, the peers' above all
    "JAX_PLATFORMS": "cpu",  # where the others are
    "RL_LOGGING_LEVEL": "ERROR",
    "TQDM_DISABLE": "1",
}

FULL_SECONDS, QUICK_SECONDS = 0.2, 0.04


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", choices=subjects.SUBJECTS)
    parser.add_argument("--results", type=Path, required=True, help="where the results go")
    parser.add_argument("--quick", action="store_true", help="only what a bar names, and shorter rounds")
    parser.add_argument("--work", action="append", help="only this one; may be given several times")
    parser.add_argument("--rounds", type=int, default=harness.LEAST_ROUNDS)
    parser.add_argument("--seconds", type=float, help="what a round should take")
    arguments = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else FULL_SECONDS)
    named = bars.contenders_named(bars.load_bars()) if arguments.quick else None
    print(f"\n{arguments.subject}: {subjects.title_of(arguments.subject)}\n{text_tables.header()}", flush=True)
    results = []
    for work in subjects.works_of(arguments.subject):
        only = None if named is None else named.get((work.subject, work.name), [])
        if only == [] or (arguments.work and work.name not in arguments.work):
            continue
        results.append(harness.measure(work, arguments.rounds, seconds, only))
        print(text_tables.table(results[-1]), flush=True)
        record.save_results(arguments.results, results)


if __name__ == "__main__":
    main()
