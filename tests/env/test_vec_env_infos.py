"""Infos by way of rows in memory: always what the environments have said, stacked."""

from __future__ import annotations

import copy
import gc
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vec_envs import CounterEnv
from vec_processes import context, forks_with_threads, only_on_linux

from unienv_interface import AsyncVecEnv, SyncVecEnv
from unienv_interface.backends import ComputeBackend, NumpyComputeBackend
from unienv_interface.backends.pytorch import PyTorchComputeBackend
from unienv_interface.env_base.stacking import stack_infos
from unienv_interface.env_base.vector.infos import COLUMNS, INFO_ROW, InfoForm, InfoRows

pytestmark = forks_with_threads

Tell = Callable[[int, int], dict[str, Any]]  # from an environment's index and its step to its info


class TellingEnv(CounterEnv):
    """Its infos are what a function says."""

    def __init__(self, index: int, tell: Tell, backend: ComputeBackend = NumpyComputeBackend) -> None:
        super().__init__(index, backend=backend)
        self.tell = tell

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.tell(self.index, self.steps)


def numbers(index: int, step: int) -> dict[str, Any]:
    place = np.float64(index + step / 10)
    return {"place": place, "short": np.float32(place), "whole": np.uint8(step), "is_odd": np.bool_(step % 2)}


def pythons_own(index: int, step: int) -> dict[str, Any]:
    return {"place": index + step / 10, "is_odd": step % 2 == 1}


def other_form_now_and_then(index: int, step: int) -> dict[str, Any]:
    info: dict[str, Any] = {"place": np.float64(step)}
    if step % 5 == 0:
        info["more"] = np.int64(index)
    if step % 7 == 0:
        info["place"] = np.float32(index)  # another kind under the same name
    if step % 11 == 0:
        info["text"] = "words"
    return {} if step % 13 == 0 else info


def other_form_in_the_last(index: int, step: int) -> dict[str, Any]:
    return {"place": np.float64(step), "name" if index < 3 else "number": np.int32(index)}


def one_short_in_the_last(index: int, step: int) -> dict[str, Any]:
    return {"place": np.float32(step) if index == 3 and step % 3 else np.float64(step)}


def too_many(index: int, step: int) -> dict[str, Any]:
    return {f"number_{place}": np.float64(index * place + step) for place in range(COLUMNS + 1)}


def just_enough(index: int, step: int) -> dict[str, Any]:
    return {f"number_{place}": np.float64(index * place + step) for place in range(COLUMNS)}


def in_any_order(index: int, step: int) -> dict[str, Any]:
    info = {"a": np.float64(index), "b": np.float64(step)}
    return dict(reversed(info.items())) if (index + step) % 2 else info


def making_up_what_they_lack(index: int, step: int) -> dict[str, Any]:
    return defaultdict(float, {"a": float(index), "b" if step % 4 else "c": float(step)})


TELLING = [
    making_up_what_they_lack,
    numbers,
    pythons_own,
    other_form_now_and_then,
    other_form_in_the_last,
    one_short_in_the_last,
    too_many,
    just_enough,
    in_any_order,
]


def plain(info: Any) -> Any:
    """An info with types and dtypes, to be compared."""
    if isinstance(info, dict):
        return {key: plain(value) for key, value in info.items()}
    if hasattr(info, "dtype"):
        return type(info).__name__, str(info.dtype), info.tolist()
    return [(type(value).__name__, value) for value in info]


def make(kind: type, tell: Tell, backend: ComputeBackend = NumpyComputeBackend, **kwargs: Any) -> Any:
    if kind is AsyncVecEnv:
        kwargs["ctx"] = context("fork")  # whatever else the tests have loaded: it starts at once
    return kind([lambda index=index: TellingEnv(index, tell, backend) for index in range(4)], **kwargs)


@pytest.mark.parametrize("backend", [NumpyComputeBackend, PyTorchComputeBackend], ids=["numpy", "pytorch"])
@pytest.mark.parametrize("tell", TELLING)
def test_they_are_those_of_the_environments_stacked(tell: Tell, backend: ComputeBackend) -> None:
    action = backend.from_numpy(np.zeros((4, 2), np.float32))
    with make(SyncVecEnv, tell, backend) as here, make(AsyncVecEnv, tell, backend, num_workers=2) as apart:
        here.reset(seed=0), apart.reset(seed=0)
        for step in range(1, 31):
            expected = stack_infos([tell(index, step) for index in range(4)], backend)
            for env in (here, apart):
                found = env.step(action)[4]
                assert plain(found) == plain(expected)
                assert list(found) == list(expected)


@pytest.mark.parametrize("tell", TELLING)
def test_they_are_also_where_some_step_alone(tell: Tell) -> None:
    rng = np.random.default_rng(0)
    with make(SyncVecEnv, tell) as here, make(AsyncVecEnv, tell, num_workers=2) as apart:
        here.reset(seed=0), apart.reset(seed=0)
        for turn in range(30):
            index = None if turn % 3 else rng.permutation(4)[: rng.integers(1, 5)]
            action = np.zeros((4 if index is None else len(index), 2), np.float32)
            found = []
            for env in (here, apart):
                env.step_async(action, index=index)
                found.append(plain(env.step_wait()[4]))
            assert found[0] == found[1]


