"""The page's document: what comment and summary say, from the same verdict; and a file that cannot be broken out of."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_examples import HOSTILE, any_results, crash, leg, observation, results, three_releases

from matrix import comment, floors, markdown, page, page_data, reproduce, sections, signs, wording
from matrix import table as tables
from matrix.known_issues import KnownIssues, built_in
from matrix.results import RankReport, Results
from matrix.verdict import Verdict, judge


def judged(document: Results, baseline: Results | None = None, known: KnownIssues | None = None) -> Verdict:
    return judge(document, built_in() if known is None else known, baseline, "regression")


def data_of(written: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    assert found
    return json.loads(found[1])


@given(any_results(), st.one_of(st.none(), any_results()))
def test_page_and_comment_say_the_same(document: Results, baseline: Results | None) -> None:
    verdict = judged(document, baseline)
    made = page_data.document(verdict)
    body = comment.render(verdict, limit=10**9)
    sign = "✓" if made["verdict"]["holds"] else "✗"
    assert body.startswith(f"### {sign} {markdown.text(verdict.sentence)}\n")
    assert made["verdict"]["sentence"] == markdown.one_line(verdict.sentence)

    texts, standings = made["lists"]["texts"], [one["name"] for one in made["standings"]]
    of_cells = [standings[place] for place in made["cells"]["standing"]]
    assert {name: of_cells.count(name) for name in set(of_cells)} == dict(verdict.counts)
    assert [made["outcomes"][place]["name"] for place in made["cells"]["outcome"]] == [
        cell.observation.outcome for cell in verdict.cells
    ]
    heads, tails = made["cells"]["commandHead"], made["cells"]["commandTail"]
    commands = [texts[head] + texts[tail] for head, tail in zip(heads, tails, strict=True)]
    wanted = [reproduce.command(cell.observation, cell.leg) for cell in verdict.cells]
    assert commands == [markdown.plain(command) for command in wanted]

    table = tables.build(verdict)
    briefs = [[table.entry(row, column) for column in table.telling(comment.COLUMNS)] for row in table.rows]
    assert made["telling"]["rows"] == [
        [entry.brief if entry else str(signs.NOT_MEASURED) for entry in row] for row in briefs
    ]
    assert [row["label"] for row in made["rows"]] == [markdown.one_line(row.label) for row in table.rows]
    news = {part["title"]: len(part["legs"]) + len(part["cells"]) for part in made["news"]}
    told = sections.news(verdict, 10**9)
    assert news == {section.head.strip("* \n"): len([row for row in section.rows if row]) for section in told}
    assert len(made["floors"]) == len(floors.alike(floors.of(verdict)))
    assert [one["status"] for one in made["legs"]] == [signs.status(judged.leg) for judged in verdict.legs]


@given(any_results())
def test_any_results_make_a_whole_file(document: Results) -> None:
    verdict = judged(document)
    written = page.render(verdict)
    written.encode()
    # Nothing from outside can end an element or begin one.
    assert len(re.findall(r"(?i)<script", written)) == len(re.findall(r"(?i)</script", written)) == 2
    assert written.count("<!--") == written.count("-->") == 0
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]", written)
    assert data_of(written) == json.loads(json.dumps(page_data.document(verdict)))


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "]]>", "</style>", "&lt;", HOSTILE]
)
def test_no_text_ends_the_element_that_it_stands_in(text: str) -> None:
    one = leg("2.2.2", id=text, detail=text)
    seen = crash(leg=text, case=text, message=text, topology=text, parameters={text: text})
    written = page.render(judged(results([one], [seen]), known=KnownIssues()))
    assert len(re.findall(r"(?i)<script", written)) == len(re.findall(r"(?i)</script", written)) == 2
    assert written.count("<!--") == 0
    assert markdown.plain(text) in data_of(written)["lists"]["texts"]


def test_the_policy_lets_the_pages_own_script_and_style_through_and_nothing_else() -> None:
    written = page.render(judged(three_releases()))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', written)
    assert policy
    directives = dict(part.split(" ", 1) for part in html.unescape(policy[1]).split("; "))
    assert directives["default-src"] == "'none'"
    for name, element in (
        ("script-src", r'<script type="module">(.*?)</script>'),
        ("style-src", "<style>(.*?)</style>"),
    ):
        inline = re.search(element, written, re.DOTALL)
        assert inline
        digest = base64.b64encode(hashlib.sha256(inline[1].encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    assert not re.search(r"""(?:src|href)=["']?(?:https?:|//)""", written)


