"""Known issues explain what they describe and nothing else, and a file that cannot be used says why in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from results_examples import crash, leg, observation

from matrix import known_issues
from matrix.known_issues import InvalidKnownIssues, KnownIssues, built_in, check_names, in_force, parse, release

SUITE = Path(__file__).parents[1] / "regression"
ALL_GATHER = "torch-allgather-global-rank"

ENTRY = """
- id: mine
  title: something is wrong
  torch: ">=2.1,<2.4"
  lanes: [nccl-path]
  cases: [loss/all_*]
  outcomes: [crash]
  source: https://example.org/1
  reader: Do something else.
"""


def explained(seen: object, torch: str | None = "2.2.2", deepspeed: str | None = None, text: str = ENTRY) -> str | None:
    issue = KnownIssues(parse(text, "file")).explain(seen, torch, deepspeed)  # type: ignore[arg-type]
    return issue.id if issue else None


def loss(outcome: str = "crash", **changes: object) -> object:
    return observation("loss/all_gather_weighted", outcome, **changes)


# --- what an entry explains -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.2.2", "mine"),
        ("2.1", "mine"),
        ("2.3.1+cu121", "mine"),
        ("2.4.0", None),
        ("2.0.1", None),
        # A vendor's build counts as the release that it is a build of, not as one before it.
        ("2.4.0a0+07cecf4168.nv24.05", None),
        ("2.1.0a0+32f93b1", "mine"),
        ("2.4.0.dev20240601", None),
        ("not a version", None),
        (None, None),
    ],
)
def test_torch_is_compared_by_its_release(torch: str | None, expected: str | None) -> None:
    assert explained(loss(), torch) == expected


def test_no_specifier_means_every_release_and_none_at_all() -> None:
    text = ENTRY.replace('  torch: ">=2.1,<2.4"\n', "")
    assert explained(loss(), "2.15.0", text=text) == "mine"
    assert explained(loss(), None, text=text) == "mine"


@pytest.mark.parametrize(
    ("deepspeed", "expected"), [("0.18.5", "mine"), ("0.18.5+abc", "mine"), ("0.19.0", None), (None, None)]
)
def test_a_deepspeed_specifier_needs_a_deepspeed(deepspeed: str | None, expected: str | None) -> None:
    assert explained(loss(), "2.2.2", deepspeed, ENTRY + '  deepspeed: "<0.19"\n') == expected


@pytest.mark.parametrize(
    "other",
    [
        loss("wrong"),
        loss("pass"),
        loss(lane="gloo"),
        observation("loss/custom_weighted", "crash"),
        observation("collectives/all_gather", "crash"),
    ],
)
def test_every_selector_has_to_fit(other: object) -> None:
    assert explained(loss()) == "mine"
    assert explained(other) is None


@pytest.mark.parametrize(
    ("line", "fits", "differs"),
    [
        ("topologies: [sp2-*]", {"topology": "sp2-strided"}, {"topology": "sp4"}),
        ("subgroup: true", {"sp_size": 2}, {"sp_size": 4}),
        ("subgroup: false", {"sp_size": 4}, {"sp_size": 2}),
        ("parameters: {tokens: unequal}", {"parameters": {"tokens": "unequal"}}, {"parameters": {"tokens": "equal"}}),
        ("parameters: {tokens: [a, b]}", {"parameters": {"tokens": "b"}}, {"parameters": {}}),
        ("parameters: {root: 0}", {"parameters": {"root": 0}}, {"parameters": {"root": False}}),
        ("parameters: {contiguous: false}", {"parameters": {"contiguous": False}}, {"parameters": {"contiguous": 0}}),
        ("message: 'tuple .* range'", {"message": "IndexError: tuple index out of range"}, {"message": None}),
        ("message: 'tuple'", {"message": "a tuple"}, {"message": "a list"}),
    ],
)
def test_the_finer_selectors(line: str, fits: dict[str, object], differs: dict[str, object]) -> None:
    text = f"{ENTRY}  {line}\n"
    assert explained(loss(**fits), text=text) == "mine"
    assert explained(loss(**differs), text=text) is None


def test_the_first_entry_that_fits_explains() -> None:
    assert explained(loss(), text=ENTRY + ENTRY.replace("mine", "second")) == "mine"


# --- legs -------------------------------------------------------------------------------------------------------------

LEG_ENTRY = """
- id: build
  title: cannot be built
  torch: "<2.4"
  deepspeed: ">=0.18.9"
  legs: [build]
  source: https://example.org/2
  reader: Use another.
