"""The document between a run and its readers: what the specification shows is accepted, anything else is refused."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest
from hypothesis import given
from results_examples import any_results, three_releases

from matrix import known_issues, results

# As the design shows it.
EXAMPLE = """
{"schema_version": 1, "generated_at": "2026-12-01T09:00:00Z", "tool": {"version": "0.1.0"},
 "source": {"repository": null, "sha": null, "ref": null, "pull_request": null},
 "legs": [{"id": "torch2.2.2-ds0.18.5-py3.11-cpu", "requested": {"torch": "2.2", "deepspeed": "auto"},
           "torch": "2.2.2", "torch_build": "2.2.2+cu121", "deepspeed": "0.18.5", "python": "3.11.7",
           "lanes": ["gloo", "nccl-path"],
           "environment": {"kind": "venv", "key": "...", "image": null, "digest": null},
           "host": {"cpus": 2, "gpus": [], "driver": null},
           "status": "completed", "reason": null, "log": "legs/.../build.log",
           "seconds": {"build": 0.0, "suite": 0.0}}],
 "observations": [{"leg": "torch2.2.2-ds0.18.5-py3.11-cpu", "lane": "nccl-path", "suite": "collectives",
           "case": "all_gather", "topology": "sp2-contiguous", "world_size": 4, "sp_size": 2, "parameters": {},
           "outcome": "crash", "flaky": false, "factor": null, "factors": null, "convention": null,
           "relative_error": null, "message": "IndexError: tuple index out of range", "first_rank": 2,
           "ranks": [{"rank": 0, "outcome": "pass", "factor": 1.0, "relative_error": 0.0,
                      "exception": null, "message": null, "traceback": null, "stack": null}],
           "seconds": 0.0, "attempts": 1, "known_issue": "torch-allgather-global-rank"}]}
"""


def published(name: str) -> object:
    return json.loads(resources.files("matrix").joinpath("data", name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "schema"),
    [("results.schema.json", results.json_schema), ("known_issues.schema.json", known_issues.json_schema)],
)
def test_the_published_schema_is_that_of_the_code(name: str, schema: object) -> None:
    current = schema()  # type: ignore[operator]
    assert published(name) == current, f"write matrix/data/{name} again from json_schema() of its module"


def test_the_example_of_the_design_is_valid_and_is_read() -> None:
    jsonschema.validate(json.loads(EXAMPLE), published("results.schema.json"))
    document = results.decode(EXAMPLE.encode())
    assert document.observations[0].name == "collectives/all_gather"
    assert document.legs[0].requested == results.Requested(torch="2.2", deepspeed="auto")


def test_what_is_written_is_valid_and_reads_back() -> None:
    document = three_releases()
    written = results.encode(document)
    jsonschema.validate(json.loads(written), published("results.schema.json"))
    assert results.decode(written) == document


@given(any_results())
def test_any_results_read_back_unless_they_hold_half_a_character(document: results.Results) -> None:
    try:
        written = results.encode(document)
    except UnicodeEncodeError:
        return
    assert results.decode(written) == document


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ('"outcome": "crash"', '"outcome": "boom"', "$.observations[0].outcome"),
        ('"schema_version": 1', '"schema_version": 2', "$.schema_version"),
        ('"world_size": 4', '"world_size": "4"', "$.observations[0].world_size"),
        ('"status": "completed"', '"status": "ok"', "$.legs[0].status"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(old: str, new: str, where: str) -> None:
    with pytest.raises(results.InvalidResults) as refused:
        results.decode(EXAMPLE.replace(old, new, 1).encode())
    assert where in str(refused.value)


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"null", b'{"legs": "\xff"}', b'"\\udc80"'])
def test_what_is_no_results_document_is_refused(document: bytes) -> None:
    with pytest.raises(results.InvalidResults):
        results.decode(document)
