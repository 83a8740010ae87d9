"""A results.json that somebody else wrote, as the privileged job of `workflow_run` meets it: refused in one sentence,
or shown as text.
"""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import cmarkgfm
import pytest
from cmarkgfm.cmark import Options
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import HOSTILE, anything, crash, leg, observation, results
from test_comment import assert_whole
from test_markdown import github

from matrix import comment, summary
from matrix.known_issues import built_in
from matrix.marker import Marker, parse
from matrix.results import Results, encode
from matrix.verdict import judge
from runner import cli, results_files, workflow_commands
from runner.errors import UsageError
from runner.posting import Message
from tests.github_server.server import StandIn
from tests.product import github_jobs

MARKER = Marker("sp-compat", "0" * 40, 1, 1)
ELEMENTS = {
    "a", "br", "code", "details", "em", "h3", "h4", "li", "p", "pre", "strong", "summary", "table", "tbody",
    "td", "th", "thead", "tr", "ul",
}  # fmt: skip


def small() -> Results:
    failed = leg(None, id="torch2.6.0-dsnone-py3.11-cpu", status="environment-failed", reason="build", detail="no cc")
    seen = [crash(), observation("loss/all_gather_mean", "wrong", relative_error=0.2, parameters={"tokens": "unequal"})]
    return results([leg("2.2.2"), failed], seen)


VALID = json.loads(encode(small()))


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(value, (*path, key))


PLACES = [path for path in places(VALID) if path]

huge = st.sampled_from([10**18, 2**63, -(2**63), 10**400, -1, 1e308, 5e-324, 0.1])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), huge, anything, st.sampled_from(["../../../etc/passwd", "A" * 5000])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(anything, inner, max_size=3)),
    max_leaves=5,
)


@st.composite
def tampered(draw: st.DrawFn) -> bytes:
    """A document of which some values are others, or gone, or said twice."""
    document = copy.deepcopy(VALID)
    for path in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)):
        *way, last = path
        node = document
        try:
            for key in way:
                node = node[key]
            action = draw(st.sampled_from(["set", "set", "set", "remove", "repeat"]))
            if action == "set":
                node[last] = draw(values)
            elif action == "remove":
                del node[last]
            else:
                node[last] = [node[last]] * 3 if not isinstance(node[last], list) else node[last] * 3
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return json.dumps(document, ensure_ascii=False).encode("utf-8", errors="surrogatepass")


def with_text_everywhere(text: str) -> dict[str, Any]:
    """Every string that no schema fixes, in keys too, is this text; what belongs together stays the same."""
    document = copy.deepcopy(VALID)
    document["source"].update(repository=text, ref=text, sha=text)
    document["tool"]["version"] = text
    for number, one in enumerate(document["legs"]):
        name = f"{text}{number}"
        for seen in document["observations"]:
            seen["leg"] = name if seen["leg"] == one["id"] else seen["leg"]
        one.update(
            id=name, torch=text, torch_build=text, deepspeed=text, python=text, lanes=[text], detail=text, log=text
        )
        one["requested"] = {"torch": text, "deepspeed": text}
        one["environment"].update(key=text, image=text, digest=text, transformers=text)
        one["host"].update(gpus=[text], driver=text)
    for seen in document["observations"]:
        seen.update(lane=text, suite=text, case=text, topology=text, message=text, known_issue=text)
        seen["parameters"] = {text: text}
        for rank in seen["ranks"]:
            rank.update(exception=text, message=text, traceback=text, stack=text)
    return document


def page_of(content: bytes, directory: Path) -> str | None:
    """The comment as it would be posted; None where the document is refused. Everything else of the job is done too."""
    path = directory / "results.json"
    path.write_bytes(content)
    refusal = ""
    try:
        document = results_files.read_untrusted(path)
    except UsageError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert len(refusal) < 1000
        return None
    verdict = judge(document, built_in(), None, "regression")
    for line in workflow_commands.new_failures(verdict):
        assert line.startswith("::error title=sp-compat")
        assert "\n" not in line
    assert len(summary.render(verdict).encode()) <= summary.LIMIT
    return Message(MARKER, lambda limit: comment.render(verdict, limit)).body()


def assert_harmless(page: str) -> None:
    assert len(page.encode("utf-16-le")) // 2 <= comment.LIMIT
    assert parse(page) == MARKER
    assert page.count("<!--") == 1
    body = page.partition("\n")[2]
    assert_whole(body)
    shown = github(body)
    assert set(shown.elements) <= ELEMENTS
    assert not re.search(r"@user|#12|GH-12", outside_code(body))
    # The only links are the sources of our own known issues.
    assert all(link.startswith("https://github.com/") for link in re.findall(r'href="([^"]*)"', body))


