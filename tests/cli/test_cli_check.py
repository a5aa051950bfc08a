"""check and repair by the command: what it prints, and its statuses. tests/checking has what they find and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from recordings import episodes, fingerprint, flip, read_all, rewrite, write

from unienv_data import ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend

LENGTHS = (30, 7, 1)


def test_a_sound_recording_has_no_findings(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path / "r", episodes(LENGTHS))
    assert run("check", path).stdout == f"{path}: no findings in 38 samples\n"


def test_a_line_for_each_finding(tmp_path: Path, run: Any) -> None:
    path = rewrite(write(tmp_path / "r", episodes(LENGTHS)), slice(3, 4), reward=np.nan, action=4)
    before = fingerprint(path)
    lines = [
        "not-finite: reward: NaN in sample 3",
        "out-of-space: action: outside [0, 3] in sample 3, with a value of 4",
    ]
    assert run("check", path, status=1).stdout.splitlines() == lines
    assert run("check", path, "--ignore", "not-finite", status=1).stdout.splitlines() == lines[1:]
    run("check", path, "--ignore", "not-finite", "--ignore", "out-of-space")
    assert fingerprint(path) == before


def test_findings_as_json(tmp_path: Path, run_json: Any) -> None:
    path = rewrite(write(tmp_path / "r", episodes(LENGTHS)), slice(3, 4), reward=np.nan)
    finding = {"kind": "not-finite", "text": "reward: NaN in sample 3"}
    report = {"path": str(path), "samples": 38, "findings": [finding], "cut_episodes": []}
    assert run_json("check", path, status=1) == report


def test_cut_episodes_are_listed_and_are_no_finding(tmp_path: Path, run: Any) -> None:
    path = write(tmp_path / "r", episodes(LENGTHS))
    with ReplayBuffer.load_from(path, backend=NumpyComputeBackend, read_only=False) as buffer:
        buffer.append(buffer.get_at(0))
        buffer.mark_segment_end(cut=True)
    line = "cut episodes: 1 closed before they had ended, samples 38 to 38"
    assert line in run("check", path, "--ignore", "duplicated-episodes").stdout.splitlines()


def test_what_cannot_be_checked_at_all_is_another_status(tmp_path: Path, run: Any) -> None:
    assert "there is no such folder" in run("check", tmp_path / "none", status=2).stderr
    assert "not a replay buffer" in run("check", tmp_path, status=2).stderr
    path = write(tmp_path / "r", episodes(LENGTHS))
    assert "'nan' is no kind of finding" in run("check", path, "--ignore", "nan", status=2).stderr


def test_repair_says_what_was_kept(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes(LENGTHS))
    text = run("repair", source, "--out", tmp_path / "new").stdout
    assert text == f"{tmp_path / 'new'}: 38 of 38 samples in 3 episodes are kept, nothing was left out\n"
    assert read_all(tmp_path / "new")[1] == read_all(source)[1]


def test_repair_says_what_was_left_out_and_why(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes((3000, 7)))
    flip(source / "storage" / "rows.bin", 70_000)
    split, whole = (
        run("repair", source, "--out", tmp_path / name, *more).stdout.splitlines()
        for name, *more in (("split",), ("whole", "--whole-episodes"))
    )
    why = "the bytes on disk differ from the written ones"
    assert split[0].startswith("left out: sample ")
    assert split[0].endswith(why)
    assert split[1] == "note: samples of 1 episode are lost, the remaining samples were split into new episodes"
    assert whole[1].endswith("sound samples of the episode from 0 to 2999: not whole")
    assert whole[2] == f"{tmp_path / 'whole'}: 7 of 3,007 samples in 1 episode are kept"


def test_repair_by_another_recording(tmp_path: Path, run: Any) -> None:
    source, like = write(tmp_path / "r", episodes(LENGTHS)), write(tmp_path / "like", episodes((5,)))
    (source / "metadata.json").unlink()
    error = run("repair", source, "--out", tmp_path / "new", status=1).stderr
    assert "metadata.json: the file is missing" in error
    assert "give it with --like" in error
    lines = run("repair", source, "--out", tmp_path / "new", "--like", like).stdout.splitlines()
    assert f"note: the description of the samples was taken from {like}" in lines
    assert "38 of 38 samples in 3 episodes are kept" in lines[-1]


def test_what_cannot_be_repaired_is_an_error(tmp_path: Path, run: Any) -> None:
    source = write(tmp_path / "r", episodes(LENGTHS))
    assert run("repair", source, "--out", source, status=1).stderr == (
        f"unienv: {source}: it exists already, give another path\n"
    )
    assert "there is no such folder" in run("repair", tmp_path / "none", "--out", tmp_path / "new", status=1).stderr


def test_repair_as_json(tmp_path: Path, run_json: Any) -> None:
    source = write(tmp_path / "r", episodes(LENGTHS))
    assert set(run_json("repair", source, "--out", tmp_path / "new")) == {
        *("source", "target", "samples_before", "samples", "episodes", "split_episodes", "left_out", "notes"),
    }
