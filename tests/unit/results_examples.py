"""Results to test with: a small run on three releases, as it was measured, and strategies for any run."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from matrix.results import (
    EnvironmentRecord,
    Host,
    Leg,
    Observation,
    RankReport,
    Requested,
    Results,
    Seconds,
    Source,
    Tool,
)

TOPOLOGIES = {"sp2-contiguous": 2, "sp2-strided": 2, "sp4": 4}
INDEX_ERROR = "IndexError: tuple index out of range"
HOSTILE = (
    "a|b `x` ```` </code></details><b>hi</b> <module> @user org/repo#12 GH-12 #123 http://e.example www.e.example "
    "a@b.example **bold** _x_ \\| \\ $a$ :smile: ~~s~~ [x](y) ![i](u)\n```\n~~~\n| --- |\n::error::boom\n"
    "##[error]x \x1b[31mred\x1b[0m \x1b]0;title\x07 \x00\x08\x7f \udc80 \u202eright\u202c -->"
)


def leg(torch: str | None, **changes: object) -> Leg:
    fields: dict[str, object] = {
        "id": f"torch{torch}-dsnone-py3.11-cpu",
        "requested": Requested(torch=torch or "2.2", deepspeed="none"),
        "torch": torch,
        "torch_build": f"{torch}+cu121" if torch else None,
        "deepspeed": None,
        "python": "3.11.7",
        "lanes": ["gloo", "nccl-path"],
        "environment": EnvironmentRecord(kind="venv", key="3f2a"),
        "host": Host(cpus=2),
        "status": "completed",
        "log": f"legs/torch{torch}-dsnone-py3.11-cpu/build.log",
        "seconds": Seconds(build=12.5, suite=9.75),
    }
    return Leg(**(fields | changes))  # type: ignore[arg-type]


def observation(name: str = "collectives/all_gather", outcome: str = "pass", **changes: object) -> Observation:
    suite, _, case = name.partition("/")
    fields: dict[str, object] = {
        "leg": "torch2.2.2-dsnone-py3.11-cpu",
        "lane": "nccl-path",
        "suite": suite,
        "case": case,
        "topology": "sp2-contiguous",
        "world_size": 4,
        "sp_size": 2,
        "parameters": {"contiguous": True, "dtype": "float32"},
        "outcome": outcome,
        "ranks": [RankReport(rank=rank, outcome="pass") for rank in range(4)],
    }
    return Observation(**(fields | changes))  # type: ignore[arg-type]


def crash(**changes: object) -> Observation:
    """all_gather on torch before 2.3, as the ranks report it."""
    ranks = [RankReport(rank=rank, outcome="pass", factor=1.0, relative_error=0.0) for rank in (0, 1)] + [
        RankReport(
            rank=rank,
            outcome="crash",
            exception="IndexError",
            message=INDEX_ERROR,
            traceback=f'Traceback (most recent call last):\n  File "functional.py", line 331\n{INDEX_ERROR}\n',
        )
        for rank in (2, 3)
    ]
    return observation(**({"outcome": "crash", "message": INDEX_ERROR, "first_rank": 2, "ranks": ranks} | changes))  # type: ignore[arg-type]


def results(legs: list[Leg], observations: list[Observation], **changes: object) -> Results:
    fields: dict[str, object] = {
        "generated_at": "2026-12-01T09:00:00Z",
        "tool": Tool(version="0.1.0"),
        "source": Source(repository="org/project", sha="0" * 40, ref="refs/pull/7/merge", pull_request=7),
        "legs": legs,
        "observations": observations,
    }
    return Results(**(fields | changes))  # type: ignore[arg-type]


def three_releases() -> Results:
    """torch 2.2.2, 2.3.1 and 2.13.0: the boundary that the project started from."""
    legs = [leg(torch) for torch in ("2.2.2", "2.3.1", "2.13.0")]
    observations = [
        _measured(one, lane, name, topology, parameters)
        for one in legs
        for lane in ("gloo", "nccl-path")
        for name, parameters in _cells()
        for topology in TOPOLOGIES
    ]
    return results(legs, observations)


def _cells() -> list[tuple[str, dict[str, bool | int | float | str | None]]]:
    collectives = (
        "broadcast",
        "gather",
        "all_gather",
        "_all_gather_base",
        "all_to_all",
        "all_reduce",
        "all_reduce_max",
    )
    losses = ("all_gather_mean", "all_gather_weighted", "all_reduce_weighted", "all_reduce_inplace_weighted")
    tokens = ("equal", "unequal", "ignored", "empty-rank")
    return [(f"collectives/{name}", {"contiguous": True, "dtype": "float32"}) for name in collectives] + [
        (f"loss/{name}", {"tokens": kind, "dtype": "float32"}) for name, kind in product(losses, tokens)
    ]


def _measured(
    one: Leg, lane: str, name: str, topology: str, parameters: dict[str, bool | int | float | str | None]
) -> Observation:
    sp_size = TOPOLOGIES[topology]
    where: dict[str, object] = {
        "leg": one.id,
        "lane": lane,
        "topology": topology,
        "sp_size": sp_size,
        "parameters": parameters,
        "seconds": 0.01,
    }
    subgroup = sp_size < 4
    gathers = name in ("collectives/all_gather", "loss/all_gather_mean", "loss/all_gather_weighted")
    if lane == "gloo" and subgroup and (gathers or name == "collectives/all_to_all"):
        message = "ValueError: Global rank 0 is not part of group"
        return crash(name=name, message=message, **where)
    if lane == "nccl-path" and subgroup and gathers and one.torch == "2.2.2":
        return crash(name=name, **where)
    if name == "collectives/gather" and subgroup:
        message = "ValueError: Argument ``gather_list`` must be specified on destination rank."
        return crash(name=name, message=message, **where)
    if name == "collectives/broadcast" and subgroup and one.torch != "2.2.2":
        return observation(name, "wrong", relative_error=1.0, first_rank=2, **where)
    if name == "collectives/all_reduce_max":
        return observation(name, "wrong", relative_error=0.4, first_rank=0, **where)
    if name == "collectives/_all_gather_base" and lane == "gloo":
        return observation(name, "unsupported", message="RuntimeError: Backend not supported!", **where)
    if name == "loss/all_gather_mean" and parameters["tokens"] != "equal":
        return observation(name, "wrong", relative_error=0.2, first_rank=0, **where)
    if name.startswith("loss/"):
        convention = "sum" if "inplace" in name else "mean"
        factors = {"sum": 1.0, "mean": 1 / sp_size} if convention == "sum" else {"sum": float(sp_size), "mean": 1.0}
        return observation(name, "pass", factor=1.0, factors=factors, convention=convention, **where)
    return observation(name, "pass", factor=1.0, relative_error=0.0, **where)


# --- any run ----------------------------------------------------------------------------------------------------------

anything = st.one_of(
    st.text(st.characters(), max_size=60),
    st.text(st.sampled_from("`|<>&@#\\*_[]()!~:$\n\r\t -x1\x1b\x00\udc80\u202e"), max_size=60),
    st.sampled_from([HOSTILE, "", "::error::x", "```", "|", "</details>", "-->"]),
)
outcomes = st.sampled_from(["pass", "scaled", "wrong", "nan", "crash", "hang", "died", "unsupported", "absent"])
numbers = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def ranks(draw: st.DrawFn) -> list[RankReport]:
    return [
        RankReport(
            rank=rank,
            outcome=draw(st.one_of(outcomes, st.just("blocked"))),
            factor=draw(numbers),
            message=draw(st.one_of(st.none(), anything)),
            traceback=draw(st.one_of(st.none(), anything)),
        )
        for rank in range(draw(st.integers(0, 4)))
    ]


@st.composite
def observations(draw: st.DrawFn, legs: list[Leg]) -> Observation:
    world_size = draw(st.integers(2, 8))
    return Observation(
        leg=draw(st.sampled_from(legs)).id,
        lane=draw(st.sampled_from(["gloo", "nccl-path", "nccl"])),
        suite=draw(st.sampled_from(["collectives", "loss", "user", "tests"])),
        case=draw(st.one_of(st.sampled_from(["all_gather", "all_gather_mean", "broadcast"]), anything)),
        topology=draw(st.one_of(st.sampled_from(list(TOPOLOGIES)), anything)),
        world_size=world_size,
        sp_size=draw(st.integers(1, world_size)),
        parameters=draw(
            st.dictionaries(
                st.one_of(st.sampled_from(["tokens", "contiguous", "root"]), anything),
                st.one_of(st.none(), st.booleans(), st.integers(-9, 9), anything),
                max_size=3,
            )
        ),
        outcome=draw(outcomes),
        flaky=draw(st.booleans()),
        factor=draw(numbers),
        relative_error=draw(numbers),
        message=draw(st.one_of(st.none(), anything)),
        first_rank=draw(st.one_of(st.none(), st.integers(0, 4))),
        ranks=draw(ranks()),
        seconds=draw(st.floats(0, 1e6)),
        expected=draw(st.one_of(st.none(), anything)),
    )


@st.composite
def any_legs(draw: st.DrawFn) -> list[Leg]:
    ids = draw(st.lists(st.one_of(anything, st.just("torch2.2.2-ds0.18.5-py3.11-cpu")), max_size=4, unique=True))
    return [
        Leg(
            id=one,
            requested=Requested(torch=draw(anything), deepspeed=draw(anything)),
            torch=draw(st.one_of(st.sampled_from([None, "2.2.2", "2.13.0", "2.4.0a0+07cecf4168.nv24.05"]), anything)),
            torch_build=draw(st.one_of(st.none(), anything)),
            deepspeed=draw(st.one_of(st.none(), st.just("0.18.5"), anything)),
            python=draw(st.one_of(st.none(), st.just("3.11.7"), anything)),
            lanes=draw(st.lists(st.sampled_from(["gloo", "nccl-path", "nccl"]), max_size=3)),
            environment=EnvironmentRecord(
                kind=draw(st.sampled_from(["venv", "container", "current"])), image=draw(st.one_of(st.none(), anything))
            ),
            host=Host(cpus=2, gpus=draw(st.lists(anything, max_size=2)), driver=draw(st.one_of(st.none(), anything))),
            status=draw(st.sampled_from(["completed", "environment-failed", "timed-out", "cancelled"])),
            reason=draw(st.sampled_from([None, "unresolvable", "build", "import", "mismatch", "machine"])),
            detail=draw(st.one_of(st.none(), anything)),
            log=draw(st.one_of(st.none(), anything)),
        )
        for one in ids
    ]


@st.composite
def any_results(draw: st.DrawFn) -> Results:
    legs = draw(any_legs())
    return results(legs, draw(st.lists(observations(legs), max_size=12)) if legs else [])
