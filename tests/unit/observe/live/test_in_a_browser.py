"""The page in headless Chromium, at the widths of a desk and a phone; skipped where there is none.

Playwright from PyPI drives it: `TOKENFLOW_CHROMIUM` names the browser, else one on the path is
taken. The environment of this repository has neither.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading

import pytest
from watched_pages import STOCK, tokenflow

from tokenflow_sgl.lab.observe import Scrape, parse
from tokenflow_sgl.lab.observe.live import Watched, WatchedServer, serve_page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = os.environ.get("TOKENFLOW_CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium: TOKENFLOW_CHROMIUM names one")
LATE_MS = 60_000


class Served:
    """The page of one server whose readers can be told to stall, and of one with stock SGLang."""

    def __init__(self) -> None:
        self.stalled = 0
        self.url = ""
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._up.wait(60.0)

    def _read(self, url: str) -> Scrape:
        return parse(tokenflow(40, self.stalled) if url.endswith("1") else STOCK)

    def _run(self) -> None:
        urls = ("http://one:1", "http://a-server-with-a-long-name.of-a-cluster.example:2")
        servers = [WatchedServer(url, 1.0, self._read) for url in urls]
        watched = Watched(servers, [], 1.0)
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(serve_page(watched, "127.0.0.1", 0, self._listening))
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    def _listening(self, url: str) -> None:
        self.url = url
        self._up.set()

    def end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()


@pytest.fixture
def served():
    page = Served()
    yield page
    page.end()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_renews_itself_and_says_when_it_is_old(served, browser, width, scheme) -> None:
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(served.url)
    expect = playwright.expect
    expect(page).to_have_title("No reader waits (40 read)", timeout=LATE_MS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    served.stalled = 12
    expect(page).to_have_title("12 of 40 readers stall", timeout=LATE_MS)
    expect(page.locator("h1")).to_have_text("12 of 40 readers stall")
    expect(page.locator("#lost")).to_be_hidden()
    assert complaints == []
    served.end()
    expect(page.locator("#lost")).to_be_visible(timeout=LATE_MS)
    context.close()
