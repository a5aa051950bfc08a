"""repair: all that is sound is kept, nothing that is not, and the source stays as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import (
    BACKEND,
    LENGTHS,
    cut,
    episode,
    episodes,
    fingerprint,
    flat,
    flip,
    floats,
    joined,
    leaf_map,
    live_copy,
    move_segment,
    read_all,
    same,
    transition_space,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer, StorageCorruptedError, check, repair
from unienv_data.checking import RepairReport, reading
from unienv_interface.space import DictSpace, DynamicBoxSpace
from unienv_interface.space.row_layout import RowLayout

BOUNDS = np.concatenate([[0], np.cumsum(LENGTHS)])
ROW = RowLayout(transition_space()).nbytes
HIT = 700  # a row, in which a bit is flipped


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 150)


def expected_after_loss(lost: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The samples that are left of the usual episodes, and where the parts of episodes lie among them."""
    kept, parts, at = [], [], 0
    for start, stop in itertools.pairwise(BOUNDS):
        run: list[int] = []
        for sample in [*range(start, stop), -1]:
            if sample >= 0 and not lost[sample]:
                run.append(sample)
            elif run:
                parts.append((at, at + len(run)))
                kept, at, run = kept + run, at + len(run), []
    return np.array(kept, int), parts


def check_kept(target: Path, lost: np.ndarray) -> None:
    """Compare with what was written, not with what the source now says."""
    whole = joined(episodes())
    kept, parts = expected_after_loss(lost)
    found, segments = read_all(target)
    assert segments == parts
    assert same(found, leaf_map(lambda leaf: leaf[kept], whole))


def nothing_lost() -> np.ndarray:
    return np.zeros(sum(LENGTHS), bool)


