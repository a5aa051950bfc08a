"""What the row layout costs, as ratios to the bare NumPy operation in the same run.

    python benchmarks/rows.py

The rows are the transitions of the design notes: observation and next observation of 17 floats, an action of 6, a
reward and two flags. Ours and the bare operation are measured in turn, the median of the rounds counts, and the
exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace
from unienv_interface.space.row_layout import RowLayout

ROWS, BATCH, ROUNDS = 1_000_000, 256, 15


def transition_space(backend=NumpyComputeBackend) -> DictSpace:
    def box(*shape: int) -> BoxSpace:
        return BoxSpace(backend, -np.inf, np.inf, "float32", shape=shape)

    flag = BinarySpace(backend, ())
    return DictSpace(
        backend,
        {"obs": box(17), "next_obs": box(17), "action": box(6), "reward": box(), "terminated": flag, "truncated": flag},
    )


def seconds_per_call(work: Callable[[int], object], calls: int) -> float:
    start = time.perf_counter()
    for call in range(calls):
        work(call)
    return (time.perf_counter() - start) / calls


def compare(ours: Callable[[int], object], bare: Callable[[int], object], calls: int) -> tuple[float, float, float]:
    """Median microseconds of each, and the median of the ratios of neighbouring rounds."""
    pairs = [(seconds_per_call(ours, calls), seconds_per_call(bare, calls)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    return mine, theirs, statistics.median(a / b for a, b in pairs)


def main() -> int:
    rng = np.random.default_rng(0)
    layout = RowLayout(transition_space())
    rows = layout.empty(ROWS)
    columns = {leaf.name: column for leaf, column in zip(layout.leaves, rows.columns, strict=True)}
    for column in columns.values():
        column[...] = rng.random(column.shape) < 0.5
    indices = [rng.integers(0, ROWS, BATCH) for _ in range(2048)]
    starts = rng.integers(0, ROWS - BATCH, 2048).tolist()
    batch = {name: np.ascontiguousarray(column[:BATCH]) for name, column in columns.items()}
    one = {name: column[0] for name, column in batch.items()}
    separate = {name: np.ascontiguousarray(column) for name, column in columns.items()}

    def copy_columns(targets: dict[str, np.ndarray], call: int) -> None:
        start = starts[call % 2048]
        for name, column in targets.items():
            column[start : start + BATCH] = batch[name]

    def pack_batch(call: int) -> None:
        layout.pack(rows, slice(starts[call % 2048], starts[call % 2048] + BATCH), batch)

    results = [
        (
            f"gather {BATCH} rows and unpack, against take",
            *compare(
                lambda call: layout.gather(rows, indices[call % 2048]),
                lambda call: rows.records.take(indices[call % 2048]),
                500,
            ),
            "ratio",
            1.3,
        ),
        (
            f"pack {BATCH} rows, against bare copies to the columns",
            *compare(pack_batch, lambda call: copy_columns(columns, call), 500),
            "ratio",
            2.0,
        ),
        (
            f"pack {BATCH} rows, against six separate arrays",
            *compare(pack_batch, lambda call: copy_columns(separate, call), 500),
            "ratio",
            2.0,
        ),
        (
            "pack one row, against one bare column write",
            *compare(
                lambda call: layout.pack(rows, starts[call % 2048], one),
                lambda call: columns["obs"].__setitem__(starts[call % 2048], one["obs"]),
                5000,
            ),
            "us",
            6.0,
        ),
    ]
    print(f"{ROWS:,} rows of {layout.itemsize} bytes, median of {ROUNDS} rounds")
    print(f"{'work':52} {'ours':>9} {'bare':>9} {'ratio':>6}  bar")
    missed = 0
    for name, mine, bare, ratio, unit, bar in results:
        found = ratio if unit == "ratio" else mine
        missed += found > bar
        verdict = "ok" if found <= bar else "MISSED"
        print(f"{name:52} {mine:6.2f} us {bare:6.2f} us {ratio:6.2f}  at most {bar:g} {unit}: {verdict}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
