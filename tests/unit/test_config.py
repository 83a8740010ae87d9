import json
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix import config, config_file
from matrix.config import Config, Exclusion, NothingLeft, Options
from matrix.config_file import ConfigError
from matrix.runner_labels import RunsOn
from runner import suite
from runner.suite import SuiteDescription

SUITE = suite.load()

DESIGNED_KEYS = [
    "torch",
    "deepspeed",
    "lanes",
    "world-size",
    "topologies",
    "suites",
    "losses",
    "tests",
    "tests-require",
    "environment",
    "container",
    "runners",
    "exclude",
    "known-issues",
    "fail-on",
]
DEFAULTS = resources.files("matrix").joinpath("data/defaults.yaml").read_text(encoding="utf-8")
WITHOUT_DEEPSPEED = replace(SUITE, cases=tuple(case for case in SUITE.cases if case.suite in ("collectives", "loss")))
SCHEMA = json.loads(resources.files("matrix").joinpath("data/config.schema.json").read_text(encoding="utf-8"))


def read(text: str, suite: SuiteDescription = SUITE) -> Config:
    return config.parse(text, "sp-compat.yml", suite)


def refusal(text: str, suite: SuiteDescription = SUITE) -> str:
    with pytest.raises(ConfigError) as error:
        read(text, suite)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def with_options(text: str = "", **options: Any) -> Config:
    return config.with_options(read(text), Options(**options), SUITE)


def refused_option(text: str = "", **options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        with_options(text, **options)
    return str(error.value)


def test_the_keys_are_those_of_the_design_here_and_in_the_schema_and_in_the_defaults() -> None:
    defaults = yaml.safe_load(DEFAULTS)
    assert list(config_file.KEYS) == DESIGNED_KEYS
    assert list(SCHEMA["properties"]) == DESIGNED_KEYS
    assert list(defaults) == DESIGNED_KEYS
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(defaults, SCHEMA)


def test_the_words_of_the_schema_are_those_of_the_program() -> None:
    properties = SCHEMA["properties"]
    assert properties["environment"]["enum"] == list(config_file.ENVIRONMENTS)
    assert properties["fail-on"]["enum"] == list(config_file.FAIL_ON)
    assert list(properties["runners"]["properties"]) == list(config_file.RUNNER_CLASSES)
    assert properties["lanes"]["oneOf"][0]["enum"] == ["auto", *SUITE.lanes]
    assert properties["lanes"]["oneOf"][1]["items"]["enum"] == list(SUITE.lanes)
    assert SCHEMA["$defs"]["exclusion"]["oneOf"][1]["properties"]["lane"]["enum"] == list(SUITE.lanes)
    words = SCHEMA["$defs"]["suite"]["enum"]
    assert words == [*yaml.safe_load(DEFAULTS)["suites"], config.USER_SUITE]
    assert {case.suite for case in SUITE.cases} <= set(words)
    sizes = properties["world-size"]
    assert (sizes["minimum"], sizes["maximum"]) == (config_file.WORLD_SIZES[0], config_file.WORLD_SIZES[-1])


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "null"])
def test_without_a_configuration_the_defaults_hold(text: str) -> None:
    found = read(text)
    assert found == config.default(SUITE)
    assert found.torch == ("2.1", "2.2", "2.3", "latest")
    assert found.deepspeed == ("auto",)
    assert found.topologies == ("sp2-contiguous", "sp2-strided", "sp4")
    assert found.suites == tuple(dict.fromkeys(case.suite for case in SUITE.cases))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("ubuntu-latest", "ubuntu-latest"),
        ("[ubuntu-latest]", "ubuntu-latest"),
        ("[self-hosted, gpu]", ["self-hosted", "gpu"]),
        ("{group: gpus}", {"group": "gpus"}),
        ("{group: gpus, labels: h100}", {"group": "gpus", "labels": ["h100"]}),
    ],
)
def test_any_form_of_a_runners_label_becomes_what_runs_on_takes(written: str, value: object) -> None:
    found = read(f"runners: {{nccl: {written}}}").runners["nccl"]
    assert found
    assert found.value == value


def test_the_defaults_are_of_the_suites_that_there_are() -> None:
    found = read("", WITHOUT_DEEPSPEED)
    assert found.suites == ("collectives", "loss")
    assert found.deepspeed == ("none",)


