"""Running commands: in this process, for speed, or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner, Result

from unienv_data.cli.app import app

COMMAND = (sys.executable, "-W", "error", "-c", "from unienv_data.cli import main; main()")


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run a command in this process."""

    def call(*args: Any, status: int = 0, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False, env=env)
        assert result.exit_code == status, (result.exit_code, result.output, result.stderr)
        return result

    return call


@pytest.fixture
def run_json(run: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command in this process with --json, and read what it prints."""
    return lambda *args, status=0: json.loads(run(*args, "--json", status=status).stdout)


@pytest.fixture
def start() -> Any:
    """Start a command in a process of its own; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def call(args: Sequence[Any], **options: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "COLUMNS": "80", **options.pop("env", {})}
        process = subprocess.Popen(
            [*COMMAND, *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)
