"""Windows beside a writer in another process, and views over several devices: each in a program of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from test_replay_buffer_processes import run

HERE = Path(__file__).parent


def test_windows_beside_a_writer_never_mix_episodes() -> None:
    assert "none mixed" in run(str(HERE / "window_play.py"), "--seconds", "2")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_views_over_two_devices() -> None:
    assert "all where they belong" in run(str(HERE / "device_play.py"))


@pytest.mark.soak
def test_windows_beside_a_writer_never_mix_episodes_for_ten_minutes() -> None:
    assert "none mixed" in run(str(HERE / "window_play.py"), "--seconds", "600")