def outside_code(body: str) -> str:
    """Where GitHub looks for names and issues to link and to notify."""
    html = cmarkgfm.github_flavored_markdown_to_html(body, options=Options.CMARK_OPT_UNSAFE)
    return unescape(re.sub(r"<(code|pre)\b.*?</\1>", "", html, flags=re.DOTALL))


@given(content=tampered())
def test_scenario_22_a_tampered_document_is_refused_or_harmless(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = page_of(content, tmp_path_factory.getbasetemp())
    if page is not None:
        assert_harmless(page)


@given(text=anything)
def test_scenario_22_markdown_and_html_in_every_string(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = json.dumps(with_text_everywhere(text)).encode()
    page = page_of(content, tmp_path_factory.getbasetemp())
    if page is not None:
        assert_harmless(page)


@given(content=st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode())))
def test_scenario_22_what_is_no_results_at_all(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert page_of(content, tmp_path_factory.getbasetemp()) is None


def test_hostile_text_is_not_refused(tmp_path: Path) -> None:
    """Or the tests above would say nothing."""
    text = HOSTILE.replace("\udc80", "")
    page = page_of(json.dumps(with_text_everywhere(text)).encode(), tmp_path)
    assert page is not None
    assert_harmless(page)
    assert "org&#47;repo" in page or "org/repo" in page


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b'"' + b"\\u0041" * 100_000])
def test_nested_without_end(tmp_path: Path, content: bytes) -> None:
    assert page_of(content, tmp_path) is None


def test_more_than_any_run_writes(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with path.open("wb") as file:
        file.truncate(results_files.UNTRUSTED_BYTES + 1)
    with pytest.raises(UsageError, match="is too large: at most 128 MiB are read in all"):
        results_files.read_untrusted(path)
    for number in range(results_files.UNTRUSTED_DOCUMENTS + 1):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
        (tmp_path / "many" / str(number) / "results.json").touch()
    with pytest.raises(UsageError, match=r"has 513 files results\.json; at most 512"):
        results_files.read_untrusted(tmp_path / "many")


def test_links_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "results.json").write_bytes(encode(small()))
    file = tmp_path / "file"
    file.mkdir()
    (file / "results.json").symlink_to(secret / "results.json")
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "leg").symlink_to(secret)
    for place in (file, file / "results.json", directory):
        with pytest.raises(UsageError, match="is a link, or in a directory that is one; it is not followed"):
            results_files.read_untrusted(place)
    pipe = tmp_path / "results.json"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="is no file"):
        results_files.read_untrusted(pipe)


def test_a_version_of_more_digits_than_python_reads_is_a_text(tmp_path: Path) -> None:
    content = copy.deepcopy(VALID)
    content["legs"][0].update(torch="9" * 5000, torch_build="9" * 5000, deepspeed="9" * 5000)
    (tmp_path / "results.json").write_text(json.dumps(content), "utf-8")

    assert cli.main(["report", str(tmp_path)]) in (0, 1)
    assert cli.main(["history", "add", str(tmp_path), "--database", str(tmp_path / "history.sqlite")]) == 0
    assert cli.main(["history", "show", "--database", str(tmp_path / "history.sqlite")]) == 0
    assert (tmp_path / "report.html").exists()


def test_the_whole_command_on_a_hostile_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `workflow_run` runs it: nothing is written but to the pull request that GitHub names, and as text."""
    with StandIn().running() as stand_in:
        base, head = stand_in.state.line(2)
        pull = stand_in.state.pull(head, base, fork="someone", number=12)
        run = stand_in.state.run(head, "pull_request", head_branch=pull.head_ref, head_repository=pull.head_repository)
        job = github_jobs.job(stand_in, tmp_path, "workflow_run", github_jobs.workflow_run_event(run))
        for name, value in job.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "artifact").mkdir()
        content = with_text_everywhere(HOSTILE.replace("\udc80", ""))
        content["source"]["pull_request"] = 7
        (tmp_path / "artifact" / "results.json").write_text(json.dumps(content), "utf-8")
        assert cli.main(["comment", str(tmp_path / "artifact"), "--out", str(tmp_path / "written")]) == 0
        (posted,) = stand_in.state.comments
        assert posted.issue == 12
        assert "module" not in github(posted.body.partition("\n")[2]).elements
        out = capsys.readouterr().out
        assert len(out.splitlines()) == 1
        assert not stand_in.violations
