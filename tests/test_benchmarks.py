"""The harness of the comparison on made-up contenders, and that bars, subjects and reports fit together.

Nothing is timed here: the harness is given a clock that moves only when a contender says so.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from unienv_interface.backends import NumpyComputeBackend
from unienv_interface.space import BoxSpace

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))  # its programs are not a package

import bars
import check
import count_calls
import harness
import profile_contender
import record
import report
import run
import subjects
import text_tables
from bars import Bar
from harness import Contender, Outcome, Ready, Result, Work, floor, ours, peer, unable
from subjects._child import held_growth, peak_growth

BENCHMARKS = Path(harness.__file__).parent
ALL_WORKS = [work for subject in subjects.SUBJECTS for work in subjects.works_of(subject)]


# -- a clock, and contenders that move it ------------------------------------------------------------------


@dataclass
class Clock:
    now: float = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(harness.time, "perf_counter", lambda: made.now)
    return made


def calling(name: str, call: Callable[[], object], kind: str = "ours") -> Contender:
    @{"ours": ours, "peer": peer, "floor": floor}[kind](name, "made up")
    def make() -> Iterator[Callable]:
        yield call

    return make


def work_of(*contenders: Contender, unit: str = "us", **options: object) -> Work:
    return Work("made up", "a work", unit, contenders, **options)  # type: ignore[arg-type]


# -- measuring ---------------------------------------------------------------------------------------------


def test_figures_are_per_unit_and_call(clock: Clock) -> None:
    result = harness.measure(work_of(calling("a", lambda: clock.spend(0.001)), per_call=10), 7, 0.1)
    assert result.of("a").calls == 100
    assert result.of("a").rounds == pytest.approx([100.0] * 7)


def test_rates_count_what_calls_return(clock: Clock) -> None:
    def call() -> int:
        clock.spend(0.5)
        return 3

    result = harness.measure(work_of(calling("a", call), unit="transitions/s", per_call=None), 7, 1.0)
    assert result.of("a").rounds == pytest.approx([6.0] * 7)


def test_contenders_take_turns(clock: Clock) -> None:
    log: list[str] = []

    def logging(name: str) -> Contender:
        def call() -> None:
            log.append(name)
            clock.spend(0.01)

        return calling(name, call)

    harness.measure(work_of(logging("a"), logging("b"), logging("c")), 9, 0.03)
    turns = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert log[-9 * 9 :] == turns * 9


def test_work_with_its_own_rounds_makes_one_call_each_and_none_ahead(clock: Clock) -> None:
    log: list[str] = []
    contenders = [calling(name, lambda name=name: log.append(name) or clock.spend(1.0)) for name in "ab"]  # type: ignore[misc,func-returns-value]
    harness.measure(work_of(*contenders, unit="s", rounds=3))
    assert log == ["a", "b"] * 3


def test_what_prepares_and_finishes_a_call_is_not_timed(clock: Clock) -> None:
    log: list[str] = []

    def step(name: str, seconds: float) -> Callable[[], None]:
        return lambda: log.append(name) or clock.spend(seconds)  # type: ignore[func-returns-value]

    @ours("a", "made up")
    def make() -> Iterator[Ready]:
        yield Ready(step("call", 0.01), step("prepare", 5.0), step("finish", 7.0), repeats=4)

    result = harness.measure(work_of(make, unit="ms"), 7, 0.02)
    assert result.of("a").rounds == pytest.approx([2.5] * 7)
    assert log[:6] == ["prepare", "call", "finish"] * 2


def test_fetching_ahead_uses_up_what_was_fetched_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(harness.time, "sleep", waits.append)
    fetched: list[int] = []
    ready = harness.fetching_ahead(lambda: fetched.append(1), ahead=3, repeats=5)
    assert ready.prepare is not None
    assert ready.finish is not None
    ready.prepare()
    assert len(fetched) == 3
    ready.call()
    assert len(fetched) == 8
    ready.finish()
    assert len(waits) == 1


def test_only_those_named_are_measured(clock: Clock) -> None:
    contenders = [calling(name, lambda: clock.spend(1)) for name in "ab"]
    result = harness.measure(work_of(*contenders), only=["b"])
    assert result.of("a").state == harness.NOT_IN_QUICK_FORM
    assert len(result.of("b").rounds) == harness.LEAST_ROUNDS


# -- contenders that cannot --------------------------------------------------------------------------------


def test_one_that_is_not_installed_is_a_row_that_says_so(clock: Clock) -> None:
    def make() -> NoReturn:
        raise AssertionError("it was set up")

    theirs = Contender("theirs", "peer", "made up", make, needs=("no_such_module_anywhere",))
    result = harness.measure(work_of(calling("a", lambda: clock.spend(1)), theirs))
    assert result.of("theirs").state == "not installed: no_such_module_anywhere"
    assert result.of("a").is_measured


@pytest.mark.parametrize("at", ["set-up", "first call", "later call"])
def test_one_that_raises_is_a_row_that_says_so_and_stops_no_other(clock: Clock, at: str) -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.spend(1)
        if at == "first call" or (at == "later call" and calls == 6):
            raise OSError("no room\nin /some/folder/file.bin")

    @peer("theirs", "made up")
    def theirs() -> Iterator[Callable]:
        if at == "set-up":
            raise OSError("no room\nin /some/folder/file.bin")
        yield call

    result = harness.measure(work_of(calling("a", lambda: clock.spend(1)), theirs))
    assert result.of("theirs").state == "cannot: OSError: no room in <path>"
    assert result.of("theirs").rounds == []
    assert len(result.of("a").rounds) == harness.LEAST_ROUNDS


def test_a_library_that_does_no_such_thing_is_a_row_with_the_reason() -> None:
    result = harness.measure(work_of(unable("theirs", "has no windows")))
    assert result.of("theirs").state == "cannot: has no windows"


def test_all_are_closed_and_one_that_cannot_be_keeps_its_figures(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[str] = []

    def make(name: str) -> Contender:
        @ours(name, "made up")
        def opened() -> Iterator[Callable]:
            yield lambda: clock.spend(1)
            closed.append(name)
            if name == "b":
                raise RuntimeError("will not close")

        return opened

    result = harness.measure(work_of(make("a"), make("b"), make("c")))
    assert closed == ["c", "b", "a"]
    assert result.of("b").is_measured
    assert "b could not be closed: RuntimeError: will not close" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: work_of(unit="parsecs"), "wanted one of us"),
        (lambda: work_of(calling("a", list), calling("a", list)), "two contenders are called a"),
        (lambda: work_of(unit="MB"), "want a number of rounds"),
        (lambda: harness.measure(work_of(), rounds=3), "at least 7"),
    ],
    ids=["unit", "names", "rounds of figures", "rounds"],
)
def test_mistakes_in_a_work_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()


# -- ratios ------------------------------------------------------------------------------------------------


def outcome(name: str, kind: harness.Kind, *rounds: float, **options: object) -> Outcome:
    return Outcome(name, kind, "as is", rounds=list(rounds), **options)  # type: ignore[arg-type]


def result_of(*outcomes: Outcome, unit: str = "us", name: str = "a work") -> Result:
    return Result("rows", name, unit, list(outcomes))


def test_a_ratio_is_the_median_of_those_of_neighbouring_rounds() -> None:
    mine, theirs = outcome("a", "ours", 1, 10, 100), outcome("b", "peer", 3, 20, 500)
    result = result_of(mine, theirs)
    assert harness.times_better(result, mine, theirs) == 3
    assert harness.times_the_cost(result, mine, theirs) == pytest.approx(1 / 3)
    assert harness.more_than(theirs, mine) == 10


def test_a_higher_rate_is_better() -> None:
    mine, theirs = outcome("a", "ours", 6, 6), outcome("b", "peer", 3, 3)
    assert harness.times_better(result_of(mine, theirs, unit="transitions/s"), mine, theirs) == 2


def test_nothing_is_infinitely_better_than_something() -> None:
    mine, theirs = outcome("a", "ours", 0.0), outcome("b", "peer", 3)
    assert harness.times_better(result_of(mine, theirs, unit="MB"), mine, theirs) == float("inf")


def test_those_of_a_size_are_compared_with_ours_of_that_size() -> None:
    small, large = outcome("a 1", "ours", 1, rows=10), outcome("a 2", "ours", 2, rows=20)
    theirs = outcome("b 2", "peer", 8, rows=20)
    result = result_of(small, large, theirs)
    assert result.counterpart(theirs) is large
    assert result.counterpart(large) is small


# -- what is measured, and what is promised of it ------------------------------------------------------------


@pytest.mark.parametrize("subject", subjects.SUBJECTS)
def test_a_subject_lists_works_that_have_one_of_ours(subject: str) -> None:
    works = subjects.works_of(subject)
    assert len({work.name for work in works}) == len(works) > 0
    for work in works:
        assert work.subject == subject
        assert any(contender.kind == "ours" for contender in work.contenders)


def test_listing_works_imports_no_other_library() -> None:
    code = "import subjects, sys; [subjects.works_of(s) for s in subjects.SUBJECTS]; print(*sys.modules)"
    path = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]
    program = f"import sys; sys.path[:0] = {path!r}; {code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "jax", "gymnasium", "torchrl", "cpprb", "tianshou", "matplotlib"} & set(done.stdout.split())


def test_there_is_no_such_subject() -> None:
    with pytest.raises(ValueError, match="there are rows, sampling"):
        subjects.works_of("nothing")


@pytest.mark.parametrize("bar", bars.load_bars(), ids=lambda bar: bar.what)
def test_a_bar_is_about_contenders_that_exist(bar: Bar) -> None:
    works = {(work.subject, work.name): work for work in ALL_WORKS}
    contenders = {contender.name: contender for contender in works[bar.subject, bar.work].contenders}
    assert contenders[bar.ours].kind == "ours"
    assert bar.against is None or bar.against in contenders


def test_every_issue_with_numbers_has_bars() -> None:
    assert {bar.issue for bar in bars.load_bars()} == {2, 3, 4, 5, 6, 7, 19, 23, 24}


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('ours = "a"\nagainst = "b"', "one of at_least, at_most and adds_at_most"),
        ('ours = "a"\nagainst = "b"\nat_least = 1.0\nat_most = 2.0', "one of at_least"),
        ('ours = "a"\nat_least = 1.0', "want `against`"),
        ('ours = "a"\nagainst = "b"\nat_lest = 1.0', "at_lest"),
    ],
    ids=["no promise", "two promises", "against nobody", "misspelt"],
)
def test_a_bar_that_makes_no_sense_is_refused(tmp_path: Path, entry: str, text: str) -> None:
    file = tmp_path / "bars.toml"
    file.write_text(f'[[bar]]\nissue = 1\nsubject = "rows"\nwork = "a work"\n{entry}\n')
    with pytest.raises(ValueError, match=text):
        bars.load_bars(file)


def verdict(bar_options: dict[str, object], *outcomes: Outcome) -> bars.Verdict:
    made = run_of(result_of(*outcomes))
    return bars.judge([Bar(1, "rows", "a work", "a", **bar_options)], made)[0]  # type: ignore[arg-type]


def run_of(*results: Result) -> record.Run:
    machine = {"cpu": "a CPU", "cores": 2, "memory_gb": 8, "system": "Linux", "python": "3.11", "threads": "1"}
    return record.Run(False, "2030-01-01", machine, {"numpy": "2.0"}, list(results))


MINE, THEIRS = outcome("a", "ours", 2.0), outcome("b", "peer", 8.0)


@pytest.mark.parametrize(
    ("promise", "state", "figure"),
    [
        ({"against": "b", "at_least": 4.0}, "ok", "4.00"),
        ({"against": "b", "at_least": 4.1}, "MISSED", "4.00"),
        ({"against": "b", "at_most": 0.25}, "ok", "0.25"),
        ({"against": "b", "at_most": 0.2}, "MISSED", "0.25"),
        ({"at_most": 2.0}, "ok", "2.00"),
        ({"at_most": 1.9}, "MISSED", "2.00"),
        ({"against": "b", "adds_at_most": -6.0}, "ok", "-6.00"),
        ({"against": "b", "adds_at_most": -6.1}, "MISSED", "-6.00"),
    ],
    ids=str,
)
def test_a_bar_is_met_or_missed(promise: dict[str, object], state: str, figure: str) -> None:
    found = verdict(promise, MINE, THEIRS)
    assert found.state == state
    assert found.text.startswith(f"{figure}, at ")


def test_a_peer_that_cannot_leaves_no_figure_and_ours_that_cannot_misses() -> None:
    without = outcome("b", "peer", state="not installed: b")
    assert verdict({"against": "b", "at_least": 1.0}, MINE, without).state == "no figure"
    assert verdict({"at_most": 1.0}, outcome("a", "ours", state="cannot: x")).state == "MISSED"
    floor_gone = outcome("b", "floor", state="cannot: x")
    assert verdict({"against": "b", "at_most": 1.0}, MINE, floor_gone).state == "MISSED"
    assert bars.judge([Bar(1, "rows", "another work", "a", at_most=1.0)], run_of())[0].state == "MISSED"


def test_one_that_was_added_after_a_run_is_not_measured_in_it() -> None:
    assert verdict({"against": "b", "at_least": 1.0}, MINE) == bars.Verdict(
        Bar(1, "rows", "a work", "a", "b", at_least=1.0), "MISSED", "b not measured"
    )


def test_what_the_quick_form_measures_is_what_bars_name() -> None:
    made = [Bar(1, "rows", "x", "a", "b", at_most=1.0), Bar(1, "rows", "x", "a", "c", at_most=1.0)]
    assert bars.contenders_named(made) == {("rows", "x"): ["a", "b", "c"]}


# -- runs --------------------------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = run_of(result_of(MINE, outcome("c", "peer", state="cannot: x", rows=10)))
    record.save_run(tmp_path / "new" / "run.json", made)
    assert record.load_run(tmp_path / "new" / "run.json") == made


def test_git_keeps_the_median_of_each_contender_on_a_line_of_its_own(tmp_path: Path) -> None:
    made = run_of(result_of(MINE, outcome("b", "peer", 1.0, 9.0, 2.0), outcome("c", "peer", state="cannot: x")))
    kept = record.medians_of(made)
    assert [each.rounds for each in kept.results[0].outcomes] == [[2.0], [2.0], []]
    assert record.medians_of(kept) == kept
    record.save_run(tmp_path / "run.json", kept)
    lines = (tmp_path / "run.json").read_text().splitlines()
    assert [json.loads(line.strip().rstrip(","))["name"] for line in lines if line.startswith("  ")] == ["a", "b", "c"]


def test_what_git_has_of_the_comparison_is_short() -> None:
    docs = BENCHMARKS.parent / "docs"
    assert len(record.MEDIANS.read_text(encoding="utf-8").splitlines()) < 1000
    assert [path.name for path in record.MEDIANS.parent.iterdir()] == [record.MEDIANS.name]
    medians = record.load_run(record.MEDIANS)
    assert record.medians_of(medians) == medians
    page = (docs / "benchmarks.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) < 200
    plots = sorted(path.name for path in (docs / "benchmarks").iterdir())
    assert plots == sorted(re.findall(r"\(benchmarks/(\w+\.svg)\)", page))
    assert len(plots) <= 4


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99, this reads 1"):
        record.load_run(file)


def test_a_run_tells_nothing_about_whose_machine_it_was(tmp_path: Path) -> None:
    record.save_run(tmp_path / "run.json", record.new_run(quick=True))
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text)["machine"]["cores"] >= 1
    for private in (socket.gethostname(), str(Path.home()), str(BENCHMARKS.parent), sys.prefix):
        assert private not in text


def test_a_subject_whose_process_dies_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "measure_subject.py").write_text("import sys; sys.stderr.write('why'); sys.exit(3)")
    monkeypatch.setattr(run, "HERE", tmp_path)
    made = run.compare(["rows"], quick=False)
    assert [result.name for result in made.results] == [work.name for work in subjects.works_of("rows")]
    states = {outcome.state for result in made.results for outcome in result.outcomes}
    assert states == {"cannot: its process ended with status 3"}
    assert "why" in capfd.readouterr().err


def test_check_exits_with_1_where_a_bar_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record.save_run(tmp_path / "run.json", run_of(result_of(MINE, THEIRS)))
    monkeypatch.setattr(sys, "argv", ["check.py", "--from", str(tmp_path / "run.json")])
    met = Bar(1, "rows", "a work", "a", "b", at_least=2.0)
    known = Bar(1, "rows", "a work", "a", "b", at_least=9.0, missed="the bus is slow")
    monkeypatch.setattr(bars, "load_bars", lambda: [met])
    assert check.main() == 0
    monkeypatch.setattr(bars, "load_bars", lambda: [met, known])
    assert check.main() == 1
    assert "at least 9 x (known: the bus is slow)" in capsys.readouterr().out


@pytest.mark.parametrize("grown", [peak_growth, held_growth])
def test_memory_is_what_a_call_adds(grown: Callable[..., float]) -> None:
    size = 64 * 2**20
    assert size * 0.95 < grown(bytearray, [1000], [size]) < size * 1.3


# -- what is shown -----------------------------------------------------------------------------------------


def shown_run() -> record.Run:
    behind = result_of(MINE, outcome("fast", "peer", 1.0), outcome("b", "peer", 8.0), name="one | work")
    absent = result_of(outcome("a", "ours", 3.0), outcome("c", "peer", state="not installed: c"), name="another work")
    grown = Result(
        "growth",
        "a cost",
        "ms",
        [outcome(f"a {rows}", "ours", rows / 5, rows=rows) for rows in (10, 100)]
        + [outcome(f"b {rows}", "peer", float(rows), rows=rows) for rows in (10, 100)],
    )
    return run_of(behind, absent, grown)


def test_tables_fit_120_columns_and_show_all() -> None:
    wide = outcome("a name of as many as 26 ch", "peer", 123456.0, 3.0)
    wide.setting = "a setting that is rather long: " * 5
    mine = outcome("a", "ours", 0.000123, 12345.6)
    refusal = outcome("c", "peer", state="cannot: " + "because of this and that " * 10)
    text = text_tables.table(result_of(mine, wide, refusal))
    assert max(map(len, text.splitlines())) <= text_tables.WIDTH
    assert "because of this" in text
    assert all(len(contender.name) <= 26 for work in ALL_WORKS for contender in work.contenders)


def test_the_page_names_peers_that_are_ahead_first_and_then_what_bars_are_about() -> None:
    made = shown_run()
    missed = Bar(9, "rows", "one | work", "a", "fast", at_least=2.0)
    met = Bar(9, "rows", "one | work", "a", "b", at_least=3.0)
    text = report.page(made, bars.judge([missed, met, Bar(9, "rows", "no work", "a", at_most=1.0)], made))
    ahead = text.split("## Where a peer is ahead of us")[1].split("##")[0]
    assert "| rows | one \\| work | 2.00 us | fast: 1.00 us, ours is 0.5 x |" in ahead
    assert ahead.count("\n| ") == 3  # the two lines of the head, and this one
    assert "| rows | one \\| work | a: 2.00 us | fast: 0.5, at least 2 x (MISSED); b: 4.00, at least 3 x |" in text
    assert "| rows | no work | a | not measured (MISSED) |" in text
    assert "another work" not in text
    assert "growth" not in text
    assert sorted(name for names in report.SECTIONS.values() for name in names) == sorted(subjects.SUBJECTS)


def test_the_page_of_the_medians_in_git_is_short() -> None:
    medians = record.load_run(record.MEDIANS)
    written = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for text in (report.page(medians, bars.judge(bars.load_bars(), medians)), written):
        assert len(text.splitlines()) <= 200
        assert text.count("![") <= 4


def test_the_tables_have_everything() -> None:
    made = shown_run()
    text = report.tables(made, bars.judge([Bar(9, "rows", "one | work", "a", "fast", at_least=2.0)], made))
    order = ["is ahead of us", "## What was promised", "## Rows", "not installed: c", "## Growth"]
    assert sorted(order, key=text.index) == order
    spread = run_of(result_of(outcome("a", "ours", 1.0, 2.0, 3.0)))
    assert "| ours | a | 2.00 | 1.50 to 2.50 |" in report.tables(spread, [])
    assert "| ours | a | 2.00 |  |" in report.tables(record.medians_of(spread), [])


def test_findings_are_about_things_that_are_measured() -> None:
    """A command in the findings that profiles something still finds it."""
    text = (BENCHMARKS / "findings.md").read_text(encoding="utf-8")
    commands = re.findall(r"bench-profile ARGS=\"(.*)\"", text)
    assert commands
    for command in commands:
        subject, work, contender = shlex.split(command)[:3]
        assert profile_contender.find_contender(subject, work, contender).name == contender


def test_the_page_says_where_nobody_is_ahead() -> None:
    assert "Nowhere in this run." in report.page(run_of(result_of(MINE, THEIRS)), [])


def test_the_same_run_gives_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    record.save_run(tmp_path / "run.json", shown_run())
    contents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        options = [
            "--from",
            str(tmp_path / "run.json"),
            "--docs",
            str(folder / "docs"),
            "--tables",
            str(folder / "build"),
        ]
        monkeypatch.setattr(sys, "argv", ["report.py", *options])
        report.main()
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        contents.append({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})
    plots = {"docs/benchmarks/growth.svg", "build/benchmarks/growth.svg", "build/benchmarks/rows.svg"}
    assert set(contents[0]) == {"docs/benchmarks.md", "build/benchmarks.md", *plots}
    assert contents[0] == contents[1]
    assert b"<dc:date>" not in contents[0]["docs/benchmarks/growth.svg"]


# -- counted calls -----------------------------------------------------------------------------------------


def test_calls_of_ours_are_counted_and_no_others() -> None:
    space = BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(2,))

    def environment() -> None:
        space.contains(np.zeros(2, np.float32))

    def call() -> None:
        assert space.dtype_name == "float32"
        environment()
        assert sorted([2, 1]) == json.loads("[1, 2]")

    whole = count_calls.calls_of(call)
    alone = count_calls.calls_of(environment)
    assert "unienv_interface/space/spaces/box.py" in count_calls.files_of(alone)
    assert alone[0].co_name == "contains"
    assert whole[len(whole) - len(alone) :] == alone
    assert count_calls.calls_of(call, environment) == whole[: len(whole) - len(alone)]
    assert sys.getprofile() is None


def test_the_usual_number_of_calls_counts() -> None:
    space = BoxSpace(NumpyComputeBackend, 0, 1, "float32", shape=(2,))
    value, rounds = np.zeros(2, np.float32), itertools.count()

    def call() -> None:
        for _ in range(5 if next(rounds) % 10 == 0 else 1):
            space.contains(value)

    assert count_calls.usual_calls(call) == count_calls.calls_of(lambda: space.contains(value))


# -- profiles ----------------------------------------------------------------------------------------------


STACKS = [
    "<module> (profile_contender.py:130);main (profile_contender.py:125) 90",
    "main (profile_contender.py:125);call_under_profile (profile_contender.py:47);f (a.py:3);g (a.py:9) 2",
    "main (profile_contender.py:125);call_under_profile (profile_contender.py:47);f (a.py:4);g (a.py:8);f (a.py:3) 1",
    "main (profile_contender.py:125);call_under_profile (profile_contender.py:47);f (a.py:4);0x7f01 (libc.so.6) 4",
    "main (profile_contender.py:125);call_under_profile (profile_contender.py:47);f (a.py:4);0x7f99 (libc.so.6) 1",
]


def test_samples_count_by_function_and_only_within_calls() -> None:
    own, whole = profile_contender.times_by_function(STACKS)
    assert own == {"unnamed (libc.so.6)": 5, "g (a.py)": 2, "f (a.py)": 1}
    marker = "call_under_profile (profile_contender.py)"
    assert whole == {marker: 8, "f (a.py)": 8, "unnamed (libc.so.6)": 5, "g (a.py)": 3}


def test_the_parts_of_a_call_add_up_to_it() -> None:
    lines = profile_contender.table(STACKS, call_us=40.0, top=25).splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["25.00", "25.00"], ["10.00", "15.00"], ["5.00", "40.00"]]
    with pytest.raises(ValueError, match="give more --seconds"):
        profile_contender.table(STACKS[:1], call_us=40.0, top=25)


def test_a_contender_is_timed_without_what_prepares_it(clock: Clock) -> None:
    @ours("a", "made up")
    def make() -> Iterator[Ready]:
        yield Ready(lambda: clock.spend(0.01), lambda: clock.spend(5.0), lambda: clock.spend(7.0), repeats=4)

    assert profile_contender.time_of_a_call(make, 30.0) == pytest.approx(2500.0)


def test_a_contender_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="rows has no work 'pack two'; there are gather and unpack 256, pack 256"):
        profile_contender.find_contender("rows", "pack two", "unienv")
    with pytest.raises(ValueError, match="rows, pack one has no contender 'theirs'; there are unienv"):
        profile_contender.find_contender("rows", "pack one", "theirs")
