"""The user and the password of a package index: a build uses them, and nothing that is kept has them."""

from __future__ import annotations

import base64
import functools
import http.server
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.engine import NoEngine, find
from runner.processes import Cancellation, Processes
from tests.product.container_engine import RealEngine, run
from tests.product.running import TORCH
from tests.product.test_container_bases import PLAIN, STAND_IN, legs_of, remove_image
from tests.product.test_package_index import wheel as wheel_name

USER, PASSWORD = "reader-of-the-index", "hunter2-of-the-index"
IN_BASE64 = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@contextmanager
def index(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Directories of wheels, shown to whom gives the password; what was asked for with it."""
    shown: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") == f"Basic {IN_BASE64}":
                shown.append(self.path)
                return super().do_GET()
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(directory))
    ) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", shown
        server.shutdown()


def wheels_by_project(directory: Path, *requirements: str) -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "-d", directory, *requirements]
    subprocess.run(words, check=True, timeout=300)
    for file in list(directory.glob("*.whl")):
        project = directory / file.name.split("-")[0].replace("_", "-").lower()
        project.mkdir(exist_ok=True)
        file.rename(project / file.name)


def write_torch(directory: Path) -> None:
    directory.mkdir()
    name = wheel_name(TORCH)
    facts = {
        "METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\n",
        "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {name.removesuffix('.whl').split('-', 2)[2]}\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(directory / name, "w") as wheel:
        for file, text in {
            **STAND_IN,
            **{f"torch-{TORCH}.dist-info/{fact}": said for fact, said in facts.items()},
        }.items():
            wheel.writestr(file, text)


@pytest.fixture
def with_secrets(engine: RealEngine) -> str:
    """A client of the engine whose builds can be given secrets."""
    for program in ("docker", "/usr/bin/docker"):
        caller = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SP_COMPAT_ENGINE": program, **engine.variables}
        try:
            if find(Processes(Cancellation()), caller).about.builder == "buildkit":
                return program
        except NoEngine:
            continue
    pytest.skip("no client of docker with BuildKit")


def test_credentials_of_an_index_are_in_nothing_that_is_kept(
    engine: RealEngine, cache: Path, tmp_path: Path, with_secrets: str
) -> None:
    wheels_by_project(tmp_path / "index", "pytest", "numpy", "exceptiongroup", "tomli")
    write_torch(tmp_path / "index/torch")
    with index(tmp_path / "index") as (place, shown):
        done = run(
            *(engine, cache, tmp_path, "--torch", TORCH, *PLAIN, "--verbose"),
            more={
                "SP_COMPAT_ENGINE": with_secrets,
                "PIP_CONFIG_FILE": "/dev/null",
                "PIP_FIND_LINKS": "",
                "UV_DEFAULT_INDEX": f"http://{USER}:{PASSWORD}@{place}/",
            },
        )
        [leg] = legs_of(done, tmp_path)
        assert any("/torch-" in path for path in shown)
        name = leg["environment"]["image"]
        assert name, leg["detail"]

        with subprocess.Popen(["docker", "--host", engine.address, "save", name], stdout=subprocess.PIPE) as saved:
            assert saved.stdout is not None
            assert not secrets_in(iter(functools.partial(saved.stdout.read, 2**22), b""))
        said = engine.docker("image", "inspect", name) + engine.docker("history", "--no-trunc", name)
        assert not secrets_in([said.encode(), (done.stdout + done.stderr).encode()])
        for file in [*(tmp_path / "out").rglob("*"), *cache.rglob("*")]:
            if file.is_file() and "environments" not in file.parts:
                assert not secrets_in([file.read_bytes()]), file
        remove_image(engine, leg)


def secrets_in(pieces: Any) -> list[bytes]:
    """The engine's archive is not compressed."""
    found, end = [], b""
    for piece in pieces:
        text = end + piece
        found += [secret for secret in (PASSWORD.encode(), IN_BASE64.encode()) if secret in text]
        end = text[-100:]
    return found
