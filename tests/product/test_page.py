"""report.html in a real browser: what it shows, what it is made of, and who can use it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, BrowserContext, expect

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from results_examples import HOSTILE, any_results, crash, leg, observation, results, three_releases

from matrix import markdown, page, reproduce, signs, wording
from matrix import table as tables
from matrix.known_issues import KnownIssue, KnownIssues, built_in
from matrix.results import RankReport, Results
from matrix.verdict import Cell, Verdict, judge
from tests.product.browser import LAPTOP, PHONE, Visit, started

NODE_PACKAGES = ("axe-core@4.14.1", "typescript@7.0.2")
NONE = KnownIssues()
CELL = "#cell=collectives/all_gather&in=nccl-path&on=2.2.2"
SQUARES = """() => Object.fromEntries([...document.querySelectorAll('#tables .entry:not([hidden])')]
  .filter((one) => !one.closest('[hidden]'))
  .map((one) => [`${one.dataset.row} ${one.dataset.column}`, one.textContent]))"""

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> dict[str, BrowserContext]:
    """Those that were made, by their options: one costs more than a page in it."""
    return {}


@pytest.fixture
def visit(browser: Browser, contexts: dict[str, BrowserContext], tmp_path: Path) -> Iterator[Open]:
    pages = []

    def open_(verdict: Verdict, address: str = "", measured: bool = False, **options: object) -> Visit:
        file = tmp_path / "report.html"
        file.write_bytes(page.render(verdict).encode())
        asked = {"viewport": LAPTOP} | options
        if repr(asked) not in contexts:
            contexts[repr(asked)] = browser.new_context(**asked)  # type: ignore[arg-type]
        seen = Visit(contexts[repr(asked)], file, address, measured)
        pages.append(seen.page)
        return seen

    yield open_
    for one in pages:
        one.close()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("node")
    words = ["npm", "install", "--no-audit", "--no-fund", "--silent", *NODE_PACKAGES]
    subprocess.run(words, cwd=directory, check=True, timeout=120)
    return directory / "node_modules"


def judged(document: Results, known: KnownIssues | None = None, baseline: Results | None = None) -> Verdict:
    return judge(document, built_in() if known is None else known, baseline, "regression")


def compared() -> Verdict:
    """Three releases against a baseline: something is new, something mended, something as before, a leg is lost."""
    now = three_releases()
    before = [
        msgspec.structs.replace(one, outcome="pass", message=None)
        if one.case == "gather" and one.lane == "gloo"
        else crash(name=one.name, leg=one.leg, lane=one.lane, topology=one.topology, parameters=one.parameters)
        if one.case == "all_reduce"
        else one
        for one in now.observations
    ]
    lost = leg(None, id="torch2.6.0-dsnone-py3.11-cpu", status="environment-failed", reason="build", detail="no wheel")
    return judged(results([*now.legs, lost], now.observations), baseline=results(now.legs, before))


def expected(verdict: Verdict, keep: Callable[[Cell], bool] = lambda cell: True) -> dict[str, str]:
    """The texts of the squares, as terminal, comment and summary have them; of some of the cells alone."""
    table = tables.build(verdict)
    texts = {}
    for (row, column), entry in table.entries.items():
        cells = tuple(cell for cell in entry.cells if keep(cell))
        if cells:
            place = f"{table.rows.index(row)} {table.columns.index(column)}"
            texts[place] = tables.Entry(cells).text
    return texts


# --- what it is made of -----------------------------------------------------------------------------------------------


def test_it_needs_nothing_but_itself(visit: Open) -> None:
    seen = visit(compared())
    assert seen.complaints == []
    assert [one for one in seen.requests if not one.startswith(("file:", "data:"))] == []
    assert len(seen.requests) <= 2


def test_no_other_script_and_no_request_is_let_through(visit: Open) -> None:
    seen = visit(compared())
    seen.ask("""() => {
      const script = document.createElement("script");
      script.textContent = "window.broken = true";
      document.body.append(script);
      const image = new Image();
      image.src = "https://a.example/x.png";
      document.body.append(image);
      const button = document.createElement("div");
      button.innerHTML = '<b onclick="window.broken = true">x</b>';
      document.body.append(button);
      button.firstChild.click();
    }""")
    assert seen.ask("window.broken") is None
    refused = [one for one in seen.complaints if "violates the following Content Security Policy directive" in one]
    assert len(refused) == 3, seen.complaints


def typed(packages: Path, script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "page.js").write_text(f"export {{}};\n{script}", "utf-8")
    options = "--noEmit --checkJs --allowJs --strict --target es2022 --lib es2023,dom,dom.iterable --module esnext"
    words = [packages / ".bin/tsc", *options.split(), directory / "page.js"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_its_types_hold(packages: Path, tmp_path: Path) -> None:
    script = page.script()
    done = typed(packages, script, tmp_path)
    assert done.returncode == 0, done.stdout
    done = typed(packages, script.replace("report.verdict.basis", "report.verdict.bases"), tmp_path)
    assert "bases" in done.stdout


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_sentence_is_the_verdicts_and_every_square_says_what_the_comment_says(visit: Open) -> None:
    for verdict in (judged(three_releases()), judged(three_releases(), NONE), compared()):
        seen = visit(verdict)
        assert seen.text("#sentence") == verdict.sentence
        assert seen.ask(SQUARES) == expected(verdict)
        assert seen.text("#count") == f"All {len(verdict.cells)} cells are shown."
        table = tables.build(verdict)
        told = seen.ask("() => [...document.querySelectorAll('#telling tbody .entry')].map((one) => one.textContent)")
        columns = table.telling(6)
        entries = [table.entry(row, column) for row in table.rows for column in columns]
        assert told == [entry.brief for entry in entries if entry]


@settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
@given(any_results(), st.one_of(st.none(), any_results()))
def test_any_results_make_a_page_that_agrees_with_the_table(
    visit: Open, document: Results, baseline: Results | None
) -> None:
    verdict = judged(document, baseline=baseline)
    seen = visit(verdict)
    assert seen.complaints == []
    assert seen.ask("document.getElementById('sentence').textContent") == markdown.one_line(verdict.sentence)
    assert seen.ask(SQUARES) == expected(verdict)
    assert seen.ask("document.querySelectorAll('script').length") == 2
    seen.page.close()


def test_hostile_text_is_text_wherever_it_stands(visit: Open) -> None:
    text = f"<script>alert(1)</script><img src=x onerror=alert(1)>{HOSTILE}"
    shown = markdown.plain(text)
    line = markdown.one_line(text)
    bad = leg(text, id=text, torch_build=text, python=text, detail=text, log=text, status="timed-out", declared=text)
    ranks = [RankReport(rank=0, outcome="hang", exception=text, message=text, traceback=text, stack=text)]
    issue = KnownIssue(
        id="own", title=text, source="https://a.example", reader=text, cases=("*",), outcomes=("hang",), by_design=True
    )
    seen_ = observation(
        f"collectives/{text}", "hang", leg=text, lane=text, topology=text, parameters={text: text}, message=text
    )
    verdict = judged(results([bad], [msgspec.structs.replace(seen_, ranks=ranks)]), KnownIssues((issue,)))
    seen = visit(verdict)
    seen.page.locator("#tables .entry").click()
    assert seen.complaints == []
    assert seen.ask("document.querySelectorAll('img, script:not(#data):not([type=module]), b b').length") == 0
    blocks = seen.ask("() => [...document.querySelectorAll('#evidence pre')].map((one) => one.textContent)")
    assert blocks[:3] == [shown] * 3
    assert blocks[3] == markdown.plain(reproduce.command(verdict.cells[0].observation, bad))
    assert seen.text("#evidence-title") == f"collectives/{line}"
    assert seen.ask("document.querySelector('.leg h3').textContent") == line
    assert seen.ask("document.querySelector('.leg a')") is None
    controls = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
    assert seen.ask("(pattern) => document.body.textContent.match(new RegExp(pattern, 'g'))", controls) is None
    # What the address says is from outside as well.
    assert "cell=" in seen.page.url
    seen.page.reload()
    seen.settle()
    assert seen.text("#evidence-title") == f"collectives/{line}"


def test_legs_are_told_with_or_without_a_result(visit: Open) -> None:
    seen = visit(compared())
    cards = seen.page.locator(".leg")
    assert cards.count() == 4
    assert "✗ no environment: cannot be installed" in cards.nth(3).inner_text()
    assert "no wheel" in cards.nth(3).inner_text()
    for word in ("2.2.2+cu121", "3.11.7", "venv", "3f2a", "2 CPUs", "12 build, 10 suite"):
        assert word in cards.nth(0).inner_text()
    assert seen.ask("document.querySelector('.leg a').getAttribute('href')") == (
        "legs/torch2.2.2-dsnone-py3.11-cpu/build.log"
    )
    heads = seen.page.locator(".suite").first.locator("thead th").all_inner_texts()
    assert [head.split("\n")[0] for head in heads] == [
        "case",
        *(f"torch 2.{minor}" for minor in ("2.2", "3.1", "6.0", "13.0")),
    ]
    assert "no environment" in heads[3]


def test_a_skipped_test_is_called_so_and_emulation_is_held_against_nccl(visit: Open) -> None:
    cpu, gpu = leg("2.3.1", lanes=["gloo", "nccl-path"]), leg("2.3.1", id="gpu", lanes=["nccl"])
    cells = [
        observation("tests/test_x.py::test_y", "unsupported", leg=cpu.id, lane="gloo", topology="own"),
        observation("collectives/all_gather", leg=cpu.id, lane="nccl-path"),
        crash(leg=gpu.id, lane="nccl"),
    ]
    verdict = judged(results([cpu, gpu], cells))
    seen = visit(verdict)
    assert seen.complaints == []
    assert seen.ask(SQUARES) == expected(verdict)
    assert any("– skipped" in square for square in expected(verdict).values())
    told = seen.ask("document.getElementById('emulation').textContent")
    assert "Emulation and NCCL differ in 1 of 1 cells that were measured in both lanes" in told
    assert "collectives/all_gather is ⚡ crash in nccl and ✓ pass in nccl-path (emulated) on torch 2.3.1" in told


def test_what_differs_from_the_baseline_is_told_first(visit: Open) -> None:
    seen = visit(compared())
    titles = seen.page.locator(".news h3").all_inner_texts()
    assert titles == ["New failures", "Fixed"]
    line = seen.page.locator(".news").first.locator("li", has_text="collectives/gather")
    assert "(was ✓ pass)" in line.inner_text()
    line.locator("button").click()
    assert seen.text("#evidence-title") == "collectives/gather"
    assert "Compared with the baseline" in seen.text("#basis")


# --- filters ----------------------------------------------------------------------------------------------------------


def choose(seen: Visit, facet: str, value: str) -> None:
    seen.page.locator(f'#facets input[name="{facet}"][value="{value}"]').click()
    seen.settle()


def test_a_topology_leaves_what_its_cells_alone_say(visit: Open) -> None:
    verdict = compared()
    seen = visit(verdict)
    choose(seen, "topology", "sp4")
    assert seen.ask(SQUARES) == expected(verdict, lambda cell: cell.observation.topology == "sp4")
    choose(seen, "topology", "sp2-strided")
    chosen = {"sp4", "sp2-strided"}
    assert seen.ask(SQUARES) == expected(verdict, lambda cell: cell.observation.topology in chosen)
    count = sum(cell.observation.topology in chosen for cell in verdict.cells)
    assert seen.text("#count") == f"{count} of {len(verdict.cells)} cells are shown."


def test_an_outcome_leaves_the_squares_that_have_it_and_says_of_how_many(visit: Open) -> None:
    seen = visit(judged(three_releases()))
    choose(seen, "outcome", "crash")
    texts = seen.ask(SQUARES).values()
    assert texts
    assert all(text.startswith("⚡ crash") for text in texts)
    assert "⚡ crash (2 of 3, known)" in texts
    shown = seen.page.locator(".suite tbody tr:visible th").all_inner_texts()
    assert set(shown) == {"gather", "all_gather", "all_to_all", "all_gather_mean", "all_gather_weighted"}


@pytest.mark.parametrize(
    ("facet", "value"),
    [
        ("suite", "loss"),
        ("lane", "nccl-path"),
        ("standing", "new failure"),
        ("standing", "fixed"),
        ("outcome", "pass"),
        ("baseline", "changed"),
    ],
)
def test_each_filter_finds_what_the_verdict_has(visit: Open, facet: str, value: str) -> None:
    verdict = compared()
    of = {
        "suite": lambda cell: cell.observation.suite,
        "lane": lambda cell: cell.observation.lane,
        "standing": lambda cell: cell.standing,
        "outcome": lambda cell: cell.observation.outcome,
        "baseline": lambda cell: "changed" if cell.was and cell.was.outcome != cell.observation.outcome else "",
    }[facet]
    count = sum(of(cell) == value for cell in verdict.cells)
    assert count
    seen = visit(verdict)
    choice = seen.page.locator("#facets label", has=seen.page.locator(f'input[name="{facet}"][value="{value}"]'))
    assert choice.locator(".count").inner_text() == str(count)
    choose(seen, facet, value)
    assert seen.text("#count") == f"{count} of {len(verdict.cells)} cells are shown."
    seen.page.locator("#clear").click()
    assert seen.text("#count") == f"All {len(verdict.cells)} cells are shown."
    assert seen.ask(SQUARES) == expected(verdict)


def _all_to_all_strided(cell: Cell) -> bool:
    seen = cell.observation
    return (seen.case, cell.leg.torch, seen.topology) == ("all_to_all", "2.13.0", "sp2-strided")


def test_words_are_searched_in_everything_that_is_told(visit: Open) -> None:
    verdict = judged(three_releases())
    seen = visit(verdict)
    for words, fits in (
        ("gather_LIST", lambda cell: "gather_list" in (cell.observation.message or "")),
        ("collectives/all_to_all 2.13.0 strided", _all_to_all_strided),
        ("nothing-has-this", lambda cell: False),
    ):
        seen.page.locator("#words").fill(words)
        seen.settle()
        count = sum(map(fits, verdict.cells))
        assert seen.text("#count") == f"{count} of {len(verdict.cells)} cells are shown."


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_a_square_opens_to_its_evidence(visit: Open) -> None:
    hang = observation(
        "collectives/all_gather",
        "hang",
        topology="sp4",
        sp_size=4,
        first_rank=1,
        parameters={"root": 1},
        seconds=3.5,
        attempts=2,
        ranks=[RankReport(rank=0, outcome="blocked"), RankReport(rank=1, outcome="hang", stack="in wait()\nin recv()")],
    )
    scaled = observation(
        "collectives/all_gather", "scaled", topology="sp2-strided", factor=2.0, factors={"sum": 2.0, "mean": 1.0}
    )
    verdict = judged(results([leg("2.2.2")], [crash(), hang, scaled]))
    seen = visit(verdict)
    seen.page.locator("#tables .entry").click()
    dialog = seen.page.locator("#evidence")
    assert dialog.locator(".cell").count() == 3
    for cell in dialog.locator(".cell").all()[1:]:
        cell.locator("summary").click()
    expect(dialog.locator(".command")).to_have_count(3)  # what is opened is made a moment later
    told = dialog.inner_text()
    for words in (
        "torch 2.2.2, nccl-path (emulated)",
        "in wait()\nin recv()",
        "× scaled ×2",
        "sum 2, mean 1",
        "IndexError: tuple index out of range",
        'File "functional.py", line 331',
        "all_gather's backward takes the global rank for the rank in the group",
        "https://github.com/pytorch/pytorch/issues/120213",
        "‖ blocked",
        "first rank\n1",
        "attempts\n2",
    ):
        assert words in told, words
    commands = dialog.locator(".command pre").all_inner_texts()
    assert sorted(commands) == sorted(reproduce.command(one.observation, one.leg) for one in verdict.cells)
    assert wording.where(hang) in told
    assert signs.outcome(scaled) in told


def test_a_command_is_copied(visit: Open) -> None:
    seen = visit(judged(results([leg("2.2.2")], [crash()])), CELL, permissions=["clipboard-read", "clipboard-write"])
    seen.page.locator("#evidence .copy").first.click()
    expect(seen.page.locator("#evidence .said")).to_have_text("Copied.")
    assert seen.ask("navigator.clipboard.readText()") == seen.text("#evidence .command pre")


def test_the_same_case_on_the_next_release_is_one_step_away(visit: Open) -> None:
    seen = visit(judged(three_releases()), CELL)
    seen.page.locator("#evidence").get_by_role("button", name="torch 2.3.1").click()
    assert "torch 2.3.1, nccl-path" in seen.text("#evidence header")
    assert "on=2.3.1" in seen.page.url
    expect(seen.page.locator("#evidence-title")).to_be_focused()


# --- keyboard ---------------------------------------------------------------------------------------------------------


def test_keys_move_in_the_matrix_open_a_cell_and_come_back(visit: Open) -> None:
    seen = visit(judged(three_releases()))
    keys = seen.page.keyboard
    keys.press("Tab")
    assert seen.focused() == "Skip to the matrix"
    keys.press("Enter")
    assert seen.focused() == "Matrix"
    seen.page.locator("#tables .entry").first.focus()
    at = "[document.activeElement.dataset.row, document.activeElement.dataset.column].map(Number)"
    assert seen.ask(at) == [0, 0]
    keys.press("ArrowDown")
    keys.press("ArrowRight")
    assert seen.ask(at) == [1, 1]
    keys.press("End")
    assert seen.ask(at) == [2, 1]
    keys.press("ArrowRight")
    assert seen.ask(at) == [2, 1]
    keys.press("Control+Home")
    assert seen.ask(at) == [0, 0]
    keys.press("Control+End")
    assert seen.ask(at) == [2, 6]
    assert seen.page.locator(".suite").first.locator('button[tabindex="0"]').count() == 1
    keys.press("Enter")
    expect(seen.page.locator("#evidence")).to_be_visible()
    expect(seen.page.locator("#evidence-title")).to_be_focused()
    keys.press("Escape")
    expect(seen.page.locator("#evidence")).to_be_hidden()
    assert seen.ask(at) == [2, 6]
    # A table is one stop.
    keys.press("Tab")
    assert seen.ask("document.activeElement.closest('.suite').querySelector('h3').textContent").startswith("loss")


def test_focus_stays_in_the_evidence_while_it_is_open(visit: Open) -> None:
    seen = visit(judged(three_releases()), CELL)
    for _ in range(20):
        seen.page.keyboard.press("Tab")
        assert seen.ask("document.activeElement === document.body || !!document.activeElement.closest('#evidence')")


# --- address ----------------------------------------------------------------------------------------------------------


def test_an_address_opens_the_same_view(visit: Open) -> None:
    verdict = compared()
    seen = visit(verdict)
    choose(seen, "lane", "gloo")
    choose(seen, "standing", "new failure")
    seen.page.locator("#words").fill("gather")
    seen.settle()
    seen.page.locator("#tables .entry:visible").first.click()
    other = visit(verdict, "#" + seen.page.url.partition("#")[2])
    for selector in ("#count", "#chosen", "#evidence-title", "#evidence .sum"):
        assert other.text(selector) == seen.text(selector)
    assert other.ask(SQUARES) == seen.ask(SQUARES)
    assert other.page.locator("#words").input_value() == "gather"
    # What was opened by its address is closed without leaving the page.
    other.page.keyboard.press("Escape")
    expect(other.page.locator("#evidence")).to_be_hidden()
    expect(other.page).not_to_have_url(re.compile("cell="))
    expect(other.page).to_have_url(re.compile("standing=new"))


def test_back_and_forward(visit: Open) -> None:
    seen = visit(judged(three_releases()))
    whole = seen.text("#count")
    choose(seen, "suite", "loss")
    filtered = seen.text("#count")
    seen.page.locator("#tables .entry:visible").first.click()
    seen.page.go_back()
    expect(seen.page.locator("#evidence")).to_be_hidden()
    assert seen.text("#count") == filtered
    seen.page.go_back()
    expect(seen.page.locator("#count")).to_have_text(whole)
    assert not seen.page.locator('#facets input[value="loss"]').is_checked()
    seen.page.go_forward()
    expect(seen.page.locator("#count")).to_have_text(filtered)
    seen.page.go_forward()
    expect(seen.page.locator("#evidence")).to_be_visible()
    # Closing is a step back, so that going back does not open it again.
    seen.page.keyboard.press("Escape")
    expect(seen.page.locator("#evidence")).to_be_hidden()
    expect(seen.page).to_have_url(re.compile("suite=loss$"))
    seen.page.go_back()
    expect(seen.page.locator("#count")).to_have_text(whole)
    assert not seen.page.locator("#evidence").is_visible()


def test_an_address_of_another_report_is_no_mistake(visit: Open) -> None:
    seen = visit(judged(three_releases()), "#suite=gone&cell=loss/gone&in=x&on=1.0&outcome=%22%3Cb%3E")
    assert seen.complaints == []
    assert seen.text("#count").endswith("cells are shown.")
    assert not seen.page.locator("#evidence").is_visible()


# --- whoever looks at it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "viewport"),
    [("light", LAPTOP), ("dark", LAPTOP), ("light", PHONE)],
    ids=["light", "dark", "phone"],
)
def test_the_accessibility_audit_finds_nothing(
    visit: Open, packages: Path, scheme: str, viewport: dict[str, int]
) -> None:
    axe = (packages / "axe-core/axe.min.js").read_text("utf-8")
    for address in ("#outcome=crash&outcome=pass", CELL):
        seen = visit(compared(), address, color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
        seen.ask(axe)
        found = seen.ask("axe.run(document, {resultTypes: ['violations', 'incomplete']})")
        told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
        assert told == []
        assert found["passes"]


def test_light_and_dark(visit: Open) -> None:
    colours = []
    for scheme in ("light", "dark"):
        seen = visit(compared(), color_scheme=scheme)
        ground = seen.ask("getComputedStyle(document.body).backgroundColor")
        colours.append(sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(", "))))
    light, dark = colours
    assert light > 600
    assert dark < 150


SCROLLED = """() => {
  const scroller = document.querySelector(".suite .scroller");
  scroller.scrollTo({left: 200, top: 200, behavior: "instant"});
  const [row, head] = ["tbody tr:nth-child(5) th", "thead th"].map((one) => scroller.querySelector(one));
  const [box, left, top] = [scroller, row, head].map((one) => one.getBoundingClientRect());
  return {across: scroller.scrollLeft > 0, case: left.left - box.left < 3, release: top.top - box.top < 3};
}"""


@pytest.mark.parametrize("address", ["", CELL])
def test_a_phone_scrolls_tables_not_the_page(visit: Open, address: str) -> None:
    seen = visit(compared(), address, viewport=PHONE)
    assert seen.ask("document.documentElement.scrollWidth") == PHONE["width"]
    if not address:
        assert seen.ask(SCROLLED) == {"across": True, "case": True, "release": True}


def test_paper_has_what_the_filters_leave_and_its_evidence(visit: Open) -> None:
    seen = visit(judged(three_releases()), "#suite=collectives&topology=sp2-strided", color_scheme="dark")
    seen.ask("() => { window.printed = 0; addEventListener('beforeprint', () => window.printed++); }")
    assert seen.page.pdf().startswith(b"%PDF")
    assert seen.ask("window.printed") == 1
    seen.page.emulate_media(media="print")
    seen.ask("dispatchEvent(new Event('beforeprint'))")
    assert not seen.page.locator("#filters").is_visible()
    assert "Filtered by suite collectives; topology sp2-strided." in seen.text("#chosen")
    evidence = seen.text("#printed")
    assert "collectives/all_gather, torch 2.2.2, nccl-path (emulated)" in evidence
    assert "IndexError: tuple index out of range" in evidence
    assert "sp-compat run --torch 2.2.2" in evidence
    assert seen.ask("getComputedStyle(document.querySelector('.suite .scroller')).overflow") == "visible"
    seen.ask("dispatchEvent(new Event('afterprint'))")
    assert not seen.page.locator("#printed").is_visible()


# --- ten thousand -----------------------------------------------------------------------------------------------------


def ten_thousand() -> Results:
    legs = [leg(f"2.{minor}.0") for minor in range(12)]
    observations = []
    for one, case, variant in itertools.product(legs, range(84), range(10)):
        where = {
            "leg": one.id,
            "lane": ("gloo", "nccl-path")[case % 2],
            "topology": ("sp2-contiguous", "sp2-strided", "sp4")[variant % 3],
            "parameters": {"n": variant},
        }
        name = f"{('collectives', 'loss', 'engine')[case % 3]}/case_{case}"
        number = len(observations)
        observations.append(
            crash(name=name, message=f"RuntimeError: number {number}", **where)
            if number % 3 == 0
            else observation(name, relative_error=number * 1e-9, **where)
        )
    return results(legs, observations)


ACT = """async (act) => {
  if (act === "words") document.getElementById("words").dispatchEvent(new Event("input"));
  else document.querySelector(act).click();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}"""


def test_ten_thousand_observations_open_within_a_second_and_are_filtered_at_once(visit: Open) -> None:
    """Measured in the time that the page's thread worked, which other work on the machine does not count in; a filter
    is to take less than 0.1 s, and the bound has room for a slower machine.
    """
    seen = visit(judged(ten_thousand(), NONE), measured=True)
    assert seen.worked() < 1_000
    assert seen.text("#count") == "All 10,080 cells are shown."
    seen.ask("document.getElementById('matrix').scrollIntoView({behavior: 'instant'})")
    seen.ask("document.getElementById('words').value = 'number 12'")
    taken = []
    for act in ("input[value=crash]", "input[value=sp4]", "input[value=crash]", "#clear", "words"):
        start = seen.worked()
        seen.ask(ACT, act)
        taken.append(seen.worked() - start)
        seen.settle()
    assert sorted(taken)[len(taken) // 2] < 200, taken
    # What makes it fast: details are made when they are opened.
    assert seen.page.locator("#evidence *").count() == 0
    assert seen.ask("document.querySelectorAll('*').length") < 6_000


def test_a_long_table_shows_its_first_lines_and_more_when_asked(visit: Open) -> None:
    one = leg("2.2.2")
    seen = visit(judged(results([one], [observation(f"tests/case_{n}", leg=one.id) for n in range(400)])))
    assert seen.text("#count") == "All 400 cells are shown."
    assert seen.page.locator("#tables tbody tr").count() == 250
    seen.page.locator(".more-cases").click()
    seen.settle()
    cases = seen.ask("() => [...document.querySelectorAll('#tables tbody th')].map((one) => one.textContent)")
    assert cases == [f"case_{n}" for n in range(400)]
    seen = visit(seen_again := judged(results([one], [observation(f"tests/case_{n}", leg=one.id) for n in range(400)])))
    seen.page.locator("#words").fill("case_39")
    seen.settle()
    seen.page.locator("#words").fill("")
    seen.settle()
    seen.page.locator(".more-cases").click()
    seen.settle()
    assert seen.ask(SQUARES) == expected(seen_again)
    cases = seen.ask("() => [...document.querySelectorAll('#tables tbody th')].map((one) => one.textContent)")
    assert cases == [f"case_{n}" for n in range(400)]
