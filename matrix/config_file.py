"""The text of `sp-compat.yml` as values, each with the line it was written in. Of shapes only, not of what exists.

YAML turns much into numbers, dates and truth values that was meant as text. So values are taken from the document's
nodes, which still know how they were written.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from matrix import deepspeed_requests, torch_requests
from matrix.runner_labels import RunsOn

ENVIRONMENTS = ("auto", "container", "venv", "current")
FAIL_ON = ("regression", "unexpected", "any", "never")
RUNNER_CLASSES = ("cpu", "nccl")
CONTAINER_KEYS = ("base", "registry")
WORLD_SIZES = range(2, 9)
WORLD_SIZE = f"a whole number from {WORLD_SIZES[0]} to {WORLD_SIZES[-1]}"
INTEGER = "tag:yaml.org,2002:int"
FLOAT = "tag:yaml.org,2002:float"
NULL = "tag:yaml.org,2002:null"
TEXT = "tag:yaml.org,2002:str"


class ConfigError(Exception):
    """The configuration, or an option in its place, cannot be used; the message is for the user."""

    exit_code = 2


@dataclass(frozen=True)
class Document:
    """The values by their keys, and where each was written: one place for a value, one for each item of a list."""

    values: Mapping[str, Any]
    origins: Mapping[str, tuple[str, ...]]


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no word is near."""
    near = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean {near[0]}?" if near else ""


def read(text: str, name: str) -> Document:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: this is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: this is not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{name}: this is not a configuration: it is nested too deeply") from None
    if root is None or _is(root, NULL):
        return Document({}, {})
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{name}:1: found {_found(root)}; allowed is a mapping with the keys {', '.join(KEYS)}")
    values: dict[str, Any] = {}
    origins: dict[str, tuple[str, ...]] = {}
    for key, node in _entries(root, KEYS, lambda key_node: f"{name}:{key_node.start_mark.line + 1}").items():
        value = _Value(name, key, node)
        values[key] = _READERS[key](value)
        origins[key] = tuple(value.at(item) for item in value.items()) or (value.at(node),)
    return Document(values, origins)


@dataclass(frozen=True)
class _Value:
    """What stands under a key."""

    document: str
    key: str
    node: Node

    def at(self, node: Node) -> str:
        return f"{self.document}:{node.start_mark.line + 1}: {self.key}"

    def refuse(self, node: Node, allowed: str) -> NoReturn:
        raise ConfigError(f"{self.at(node)}: found {_found(node)}; {allowed}")

    def items(self) -> list[Node]:
        """Of a list; a value alone is a list of one."""
        return list(self.node.value) if isinstance(self.node, SequenceNode) else [self.node]

    def text(self, node: Node, allowed: str) -> str:
        if _is(node, FLOAT) or _is(node, INTEGER):
            number = yaml.safe_load(node.value)
            also = "" if str(number) == node.value else f", which is {number}"
            self.refuse(node, f'without quotes it is a number{also}: write "{node.value}" in quotes')
        if not (_is(node, TEXT) and node.value.strip()):
            self.refuse(node, allowed)
        return str(node.value).strip()

    def texts(self, allowed: str) -> tuple[str, ...]:
        return tuple(self.text(node, allowed) for node in self.items())

    def mapping(self, words: Sequence[str]) -> dict[str, Node]:
        if not isinstance(self.node, MappingNode):
            self.refuse(self.node, f"allowed is a mapping with the keys {', '.join(words)}")
        return _entries(self.node, words, self.at)


def _entries(node: MappingNode, words: Sequence[str], at: Callable[[Node], str]) -> dict[str, Node]:
    entries: dict[str, Node] = {}
    for key_node, value in node.value:
        key = str(key_node.value) if isinstance(key_node, ScalarNode) else _found(key_node)
        if key not in words:
            allowed = ", ".join(words)
            raise ConfigError(f"{at(key_node)}: {key!r} is not a key; allowed are {allowed}{nearest(key, words)}")
        if key in entries:
            raise ConfigError(f"{at(key_node)}: the key {key} is there twice; keep one of the two")
        entries[key] = value
    return entries


def _is(node: Node, tag: str) -> bool:
    return isinstance(node, ScalarNode) and node.tag == tag


