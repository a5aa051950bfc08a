"""Type checkers find nothing wrong in a user's program, and every misspelt name and argument in it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import user_program

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src"
PROGRAM = TESTS / "user_program.py"
EXTENDING = TESTS.parent / "docs" / "extending.md"
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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The user's program, and those that the page about writing one's own has, each as a file."""
    folder = tmp_path_factory.mktemp("programs")
    shutil.copy(PROGRAM, folder)
    blocks = re.findall(r"```python\n(.*?)```", EXTENDING.read_text(encoding="utf-8"), re.DOTALL)
    for number, block in enumerate(blocks):
        (folder / f"writing_your_own_{number}.py").write_text(block, encoding="utf-8")
    return sorted(folder.iterdir())


def marked(programs: list[Path]) -> list[str]:
    """The lines that are marked as wrong, as "file:line"."""
    return [
        f"{path.name}:{number}"
        for path in programs
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith("# wrong")
    ]


def errors_of(checker: str, *options: str | Path, programs: list[Path]) -> tuple[list[str], str]:
    """The lines with errors, as "file:line", and what the checker says."""
    command = [sys.executable, "-m", checker, *options, *(path.name for path in programs)]
    environ = {**os.environ, "MYPYPATH": str(SRC)}
    done = subprocess.run(command, cwd=programs[0].parent, env=environ, capture_output=True, text=True, timeout=110)
    found = re.findall(r"([\w.]+\.py:\d+)(?::\d+)?(?: -)?:? error:", done.stdout)
    return sorted(
        set(found), key=lambda place: (place.split(":")[0], int(place.split(":")[1]))
    ), done.stdout + done.stderr


def test_mypy_finds_what_is_wrong_and_nothing_else(programs: list[Path], tmp_path: Path) -> None:
    config, has_defaults = tmp_path / "mypy.ini", np.lib.NumpyVersion(np.__version__) >= "2.2.0"
    # the type parameters of older arrays have no defaults, so that strict mypy wants `np.ndarray[Any, Any]`
    strict = "strict = true" if has_defaults else "strict = true\ndisallow_any_generics = false"
    config.write_text(CONFIG.replace("strict = true", strict), encoding="utf-8")
    options = ("--config-file", config, "--cache-dir", tmp_path / "cache")
    found, output = errors_of("mypy", *options, programs=programs)
    assert found == marked(programs), output


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_what_is_wrong_and_nothing_else(programs: list[Path]) -> None:
    settings = {"extraPaths": [str(SRC)], "typeCheckingMode": "standard", "reportUnusedExpression": False}
    (programs[0].parent / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    found, output = errors_of("pyright", "--pythonpath", sys.executable, programs=programs)
    assert found == marked(programs), output
