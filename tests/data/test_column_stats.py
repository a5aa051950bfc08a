"""Statistics of columns are those that NumPy computes of all data at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from unienv_data import ReplayBuffer, check, column_stats
from unienv_data.batches import statistics
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.backends.base import ComputeBackend
from unienv_interface.backends.jax import JaxComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.space import BinarySpace, BoxSpace, DictSpace, TextSpace
from unienv_interface.transformations import NormalizeTransformation

NUMPY = NumpyComputeBackend
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
COUNT = 1500


def data(count: int = COUNT) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": {
            "far": (1e6 + rng.normal(size=(count, 3)) * [0.01, 1, 5]).astype(np.float64),
            "near": rng.normal(size=(count, 2, 2)).astype(np.float32),
            "touch": rng.random((count, 2)) < 0.3,
        },
        "action": rng.integers(-50, 50, (count, 4), np.int32),
        "reward": rng.normal(size=count).astype(np.float32),
        "image": rng.integers(0, 200, (count, 5, 4, 3), np.uint8),
        "word": np.array(["a"] * count, object),
    }


def buffer_of(values: dict[str, Any], backend: ComputeBackend = NUMPY) -> ReplayBuffer:
    floats = {"low": -np.inf, "high": np.inf}
    space = DictSpace(
        backend,
        {
            "obs": DictSpace(
                backend,
                {
                    "far": BoxSpace(backend, **floats, dtype="float64", shape=(3,)),
                    "near": BoxSpace(backend, **floats, dtype="float32", shape=(2, 2)),
                    "touch": BinarySpace(backend, (2,)),
                },
            ),
            "action": BoxSpace(backend, -50, 50, "int32", shape=(4,)),
            "reward": BoxSpace(backend, **floats, dtype="float32", shape=()),
            "image": BoxSpace(backend, 0, 255, "uint8", shape=(5, 4, 3)),
            "word": TextSpace(backend, 3),
        },
    )
    buffer = ReplayBuffer.create(space, capacity=len(values["reward"]))
    buffer.extend(backend.map_fn_over_arrays(values, lambda array: array) if backend is NUMPY else on(backend, values))
    return buffer


def on(backend: ComputeBackend, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: on(backend, child) for key, child in value.items()}
    return value if value.dtype == object else backend.from_numpy(value)


def assert_of(found: statistics.ColumnStatistics, values: np.ndarray, axis: Any = 0, **tolerance: float) -> None:
    exact = values.astype(np.float64)
    keepdims = axis != 0
    np.testing.assert_array_equal(found.min, values.min(axis=axis, keepdims=keepdims))
    np.testing.assert_array_equal(found.max, values.max(axis=axis, keepdims=keepdims))
    np.testing.assert_allclose(found.mean, exact.mean(axis=axis, keepdims=keepdims), **tolerance)
    np.testing.assert_allclose(found.std, exact.std(axis=axis, keepdims=keepdims), **tolerance)
    for name, share in QUANTILES.items():
        quantile = np.quantile(exact, share, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(getattr(found, name), quantile, **tolerance)


@pytest.mark.parametrize("backend", [NUMPY, PyTorchComputeBackend, JaxComputeBackend], ids=str)
def test_figures_are_those_of_all_data(backend: ComputeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_CHUNK_BYTES", 4000)  # many chunks
    monkeypatch.setattr(statistics, "_BLOCK_VALUES", 100)
    values = data()
    stats = column_stats(buffer_of(values, backend), image_frames=COUNT)
    assert set(stats) == {"obs/far", "obs/near", "obs/touch", "action", "reward", "image"}
    if backend is not JaxComputeBackend:  # which has only 32 bits here
        assert_of(stats["obs/far"], values["obs"]["far"], rtol=1e-8)
    assert_of(stats["obs/near"], values["obs"]["near"], rtol=1e-5, atol=1e-7)
    assert_of(stats["obs/touch"], values["obs"]["touch"].astype(np.uint8), rtol=1e-9, atol=1e-12)
    assert_of(stats["action"], values["action"], rtol=1e-9, atol=1e-12)
    assert_of(stats["reward"], values["reward"], rtol=1e-5, atol=1e-7)
    assert stats["action"].count.tolist() == [COUNT] * 4
    assert stats["reward"].mean.shape == ()


def test_images_are_by_channel_of_some_frames() -> None:
    values = data()
    values["image"] = values["image"] // np.array([1, 2, 4], np.uint8)
    buffer = buffer_of(values)
    for frames, tolerance in ((COUNT, 1e-9), (200, 0.05)):
        found = column_stats(buffer, ["image"], image_frames=frames)["image"]
        assert found.mean.shape == (1, 1, 3)
        assert found.count.ravel().tolist() == [frames * 20] * 3
        exact = values["image"].astype(float)
        np.testing.assert_allclose(found.mean, exact.mean(axis=(0, 1, 2), keepdims=True)[0], rtol=tolerance)
        np.testing.assert_allclose(found.std, exact.std(axis=(0, 1, 2), keepdims=True)[0], rtol=tolerance)
        np.testing.assert_allclose(found.q90, np.quantile(exact, 0.9, axis=(0, 1, 2), keepdims=True)[0], atol=6)


def test_channels_may_come_first() -> None:
    space = DictSpace(NUMPY, {"image": BoxSpace(NUMPY, 0, 255, "uint8", shape=(3, 6, 7))})
    pixels = np.random.default_rng(0).integers(0, 200, (40, 3, 6, 7), np.uint8) // np.array([1, 2, 4])[:, None, None]
    with ReplayBuffer.create(space, capacity=40) as buffer:
        buffer.extend({"image": pixels.astype(np.uint8)})
        found = column_stats(buffer)["image"]
    np.testing.assert_allclose(found.mean, pixels.mean(axis=(0, 2, 3))[:, None, None])


def test_depth_is_one_channel_of_some_frames() -> None:
    depth = BoxSpace(NUMPY, 0, 65535, "uint16", shape=(16, 20))
    board = BoxSpace(NUMPY, 0, 2, "uint8", shape=(8, 8))
    pixels = np.random.default_rng(0).integers(0, 65536, (40, 16, 20)).astype(np.uint16)
    with ReplayBuffer.create(DictSpace(NUMPY, {"depth": depth, "board": board}), capacity=40) as buffer:
        buffer.extend({"depth": pixels, "board": np.ones((40, 8, 8), np.uint8)})
        found = column_stats(buffer)
        some = column_stats(buffer, ["depth"], image_frames=10)["depth"]
    assert found["board"].mean.shape == (8, 8)
    assert found["depth"].count.tolist() == [[40 * 320]]
    assert some.count.tolist() == [[10 * 320]]
    np.testing.assert_allclose(found["depth"].mean, pixels.mean(keepdims=True)[0])
    np.testing.assert_allclose(found["depth"].q50, np.median(pixels), rtol=0.05)


def test_only_finite_numbers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_BLOCK_VALUES", 50)
    values = data()
    near = values["obs"]["near"]
    near[::7, 0, 0], near[3::11, 0, 1], near[5::13, 0, 1], near[:, 1, 1] = np.nan, np.inf, -np.inf, np.nan
    found = column_stats(buffer_of(values), ["obs/near"])["obs/near"]
    for place in ((0, 0), (0, 1), (1, 0)):
        column = near[(slice(None), *place)].astype(np.float64)
        column = column[np.isfinite(column)]
        assert found.count[place] == len(column)
        figures = [column.min(), column.max(), column.mean(), column.std(), np.quantile(column, 0.1)]
        read = [getattr(found, name)[place] for name in ("min", "max", "mean", "std", "q10")]
        np.testing.assert_allclose(read, figures, rtol=1e-5)
    assert found.count[1, 1] == 0
    assert all(np.isnan(getattr(found, name)[1, 1]) for name in ("min", "max", "mean", "std", "q50"))


def test_quantiles_of_many_rows_are_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_MOST_QUANTILE_ROWS", 4000)
    values = np.random.default_rng(1).normal(size=100_000)
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, -np.inf, np.inf, "float64", shape=())})
    with ReplayBuffer.create(space, capacity=100_000) as buffer:
        buffer.extend({"x": np.sort(values)})
        found = column_stats(buffer)["x"]
    for name, share in QUANTILES.items():
        assert np.mean(values < getattr(found, name)) == pytest.approx(share, abs=0.01)


def test_columns_are_chosen_and_progress_is_told() -> None:
    buffer = buffer_of(data(20))
    seen: list[tuple[int, int]] = []
    stats = column_stats(buffer, ["obs", "reward"], progress=lambda done, total: seen.append((done, total)))
    assert list(stats) == ["obs/far", "obs/near", "obs/touch", "reward"]
    assert seen[-1] == (80, 80)
    for columns, why in ((["arm"], "there is no column 'arm'"), (["word"], "column 'word' holds no arrays")):
        with pytest.raises(ValueError, match=why):
            column_stats(buffer, columns)
    space = DictSpace(NUMPY, {"x": BoxSpace(NUMPY, 0, 1, "float32", shape=())})
    with ReplayBuffer.create(space, capacity=4) as empty, pytest.raises(ValueError, match="the batch is empty"):
        column_stats(empty)


def test_normalising_by_statistics() -> None:
    buffer = buffer_of(data())
    stats = column_stats(buffer)
    far = buffer.get_column(["obs", "far"])
    for mode, low, high in (("mean_std", -5, 5), ("min_max", -1, 1), ("quantile", -2, 2)):
        normalize = NormalizeTransformation.from_stats(stats["obs/far"], mode)  # type: ignore[arg-type]
        found = normalize.transform(far.single_space, far.get_at(...))
        assert found.min() >= low - 1e-6
        assert found.max() <= high + 1e-6
        if mode == "mean_std":
            np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-6)
        inverse = normalize.direction_inverse(far.single_space)
        target = normalize.get_target_space_from_source(far.single_space)
        np.testing.assert_allclose(inverse.transform(target, found), far.get_at(...), rtol=1e-12)


def test_memory_stays_bounded() -> None:
    """64 MB of floats are read with few MB beside them."""
    script = """
