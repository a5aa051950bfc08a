"""The command itself: help, statuses, what goes where, and what there is without a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recordings import episodes, write

import unienv
from unienv_data.checking import _info
from unienv_data.cli import _demo
from unienv_data.cli.app import app

COMMANDS = ["info", "head", "stats", "show", "check", "bench", "collect", "convert", "repair", "demo"]
ESCAPE = "\x1b"


def test_help_lists_all_commands(run: Any) -> None:
    text = run("--help").stdout
    assert {name for name in COMMANDS if f" {name} " in text} == set(COMMANDS)
    registered = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert registered == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_teaches_by_an_example(run: Any, name: str) -> None:
    assert f"Example: unienv {name} " in " ".join(run(name, "--help").stdout.split())
    assert len(run(name, "-h").stdout) > 500


def test_a_wrong_option_is_a_matter_of_usage(run: Any, tmp_path: Path) -> None:
    assert "No such option" in run("info", tmp_path, "--jsno", status=2).stderr


@pytest.mark.parametrize("name", ["info", "head", "stats", "bench"])
def test_a_known_error_is_one_line(run: Any, tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path / "none", status=1)
    assert result.stderr == f"unienv: {tmp_path / 'none'}: there is no such folder\n"
    assert result.stdout == ""


def test_traceback_on_request(run: Any, tmp_path: Path) -> None:
    assert "Traceback" in run("--traceback", "info", tmp_path, status=1).stderr
    assert "Traceback" not in run("info", tmp_path, status=1).stderr


def test_a_defect_of_ours_shows_where_it_is(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> int:
        raise KeyError("a defect")

    monkeypatch.setattr(_info, "bytes_on_disk", broken)
    with pytest.raises(KeyError, match="a defect"):
        run("info", write(tmp_path / "r", episodes()))


# -- in a process of its own -------------------------------------------------------------------------------


def test_without_a_terminal_there_are_no_bars_and_no_colours(tmp_path: Path, start: Any) -> None:
    path = write(tmp_path / "r", episodes())
    process = start(["info", path])
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == ""
    assert ESCAPE not in output
    assert output.splitlines()[0] == str(path)
    assert all(line == line.rstrip() for line in output.splitlines())


def test_plain_characters_where_there_are_no_others(tmp_path: Path, start: Any) -> None:
    process = start(["info", write(tmp_path / "r", episodes())], env={"PYTHONIOENCODING": "ascii"})
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output.isascii()


def test_whoever_reads_only_the_first_line_gets_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "r", episodes())
    line = f"'{sys.executable}' -c 'from unienv_data.cli import main; main()' head {path} -n 500 | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout == "sample 0, of the episode from 0 to 299\n"
    assert "Traceback" not in done.stderr


def test_without_standard_output_or_error(tmp_path: Path) -> None:
    path = write(tmp_path / "r", episodes())
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        line = f"'{sys.executable}' -c 'from unienv_data.cli import main; main()' info {path} {closed}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert bool(done.stdout) == (not closed.startswith(">"))


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    for library in ("typer", "rich"):
        script = f"import sys\nsys.modules[{library!r}] = None\nfrom unienv_data.cli import main\nmain()\n"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr.endswith("is not installed; get it with: pip install 'unienv[cli]'\n")
        assert len(done.stderr.splitlines()) == 1
    command = [sys.executable, "-c", script, "--version"]  # for bug reports, without the extra, too
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == f"{unienv.__version__}\n"


def test_the_entry_point_is_the_command() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    (scripts,) = re.findall(r"\[project\.scripts\]\n((?:[^\[\n].*\n)+)", project)
    assert scripts.strip() == 'unienv = "unienv_data.cli:main"'


def run_in_terminal(args: list[str]) -> tuple[int, str]:
    """Run a command in a terminal of 80 columns, with bars from the start; its status, and all that it printed."""
    script = "from unienv_data.cli import _progress, main; _progress._PATIENCE = 0; main()"
    terminal, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(terminal, 65_536):
            printed += part
    except OSError:  # what Linux says when the other side has gone
        pass
    os.close(terminal)
    return process.wait(timeout=60), printed.decode()


def test_in_a_terminal_there_is_a_bar(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    args = ["collect", "CartPole-v1", "--steps", "400", "--workers", "0", "--out", str(tmp_path / "r")]
    status, printed = run_in_terminal(args)
    assert status == 0
    assert "recording CartPole-v1" in printed
    assert "of 400 steps" in printed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["stats"], "of 2,000 samples"),
        (["check"], "of 2,000 samples"),
        (["info"], "of 2,000 samples"),
        (["bench", "--seconds", "0.1"], "of 3 parts"),
        (["convert", "--to", "packed"], "of 2,000 samples"),
        (["repair"], "of 4,000 samples"),
    ],
)
def test_a_bar_says_of_how_much(tmp_path: Path, args: list[str], words: str) -> None:
    new = {"convert": [str(tmp_path / "new")], "repair": ["--out", str(tmp_path / "new")]}.get(args[0], [])
    status, printed = run_in_terminal([args[0], str(write(tmp_path / "r", episodes())), *new, *args[1:]])
    assert status == 0
    assert words in printed


def test_paragraphs_of_help_are_broken_where_the_terminal_ends(run: Any) -> None:
    lines = run("collect", "--help", env={"COLUMNS": "60", "TERMINAL_WIDTH": "60"}).stdout.splitlines()
    first = next(place for place, line in enumerate(lines) if "Records observation, action" in line)
    paragraph = lines[first : first + 5]
    assert all(len(line.strip()) > 40 for line in paragraph), paragraph


def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    script = (
        "import builtins\n"
        "from unienv_data.cli import main\n"
        "original = builtins.__import__\n"
        "def interrupted(name, *args, **kwargs):\n"
        "    if name == 'typer':\n"
        "        raise KeyboardInterrupt\n"
        "    return original(name, *args, **kwargs)\n"
        "builtins.__import__ = interrupted\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "unienv: interrupted\n")


# -- the demonstration -------------------------------------------------------------------------------------


def test_demo_shows_the_whole_path(tmp_path: Path, start: Any) -> None:
    pytest.importorskip("gymnasium")
    process = start(["demo", "--steps", 2000, "--out", tmp_path / "r"])
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert errors == ""
    assert ESCAPE not in output
    for words in ("steps/s", "samples/s", "windows/s of 16", "bytes on disk", "episodes", "mean return", "Try next"):
        assert words in output
    assert max(len(line) for line in output.splitlines() if str(tmp_path) not in line) <= 80


def test_demo_into_a_folder_that_is_there(tmp_path: Path, run: Any) -> None:
    errors = run("demo", "--out", tmp_path, status=1).stderr
    assert errors == f"unienv: {tmp_path}: it exists already, give another path\n"


def test_demo_as_json(tmp_path: Path, run_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.setattr(_demo, "SECONDS", 0.02)
    found = run_json("demo", "--steps", 800, "--out", tmp_path / "r")
    assert set(found) == {"collected", "info", "bench"}
    assert found["info"]["samples"] == 800
