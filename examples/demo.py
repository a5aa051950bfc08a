"""What a row is, and what it costs: describe a transition once, keep a million of them, read batches back.

python examples/demo.py [ROWS]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace
from unienv_interface.space.row_layout import RowLayout
from unienv_interface.space.space_utils import batch_space

BATCH = 256
CHUNK = 10_000


def transition_space() -> DictSpace:
    def floats(*shape: int) -> BoxSpace:
        return BoxSpace(NumpyComputeBackend, -np.inf, np.inf, "float32", shape=shape)

    return DictSpace(
        NumpyComputeBackend,
        {
            "obs": {"joints": floats(17), "target": floats(3)},
            "action": BoxSpace(NumpyComputeBackend, -1.0, 1.0, "float32", shape=(6,)),
            "reward": floats(),
            "terminated": BinarySpace(NumpyComputeBackend, ()),
        },
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    space = transition_space()
    layout = RowLayout(space)
    print("A transition, as a space:")
    for leaf in layout.leaves:
        print(f"  {leaf.name:12} {leaf.space.get_repr(abbreviate=True, include_backend=False)}")
    print(f"as a row: {layout.itemsize} bytes, {count:,} of them take {count * layout.itemsize / 1e6:.0f} MB\n")

    rng = np.random.default_rng(0)
    rng, chunk = batch_space(space, CHUNK).sample(rng)
    rows = layout.empty(count)

    start = time.perf_counter()
    for first in range(0, count, CHUNK):
        stop = min(first + CHUNK, count)
        layout.pack(rows, slice(first, stop), chunk if stop - first == CHUNK else part(chunk, stop - first))
    packed = time.perf_counter() - start

    start = time.perf_counter()
    whole = layout.unpack(rows)
    unpacked = time.perf_counter() - start

    # Ours and the bare gather take turns, so that both find the memory in the same state.
    indices = [rng.integers(0, count, BATCH) for _ in range(4_000)]
    sampled = bare = 0.0
    for ours, theirs in zip(indices[::2], indices[1::2], strict=True):
        start = time.perf_counter()
        batch = layout.gather(rows, ours)
        between = time.perf_counter()
        rows.records.take(theirs)
        sampled, bare = sampled + between - start, bare + time.perf_counter() - between

    first = min(CHUNK, count)
    matches = all(np.array_equal(whole[key][:first], chunk[key][:first]) for key in ("action", "reward", "terminated"))
    print(f"packed               {count / packed / 1e6:8.2f} million rows/s")
    print(f"unpacked, all        {unpacked * 1e6:8.1f} us, since columns are views of the rows")
    print(f"random batches       {len(indices) / 2 * BATCH / sampled / 1e6:8.2f} million rows/s, {BATCH} at a time")
    print(f"against bare NumPy   {sampled / bare:8.2f} times the time of gathering the same rows and nothing else")
    print(f"same as written      {'yes' if matches else 'NO':>8}")
    print(f"\na batch: {shapes(batch)}")
    print("\nNext: `make test`, and README.md for what is here and what is to come.")
    if not matches:
        sys.exit(1)


def shapes(batch: dict) -> dict:
    return {key: shapes(value) if isinstance(value, dict) else value.shape for key, value in batch.items()}


def part(batch: dict, count: int) -> dict:
    return {key: part(value, count) if isinstance(value, dict) else value[:count] for key, value in batch.items()}


if __name__ == "__main__":
    main()
