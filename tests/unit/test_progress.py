"""What is said while a run goes on: lines, lines folded by leg, and the matrix on a screen of any size."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from io import StringIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.plan import LegPlan
from matrix.results import Requested, Status
from runner import display
from runner import progress as progresses
from runner.display import Display, Row
from runner.progress import Folded, Progress, choose

HOSTILE = "a\x1b[31m ::error::x ##[error]y\n::warning::z"


def leg(name: str) -> LegPlan:
    return LegPlan(
        id=name,
        requested=Requested(torch=name, deepspeed="none"),
        runner="cpu",
        lanes=("gloo", "nccl-path"),
        torch=None,
        deepspeed=None,
        python="3.11",
    )


FIRST, SECOND, THIRD = leg("torch2.2.2"), leg("torch2.3.1"), leg("torch2.13.0")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "quiet", "kind"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, False, Display),
        (Terminal(), {"TERM": "xterm-256color"}, True, Progress),
        (Terminal(), {"TERM": "dumb"}, False, Progress),
        (Terminal(), {}, False, Progress),
        (Terminal(), {"TERM": "xterm", "CI": "true"}, False, Progress),
        (StringIO(), {"TERM": "xterm"}, False, Progress),
        (StringIO(), {"GITHUB_ACTIONS": "true", "CI": "true"}, False, Folded),
        (StringIO(), {"GITHUB_ACTIONS": "true", "CI": "true"}, True, Progress),
    ],
)
def test_who_looks_decides_what_is_shown(
    stream: StringIO, environment: dict[str, str], quiet: bool, kind: type[Progress]
) -> None:
    progress = choose(stream, environment, quiet=quiet, verbose=False)
    progress.close()
    assert type(progress) is kind


def test_who_is_quiet_says_nothing() -> None:
    stream = StringIO()
    progress = choose(stream, {"GITHUB_ACTIONS": "true"}, quiet=True, verbose=True)
    progress.begin([FIRST])
    with progress.running(FIRST) as activity:
        activity.detail("crash")
    progress.finished(FIRST, "completed", ["done"])
    progress.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("kind", [Progress, Folded])
def test_a_stream_without_room_is_no_reason_to_stop(kind: type[Progress]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:  # noqa: PTH123 - a device
        said = kind(full)
        said.note("a line")
        with said.running(FIRST) as activity:
            activity.say("another")
        said.finished(FIRST, "completed", ["the last"])
        said.close()
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_plain_lines_tell_how_far_a_leg_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progresses, "LINE_EVERY", 0.0)
    stream = StringIO()
    progress = Progress(stream, verbose=True)
    with progress.running(FIRST) as activity:
        activity.stage("tests/test_x.py::test_y")
        activity.observed(3, 10)
        activity.detail("crash loss/x")
    assert stream.getvalue().splitlines() == [
        "torch2.2.2: 3 of 10 observed, 0 s, at tests/test_x.py::test_y",
        "torch2.2.2: crash loss/x",
    ]


def test_lines_are_folded_by_leg_and_those_of_the_next_leg_wait_for_its_turn() -> None:
    stream = StringIO()
    progress = Folded(stream)
    progress.begin([FIRST, SECOND])
    with progress.building(FIRST):
        pass
    with progress.running(FIRST) as running, progress.building(SECOND) as building:
        building.say("importing torch")
        running.say(HOSTILE)
    progress.finished(FIRST, "completed", ["torch2.2.2: 12 observations"])
    progress.finished(SECOND, "environment-failed", ["torch2.3.1: no space", "    log"])
    progress.close()

    assert stream.getvalue().splitlines() == [
        "::group::torch2.2.2",
        "torch2.2.2: building the environment",
        "torch2.2.2: environment ready after 0 s",
        "torch2.2.2: a ::error::x ##\u2060[error]y",
        ":\u2060:warning::z",
        "::endgroup::",
        "torch2.2.2: 12 observations",
        "::group::torch2.3.1",
        "torch2.3.1: building the environment",
        "torch2.3.1: importing torch",
        "torch2.3.1: environment ready after 0 s",
        "::endgroup::",
        "torch2.3.1: no space",
        "    log",
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["say", "finish"])), max_size=30))
def test_groups_neither_nest_nor_stay_open_and_no_line_is_lost(events: list[tuple[str, str]]) -> None:
    stream = StringIO()
    progress = Folded(stream)
    legs = {name: leg(name) for name in "abc"}
    progress.begin(list(legs.values()))
    said = 0
    finished: set[str] = set()
    for name, event in events:
        if name in finished:
            continue
        if event == "say":
            said += 1
            progress.write(f"line of {name}", name)
        else:
            finished.add(name)
            progress.finished(legs[name], "completed", [f"end of {name}"])
    progress.close()
    lines = stream.getvalue().splitlines()
    inside = None
    for line in lines:
        if line.startswith("::group::"):
            assert inside is None
            inside = line.removeprefix("::group::")
        elif line == "::endgroup::":
            assert inside is not None
            inside = None
        elif line.startswith("line of "):
            assert inside == line.removeprefix("line of ")
    assert inside is None
    assert sum(line.startswith("line of ") for line in lines) == said


# The matrix on a terminal


def row(name: str = "a", **more: Any) -> Row:
    return Row(name, **more)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ([], None),
        ([row(), row()], None),
        ([row(running_since=100.0, count=1, planned=100)], None),  # a hundredth says nothing
        ([row(running_since=99.0, count=50, planned=100)], None),  # nor does one second
        ([row(running_since=90.0, count=50, planned=100)], 10.0),
        ([row(running_since=90.0, count=50, planned=100), row(), row()], 50.0),
        ([row(seconds=30.0, status="completed"), row(), row()], 60.0),
        ([row(seconds=30.0, status="completed"), row(running_since=90.0, count=0, planned=9), row()], 50.0),
        ([row(seconds=30.0, status="completed"), row(running_since=50.0, count=0, planned=9)], 0.0),
        ([row(running_since=90.0, before=50, count=0, planned=50)], 10.0),
    ],
)
def test_what_is_left_is_estimated_by_what_was_needed(rows: list[Row], seconds: float | None) -> None:
    assert display.left(rows, now=100.0) == (pytest.approx(seconds) if seconds is not None else None)


def drawn(rows: list[Row], width: int, height: int, **environment: str) -> list[tuple[str, str]]:
    shown = Display(Terminal(), environment, clock=lambda: 100.0)
    shown.close()
    shown._rows = {one.name: one for one in rows}
    return shown._lines(100.0, width, height)


def counted(**lanes: dict[str, int]) -> dict[tuple[str, str], Counter[str]]:
    return {(lane.replace("_", "-"), "loss"): Counter(outcomes) for lane, outcomes in lanes.items()}


ROWS = [
    row("torch2.2.2-dsnone-py3.11-cpu", status="completed", seconds=9.0, lanes=counted(gloo={"pass": 4, "crash": 1})),
    row(
        "torch2.3.1-dsnone-py3.11-cpu",
        doing="running",
        running_since=90.0,
        count=6,
        planned=12,
        lanes=counted(gloo={"pass": 3, "wrong": 1}, nccl_path={"pass": 2}),
    ),
    row("torch2.13.0-dsnone-py3.11-cpu", doing="building", state="importing torch"),
    row("torch2.15.0-dsnone-py3.11-cpu"),
]


def test_the_matrix_has_a_row_for_each_leg_and_a_column_for_each_suite() -> None:
    lines = [re.sub(r" {2,}", "  ", plain).strip() for plain, _ in drawn(ROWS, 119, 30)]
    assert lines == [
        "leg  loss",
        "✓  torch2.2.2-dsnone-py3.11-cpu  ✓4 ⚡1  completed, 9 s",
        "▶  torch2.3.1-dsnone-py3.11-cpu  ✓5 ✗1  6 of 12, 10 s",
        "gloo  ✓3 ✗1",
        "nccl-path (emulated)  ✓2",
        "+  torch2.13.0-dsnone-py3.11-cpu  building: importing torch",
        "·  torch2.15.0-dsnone-py3.11-cpu  waiting",
        "1 of 4 legs, 11 observed, 0 s, about 28 s of measuring left",
    ]


def test_colours_only_where_they_are_wanted() -> None:
    assert any("\x1b[3" in styled for _, styled in drawn(ROWS, 119, 30, TERM="xterm-256color"))
    assert not any(re.search(r"\x1b\[(3|9|4)\d", line) for _, line in drawn(ROWS, 119, 30, NO_COLOR="1"))


STATUSES: list[Status | None] = [None, "completed", "environment-failed", "timed-out", "cancelled"]
ANY_ROW = st.builds(
    Row,
    st.text(min_size=1, max_size=60).map(lambda name: "t" + re.sub(r"\s", "-", name)),
    doing=st.sampled_from(["waiting", "building", "running", ""]),
    state=st.text(max_size=200),
    lanes=st.dictionaries(
        st.tuples(st.sampled_from(["gloo", "nccl-path", "nccl"]), st.sampled_from(["loss", "tests", "engine"])),
        st.dictionaries(st.sampled_from(["pass", "crash", "hang"]), st.integers(1, 10**6)).map(Counter),
    ),
    count=st.integers(0, 10**6),
    planned=st.integers(0, 10**6),
    running_since=st.none() | st.floats(0, 100),
    status=st.sampled_from(STATUSES),
)


@settings(max_examples=40)
@given(
    st.lists(ANY_ROW, min_size=1, max_size=40, unique_by=lambda one: one.name), st.integers(19, 250), st.integers(3, 60)
)
def test_it_fits_every_screen(rows: list[Row], width: int, height: int) -> None:
    lines = drawn(rows, width, height)
    assert 0 < len(lines) <= height
    assert all(display.cell_len(plain) <= width for plain, _ in lines)
    assert re.match(r"\d+ of \d+ leg", lines[-1][0])


def test_what_is_said_stands_above_the_matrix_and_the_end_is_clean() -> None:
    stream = Terminal()
    shown = Display(stream, {"TERM": "xterm"}, verbose=True)
    shown.begin([FIRST, SECOND])
    with shown.running(FIRST) as activity:
        activity.seen("loss", "gloo", "crash")
        activity.observed(1, 2)
        activity.detail(HOSTILE)
    shown.finished(FIRST, "timed-out", ["torch2.2.2: timed out"])
    shown.close()
    text = stream.getvalue()
    assert "\x1b[31m ::error::x" not in text
    assert "\x1b[?25l" not in text  # the cursor stays to be seen
    assert text.endswith("\x1b[J")
    assert threading.active_count() == 1 or not [one for one in threading.enumerate() if one.name == "display"]


def test_a_terminal_that_is_closed_is_no_reason_to_stop() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        shown = Display(stream, {"TERM": "xterm"})
        shown.begin([FIRST])
        shown.note("nobody reads this")
        with shown.running(FIRST) as activity:
            activity.observed(1, 2)
        shown.close()
        assert shown._gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
