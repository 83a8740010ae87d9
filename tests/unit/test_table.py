"""The matrix: releases in order, and for each case the worst that somebody has to know."""

from __future__ import annotations

from hypothesis import given
from results_examples import any_results, crash, leg, observation, results, three_releases

from matrix import reproduce, table
from matrix.known_issues import KnownIssues, built_in
from matrix.results import EnvironmentRecord, Leg, Observation, Requested, Results
from matrix.table import Column, Entry, Table, build
from matrix.verdict import judge

NONE = KnownIssues()
ALL_GATHER = Column("collectives", "all_gather", "nccl-path")


def entry_of(*observations: Observation, known: KnownIssues = NONE) -> Entry:
    made = table_of([leg("2.2.2")], list(observations), known)
    entry = made.entry(made.rows[0], made.columns[0])
    assert entry is not None
    return entry


def table_of(legs: list[Leg], observations: list[Observation], known: KnownIssues = NONE) -> Table:
    return build(judge(results(legs, observations), known, None, "regression"))


def test_the_boundary_at_2_3_is_seen() -> None:
    made = build(judge(three_releases(), built_in(), None, "regression"))
    assert [row.label for row in made.rows] == ["2.2.2", "2.3.1", "2.13.0"]
    told = [entry.text for row in made.rows if (entry := made.entry(row, ALL_GATHER))]
    assert told == ["⚡ crash (2 of 3, known)", "✓ pass", "✓ pass"]
    assert ALL_GATHER in made.telling(8)
    assert Column("loss", "all_reduce_weighted", "gloo") not in made.telling(8)


def test_releases_stand_in_the_order_of_their_numbers() -> None:
    legs = [leg(torch) for torch in ("2.10.0", "2.2.2", "2.9.1", "2.16.0.dev20261201")]
    assert [row.torch for row in table_of(legs, []).rows] == ["2.2.2", "2.9.1", "2.10.0", "2.16.0.dev20261201"]


def test_a_vendor_build_is_shown_by_its_release() -> None:
    vendor = leg("2.4.0a0+07cecf4168.nv24.05")
    assert table.torch_label(vendor) == "2.4.0"
    assert table.torch_label(leg("2.4.0rc1")) == "2.4.0rc1"
    assert table.torch_label(leg("2.16.0.dev20261201+cpu")) == "2.16.0.dev20261201"


def test_legs_on_different_runners_share_the_row_of_their_releases() -> None:
    cpu = leg("2.2.2")
    gpu = leg("2.2.2", id="torch2.2.2-dsnone-py3.11-nccl", lanes=["nccl"])
    made = table_of([cpu, gpu], [crash(), crash(leg=gpu.id, lane="nccl")])
    assert len(made.rows) == 1
    assert [column.lane for column in made.columns] == ["nccl-path", "nccl"]
    assert all(made.entry(made.rows[0], column) for column in made.columns)


def test_two_pythons_are_two_rows_that_say_so() -> None:
    legs = [leg("2.2.2"), leg("2.2.2", id="torch2.2.2-dsnone-py3.8-cpu", python="3.8.18")]
    assert [row.label for row in table_of(legs, []).rows] == ["2.2.2, Python 3.11.7", "2.2.2, Python 3.8.18"]


def test_deepspeed_is_part_of_the_row() -> None:
    legs = [leg("2.2.2", id=f"torch2.2.2-ds{one}-py3.11-cpu", deepspeed=one) for one in ("0.18.5", "0.9.0")]
    assert [row.label for row in table_of(legs, []).rows] == ["2.2.2, DeepSpeed 0.9.0", "2.2.2, DeepSpeed 0.18.5"]