@pytest.mark.parametrize(
    ("options", "deepspeed"),
    [
        ({"suites": ("loss",)}, "none"),
        ({"suites": ("loss", "attention")}, "auto"),
        ({"cases": ("loss/*",)}, "none"),
        ({"suites": ("loss", "attention"), "lanes": ("nccl-path",)}, "none"),  # in which nothing of attention runs
        ({"suites": ("loss", "attention"), "lanes": ("gloo",)}, "auto"),
        ({"suites": ("loss",), "deepspeed": ("auto",)}, "auto"),
        ({"suites": ("attention",), "deepspeed": ("none",)}, "none"),
    ],
)
def test_deepspeed_is_installed_where_a_case_is_about_it_or_it_was_asked_for(
    options: dict[str, Any], deepspeed: str
) -> None:
    assert with_options(**options).deepspeed == (deepspeed,)


def test_a_whole_configuration() -> None:
    found = read(
        """
        torch: ["2.2", latest]
        deepspeed: [none, "0.18.5", {path: .}, {path: ds}, "git+https://github.com/deepspeedai/DeepSpeed@main"]
        lanes: [gloo, nccl-path]
        world-size: 4
        topologies: [sp4, [[0, 3], [1, 2]], "0,1"]
        suites: loss
        losses: [my_pkg.training:sp_loss]
        tests: [tests/sp, "tests/test_x.py::test_y"]
        tests-require: [einops, "pytest-timeout>=2"]
        environment: venv
        runners: {nccl: [self-hosted, gpu]}
        exclude: ["loss/all_gather_*", "gloo:all_gather", {torch: "2.2", lane: nccl-path, case: "loss/*"}]
        known-issues: .sp-compat/known.yml
        fail-on: never
        """
    )
    assert found.deepspeed[2:4] == ("path:.", "path:ds")
    assert found.topologies == ("sp4", "0,3/1,2", "0,1")
    assert found.suites == ("loss", "user", "tests")
    assert found.tests == ("tests/sp", "tests/test_x.py::test_y")
    assert found.beside_tests == ("einops", "pytest-timeout>=2")
    assert found.runners == {"cpu": RunsOn(("ubuntu-latest",)), "nccl": RunsOn(("self-hosted", "gpu"))}
    assert found.exclude[1] == Exclusion("all_gather", lane="gloo")
    assert [exclusion.pattern for exclusion in found.exclude] == [
        "loss/all_gather_*",
        "gloo:all_gather",
        "nccl-path:loss/*",
    ]
    assert (found.known_issues, found.fail_on) == (".sp-compat/known.yml", "never")


def test_the_design_s_example_is_read_once_the_suites_exist() -> None:
    text = 'suites: [collectives, loss, attention, engine]\ntests: ["tests/sp"]\ndeepspeed: [auto]\n'
    assert read(text).suites == ("collectives", "loss", "attention", "engine", "tests")
    assert "sp-compat.yml:1: suites: this version of sp-compat has no suite 'attention'" in refusal(
        text, WITHOUT_DEEPSPEED
    )


@pytest.mark.parametrize(
    ("options", "suites", "deepspeed"),
    [
        ({}, ("loss", "tests"), "auto"),  # own tests are about DeepSpeed, as far as anybody knows
        ({"suites": ("loss",)}, ("loss",), "none"),
        ({"suites": ("tests",)}, ("tests",), "auto"),
        ({"cases": ("all_gather_mean",)}, ("loss", "tests"), "none"),
        ({"suites": ("tests",), "tests": ("other",), "deepspeed": ("none",)}, ("tests",), "none"),
        ({"lanes": ("nccl-path",)}, ("loss", "tests"), "none"),
    ],
)
def test_own_tests_are_run_beside_the_suites_unless_those_alone_are_asked_for(
    options: dict[str, Any], suites: tuple[str, ...], deepspeed: str
) -> None:
    found = with_options("suites: [loss]\ntests: [tests/sp]\n", **options)
    assert (found.suites, found.deepspeed) == (suites, (deepspeed,))