"""


@pytest.mark.parametrize(
    ("leg_id", "reason", "expected"),
    [
        ("torch2.2.2-ds0.19.0-py3.11-cpu", "build", True),
        ("torch2.2.2-ds0.19.0-py3.11-cpu", "import", False),
        ("torch2.4.0-ds0.19.0-py3.11-cpu", "build", False),
        ("torch2.2.2-ds0.18.5-py3.11-cpu", "build", False),
        ("torch2.2.2-dsnone-py3.11-cpu", "build", False),
    ],
)
def test_a_leg_that_never_ran_is_judged_by_what_was_planned(leg_id: str, reason: str, expected: bool) -> None:
    failed = leg(None, id=leg_id, status="environment-failed", reason=reason)
    assert (KnownIssues(parse(LEG_ENTRY, "file")).explain_leg(failed) is not None) == expected


# --- the built-in file ------------------------------------------------------------------------------------------------


def test_the_built_in_file_fits_its_schema_and_names_real_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SUITE))
    from spsuite.catalogue import LANES, catalogue

    text = (Path(known_issues.__file__).parent / "data" / "known_issues.yaml").read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), known_issues.json_schema())
    check_names(built_in().entries, "built-in", [f"{case.suite}/{case.name}" for case in catalogue()], list(LANES))
    for name in [name for name in sys.modules if name.split(".")[0] == "spsuite"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("seen", "torch", "expected"),
    [
        (crash(), "2.2.2", ALL_GATHER),
        (crash(), "2.2.0a0+6a974be", ALL_GATHER),
        (crash(), "2.3.0a0+ebedce2", None),
        (crash(), "2.3.1", None),
        (crash(lane="nccl"), "2.1.2", ALL_GATHER),
        (crash(lane="gloo"), "2.2.2", None),
        (crash(topology="sp4", sp_size=4), "2.2.2", None),
        (crash(message="IndexError: list index out of range"), "2.2.2", None),
        # What a user wrote is never excused by what torch gets wrong.
        (crash(name="user/my_pkg.training:sp_loss"), "2.2.2", None),
        (
            observation("loss/all_gather_mean", "wrong", parameters={"tokens": "unequal", "dtype": "float32"}),
            "2.13.0",
            "mean-of-means",
        ),
        (
            observation("loss/all_gather_mean", "wrong", parameters={"tokens": "equal", "dtype": "float32"}),
            "2.13.0",
            None,
        ),
        (
            observation("loss/all_gather_weighted_unguarded", "nan", parameters={"tokens": "empty-rank"}),
            "2.13.0",
            "unguarded-division",
        ),
        (observation("loss/all_gather_weighted", "nan", parameters={"tokens": "empty-rank"}), "2.13.0", None),
        (observation("collectives/broadcast", "wrong"), "2.2.2", None),
        (observation("collectives/broadcast", "wrong"), "2.3.1", "torch-broadcast-group-rank"),
        (observation("collectives/broadcast", "wrong", topology="sp4", sp_size=4), "2.3.1", None),
    ],
)
def test_what_the_built_in_entries_explain(seen: object, torch: str, expected: str | None) -> None:
    issue = built_in().explain(seen, torch, None)  # type: ignore[arg-type]
    assert (issue.id if issue else None) == expected


# --- which files are in force -----------------------------------------------------------------------------------------


def test_a_file_is_added_to_the_built_in_entries() -> None:
    assert in_force(None, read=lambda name: pytest.fail("nothing to read")) == built_in()
    ours = in_force("ours.yml", read={"ours.yml": ENTRY}.__getitem__)
    assert [entry.id for entry in ours.entries] == ["mine", *(entry.id for entry in built_in().entries)]


def test_none_leaves_out_every_entry() -> None:
    assert in_force("none", read=lambda name: pytest.fail("nothing to read")) == KnownIssues()


def test_an_id_of_a_built_in_entry_is_refused() -> None:
    with pytest.raises(InvalidKnownIssues, match=f"ours.yml: entry '{ALL_GATHER}' has the id of a built-in"):
        in_force("ours.yml", read=lambda name: ENTRY.replace("mine", ALL_GATHER))


def test_a_file_with_an_entry_that_can_never_match_is_refused() -> None:
    with pytest.raises(InvalidKnownIssues, match=r"ours.yml: entry 'mine': cases: 'loss/all_\*' matches no case"):
        in_force("ours.yml", lambda name: ENTRY, cases=["collectives/gather"], lanes=["nccl-path"])


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("outcomes: [crash]", "outcomes: [crahs]", "'mine': outcomes: 'crahs' is not allowed here; did you mean 'cras"),
        ("outcomes: [crash]", "outcomes: crash", "file: entry 'mine': outcomes: 'crash' is not a list; write [crash]"),
        ("outcomes: [crash]", "outcomes: [pass]", "'pass' is not allowed here"),
        ("  outcomes: [crash]\n", "", "file: entry 'mine': outcomes: missing"),
        ("  cases: [loss/all_*]\n", "", "file: entry 'mine': cases: missing"),
        ("  title: something is wrong\n", "", "file: entry 'mine': title: missing"),
        ("  source: https://example.org/1\n", "", "file: entry 'mine': source: missing"),
        ("https://example.org/1", "see above", "file: entry 'mine': source: "),
        ('">=2.1,<2.4"', "2.10", "torch: 2.1 is a number; write specifiers in quotes"),
        ('">=2.1,<2.4"', '"2.3"', "torch: '2.3' is not a set of version specifiers"),
        ("  lanes:", "  lane:", "'lane' is not a key of a known issue; did you mean 'lanes'?"),
        ("  reader:", "  by_design: true\n  reader:", "did you mean 'by-design'?"),
        ("  reader:", "  by-design: perhaps\n  reader:", "file: entry 'mine': by-design: expected `bool`"),
        ("  reader:", "  message: '('\n  reader:", "message: '(' is not a regular expression"),
        ("  reader:", "  legs: [build]\n  reader:", "about whole legs or about cases, not both"),
        ("  reader:", "  title: again\n  reader:", "file: line 9: the key 'title' is written twice"),
        ("  reader:", "  parameters: {a: {b: c}}\n  reader:", "file: entry 'mine': parameters: expected"),
        ("- id: mine", "- id: Mine!", "file: entry 'Mine!': id: "),
        ("- id: mine", "- id: 7", "file: entry 1: id: expected `str`, got `int`"),
        ("- id: mine\n  title", "- title", "file: entry 1: id: missing"),
        ("lanes: [nccl-path]", "lanes: [nccl-path", "file: line 6: not valid YAML"),
    ],
)  # fmt: skip
def test_a_refusal_names_file_entry_and_key(old: str, new: str, said: str) -> None:
    assert old in ENTRY
    with pytest.raises(InvalidKnownIssues) as refused:
        parse(ENTRY.replace(old, new, 1), "file")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["id: mine", "7", "just words", "- 7", "- [a]", "- id: [", "\x00", "- !!python/object:x {}"]
)
def test_what_is_no_list_of_entries_is_refused(text: str) -> None:
    with pytest.raises(InvalidKnownIssues, match=r"^file: ") as refused:
        parse(text, "file")
    assert "\n" not in str(refused.value)


def test_an_id_is_used_once() -> None:
    with pytest.raises(InvalidKnownIssues, match="entry 'mine' is there twice"):
        parse(ENTRY + ENTRY, "file")


def test_an_empty_file_has_no_entries() -> None:
    assert parse("", "file") == ()
    assert parse("# nothing yet\n", "file") == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("loss/all_*", "loss/al_*", "cases: 'loss/al_*' matches no case"),
        ("loss/all_*", "loss/all_gather_meen", "did you mean 'loss/all_gather_mean'?"),
        ("nccl-path", "nccl_path", "lanes: 'nccl_path' is not a lane; allowed: gloo, nccl-path; did you mean"),
    ],
)  # fmt: skip
def test_a_pattern_that_matches_nothing_is_refused(old: str, new: str, said: str) -> None:
    cases, lanes = ["loss/all_gather_mean", "collectives/broadcast"], ["gloo", "nccl-path"]
    check_names(parse(ENTRY, "file"), "file", cases, lanes)
    check_names(parse(ENTRY.replace("loss/all_*", "user/my_pkg:*"), "file"), "file", cases, lanes)
    with pytest.raises(InvalidKnownIssues) as refused:
        check_names(parse(ENTRY.replace(old, new), "file"), "file", cases, lanes)
    assert said in str(refused.value)


def test_the_release_of_a_version() -> None:
    assert str(release("2.4.0a0+07cecf4168.nv24.05")) == "2.4.0"
    assert release("main") is None