import resource, sys
import numpy as np
from unienv_data import ReplayBuffer, check, column_stats
from unienv_interface.backends import NumpyComputeBackend as B
from unienv_interface.space import BoxSpace, DictSpace
space = DictSpace(B, {"x": BoxSpace(B, -1, 1, "float32", shape=(16,))})
buffer = ReplayBuffer.create(space, capacity=1_000_000)
part = np.random.default_rng(0).random((10_000, 16), np.float32)
for _ in range(100):
    buffer.extend({"x": part})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
column_stats(buffer)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // (1024 if sys.platform == "linux" else 2**20))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert int(done.stdout) < 60, done.stderr


# -- kept beside the recording -----------------------------------------------------------------------------


def on_disk(folder: Any, count: int = 100) -> ReplayBuffer:
    space = DictSpace(
        NUMPY,
        {
            "x": BoxSpace(NUMPY, -np.inf, np.inf, "float32", shape=(2,)),
            "level": BoxSpace(NUMPY, -(2**62), 2**62, "int64", shape=()),
            "image": BoxSpace(NUMPY, 0, 255, "uint8", shape=(4, 5, 3)),
        },
    )
    buffer = ReplayBuffer.create(space, cache_path=folder)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    x[3, 0] = np.nan
    buffer.extend(
        {
            "x": x,
            "level": rng.integers(-(2**62), 2**62, count),
            "image": rng.integers(0, 255, (count, 4, 5, 3), np.uint8),
        }
    )
    return buffer


