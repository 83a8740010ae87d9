from pathlib import PurePath, PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from matrix import releases
from matrix.releases import AvailableRelease
from matrix.requests import InvalidRequest, Unresolvable
from matrix.torch_requests import (
    parse,
    pythons_of_wheel,
    resolve,
    resolve_all,
    wheel_pythons,
)

TABLE = releases.bundled()
INDEX = (
    *TABLE.available(),
    AvailableRelease("1.13.1", ("3.10",)),
    AvailableRelease("2.13.0+cpu", ("3.11",)),
    AvailableRelease("2.5.2", ("3.11",), yanked=True),
    AvailableRelease("2.6.1", ()),
    AvailableRelease("2.16.0rc2", ("3.12",)),
)
WHEEL = "torch-2.4.0+cu121-cp311-cp311-linux_x86_64.whl"


def locate(written: str) -> PurePath | None:
    return PurePosixPath("/project") / written


def requirements(text: str) -> list[str]:
    return [build.requirement for build in resolve(parse(text), INDEX, TABLE, locate)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.2", ["torch==2.2.2"]),
        (" 2.2 ", ["torch==2.2.2"]),
        ("2.2.2", ["torch==2.2.2"]),
        ("==2.2.2", ["torch==2.2.2"]),
        ("2.2.0.0", ["torch==2.2.0"]),
        ("2.2.x", ["torch==2.2.2"]),
        ("2.1.*", ["torch==2.1.2"]),
        (">=2.1,<2.4", ["torch==2.1.2", "torch==2.2.2", "torch==2.3.1"]),
        (">=2.1, <2.3, !=2.2.2", ["torch==2.1.2", "torch==2.2.1"]),
        ("~=2.14", ["torch==2.14.1", "torch==2.15.0"]),
        ("latest", ["torch==2.15.0"]),
        ("nightly", ["torch"]),
        ("2.6.0.dev20241112+cpu", ["torch==2.6.0.dev20241112+cpu"]),
        ("2.4.0+cu118", ["torch==2.4.0+cu118"]),
        ("2.4+cu118", ["torch==2.4.1+cu118"]),
        ("2.13.0+cpu", ["torch==2.13.0+cpu"]),
        ("2.13.0", ["torch==2.13.0"]),
        ("2.16.0rc2", ["torch==2.16.0rc2"]),
        (WHEEL, ["torch @ file:///project/torch-2.4.0%2Bcu121-cp311-cp311-linux_x86_64.whl"]),
        (f"file:///a%20b/{WHEEL}", ["torch @ file:///a%20b/torch-2.4.0%2Bcu121-cp311-cp311-linux_x86_64.whl"]),
        (f"https://example.org/{WHEEL}#sha256=0a", [f"torch @ https://example.org/{WHEEL}#sha256=0a"]),
    ],
)
def test_what_a_request_stands_for(text: str, expected: list[str]) -> None:
    assert requirements(text) == expected


def test_the_build_that_pypi_has_is_the_ordinary_wheel_where_builds_have_no_label() -> None:
    for text, labelled, ordinary in [
        ("2.4.0+cu121", "torch==2.4.0+cu121", "torch==2.4.0"),
        ("2.4+cu121", "torch==2.4.1+cu121", "torch==2.4.1"),
        ("2.4.0+cu118", "torch==2.4.0+cu118", "torch==2.4.0+cu118"),
        ("2.13.0+cu130", "torch==2.13.0+cu130", "torch==2.13.0+cu130"),  # an installer would prefer the 2.13.0+cpu here
    ]:
        for wanted, by_label in ((labelled, True), (ordinary, False)):
            [build] = resolve(parse(text), INDEX, TABLE, locate, by_label=by_label)
            assert build.requirement == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2.3.0a0+nv24.03", "environment: current"),
        ("2.4.0a0+07cecf4168.nv24.05", "environment: current"),
        ("1.13.1", "older than 2.0"),
        ("1.x", "older than 2.0"),
        ("==1.13", "older than 2.0"),
        ("2", "a minor (2.2)"),
        ("", "a minor (2.2)"),
        ("garbage", "a minor (2.2)"),
        ("lateset", "did you mean latest?"),
        ("2.2\n2.3", "is not understood"),
        (">=2.1,<<2.4", "is not a range"),
        ("===2.2", "compares texts"),
        ("git+https://github.com/pytorch/pytorch", "https or file URL of a wheel"),
        (f"http://example.org/{WHEEL}", "https or file URL of a wheel"),
        (f"https://user:secret@example.org/{WHEEL}", "~/.netrc"),
        ("numpy-2.0.0-cp311-cp311-linux_x86_64.whl", "a wheel of numpy"),
        ("my-build.whl", "is not called like a wheel"),
        ("torch-2.4.0.tar.gz", "is not called like a wheel"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(text)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2.99", "the package index has 2.0.0 to 2.15.0"),
        ("2.2.9", "of 2.2 there is 2.2.0, 2.2.1, 2.2.2"),
        (">=3", "there is no torch >=3"),
        ("<2", "there is no torch <2"),
        ("2.5.2", "was withdrawn"),
        ("2.6.1", "has no wheel for this machine"),
        ("2.4.0+cu130", "was not built for cu130; it was for cu118, cu121, cu124"),
    ],
)
def test_what_does_not_exist_is_unresolvable(text: str, words: str) -> None:
    with pytest.raises(Unresolvable) as refusal:
        requirements(text)
    assert words in str(refusal.value)