def test_a_sound_recording_is_kept_whole(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    report = repair(str(source), str(tmp_path / "new"))
    assert report == RepairReport(str(source), str(tmp_path / "new"), 2000, 2000, 7, 0, [], [])
    check_kept(tmp_path / "new", nothing_lost())


@pytest.mark.parametrize("is_damaged", [False, True])
def test_environments_side_by_side_become_episodes_one_after_the_other(tmp_path: Path, is_damaged: bool) -> None:
    source = write_lanes(tmp_path / "r")
    whole, segments = read_all(source)
    if is_damaged:
        flip(source / "header.bin", 64)
    repair(source, tmp_path / "new")
    found, new_segments = read_all(tmp_path / "new")
    assert segments is not None
    assert new_segments is not None
    assert len(new_segments) == len(segments)
    for (start, stop), (new_start, new_stop) in zip(segments, new_segments, strict=True):
        assert same(
            leaf_map(lambda leaf: leaf[start:stop:3], whole),  # noqa: B023
            leaf_map(lambda leaf: leaf[new_start:new_stop], found),  # noqa: B023
        )
    assert check(tmp_path / "new").findings == []


# -- damaged rows ------------------------------------------------------------------------------------------


def test_damaged_rows_are_left_out_and_their_episodes_split(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    flip(source / "storage" / "rows.bin", HIT * ROW + 5)
    before, lost = fingerprint(source), nothing_lost()
    lost[HIT] = True
    report = repair(source, tmp_path / "new")
    (why,) = report.left_out
    assert why == f"sample {HIT}: the bytes on disk differ from the written ones"
    assert (report.samples_before, report.samples) == (2000, 2000 - 1)
    check_kept(tmp_path / "new", lost)
    assert fingerprint(source) == before
    assert {finding.kind for finding in check(tmp_path / "new").findings} == set()


def test_whole_episodes_only(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    flip(source / "storage" / "rows.bin", HIT * ROW + 5)
    report = repair(source, tmp_path / "new", whole_episodes=True)
    touched = [not (stop <= HIT or start > HIT) for start, stop in itertools.pairwise(BOUNDS)]
    lost = np.repeat(touched, LENGTHS)
    check_kept(tmp_path / "new", lost)
    assert any("not whole" in text for text in report.left_out)


def test_a_ring_is_unrolled(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes(), capacity=1200)
    whole, segments = read_all(source)
    repair(source, tmp_path / "new")
    found, new_segments = read_all(tmp_path / "new")
    assert same(found, whole)
    assert new_segments == segments
    flip(source / "header.bin", 64)
    repair(source, tmp_path / "without_header")
    assert same(read_all(tmp_path / "without_header")[0], whole)
    assert read_all(tmp_path / "without_header")[1] == segments
    flip(source / "header.bin", 64)
    flip(source / "storage" / "rows.bin", 0)  # slot 0 is not the oldest sample
    report = repair(source, tmp_path / "other")
    assert report.samples == 1200 - 1


@pytest.mark.parametrize("was_closed", [True, False])
def test_rows_that_were_cut_off(tmp_path: Path, was_closed: bool) -> None:
    source = tmp_path / "r"
    if was_closed:
        write(source, episodes())
    else:
        with ReplayBuffer.create(
            transition_space(), cache_path=tmp_path / "live", maintain_segment_metadata=True
        ) as buffer:
            for part in episodes():
                buffer.extend(part)
            live_copy(buffer, source)
    cut(source / "storage" / "rows.bin", 1500 * ROW + 3)
    report = repair(source, tmp_path / "new")
    lost = nothing_lost()
    lost[1500:] = True
    check_kept(tmp_path / "new", lost)
    assert any("the files end before them" in text for text in report.left_out)


# -- other files -------------------------------------------------------------------------------------------


def flipped_header(source: Path) -> None:
    flip(source / "header.bin", 64)


def cut_header(source: Path) -> None:
    cut(source / "header.bin", 4095)


def no_header(source: Path) -> None:
    (source / "header.bin").unlink()


def no_checks(source: Path) -> None:
    (source / "storage" / "sums.bin").unlink()


def cut_checks(source: Path) -> None:
    cut(source / "storage" / "sums.bin", 8)


def padded_rows(source: Path) -> None:
    with (source / "storage" / "rows.bin").open("ab") as file:
        file.write(b"more")


def no_journal(source: Path) -> None:
    (source / "journal.bin").unlink()


def padded_segments(source: Path) -> None:
    with (source / "segments.bin").open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize(
    "damage",
    [flipped_header, cut_header, no_header, no_checks, cut_checks, padded_rows, no_journal, padded_segments],
)
def test_samples_survive_the_loss_of_other_files(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    source = write(tmp_path / "r", episodes())
    damage(source)
    before = fingerprint(source)
    report = repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", nothing_lost())
    assert report.left_out == []
    assert fingerprint(source) == before
    assert check(tmp_path / "new").findings == []


def zeroed_segments(source: Path) -> None:
    (source / "segments.bin").write_bytes(bytes((source / "segments.bin").stat().st_size))


def half_of_segments(source: Path) -> None:
    with ReplayBuffer.load_from(source, backend=BACKEND) as buffer:
        records = len(buffer.get_segments() or ())
    cut(source / "segments.bin", 24 * (records // 2) + 5)


@pytest.mark.parametrize(
    "damage",
    [
        zeroed_segments,
        half_of_segments,
        lambda source: (source / "segments.bin").unlink(),
        lambda source: cut(source / "segments.bin", 0),
    ],
    ids=["zeroed", "half", "gone", "empty"],
)
@pytest.mark.parametrize("lanes", [1, 3])
def test_lost_episodes_are_found_again_by_the_flags(tmp_path: Path, lanes: int, damage: Callable[[Path], None]) -> None:
    source = write(tmp_path / "r", episodes()) if lanes == 1 else write_lanes(tmp_path / "r", lanes)
    sound, known = tmp_path / "sound", read_all(source)[1]
    repair(source, sound)
    damage(source)
    report = repair(source, tmp_path / "new")
    assert any("split where samples are marked as the last" in note for note in report.notes)
    assert any("records of episodes are lost" in note for note in report.notes)
    (ours, segments), (theirs, others) = read_all(tmp_path / "new"), read_all(sound)
    assert same(ours, theirs)
    assert segments == others
    assert len(segments or ()) == len(known or ())
    assert check(tmp_path / "new").findings == []


def test_a_ring_has_not_lost_records_that_it_needs_no_more(tmp_path: Path) -> None:
    """Such as those in whose places others lay that did not count when the writer was killed."""
    space, source = floats(), tmp_path / "r"
    with ReplayBuffer.create(space, cache_path=source, capacity=40, maintain_segment_metadata=True) as buffer:
        for _ in range(1200):
            buffer.extend(np.zeros(2, np.float32))
        index = buffer._state.segments
        index._write(1200, [(2400, 2402)])
    no_checks(source)  # which makes it a matter of salvage
    assert not any("records of episodes" in note for note in repair(source, tmp_path / "new").notes)


def test_damage_that_no_checksum_tells_of_is_said_to_be_possible(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    assert repair(source, tmp_path / "whole").notes == []
    for name, size in (("some", 8), ("none", 0)):
        cut(source / "storage" / "sums.bin", size)
        report = repair(source, tmp_path / name)
        (note,) = [note for note in report.notes if "have no checksum, so damage to them cannot be detected" in note]
        assert f"{2000 if not size else 2000 - size // 8:,} samples" in note


def test_a_lost_record_is_found_again_by_the_flags(tmp_path: Path) -> None:
    move_segment(write(tmp_path / "other", episodes()), 3, start=0)
    flip(tmp_path / "other" / "segments.bin", 4 * 24)  # one record: its samples lie between two episodes
    flip(tmp_path / "other" / "header.bin", 64)
    report = repair(tmp_path / "other", tmp_path / "new2")
    check_kept(tmp_path / "new2", nothing_lost())
    assert any("split where samples are marked as the last" in note for note in report.notes)


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_lost_record_costs_no_sample_also_without_counters(tmp_path: Path, lanes: int) -> None:
    source = write(tmp_path / "r", episodes()) if lanes == 1 else write_lanes(tmp_path / "r", lanes)
    whole = repair(source, tmp_path / "whole")
    flip(source / "segments.bin", (2 if lanes == 1 else 5) * 24 + 1)
    (source / "header.bin").unlink()
    report = repair(source, tmp_path / "new")
    (ours, segments), (theirs, others) = read_all(tmp_path / "new"), read_all(tmp_path / "whole")
    assert (report.samples, segments) == (whole.samples, others)
    assert same(ours, theirs)
    assert any("1 of" in note and "records of episodes are lost" in note for note in report.notes)


def test_an_unfinished_episode_is_kept_and_closed(tmp_path: Path) -> None:
    with ReplayBuffer.create(
        transition_space(), cache_path=tmp_path / "live", maintain_segment_metadata=True
    ) as buffer:
        buffer.extend(episode(20, 0))
        for _ in range(3):
            buffer.append(leaf_map(lambda leaf: leaf[0], episode(2, 1)))
        source = live_copy(buffer, tmp_path / "r")
    repair(source, tmp_path / "new")
    _, segments = read_all(tmp_path / "new")
    assert segments == [(0, 20), (20, 23)]


def test_samples_that_cannot_be_read_are_left_out_one_by_one(tmp_path: Path) -> None:
    space = DictSpace(BACKEND, {"points": DynamicBoxSpace(BACKEND, 0, 255, (1,), (9,), "uint8")})
    with ReplayBuffer.create(space, cache_path=tmp_path / "live", maintain_segment_metadata=True) as buffer:
        for length in range(1, 9):
            buffer.append({"points": np.full(length, length, np.uint8)})
        buffer.mark_segment_end()
        source = live_copy(buffer, tmp_path / "r")
    size = (source / "storage" / "heap.bin").stat().st_size
    cut(source / "storage" / "heap.bin", size - 1)
    report = repair(source, tmp_path / "new")
    assert (report.samples, len(report.left_out)) == (7, 1)
    with ReplayBuffer.load_from(tmp_path / "new", backend=BACKEND) as buffer:
        assert [buffer.get_at(place)["points"].tolist() for place in range(7)] == [[n] * n for n in range(1, 8)]


def test_a_damaged_record_of_an_episode_costs_no_sample(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    flip(source / "segments.bin", 3 * 24 + 1)
    repair(source, tmp_path / "new")
    check_kept(tmp_path / "new", nothing_lost())


# -- what cannot be repaired -------------------------------------------------------------------------------


def refusal(error: type[Exception], source: Path, target: Path) -> str:
    """Why a recording cannot be repaired."""
    with pytest.raises(error) as caught:
        repair(source, target)
    return str(caught.value)


def test_without_the_description_nothing_can_be_read(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    flip(source / "metadata.json", 40)
    why = refusal(StorageCorruptedError, source, tmp_path / "new")
    assert why.startswith(f"{source}: nothing can be read without a sound metadata.json")
    assert not (tmp_path / "new").exists()


def test_of_a_ring_without_counters_the_order_is_lost(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes(), capacity=1200)
    no_header(source)
    assert "the order of the samples is lost" in refusal(StorageCorruptedError, source, tmp_path / "new")


def test_if_nothing_is_sound_there_is_no_new_recording(tmp_path: Path) -> None:
    source = write(tmp_path / "r", [np.ones(1, np.float32)], floats())
    flip(source / "storage" / "rows.bin", 0)
    assert "no sample can be kept" in refusal(StorageCorruptedError, source, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [source]


def test_a_recording_of_nothing(tmp_path: Path) -> None:
    why = refusal(StorageCorruptedError, write(tmp_path / "r", []), tmp_path / "new")
    assert why == f"{tmp_path / 'r'}: no sample can be kept, it has none"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    before = fingerprint(source)
    assert refusal(FileExistsError, source, source) == f"{source}: it exists already, give another path"
    assert fingerprint(source) == before


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert refusal(FileNotFoundError, none, tmp_path / "new") == f"{none}: there is no such folder"
    assert "not a replay buffer" in refusal(FileNotFoundError, tmp_path, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_samples_once_when_read_and_once_when_written(tmp_path: Path) -> None:
    source = write(tmp_path / "r", episodes())
    flip(source / "storage" / "rows.bin", HIT * ROW + 5)
    calls: list[tuple[int, int]] = []
    repair(source, tmp_path / "new", progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[0] == (150, 4000)
    assert calls[-1] == (4000 - 1, 4000 - 1)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_kept_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any bit of any file but the description may be wrong, or any file cut anywhere: no wrong sample comes of it."""
    folder = tmp_path_factory.mktemp("repair")
    source = write(folder / "r", episodes())
    # not rows and their checksums at once: then nothing tells which rows are sound
    names = ["header.bin", "segments.bin", "journal.bin", data.draw(st.sampled_from(["rows.bin", "sums.bin"]))]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
        file = source / name if (source / name).exists() else source / "storage" / name
        size = file.stat().st_size
        if size and data.draw(st.booleans()):
            flip(file, data.draw(st.integers(0, size - 1)))
        else:
            cut(file, data.draw(st.integers(0, size)))
    try:
        repair(source, folder / "new")
    except StorageCorruptedError:
        return
    samples, segments = read_all(folder / "new")
    whole, found = flat(joined(episodes())), flat(samples)
    known = {tuple(whole["obs/joints"][place]): place for place in range(2000)}
    origin = np.array([known[tuple(joints)] for joints in found["obs/joints"]])
    assert len(np.unique(origin)) == len(origin)
    assert all(np.array_equal(found[name], whole[name][origin]) for name in whole)
    assert sum(stop - start for start, stop in segments or ()) == len(origin)
    for start, stop in segments or ():
        assert np.array_equal(origin[start:stop], np.arange(origin[start], origin[start] + stop - start))
