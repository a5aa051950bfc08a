"""The functional buffer against a list of what was added, in and out of compiled functions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unienv_data import FuncReplayBuffer, ReplayBuffer
from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space.spaces import BinarySpace, BoxSpace, DictSpace, TextSpace, TupleSpace

jax = pytest.importorskip("jax")
jax_backend = pytest.importorskip("unienv_interface.backends.jax").JaxComputeBackend

LANES, STEPS, GAMMA = 3, 8, 0.5


def box(*shape: int, backend: Any = jax_backend) -> BoxSpace:
    return BoxSpace(backend, -np.inf, np.inf, "float32", shape=shape)


def transitions(backend: Any = jax_backend) -> DictSpace:
    flag = BinarySpace(backend, ())
    obs = {"where": box(2, backend=backend)}
    return DictSpace(
        backend,
        {"obs": obs, "next_obs": obs, "reward": box(backend=backend), "terminated": flag, "truncated": flag},
    )


def as_rows(step: dict[str, np.ndarray]) -> dict[str, Any]:
    """A step of all lanes as it is added."""
    where, flags = step["where"], {name: step[name] for name in ("reward", "terminated", "truncated")}
    return {"obs": {"where": where}, "next_obs": {"where": where + np.float32([0, 1])}, **flags}


def add_steps(counts: list[int], seed: int = 0, lanes: int = LANES) -> tuple[Any, list[dict[str, np.ndarray]]]:
    """Add steps, so many at a time; returns the state and all of them as a list. An observation is [lane, time]."""
    rng, state, model = np.random.default_rng(seed), make_buffer(lanes).init(), []
    for count in counts:
        added = []
        for _ in range(count):
            where = np.stack([np.arange(lanes), np.full(lanes, len(model))], axis=-1).astype(np.float32)
            ended = rng.random((2, lanes)) < 0.2
            reward = rng.integers(0, 64, lanes).astype(np.float32)
            step = {"where": where, "reward": reward, "terminated": ended[0], "truncated": ended[1]}
            model.append(step)
            added.append(as_rows(step))
        rows = jax.tree.map(lambda *arrays: np.stack(arrays), *added) if count > 1 else added[0]
        state = compiled(lanes, "add")(state, rows)
    return state, model


FULL = [1, 4, 1, 4, 1]  # eleven steps into room for eight, with a seam in the middle of a block


def held_of(model: list[Any]) -> range:
    return range(max(0, len(model) - STEPS), len(model))


@functools.cache
def make_buffer(lanes: int = LANES) -> FuncReplayBuffer:
    return FuncReplayBuffer(transitions(), STEPS * lanes, batch=lanes)


@functools.cache
def compiled(lanes: int, verb: str, *static: Any) -> Any:
    """A method of a buffer with its last arguments fixed; compiled once for all tests."""
    method = getattr(make_buffer(lanes), verb)
    return jax.jit(lambda *args: method(*args, *static))


def draw(state: Any, verb: str, *static: Any, key: int = 0) -> Any:
    """What a method draws for the lanes of most tests, on the host."""
    return jax.tree.map(np.asarray, compiled(LANES, verb, *static)(state, jax.random.PRNGKey(key)))


# -- what is drawn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[1], [1, 4], FULL])
def test_every_row_that_is_held_is_drawn_and_no_other(counts: list[int]) -> None:
    state, model = add_steps(counts)
    rows = draw(state, "sample", 2048)
    drawn, times = np.unique(rows["obs"]["where"], axis=0, return_counts=True)
    wanted = [[lane, step] for lane in range(LANES) for step in held_of(model)]
    assert drawn.tolist() == wanted
    assert times.min() > 0.5 * 2048 / len(wanted)
    for lane, step, reward, follower in zip(
        *rows["obs"]["where"].astype(int).T, rows["reward"], rows["next_obs"]["where"], strict=True
    ):
        assert reward == model[step]["reward"][lane]
        assert follower.tolist() == [lane, step + 1]


@pytest.mark.parametrize("counts", [[1, 4], FULL])
def test_windows_follow_one_environment_and_know_its_episodes(counts: list[int]) -> None:
    length = 4
    state, model = add_steps(counts, seed=3)
    windows = draw(state, "sample_windows", 600, length)
    where, valid = windows.rows["obs"]["where"].astype(int), windows.valid
    starts = {tuple(window[0]) for window in where.tolist()}
    assert starts == {(lane, step) for lane in range(LANES) for step in held_of(model)[: -length + 1]}
    for window, mask in zip(where, valid, strict=True):
        lane, first = window[0]
        assert window.tolist() == [[lane, first + offset] for offset in range(length)]
        goes_on, wanted = True, []
        for offset in range(length):
            wanted.append(goes_on)
            goes_on &= not (model[first + offset]["terminated"][lane] or model[first + offset]["truncated"][lane])
        assert mask.tolist() == wanted


@pytest.mark.parametrize("counts", [[1], [1, 4], FULL])
@pytest.mark.parametrize("steps", [1, 3])
def test_n_steps_are_those_of_a_loop(counts: list[int], steps: int) -> None:
    state, model = add_steps(counts, seed=5)
    host = draw(state, "sample_n_step", 400, steps, GAMMA)
    seen = set()
    for row in range(400):
        lane, first = host["obs"]["where"][row].astype(int)
        seen.add((lane, first))
        reward, step = 0.0, first
        for offset in range(steps):
            step = first + offset
            reward += GAMMA**offset * model[step]["reward"][lane]
            if model[step]["terminated"][lane] or model[step]["truncated"][lane] or step + 1 == len(model):
                break
        assert host["reward"][row] == reward  # powers of a half are exact
        assert host["next_obs"]["where"][row].tolist() == [lane, step + 1]
        assert host["terminated"][row] == model[step]["terminated"][lane]
        assert host["truncated"][row] == model[step]["truncated"][lane]
        assert host["discount"][row] == (0 if host["terminated"][row] else GAMMA ** (step + 1 - first))
    assert seen == {(lane, step) for lane in range(LANES) for step in held_of(model)}


def test_one_key_draws_one_batch() -> None:
    state, _ = add_steps(FULL)
    draws = [draw(state, "sample", 64, key=key)["obs"]["where"] for key in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_adding_and_sampling_inside_a_scan() -> None:
    """A scan gives what the functions give one after the other."""
    buffer, verbs = make_buffer(), (("sample", 64), ("sample_windows", 4, 3), ("sample_n_step", 400, 3, GAMMA))
    rows = [as_rows(step) for step in add_steps([1] * 11, seed=7)[1]]

    def step(state: Any, inputs: Any) -> Any:
        state = buffer.add(state, inputs[0])
        return state, [getattr(buffer, verb)(state, inputs[1], *static) for verb, *static in verbs]

    inputs = (jax.tree.map(lambda *steps: np.stack(steps), *rows), jax.random.split(jax.random.PRNGKey(0), len(rows)))
    scanned, drawn = jax.jit(lambda state: jax.lax.scan(step, state, inputs))(buffer.init())
    drawn = jax.tree.map(np.asarray, drawn)
    state = buffer.init()
    for number, added in enumerate(rows):
        state = compiled(LANES, "add")(state, added)
        wanted = [compiled(LANES, *verb)(state, inputs[1][number]) for verb in verbs]
        found = jax.tree.map(lambda array, number=number: array[number], drawn)
        assert jax.tree.all(jax.tree.map(np.array_equal, found, wanted))
    assert jax.tree.all(jax.tree.map(np.array_equal, scanned, state))


# -- written out -------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(counts=st.lists(st.sampled_from([1, 4]), max_size=6), lanes=st.sampled_from([1, LANES]), seed=st.integers(0, 99))
def test_a_replay_buffer_has_the_rows_and_their_episodes(counts: list[int], lanes: int, seed: int) -> None:
    state, model = add_steps(counts, seed, lanes)
    found = make_buffer(lanes).to_replay_buffer(state)
    held = held_of(model)
    assert (len(found), found.capacity, found.lanes) == (len(held) * lanes, STEPS * lanes, lanes)
    wanted, cut = list[tuple[int, int]](), list[tuple[int, int]]()
    for lane in range(lanes):
        start = 0
        for place, step in enumerate(held):
            if model[step]["terminated"][lane] or model[step]["truncated"][lane] or step == held[-1]:
                wanted.append((start * lanes + lane, place * lanes + lane + 1))
                if not (model[step]["terminated"][lane] or model[step]["truncated"][lane]):
                    cut.append(wanted[-1])
                start = place + 1
    segments = [tuple(range(start, stop, lanes)) for start, stop in found.get_segments() or []]
    assert sorted(segments) == sorted(tuple(range(start, stop, lanes)) for start, stop in wanted)
    assert found.cut_episodes() == sorted(cut)
    if held:
        where = np.asarray(found.get_at(slice(None))["obs"]["where"])
        assert where.tolist() == [[lane, step] for step in held for lane in range(lanes)]
    found.close()


def test_a_replay_buffer_may_lie_on_disk(tmp_path: Any) -> None:
    buffer = make_buffer()
    state, _ = add_steps(FULL)
    buffer.to_replay_buffer(state, cache_path=tmp_path / "replay").close()
    loaded = ReplayBuffer.load_from(tmp_path / "replay", backend=NumpyComputeBackend)
    assert len(loaded) == STEPS * LANES
    assert loaded.get_at(0)["obs"]["where"].tolist() == [0.0, 3.0]
    loaded.close()


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "capacity", "batch", "text"),
    [
        (box(2), 10, 0, "batch is 0, it must be at least 1"),
        (box(2), 10, 3, "capacity is 10, it must be a multiple of batch, which is 3"),
        (box(2), 0, 1, "capacity is 0, it must be a multiple of batch"),
        (box(2), 2**31, 1, "capacity is 2147483648, it must be less than"),
        (DictSpace(jax_backend, {"terminated": box()}), 10, 1, "terminated: Box.* is a BinarySpace of shape"),
        (box(2, backend=NumpyComputeBackend), 10, 1, "the space is on numpy, .* arrays of JAX"),
        (
            DictSpace(jax_backend, {"note": TupleSpace(jax_backend, (box(2), TextSpace(jax_backend, 3)))}),
            10,
            1,
            "/note/1: Text.* arrays of fixed shape only",
        ),
    ],
)
def test_odd_buffers_are_refused(space: Any, capacity: int, batch: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FuncReplayBuffer(space, capacity, batch)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ((np.zeros((3, 2), np.float32), np.zeros(3, int)), "/1: dtype int64, the space wants float32"),
        ((np.zeros((3, 2), np.float32),), r"rows: tuple with \[0\], the space wants \[0, 1\]"),
        ({"a": np.zeros(3, np.float32)}, r"rows: dict with \['a'\], the space wants \[0, 1\]"),
        (np.zeros(3, np.float32), r"rows: ndarray with \[\], the space wants \[0, 1\]"),
        ((np.zeros((3, 2), np.float32), [0.0, 1.0, 2.0]), "/1: list, the space wants an array"),
        ((np.zeros((3, 5), np.float32), np.zeros(3, np.float32)), r"/0: shape \(3, 5\), wanted leading axes .* \(2,\)"),
        ((np.zeros((3, 2), np.float32), np.zeros((1, 3), np.float32)), "rows have different leading axes"),
        ((np.zeros((2, 2), np.float32), np.zeros(2, np.float32)), r"leading axes \(2,\), wanted \(3,\) or \(T, 3\)"),
        (
            (np.zeros((5, 3, 2), np.float32), np.zeros((5, 3), np.float32)),
            "5 steps of 3 rows, there is room for 1 to 4",
        ),
    ],
)
def test_rows_that_do_not_fit_are_named(rows: Any, text: str) -> None:
    buffer = FuncReplayBuffer(TupleSpace(jax_backend, (box(2), box())), 12, batch=3)
    with pytest.raises(ValueError, match=text):
        buffer.add(buffer.init(), rows)


def test_rows_of_64_bits_are_stored_as_the_space_has_them() -> None:
    buffer = FuncReplayBuffer(box(), 4, batch=2)
    state = buffer.add(buffer.init(), np.array([0.5, 1.5]))
    assert (state.data.dtype, state.data[0].tolist()) == (np.float32, [0.5, 1.5])


def test_what_is_not_there_is_not_drawn() -> None:
    buffer, key = make_buffer(), jax.random.PRNGKey(0)
    with pytest.raises(ValueError, match="holds 0 steps of each environment, 1 are wanted"):
        buffer.sample(buffer.init(), key, 4)
    state, _ = add_steps([1, 1])
    with pytest.raises(ValueError, match="holds 2 steps of each environment, 3 are wanted"):
        buffer.sample_windows(state, key, 4, 3)
    with pytest.raises(ValueError, match="length is 9, it must be from 1 to 8"):
        buffer.sample_windows(state, key, 4, 9)
    with pytest.raises(ValueError, match="steps is 0, it must be from 1 to 8"):
        buffer.sample_n_step(state, key, 4, 0, GAMMA)
    plain = FuncReplayBuffer(DictSpace(jax_backend, {"reward": box()}), 8)
    with pytest.raises(ValueError, match="no column 'terminated', n steps want reward, terminated, truncated"):
        plain.sample_n_step(plain.init(), key, 4, 2, GAMMA)


def test_compiled_windows_of_too_few_rows_say_so() -> None:
    state, _ = add_steps([1])
    assert draw(state, "sample_windows", 4, 3).valid.tolist() == [[True, False, False]] * 4
