"""check: a sound recording has no findings, and every kind of damage is found by its name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recordings import (
    BACKEND,
    cut,
    episode,
    episodes,
    fingerprint,
    flip,
    floats,
    image,
    leaf_map,
    live_copy,
    move_segment,
    rewrite,
    transition_space,
    write,
    write_lanes,
)

from unienv_data import ReplayBuffer, check
from unienv_data.checking import KINDS, Finding, reading
from unienv_data.storages.npz_storage import NPZStorage
from unienv_data.storages.parquet import ParquetStorage
from unienv_interface.space import DictSpace, DynamicBoxSpace, TextSpace


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_ROWS", 150)


# -- sound -------------------------------------------------------------------------------------------------


def ring(path: Path) -> Path:
    return write(path, episodes(), capacity=1000)


def without_episodes(path: Path) -> Path:
    return write(path, [np.arange(500, dtype=np.float32)], floats(), maintain_segment_metadata=False)


def with_camera(path: Path, frames: np.ndarray | None = None) -> Path:
    if frames is None:
        frames = np.random.default_rng(0).integers(0, 256, (200, 16, 16), np.uint8)
    space = DictSpace(BACKEND, {"obs": DictSpace(BACKEND, {"camera": image(16, 16)})})
    return write(path, [{"obs": {"camera": frames}}], space)


def with_slow_camera(path: Path) -> Path:
    """Two cameras' worth of steps for a frame now and then."""
    frames = np.random.default_rng(0).integers(0, 256, (160, 16, 16), np.uint8)
    return with_camera(path, np.repeat(frames, np.where(np.arange(160) % 5 == 0, 2, 1), axis=0))


SOUND: dict[str, Callable[[Path], Path]] = {
    "episodes": lambda path: write(path, episodes()),
    "lanes": write_lanes,
    "ring": ring,
    "without_episodes": without_episodes,
    "camera": with_camera,
    "slow_camera": with_slow_camera,
}


@pytest.mark.parametrize("make", SOUND.values(), ids=list(SOUND))
def test_a_sound_recording_has_no_findings(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "r")
    before = fingerprint(path)
    report = check(path)
    assert (report.path, report.findings, report.is_sound) == (str(path), [], True)
    with ReplayBuffer.load_from(path, backend=BACKEND) as buffer:
        assert report.samples == len(buffer)
    assert fingerprint(path) == before


def test_a_recording_that_is_being_written_has_none_either(tmp_path: Path) -> None:
    with ReplayBuffer.create(transition_space(), cache_path=tmp_path / "r", maintain_segment_metadata=True) as writer:
        writer.extend(episode(100, 0))
        writer.append(leaf_map(lambda leaf: leaf[0], episode(2, 1)))
        assert check(tmp_path / "r").is_sound


# -- damaged -----------------------------------------------------------------------------------------------


def cut_rows(path: Path) -> str:
    write(path, episodes())
    rows = path / "storage" / "rows.bin"
    cut(rows, rows.stat().st_size - 1)
    return "rows.bin"


def no_metadata(path: Path) -> str:
    write(path, episodes())
    (path / "metadata.json").unlink()
    return "metadata.json: the file is missing"


def flipped_metadata(path: Path) -> str:
    write(path, episodes())
    flip(path / "metadata.json", 40)
    return "the checksum does not match"


def flipped_header(path: Path) -> str:
    write(path, episodes())
    flip(path / "header.bin", 64)
    return "header.bin: the checksum does not match"


def flipped_row(path: Path) -> str:
    write(path, episodes())
    flip(path / "storage" / "rows.bin", 70_000)
    return "do not match their checksum"


def flipped_segment(path: Path) -> str:
    write(path, episodes())
    flip(path / "segments.bin", 3 * 24 + 1)
    return "record 3 does not match its checksum"


def lost_checksum(path: Path) -> str:
    write(path, episodes())
    with (path / "storage" / "sums.bin").open("r+b") as file:
        file.write(bytes(8))
    return "samples 0 to 0 do not match their checksum"


