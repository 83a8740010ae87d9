"""history.html in a real browser: what it shows, filters, keyboard, address, audit, phone, dark, two years."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, expect

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from history_examples import FIRST, night, simulated
from results_examples import HOSTILE, crash, leg, observation

from matrix import history_page
from matrix.history import Run, run_of
from matrix.results import Requested
from tests.product.browser import LAPTOP, PHONE, Visit, node_packages, started

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as one:
        yield one


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_(runs: list[Run], address: str = "", **options: object) -> Visit:
        file = tmp_path / "history.html"
        file.write_bytes(history_page.render(runs, frozenset()))
        contexts.append(browser.new_context(**({"viewport": LAPTOP} | options)))  # type: ignore[arg-type]
        return Visit(contexts[-1], file, address)

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def axe() -> str:
    return (node_packages() / "axe-core/axe.min.js").read_text("utf-8")


def few() -> list[Run]:
    """Five nights: 2.15.0 breaks a case under `latest`, a commit mends another, one night the leg cannot be built."""
    pinned = leg("2.2.2")
    latest = Requested(torch="latest", deepspeed="none")
    nights = []
    for number, torch in enumerate(["2.14.0", "2.14.0", "2.15.0", "2.15.0", "2.15.0"]):
        one = leg(torch, requested=latest)
        if number == 3:
            one = leg(None, id=one.id, requested=latest, status="environment-failed", reason="build", detail="no ninja")
        seen = [
            crash(known_issue="torch-allgather-global-rank"),
            observation("loss/mended", "wrong" if number < 2 else "pass", message=None),
        ]
        if number != 3:
            seen.append(
                observation("collectives/broken", "pass" if number < 2 else "crash", leg=one.id, message="boom")
            )
            seen.append(observation("collectives/all_gather", leg=one.id, lane="gloo"))
        nights.append(night(number, *seen, legs=[pinned, one], sha=("a" if number < 2 else "b") * 40))
    return [run_of(one) for one in nights]


def rows(seen: Visit) -> list[str]:
    found: list[str] = seen.ask(
        "[...document.querySelectorAll('tbody')].flatMap((body) => [...body.querySelectorAll('th.line')].map("
        "(row) => `${body.querySelector('[scope=rowgroup]').textContent}: ${row.textContent}`))"
    )
    return found


def test_changes_are_told_with_their_date_and_what_changed_with_them(visit: Open) -> None:
    seen = visit(few())
    assert seen.complaints == []
    assert [one for one in seen.requests if not one.startswith(("file:", "data:"))] == []
    changes = seen.page.locator("#changes-title ~ ol > li").all_inner_texts()
    assert len(changes) == 4
    assert changes[0].startswith(
        "2024-12-05 torch 2.15.0 (latest): ✗ no environment: cannot be installed → ✓ completed"
    )
    assert changes[1].splitlines()[-1] == "no ninja"
    broken = next(one for one in changes if "collectives/broken" in one)
    assert broken.startswith(
        "2024-12-03 collectives/broken, nccl-path (emulated), torch 2.15.0 (latest): ✓ pass → ⚡ crash"
    )
    assert "(new failure), with torch 2.15.0 (was 2.14.0) and commit bbbbbbbbbb (was aaaaaaaaaa)" in broken
    assert broken.splitlines()[-1] == "boom"


def test_a_strip_says_in_words_what_it_shows(visit: Open) -> None:
    seen = visit(few())
    strip = seen.page.get_by_role("img", name="Over time: ✓ pass 2024-12-01 to 2024-12-02; ⚡ crash 2024-12-03")
    parts = strip.locator("span")
    assert parts.all_inner_texts() == ["✓", "⚡", "", "⚡"]
    width = [part.bounding_box()["width"] for part in parts.all()]  # type: ignore[index]
    assert width[0] == pytest.approx(2 * width[1], rel=0.05)
    known = seen.page.locator(".strip [data-tone=known-failure]")
    expect(known.first).to_have_text("⚡")


@pytest.mark.parametrize(
    ("label", "value", "left"),
    [
        ("Suite", "loss", ["loss/mended, nccl-path (emulated): torch 2.2.2"]),
        ("Lane", "gloo", ["collectives/all_gather, gloo: torch 2.15.0 (latest)"]),
        ("Has been", "wrong", ["loss/mended, nccl-path (emulated): torch 2.2.2"]),
        ("Changed with", "torch", ["collectives/broken, nccl-path (emulated): torch 2.15.0 (latest)"]),
    ],
)
def test_filters(visit: Open, label: str, value: str, left: list[str]) -> None:
    seen = visit(few())
    assert len(rows(seen)) == 6
    seen.page.get_by_label(label).select_option(value)
    assert rows(seen) == left
    assert f"{len(left)} row" in seen.text("[role=status]")
    seen.page.get_by_role("button", name="Show everything").click()
    assert len(rows(seen)) == 6


def test_only_what_has_changed_and_a_case_by_name(visit: Open) -> None:
    seen = visit(few())
    seen.page.get_by_label("only what has changed").check()
    assert len(rows(seen)) == 3
    seen.page.get_by_label("Case", exact=True).fill("MENDED")
    assert rows(seen) == ["loss/mended, nccl-path (emulated): torch 2.2.2"]


def test_the_state_is_in_the_address(visit: Open) -> None:
    seen = visit(few())
    seen.page.get_by_label("Suite").select_option("collectives")
    seen.page.get_by_role("button", name="torch 2.15.0 (latest)").first.click()
    address = seen.ask("location.hash")
    again = visit(few(), address)
    assert rows(again) == rows(seen)
    assert len(rows(again)) == 3
    assert again.text("tr.detail") == seen.text("tr.detail")
    assert again.page.get_by_label("Suite").input_value() == "collectives"


def test_a_row_opens_by_the_keyboard(visit: Open) -> None:
    seen = visit(few(), "#case=broken")
    button = seen.page.get_by_role("button", name="torch 2.15.0 (latest)")
    button.focus()
    seen.page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(seen.page.locator(f"#{button.get_attribute('aria-controls')}")).to_contain_text("with torch 2.15.0")
    seen.page.keyboard.press("Space")
    expect(seen.page.locator("tr.detail")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_audit_finds_nothing(visit: Open, axe: str, scheme: str) -> None:
    seen = visit(few(), "#open=collectives/broken%7Cnccl-path%7Ctorch+2.15.0+(latest)", color_scheme=scheme)
    expect(seen.page.locator("tr.detail")).to_be_visible()
    seen.ask(axe)
    found = seen.ask("axe.run(document, {resultTypes: ['violations']})")
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]] == []
    paper = seen.ask("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(250, 249, 246)", "dark": "rgb(21, 23, 27)"}[scheme]


def test_the_audit_would_find_something(visit: Open, axe: str) -> None:
    seen = visit(few())
    seen.ask("document.querySelectorAll('label').forEach((label) => label.replaceWith(...label.children))")
    seen.ask(axe)
    assert seen.ask("axe.run(document).then((found) => found.violations.map((one) => one.id))") != []


def test_a_phone_needs_no_scrolling_to_the_side(visit: Open) -> None:
    seen = visit(few(), viewport=PHONE)
    assert seen.ask("document.documentElement.scrollWidth") <= PHONE["width"]
    expect(seen.page.get_by_role("button", name="torch 2.2.2").first).to_be_visible()


def test_text_from_outside_is_text(visit: Open) -> None:
    hostile = HOSTILE.replace("\udc80", "") + "</script><img src=x onerror=alert(1)>"
    one = leg("2.2.2", id=hostile, requested=Requested(torch=hostile, deepspeed=hostile))
    nights = [
        run_of(
            night(
                number,
                observation(outcome=outcome, case=hostile, topology=hostile, leg=hostile, message=hostile),
                legs=[one],
            )
        )
        for number, outcome in enumerate(["pass", "crash"])
    ]
    seen = visit(nights)
    seen.page.locator("th.line button").first.click()
    assert seen.complaints == []
    assert seen.ask("document.querySelectorAll('img, b, details, #page script').length") == 0
    assert "</script><img src=x onerror=alert(1)>" in seen.text("#changes-title ~ ol")


def test_no_text_turns_what_stands_beside_it(visit: Open) -> None:
    turned = "a\u202eb\x1b[31mc\x07\u2066d"
    one = leg(turned, id=turned, requested=Requested(torch=turned, deepspeed=turned), deepspeed=turned, python=turned)
    where: dict[str, object] = {"leg": turned, "lane": turned, "message": turned}
    nights = []
    for number, outcome in enumerate(["pass", "crash"]):
        run = run_of(night(number, observation(f"loss/{turned}", outcome, **where), legs=[one], sha=turned))
        nights.append(replace(run, tool=turned, source=msgspec.structs.replace(run.source, repository=turned)))
    seen = visit(nights)
    seen.page.locator("th.line button").first.click()
    assert seen.complaints == []
    drawn = seen.ask("document.getElementById('page').outerHTML")
    steering = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    assert re.findall(steering, drawn) == []
    assert "loss/a\\u202ebc\\x07\\u2066d" in seen.text("#changes-title ~ ol")
    # The filters still find what they show.
    seen.page.get_by_label("Lane").select_option(index=1)
    assert len(rows(seen)) == 1
    isolated = "[...document.querySelectorAll('strong, .now')].map((one) => getComputedStyle(one).unicodeBidi)"
    assert set(seen.ask(isolated)) == {"isolate"}


def test_two_years_open_within_two_seconds_and_filter_at_once(visit: Open) -> None:
    made = [run_of(one) for one in simulated(40)]
    years = [
        replace(made[number * 40 // 730], generated_at=f"{FIRST + timedelta(number):%FT%TZ}") for number in range(730)
    ]
    taken = []
    for _ in range(3):
        seen = visit(years)
        taken.append(seen.ask("performance.now()"))
        assert seen.complaints == []
        if min(taken) < 2000:
            break
    assert min(taken) < 2000
    assert "of 730 runs" in seen.text("[role=status]")
    filtering = (
        "() => { const began = performance.now(); const suite = document.getElementById('filter-suite'); "
        "suite.value = 'loss'; suite.dispatchEvent(new Event('change')); return performance.now() - began; }"
    )
    assert min(seen.ask(filtering) for _ in range(3)) < 500
