"""What may be written for DeepSpeed, and what it stands for."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from matrix import deepspeed_releases, deepspeed_requests
from matrix.deepspeed_releases import DeepSpeedTable, Measurement
from matrix.deepspeed_requests import DeepSpeedRequest, Resolution, Sources, parse
from matrix.plan import TorchBuild
from matrix.requests import InvalidRequest, Unresolvable

RELEASES = ("0.9.5", "0.16.8", "0.16.9", "0.17.0", "0.17.6", "0.18.0rc1", "0.18.0", "0.18.1")
COMMIT = "0123456789" * 4
TORCH = TorchBuild("2.2.2", "torch==2.2.2")


def measured(torch: str, deepspeed: str, *, works: bool = True) -> Measurement:
    return Measurement(
        torch=torch,
        deepspeed=deepspeed,
        python="3.11",
        measured="2026-01-01",
        builds=works,
        imports=works,
        offers=(deepspeed_releases.ULYSSES,) if works else (),
    )


TABLE = DeepSpeedTable(
    ulysses=(deepspeed_releases.ULYSSES,),
    companions=(),
    releases=("0.17.6",),
    measured=(
        measured("2.1.2", "0.18.1", works=False),
        measured("2.2.2", "0.16.9"),
        measured("2.2.2", "0.17.6"),
        measured("2.2.2", "0.18.1", works=False),
        measured("2.6.0", "0.18.1"),
    ),
)


def locate(written: str) -> PurePath:
    if written.startswith("missing"):
        raise Unresolvable(f"deepspeed: there is no directory {written}")
    return PurePosixPath("/project") / written


def commit_of(url: str, reference: str | None) -> str:
    if reference == "gone":
        raise Unresolvable(f"deepspeed: the repository {url} has no branch and no tag gone")
    return COMMIT


def sources(available: tuple[str, ...] = RELEASES, table: DeepSpeedTable = TABLE) -> Sources:
    return Sources(available, table, locate, commit_of)


def resolved(text: str, torch: TorchBuild = TORCH) -> list[str | None]:
    return [build.requirement for build in deepspeed_requests.resolve(parse(text), torch, sources())]


def unresolvable(text: str, torch: TorchBuild = TORCH, where: Sources | None = None) -> str:
    with pytest.raises(Unresolvable) as error:
        deepspeed_requests.resolve(parse(text), torch, where or sources())
    return str(error.value)


def refused(text: str) -> str:
    with pytest.raises(InvalidRequest) as error:
        parse(text)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("none", [None]),
        ("0.17.6", ["deepspeed==0.17.6"]),
        ("v0.17.6", ["deepspeed==0.17.6"]),
        ("==0.17.6", ["deepspeed==0.17.6"]),
        ("0.17", ["deepspeed==0.17.6"]),
        ("0.17.x", ["deepspeed==0.17.6"]),
        ("0.16.*", ["deepspeed==0.16.9"]),
        (">=0.16,<0.18", ["deepspeed==0.16.9", "deepspeed==0.17.6"]),
        ("<0.16", ["deepspeed==0.9.5"]),
        ("!=0.17.6,>=0.17", ["deepspeed==0.17.0", "deepspeed==0.18.1"]),
        ("latest", ["deepspeed==0.18.1"]),
        ("0.18.0rc1", ["deepspeed==0.18.0rc1"]),
        ("path:../DeepSpeed", ["deepspeed @ file:///project/../DeepSpeed"]),
        ("path:with space", ["deepspeed @ file:///project/with%20space"]),
        (".", ["deepspeed @ file:///project"]),
        ("./ds", ["deepspeed @ file:///project/ds"]),
        ("git+https://x.org/ds@main", [f"deepspeed @ git+https://x.org/ds@{COMMIT}"]),
        ("https://x.org/ds.git", [f"deepspeed @ git+https://x.org/ds.git@{COMMIT}"]),
        ("git+ssh://git@x.org/ds@v1.2", [f"deepspeed @ git+ssh://git@x.org/ds@{COMMIT}"]),
        ("git+file:///srv/ds@feature/x", [f"deepspeed @ git+file:///srv/ds@{COMMIT}"]),
    ],
)
def test_what_a_request_stands_for(text: str, requirements: list[str | None]) -> None:
    assert resolved(text) == requirements


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.2.2", "0.17.6"),  # the newest of those that work, not of those that were tried
        ("2.6.0", "0.18.1"),
        ("2.3.1", "0.17.6"),  # not measured: by the newest measured torch below it
        ("2.2.3", "0.17.6"),
        ("9.0", "0.18.1"),
    ],
)
def test_auto_is_the_newest_that_was_measured_to_work(torch: str, expected: str) -> None:
    assert resolved("auto", TorchBuild(torch, f"torch=={torch}")) == [f"deepspeed=={expected}"]


def test_auto_of_a_nightly_is_judged_by_the_newest_torch() -> None:
    assert resolved("auto", TorchBuild("nightly", "torch", nightly=True)) == ["deepspeed==0.18.1"]


def test_auto_says_where_nothing_is_known_or_nothing_works() -> None:
    assert "no DeepSpeed was measured with torch 2.0.1 or an older" in unresolvable(
        "auto", TorchBuild("2.0.1", "torch==2.0.1")
    )
    # Not by the torch below: 2.1.2 was measured, and nothing works with it.
    assert "measured with torch 2.1.2 none builds, imports and offers Ulysses" in unresolvable(
        "auto", TorchBuild("2.2.0", "torch==2.2.0")
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.17.3", "there is no deepspeed 0.17.3; of 0.17 there is 0.17.0, 0.17.6"),
        ("0.99.1", "there is no deepspeed 0.99.1; the package index has 0.9.5 to 0.18.1"),
        (">=1", "there is no deepspeed >=1; the package index has 0.9.5 to 0.18.1"),
        ("path:missing", "there is no directory missing"),
        ("git+https://x.org/ds@gone", "has no branch and no tag gone"),
    ],
)
def test_what_does_not_exist(text: str, words: str) -> None:
    assert words in unresolvable(text)


def test_an_empty_index() -> None:
    assert "offers no release" in unresolvable("latest", where=sources(available=("0.3.1.dev8",)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not understood"),
        ("auot", "did you mean auto?"),
        ("0", "a minor (0.17)"),
        ("0.18.5+abc", "write the directory it was built from"),
        ("===0.18", "compares texts"),
        (">=0.16,<<1", "is not a range"),
        ("path:", "names no directory"),
        ("dist/deepspeed-0.18.5.tar.gz", "write the directory of its source"),
        ("git+http://x.org/ds", "git+https://...@main"),
        ("https://x.org/deepspeed-0.18-py3-none-any.whl", "not a git repository"),
        ("git+https://user:secret@x.org/ds", "put them into ~/.netrc"),
        ("git+https://token@x.org/ds", "put them into ~/.netrc"),
        ("git+https://x.org/ds@a;b", "is not understood"),
        ("git+https://x.org/ds@--upload-pack=x", "is not understood"),
        ("git+https://x.org/ds@-main", "is not understood"),
        ("git+https://x.org/ds#subdirectory=x", "more in it than a repository"),
        ("git@github.com:x/ds.git", "write git+ssh://git@github.com/x/ds.git"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    assert words in refused(text)


def test_a_url_s_credentials_are_not_repeated() -> None:
    assert "secret" not in refused("git+https://user:secret@x.org/ds")


def test_only_what_names_releases_needs_the_index() -> None:
    assert [parse(text).needs_index for text in ("none", "auto", ".", "git+https://x.org/a")] == [False] * 4
    assert [parse(text).needs_index for text in ("latest", "0.17", ">=0.17", "0.17.6")] == [True] * 4
    assert [parse(text).is_open for text in ("latest", "0.17", ">=0.17", "0.17.6")] == [True, True, True, False]


def test_each_deepspeed_once_under_the_first_request() -> None:
    requests = [parse(text) for text in ("auto", "0.17.6", "0.99", "path:x", "x/", "none", ">=0.16,<0.18")]
    found = deepspeed_requests.resolve_all(requests, TORCH, sources())
    assert [(one.request.text, one.build.label if one.build else one.problem) for one in found] == [
        ("auto", "0.17.6"),
        ("0.99", "there is no deepspeed 0.99; the package index has 0.9.5 to 0.18.1"),
        ("path:x", "checkout"),
        ("none", "none"),
        (">=0.16,<0.18", "0.16.9"),
    ]


def test_without_a_torch_nothing_is_resolved() -> None:
    request = parse("git+https://x.org/ds")
    assert deepspeed_requests.resolve_all([request], None, sources()) == [Resolution(request)]


@settings(deadline=None)
@given(st.text() | st.from_regex(r"\A(git\+)?(https|ssh|file)://[!-~]{0,40}\Z"))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        request = parse(text)
    except InvalidRequest:
        return
    assert isinstance(request, DeepSpeedRequest)
    assert not request.place.startswith("-")
    assert not (request.reference or "").startswith("-")


@settings(deadline=None)
@given(st.sets(st.from_regex(r"\A0\.[0-9]\.[0-9]\Z"), min_size=1), st.from_regex(r"\A(>=|<|~=|!=|==)0\.[0-9]\.[0-9]\Z"))
def test_a_range_gives_the_newest_of_each_minor_that_is_in_it(available: set[str], text: str) -> None:
    request = parse(text)
    try:
        builds = deepspeed_requests.resolve(request, TORCH, sources(available=tuple(available)))
    except Unresolvable:
        builds = []
    versions = [Version(build.label) for build in builds]
    assert versions == sorted(versions)
    inside = {Version(one) for one in available if request.specifier is None or Version(one) in request.specifier}
    if request.version is not None:
        inside &= {request.version}
    assert set(versions) == {max(v for v in inside if v.minor == minor) for minor in {v.minor for v in inside}}
