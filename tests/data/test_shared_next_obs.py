"""Observations that are stored once read as if they were stored twice, whatever is done to the buffer."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupter import Interrupter, interrupt
from recording_envs import check_recording, full_space, vector
from test_collection_recording import drive
from test_replay_buffer_processes import HERE, run
from transition_play import Play, same, spaces_of

import unienv_data
from unienv_data import (
    FrameStackedBatch,
    HindsightBatch,
    MultiprocessingSampler,
    NStepBatch,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    SliceStackedBatch,
    StepSampler,
    transition_space,
)
from unienv_data.checking import convert, info
from unienv_data.replay_buffer import _state, _writer
from unienv_data.storages import packed, shared_next_obs
from unienv_data.storages.dict_storage import DictStorage
from unienv_data.storages.packed import PackedStorage
from unienv_data.storages.shared_next_obs import SharedNextObsSpace, SharedNextObsStorage
from unienv_interface.backends import NumpyComputeBackend, deserialize_backend
from unienv_interface.space.space_utils import concatenate, json_to_space, reshape_batch_size_in_data, space_to_json
from unienv_interface.space.spaces import BoxSpace, DictSpace, DynamicBoxSpace

NUMPY = NumpyComputeBackend


class Pair:
    """A buffer that stores observations once and one that stores them twice, to which the same is done."""

    def __init__(self, kind: str, place: str, lanes: int, capacity: int | None, folder: Path, seed: int) -> None:
        self.play, self.place, self.folder = Play(kind, lanes, seed), place, folder
        self.chance, self.dumps = random.Random(seed), 0
        options: dict[str, Any] = {"capacity": capacity, "lanes": lanes, "maintain_segment_metadata": True}
        if place == "shared memory":
            options["multiprocessing"] = True
        self.twice = ReplayBuffer.create(self.play.space, **options)
        self.once = ReplayBuffer.create(
            SharedNextObsSpace(NUMPY, spaces_of(kind)),
            cache_path=folder / "once" if place == "disk" else None,
            **options,
        )
        assert isinstance(self.once.storage, SharedNextObsStorage)

    @property
    def both(self) -> tuple[ReplayBuffer, ReplayBuffer]:
        return self.twice, self.once

    def act(self) -> None:
        kinds = ["write", "extend", "end", "drop", "clear", "reopen", "dump", "copy"]
        kind = self.chance.choices(kinds, [20, 4, 2, 2, 0.3, 1, 0.5, 0.5])[0]
        getattr(self, f"_{kind}")()

    def _write(self) -> None:
        lanes = self.play.lanes
        if lanes == 1:
            value, ended = self.play.step()
            for buffer in self.both:
                buffer.append(value)
                if ended:
                    buffer.mark_segment_end()
            return
        count = self.chance.choice([1, 1, 1, 3])
        batch, ended = self.play.steps(count)
        if count > 1:
            batch = reshape_batch_size_in_data(NUMPY, batch, (count * lanes,), (count, lanes))
            ended = ended.reshape(count, lanes)
        for buffer in self.both:
            buffer.extend_lanes(batch, ended)

    def _extend(self) -> None:
        if self.play.lanes > 1 or self.twice.has_open_segment:
            return self._end()
        batch, _ = self.play.steps(self.chance.choice([1, 4, 9, 40]))
        for buffer in self.both:
            buffer.extend(batch)
        return None

    def _end(self) -> None:
        for buffer in self.both:
            buffer.mark_segment_end()

    def _drop(self) -> None:
        count = min(len(self.twice), self.play.lanes * self.chance.choice([1, 2, 5]))
        for buffer in self.both:
            buffer.remove_at(np.arange(count))

    def _clear(self) -> None:
        for buffer in self.both:
            buffer.clear()

    def _reopen(self) -> None:
        if self.place == "disk":
            if self.chance.random() < 0.5:
                self.once.close()
            else:
                self.once._state.folder_lock.release()  # as if the process had been killed
            self.once = ReplayBuffer.load_from(self.folder / "once", backend=NUMPY, read_only=False)

    def _dump(self) -> None:
        self._end()
        self.once.dumps(self.folder / "dump")
        with ReplayBuffer.load_from(self.folder / "dump", backend=NUMPY) as dumped:
            self.compare(dumped)
            assert dumped.verify() == []

    def _copy(self) -> None:
        self._end()
        options: Any = {"lanes": self.play.lanes, "maintain_segment_metadata": True}
        copied = ReplayBuffer.create(SharedNextObsSpace(NUMPY, self.play.space.spaces), **options)
        copied.extend_from(self.once, chunk_size=7)
        self.compare(copied)

    def compare(self, once: ReplayBuffer) -> None:
        twice = self.twice
        assert len(once) == len(twice)
        assert once.get_segments() == twice.get_segments()
        same(once.get_at(...), twice.get_at(...))
        if not len(twice):
            return
        chosen = np.array([self.chance.randrange(len(twice)) for _ in range(8)])
        same(once.get_at(chosen), twice.get_at(chosen))
        same(once.get_at(int(chosen[0])), twice.get_at(int(chosen[0])))
        for key in ("obs", "next_obs", "action"):
            same(once.get_column_at((key,), chosen), twice.get_column_at((key,), chosen))
        for view in (FrameStackedBatch, lambda batch, count: SliceStackedBatch(batch, np.array([-count, 0, 2]))):
            (some, ours), (others, theirs) = (view(buffer, 3).get_at_with_metadata(chosen) for buffer in (once, twice))
            same(some, others)
            same(ours, theirs)


@contextmanager
def playing(*arguments: Any) -> Iterator[Pair]:
    pair = Pair(*arguments)
    try:
        yield pair
    finally:
        for buffer in pair.both:
            buffer.close()


PLACES = ["memory", "disk", "shared memory"]
SIZES = [(1, None), (1, 30), (1, 2), (3, None), (3, 30), (3, 3)]
CASES = [("vector", lanes, capacity, place) for lanes, capacity in SIZES for place in PLACES]
CASES += [("mixed", 1, 30, "disk"), ("mixed", 3, 30, "memory"), ("mixed", 3, None, "disk"), ("scalar", 1, 9, "disk")]


@pytest.mark.parametrize(("kind", "lanes", "capacity", "place"), CASES)
def test_batches_are_those_of_a_buffer_that_stores_next_obs(
    kind: str, lanes: int, capacity: int | None, place: str, tmp_path: Path
) -> None:
    with playing(kind, place, lanes, capacity, tmp_path, 7) as pair:
        for step in range(120):
            pair.act()
            if step % 5 == 0:
                pair.compare(pair.once)
                assert pair.once.verify() == []


# -- as it is recorded ---------------------------------------------------------------------------------------


def recorded_into(mode: str, env: Any, **options: Any) -> Any:
    space, slots = full_space(env), env.batch_size or 1
    shared = SharedNextObsSpace(space.backend, space.spaces)
    if mode == "per_env":
        return [ReplayBuffer.create(shared, keep_episodes=True, **options) for _ in range(slots)]
    return ReplayBuffer.create(shared, keep_episodes=True, lanes=slots, **options)


@pytest.mark.parametrize("mode", ["per_env", "interleaved"])
@pytest.mark.parametrize(("kind", "backend"), [("sync", "numpy"), ("async", "numpy"), ("sync", "pytorch")])
def test_a_recording_is_what_a_caller_saw(mode: str, kind: str, backend: str) -> None:
    # some slots are reset in the middle of an episode, and episodes end in both ways
    env = vector(kind, 3, backend=deserialize_backend(backend))
    buffers = recorded_into(mode, env)
    with ReplayBufferCollectionWrapper(env, buffers, replay_mode=mode) as wrapper:  # type: ignore[arg-type]
        log = drive(wrapper, 60, is_async=kind == "async")
        found = buffers if mode == "per_env" else [buffers]
        assert all(isinstance(buffer.storage, SharedNextObsStorage) for buffer in found)
        check_recording(mode, found, log)


def test_rows_of_all_slots_in_turn_are_refused() -> None:
    env = vector("sync", 3)
    buffer = ReplayBuffer.create(transition_space(env, next_obs="shared"))
    with pytest.raises(ValueError, match="a buffer with lanes=3"):
        ReplayBufferCollectionWrapper(env, buffer, replay_mode="shared")


# -- how little it takes -------------------------------------------------------------------------------------


def frames(count: int, seed: int, capacity: int, **options: Any) -> ReplayBuffer:
    """So many steps of an environment with frames of 84 times 84, in episodes of 200."""
    obs = BoxSpace(NUMPY, 0, 255, "uint8", shape=(84, 84))
    rest = {"action": BoxSpace(NUMPY, 0, 17, "int32", shape=()), "reward": BoxSpace(NUMPY, -1, 1, "float32", shape=())}
    flags = {name: spaces_of("vector")["terminated"] for name in ("terminated", "truncated")}
    space = SharedNextObsSpace(NUMPY, {"obs": obs, "next_obs": obs, **rest, **flags})
    buffer = ReplayBuffer.create(space, capacity=capacity, keep_episodes=True, **options)
    rng = np.random.default_rng(seed)
    for start in range(0, count, 200):
        length = min(200, count - start)
        seen = rng.integers(0, 256, (length + 1, 84, 84), np.uint8)
        columns = {key: np.zeros(length, buffer.single_space[key].dtype) for key in (*rest, *flags)}
        buffer.extend({"obs": seen[:-1], "next_obs": seen[1:], **columns})
    return buffer


def test_frames_take_little_more_than_themselves(tmp_path: Path) -> None:
    with frames(3000, 0, 2000, cache_path=tmp_path / "frames") as buffer:
        assert buffer.storage.nbytes / len(buffer) <= 7200
    files = sum(file.stat().st_blocks * 512 for file in (tmp_path / "frames").rglob("*"))
    assert files / 2000 <= 7200


def test_first_observations_take_the_room_of_those_that_are_gone() -> None:
    buffer = frames(100, 0, 50)
    for seed in range(60):  # each of them one episode of a single step
        step = {key: np.asarray(value) for key, value in buffer.get_at(0).items()}
        buffer.extend({key: np.full((10, *value.shape), seed, value.dtype) for key, value in step.items()})
        buffer.extend({key: np.full((1, *value.shape), 100 + seed, value.dtype) for key, value in step.items()})
        same(buffer.get_at(-1)["obs"], np.full((84, 84), 100 + seed, np.uint8))
    assert len(buffer.storage._firsts) <= 2 * 51  # type: ignore[attr-defined]


# -- what happens meanwhile ----------------------------------------------------------------------------------


def test_nothing_is_lost_in_twenty_kills() -> None:
    assert "nothing lost" in run(str(HERE / "kill_shared_next_obs.py"), "--kills", "20")


@pytest.mark.soak
def test_nothing_is_lost_in_two_thousand_kills() -> None:
    assert "nothing lost" in run(str(HERE / "kill_shared_next_obs.py"), "--kills", "2000", "--seed", "9")


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_interrupt_anywhere(on_disk: bool, tmp_path: Path) -> None:
    ours = (_state, _writer, packed, shared_next_obs)
    values = [value for value, _ in (play.step() for play in [Play("vector", 1, 4)] for _ in range(40))]
    space = SharedNextObsSpace(NUMPY, spaces_of("vector"))
    for at in range(1, 1000, 7 if on_disk else 1):
        path = tmp_path / str(at) if on_disk else None
        with ReplayBuffer.create(space, capacity=6, cache_path=path, keep_episodes=True) as buffer:
            buffer.extend(concatenate(space, values[:10]))
            with suppress(KeyboardInterrupt), Interrupter(ours, at, interrupt) as points:
                buffer.extend(concatenate(space, values[10:14]))
            is_there = buffer.sample_numbers.stop == 10
            buffer.extend(concatenate(space, values[20:22]))
            wanted = [*values[:10], *(values[10:14] if is_there else []), *values[20:22]]
            same(buffer.get_at(...), concatenate(space, wanted[-len(buffer) :]))
            assert len(buffer) == 6 or not is_there
            assert buffer.verify() == []
        if points.count < at:
            break
    assert 1 < at < 990


def test_observations_that_are_alike_belong_to_their_samples(tmp_path: Path) -> None:
    space = SharedNextObsSpace(NUMPY, spaces_of("scalar"))
    count = 9
    batch = {key: np.zeros((count, *leaf.shape), leaf.dtype) for key, leaf in space.spaces.items()}
    with ReplayBuffer.create(space, cache_path=tmp_path / "buffer", capacity=4) as buffer:
        for size in (3, 9, 2, 4, 1, 1):
            buffer.extend({key: column[:size] for key, column in batch.items()})
            assert buffer.verify() == []
            if size == 2:
                buffer.clear()
    with ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY, read_only=False) as buffer:
        buffer.extend(batch)
        assert buffer.verify() == []


def test_a_reader_sees_no_torn_samples() -> None:
    space = SharedNextObsSpace(NUMPY, spaces_of("scalar"))
    buffer = ReplayBuffer.create(space, capacity=5)

    def transition(number: int) -> dict[str, Any]:
        obs = -number if number % 3 == 0 else number - 1
        action = np.full(2, number % 7 / 7, np.float32)
        flow = {"reward": np.float32(number), "terminated": np.False_}
        return {"obs": np.int64(obs), "next_obs": np.int64(number), "action": action, **flow}

    def write() -> None:
        for number in range(1, 4000):
            buffer.append(transition(number))

    buffer.append(transition(0))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            batch = buffer.get_at(slice(0, 2))
            for place in range(len(batch["obs"])):
                wanted = transition(int(batch["next_obs"][place]))
                assert batch["obs"][place] == wanted["obs"]
                assert np.array_equal(batch["action"][place], wanted["action"])
        writing.result()


def test_writers_take_turns(tmp_path: Path) -> None:
    play, space = Play("vector", 1, 5), SharedNextObsSpace(NUMPY, spaces_of("vector"))
    options: Any = {"capacity": 70, "keep_episodes": True}
    twice = ReplayBuffer.create(play.space, **options)
    first = ReplayBuffer.create(space, cache_path=tmp_path / "buffer", multiprocessing=True, **options)
    second = ReplayBuffer.load_from(tmp_path / "buffer", backend=NUMPY, read_only=False, multiprocessing=True)
    for turn, writer in enumerate([first, second] * 6):
        for _ in range(40 if turn < 2 else 5):
            play.ended[0] = True  # so that each has a first observation
            batch, _ = play.steps(1)
            for buffer in (twice, writer):
                buffer.extend(batch)
        for reader in (first, second):
            same(reader.get_at(...), twice.get_at(...))
            assert reader.verify() == []
    first.close()
    second.close()


def test_processes_write_and_read_one_buffer() -> None:
    space = SharedNextObsSpace(NUMPY, spaces_of("vector"))
    buffer = ReplayBuffer.create(space, capacity=500, multiprocessing=True, keep_episodes=True)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_episodes, args=(buffer, seed)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    _write_episodes(buffer, 3)
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    wanted = {seed: _episodes(seed) for seed in (1, 2, 3)}
    segments = buffer.get_segments() or []
    assert len(segments) == 3 * len(wanted[1])
    left = {(seed, place) for seed in wanted for place in range(len(wanted[1]))}
    for start, stop in segments:
        found = buffer.get_at(slice(start, stop))
        which = next(one for one in left if np.array_equal(wanted[one[0]][one[1]]["obs"], found["obs"]))
        same(found, wanted[which[0]][which[1]])
        left.remove(which)
    assert buffer.verify() == []
    buffer.close()


def _episodes(seed: int) -> list[Any]:
    play = Play("vector", 1, seed)
    return [play.steps(length)[0] for length in (5, 1, 12, 3) * 4]


def _write_episodes(buffer: ReplayBuffer, seed: int) -> None:
    for episode in _episodes(seed):
        buffer.extend(episode)


# -- who reads it --------------------------------------------------------------------------------------------


def test_samplers_draw_the_same(tmp_path: Path) -> None:
    with playing("mixed", "disk", 1, 64, tmp_path, 3) as pair:
        for _ in range(90):
            pair._write()
        for make in (
            lambda buffer: StepSampler(buffer, 16, seed=1),
            lambda buffer: StepSampler(buffer, 16, seed=1, sampler=PrioritizedSampler()),
            lambda buffer: StepSampler(FrameStackedBatch(buffer, 3), 16, seed=1),
            lambda buffer: StepSampler(NStepBatch(buffer, 3, 0.9), 16, seed=1),
        ):
            once, twice = make(pair.once), make(pair.twice)
            for _ in range(5):
                ours, theirs = once.sample_with_metadata(), twice.sample_with_metadata()
                same(ours[0], theirs[0])
                same(ours[1], theirs[1])
        pair.once.close()
        with ReplayBuffer.load_from(tmp_path / "once", backend=NUMPY) as reader:
            inner = StepSampler(FrameStackedBatch(reader, 3), 16, seed=1)
            alone = StepSampler(FrameStackedBatch(pair.twice, 3), 16, seed=1)
            with MultiprocessingSampler(inner, n_workers=2) as workers:
                for _ in range(4):
                    same(workers.sample(), alone.sample())


def test_hindsight_relabels_the_same(tmp_path: Path) -> None:
    def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return -np.abs(achieved - desired).sum(axis=-1)

    with playing("goal", "memory", 3, 60, tmp_path, 3) as pair:
        for _ in range(40):
            pair._write()
        once, twice = (HindsightBatch(buffer, reward=reward, seed=4) for buffer in pair.both)
        for _ in range(5):
            same(once.get_at(np.arange(60)), twice.get_at(np.arange(60)))
            ours, theirs = (NStepBatch(view, 3, 0.9).get_at(np.arange(60)) for view in (once, twice))
            same(ours, theirs)


@pytest.mark.parametrize("capacity", [None, 48])
def test_a_recording_is_checked_repaired_and_converted(capacity: int | None, tmp_path: Path) -> None:
    with playing("mixed", "disk", 1, capacity, tmp_path, 11) as pair:
        for _ in range(120):
            pair._write()
        pair._end()
        pair.once.close()
        folder, count = tmp_path / "once", len(pair.twice)
        assert [finding for finding in unienv_data.check(folder).findings if finding.kind == "checksum"] == []
        report = info(folder)
        assert (report.samples, report.capacity, report.shares_next_obs) == (count, capacity, True)
        assert report.bytes_per_sample < info_of_twice(pair, tmp_path)
        for target, is_shared in (("packed", True), ("hdf5", False)):
            convert(folder, tmp_path / target, target)
            with ReplayBuffer.load_from(tmp_path / target, backend=NUMPY) as converted:
                pair.compare(converted)
                assert isinstance(converted.storage, SharedNextObsStorage) == is_shared
        self_damage(folder, count)
        (damaged,) = (finding for finding in unienv_data.check(folder).findings if finding.kind == "checksum")
        assert "do not match their checksum" in damaged.text
        repaired = unienv_data.repair(folder, tmp_path / "repaired")
        # the sample whose row it is, and the one after it where that has its observation there
        assert count - 2 <= repaired.samples < count
        with ReplayBuffer.load_from(tmp_path / "repaired", backend=NUMPY) as buffer:
            assert isinstance(buffer.storage, SharedNextObsStorage)
            kept = {value.tobytes() for value in pair.twice.get_at(...)["next_obs"]["state"]}
            assert {value.tobytes() for value in buffer.get_at(...)["next_obs"]["state"]} < kept
            assert buffer.verify() == []


def info_of_twice(pair: Pair, folder: Path) -> int:
    pair.twice.dumps(folder / "twice")
    return info(folder / "twice").bytes_per_sample


def self_damage(folder: Path, count: int) -> None:
    """Change a byte of the observation of a sample in the middle."""
    with ReplayBuffer.load_from(folder, backend=NUMPY) as buffer:
        slot = buffer._state.slot(buffer.sample_numbers.start + count // 2)
    with open(folder / "storage" / "rows" / "block-1.bin", "r+b") as file:
        file.seek(slot * 65 * 64)
        (byte,) = file.read(1)
        file.seek(slot * 65 * 64)
        file.write(bytes([byte ^ 1]))


# -- what is asked for ---------------------------------------------------------------------------------------


def test_the_space_is_like_any_other() -> None:
    env = vector("sync", 2)
    shared, plain = transition_space(env, next_obs="shared"), transition_space(env)
    assert shared == plain
    assert plain == shared
    assert hash(shared) == hash(plain)
    assert isinstance(shared.to(deserialize_backend("pytorch")), SharedNextObsSpace)
    assert isinstance(json_to_space(space_to_json(shared), NUMPY), SharedNextObsSpace)
    buffer = ReplayBuffer.create(PackedStorage, shared, capacity=10, lanes=2)
    assert isinstance(buffer.storage, SharedNextObsStorage)
    assert type(buffer.single_space) is DictSpace
    assert buffer.capacity == 10
    by_name = ReplayBuffer.create("shared_next_obs", plain)
    assert isinstance(by_name.storage, SharedNextObsStorage)
    with pytest.raises(ValueError, match="next_obs is 'once', it must be True, False or 'shared'"):
        transition_space(env, next_obs="once")  # type: ignore[arg-type]


def test_what_cannot_be_stored_once_is_refused(tmp_path: Path) -> None:
    vector_space, spaces = BoxSpace(NUMPY, -1, 1, "float32", shape=(3,)), spaces_of("vector")
    with pytest.raises(ValueError, match=r"NPZStorage cannot store observations once.*next_obs=True"):
        ReplayBuffer.create("npz", SharedNextObsSpace(NUMPY, spaces), cache_path=tmp_path / "npz")
    with pytest.raises(ValueError, match="with the keys 'obs' and 'next_obs'"):
        ReplayBuffer.create(SharedNextObsStorage, vector_space)
    with pytest.raises(ValueError, match="to be stored once, they must agree"):
        ReplayBuffer.create(SharedNextObsSpace(NUMPY, {**spaces, "obs": vector_space}))
    loose = DynamicBoxSpace(NUMPY, 0, 1, (1,), (5,), "float32")
    with pytest.raises(ValueError, match=r"obs: .* has no fixed size"):
        ReplayBuffer.create(SharedNextObsSpace(NUMPY, {"obs": loose, "next_obs": loose}))
    with pytest.raises(ValueError, match="SharedNextObsStorage cannot lie inside another storage"):
        DictStorage.create(DictSpace(NUMPY, spaces), {"*": SharedNextObsStorage}, capacity=4)


def test_samples_in_the_middle_stay_as_they_are() -> None:
    play = Play("vector", 1, 0)
    buffer = ReplayBuffer.create(SharedNextObsSpace(NUMPY, spaces_of("vector")))
    buffer.extend(play.steps(5)[0])
    before = buffer.get_at(...)
    with pytest.raises(PermissionError, match=r"samples cannot be overwritten or moved.*extend_from"):
        buffer.set_at(0, play.step()[0])
    with pytest.raises(PermissionError, match="the oldest samples can be removed"):
        buffer.remove_at(2)
    same(buffer.get_at(...), before)
    buffer.remove_at([0, 1])
    assert len(buffer) == 3