def reads(buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The columns that are read of a buffer from now on."""
    seen: list[Any] = []
    read = type(buffer).get_column_at

    def watched(self: ReplayBuffer, keys: Any, idx: Any) -> Any:
        seen.append(tuple(keys))
        return read(self, keys, idx)

    monkeypatch.setattr(ReplayBuffer, "get_column_at", watched)
    return seen


def test_statistics_are_kept_and_used_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = on_disk(tmp_path / "buffer")
    first = column_stats(buffer, ["x"]) | column_stats(buffer)
    buffer.close()
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY) as loaded:
        seen = reads(loaded, monkeypatch)
        again = column_stats(loaded)
        assert seen == []
        for name, stats in first.items():
            for figure, values in vars(stats).items():
                kept = getattr(again[name], figure)
                np.testing.assert_array_equal(kept, values)
                assert kept.dtype == values.dtype
        column_stats(loaded, ["image"], image_frames=10)
        assert set(seen) == {("image",)}  # of other frames
    report = check(tmp_path / "buffer", ignore=["not-finite"])
    assert report.is_sound


def test_changed_samples_have_new_statistics(tmp_path: Any) -> None:
    with on_disk(tmp_path / "buffer") as buffer:
        assert column_stats(buffer, ["x"])["x"].count.tolist() == [99, 100]
        one = buffer.get_at(3)
        buffer.set_at(3, {**one, "x": np.array([7e6, 0], np.float32)})
        assert column_stats(buffer, ["x"])["x"].max[0] == 7e6
        buffer.append({**one, "x": np.array([9e6, 0], np.float32)})
        assert column_stats(buffer, ["x"])["x"].max[0] == 9e6
        buffer.remove_at(len(buffer) - 1)
        assert column_stats(buffer, ["x"])["x"].max[0] == 7e6


def test_what_was_kept_may_be_damaged_or_absent(tmp_path: Any) -> None:
    with on_disk(tmp_path / "buffer") as buffer:
        wanted = column_stats(buffer)["x"]
        kept = tmp_path / "buffer" / "column_stats.json"
        for text in ("", "[1, 2]", kept.read_text().replace("float32", "nothing")):
            kept.write_text(text)
            np.testing.assert_array_equal(column_stats(buffer)["x"].mean, wanted.mean)
        kept.unlink()
        kept.mkdir()  # which nobody can write a file to
        np.testing.assert_array_equal(column_stats(buffer)["x"].mean, wanted.mean)
