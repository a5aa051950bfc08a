from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from envs import CountEnv, mask_of

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.wrapper import ControlFrequencyLimitWrapper


class FakeTime:
    """A clock that moves only when something takes its time; sleeping may take longer than asked."""

    def __init__(self, oversleep: float = 0.0, share: float = 1.0) -> None:
        self.now, self.oversleep, self.share = 100.0, oversleep, share
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += seconds * self.share + self.oversleep


class TimedEnv(CountEnv):
    """Takes its time for a step and notes when each began."""

    def __init__(self, fake: FakeTime, step_takes: float = 0.0, batch_size: int | None = None) -> None:
        super().__init__(NumpyComputeBackend, batch_size)
        self.fake, self.step_takes, self.began = fake, step_takes, list[float]()

    def step(self, action: Any) -> Any:
        self.began.append(self.fake.now - 100.0)
        self.fake.now += self.step_takes
        return super().step(action)


def _limited(fake: FakeTime, control_dt: float = 0.25, **kwargs: Any) -> tuple[TimedEnv, ControlFrequencyLimitWrapper]:
    below = TimedEnv(fake, **kwargs)
    env = ControlFrequencyLimitWrapper(below, control_dt, clock=fake.clock, sleep=fake.sleep)
    env.reset(seed=0)
    return below, env


def _step(env: ControlFrequencyLimitWrapper) -> None:
    env.step(env.sample_action())


def test_steps_begin_one_period_apart() -> None:
    fake = FakeTime()
    below, env = _limited(fake, step_takes=0.0625)
    for _ in range(5):
        _step(env)
    assert below.began == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert env.lateness == 0.0
    assert env.late_steps == 0


def test_the_time_of_the_policy_counts() -> None:
    fake = FakeTime()
    below, env = _limited(fake)
    for seconds in (0.125, 0.0, 0.25, 0.1875):
        _step(env)
        fake.now += seconds
    assert below.began == [0.0, 0.25, 0.5, 0.75]
    assert env.late_steps == 0


def test_sleeping_too_long_does_not_add_up() -> None:
    fake = FakeTime(oversleep=0.03125)
    below, env = _limited(fake)
    for _ in range(9):
        _step(env)
    assert below.began == [0.0, *(0.25 * count + 0.03125 for count in range(1, 9))]
    assert env.lateness == 0.03125
    assert env.late_steps == 0


def test_sleeping_too_short_is_slept_on() -> None:
    fake = FakeTime(share=0.5, oversleep=0.001)
    below, env = _limited(fake)
    for _ in range(3):
        _step(env)
    assert below.began[1] >= 0.25
    assert below.began[2] >= 0.5
    assert len(fake.slept) > 2


def test_a_step_that_is_a_little_late_keeps_the_grid() -> None:
    fake = FakeTime()
    below, env = _limited(fake)
    _step(env)
    fake.now += 0.375
    _step(env)
    assert (env.lateness, env.late_steps) == (0.125, 1)
    _step(env)
    assert below.began == [0.0, 0.375, 0.5]
    assert (env.lateness, env.late_steps) == (0.0, 1)


def test_lost_periods_are_not_made_up_for() -> None:
    fake = FakeTime()
    below, env = _limited(fake)
    _step(env)
    fake.now += 1.125
    for _ in range(3):
        _step(env)
    assert below.began == [0.0, 1.125, 1.375, 1.625]
    assert env.late_steps == 1


def test_a_reset_starts_the_grid_anew_but_a_masked_one_keeps_it() -> None:
    fake = FakeTime()
    below, env = _limited(fake, batch_size=2)
    _step(env)
    env.reset(mask=mask_of(env, True, False))
    _step(env)
    fake.now += 0.0625
    env.reset()
    _step(env)
    assert below.began == [0.0, 0.25, 0.3125]


def test_nothing_is_printed_or_warned(capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeTime()
    _, env = _limited(fake)
    _step(env)
    fake.now += 5.0
    _step(env)
    assert capsys.readouterr() == ("", "")


def test_the_real_clock_is_monotonic_time() -> None:
    env = ControlFrequencyLimitWrapper(CountEnv(NumpyComputeBackend), 0.01)
    env.reset(seed=0)
    began = time.monotonic()
    for _ in range(6):
        _step(env)
    assert time.monotonic() - began >= 0.05


def test_the_period_may_come_from_below() -> None:
    below = CountEnv(NumpyComputeBackend)
    below.control_timestep = 0.5  # type: ignore[attr-defined]
    assert ControlFrequencyLimitWrapper(below).control_dt == 0.5


@pytest.mark.parametrize("control_dt", [0.0, -1.0, np.inf, np.nan])
def test_the_period_is_checked(control_dt: float) -> None:
    with pytest.raises(ValueError, match="a period is a positive number of seconds"):
        ControlFrequencyLimitWrapper(CountEnv(NumpyComputeBackend), control_dt)
    with pytest.raises(ValueError, match=r"control_dt is not given, and .* has no control_timestep"):
        ControlFrequencyLimitWrapper(CountEnv(NumpyComputeBackend))
