"""Where packages come from on this machine, and which releases of torch are there.

The settings are those that pip and uv read: pip's configuration files, the variables of both, certificates. They apply
to builds, in pip's sense that all indexes are equal, and are a part of an environment's key.
"""

from __future__ import annotations

import configparser
import functools
import hashlib
import http.client
import json
import logging
import os
import re
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

from packaging import tags
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from matrix.releases import AvailableRelease, ReleaseTable
from matrix.torch_requests import pythons_of_wheel

if TYPE_CHECKING:
    from unearth.fetchers import PyPIClient

PYPI = "https://pypi.org/simple"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

INDEX_LIMIT = 10.0
"""Seconds for all indexes together; the list of torch's files is half a megabyte."""
CPU_INDEX_LIMIT = 3.0

# What uv understands under the same name, and an index may need to be reached at all.
PASSED_ON = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NETRC",
    "SSL_CERT_DIR",
    "UV_HTTP_TIMEOUT",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
)
INDEX_CREDENTIALS = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
NAMED_INDEX = re.compile(r"^[A-Za-z0-9._-]+=(?=.*://)")


@dataclass(frozen=True)
class IndexSettings:
    """`index_url` None means PyPI. Its own text never shows credentials; see `describe`."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    certificate: str | None = None
    client_certificate: str | None = None
    strategy: str | None = None
    passed_on: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"IndexSettings({self.describe()})"

    @property
    def index_urls(self) -> tuple[str, ...]:
        if self.no_index:
            return ()
        return (self.index_url or PYPI, *(NAMED_INDEX.sub("", url) for url in self.extra_index_urls))

    def uv_arguments(self) -> list[str]:
        """What `uv pip install` is given besides the requirements; no URLs, which a list of processes would show."""
        arguments = ["--no-config"]
        if self.no_index:
            arguments.append("--no-index")
        for place in self.find_links:
            if "://" not in place:
                arguments += ["--find-links", place]
        for host in self.trusted_hosts:
            arguments += ["--allow-insecure-host", host]
        return arguments

    def uv_environment(self) -> dict[str, str]:
        variables = dict(self.passed_on)
        if not self.no_index:
            if self.index_url:
                variables["UV_DEFAULT_INDEX"] = self.index_url
            if self.extra_index_urls:
                variables["UV_INDEX"] = " ".join(self.extra_index_urls)
                # uv stops at the first index that has a package, pip compares all of them.
                variables["UV_INDEX_STRATEGY"] = self.strategy or "unsafe-best-match"
        if remote := [place.replace(",", "%2C") for place in self.find_links if "://" in place]:
            variables["UV_FIND_LINKS"] = ",".join(remote)
        if self.certificate:
            variables["SSL_CERT_FILE"] = self.certificate
        if self.client_certificate:
            variables["SSL_CLIENT_CERT"] = self.client_certificate
        return variables

    def fingerprint(self) -> str:
        """Equal for settings that find the same packages: credentials change from job to job and do not count."""
        places = {
            "index": [without_credentials(url) for url in self.index_urls],
            "links": [without_credentials(place) for place in self.find_links],
            "strategy": self.strategy,
            "trusted": sorted(self.trusted_hosts),
            "certificates": [self.certificate, self.client_certificate],
        }
        return hashlib.sha256(json.dumps(places, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self) -> str:
        """For a person, credentials masked."""
        places = [masked(url) for url in self.index_urls] or ["no index"]
        return ", ".join([*places, *(f"links in {masked(place)}" for place in self.find_links)])


@dataclass(frozen=True)
class IndexAnswer:
    """`note` tells the reader when the index could not be asked and what was used in its place."""

    releases: tuple[AvailableRelease, ...]
    note: str | None = None


@dataclass(frozen=True)
class DeepSpeedAnswer:
    """Versions, oldest first; `note` as above."""

    releases: tuple[str, ...]
    note: str | None = None


def read_settings(environment: Mapping[str, str] = os.environ) -> IndexSettings:
    pip = _pip_options(environment)
    uv = environment.get

    def several(*texts: str | None, separator: str | None = None) -> tuple[str, ...]:
        parts = (part.strip() for text in texts if text for part in text.split(separator))
        return tuple(dict.fromkeys(part for part in parts if part))

    return IndexSettings(
        index_url=uv("UV_DEFAULT_INDEX") or uv("UV_INDEX_URL") or pip.get("index-url") or None,
        extra_index_urls=several(uv("UV_INDEX"), uv("UV_EXTRA_INDEX_URL"), pip.get("extra-index-url")),
        find_links=_links((*several(uv("UV_FIND_LINKS"), separator=","), *several(pip.get("find-links")))),
        no_index=_true(uv("UV_NO_INDEX")) or _true(pip.get("no-index")),
        trusted_hosts=several(uv("UV_INSECURE_HOST"), pip.get("trusted-host")),
        certificate=pip.get("cert") or uv("SSL_CERT_FILE") or uv("REQUESTS_CA_BUNDLE") or uv("CURL_CA_BUNDLE") or None,
        client_certificate=pip.get("client-cert") or uv("SSL_CLIENT_CERT") or None,
        strategy=uv("UV_INDEX_STRATEGY") or None,
        passed_on=_passed_on(environment, pip),
    )


def available_torch(settings: IndexSettings, table: ReleaseTable) -> IndexAnswer:
    """The releases of torch that the machine's indexes offer; those of the table where the main one is silent."""
    files: list[_File] = []
    silent: list[str] = []
    answers = _ask_all(settings, "torch")
    for place, answer in answers:
        if isinstance(answer, str):
            silent.append(f"{masked(place)} ({answer})")
        else:
            files += answer
    releases = _releases(files)
    if not silent:
        return IndexAnswer(releases)
    note = f"no answer from {', '.join(silent)}"
    if isinstance(answers[0][1], str) and not settings.no_index:
        known = {release.version for release in releases}
        releases += tuple(release for release in table.available() if release.version not in known)
        return IndexAnswer(releases, f"{note}: the releases of torch are those that sp-compat knows of")
    return IndexAnswer(releases, f"{note}: what it has of torch is left out")