def gap_between_episodes(path: Path) -> str:
    write(path, episodes())
    move_segment(path, 3, start=5)
    return "samples 308 to 312: in no episode, between two episodes"


def gap_in_a_lane(path: Path) -> str:
    write_lanes(path)
    move_segment(path, 4, start=3)
    return "in no episode, between two episodes"


def never_closed(path: Path) -> str:
    with ReplayBuffer.create(
        transition_space(), cache_path=path.with_name("live"), maintain_segment_metadata=True
    ) as buffer:
        buffer.extend(episode(20, 0))
        for _ in range(3):
            buffer.append(leaf_map(lambda leaf: leaf[0], episode(2, 1)))
        live_copy(buffer, path)
    return "samples 20 to 22: the episode was never closed"


def nothing(path: Path) -> str:
    write(path, [])
    return "the recording has no samples"


def heap_cut_after_a_kill(path: Path) -> str:
    space = DynamicBoxSpace(BACKEND, 0, 255, (1,), (9,), "uint8")
    with ReplayBuffer.create(space, cache_path=path.with_name("live")) as buffer:
        for length in range(1, 9):
            buffer.append(np.full(length, length, np.uint8))
        live_copy(buffer, path)
    cut(path / "storage" / "heap.bin", 10)  # each value begins at a multiple of 8 bytes
    return "samples 1 to 7"


def file_lost(path: Path) -> str:
    write(path, episodes(), storage_cls=NPZStorage)
    (path / "storage" / "1234.npz").unlink()
    rewrite(path, slice(1235, 1236), reward=np.nan)  # which is found all the same
    return "sample 1234:"


def piece_lost(path: Path) -> str:
    write(path, episodes(), storage_cls=ParquetStorage, piece_size=100)
    flip(path / "storage" / "part-000012.parquet", 200)
    return "samples 1200 to 1299:"


def nan_of_any_length(path: Path) -> str:
    write(path, [], DynamicBoxSpace(BACKEND, -np.inf, np.inf, (1,), (9,), "float32"))
    with ReplayBuffer.load_from(path, backend=BACKEND, read_only=False) as buffer:
        for length in range(1, 9):
            buffer.append(np.full(length, np.nan if length > 6 else 1, np.float32))
        buffer.mark_segment_end()
    return "value: NaN in 2 samples, the first is 6"


def nan(path: Path) -> str:
    rewrite(write(path, episodes()), slice(400, 403), obs__force=np.nan)
    rewrite(path, slice(399, 402), next_obs__force=np.nan)
    return "obs/force: NaN in 3 samples, the first is 400"


def infinite(path: Path) -> str:
    rewrite(write(path, episodes()), slice(1999, 2000), reward=-np.inf)
    return "reward: infinite values in sample 1999"


def out_of_bounds(path: Path) -> str:
    rewrite(write(path, episodes()), slice(700, 701), action=4)
    return "action: outside [0, 3] in sample 700, with a value of 4"


def unknown_text(path: Path) -> str:
    space = DictSpace(BACKEND, {"task": TextSpace(BACKEND, 5, charset="abc")})
    write(path, [{"task": np.array(["a", "xyz", "b"], object)}], space)
    return "task: not in its space in sample 1"


def frozen_camera(path: Path) -> str:
    frames = np.random.default_rng(0).integers(0, 256, (400, 16, 16), np.uint8)
    frames[130:170] = frames[130]  # across the end of a chunk
    with_camera(path, frames)
    return "obs/camera: the same 40 times in a row from sample 130 on"


def frozen_sensors_of_one_lane(path: Path) -> str:
    lanes, steps = 3, 120
    space = DictSpace(BACKEND, {"obs": floats(2)})
    values = np.random.default_rng(0).normal(size=(steps, lanes, 2)).astype(np.float32)
    values[60:95, 1] = 7.0
    with ReplayBuffer.create(space, cache_path=path, lanes=lanes) as buffer:
        for step in values:
            buffer.extend_lanes({"obs": step})
        buffer.mark_segment_end()
    return f"the observation: the same 35 times in a row from sample {60 * lanes + 1} on"


