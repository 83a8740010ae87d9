"""The machine's local package directories, for a build in a container: served to it while it goes on.

A build has the machine's network and not its files. So directories that index settings name are read through an
address of the loopback device, below a name that only the build is told: others on the machine cannot guess it.
"""

from __future__ import annotations

import http.server
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from runner.package_index import NAMED_INDEX, IndexSettings

PACKAGES = (".whl", ".tar.gz", ".tar.bz2", ".zip", ".metadata")
"""An index's pages point to files beside its own directory."""


@dataclass(frozen=True)
class Served:
    """`index` is what a build has to be given; `address` is None where nothing is on this machine alone."""

    index: IndexSettings
    address: str | None

    def url(self, path: Path) -> str:
        return f"{self.address}{quote(str(path))}"


@contextmanager
def served(index: IndexSettings, files: Sequence[Path] = ()) -> Iterator[Served]:
    """Serve the local places of `index`, and `files`, until the context is left."""
    places = [path for url in (*_urls(index), *index.find_links) if (path := _local(url))]
    if not places and not files:
        yield Served(index, None)
        return
    token = secrets.token_urlsafe(24)
    handler = _handler(f"/{token}", places, files)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}/{token}"
            yield Served(_readdressed(index, address), address)
        finally:
            server.shutdown()
            thread.join()


def _urls(index: IndexSettings) -> list[str]:
    return [NAMED_INDEX.sub("", url) for url in (index.index_url, *index.extra_index_urls) if url]


def _local(place: str) -> Path | None:
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).resolve()
    return None if "://" in place else Path(place).resolve()


def _readdressed(index: IndexSettings, address: str) -> IndexSettings:
    def there(url: str) -> str:
        named = NAMED_INDEX.match(url)
        name = named[0] if named else ""
        path = _local(url[len(name) :])
        return f"{name}{address}{quote(str(path))}/" if path else url

    return replace(
        index,
        index_url=there(index.index_url) if index.index_url else None,
        extra_index_urls=tuple(there(url) for url in index.extra_index_urls),
        find_links=tuple(there(place) for place in index.find_links),
    )


def _handler(prefix: str, places: Sequence[Path], files: Sequence[Path]) -> type[http.server.SimpleHTTPRequestHandler]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            """The file that is asked for; one that does not exist for what nobody may read here."""
            wanted = unquote(urlsplit(path).path)
            if not wanted.startswith(f"{prefix}/"):
                return "/nonexistent/"
            found = Path(wanted.removeprefix(prefix)).resolve()
            if found in files or any(found.is_relative_to(place) for place in places) or _is_package(found):
                return f"{found}/" if wanted.endswith("/") and found.is_dir() else str(found)
            return "/nonexistent/"

        def log_message(self, format: str, *arguments: Any) -> None:
            """uv says itself what it cannot get."""

    return Handler


def _is_package(path: Path) -> bool:
    return path.name.endswith(PACKAGES) and path.is_file()
