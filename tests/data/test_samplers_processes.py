"""Batches that other processes fetch: always the same, every fault told, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from buffers import number_space, numbers

from unienv_data import MultiprocessingSampler, ReplayBuffer, StepSampler

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"


def play(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE)])}
    result = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "sampler_play.py"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert not result.stderr, result.stderr[-4000:]
    return result.stdout


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_same_batches_with_any_number_of_workers(start_method: str) -> None:
    assert "the same" in play("same", "--start-method", start_method)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_every_fault_of_a_worker_is_told(start_method: str) -> None:
    assert "all told" in play("faults", "--start-method", start_method)


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_nothing_is_left_behind(start_method: str) -> None:
    assert "nothing left" in play("leaves", "--start-method", start_method)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["same", "faults", "leaves"])
def test_the_same_with_a_fork_server(what: str) -> None:
    play(what, "--start-method", "forkserver")


def test_an_epoch_that_is_killed_goes_on_where_it_was() -> None:
    assert "each sample once" in play("resume")


def test_bad_arguments_are_refused() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=4)
    buffer.extend(numbers(range(4)))
    sampler = StepSampler(buffer, 2)
    for arguments, text in (
        ({"n_workers": -1}, "n_workers is -1, it must be at least 0"),
        ({"n_buffers": 0}, "n_buffers is 0, it must be at least 1"),
        ({"doze_time": 0.0}, "doze_time is 0.0, it must be more than 0"),
    ):
        with pytest.raises(ValueError, match=text):
            MultiprocessingSampler(sampler, **arguments)  # type: ignore[arg-type]


def test_a_program_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        """
import multiprocessing
from unienv_data import MultiprocessingSampler, ReplayBuffer, StepSampler
from buffers import number_space, numbers

buffer = ReplayBuffer.create(number_space(), capacity=4)
buffer.extend(numbers(range(4)))
MultiprocessingSampler(StepSampler(buffer, 2), 1, ctx=multiprocessing.get_context("spawn")).sample()
""",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(HERE)])}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=100
    )
    told = "died when it was started: exit code 1; spawn imports the main program, which needs a guard, if __name__"
    assert told in done.stderr
