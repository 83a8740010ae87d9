"""What a run leaves behind and prints: files that programs read, a report that people read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from junitparser import JUnitXml

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import HOSTILE, any_results, crash, leg, observation, results, three_releases

from matrix.known_issues import KnownIssues, built_in
from matrix.results import Results, decode
from matrix.verdict import Verdict, judge
from runner import junit, outputs, terminal

NONE = KnownIssues()
FILES = ("results.json", "comment.md", "summary.md", "report.html", "junit.xml")


def judged(document: Results, known: KnownIssues | None = None) -> Verdict:
    return judge(document, built_in() if known is None else known, None, "regression")


def printed(verdict: Verdict) -> str:
    stream = io.StringIO()
    terminal.show(verdict, stream)
    return stream.getvalue()


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_files_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    written = outputs.write_outputs(out, judged(three_releases()))
    assert [path.name for path in written] == list(FILES)
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    document = decode((out / "results.json").read_bytes())
    explained = {seen.known_issue for seen in document.observations if seen.outcome == "crash"}
    assert explained == {
        "torch-allgather-global-rank",
        "torch-alltoall-gloo-group-rank",
        "torch-gather-scatter-global-root",
    }
    assert (out / "comment.md").read_text(encoding="utf-8").startswith("### ✓ ")
    assert oct((out / "comment.md").stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_reader_never_meets_half_a_file(tmp_path: Path) -> None:
    verdict = judged(three_releases())
    outputs.write_outputs(tmp_path, verdict)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                decode((tmp_path / "results.json").read_bytes())
            except BaseException as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        outputs.write_outputs(tmp_path, verdict)
    stop.set()
    reader.join()
    assert not failures


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs.write_outputs(tmp_path, judged(three_releases()))
    before = (tmp_path / "results.json").read_bytes()

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        outputs.write_outputs(tmp_path, judged(three_releases(), NONE))
    assert (tmp_path / "results.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_junit_has_a_test_case_for_each_observation_and_leg() -> None:
    failed = leg(None, id="torch2.6.0-ds0.19.0-py3.11-cpu", status="environment-failed", reason="build")
    lost = leg(None, id="torch2.7.0-ds0.19.0-py3.11-cpu", status="environment-failed", reason="machine")
    seen = [
        observation(),
        crash(),
        observation("collectives/reduce", "wrong", relative_error=0.5),
        observation("collectives/reduce_avg", "unsupported", message="RuntimeError: no"),
    ]
    document = JUnitXml.fromstring(junit.render(judged(results([leg("2.2.2"), failed, lost], seen))).decode())
    assert (document.tests, document.failures, document.errors, document.skipped) == (7, 1, 1, 3)
    suites = {suite.name: {case.name: case for case in suite} for suite in document}
    cases = suites["torch2.2.2-dsnone-py3.11-cpu"]
    known = cases["all_gather[sp2-contiguous, contiguous=True, dtype=float32]"]
    assert known.is_skipped
    assert "known issue torch-allgather-global-rank" in known.result[0].message
    assert known.classname == "torch2.2.2-dsnone-py3.11-cpu.nccl-path.collectives"
    new = cases["reduce[sp2-contiguous, contiguous=True, dtype=float32]"]
    assert new.result[0].type == "wrong"
    assert "sp-compat run --torch 2.2.2" in new.result[0].text


def test_junit_shows_the_first_ranks_traceback() -> None:
    document = JUnitXml.fromstring(junit.render(judged(results([leg("2.2.2")], [crash()]), NONE)).decode())
    failure = next(case for suite in document for case in suite if case.result).result[0]
    assert "IndexError: tuple index out of range" in failure.message
    assert 'File "functional.py", line 331' in failure.text


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_results())
def test_junit_is_always_well_formed(document: Results) -> None:
    root = ElementTree.fromstring(junit.render(judged(document)))
    assert len(root.findall(".//testcase")) == len(document.observations) + len(document.legs)


# --- terminal ---------------------------------------------------------------------------------------------------------


def test_the_report_says_everything_in_words() -> None:
    text = printed(judged(three_releases()))
    assert "\x1b" not in text
    assert "collectives, lane nccl-path (emulated)" in text
    assert "all_gather         ⚡ crash (2 of 3, known)   ✓ pass" in text
    assert "https://github.com/pytorch/pytorch/issues/120213" in text
    assert text.rstrip().splitlines()[-1].startswith("No unexpected failure: ")


def test_every_unexpected_cell_is_printed_with_its_command() -> None:
    lines = printed(judged(three_releases(), NONE)).splitlines()
    commands = [line for line in lines if line.lstrip().startswith("sp-compat run")]
    assert len(commands) == 146
    place = next(
        number for number, line in enumerate(lines) if "collectives/all_gather on torch 2.2.2, nccl-path" in line
    )
    assert "first rank 2: IndexError: tuple index out of range" in lines[place]
    assert lines[place + 1].strip().endswith("--parameter contiguous=true --parameter dtype=float32")


def test_known_failures_are_told_once_for_each_issue() -> None:
    text = printed(judged(three_releases()))
    assert text.count("Known upstream, ") == 5
    assert text.count("By design, ") == 1
    assert text.count("sp-compat run") < 20


def test_many_releases_are_split_into_tables_that_fit() -> None:
    legs = [leg(f"2.{minor}.0") for minor in range(16)]
    cells = [crash(leg=one.id, topology=name) for one in legs for name in ("sp2-contiguous", "sp2-strided")]
    text = printed(judged(results(legs, cells), NONE))
    assert max(len(line) for line in text.splitlines() if "⚡ crash (2 of 2, new)" in line) <= terminal.PLAIN_WIDTH
    assert all(f"torch 2.{minor}.0" in text for minor in range(16))
    assert "…" not in text


def test_text_from_outside_steers_neither_terminal_nor_ci_log() -> None:
    hostile = leg("2.2.2", id=HOSTILE, status="timed-out", detail=f"\n{HOSTILE}")
    seen = crash(leg=HOSTILE, message=HOSTILE, topology=HOSTILE, case="\n::error::x", parameters={HOSTILE: HOSTILE})
    text = printed(judged(results([hostile], [seen]), NONE))
    assert "\x1b" not in text
    assert "##[error]" not in text
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
    text.encode()


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_results())
def test_any_results_can_be_printed(document: Results) -> None:
    text = printed(judged(document))
    text.encode()
    assert "\x1b" not in text


@pytest.mark.parametrize(("setting", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_for_terminals_that_want_it(setting: dict[str, str], coloured: bool) -> None:
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from results_examples import three_releases\n"
        "from matrix.known_issues import built_in\nfrom matrix.verdict import judge\nfrom runner import terminal\n"
        "terminal.show(judge(three_releases(), built_in(), None, 'regression'), sys.stdout)\n"
    )
    root = Path(__file__).parents[2]
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "140"} | setting
    screen = _on_a_terminal([sys.executable, "-c", program, str(root), str(root / "tests" / "unit")], environment)
    assert "crash" in screen
    # Bold is no colour; what NO_COLOR asks for is that no colour is set.
    assert ("\x1b[31m" in screen or "\x1b[32m" in screen) == coloured


def _on_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    screen, inner = os.openpty()
    with subprocess.Popen(command, stdout=inner, stderr=inner, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(inner)
        seen = b""
        while True:
            try:
                piece = os.read(screen, 65536)
            except OSError:  # the other end of a pseudo-terminal is gone
                break
            if not piece:
                break
            seen += piece
    os.close(screen)
    assert process.returncode == 0, seen.decode(errors="replace")
    return seen.decode(errors="replace")
