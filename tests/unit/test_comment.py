"""Comment and summary: the verdict first, every failing cell with its evidence, never longer than GitHub takes."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results_examples import HOSTILE, any_results, crash, leg, observation, results, three_releases
from test_markdown import github, second

from matrix import comment, summary
from matrix.known_issues import KnownIssues, built_in
from matrix.results import Results, Source
from matrix.verdict import Verdict, judge

NONE = KnownIssues()


def judged(document: Results, known: KnownIssues | None = None, baseline: Results | None = None) -> Verdict:
    return judge(document, built_in() if known is None else known, baseline, "regression")


def many(legs: int, observations: int, known: bool) -> Results:
    """A run of many legs in which every second cell fails."""
    made = [leg(f"2.{minor}.0") for minor in range(legs)]
    name = "collectives/all_reduce_max" if known else "collectives/all_reduce"
    traceback = "Traceback (most recent call last):\n" + '  File "x.py", line 1, in <module>\n' * 60
    cells = []
    for one in made:
        for number in range(observations):
            failing = crash(message=f"RuntimeError: {number} | of `many` <words>") if number % 2 else observation(name)
            ranks = [msgspec.structs.replace(rank, traceback=traceback) for rank in failing.ranks]
            case = f"case_{number % 40}"
            cells.append(msgspec.structs.replace(failing, leg=one.id, case=case, parameters={"n": number}, ranks=ranks))
    return results(made, cells)


def test_the_first_line_is_the_verdict() -> None:
    first, *_ = comment.render(judged(three_releases())).splitlines()
    assert first == (
        "### ✓ No unexpected failure: 259 of 405 cells right on 3 torch releases, 116 failures known upstream, "
        "30 failing by design."
    )
    first, *_ = comment.render(judged(three_releases(), NONE)).splitlines()
    assert first.startswith("### ✗ 146 new failures in collectives/gather,")


def test_what_is_new_stands_before_the_matrix_and_the_matrix_before_the_details() -> None:
    body = comment.render(judged(three_releases(), NONE))
    places = [body.index(part) for part in ("**New failures**", "#### Matrix", "<details>", "How to read this")]
    assert places == sorted(places)


def test_the_matrix_says_what_is_emulated_in_words() -> None:
    body = comment.render(judged(three_releases()))
    head, rule, *rows = body[body.index("| torch |") :].splitlines()
    assert "`collectives/all_gather`<br>nccl-path\u00a0(emulated)" in head
    assert set(rule) <= set("| -")
    assert rows[0].startswith("| 2.2.2 | 81\u00a0of\u00a0129 |")
    assert "⚡\u00a0crash\u00a0(partly,\u00a0known)" in rows[0]
    assert "⚡" not in rows[1]


def test_every_new_failure_has_first_rank_message_and_command() -> None:
    body = comment.render(judged(results([leg("2.2.2")], [crash()]), NONE))
    assert "rank 2: `IndexError: tuple index out of range`" in body
    assert "✓ pass: ranks 0, 1; ⚡ crash: ranks 2, 3" in body
    fence = re.search(r"```sh\n(.*?)\n```", body)
    assert fence
    words = shlex.split(fence[1])
    assert words[:4] == ["sp-compat", "run", "--torch", "2.2.2"]
    assert words[words.index("--case") + 1] == "all_gather"


def test_a_known_failure_is_told_with_its_source_and_command() -> None:
    body = comment.render(judged(results([leg("2.2.2")], [crash()])))
    assert "https://github.com/pytorch/pytorch/issues/120213" in body
    assert "Use torch 2.3 or newer" in body
    assert "`sp-compat run --torch 2.2.2" in body
    assert "**New failures**" not in body


def test_what_changed_against_the_baseline() -> None:
    right = msgspec.structs.replace(crash(), outcome="pass", message=None)
    old = leg("2.2.2")
    body = comment.render(judged(results([old], [crash()]), NONE, results([old], [right])))
    assert "(was ✓ pass)" in body
    body = comment.render(judged(results([old], [right]), NONE, results([old], [crash()])))
    assert "**Fixed**" in body
    assert "(was ⚡ crash)" in body


def test_the_comment_links_the_full_report_and_names_the_commit_of_the_baseline() -> None:
    new = leg("2.2.2")
    before = results([new], [observation()], source=Source(sha="0123456789abcdef"))
    page = "https://github.example/o/r/actions/runs/7"
    body = comment.render(judge(results([new], [observation()]), NONE, before, "regression"), page=page)
    basis = body.splitlines()[2]
    assert basis == (
        "Compared with the baseline of commit `0123456789` and with the known issues. "
        f'Everything is in <a href="{page}">the job summary</a>.'
    )


def test_a_leg_without_a_result_is_told() -> None:
    failed = leg(
        None, id="torch2.6.0-ds0.19.0-py3.11-cpu", status="environment-failed", reason="build", detail="no `cc`"
    )
    body = comment.render(judged(results([leg("2.2.2"), failed], [observation()])))
    assert "leg `torch2.6.0-ds0.19.0-py3.11-cpu` is **✗ no environment: cannot be installed**" in body
    assert "<code>no &#96;cc&#96;</code>" in body


def test_a_known_issue_that_no_longer_shows_is_told() -> None:
    new = leg("2.13.0")
    body = comment.render(judged(results([new], [observation("collectives/broadcast", leg=new.id)])))
    assert "Known issues that no longer show" in body
    assert "`torch-broadcast-group-rank`" in body


def test_the_summary_has_every_known_cell_and_the_comment_one_of_each_issue() -> None:
    verdict = judged(three_releases())
    assert summary.render(verdict).count("sp-compat run") == 146
    issues = {cell.issue.id for cell in verdict.cells if cell.issue}
    assert comment.render(verdict).count("sp-compat run") == len(issues) > 4


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("limit", [comment.LIMIT, 20_000, 4_000, 1_000])
def test_the_comment_is_cut_at_whole_rows(known: bool, limit: int) -> None:
    body = comment.render(judged(many(12, 200, known)), limit)
    assert len(body.encode("utf-16-le")) // 2 <= limit
    assert body.startswith("### ✗ 1200 new failures")
    assert "for length; the job summary has them." in body
    assert_whole(body)


def test_the_summary_is_measured_in_bytes() -> None:
    verdict = judged(many(12, 500, known=False))
    body = summary.render(verdict)
    assert 900_000 < len(body.encode()) <= summary.LIMIT
    assert_whole(body)
    assert len(summary.render(verdict, 5_000).encode()) <= 5_000


def test_characters_beyond_the_basic_plane_count_twice() -> None:
    emoji = [msgspec.structs.replace(crash(message="🐍" * 200), parameters={"n": number}) for number in range(900)]
    body = comment.render(judged(results([leg("2.2.2")], emoji), NONE))
    assert len(body.encode("utf-16-le")) // 2 <= comment.LIMIT


def assert_whole(body: str) -> None:
    """Tables have all cells of every row, blocks and folds are closed."""
    body = re.sub(r"^(`{3,})sh\n.*?\n\1$", "", body, flags=re.MULTILINE | re.DOTALL)
    assert "```" not in body
    assert body.count("<details>") == body.count("</details>")
    width = None
    for line in body.splitlines():
        if not line.startswith("| "):
            width = None
            continue
        cells = len(re.split(r"(?<!\\)\|", line)) - 2
        assert width in (None, cells), line
        width = cells


# --- what may come from outside ---------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(any_results(), st.sampled_from([comment.LIMIT, 3_000]))
def test_any_results_make_a_whole_page(document: Results, limit: int) -> None:
    for render in (comment.render, summary.render):
        body = render(judged(document), limit)
        body.encode()
        assert_whole(body)
        for page in (github(body), second(body)):
            assert set(page.elements) <= {
                "a", "br", "code", "details", "em", "h3", "h4", "li", "p", "pre", "strong", "summary", "table", "tbody",
                "td", "th", "thead", "tr", "ul",
            }  # fmt: skip
            assert page.elements.count("details") == body.count("<details><summary>")


def test_hostile_text_everywhere_is_shown_as_text() -> None:
    hostile = leg(HOSTILE, id=HOSTILE, detail=HOSTILE, log=HOSTILE, torch_build=HOSTILE, status="timed-out")
    seen = crash(leg=HOSTILE, message=HOSTILE, topology=HOSTILE, case=HOSTILE, parameters={HOSTILE: HOSTILE})
    body = comment.render(judged(results([hostile], [seen]), NONE))
    assert_whole(body)
    for page in (github(body), second(body)):
        assert "b" not in page.elements
        assert "module" not in page.elements
        assert "img" not in page.elements
        assert page.elements.count("details") == body.count("<details><summary>")