@pytest.mark.parametrize("kind", [SyncVecEnv, AsyncVecEnv])
def test_what_is_handed_out_does_not_change(kind: type) -> None:
    with make(kind, numbers, copy=False) as env:
        env.reset(seed=0)
        action = np.zeros((4, 2), np.float32)
        infos = [env.step(action)[4] for _ in range(4)]
        assert [info["whole"].tolist() for info in infos] == [[step] * 4 for step in (1, 2, 3, 4)]
        assert all(info["place"].flags.owndata and info["place"].flags.writeable for info in infos)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: cloudpickle.loads(cloudpickle.dumps(env))])
def test_a_copy_has_memory_of_its_own(copied: Callable[[Any], Any]) -> None:
    action = np.zeros((4, 2), np.float32)
    with make(SyncVecEnv, numbers, copy=False) as env:
        env.reset(seed=0)
        env.step(action), env.step(action)
        other = copied(env)
        for step in (3, 4):
            observation, _, _, _, info = other.step(action)
            assert info["whole"].tolist() == observation[:, 2].tolist() == [step] * 4
        observation, _, _, _, info = env.step(action)
        assert info["whole"].tolist() == observation[:, 2].tolist() == [3] * 4
        other.close()


def test_a_form_that_was_in_a_late_answer_is_not_taken_for_known(tmp_path: Path) -> None:
    """Two forms come one after the other, and the answer with the second one is thrown away."""
    release = tmp_path / "release"

    def tell(index: int, step: int) -> dict[str, Any]:
        if index == 1 and step == 3:
            watched = threading.Event()
            for _ in range(2000):
                if release.exists():
                    break
                watched.wait(0.01)
        kind: Any = np.float64 if step < 3 else np.float32
        return {"place": kind(step + index / 4)}

    with make(AsyncVecEnv, tell, num_workers=2, timeout=0.5) as env:
        env.reset(seed=0)
        action = np.zeros((4, 2), np.float32)
        env.step(action), env.step(action)
        with pytest.raises(TimeoutError):
            env.step(action)
        release.touch()
        env.timeout = 20.0
        env.reset(seed=0)
        env.call("reset", start=5)
        for step in (6, 7, 8):
            assert env.step(action)[4]["place"].tolist() == [step, step + 0.25, step + 0.5, step + 0.75]


@only_on_linux
def test_a_closed_one_holds_no_shared_memory() -> None:
    def mappings() -> int:
        gc.collect()  # of other tests'
        return Path("/proc/self/maps").read_text().count("(deleted)")

    before, kept = mappings(), []
    for _ in range(3):
        env = make(AsyncVecEnv, numbers, num_workers=2)
        env.reset(seed=0)
        for _ in range(3):
            env.step(np.zeros((4, 2), np.float32))
        assert mappings() > before
        env.close()
        kept.append(env)
    assert mappings() == before


# -- the parts ---------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.floats(),
    st.booleans(),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.booleans().map(np.bool_),
    st.integers(),
    st.text(),
    st.none(),
)
infos_of_some = st.lists(st.dictionaries(st.sampled_from("abc"), scalars, max_size=3), min_size=1, max_size=4)


def typed(infos: list[dict[str, Any]]) -> list[Any]:
    return [[(name, type(value), repr(value)) for name, value in info.items()] for info in infos]


@given(infos_of_some, infos_of_some)
def test_rows_hold_infos_of_their_form_without_loss_and_refuse_others(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    form = InfoForm.of(first)
    if form is None or len(second) != len(first):
        return
    area = np.zeros(len(first) + 3, INFO_ROW)
    own = range(2, 2 + len(first))
    rows = InfoRows(form, area, own)
    assert rows.write(first)
    assert typed(rows.read()) == typed(first)
    of_all = rows.stacked(NumpyComputeBackend, None)
    stacked = stack_infos(first, NumpyComputeBackend)
    assert list(of_all) == list(stacked)
    for name, column in stacked.items():
        assert of_all[name].dtype == column.dtype
        np.testing.assert_array_equal(of_all[name][own.start : own.stop], column)
        assert not np.shares_memory(of_all[name], area)
    assert not area[:2].any()
    assert not area[own.stop :].any()
    assert rows.write(second) == (InfoForm.of(second) == form)


def test_alike_infos_have_a_form() -> None:
    assert InfoForm.of([numbers(index, 1) for index in range(3)]) is not None
    assert InfoForm.of([pythons_own(index, 1) for index in range(3)]) is not None
    assert InfoForm.of([just_enough(0, 1)]) is not None
    assert InfoForm.of([too_many(0, 1)]) is None
    assert InfoForm.of([numbers(0, 1), pythons_own(1, 1)]) is None
    assert InfoForm.of([{"count": 1}]) is None  # an int may be of any size
    assert InfoForm.of([{}]) is None
    assert InfoForm.of([]) is None