def every_frame_twice(path: Path) -> str:
    frames = np.random.default_rng(0).integers(0, 256, (100, 16, 16), np.uint8)
    with_camera(path, np.repeat(frames, 2, axis=0))
    return "obs/camera: equal to the previous sample in 50 % of them"


def episode_twice(path: Path) -> str:
    write(path, [episode(30, 0), episode(200, 1), episode(200, 2), episode(200, 1)])
    return "the episodes from samples 30 and 430 on have the same observations"


def ends_without_episodes(path: Path) -> str:
    write(path, episodes(), maintain_segment_metadata=False)
    return "episodes end at 6 samples, the first is 299, but none are kept"


def ends_within_an_episode(path: Path) -> str:
    rewrite(write(path, episodes()), slice(149, 150), terminated=True)
    return "marked as the last of an episode that continues: sample 149"


def one_long_episode(path: Path) -> str:
    values = np.random.default_rng(0).normal(size=6000).astype(np.float32)
    write(path, [values], floats())
    return "all samples are one episode, 6,000 long"


def wrong_observation(path: Path) -> str:
    rewrite(write(path, episodes()), slice(150, 151), obs__joints=1.0)
    return "differ in sample 150"


def clock_set_back(path: Path) -> str:
    times = 1.7e9 + np.arange(400) / 30
    times[300:] -= 3600
    space = DictSpace(BACKEND, {"timestamp": floats(dtype="float64")})
    write(path, [{"timestamp": times}], space)
    return "timestamp: less than in the previous sample in sample 300"


DAMAGE: dict[str, list[Callable[[Path], str]]] = {
    "unreadable": [cut_rows, no_metadata, flipped_metadata, flipped_header],
    "checksum": [flipped_row, flipped_segment, lost_checksum],
    "episodes": [gap_between_episodes, gap_in_a_lane],
    "unfinished-episode": [never_closed],
    "empty": [nothing],
    "unreadable-samples": [heap_cut_after_a_kill, file_lost, piece_lost],
    "not-finite": [nan, infinite, nan_of_any_length],
    "out-of-space": [out_of_bounds, unknown_text],
    "frozen-frames": [frozen_camera, frozen_sensors_of_one_lane],
    "duplicated-frames": [every_frame_twice],
    "duplicated-episodes": [episode_twice],
    "missed-ends": [ends_without_episodes, ends_within_an_episode],
    "mega-episode": [one_long_episode],
    "broken-chain": [wrong_observation],
    "timestamps": [clock_set_back],
}
CASES = [(kind, damage) for kind, all_damage in DAMAGE.items() for damage in all_damage]


def test_every_kind_of_finding_has_a_case() -> None:
    of_lerobot = {"videos", "tasks", "statistics"}  # in test_lerobot_check.py
    assert set(DAMAGE) | of_lerobot == set(KINDS)


@pytest.mark.parametrize(("kind", "damage"), CASES, ids=[damage.__name__ for _, damage in CASES])
def test_damage_is_found_and_its_kind_can_be_ignored(tmp_path: Path, kind: str, damage: Callable[[Path], str]) -> None:
    path = tmp_path / "r"
    expected = damage(path)
    before = fingerprint(path)
    report = check(path)
    assert any(finding.kind == kind and expected in finding.text for finding in report.findings), report
    assert not report.is_sound
    if kind != "unreadable":  # nothing else is checked then
        assert kind not in {finding.kind for finding in check(path, ignore=[kind]).findings}
    assert fingerprint(path) == before


