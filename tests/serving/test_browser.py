"""The page in a real browser: upload, result, what is refused. Skipped where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.shared import PATIENCE, Running, photo, serving
from tests.toy import Toy

playwright = pytest.importorskip("playwright.sync_api")

WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium: the one that `playwright install chromium` gives, or the system's."""
    names = ("chromium", "chromium-browser", "google-chrome")
    own = next((path for name in names if (path := shutil.which(name))), None)
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=own, args=flags)
        except playwright.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(photo_run: Path) -> Iterator[Running]:
    with serving(photo_run) as running:
        yield running


@contextmanager
def opened(browser: Any, running: Running, width: int = 1280, path: str = "", *, ready: bool = True) -> Iterator[Any]:
    """A page; it must have no error, ask no other server, and fit the width."""
    complaints: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.set_default_timeout(1000 * PATIENCE)
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{running.address}{path}")
    if ready:
        page.wait_for_selector("html[data-ready]")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Browsers themselves report every answer that is a refusal.
    assert [each for each in complaints if "the server responded with a status of 4" not in each] == []
    assert [url for url in requests if not url.startswith((running.address, "data:", "blob:"))] == []
    page.close()


def file(name: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


@pytest.mark.parametrize("width", WIDTHS)
def test_images_are_dropped_and_predicted(browser: Any, server: Running, width: int) -> None:
    with opened(browser, server, width) as page:
        assert page.locator("#task").inner_text() == "source → target"
        assert "2 classes" in page.locator("#verdict").inner_text()
        page.set_input_files("#files", [file("first.png", photo(0)), file("second.png", photo(1, bright=True))])
        page.locator(".result[data-done=predicted]").nth(1).wait_for()
        cards = page.locator(".result")
        assert cards.locator(".file").all_inner_texts() == ["first.png", "second.png"]
        assert cards.locator(".label").all_inner_texts() == ["cat", "dog"]
        assert all("%" in text for text in cards.locator(".sure b").all_inner_texts())
        assert cards.nth(0).locator(".near b").all_inner_texts() == ["cat"] * 5
        pictures = cards.nth(0).locator("img")
        assert pictures.count() == 6
        assert pictures.evaluate_all("(images) => images.every((each) => each.complete && each.naturalWidth > 0)")
        page.click("#clear")
        assert cards.count() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wrong_file_is_refused_kindly(browser: Any, server: Running, width: int) -> None:
    with opened(browser, server, width) as page:
        name = "<img src=x onerror=alert(1)>.txt"
        page.set_input_files("#files", [file(name, b"hello"), file("good.png", photo(0))])
        page.locator(".result[data-done=predicted]").wait_for()
        refused = page.locator(".result[data-done=refused]")
        assert refused.locator(".label").inner_text() == f"'{name}' is not an image in a known format."
        assert page.locator(".result[data-done=predicted] .label").inner_text() == "cat"
        assert page.locator("#results img").count() == 7  # none made of the name


def test_by_drag_and_drop(browser: Any, server: Running) -> None:
    with opened(browser, server) as page:
        transfer = page.evaluate_handle(
            """(bytes) => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png"));
                return transfer;
            }""",
            list(photo(0)),
        )
        page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
        page.locator(".result[data-done=predicted]").wait_for()
        assert page.locator(".result .file").inner_text() == "dropped.png"


def test_vectors(browser: Any, vector_run: Path, toy: Toy) -> None:
    with serving(vector_run) as running, opened(browser, running, 400) as page:
        assert not page.locator("#drop").is_visible()
        rows = [",".join(map(str, row)) for row in np.round(toy.target_x[:2], 4).tolist()]
        page.fill("#rows", "\n".join(rows))
        page.click("#numbers button")
        page.locator(".result[data-done=predicted]").nth(1).wait_for()
        assert page.locator(".result .file").all_inner_texts() == ["row 1", "row 2"]
        page.fill("#rows", "1, 2, three")
        page.click("#numbers button")
        page.locator(".result[data-done=refused]").wait_for()
        assert "shape [24]" in page.locator(".result[data-done=refused] .label").inner_text()


def test_it_asks_for_the_token(browser: Any, photo_run: Path) -> None:
    token = "a-token-for-the-page"
    with serving(photo_run, token=token) as running, opened(browser, running, ready=False) as page:
        page.locator("#entrance").wait_for()
        assert not page.locator("#work").is_visible()
        page.fill("#token", "not-this-one")
        page.click("#entrance button")
        page.locator("#wrong").wait_for()
        page.fill("#token", token)
        page.click("#entrance button")
        page.wait_for_selector("html[data-ready]")
        page.set_input_files("#files", [file("first.png", photo(0))])
        page.locator(".result[data-done=predicted]").wait_for()
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#work").is_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_description_of_the_api(browser: Any, server: Running, width: int) -> None:
    with opened(browser, server, width, "docs", ready=False) as page:
        assert page.locator("h2").all_inner_texts() == ["POST /predict", "GET /health", "GET /model"]


def test_a_server_that_has_gone(browser: Any, photo_run: Path) -> None:
    with serving(photo_run) as running:
        page = browser.new_page()
        page.goto(running.address)
        page.wait_for_selector("html[data-ready]")
        assert running.stop() == 0
        page.set_input_files("#files", [file("late.png", photo(0))])
        page.locator(".result[data-done=refused]").wait_for()
        assert "still running" in page.locator(".result .label").inner_text()
        page.close()