REFUSED = [
    ("\ntorch: [2.10]", ":2: torch: found '2.10'", 'which is 2.1: write "2.10" in quotes'),
    ("torch:\n  - latest\n  - 2.2\n", ":3: torch: found '2.2'", 'write "2.2" in quotes'),
    ("torch: 2", ":1: torch", 'write "2" in quotes'),
    ("torch: []", ":1: torch", "the list is empty"),
    ("torch: [null]", ":1: torch", "allowed is a list of texts"),
    ("torch: {a: b}", ":1: torch: found a mapping", "allowed is a list of texts"),
    ("torch: [latset]", ":1: torch", "did you mean latest?"),
    ("torch: ['2.2', '2.3.0a0+nv24.03']", ":1: torch", "environment: current"),
    ("torch: ['1.13']", ":1: torch", "older than 2.0"),
    ("trch: ['2.2']", ":1: 'trch' is not a key", "did you mean torch?"),
    ("fail-on: any\nworld_size: 4", ":2: 'world_size' is not a key", "did you mean world-size?"),
    ("torch: ['2.2']\nlanes: auto\ntorch: ['2.3']", ":3: the key torch is there twice", "keep one"),
    ("- torch", ":1: found a list", "a mapping with the keys torch, deepspeed"),
    ("torch: ['2.2'", ":1", "is not YAML"),
    ("torch: &a [*a]", ":1: torch", "found a list"),
    ("a: 1\n---\nb: 2", ":2", "is not YAML"),
    ("torch: [!!python/object:os.system x]", ":1: torch", "allowed is a list of texts"),
    ("\x00", "", "is not YAML"),
    ("[" * 5000, "", "nested too deeply"),
    ("deepspeed: [0.15]", ":1: deepspeed", 'write "0.15" in quotes'),
    ("deepspeed: [~]", ":1: deepspeed", "write none"),
    ("deepspeed: [nnoe]", ":1: deepspeed", "did you mean none?"),
    ("deepspeed: [{pth: .}]", ":1: deepspeed: 'pth' is not a key", "did you mean path?"),
    ("deepspeed: []", ":1: deepspeed", "none for no DeepSpeed"),
    ("lanes: [glo]", ":1: lanes: found 'glo'", "did you mean gloo?"),
    ("lanes: []", ":1: lanes", "the list is empty"),
    ("world-size: 1", ":1: world-size: found 1", "from 2 to 8"),
    ("world-size: 16", ":1: world-size: found 16", "from 2 to 8"),
    ("world-size: '4'", ":1: world-size: found '4'", "from 2 to 8"),
    ("world-size: 4.0", ":1: world-size", "from 2 to 8"),
    ("world-size: yes", ":1: world-size", "from 2 to 8"),
    ("topologies:\n - sp4\n - sp2-stridid", ":3: topologies", "contiguous, strided, offset"),
    ("topologies: [[0, 3], [1, 2]]", ":1: topologies", "[[[0, 3], [1, 2]]]"),
    ("topologies: [[[0, 3], [1, 9]]]", ":1: topologies", "names rank 9"),
    ("topologies: [[[0, 3], [1, x]]]", ":1: topologies: found 'x'", "a list of groups of ranks"),
    ("topologies: [[[0, 3], []]]", ":1: topologies", "a list of groups of ranks"),
    ("world-size: 2\ntopologies: [sp4]", ":2: topologies", "has 2 ranks"),
    ("suites: [colectives]", ":1: suites", "did you mean collectives?"),
    ("suites: [engin]", ":1: suites: this version of sp-compat has no suite 'engin'", "collectives, loss, "),
    ("suites: [user]", ":1: suites", "own losses, and none is named"),
    ("suites: []", ":1: suites", "the list is empty"),
    ("environment: current\ntorch: ['2.13.0']", ":2: torch", "leave out torch"),
    (f"world-size: {'9' * 5000}", ":1: world-size", "a whole number from 2 to 8"),
    ("losses: [my_pkg.training]", ":1: losses: found 'my_pkg.training'", "package.module:function"),
    ("losses: ['a-b:c']", ":1: losses", "package.module:function"),
    ("suites: [tests]", ":1: suites", "none are named; add --tests PATH"),
    ("tests: [tests/a, --cov]", ":1: tests: found '--cov'", "the path of a file or a directory"),
    ("tests: [a]\nsuites: [tests]\nlanes: [nccl-path]", ":3: lanes", "no case of tests runs in nccl-path"),
    ("tests: [a]\nsuites: [tests]\nexclude: [tests/b]", ":3: exclude", "excludes no case"),
    ("tests-require: ['a b']", ":1: tests-require: found 'a b'", "write a requirement as pip takes it"),
    ("environment: docker", ":1: environment: found 'docker'", "auto, container, venv, current"),
    ("environment: [venv]", ":1: environment: found a list", "auto, container, venv, current"),
    ("container: docker", ":1: container", "keys base, registry"),
    ("container: {image: x}", ":1: container: 'image' is not a key", "allowed are base, registry"),
    ("container: {base: [x]}", ":1: container.base: found a list", "an image such as"),
    ("container: {base: '--privileged'}", ":1: container", "'--privileged' is no name of an image"),
    ("container: {base: 'python:{version}'}", ":1: container", "{python} and {torch} stand for a leg's"),
    ("container: {registry: ghcr.io/Owner/x}", ":1: container", "'ghcr.io/Owner/x' is no name of a repository"),
    ("runners: ubuntu", ":1: runners", "keys cpu, nccl"),
    ("runners: {gpu: [x]}", ":1: runners: 'gpu' is not a key", "allowed are cpu, nccl"),
    ("runners: {cpu: [1]}", ":1: runners.cpu", 'write "1" in quotes'),
    ("runners: {cpu: {labels: [x]}}", ":1: runners.cpu: found a mapping", "{group: NAME, labels: [LABEL]}"),
    ("runners: {cpu: {group: [x]}}", ":1: runners.cpu: found a list", "{group: NAME, labels: [LABEL]}"),
    ("runners: {cpu: {pool: x}}", ":1: runners.cpu: 'pool' is not a key", "allowed are group, labels"),
    ("exclude: [loss/all_gather_man]", ":1: exclude", "did you mean loss/all_gather_mean?"),
    ("exclude: ['nccl-path:functional_all_gather']", ":1: exclude", "excludes no case"),
    ("exclude: [{lane: glo}]", ":1: exclude", "did you mean gloo?"),
    ("exclude: [{topology: sp4}]", ":1: exclude: 'topology' is not a key", "torch, lane, case"),
    ("exclude: [{torch: rubbish}]", ":1: exclude", "is not understood"),
    ("exclude: [{}]", ":1: exclude", "allowed are patterns"),
    ("known-issues: [a]", ":1: known-issues: found a list", "the path of a file"),
    ("fail-on: regresion", ":1: fail-on", "did you mean regression?"),
]


