"""CI fails when the tests leave something behind in the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "leaves_nothing.sh"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("true", ""),
        ("mkdir -p .mypy_cache tests/__pycache__ && touch .mypy_cache/a tests/__pycache__/b.pyc", ""),
        ("mkdir -p w/data && touch w/data/rows.bin", "> ?? w/data/rows.bin\n"),
        ("echo changed >known.txt", ">  M known.txt\n"),
        ("mkdir tests && touch tests/MUJOCO_LOG.TXT", "> !! tests/MUJOCO_LOG.TXT\n"),
        ("rm mess.txt", "< ?? mess.txt\n"),
    ],
)
def test_a_command_that_changes_the_checkout_fails_with_what_it_changed(
    tmp_path: Path, command: str, left: str
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    (tmp_path / ".gitignore").write_text("__pycache__/\n/.mypy_cache/\nMUJOCO_LOG.TXT\n")
    (tmp_path / "known.txt").write_text("as it was")
    for arguments in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=tmp_path, env=env, check=True, timeout=60)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "commit", "-qm", "a"], cwd=tmp_path, env=env, check=True, timeout=60)
    (tmp_path / "mess.txt").touch()  # was there before the command, so the command is not to blame
    done = subprocess.run(
        ["bash", SCRIPT, "bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (1 if left else 0), done.stderr
    assert done.stderr == (f"the command changed the checkout (< before, > after):\n{left}" if left else "")


def test_a_command_that_fails_fails(tmp_path: Path) -> None:
    done = subprocess.run(["bash", SCRIPT, "bash", "-c", "exit 3"], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 3
