"""What type checkers make of a user's program: nothing wrong in it, and every misspelt name and argument found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import user_program

TESTS = Path(__file__).parent
PROGRAM = TESTS / "user_program.py"
# Frameworks are large, and the program uses none of their types.
CONFIG = """
[mypy]
strict = true
follow_imports_for_stubs = true
[mypy-torch.*,tensordict.*,torchrl.*,jax.*,jaxlib.*,gymnasium.*,h5py.*,pyarrow.*,minari.*,ray.*,av.*,PIL.*,typer.*,rich.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-array_api_compat.*,cloudpickle.*,tqdm.*,stable_baselines3.*,envpool.*,wandb.*,datasets.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-unienv.*,unienv_data.*,unienv_interface.*]
ignore_errors = true
"""


def test_the_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user_program.main(tmp_path)
    assert "(8, 1) (8, 4, 1) (8, 4)" in capsys.readouterr().out


def lines_found(output: str, program: str) -> set[int]:
    """The lines of the program with an error."""
    return {int(line) for line in re.findall(rf"{program}:(\d+):(?:\d+:)? error:", output)}


def test_mypy_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG, encoding="utf-8")
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path / "cache", PROGRAM.name]
    # As a user has it: what is found is what is installed, not the sources.
    environ = {**os.environ, "MYPYPATH": str(TESTS.parent / "src")}
    done = subprocess.run(command, cwd=TESTS, env=environ, capture_output=True, text=True, timeout=110)
    assert lines_found(done.stdout, PROGRAM.name) == wrong, done.stdout + done.stderr