def test_cells_carry_their_evidence_once() -> None:
    made = page_data.document(judged(results([leg("2.2.2")], [crash(), crash(topology="sp2-strided")])))
    lists = made["lists"]
    assert len(set(lists["texts"])) == len(lists["texts"])
    assert made["cells"]["ranks"] == [0, 0]
    assert len(lists["reports"]) == 4
    rank, outcome, factor, error, exception, traceback, stack = lists["reports"][2]
    assert rank == 2
    told = [lists["texts"][place] for place in (outcome, factor, error, exception, stack)]
    assert told == ["⚡ crash", "", "", "IndexError: tuple index out of range", ""]
    assert 'File "functional.py", line 331' in lists["texts"][traceback]


def test_ten_thousand_different_tracebacks_still_make_a_page_that_opens() -> None:
    one = leg("2.2.2")
    cells = [
        observation(
            "collectives/all_gather",
            "crash",
            leg=one.id,
            parameters={"n": n},
            ranks=[RankReport(rank=0, outcome="crash", traceback=f"{n}\n" + "a line\n" * 1_000)],
        )
        for n in range(10_000)
    ]
    written = page.render(judged(results([one], cells)))
    assert len(written) < 8_000_000


def test_what_is_no_address_and_no_path_is_not_linked() -> None:
    bad = leg("2.2.2", log="legs/../../etc/passwd")
    good = leg("2.3.1")
    legs = page_data.document(judged(results([bad, good], [])))["legs"]
    assert [one["logIsFile"] for one in legs] == [False, True]
    for log in ("javascript:alert(1)", "/etc/passwd", "legs/a/b/c", "legs//x", "legs/x/y?z", HOSTILE):
        assert not page_data.document(judged(results([leg("2.2.2", log=log)], [])))["legs"][0]["logIsFile"]


def test_the_baseline_is_said_and_what_changed_otherwise_is_kept_apart() -> None:
    now = results([leg("2.2.2")], [crash()])
    before = results([leg("2.2.2")], [observation("collectives/all_gather", "wrong", relative_error=1.0)])
    made = page_data.document(judged(now, before))
    assert made["verdict"]["basis"] == wording.basis(judged(now, before), str)
    assert made["news"] == []
    assert [(one["was"], one["shown"]) for one in made["changes"]["cells"]] == [("✗ wrong", "⚡ crash")]
    assert ["baseline commit", "0" * 40] in made["provenance"]


def test_a_test_that_was_skipped_is_called_so_in_the_baseline_too() -> None:
    where: dict[str, object] = {"name": "tests/tests/test_x.py::test_y", "lane": "gloo", "topology": "own"}
    skipped, absent = observation(outcome="unsupported", **where), observation(outcome="absent", **where)
    made = page_data.document(judged(results([leg("2.2.2")], [absent]), results([leg("2.2.2")], [skipped])))
    assert [one["was"] for one in made["changes"]["cells"]] == ["– skipped"]
    assert [column["skips"] for column in made["columns"]] == [True]
    assert not any(column["skips"] for column in page_data.document(judged(three_releases()))["columns"])


def test_every_standing_has_its_words() -> None:
    assert set(wording.STANDINGS) == set(tables.WEIGHT)
    assert list(tables.WEIGHT.values()) == list(range(len(tables.WEIGHT)))
