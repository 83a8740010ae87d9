"""Against real indexes: directories and a server on this machine, and what pip and uv make of the same settings."""

import contextlib
import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from packaging import tags

from matrix import releases
from runner import package_index
from runner.package_index import (
    IndexSettings,
    available_deepspeed,
    available_torch,
    cpu_index_answers,
    masked,
    read_settings,
)

TABLE = releases.bundled()
PLATFORM = next(iter(tags.platform_tags()))
NO_CONFIGURATION = {"PIP_CONFIG_FILE": os.devnull}


def wheel(version: str, python: str = "cp311", platform: str = PLATFORM) -> str:
    return f"torch-{version}-{python}-{python}-{platform}.whl"


class Index(http.server.BaseHTTPRequestHandler):
    pages: ClassVar[dict[str, tuple[int, str]]]
    wait = 0.0

    def do_GET(self) -> None:
        time.sleep(self.wait)
        status, page = self.pages.get(self.path, (404, ""))
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # the one who asked did not wait
            self.wfile.write(page.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[tuple[str, type[Index]]]:
    class Handler(Index):
        pages: ClassVar[dict[str, tuple[int, str]]] = {}

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/simple", Handler
    server.shutdown()
    server.server_close()


def page(*links: str) -> tuple[int, str]:
    return 200, "<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>"


def link(name: str, more: str = "") -> str:
    return f'<a href="files/{name}" {more}>{name}</a>'


def test_what_an_index_offers(index: tuple[str, type[Index]]) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = page(
        link(wheel("2.2.2")),
        link(wheel("2.2.2", "cp312")),
        link(wheel("2.2.2", "cp38"), 'data-requires-python="&gt;=3.9"'),
        link(wheel("2.3.1%2Bcu121")),
        link(wheel("2.4.0"), 'data-yanked="broken"'),
        link(wheel("2.5.0", platform="win_arm64")),
        link("torch-2.6.0.tar.gz"),
        link("torch-junk.whl"),
        link(wheel("2.13.0", "cp313").replace("cp313-cp313", "cp313-cp313t")),
    )
    answer = available_torch(IndexSettings(index_url=url), TABLE)
    assert answer.note is None
    assert {one.version: (one.pythons, one.yanked) for one in answer.releases} == {
        "2.2.2": (("3.11", "3.12"), False),
        "2.3.1+cu121": (("3.11",), False),
        "2.4.0": ((), True),
        "2.5.0": ((), False),
        "2.13.0": ((), False),
    }


def test_a_directory_of_wheels_beside_the_index(index: tuple[str, type[Index]], tmp_path: Path) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = page(link(wheel("2.13.0", "cp312")))
    (tmp_path / wheel("2.13.0+cpu")).touch()
    (tmp_path / "other-1.0-py3-none-any.whl").touch()
    answer = available_torch(IndexSettings(index_url=url, find_links=(str(tmp_path),)), TABLE)
    assert {one.version: one.pythons for one in answer.releases} == {"2.13.0": ("3.12",), "2.13.0+cpu": ("3.11",)}


def test_the_releases_of_deepspeed(index: tuple[str, type[Index]], tmp_path: Path) -> None:
    url, handler = index
    handler.pages["/simple/deepspeed/"] = page(
        link("deepspeed-0.17.6.tar.gz"),
        link("deepspeed-0.9.5.tar.gz"),
        link("deepspeed-0.17.5.tar.gz", 'data-yanked="broken"'),
        link("deepspeed-0.18.0-cp311-cp311-win_amd64.whl"),
        link(f"deepspeed-0.18.1-cp311-cp311-{PLATFORM}.whl"),
        link("deepspeed-junk.tar.gz"),
        link("deepspeed_tools-1.0.tar.gz"),
    )
    (tmp_path / "deepspeed-0.18.2-py3-none-any.whl").touch()
    answer = available_deepspeed(IndexSettings(index_url=url, find_links=(str(tmp_path),)), ["0.1"])
    assert answer.releases == ("0.9.5", "0.17.6", "0.18.1", "0.18.2")
    assert answer.note is None


def test_without_an_answer_the_releases_of_deepspeed_are_those_that_are_known(index: tuple[str, type[Index]]) -> None:
    url, handler = index
    handler.pages["/simple/deepspeed/"] = (503, "")
    answer = available_deepspeed(IndexSettings(index_url=url), ["0.17.6"])
    assert answer.releases == ("0.17.6",)
    assert answer.note is not None
    assert "(status 503): the releases of DeepSpeed are those that sp-compat knows of" in answer.note


def test_an_extra_index_without_torch_is_an_answer(index: tuple[str, type[Index]], tmp_path: Path) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = page(link(wheel("2.2.2")))
    extra = (url.replace("/simple", "/other"), (tmp_path / "no-such-index").as_uri())
    answer = available_torch(IndexSettings(index_url=url, extra_index_urls=extra), TABLE)
    assert [one.version for one in answer.releases] == ["2.2.2"]
    assert answer.note is None


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_an_index_that_fails_is_replaced_by_the_table(index: tuple[str, type[Index]], status: int) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = (status, "")
    answer = available_torch(IndexSettings(index_url=url.replace("://", "://user:secret@")), TABLE)
    assert answer.releases == TABLE.available()
    assert answer.note is not None
    assert f"status {status}" in answer.note
    assert "secret" not in answer.note


def test_an_index_that_is_not_there_fails_at_once() -> None:
    start = time.monotonic()
    answer = available_torch(IndexSettings(index_url="http://127.0.0.1:9/simple"), TABLE)
    assert time.monotonic() - start < 5
    assert answer.releases == TABLE.available()
    assert "127.0.0.1:9" in (answer.note or "")


def test_an_index_that_does_not_answer_is_left(index: tuple[str, type[Index]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, handler = index
    handler.wait = 8.0
    monkeypatch.setattr(package_index, "INDEX_LIMIT", 0.5)
    start = time.monotonic()
    answer = available_torch(IndexSettings(index_url=url), TABLE)
    assert time.monotonic() - start < 5
    assert answer.releases == TABLE.available()
    assert answer.note


def test_an_index_that_is_not_encrypted_has_to_be_trusted() -> None:
    answer = available_torch(IndexSettings(index_url="http://mirror.invalid/simple"), TABLE)
    assert "trusted-host" in (answer.note or "")
    answer = available_torch(
        IndexSettings(index_url="http://mirror.invalid/simple", trusted_hosts=("mirror.invalid",)), TABLE
    )
    assert "trusted-host" not in (answer.note or "")


def test_a_certificate_that_is_not_there_is_said() -> None:
    answer = available_torch(IndexSettings(certificate="/no/such.pem"), TABLE)
    assert answer.releases == TABLE.available()
    assert "No such file" in (answer.note or "")


def test_without_an_index_only_the_directory_counts(tmp_path: Path) -> None:
    (tmp_path / wheel("2.2.2")).touch()
    answer = available_torch(IndexSettings(no_index=True, find_links=(str(tmp_path),)), TABLE)
    assert [one.version for one in answer.releases] == ["2.2.2"]


def test_an_index_is_asked_once(index: tuple[str, type[Index]]) -> None:
    url, handler = index
    handler.pages["/simple/torch/"] = page(link(wheel("2.2.2")))
    first = available_torch(IndexSettings(index_url=url), TABLE)
    handler.pages.clear()
    assert available_torch(IndexSettings(index_url=url), TABLE) == first


PIP_CONFIGURATION = """
[global]
index-url = https://user:secret@mirror.example.org/simple
extra_index_url =
    https://one.example.org/simple
    https://two.example.org/simple
trusted-host = one.example.org
cert = /etc/ssl/own.pem
timeout = 77
constraint = /etc/constraints.txt

[install]
find-links = {links}
"""


def test_settings_of_pip(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(PIP_CONFIGURATION.format(links=tmp_path))
    settings = read_settings({"PIP_CONFIG_FILE": str(file), "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)})
    assert settings.index_url == "https://user:secret@mirror.example.org/simple"
    assert settings.extra_index_urls == ("https://one.example.org/simple", "https://two.example.org/simple")
    assert settings.find_links == (str(tmp_path),)
    assert settings.uv_environment() == {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror.example.org/simple",
        "UV_INDEX": "https://one.example.org/simple https://two.example.org/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/ssl/own.pem",
        "UV_HTTP_TIMEOUT": "77",
    }
    assert settings.uv_arguments() == [
        "--no-config", "--find-links", str(tmp_path), "--allow-insecure-host", "one.example.org",
    ]  # fmt: skip
    assert "secret" not in f"{settings} {settings!r} {settings.describe()} {settings.uv_arguments()}"


def test_variables_override_pip_s_files_and_uv_s_override_pip_s(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file.example.org\nno-index = true\n")
    alone = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CONFIG_FILE": str(file)}
    assert read_settings(alone).no_index
    both = {**alone, "PIP_INDEX_URL": "https://pip.example.org", "PIP_NO_INDEX": "0"}
    assert read_settings(both).index_url == "https://pip.example.org"
    assert not read_settings(both).no_index
    assert read_settings({**both, "UV_DEFAULT_INDEX": "https://uv.example.org"}).index_url == "https://uv.example.org"
    named = read_settings({**NO_CONFIGURATION, "UV_INDEX": "own=https://a.example.org/simple https://b.example.org"})
    assert named.index_urls[1:] == ("https://a.example.org/simple", "https://b.example.org")
    assert named.uv_environment()["UV_INDEX"].startswith("own=")


def test_a_directory_of_links_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    links = f"{tmp_path}/none {tmp_path} https://example.org/wheels,old.html"
    settings = read_settings({**NO_CONFIGURATION, "PIP_FIND_LINKS": links})
    assert settings.find_links == (str(tmp_path), "https://example.org/wheels,old.html")
    assert settings.uv_environment()["UV_FIND_LINKS"] == "https://example.org/wheels%2Cold.html"


@pytest.mark.parametrize("named", ["own.conf", "missing.conf", None])
def test_pip_reads_its_files_alike(tmp_path: Path, named: str | None) -> None:
    (tmp_path / "etc/pip").mkdir(parents=True)
    (tmp_path / "etc/pip/pip.conf").write_text(
        "[global]\nindex-url = https://machine\nextra-index-url = https://extra\n"
    )
    (tmp_path / "home/.config/pip").mkdir(parents=True)
    (tmp_path / "home/.config/pip/pip.conf").write_text("[global]\nindex-url = https://user\n[install]\ncert=/a.pem\n")
    (tmp_path / "own.conf").write_text("[install]\nfind-links = /own\n[global]\nproxy = http://proxy:1\n")
    environment = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(tmp_path / "etc"),
        **({"PIP_CONFIG_FILE": str(tmp_path / named)} if named else {}),
        "PIP_TRUSTED_HOST": "host",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    pip = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            if line.startswith(section):
                name, _, value = line.removeprefix(section).partition("=")
                pip[name] = value.strip("'")
    found = package_index._pip_options(environment)
    wanted = ("index-url", "extra-index-url", "cert", "find-links", "proxy", "trusted-host")
    assert {name: found.get(name) for name in wanted} == {name: pip.get(name) for name in wanted}


def test_the_fingerprint_is_of_the_places_and_not_of_the_credentials() -> None:
    plain = IndexSettings(index_url="https://mirror.example.org/simple")
    assert plain.fingerprint() == IndexSettings(index_url="https://a:b@mirror.example.org/simple").fingerprint()
    others = [
        IndexSettings(),
        IndexSettings(index_url="https://mirror.example.org/other"),
        IndexSettings(index_url="https://mirror.example.org/simple", find_links=("/wheels",)),
        IndexSettings(index_url="https://mirror.example.org/simple", certificate="/a.pem"),
        IndexSettings(index_url="https://mirror.example.org/simple", no_index=True),
    ]
    assert len({settings.fingerprint() for settings in [plain, *others]}) == 6


def test_credentials_are_masked() -> None:
    assert masked("https://user:secret@example.org/simple") == "https://****@example.org/simple"
    assert masked("https://token@example.org:8080/a?b") == "https://****@example.org:8080/a?b"
    assert masked("https://example.org/simple") == "https://example.org/simple"
    assert masked("/wheels") == "/wheels"


@pytest.mark.parametrize("settings", [IndexSettings(index_url="https://x.example.org"), IndexSettings(no_index=True)])
def test_the_cpu_index_is_not_asked_where_packages_come_from_elsewhere(settings: IndexSettings) -> None:
    assert cpu_index_answers(settings) is False


def test_the_cpu_index_is_asked_for_a_short_time(
    index: tuple[str, type[Index]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = index
    handler.do_HEAD = handler.do_GET  # type: ignore[attr-defined]
    monkeypatch.setattr(package_index, "CPU_INDEX", url)
    handler.pages["/simple/torch/"] = page()
    assert cpu_index_answers(IndexSettings(strategy="asked first")) is True
    handler.wait = 8.0
    monkeypatch.setattr(package_index, "CPU_INDEX_LIMIT", 0.3)
    start = time.monotonic()
    assert cpu_index_answers(IndexSettings(strategy="asked again")) is False
    assert time.monotonic() - start < 5


def test_uv_installs_from_these_settings(index: tuple[str, type[Index]], tmp_path: Path) -> None:
    """It takes the arguments, an index without the package does not stop it, and it looks at the links."""
    url, handler = index
    handler.pages["/simple/torch/"] = page(link(wheel("2.2.2")))
    (tmp_path / wheel("2.2.2+cpu")).write_bytes(_wheel_of_torch("2.2.2+cpu"))
    settings = read_settings(
        {
            **NO_CONFIGURATION,
            "PIP_INDEX_URL": url.replace("/simple", "/nothing"),
            "PIP_EXTRA_INDEX_URL": f"{(tmp_path / 'gone').as_uri()} {url}",
            "PIP_FIND_LINKS": str(tmp_path),
        }
    )
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "-",
        "--no-header",
        "--no-annotate",
        "--quiet",
        "--no-cache",
    ]
    done = subprocess.run(
        [*command, "--python-version", "3.11", "--no-deps", *settings.uv_arguments()],
        input="torch==2.2.2",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **settings.uv_environment()},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "torch==2.2.2+cpu", done.stderr


def _wheel_of_torch(version: str) -> bytes:
    import io
    import zipfile

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(
            f"torch-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        archive.writestr(f"torch-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: cp311-cp311-{PLATFORM}\n")
        archive.writestr(f"torch-{version}.dist-info/RECORD", "")
    return data.getvalue()
