"""What comes from data and paths is printed so that no terminal acts on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import BACKEND, cut, floats, write

from unienv_data.cli._errors import printable
from unienv_interface.space import DictSpace, TextSpace

# A red name that clears the screen, ends the line, and turns the direction of writing.
NASTY = "a\x1b[31m\x1b[2J\nb\r\x07\u202e\x9b31m"
ESCAPED = r"a\x1b[31m\x1b[2J\nb\r\x07\u202e\x9b31m"


def nasty_recording(folder: Path, values: Sequence[float] = (1.0, np.nan)) -> Path:
    """A recording in whose path, columns and texts the name stands."""
    space = DictSpace(BACKEND, {NASTY: floats(), "in": DictSpace(BACKEND, {NASTY: TextSpace(BACKEND, 40)})})
    column, texts = np.array(values, np.float32), np.array([NASTY] * len(values), object)
    return write(folder / NASTY, [{NASTY: column, "in": {NASTY: texts}}], space)


def check_output(result: Any) -> str:
    """All that was printed: lines of what a terminal shows as it is."""
    printed = result.stdout + result.stderr
    assert all(line.isprintable() for line in printed.splitlines()), printed
    assert printed.count("\n") == len(printed.splitlines())
    return printed


@pytest.mark.parametrize(
    ("command", "status"),
    [("info", 0), ("head", 0), ("stats", 0), ("check", 1), ("bench --seconds 0.01", 0)],
)
def test_names_paths_and_texts(tmp_path: Path, run: Any, command: str, status: int) -> None:
    name, *options = command.split()
    printed = check_output(run(name, nasty_recording(tmp_path), *options, status=status))
    assert ESCAPED in printed


def test_new_folders(tmp_path: Path, run: Any) -> None:
    source, target = nasty_recording(tmp_path), tmp_path / f"2{NASTY}"
    for args in (["convert", source, target, "--to", "packed"], ["repair", source, "--out", f"{target}2"]):
        assert f"2{ESCAPED}" in check_output(run(*args))


@pytest.mark.parametrize("command", ["info", "head", "stats", "bench", "check"])
@pytest.mark.parametrize("option", [(), ("--traceback",)])
def test_errors(tmp_path: Path, run: Any, command: str, option: Sequence[str]) -> None:
    printed = check_output(run(*option, command, tmp_path / NASTY, status=2 if command == "check" else 1))
    assert "there is no such folder" in printed
    assert r"\x1b[31m" in printed


def test_damage(tmp_path: Path, run: Any) -> None:
    path = nasty_recording(tmp_path)
    cut(path / "header.bin", 10)
    assert r"\x1b[31m" in check_output(run("check", path, status=1))
    assert r"\x1b[31m" in check_output(run("repair", path, "--out", tmp_path / "new"))


def test_json_gives_names_back(tmp_path: Path, run: Any) -> None:
    result = run("stats", nasty_recording(tmp_path), "--json")
    check_output(result)
    assert [column["name"] for column in json.loads(result.stdout)["columns"]] == [NASTY, f"in/{NASTY}"]


def test_what_can_be_shown_stays_as_it_is() -> None:
    assert printable("é 漢字 ▁▂ [bold]:smile:\\n") == "é 漢字 ▁▂ [bold]:smile:\\n"
    assert printable("\udcff") == r"\udcff"  # of a path that is no UTF-8