def available_nightlies(settings: IndexSettings, index: str) -> IndexAnswer:
    """The nightlies of torch that their index keeps; it is asked as the machine's own are, and none of those."""
    alone = replace(settings, index_url=index, extra_index_urls=(), find_links=(), no_index=False)
    ((place, answer),) = _ask_all(alone, "torch")
    if isinstance(answer, str):
        return IndexAnswer((), f"no answer from {masked(place)} ({answer})")
    return IndexAnswer(_releases(answer))


def available_deepspeed(settings: IndexSettings, known: Sequence[str]) -> DeepSpeedAnswer:
    """The releases of DeepSpeed that the machine's indexes offer; without an answer those that are known."""
    files: list[_File] = []
    silent: list[str] = []
    for place, answer in _ask_all(settings, "deepspeed"):
        if isinstance(answer, str):
            silent.append(f"{masked(place)} ({answer})")
        else:
            files += answer
    versions = sorted({version for file in files if not file.yanked and (version := _installable(file.name))})
    if versions or not silent:
        return DeepSpeedAnswer(tuple(map(str, versions)))
    note = f"no answer from {', '.join(silent)}: the releases of DeepSpeed are those that sp-compat knows of"
    return DeepSpeedAnswer(tuple(known), note)


@functools.cache
def _ask_all(settings: IndexSettings, project: str) -> tuple[tuple[str, list[_File] | str], ...]:
    """Every place with its files, or the reason why it gave none; asked once in the life of the process."""
    places = [("index", url) for url in settings.index_urls] + [("links", place) for place in settings.find_links]
    try:
        client = _client(settings)
    except (OSError, ValueError) as error:  # a certificate that cannot be read
        return tuple((place, str(error)) for _, place in places)
    answers = _each_within(
        INDEX_LIMIT, [functools.partial(_files_at, client, project, kind, place) for kind, place in places]
    )
    return tuple((place, answer) for (_, place), answer in zip(places, answers, strict=True))


@functools.cache
def cpu_index_answers(settings: IndexSettings) -> bool:
    """Whether PyTorch's own index of CPU wheels can be used: a tenth of the download of PyPI's CUDA wheels.

    Not where an index was configured: whoever sets one means that packages come from there.
    """
    if settings.index_url or settings.no_index:
        return False
    [answer] = _each_within(CPU_INDEX_LIMIT, [functools.partial(_head, settings, f"{CPU_INDEX}/torch/")])
    return answer is True


def locate_wheel(written: str) -> Path | None:
    """The file that a user means by a path, from the directory the command is run in."""
    path = Path(written).expanduser().absolute()
    return path if path.is_file() else None


def masked(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc="****@" + parts.netloc.rpartition("@")[2]))


def without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else url


# pip's configuration: https://pip.pypa.io/en/stable/topics/configuration/


def _pip_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Later files override earlier ones, the section of a command overrides `global`, a variable overrides both."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in pip_configuration_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will say so, where it is used
        for section, options in sections.items():
            if parser.has_section(section):
                options.update({_option(name): value for name, value in parser.items(section)})
    variables = {
        _option(name[4:]): value for name, value in environment.items() if name.startswith("PIP_") and value.strip()
    }
    return {**sections["global"], **sections["install"], **variables}


