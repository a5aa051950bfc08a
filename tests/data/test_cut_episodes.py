"""Episodes that were closed before they had ended: marked, kept in files and copies, and left out on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffers import contents, number, number_space, numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_envs import TallyEnv, buffers_for, vector

from unienv_data import (
    BatchBase,
    CombinedBatch,
    FrameStackedBatch,
    ReplayBuffer,
    ReplayBufferCollectionWrapper,
    without_cut_episodes,
)
from unienv_interface.backends import NumpyComputeBackend

NUMPY = NumpyComputeBackend

Episode = tuple[list[int], bool]  # the numbers of its samples, and whether it was cut


def write(buffer: ReplayBuffer, lengths: list[tuple[int, bool]], first: int = 0) -> list[Episode]:
    """Closed episodes of these lengths, some of them cut."""
    written = []
    for length, is_cut in lengths:
        written.append((list(range(first, first + length)), is_cut))
        for value in written[-1][0]:
            buffer.append(number(value))
        buffer.mark_segment_end(cut=is_cut)
        first += length
    return written


def write_lanes(buffer: ReplayBuffer) -> list[Episode]:
    """Episodes of three lanes, some of them cut; those of the last lane stay open."""
    for step in range(8):
        buffer.extend_lanes(numbers([10 * step + lane for lane in range(3)]), np.array([step == 3, False, False]))
        if step == 5:
            buffer.mark_segment_end([False, True, False], cut=True)
    buffer.mark_segment_end([True, True, False])
    steps = [10 * step for step in range(8)]
    return [
        (steps[:4], False),
        ([step + 1 for step in steps[:6]], True),
        (steps[4:], False),
        ([step + 1 for step in steps[6:]], False),
    ]


def cut_numbers(buffer: ReplayBuffer) -> list[list[int]]:
    all_numbers = contents(buffer)
    return sorted(all_numbers[start : stop : buffer.lanes] for start, stop in buffer.cut_episodes() or [])


def of(episodes: list[Episode], *, cut: bool = True) -> list[list[int]]:
    return sorted(samples for samples, is_cut in episodes if is_cut == cut)


def reopened(buffer: ReplayBuffer, path: Path, *, read_only: bool = True) -> ReplayBuffer:
    buffer.close()
    return ReplayBuffer.load_from(path, backend=NUMPY, read_only=read_only)


LENGTHS = [(3, False), (2, True), (1, True), (4, False), (5, True)]


@pytest.mark.parametrize("capacity", [None, 20, 9])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("place", ["memory", "shared", "disk"])
def test_cut_episodes_are_known_and_kept(place: str, lanes: int, capacity: int | None, tmp_path: Path) -> None:
    path = tmp_path / "buffer" if place == "disk" else None
    capacity = capacity and capacity // lanes * lanes
    options: dict[str, Any] = {"cache_path": path, "multiprocessing": place == "shared", "capacity": capacity}
    with ReplayBuffer.create(number_space(), lanes=lanes, **options) as buffer:
        episodes = write_lanes(buffer) if lanes == 3 else write(buffer, LENGTHS)
        there = set(contents(buffer))
        wanted = sorted(left for samples in of(episodes) if (left := [value for value in samples if value in there]))
        copies = [buffer, ReplayBuffer.create(number_space(), lanes=lanes, cache_path=tmp_path / "copy")]
        copies[1].extend_from(buffer)
        buffer.dumps(tmp_path / "dumped")
        copies.append(ReplayBuffer.load_from(tmp_path / "dumped", backend=NUMPY))
        for copy in copies[::2]:
            assert cut_numbers(copy) == wanted
            assert copy.verify() == []
        still_open = [[value for value in range(2, 80, 10) if value in there]] if lanes == 3 else []
        assert cut_numbers(copies[1]) == sorted(wanted + still_open)  # a copy of an open episode lacks its end
        for copy in copies[:2]:
            if copy.cache_path is not None:
                again = reopened(copy, copy.cache_path)
                assert cut_numbers(again) == (wanted if copy is buffer else sorted(wanted + still_open))
                assert again.verify() == []


def test_cut_episodes_leave_a_ring_with_their_samples() -> None:
    buffer = ReplayBuffer.create(number_space(), capacity=8)
    episodes: list[Episode] = []
    rng = np.random.default_rng(0)
    for round_ in range(300):
        length = int(rng.integers(1, 6))
        episodes += write(buffer, [(length, bool(rng.random() < 0.4))], 10 * round_)
        there = set(contents(buffer))
        alive = [([value for value in samples if value in there], is_cut) for samples, is_cut in episodes[-9:]]
        assert cut_numbers(buffer) == of([episode for episode in alive if episode[0]])


@pytest.mark.parametrize("lanes", [1, 3])
def test_views_leave_cut_episodes_out(lanes: int) -> None:
    buffer = ReplayBuffer.create(number_space(), lanes=lanes)
    episodes = write_lanes(buffer) if lanes == 3 else write(buffer, LENGTHS)
    gone = {value for samples in of(episodes) for value in samples}
    both = [buffer, CombinedBatch([buffer, buffer]), buffer.get_slice(...), buffer.get_slice(slice(1, None))]
    for batch in both:
        kept = without_cut_episodes(batch)
        assert sorted(contents(kept)) == sorted(value for value in contents(batch) if value not in gone)
        data, metadata = FrameStackedBatch(kept, 1, 1).get_at_with_metadata(...)
        windows = list(zip(data["number"].tolist(), metadata["slice_valid_mask"].tolist(), strict=True))
        far = FrameStackedBatch(batch, 1, 1)
        data, metadata = far.get_at_with_metadata(...)
        wanted = zip(data["number"].tolist(), metadata["slice_valid_mask"].tolist(), strict=True)
        assert sorted(windows) == sorted(pair for pair in wanted if pair[0][1] not in gone)
        data = without_cut_episodes(far).get_at(...)
        assert not gone.intersection(data["number"].reshape(-1).tolist())


def test_without_cut_episodes_wants_to_know_them() -> None:
    with pytest.raises(ValueError, match="does not know which episodes were cut: record with keep_episodes=True"):
        without_cut_episodes(ReplayBuffer.create(number_space(), keep_episodes=False))
    buffer = ReplayBuffer.create(number_space())
    assert len(without_cut_episodes(buffer)) == 0
    assert buffer.cut_episodes() == []
    assert ReplayBuffer.create(number_space(), keep_episodes=False).cut_episodes() is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6), st.data())
def test_removing_samples_keeps_what_was_cut(lengths: list[tuple[int, bool]], data: st.DataObject) -> None:
    buffer = ReplayBuffer.create(number_space())
    episodes = write(buffer, lengths)
    removed = data.draw(st.sets(st.integers(0, len(buffer) - 1)))
    joins = data.draw(st.booleans())
    if removed:
        buffer.remove_at(sorted(removed), join=joins)
    wanted = []
    for samples, is_cut in episodes:
        left = [value for value in samples if value not in removed]
        if joins or not left:
            parts = [left] if left else []
        else:
            parts = [part.tolist() for part in np.split(left, np.flatnonzero(np.diff(left) > 1) + 1)]
        wanted += [(part, is_cut and part is parts[-1]) for part in parts]
    found = [contents(buffer)[start:stop] for start, stop in buffer.get_segments() or []]
    assert found == [samples for samples, _ in wanted]
    assert cut_numbers(buffer) == of(wanted)


# -- copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 4, 100])
def test_what_a_slice_leaves_out_of_an_episode_is_cut_in_a_copy(chunk_size: int) -> None:
    source = ReplayBuffer.create(number_space())
    write(source, [(4, False), (3, False), (5, False)])
    source.append(number(12))
    batches: list[tuple[BatchBase, list[list[int]]]] = [
        (source.get_slice(slice(1, 9)), [[7, 8]]),
        (source.get_slice([0, 1, 5, 6, 11]), [[0, 1]]),
        (source.get_slice(slice(0, 12, 2)), [[0, 2], [8, 10]]),
        (CombinedBatch([source.get_slice(slice(0, 6)), source]), [[4, 5], [12]]),
    ]
    for batch, wanted in batches:
        copy = ReplayBuffer.create(number_space())
        copy.extend_from(batch, chunk_size=chunk_size)
        assert contents(copy) == contents(batch)
        assert cut_numbers(copy) == wanted


@pytest.mark.parametrize("chunk_size", [1, 2, 100])
def test_samples_in_no_episode_are_in_none_of_a_copy(chunk_size: int) -> None:
    storage = ReplayBuffer.create(number_space()).storage
    source = ReplayBuffer(storage, "storage", maintain_segment_metadata=True)
    source.extend(numbers(range(10)))
    pairs = [(1, 2), (5, 6), (7, 7)]
    source = ReplayBuffer(storage, "storage", 10, maintain_segment_metadata=True, physical_segments=pairs)
    copy = ReplayBuffer.create(number_space())
    copy.extend_from(CombinedBatch([source, source]), chunk_size=chunk_size)
    shifted = [(start + 10, stop + 10) for start, stop in source.get_segments() or []]
    assert copy.get_segments() == [*(source.get_segments() or []), *shifted]
    assert copy.cut_episodes() == []


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_a_part_without_episodes_adds_none_and_the_others_keep_theirs(chunk_size: int) -> None:
    known, unknown = ReplayBuffer.create(number_space()), ReplayBuffer.create(number_space(), keep_episodes=False)
    write(known, [(2, False), (3, True)])
    unknown.extend(numbers(range(20, 24)))
    combined = CombinedBatch([known, CombinedBatch([unknown, known]), unknown])
    copy = ReplayBuffer.create(number_space())
    copy.extend_from(combined, chunk_size=chunk_size)
    assert contents(copy) == contents(combined)
    assert copy.get_segments() == [(0, 2), (2, 5), (9, 11), (11, 14)]
    assert cut_numbers(copy) == [[2, 3, 4], [2, 3, 4]]
    plain = ReplayBuffer.create(number_space(), keep_episodes=False)
    plain.extend_from(combined.get_slice(slice(1, 7)))
    assert len(plain) == 6
    with pytest.raises(ValueError, match="SubIndexedBatch is a view over several batches, of which some know"):
        copy.extend_from(combined.get_slice(slice(1, 7)))
    assert len(copy) == len(combined)


def test_nothing_is_copied_if_one_part_has_no_lanes() -> None:
    lanes = ReplayBuffer.create(number_space(), lanes=2)
    lanes.extend_lanes(numbers([1, 2]))
    plain = ReplayBuffer.create(number_space(), keep_episodes=False)
    plain.extend(numbers([3, 4]))
    copy = ReplayBuffer.create(number_space(), lanes=2)
    with pytest.raises(ValueError, match="the batch has 1 lanes, the buffer 2"):
        copy.extend_from(CombinedBatch([lanes, plain]))
    assert len(copy) == 0


# -- files --------------------------------------------------------------------------------------------------


def test_an_older_folder_opens_and_says_that_it_is_newer_once_it_is_written(tmp_path: Path) -> None:
    from unienv_data.base.files import read_json, write_json

    with ReplayBuffer.create(number_space(), cache_path=tmp_path / "old") as buffer:
        write(buffer, [(2, False), (3, False)])
    path = tmp_path / "old" / "metadata.json"
    described = {**read_json(path, checksum=False), "format_version": 1}
    described.pop("crc32", None)
    write_json(path, described)
    for read_only, version in ((True, 1), (False, 2)):
        with ReplayBuffer.load_from(tmp_path / "old", backend=NUMPY, read_only=read_only) as buffer:
            assert (buffer.get_segments(), buffer.cut_episodes()) == ([(0, 2), (2, 5)], [])
        assert read_json(path, checksum=False)["format_version"] == version


# -- recording ----------------------------------------------------------------------------------------------


def zeros(env: Any) -> np.ndarray:
    return np.zeros((2,) if env.batch_size is None else (env.batch_size, 2), np.float32)


class Failing(TallyEnv):
    """Raises at the step that it is told to."""

    fails_at = 0

    def step(self, action: Any) -> Any:
        if self.total + 1 == self.fails_at:
            self.fails_at = 0
            raise OSError("the robot is out of reach")
        return super().step(action)


def test_an_episode_that_a_failed_step_ends_is_cut() -> None:
    env = Failing(3)  # its first episode has one step, the next six, five, ...
    buffer = ReplayBuffer.create(buffers_for("shared", env).single_space)
    wrapper = ReplayBufferCollectionWrapper(env, buffer)
    wrapper.reset()
    done = False
    while not done:
        *_, terminated, truncated, _ = wrapper.step(zeros(env))
        done = terminated or truncated
    wrapper.reset()
    wrapper.step(zeros(env))
    env.fails_at = env.total + 1
    with pytest.raises(OSError, match="out of reach"):
        wrapper.step(zeros(env))
    first, count = buffer.get_segments() or [], len(buffer)
    assert buffer.cut_episodes() == []  # still open
    wrapper.reset()
    assert buffer.get_segments() == [*first, (first[-1][1], count)]
    assert buffer.cut_episodes() == [(first[-1][1], count)]
    wrapper.step(zeros(env))
    wrapper.reset()  # by a caller who has seen enough
    assert buffer.cut_episodes() == [(first[-1][1], count)]


@pytest.mark.parametrize("mode", ["one", "per_env", "interleaved"])
def test_closing_the_recorder_cuts_what_is_under_way(mode: str) -> None:
    env = TallyEnv(0) if mode == "one" else vector("sync", 3)
    made = buffers_for("shared" if mode == "one" else mode, env)
    buffers = made if isinstance(made, list) else [made]
    with ReplayBufferCollectionWrapper(env, buffers) as wrapper:
        wrapper.reset()
        for _ in range(4):
            *_, terminated, truncated, _ = wrapper.step(zeros(env))
            ended = np.atleast_1d(terminated | truncated)
            if ended.all():
                break
            if ended.any():
                wrapper.reset(mask=ended)
        under_way = [not flag for flag in ended]
    cut = [len(buffer.cut_episodes() or []) for buffer in buffers]
    assert cut == ([sum(under_way)] if len(buffers) == 1 else [int(flag) for flag in under_way])
    assert not any(buffer.has_open_segment for buffer in buffers)


def test_what_was_open_before_a_recorder_came_is_cut() -> None:
    """A recorder that was killed leaves an open episode in a folder."""
    env = TallyEnv(4)
    buffer = buffers_for("shared", env)
    first = ReplayBufferCollectionWrapper(env, buffer)
    first.reset()
    first.step(zeros(env))
    second = ReplayBufferCollectionWrapper(env, buffer)
    second.reset()
    second.step(zeros(env))
    assert (buffer.get_segments(), buffer.cut_episodes()) == ([(0, 1)], [(0, 1)])
    other = buffers_for("shared", env)
    assert second.set_replay_buffers(other, finalize_old_segments=True) == [buffer]
    assert buffer.cut_episodes() == [(0, 1), (1, 2)]
