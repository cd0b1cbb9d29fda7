"""A server with the built page, and a browser that looks at it.

Where Node, playwright or chromium is missing these tests are skipped, unless Q2P_BROWSER=required.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import pytest

from query2particles.serve.pages import STATIC
from servers import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

KEY = "a-key-of-some-length"

_ROOT = Path(__file__).parents[2]
_AXE = _ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--no-sandbox",  # root has no other way, as in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _missing(what: str) -> None:
    if os.environ.get("Q2P_BROWSER") == "required":
        pytest.fail(f"{what} (Q2P_BROWSER=required)")
    pytest.skip(what)


@pytest.fixture(scope="session")
def site(atlas_run: Path) -> Iterator[str]:
    """The address of a server of `atlas`, whose held-out facts are to be guessed."""
    if not (STATIC / "index.html").is_file():
        _missing("the page is not built: make page")
    with serving(atlas_run, "--split", "train") as server:
        yield server.url


@pytest.fixture(scope="session")
def guarded_site(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the graph alone, which asks for KEY."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n", "utf-8")
    with serving("atlas", "--key-file", keys) as server:
        yield server.url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        _missing("playwright is not installed: pip install '.[dev]'")
    executable = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if executable is None:
        _missing("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=_OPTIONS)
        yield launched
        launched.close()


@dataclass
class Watched:
    """A page, and what went wrong on it: errors of its scripts, and requests that left this machine."""

    page: Page
    site: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str | None] = field(default_factory=set)

    def open(self, question: str = "", **parameters: object) -> Page:
        """The page with a question, as a link says it."""
        said = {**({"q": question} if question else {}), **parameters}
        self.page.goto(f"{self.site}/{'#' + urlencode(said) if said else ''}")
        return self.page

    def accessibility_problems(self) -> list[str]:
        """What axe-core finds that is serious or critical."""
        if not _AXE.is_file():
            _missing("axe-core is not installed: make page")
        self.page.evaluate(_AXE.read_text("utf-8"))  # a script tag would be stopped by the page's own policy
        found: list[dict[str, Any]] = self.page.evaluate("axe.run().then((found) => found.violations)")
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes']]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]


Opener = Callable[..., Watched]


@pytest.fixture
def workbench(browser: Browser, site: str) -> Iterator[Opener]:
    """Opens the page in a window of its own; afterwards nothing may have failed in it, or gone elsewhere."""
    opened: list[Watched] = []

    def window(site: str = site, **options: Any) -> Watched:
        page = browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
        page.set_default_timeout(10_000)
        watched = Watched(page, site)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("console", lambda message: _note(watched, message))
        page.on("request", lambda request: watched.hosts.add(urlsplit(request.url).hostname))
        opened.append(watched)
        return watched

    yield window
    for watched in opened:
        watched.page.context.close()
    assert [watched.errors for watched in opened if watched.errors] == []
    assert {host for watched in opened for host in watched.hosts} <= {"127.0.0.1", None}, "None: a blob is saved"


def _note(watched: Watched, message: ConsoleMessage) -> None:
    # A question that cannot be answered is no failure of the page, but browsers log the answer's status.
    if message.type == "error" and "Failed to load resource" not in message.text:
        watched.errors.append(message.text)
