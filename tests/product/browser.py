"""A real browser for the pages that the program makes: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NODE_PACKAGES = ("axe-core@4.14.1", "typescript@7.0.2")
LAPTOP = {"width": 1440, "height": 900}
PHONE = {"width": 360, "height": 740}


def chromium() -> str:
    """Its path. Where it is missing it is installed, by who may; elsewhere the tests that need it are skipped."""
    if _found() is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("there is no chromium, and only root can install Debian's")
        subprocess.run(["apt-get", "-qq", "update"], check=True, timeout=300)
        subprocess.run(
            ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"], check=True, timeout=600
        )
    found = _found()
    assert found is not None
    return found


def _found() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@cache
def node_packages() -> Path:
    """Their directory: what audits pages and what checks the types of scripts. Installed once for all tests."""
    directory = Path(tempfile.mkdtemp(prefix="sp-compat-node-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    words = ["npm", "install", "--no-audit", "--no-fund", "--silent", *NODE_PACKAGES]
    subprocess.run(words, cwd=directory, check=True, timeout=120)
    return directory / "node_modules"


class Visit:
    """A page that was opened from a file, with whatever it complained of or asked the network for."""

    def __init__(self, context: BrowserContext, file: Path, address: str = "", measured: bool = False) -> None:
        self.page: Page = context.new_page()
        if measured:
            self._session = context.new_cdp_session(self.page)
            self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() + address)
        self.settle()

    def settle(self) -> None:
        self.page.locator("[aria-busy]").wait_for(state="detached")

    def worked(self) -> float:
        """Milliseconds of processor time that the page's thread has spent, on script, style, layout and painting."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return 1_000 * float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def ask(self, expression: str, argument: Any = None) -> Any:
        return self.page.evaluate(expression, argument)

    def focused(self) -> str:
        found: str = self.ask("document.activeElement.textContent")
        return found