def test_an_entry_is_the_worst_of_its_cells() -> None:
    right = observation(topology="sp4", sp_size=4)
    assert entry_of(right).text == "✓ pass"
    assert entry_of(right, observation(outcome="wrong")).text == "✗ wrong (1 of 2, new)"
    assert entry_of(observation(outcome="wrong"), crash(topology="sp4")).text == "⚡ crash (1 of 2, 1 wrong, new)"
    assert entry_of(right, observation(outcome="unsupported")).text == "✓ pass"
    assert entry_of(observation(outcome="absent")).text == "· absent"


def test_a_known_failure_does_not_hide_a_new_one() -> None:
    assert entry_of(crash(), known=built_in()).text == "⚡ crash (known)"
    assert entry_of(crash(), observation(outcome="wrong"), known=built_in()).text == "✗ wrong (1 of 2, 1 crash, new)"


def test_what_is_by_design_is_not_counted() -> None:
    designed = observation("loss/all_reduce_mean", "wrong", parameters={"tokens": "unequal"})
    right = observation("loss/all_reduce_mean", parameters={"tokens": "equal"})
    assert entry_of(designed, right, known=built_in()).text == "✓ pass (1 failing by design)"
    assert entry_of(designed, right, known=built_in()).brief == "✓ pass"
    assert entry_of(designed, known=built_in()).text == "✗ wrong (by design)"


def test_a_factor_is_told_where_all_agree() -> None:
    twice, four_times = (
        observation(outcome="scaled", factor=factor, parameters={"k": factor}) for factor in (2.0, 4.0)
    )
    assert entry_of(twice).text == "× scaled ×2 (new)"
    assert entry_of(twice, four_times).text == "× scaled (2 of 2, new)"


@given(any_results())
def test_any_results_make_a_table(anything: Results) -> None:
    made = build(judge(anything, built_in(), None, "regression"))
    shown = sum(len(entry.cells) for entry in made.entries.values())
    assert shown == len(anything.observations)
    for row in made.rows:
        right, ran = made.right(row)
        assert 0 <= right <= ran


# --- the command that shows a cell again ------------------------------------------------------------------------------


def test_the_command_that_reproduces_a_cell() -> None:
    assert reproduce.command(crash(), leg("2.2.2")) == (
        "sp-compat run --torch 2.2.2 --deepspeed none --lane nccl-path --suite collectives --case all_gather "
        "--topology sp2-contiguous --world-size 4 --parameter contiguous=true --parameter dtype=float32"
    )


def test_a_users_loss_is_named_as_a_loss() -> None:
    seen = observation("user/my_pkg.training:sp_loss", "wrong", parameters={"tokens": "unequal"})
    assert "--suite user --loss my_pkg.training:sp_loss --topology" in reproduce.command(seen, leg("2.2.2"))


def test_every_word_of_the_command_is_quoted() -> None:
    seen = observation("user/a;$(id) `b`", "wrong", topology="0,1/2,3", parameters={"x y": "it's"})
    told = reproduce.command(seen, leg("2.2.2"))
    assert "--loss 'a;$(id) `b`' --topology 0,1/2,3" in told
    assert told.endswith("""--parameter 'x y=it'"'"'s'""")


def test_the_environment_is_asked_for_as_it_was_where_a_release_is_not_enough() -> None:
    current = leg("2.4.0a0+07cecf4168.nv24.05", environment=EnvironmentRecord(kind="current"))
    assert reproduce.command(crash(), current).startswith("sp-compat run --environment current --lane")
    for torch in ("nightly", "2.4.0+cu121", "./torch-2.4.0.whl", "file:///wheels/torch-2.4.0.whl"):
        built = leg("2.4.0", requested=Requested(torch=torch, deepspeed="git+https://example.org/ds"))
        told = reproduce.command(crash(), built)
        assert told.startswith(f"sp-compat run --torch {torch} --deepspeed git+https://example.org/ds ")
    ranged = leg("2.2.2", requested=Requested(torch=">=2.1,<2.4", deepspeed="auto"), deepspeed="0.18.5")
    assert reproduce.command(crash(), ranged).startswith("sp-compat run --torch 2.2.2 --deepspeed 0.18.5 ")
