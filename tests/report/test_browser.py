"""Pages in a real browser: no error, no request, nothing that sticks out on a phone. Skipped where there is none."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from candapt.report import write_comparison

playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium: the one that `playwright install chromium` gives, or the system's."""
    own = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=own, args=flags)
        except playwright.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def comparison(hostile_run: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison([hostile_run, image_run], tmp_path_factory.mktemp("pages") / "both.html")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page_of", ["hostile", "images", "comparison"])
def test_it_opens(browser: Any, hostile_run: Path, image_run: Path, comparison: Path, page_of: str, width: int) -> None:
    path = {"hostile": hostile_run / "report.html", "images": image_run / "report.html", "comparison": comparison}[
        page_of
    ]
    complaints: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    assert complaints == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    for section in ("course", "settings"):
        assert page.locator(f"#{section} h2").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    page.close()


def test_a_point_of_the_map_tells_its_name_and_shows_its_picture(browser: Any, image_run: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((image_run / "report.html").as_uri())
    page.wait_for_selector("#chart-map-after .point")
    page.locator("#chart-map-after").scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # scrolling hides the card
    box = page.locator("#chart-map-after .point").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#card:not([hidden]) img")
    assert "source, labelled" in page.locator("#card").inner_text()
    page.select_option("#highlight", "1")
    assert "0.07" in page.evaluate("JSON.stringify(document.querySelector('#chart-map-after').data[0].marker.opacity)")
    page.close()
