"""Hold the comparison against the bars.

    python benchmarks/check.py [--from FILE]

Measures what `bars.toml` names (the quick form of `run.py`), or reads a run that was kept. Prints each bar with its
figure, and exits with status 1 where one is missed, also where the reason is known.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import bars
import record
import run
import subjects


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a run that run.py has written")
    arguments = parser.parse_args()
    wanted = bars.load_bars()
    if arguments.source is None:
        named = {bar.subject for bar in wanted}
        measured = run.compare([name for name in subjects.SUBJECTS if name in named], quick=True)
    else:
        measured = record.load_run(arguments.source)
    verdicts = bars.judge(wanted, measured)
    print()
    for verdict in verdicts:
        print(verdict.line())
    counts = Counter(verdict.state for verdict in verdicts)
    print(f"\n{len(verdicts)} bars: {', '.join(f'{count} {state}' for state, count in counts.items())}")
    return 1 if counts["MISSED"] else 0


if __name__ == "__main__":
    sys.exit(main())