@pytest.mark.parametrize(
    "damage", [flipped_row, nan, out_of_bounds, ends_within_an_episode, wrong_observation, episode_twice]
)
def test_nothing_else_is_found(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    damage(tmp_path / "r")
    kinds = {finding.kind for finding in check(tmp_path / "r").findings}
    assert len(kinds) == 1, kinds


def test_a_folder_that_cannot_be_opened_has_no_number_of_samples(tmp_path: Path) -> None:
    flipped_header(tmp_path / "r")
    report = check(tmp_path / "r")
    assert (report.samples, [finding.kind for finding in report.findings]) == (None, ["unreadable"])


def test_what_cannot_be_checked_at_all_is_an_error(tmp_path: Path) -> None:
    none = tmp_path / "none"
    with pytest.raises(FileNotFoundError, match=f"^{none}: there is no such folder$"):
        check(none)
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}: not a replay buffer, it has no metadata.json$"):
        check(str(tmp_path))
    path = write(tmp_path / "r", episodes((5,)))
    with pytest.raises(ValueError, match="'nan' is no kind of finding, the kinds are unreadable, checksum, "):
        check(path, ignore=["nan"])


def test_progress_counts_all_samples(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    check(write(tmp_path / "r", episodes()), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(min(done, 2000), 2000) for done in range(0, 2001 + 149, 150)]


def test_an_error_in_the_progress_callback_ends_the_check(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(write(tmp_path / "r", episodes()), progress=stop)


def test_short_episodes_may_well_be_alike(tmp_path: Path) -> None:
    write(tmp_path / "r", [episode(5, 1)] * 20)
    assert check(tmp_path / "r").findings == []


def test_every_bit_of_the_small_files_that_changes_is_found(tmp_path: Path) -> None:
    """As far as it matters: bytes that nothing was written to may be anything."""
    path = write(tmp_path / "r", episodes([20, 30]))
    for name in ("metadata.json", "header.bin"):
        size = (path / name).stat().st_size
        for offset in range(0, size, max(1, size // 60)):
            flip(path / name, offset)
            assert check(path).findings, (name, offset)
            flip(path / name, offset)
    assert check(path).findings == []


@pytest.mark.parametrize("is_cleared", [False, True])
def test_a_recording_of_nothing_has_lost_no_checksum(tmp_path: Path, is_cleared: bool) -> None:
    path = write(tmp_path / "r", episodes() if is_cleared else [])
    if is_cleared:
        with ReplayBuffer.load_from(path, backend=BACKEND, read_only=False) as buffer:
            buffer.clear()
    assert {finding.kind for finding in check(path).findings} == {"empty"}


@pytest.mark.parametrize(("number", "is_damage"), [(errno.EIO, True), (errno.EACCES, False)])
def test_a_disk_that_fails_in_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_damage: bool
) -> None:
    path, get_at = write(tmp_path / "r", episodes((40,))), ReplayBuffer.get_at

    def fails_in_places(buffer: ReplayBuffer, index: slice) -> object:
        if index.start <= 7 < index.stop:
            raise OSError(number, "no")
        return get_at(buffer, index)

    monkeypatch.setattr(ReplayBuffer, "get_at", fails_in_places)
    if is_damage:
        assert check(path).findings == [Finding("unreadable-samples", f"sample 7: [Errno {number}] no")]
    else:
        with pytest.raises(PermissionError):
            check(path)


def test_a_recording_that_is_gone_on_with_while_it_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "r", episodes())
    verify, writers = ReplayBuffer.verify, []

    def gone_on(buffer: ReplayBuffer) -> list[str]:
        found = verify(buffer)
        writers.append(ReplayBuffer.load_from(path, backend=BACKEND, read_only=False))
        writers[0].append(writers[0][0])
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ReplayBuffer, "verify", gone_on)
        assert "checksum" not in {finding.kind for finding in check(path).findings}
    writers[0].mark_segment_end()
    writers[0].close()
    assert "checksum" not in {finding.kind for finding in check(path).findings}


def test_frames_on_both_sides_of_what_cannot_be_read_are_not_taken_together(tmp_path: Path) -> None:
    space = DictSpace(BACKEND, {"obs": floats(4), "step": floats()})
    parts = [{"obs": np.full((18, 4), value, np.float32), "step": np.zeros(18, np.float32)} for value in (1, 2, 3)]
    path = write(tmp_path / "r", parts, space, storage_cls=NPZStorage)
    for slot in range(18, 36):
        (path / "storage" / f"{slot}.npz").unlink()
    assert {finding.kind for finding in check(path).findings} == {"unreadable-samples"}