def pip_configuration_files(environment: Mapping[str, str]) -> list[Path]:
    """Machine, user, virtual environment; the file that PIP_CONFIG_FILE names comes last, and in the user's place."""
    named = environment.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(environment.get("HOME") or Path.home())
    config_home = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    if sys.platform == "darwin":
        support = home / "Library/Application Support/pip"
        machine = [Path("/Library/Application Support/pip/pip.conf")]
        user = (support if support.is_dir() else config_home / "pip") / "pip.conf"
    else:
        directories = (environment.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
        machine = [*(Path(directory) / "pip/pip.conf" for directory in directories if directory), Path("/etc/pip.conf")]
        user = config_home / "pip/pip.conf"
    virtual_environment = Path(sys.prefix) / "pip.conf"
    if named and Path(named).exists():
        return [*machine, virtual_environment, Path(named)]
    return [*machine, home / ".pip/pip.conf", user, virtual_environment]


def _option(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _true(text: str | None) -> bool:
    return (text or "").strip().lower() in ("1", "y", "yes", "t", "true", "on")


def _links(places: Iterable[str]) -> tuple[str, ...]:
    """Without the local ones that do not exist: pip ignores those, uv would refuse to work."""
    paths = (place if "://" in place else str(Path(place).expanduser().absolute()) for place in places)
    return tuple(dict.fromkeys(path for path in paths if "://" in path or Path(path).exists()))


def _passed_on(environment: Mapping[str, str], pip: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    variables = {
        name: value
        for name, value in environment.items()
        if value and (name in PASSED_ON or INDEX_CREDENTIALS.fullmatch(name))
    }
    if pip.get("proxy"):
        variables.update({"HTTP_PROXY": pip["proxy"], "HTTPS_PROXY": pip["proxy"]})
    if pip.get("timeout") or pip.get("default-timeout"):
        variables.setdefault("UV_HTTP_TIMEOUT", pip.get("timeout") or pip["default-timeout"])
    return tuple(sorted(variables.items()))


# Asking the indexes


@dataclass(frozen=True)
class _File:
    name: str
    requires_python: str | None
    yanked: bool


class _NoAnswer(Exception):
    """An index could not be read; the text says why, without its address."""


def _client(settings: IndexSettings) -> PyPIClient:
    # Imported where it is used, for no other command needs it and it takes as long as everything else together.
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    def check(response: Any) -> None:
        if response.status_code >= 400 and response.status_code != 404:  # 404: it does not have torch, an answer
            raise _NoAnswer(f"status {response.status_code}")

    logging.getLogger("unearth").addHandler(logging.NullHandler())
    client = PyPIClient(
        trusted_hosts=settings.trusted_hosts,
        verify=_tls(settings),
        timeout=INDEX_LIMIT / 2,
        follow_redirects=True,
        event_hooks={"response": [check]},
    )
    client.auth = MultiDomainBasicAuth(prompting=False, index_urls=list(settings.index_urls))
    return client


def _files_at(client: PyPIClient, project: str, kind: str, place: str) -> list[_File] | str:
    """The files of a project at one index, of torch the wheels, or the reason why it gave no answer."""
    from unearth import Link, PackageFinder
    from unearth.collector import is_secure_origin

    session = cast(Any, client)  # it is what the finder makes for itself, but not by its annotations
    finder = PackageFinder(session=session, ignore_compatibility=True, only_binary=["torch"])
    finder.sources = [{"url": place, "type": kind}]
    try:
        if "://" in place and not is_secure_origin(session, Link(place)):
            return "not https; trusted-host may allow it"
        packages = list(finder.find_all_packages(project, allow_yanked=True))
    except _NoAnswer as error:
        return str(error)
    except Exception as error:
        return type(error).__name__
    return [_File(p.link.filename, p.link.requires_python, p.link.is_yanked) for p in packages]


@functools.cache
def _tls(settings: IndexSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.certificate)
    if settings.client_certificate:
        context.load_cert_chain(settings.client_certificate)
    return context


def _releases(files: Iterable[_File]) -> tuple[AvailableRelease, ...]:
    platforms = {*tags.platform_tags(), "any"}
    pythons: dict[Version, set[str]] = {}
    kept: set[Version] = set()
    for file in files:
        _, version, _, wheel_tags = parse_wheel_filename(file.name)
        here = pythons.setdefault(version, set())
        if file.yanked:
            continue
        kept.add(version)
        if platforms.isdisjoint(tag.platform for tag in wheel_tags):
            continue
        here.update(python for python in pythons_of_wheel(file.name) if _allows(file.requires_python, python))
    return tuple(
        AvailableRelease(str(version), tuple(sorted(pythons[version], key=Version)), yanked=version not in kept)
        for version in sorted(pythons)
    )


def _installable(name: str) -> Version | None:
    """The version of a source distribution, or of a wheel for this machine."""
    if not name.endswith(".whl"):
        return parse_sdist_filename(name)[1]
    _, version, _, wheel_tags = parse_wheel_filename(name)
    return None if {*tags.platform_tags(), "any"}.isdisjoint(tag.platform for tag in wheel_tags) else version


def _allows(requires_python: str | None, python: str) -> bool:
    try:
        # The newest patch of that Python: a wheel that excludes 3.9.0 alone is still one for 3.9.
        return SpecifierSet(requires_python or "").contains(f"{python}.99")
    except InvalidSpecifier:
        return True


def _head(settings: IndexSettings, url: str) -> bool:
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=CPU_INDEX_LIMIT, context=_tls(settings)) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


Answer = TypeVar("Answer")


def _each_within(limit: float, questions: list[Callable[[], Answer]]) -> list[Answer | str]:
    """All at once; one that is not answered in time says so. Looking up a host's name cannot be limited otherwise."""
    answers: list[Answer | str] = [f"none within {limit:g} s"] * len(questions)

    def ask(number: int) -> None:
        answers[number] = questions[number]()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(answers)
