"""What a bisect tells: the change, both sides' evidence, and what is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given

from matrix import behaviour, bisect_report
from matrix.axes import Ends
from matrix.bisect_report import Report
from matrix.bisection import Axis, Search
from matrix.results import Observation, Results
from tests.unit.results_examples import INDEX_ERROR, anything, crash, leg, observation, results

RELEASES = ("2.2.2", "2.3.0", "2.3.1")
ENDS = Ends("2.3.1", "2.2.2")


def measured(release: str, *cells: Observation) -> Results:
    there = leg(release)
    moved = [observation(**{**_fields(cell), "leg": there.id}) for cell in cells]
    return results([there], moved)


def _fields(cell: Observation) -> dict[str, object]:
    return {name: getattr(cell, name) for name in cell.__struct_fields__} | {"name": cell.name}  # type: ignore[dict-item]


def reported(found: Mapping[str, Results | str], ends: Ends | None = ENDS, **more: object) -> Report:
    """A report on releases that were measured, or could not be for the reason given."""
    search = Search(Axis.between_ends(RELEASES))
    for release, what in found.items():
        search = search.with_answer(release, None if isinstance(what, str) else behaviour.of(what.observations))
    return Report(
        case="collectives/all_gather",
        what="torch",
        search=search,
        results={release: what for release, what in found.items() if not isinstance(what, str)},
        ends=ends,
        problems={release: what for release, what in found.items() if isinstance(what, str)},
        built=1,
        **more,  # type: ignore[arg-type]
    )


BROKEN = measured("2.2.2", crash(), observation(topology="sp4", sp_size=4))
RIGHT = measured("2.3.1", observation(), observation(topology="sp4", sp_size=4))


def test_both_sides_of_a_change_are_told_with_what_shows_them_again() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.1": RIGHT, "2.3.0": measured("2.3.0", *RIGHT.observations)})
    told = bisect_report.text(report).splitlines()
    assert told[0] == "torch 2.2.2 -> 2.3.0: mended in 2.3.0"
    assert told[1].startswith(
        "  1 of 2 cells: ⚡ crash -> ✓ pass; nccl-path (emulated), sp2-contiguous, contiguous=true"
    )
    assert told[2] == f"    2.2.2: ⚡ crash, first on rank 2: {INDEX_ERROR}"
    assert told[3].startswith("      sp-compat run --torch 2.2.2 --deepspeed none --lane nccl-path")
    assert told[4] == "    2.3.0: ✓ pass"
    assert "--torch 2.3.0" in told[5]
    assert told[-1] == (
        "collectives/all_gather, torch 2.2.2 to 2.3.1: mended in 2.3.0 (3 measured, 1 of them built for it)."
    )
    assert report.exit_code == 0


def test_what_could_not_be_measured_between_them_is_named_with_its_reason() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.1": RIGHT, "2.3.0": "numpy cannot be built"})
    told = bisect_report.text(report)
    assert "torch 2.2.2 -> 2.3.1: mended between 2.2.2 and 2.3.1" in told
    assert "  2.3.0 could not be measured: numpy cannot be built" in told
    [change] = bisect_report.as_json(report)["changes"]  # type: ignore[misc]
    assert (change["exact"], change["not_measurable"]) == (False, ["2.3.0"])
    assert report.exit_code == 0


def test_an_interrupted_search_tells_between_which_it_is() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.1": RIGHT}, stopped="interrupted by Ctrl-C")
    told = bisect_report.text(report)
    assert "mended between 2.2.2 and 2.3.1" in told
    assert "not measured: 2.3.0" in told
    assert told.endswith("interrupted by Ctrl-C).")
    assert report.exit_code == 4


def test_ends_that_do_the_same_are_no_conclusion() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.1": measured("2.3.1", *BROKEN.observations)})
    assert report.sentence.startswith(
        "The ends do the same: collectives/all_gather, torch 2.2.2 to 2.3.1, ⚡ crash in 1"
    )
    assert report.exit_code == 1
    assert replace(report, ends=None).exit_code == 0
    assert replace(report, ends=None).sentence.startswith("No change: ")


def test_an_end_that_cannot_be_measured() -> None:
    report = reported({"2.2.2": "there is no wheel"})
    assert report.sentence == "An end cannot be measured, name another: 2.2.2: there is no wheel."
    assert report.exit_code == 4


def test_one_release_that_could_be_measured_tells_nothing() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.0": "x", "2.3.1": "y"}, ends=None)
    assert report.sentence == "Nothing was found out: 1 of 3 that were tried could be measured."
    assert report.exit_code == 4


def test_ends_that_are_the_other_way_round_are_noted() -> None:
    found = {"2.2.2": BROKEN, "2.3.1": RIGHT, "2.3.0": measured("2.3.0", *RIGHT.observations)}
    assert "the other way round" in bisect_report.text(reported(found, ends=Ends("2.2.2", "2.3.1")))
    assert "the other way round" not in bisect_report.text(reported(found))


def test_another_deepspeed_beside_another_torch_is_said() -> None:
    def with_deepspeed(release: str, deepspeed: str, cell: Observation) -> Results:
        there = leg(release, deepspeed=deepspeed)
        return results([there], [observation(**{**_fields(cell), "leg": there.id})])

    found = {
        "2.2.2": with_deepspeed("2.2.2", "0.18.6", crash()),
        "2.3.0": with_deepspeed("2.3.0", "0.19.8", observation()),
    }
    told = bisect_report.text(reported(found))
    assert "  with DeepSpeed 0.18.6 and 0.19.8: that may be the reason as well" in told


def test_json_has_every_cell_that_changed() -> None:
    report = reported({"2.2.2": BROKEN, "2.3.0": measured("2.3.0", *RIGHT.observations), "2.3.1": RIGHT})
    told = json.loads(json.dumps(bisect_report.as_json(report)))
    [change] = told["changes"]
    assert (change["before"], change["after"], change["kind"], change["exact"]) == ("2.2.2", "2.3.0", "mended", True)
    [cell] = change["cells"]
    assert (cell["before"]["outcome"], cell["before"]["first_rank"]) == ("crash", 2)
    assert cell["before"]["message"] == INDEX_ERROR
    assert cell["after"]["command"].startswith("sp-compat run --torch 2.3.0 ")
    assert told["measured"] == list(RELEASES)


@given(anything, anything)
def test_text_from_outside_stays_in_its_line(message: str, problem: str) -> None:
    broken = measured("2.2.2", crash(message=message), observation(topology="sp4", sp_size=4))
    plain = reported({"2.2.2": BROKEN, "2.3.1": RIGHT, "2.3.0": "x"})
    hostile = reported({"2.2.2": broken, "2.3.1": RIGHT, "2.3.0": problem})
    assert bisect_report.text(hostile).count("\n") == bisect_report.text(plain).count("\n")
    assert "\n" not in reported({"2.2.2": problem}).sentence + reported({"2.2.2": BROKEN}, stopped=problem).sentence
