"""Show where the time of one contender goes: what stands in benchmarks/findings.md can be seen again with this.

    python benchmarks/profile_contender.py SUBJECT WORK CONTENDER [--seconds S] [--top N] [--python-only]

py-spy samples a process in which the contender does its work over and over; what sets it up is left out. C functions
are shown among those of Python. Only the calling process is seen, not workers it may have.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import harness
import subjects
from harness import Call, Contender, Ready
from measure_subject import ENVIRONMENT

SAMPLES_PER_SECOND = 500


def find_contender(subject: str, work: str, name: str) -> Contender:
    works = {each.name: each for each in subjects.works_of(subject)}
    if work not in works:
        raise ValueError(f"{subject} has no work {work!r}; there are {', '.join(works)}")
    contenders = {each.name: each for each in works[work].contenders}
    if name not in contenders:
        raise ValueError(f"{subject}, {work} has no contender {name!r}; there are {', '.join(contenders)}")
    return contenders[name]


# -- the process that works ----------------------------------------------------------------------------


def call_under_profile(call: Call) -> float:
    """Seconds that a call takes. Samples count only where this function is on the stack."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def time_of_a_call(contender: Contender, seconds: float) -> float:
    """Do the work of a contender for so long; the microseconds that one took, without preparations."""
    calls, spent = 0, 0.0
    with contender.make() as made:
        ready = made if isinstance(made, Ready) else Ready(made)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            with harness.around(ready):
                spent += call_under_profile(ready.call)
            calls += ready.repeats
    return spent / calls * 1e6


# -- what was sampled --------------------------------------------------------------------------------------


def times_by_function(stacks: Iterable[str]) -> tuple[Counter[str], Counter[str]]:
    """Samples in each function itself, and in it and all that it calls, out of the stacks that py-spy wrote."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        functions = [_function(frame) for frame in stack.split(";")]
        starts = [at for at, name in enumerate(functions) if name.startswith(call_under_profile.__name__ + " ")]
        if starts:
            inside = functions[starts[0] :]
            own[inside[-1]] += int(count)
            whole.update(dict.fromkeys(inside, int(count)))
    return own, whole


def _function(frame: str) -> str:
    """A frame without its line, or without its address where it has no name."""
    return re.sub(r":\d+\)$", ")", re.sub(r"^0x[0-9a-f]+ ", "unnamed ", frame))


def table(stacks: Iterable[str], call_us: float, top: int) -> str:
    own, whole = times_by_function(stacks)
    samples = sum(own.values())
    if not samples:
        raise ValueError("no sample fell into the calls: give more --seconds")
    sample_us = call_us / samples
    lines = [f"a call takes {call_us:.2f} us, shared out by {samples} samples", f"{'itself':>10} {'whole':>10}  [us]"]
    for name, count in own.most_common(top):
        lines.append(f"{count * sample_us:10.2f} {whole[name] * sample_us:10.2f}  {name}")
    return "\n".join(lines)


def profile(arguments: argparse.Namespace) -> str:
    """Run this program twice more, by itself for the time of a call and under py-spy for its parts.

    While py-spy looks at a process it stops it: the time of a call would be several times as long.
    """
    sampler = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if sampler is None:
        raise FileNotFoundError(f"py-spy is not installed: {sys.executable} -m pip install py-spy")
    with tempfile.TemporaryDirectory(prefix="unienv-bench-") as folder:
        stacks, timed = Path(folder) / "stacks", Path(folder) / "timed"
        work = [arguments.subject, arguments.work, arguments.contender, "--seconds", str(arguments.seconds)]
        program = [sys.executable, str(Path(__file__).resolve()), *work, "--time-into", str(timed)]
        options = ["--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--output", str(stacks)]
        options += [] if arguments.python_only else ["--native"]
        _run(program, folder)
        call_us = float(timed.read_text(encoding="utf-8"))
        _run([sampler, "record", *options, "--", *program], folder)
        return table(stacks.read_text(encoding="utf-8").splitlines(), call_us, arguments.top)


def _run(command: Sequence[str], folder: str) -> None:
    """Run a command in a folder, where libraries may leave their logs; what it writes is shown only if it fails."""
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subject", choices=subjects.SUBJECTS)
    parser.add_argument("work")
    parser.add_argument("contender")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the work is done")
    parser.add_argument("--top", type=int, default=25, help="how many functions are shown")
    parser.add_argument("--python-only", action="store_true", help="C functions count as the Python that calls them")
    parser.add_argument("--time-into", type=Path, help=argparse.SUPPRESS)  # given to the process that works
    arguments = parser.parse_args()
    contender = find_contender(arguments.subject, arguments.work, arguments.contender)
    if arguments.time_into is None:
        print(profile(arguments))
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    arguments.time_into.write_text(str(time_of_a_call(contender, arguments.seconds)), encoding="utf-8")


if __name__ == "__main__":
    main()