def _found(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return repr(node.value if len(node.value) <= 80 else node.value[:77] + "...") if node.value else "nothing"
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


def _deepspeed(value: _Value) -> tuple[str, ...]:
    allowed = "allowed is a list of auto, none, versions, {path: DIRECTORY} and git URLs"
    texts = []
    for node in value.items():
        if isinstance(node, MappingNode):
            entries = replace(value, node=node).mapping(("path",))
            path = value.text(entries["path"], allowed) if entries else value.refuse(node, allowed)
            texts.append(deepspeed_requests.PATH + path)
        elif _is(node, NULL):
            value.refuse(node, "write none for no DeepSpeed")
        else:
            texts.append(value.text(node, allowed))
    return tuple(texts)


def _world_size(value: _Value) -> int:
    return _whole_number(value, value.node, f"allowed is {WORLD_SIZE}")


def _whole_number(value: _Value, node: Node, allowed: str) -> int:
    if not (_is(node, INTEGER) and node.value.isdecimal()):
        value.refuse(node, allowed)
    return int(node.value[:20])  # as far as any number that means something; Python refuses thousands of digits


def _topologies(value: _Value) -> tuple[str, ...]:
    items = value.items()
    if items and all(isinstance(node, SequenceNode) and not _holds_lists(node) for node in items):
        value.refuse(items[0], "a topology is a list of groups: write [[[0, 3], [1, 2]]] for one of two groups")
    allowed = "allowed are names such as sp2-strided, and lists of groups such as [[0, 3], [1, 2]]"
    return tuple(
        _groups(value, node) if isinstance(node, SequenceNode) else value.text(node, allowed) for node in items
    )


def _holds_lists(node: SequenceNode) -> bool:
    return any(isinstance(item, SequenceNode) for item in node.value)


def _groups(value: _Value, node: SequenceNode) -> str:
    """[[0, 3], [1, 2]] as the suite writes it, 0,3/1,2."""
    allowed = "a topology is a list of groups of ranks, such as [[0, 3], [1, 2]]"

    def group(item: Node) -> str:
        if not (isinstance(item, SequenceNode) and item.value):
            value.refuse(item, allowed)
        return ",".join(str(_whole_number(value, rank, allowed)) for rank in item.value)

    return "/".join(group(item) for item in node.value) or value.refuse(node, allowed)


def _runners(value: _Value) -> Mapping[str, RunsOn]:
    entries = value.mapping(RUNNER_CLASSES)
    return {name: _runs_on(replace(value, key=f"{value.key}.{name}", node=node)) for name, node in entries.items()}


def _runs_on(value: _Value) -> RunsOn:
    allowed = "allowed is a runner's label, a list of them, or {group: NAME, labels: [LABEL]}"
    if not isinstance(value.node, MappingNode):
        return RunsOn(value.texts(allowed))
    entries = value.mapping(("group", "labels"))
    if "group" not in entries:
        value.refuse(value.node, allowed)
    labels = replace(value, node=entries["labels"]).texts(allowed) if "labels" in entries else ()
    return RunsOn(labels, value.text(entries["group"], allowed))


def _container(value: _Value) -> Mapping[str, str | None]:
    entries = value.mapping(CONTAINER_KEYS)
    read: dict[str, str | None] = {}
    for name, node in entries.items():
        inner = replace(value, key=f"{value.key}.{name}", node=node)
        allowed = "allowed is an image such as python:{python}-slim-bookworm"
        if name == "registry":
            allowed = "allowed is a repository such as ghcr.io/owner/name, or null"
        read[name] = None if name == "registry" and _is(node, NULL) else inner.text(node, allowed)
    return read


def _exclude(value: _Value) -> tuple[Mapping[str, str], ...]:
    allowed = "allowed are patterns such as loss/* or gloo:collectives/all_to_all, and mappings of torch, lane and case"
    exclusions = []
    for node in value.items():
        if isinstance(node, MappingNode):
            entries = replace(value, node=node).mapping(("torch", "lane", "case"))
            if not entries:
                value.refuse(node, allowed)
            exclusions.append({key: value.text(entry, allowed) for key, entry in entries.items()})
        else:
            exclusions.append({"case": value.text(node, allowed)})
    return tuple(exclusions)


def _known_issues(value: _Value) -> str | None:
    return None if _is(value.node, NULL) else value.text(value.node, "allowed is the path of a file, or null")


_READERS: dict[str, Callable[[_Value], Any]] = {
    "torch": lambda value: value.texts(f"allowed is a list of texts, each {torch_requests.FORMS}"),
    "deepspeed": _deepspeed,
    "lanes": lambda value: value.texts("allowed is auto or a list of lanes"),
    "world-size": _world_size,
    "topologies": _topologies,
    "suites": lambda value: value.texts("allowed is a list of suites"),
    "losses": lambda value: value.texts("allowed is a list of losses, each package.module:function"),
    "tests": lambda value: value.texts("allowed is a list of paths that pytest takes"),
    "tests-require": lambda value: value.texts("allowed is a list of requirements, such as einops"),
    "environment": lambda value: value.text(value.node, f"allowed are {', '.join(ENVIRONMENTS)}"),
    "container": _container,
    "runners": _runners,
    "exclude": _exclude,
    "known-issues": _known_issues,
    "fail-on": lambda value: value.text(value.node, f"allowed are {', '.join(FAIL_ON)}"),
}
KEYS = tuple(_READERS)
