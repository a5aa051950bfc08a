"""info, head, stats and bench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import (
    BACKEND,
    LENGTHS,
    episodes,
    floats,
    image,
    joined,
    leaf_map,
    read_all,
    transition_space,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer
from unienv_data.checking import reading
from unienv_data.cli._render import in_bytes, sparkline
from unienv_interface.space import BoxSpace, DictSpace, DynamicBoxSpace, GraphSpace, TextSpace


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 150)


# -- info --------------------------------------------------------------------------------------------------


INFO_KEYS = {
    *("path", "storage", "samples", "capacity", "written", "lanes", "episodes", "unfinished_episodes", "lengths"),
    *(
        "returns",
        "is_durable",
        "is_being_written",
        "bytes_per_sample",
        "shares_next_obs",
        "bytes_on_disk",
        "last_written",
    ),
    *("format_version", "columns"),
}


def test_info_says_what_is_there(tmp_path: Path, run_json: Any) -> None:
    parts = episodes()
    found = run_json("info", write(tmp_path / "r", parts))
    returns = [part["reward"].sum() for part in parts]
    assert set(found) == INFO_KEYS
    assert (found["samples"], found["episodes"], found["lanes"], found["capacity"]) == (2000, 7, 1, None)
    assert (found["storage"], found["format_version"], found["is_being_written"]) == ("packed", 2, False)
    curve = [float(length) for length in LENGTHS]
    assert found["lengths"] == {"min": 1, "mean": 2000 / 7, "max": 900, "curve": curve, "not_finite": 0}
    assert found["returns"]["curve"] == pytest.approx(returns)
    assert found["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert found["bytes_on_disk"] >= found["samples"] * 16
    assert {column["name"] for column in found["columns"]} >= {"obs/joints", "reward", "truncated"}


def test_info_of_rewards_that_are_not_finite(tmp_path: Path, run_json: Any, run: Any) -> None:
    parts = episodes()
    for part, value in zip(parts, [np.nan, np.inf, -np.inf], strict=False):
        part["reward"][0] = value
    parts[1]["reward"][-1] = -np.inf
    path = write(tmp_path / "r", parts)
    found = run_json("info", path)["returns"]
    returns = [part["reward"].sum() for part in parts[3:]]
    assert found["not_finite"] == 3
    assert (found["min"], found["max"], found["mean"]) == pytest.approx((min(returns), max(returns), np.mean(returns)))
    assert "; NaN or infinite in 3 others" in run("info", path).stdout
    only = write(tmp_path / "only", parts[:1])
    assert run_json("info", only)["returns"] == {"min": None, "mean": None, "max": None, "curve": [], "not_finite": 1}
    assert "NaN or infinite in all 1 episode" in run("info", only).stdout


def test_info_of_environments_side_by_side(tmp_path: Path, run_json: Any) -> None:
    path = write_lanes(tmp_path / "r")
    found = run_json("info", path)
    whole, segments = read_all(path)
    assert segments is not None
    returns = [whole["reward"][start:stop:3].sum() for start, stop in segments]
    assert (found["lanes"], found["episodes"]) == (3, len(segments))
    assert found["lengths"]["max"] == max(len(range(start, stop, 3)) for start, stop in segments)
    assert (found["returns"]["min"], found["returns"]["max"]) == pytest.approx((min(returns), max(returns)))


def test_info_of_a_ring_that_is_being_written(tmp_path: Path, run_json: Any) -> None:
    with ReplayBuffer.create(
        transition_space(), cache_path=tmp_path / "r", capacity=1000, maintain_segment_metadata=True
    ) as writer:
        for part in episodes():
            writer.extend(part)
        writer.append(leaf_map(lambda leaf: leaf[0], episodes([2])[0]))
        found = run_json("info", tmp_path / "r")
    assert found["is_being_written"] is True
    assert (found["samples"], found["capacity"], found["written"]) == (1000, 1000, 2001)
    assert found["unfinished_episodes"] == 1


def test_info_for_people(tmp_path: Path, run: Any) -> None:
    text = run("info", write(tmp_path / "r", episodes())).stdout
    for words in ("2,000 (grows)", "7", "1 to 900", "packed", "joints: float32 (3,) in [-5, 5]", "reward: float64 ()"):
        assert words in text, (words, text)


def test_info_without_episodes_or_rewards(tmp_path: Path, run_json: Any, run: Any) -> None:
    path = write(tmp_path / "r", [np.zeros(10, np.float32)], floats(), maintain_segment_metadata=False)
    found = run_json("info", path)
    assert (found["episodes"], found["lengths"], found["returns"]) == (None, None, None)
    assert "not kept" in run("info", path).stdout


# -- head --------------------------------------------------------------------------------------------------


def test_head_shows_samples_as_they_are(tmp_path: Path, run_json: Any) -> None:
    path = write(tmp_path / "r", episodes())
    whole, _ = read_all(path)
    found = run_json("head", path, "-n", 3, "--start", -3)
    assert set(found) == {"path", "samples", "shown"}
    assert [sample["index"] for sample in found["shown"]] == [1997, 1998, 1999]
    assert found["shown"][0]["episode"] == [1748, 2000]
    assert found["shown"][0]["values"]["obs/joints"] == pytest.approx(whole["obs"]["joints"][1997].tolist())
    assert found["shown"][2]["values"]["terminated"] is True


def test_head_for_people_sums_up_long_arrays(tmp_path: Path, run: Any) -> None:
    space = DictSpace(BACKEND, {"camera": image(8, 8, 3), "task": TextSpace(BACKEND, 10)})
    texts = np.array(["lift", "push"], object)
    path = write(tmp_path / "r", [{"camera": np.full((2, 8, 8, 3), 7, np.uint8), "task": texts}], space)
    text = run("head", path).stdout
    assert "uint8 8x8x3, 7 to 7" in text
    assert "'push'" in text


def test_head_of_a_graph(tmp_path: Path, run: Any, run_json: Any) -> None:
    space = GraphSpace(BACKEND, floats(2), is_edge=True, max_nodes=5, max_edges=5)
    path = write(tmp_path / "r", [], space)
    with ReplayBuffer.load_from(path, backend=BACKEND, read_only=False) as buffer:
        _, graph = space.sample(BACKEND.random.random_number_generator(0))
        buffer.append(graph)
    nodes, edges = int(graph.n_nodes), int(graph.n_edges)
    assert f"graph, {nodes} node" in run("head", path).stdout
    (sample,) = run_json("head", path)["shown"]
    assert (sample["values"]["value"]["n_nodes"], sample["values"]["value"]["n_edges"]) == (nodes, edges)


def test_one_timestamp_can_be_told_from_another(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path / "r", [np.array([1794891363.28125, 1794891363.5], np.float64)], floats(dtype="float64"))
    shown = run("head", path).stdout
    assert "1794891363.28125" in shown
    assert "1794891363.5" in shown
    assert "1,794,891,363" in run("stats", path).stdout


def test_head_past_the_end_is_an_error(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path / "r", episodes())
    assert "there are 2000 samples, none from 2001 on" in run("head", path, "--start", 2001, status=1).stderr


def test_numbers_that_json_has_not_are_words(tmp_path: Path, run_json: Any) -> None:
    path = write(tmp_path / "r", [np.array([np.nan, -np.inf, 1.5], np.float32)], floats())
    assert [sample["values"]["value"] for sample in run_json("head", path)["shown"]] == ["nan", "-inf", 1.5]


# -- stats -------------------------------------------------------------------------------------------------


def test_stats_are_those_of_all_samples(tmp_path: Path, run_json: Any) -> None:
    parts = episodes()
    found = run_json("stats", write(tmp_path / "r", parts))
    whole = joined(parts)
    assert set(found) == {"path", "samples", "columns"}
    by_name = {column["name"]: column for column in found["columns"]}
    for name, values in {"obs/joints": whole["obs"]["joints"], "action": whole["action"]}.items():
        column = by_name[name]
        figures = {"count", "nan", "infinite", "min", "max", "mean", "std"}
        assert set(column) == {"name", "dtype", "shape", "dimensions", *figures}
        rows = values.reshape(len(values), -1).astype(float)
        assert np.reshape(column["dimensions"]["mean"], -1) == pytest.approx(rows.mean(axis=0))
        assert np.reshape(column["dimensions"]["q90"], -1) == pytest.approx(np.quantile(rows, 0.9, axis=0))
        assert (column["count"], column["min"], column["max"]) == (values.size, values.min(), values.max())
        assert (column["mean"], column["std"]) == pytest.approx((values.mean(dtype=float), values.std(dtype=float)))
    assert by_name["terminated"]["max"] == 1


def test_stats_have_a_row_for_each_dimension(tmp_path: Path, run: Any) -> None:
    values = np.arange(30, dtype=np.float32).reshape(10, 3)
    space = BoxSpace(BACKEND, -np.inf, np.inf, "float32", shape=(3,))
    path = write(tmp_path / "r", [values], space)
    for _ in range(2):  # the second time from what was kept
        lines = run("stats", path).stdout.splitlines()
        assert [line.split()[:4] for line in lines if line.strip().startswith("[")] == [
            ["[0]", "0", "27", "13.5"],
            ["[1]", "1", "28", "14.5"],
            ["[2]", "2", "29", "15.5"],
        ]


def test_stats_leave_out_what_is_not_finite_and_count_it(tmp_path: Path, run_json: Any) -> None:
    values = np.array([1, np.nan, np.inf, 3, np.nan], np.float32)
    (column,) = run_json("stats", write(tmp_path / "r", [values], floats()))["columns"]
    assert (column["count"], column["nan"], column["infinite"]) == (2, 2, 1)
    assert (column["min"], column["max"], column["mean"], column["std"]) == (1, 3, 2, 1)


def test_stats_of_what_is_no_number(tmp_path: Path, run_json: Any) -> None:
    (column,) = run_json("stats", write(tmp_path / "r", [np.array(["a", "b"], object)], TextSpace(BACKEND, 3)))[
        "columns"
    ]
    assert (column["dtype"], column["count"], column["nan"], column["mean"]) == (None, None, None, None)


def test_stats_of_arrays_that_differ_in_shape(tmp_path: Path, run_json: Any) -> None:
    space = DynamicBoxSpace(BACKEND, -np.inf, np.inf, (1,), (9,), "float32")
    path = write(tmp_path / "r", [], space)
    with ReplayBuffer.load_from(path, backend=BACKEND, read_only=False) as buffer:
        for values in ([1, 2], [3], [np.nan, 6, np.inf]):
            buffer.append(np.array(values, np.float32))
    (column,) = run_json("stats", path)["columns"]
    assert (column["dtype"], column["shape"]) == ("float32", None)
    assert (column["count"], column["nan"], column["infinite"]) == (4, 1, 1)
    assert (column["min"], column["max"], column["mean"]) == (1, 6, 3)


# -- bench and words ---------------------------------------------------------------------------------------


def test_bench_measures_all_three(tmp_path: Path, run_json: Any, run: Any) -> None:
    path = write(tmp_path / "r", episodes())
    found = run_json("bench", path, "--seconds", 0.02)
    assert set(found) == {
        *("path", "samples", "batch_size", "samples_per_second", "samples_mb_per_second", "window", "windows"),
        *("windows_per_second", "windows_mb_per_second", "scan_mb_per_second"),
    }
    assert min(found[key] for key in found if key.endswith("second")) > 0
    assert "windows of 16" in run("bench", path, "--seconds", 0.01).stdout


def test_bench_of_nothing_is_an_error(tmp_path: Path, run: Any) -> None:
    assert "no samples to draw" in run("bench", write(tmp_path / "r", []), status=1).stderr


def test_words() -> None:
    assert [in_bytes(count) for count in (0, 999, 1000, 2_500_000)] == ["0 B", "999 B", "1.0 kB", "2.5 MB"]
    assert len(sparkline([1.0, 2.0, 3.0])) == 3
    assert len(set(sparkline([5.0, 5.0]))) == 1