def test_a_wheel_that_is_not_there() -> None:
    with pytest.raises(Unresolvable, match="there is no file 'dist/torch"):
        resolve(parse(f"dist/{WHEEL}"), INDEX, TABLE, lambda written: None)


def test_an_empty_index() -> None:
    with pytest.raises(Unresolvable, match="no release of torch"):
        resolve(parse("latest"), (), TABLE, locate)


def test_each_build_once_under_its_first_request() -> None:
    requests = [parse(text) for text in ("2.2", "2.99", "2.2.2", ">=2.2,<2.4", "2.99")]
    resolutions = resolve_all(requests, INDEX, TABLE, locate)
    assert [(one.request.text, one.build and one.build.version) for one in resolutions] == [
        ("2.2", "2.2.2"),
        ("2.99", None),
        (">=2.2,<2.4", "2.3.1"),
    ]
    assert resolutions[1].problem


def test_pythons_of_a_wheel() -> None:
    assert pythons_of_wheel("torch-2.4.0-cp310-cp310-linux_x86_64.whl") == ("3.10",)
    assert pythons_of_wheel("torch-1.0.0-cp37-cp37m-linux_x86_64.whl") == ("3.7",)
    assert pythons_of_wheel("torch-2.9.0-cp313-cp313t-linux_x86_64.whl") == ()
    [build] = resolve(parse(WHEEL), INDEX, TABLE, locate)
    assert wheel_pythons(build) == ("3.11",)
    assert build.version == "2.4.0"


versions = st.builds(lambda minor, patch: f"2.{minor}.{patch}", st.integers(0, 30), st.integers(0, 9))
indexes = st.lists(
    st.builds(
        AvailableRelease,
        st.one_of(versions, versions.map(lambda v: v + "rc1"), versions.map(lambda v: v + "+cpu")),
        st.sampled_from([(), ("3.10",), ("3.11", "3.12")]),
        st.booleans(),
    ),
    min_size=1,
)
ranges = st.builds(
    lambda low, width: (low, low + width, f">=2.{low},<2.{low + width}"), st.integers(0, 30), st.integers(1, 30)
)


@settings(deadline=None)
@given(indexes, ranges)
def test_a_range_gives_the_newest_patch_of_each_minor_in_it(
    index: list[AvailableRelease], bounds: tuple[int, int, str]
) -> None:
    low, high, text = bounds
    installable = {Version(Version(r.version).public) for r in index if r.pythons and not r.yanked}
    wanted = {v for v in installable if low <= v.minor < high and not v.is_prerelease}
    newest = sorted(max(v for v in wanted if v.minor == minor) for minor in {v.minor for v in wanted})
    if not newest:
        with pytest.raises(Unresolvable):
            resolve(parse(text), index, TABLE, locate)
    else:
        assert [Version(build.version) for build in resolve(parse(text), index, TABLE, locate)] == newest


@settings(deadline=None)
@given(indexes, st.lists(st.sampled_from(["2.1", "2.2", "latest", ">=2.0", "2.x", "2.3.0", "2.10", "nightly"])))
def test_no_build_twice_and_no_request_lost(index: list[AvailableRelease], texts: list[str]) -> None:
    resolutions = resolve_all([parse(text) for text in texts], index, TABLE, locate)
    builds = [one.build.requirement for one in resolutions if one.build]
    assert len(set(builds)) == len(builds)
    assert all((one.build is None) != (one.problem is None) for one in resolutions)
    assert bool(resolutions) == bool(texts)


@settings(deadline=None)
@given(st.one_of(st.text(), st.from_regex(r"[<>=~!]*[0-9v.x*+a-z,! ]{1,20}", fullmatch=True)))
@example("2.2+")
@example("=" * 5000)
@example("file://[/torch-2.4.0-cp311-cp311-linux_x86_64.whl")
@example(">=2.1+cu121")
@example("~=2")
@example("\ud800.whl")
def test_any_text_is_understood_or_refused_in_one_line(text: str) -> None:
    sentence = ""
    try:
        resolve(parse(text), INDEX, TABLE, locate)
    except (InvalidRequest, Unresolvable) as refusal:
        sentence = str(refusal)
    assert sentence.isprintable()
    assert len(sentence) < 400
