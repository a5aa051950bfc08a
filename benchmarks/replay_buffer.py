"""What a replay buffer costs, as ratios to the bare NumPy operation in the same run, and beside other libraries.

    python benchmarks/replay_buffer.py

The samples are the transitions of `benchmarks/rows.py`. Ours and the other are measured in turn, the median of the
ratios of neighbouring rounds counts, and the exit status is 1 where a bar is missed. TorchRL and cpprb are compared
where they are installed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rows import BATCH, ROWS, compare, seconds_per_call, transition_space

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace

Work = Callable[[int], object]
NUMPY = NumpyComputeBackend


class Report:
    """Prints one line a measurement and counts the bars that are missed."""

    def __init__(self) -> None:
        self.missed = 0
        print(f"{'work':58} {'ours':>11} {'other':>11} {'ratio':>7}  bar")

    def ratio(self, name: str, ours: Work, other: Work, calls: int, at_most: float) -> None:
        """Ours takes at most so many times as long as the other."""
        mine, theirs, ratio = compare(ours, other, calls)
        self._line(name, f"{mine:8.2f} us", f"{theirs:8.2f} us", ratio, ratio <= at_most, f"at most {at_most:g}")

    def faster(self, name: str, ours: Work, other: Work | None, calls: int, at_least: float) -> None:
        """The other takes at least so many times as long as ours; `other` is None where it is not installed."""
        if other is None:
            print(f"{name:58} {'':11} {'missing':>11}")
            return
        mine, theirs, ratio = compare(ours, other, calls)
        self._line(
            name, f"{mine:8.2f} us", f"{theirs:8.2f} us", 1 / ratio, 1 / ratio >= at_least, f"at least {at_least:g}"
        )

    def figure(self, name: str, found: float, unit: str, at_most: float) -> None:
        self._line(name, f"{found:8.2f} {unit}", "", None, found <= at_most, f"at most {at_most:g} {unit}")

    def share(self, name: str, found: float, at_least: float) -> None:
        self._line(name, f"{100 * found:8.0f} % ", "", None, found >= at_least, f"at least {100 * at_least:g} %")

    def _line(self, name: str, mine: str, other: str, ratio: float | None, ok: bool, bar: str) -> None:
        self.missed += not ok
        shown = "" if ratio is None else f"{ratio:7.2f}"
        print(f"{name:58} {mine:>11} {other:>11} {shown:>7}  {bar}: {'ok' if ok else 'MISSED'}", flush=True)


def transitions(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"obs": (17,), "next_obs": (17,), "action": (6,), "reward": ()}
    batch = {name: rng.random((count, *shape), dtype=np.float32) for name, shape in shapes.items()}
    return {**batch, **{name: rng.random(count) < 0.01 for name in ("terminated", "truncated")}}


def filled(count: int = ROWS, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.create(transition_space(), **{"capacity": count, **options})
    for start in range(0, count, 10_000):
        buffer.extend(transitions(min(10_000, count - start), start))
    return buffer


def sampling(report: Report, folder: Path) -> None:
    rng = np.random.default_rng(0)
    indices = [rng.integers(0, ROWS, BATCH) for _ in range(2048)]
    for place, options in (("in memory", {}), ("on disk, warm", {"cache_path": folder / "sampling"})):
        with filled(**options) as buffer:
            _sampling(report, f"get_at of {BATCH} out of {ROWS:,}, {place}, against take", buffer, indices)
    shutil.rmtree(folder / "sampling")


def _sampling(report: Report, name: str, buffer: ReplayBuffer, indices: list[np.ndarray]) -> None:
    records = buffer.storage._memory.rows.records  # type: ignore[attr-defined]

    def get(call: int) -> Any:
        return buffer.get_at(indices[call % 2048])

    def take(call: int) -> Any:
        return records.take(indices[call % 2048])

    report.ratio(name, get, take, 500, 1.5)
    buffer.extend(transitions(1000))
    report.ratio("the same once the ring has wrapped", get, take, 500, 1.8)


def writing(report: Report) -> None:
    batch = transitions(BATCH)
    one = {name: column[0] for name, column in batch.items()}
    columns = {name: np.zeros((ROWS, *column.shape[1:]), column.dtype) for name, column in batch.items()}

    def copy_columns(call: int) -> None:
        start = call * BATCH % (ROWS - BATCH)
        for name, column in columns.items():
            column[start : start + BATCH] = batch[name]

    with filled(maintain_segment_metadata=True) as buffer:
        report.ratio(
            f"extend of {BATCH}, against bare column copies", lambda _: buffer.extend(batch), copy_columns, 300, 3.0
        )
    small = ReplayBuffer.create(transition_space(), capacity=1000)
    large = filled(10_000_000 if _free_gigabytes() > 8 else ROWS, maintain_segment_metadata=True)
    for buffer in (small, large):
        buffer.append(one)
    report.figure("append of one", seconds_per_call(lambda _: small.append(one), 30_000) * 1e6, "us", 10)
    report.ratio(
        f"append at {large.capacity:,}, full, with segments, against 1,000",
        lambda _: large.append(one),
        lambda _: small.append(one),
        3000,
        1.3,
    )


def _free_gigabytes() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 2**20


def images(report: Report) -> None:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer.create(BoxSpace(NUMPY, 0, 255, "uint8", shape=(84, 84, 4)), capacity=8192)
    for _ in range(8):
        buffer.extend(rng.integers(0, 256, (1024, 84, 84, 4), np.uint8))
    (block,) = buffer.storage._memory.rows.blocks.values()  # type: ignore[attr-defined]
    flat, out = block.reshape(8192, -1), np.empty((BATCH, 84 * 84 * 4), np.uint8)
    indices = [rng.integers(0, 8192, BATCH) for _ in range(64)]

    def copy(call: int) -> np.ndarray:
        fresh = np.empty_like(out)
        for row, index in enumerate(indices[call % 64].tolist()):
            fresh[row] = flat[index]
        return fresh

    report.ratio(
        f"get_at of {BATCH} images 84x84x4, against memcpy of the bytes",
        lambda call: buffer.get_at(indices[call % 64]),
        copy,
        20,
        1.2,
    )


def loading(report: Report, folder: Path) -> None:
    """A buffer of 10 GB, all of it holes."""
    space = transition_space()
    row = ReplayBuffer.create(space, capacity=1).storage.row_nbytes
    buffer = ReplayBuffer.create(space, capacity=10 * 10**9 // row, cache_path=folder / "large")
    buffer.extend(transitions(1000))
    buffer.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(5):
        start = time.perf_counter()
        loaded = ReplayBuffer.load_from(folder / "large", backend=NUMPY)
        loaded.get_at(0)
        times.append(time.perf_counter() - start)
        loaded.close()
    report.figure("load_from of 10 GB", statistics.median(times) * 1e3, "ms", 50)
    report.figure("its memory", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "MB", 50)
    asking = seconds_per_call(lambda _: ReplayBuffer.get_length_from_path(folder / "large"), 200) * 1e6
    report.figure("get_length_from_path", asking, "us", 1000)
    shutil.rmtree(folder / "large")


def beside_a_writer(report: Report, folder: Path) -> None:
    """The rate of a reader while a writer in another process appends as fast as it can.

    The same beside a writer of another buffer tells what the machine itself takes: cores and caches are shared too.
    """
    paths = [folder / "live", folder / "other"]
    for path in paths:
        filled(200_000, cache_path=path).close()
    rng = np.random.default_rng(0)
    indices = [rng.integers(0, 200_000, BATCH) for _ in range(512)]
    with ReplayBuffer.load_from(paths[0], backend=NUMPY) as reader:

        def rate() -> float:
            rounds = (seconds_per_call(lambda call: reader.get_at(indices[call % 512]), 2000) for _ in range(9))
            return 1 / statistics.median(rounds)

        rate()
        alone = rate()
        beside = [_while_writing(path, rate) for path in paths]
    report.share("a reader's rate beside a busy writer, of its rate alone", beside[0] / alone, 0.7)
    report.share("  of its rate beside a busy writer of another buffer", beside[0] / beside[1], 0.7)


def _while_writing(path: Path, measure: Callable[[], float]) -> float:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    writer = context.Process(target=_append_until, args=(path, stop), daemon=True)
    with ReplayBuffer.load_from(path, backend=NUMPY) as watched:
        before = watched.stats().written
        writer.start()
        while watched.stats().written == before:
            time.sleep(0.01)
    found = measure()
    stop.set()
    writer.join()
    return found


def _append_until(path: Path, stop: Any) -> None:
    one = {name: column[0] for name, column in transitions(1).items()}
    with ReplayBuffer.load_from(path, backend=NUMPY, read_only=False) as buffer:
        while not stop.is_set():
            for _ in range(100):
                buffer.append(one)


def others(report: Report) -> None:
    """TorchRL and cpprb, where they are installed."""
    one = {name: column[0] for name, column in transitions(1).items()}
    rng = np.random.default_rng(0)
    indices = [rng.integers(0, ROWS, BATCH) for _ in range(512)]
    buffer = filled()
    sample, add = (lambda call: buffer.get_at(indices[call % 512])), (lambda _: buffer.append(one))
    torchrl, cpprb = _torchrl(), _cpprb()
    for name, other, get_bar, add_bar in (("TorchRL", torchrl, 8, 20), ("cpprb", cpprb, 2.5, 4)):
        other_sample, other_add = other or (None, None)
        report.faster(f"get_at of {BATCH}, against {name}'s sample", sample, other_sample, 200, get_bar)
        report.faster(f"append of one, against {name}'s add", add, other_add, 500, add_bar)
    if torchrl is not None:
        from unienv_interface.backends.pytorch import PyTorchComputeBackend

        tensors = ReplayBuffer.create(transition_space(PyTorchComputeBackend), capacity=ROWS)
        batch = {name: PyTorchComputeBackend.from_numpy(column) for name, column in transitions(ROWS).items()}
        tensors.extend(batch)
        name = f"get_at of {BATCH} with PyTorch, against TorchRL's sample"
        report.faster(name, lambda call: tensors.get_at(indices[call % 512]), torchrl[0], 200, 6)


def _torchrl() -> tuple[Work, Work] | None:
    try:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage
        from torchrl.data import ReplayBuffer as TorchRLBuffer
    except ImportError:
        return None
    buffer = TorchRLBuffer(storage=LazyTensorStorage(ROWS), batch_size=BATCH)
    data = {name: torch.from_numpy(column) for name, column in transitions(ROWS).items()}
    buffer.extend(TensorDict(data, batch_size=[ROWS]))
    one = TensorDict({name: column[0] for name, column in data.items()}, batch_size=[])
    return (lambda _: buffer.sample()), (lambda _: buffer.add(one))


def _cpprb() -> tuple[Work, Work] | None:
    try:
        from cpprb import ReplayBuffer as CppBuffer
    except ImportError:
        return None
    shapes = {"obs": 17, "next_obs": 17, "action": 6, "reward": 1, "terminated": 1, "truncated": 1}
    buffer = CppBuffer(ROWS, {name: {"shape": size} for name, size in shapes.items()})
    buffer.add(**transitions(ROWS))
    one = {name: column[0] for name, column in transitions(1).items()}
    return (lambda _: buffer.sample(BATCH)), (lambda _: buffer.add(**one))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the buffers on disk go (default: a temporary folder)")
    arguments = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        sampling(report, folder)
        writing(report)
        images(report)
        loading(report, folder)
        beside_a_writer(report, folder)
        others(report)
    return int(report.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