@pytest.mark.parametrize(("text", "where", "words"), REFUSED)
def test_an_error_says_where_and_what_to_write(text: str, where: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"sp-compat.yml{where}")
    assert words in message


def valid(text: str) -> bool:
    try:
        read(text)
    except (ConfigError, NothingLeft):
        return False
    return True


SHAPES = st.one_of(
    st.sampled_from(
        ["2.2", "latest", "none", "auto", "gloo", "venv", "any", "loss", "sp4", "a.b:c", "all_gather", " "]
    ),
    st.sampled_from([None, True, 2, 4, 2.5, [], {}, [[0, 3], [1, 2]], {"path": "."}, {"cpu": "x"}, {"lane": "gloo"}]),
)


@settings(deadline=None)
@given(st.sampled_from(DESIGNED_KEYS), st.one_of(SHAPES, st.lists(SHAPES, max_size=2)))
def test_whatever_the_schema_refuses_is_refused_on_load(key: str, value: object) -> None:
    try:
        jsonschema.validate({key: value}, SCHEMA)
    except jsonschema.ValidationError:
        assert not valid(yaml.safe_dump({key: value}))


@pytest.mark.parametrize(
    "text",
    [
        "torch: latest",
        "lanes: auto",
        "lanes: [auto]",
        "lanes: nccl-path",
        "topologies: []",
        "topologies: sp4",
        "topologies: [[[0, 3], [1, 2]]]",
        "losses: [a.b:c]\nsuites: user",
        "exclude: loss/*",
        "exclude: [{torch: '2.2'}, {lane: gloo}]",
        "runners: {cpu: ubuntu-latest, nccl: []}",
        "runners: {cpu: {group: large}, nccl: {group: gpus, labels: [h100, x4]}}",
        "deepspeed: {path: .}",
        "known-issues: null",
        "container: {base: 'pytorch/pytorch:{torch}-cuda12.1-cudnn9-runtime', registry: null}",
        "container: {registry: 'localhost:5000/owner/sp-compat'}",
    ],
)
def test_what_is_read_is_valid_by_the_schema(text: str) -> None:
    assert valid(text)
    jsonschema.validate(yaml.safe_load(text), SCHEMA)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    valid(text)


def test_options_replace_what_the_file_says() -> None:
    found = with_options("torch: ['2.1']\nfail-on: any", torch=("2.2.2", "2.3.1"), lanes=("nccl-path",), thorough=True)
    assert found.torch == ("2.2.2", "2.3.1")
    assert found.lanes == ("nccl-path",)
    assert found.thorough
    assert found.fail_on == "any"


def test_no_option_changes_nothing() -> None:
    assert with_options("torch: ['2.1']\nlosses: [a:b]") == read("torch: ['2.1']\nlosses: [a:b]")


def test_a_loss_alone_adds_its_suite_and_the_suite_alone_runs_only_it() -> None:
    assert with_options(losses=("a.b:c",)).suites == (*with_options().suites, "user")
    assert with_options(losses=("a.b:c",), suites=("user",)).suites == ("user",)
    assert with_options("losses: ['a.b:c']", suites=("loss",)).suites == ("loss",)


def test_topologies_follow_the_world_size_unless_named() -> None:
    assert with_options(world_size=2).topologies == ("sp2",)
    assert with_options(world_size=8).topologies == ("sp2-contiguous", "sp2-strided", "sp8")
    assert "--topology" not in refused_option("topologies: [sp4]", world_size=2)
    assert "sp-compat.yml:1: topologies: topology 'sp4'" in refused_option("topologies: [sp4]", world_size=2)
    assert with_options("topologies: [sp4]", world_size=2, topologies=("sp2",)).topologies == ("sp2",)


@pytest.mark.parametrize(
    ("options", "where", "words"),
    [
        ({"cases": ("all_gathr",)}, "--case: 'all_gathr'", "did you mean all_gather?"),
        ({"cases": ("loss/all_gather_man",)}, "--case", "did you mean loss/all_gather_mean?"),
        ({"cases": ("all_gather",), "suites": ("loss",)}, "--case: 'all_gather' is no case of loss", ""),
        ({"cases": ("functional_*",), "lanes": ("nccl-path",)}, "--case", "runs in the lanes gloo, nccl"),
        ({"suites": ("atention",)}, "--suite: this version of sp-compat has no suite 'atention'", "mean attention?"),
        ({"lanes": ("ncl",)}, "--lane", "did you mean nccl?"),
        ({"topologies": ("sp3-contiguous",)}, "--topology", "sp3-offset can"),
        ({"parameters": ("tokns=equal",)}, "--parameter", "did you mean tokens?"),
        ({"parameters": ("tokens=uneqal",)}, "--parameter", "did you mean unequal?"),
        ({"parameters": ("root=4",)}, "--parameter", "allowed are 0, 1, 2, 3"),
        ({"parameters": ("tokens=equal", "root=1")}, "--parameter", "no selected case has tokens=equal, root=1"),
        (
            {"parameters": ("group_backend=nccl",), "lanes": ("gloo",)},
            "--parameter",
            "no selected case has a parameter",
        ),
        ({"parameters": ("tokens",)}, "--parameter", "KEY=VALUE"),
        ({"losses": ("pkg.module",)}, "--loss", "package.module:function"),
        ({"torch": ("garbage",)}, "--torch: torch 'garbage'", "a minor (2.2)"),
        ({"torch": ("2.2",), "environment": "current"}, "--environment current", "leave out --torch"),
        ({"environment": "docker"}, "--environment", "auto, container, venv, current"),
        ({"fail_on": "somtimes"}, "--fail-on", "regression, unexpected, any, never"),
        ({"world_size": 1}, "--world-size", "from 2 to 8"),
        ({"exclude": ("nothing",)}, "--exclude", "excludes no case"),
    ],
)
def test_an_option_that_selects_nothing_is_refused(options: dict[str, Any], where: str, words: str) -> None:
    message = refused_option(**options)
    assert message.startswith(where)
    assert words in message


def test_a_parameter_is_kept_as_a_pair() -> None:
    assert with_options(parameters=("contiguous=False", "dtype=bfloat16")).parameters == (
        ("contiguous", "False"),
        ("dtype", "bfloat16"),
    )


def test_options_beside_environment_current() -> None:
    assert "leave out --torch" in refused_option("environment: current", torch=("2.2",))
    assert with_options("environment: current", torch=("2.2",), environment="venv").torch == ("2.2",)
    assert with_options("torch: ['2.2']", environment="current").environment == "current"


@pytest.mark.parametrize(
    "exclude",
    ["exclude: '*'", "suites: [collectives, loss]\nexclude: [collectives/*, loss/*]", "exclude: [{case: '*'}]"],
)
def test_nothing_left(exclude: str) -> None:
    with pytest.raises(NothingLeft) as error:
        read(exclude)
    assert error.value.exit_code == 3


def test_excluding_every_lane_that_is_left_leaves_nothing() -> None:
    with pytest.raises(NothingLeft):
        with_options("exclude: ['gloo:*']", lanes=("gloo",))


def test_the_colon_of_an_own_loss_is_not_a_lane() -> None:
    found = with_options(losses=("gloo_like.m:f",), exclude=("user/gloo_like.m:f",))
    assert found.exclude == (Exclusion("user/gloo_like.m:f"),)
