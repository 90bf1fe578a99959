"""Pages in a real browser: no error, no request, nothing that sticks out on a phone. Skipped where there is none."""

import csv
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from candapt.commands.main import main
from candapt.report import write_comparison
from candapt.report.run_data import read_run
from candapt.report.samples import class_samples
from tests.chromium import headless_chromium
from tests.report.shared import SECTIONS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with headless_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def comparison(hostile_run: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison([hostile_run, image_run], tmp_path_factory.mktemp("pages") / "both.html")


@contextmanager
def opened(browser: Any, path: Path, width: int, sections: Collection[str]) -> Iterator[Any]:
    """A page that is drawn; it must have no error, ask for nothing, fit the width and show these sections."""
    complaints: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.locator("details:not([open]) .main-svg").count() == 0  # drawn when they are unfolded
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.wait_for_function("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))")
    assert [name for name in sections if not page.locator(f"#{name}").is_visible()] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    yield page
    assert complaints == []
    assert [url for url in requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page_of", ["hostile", "images", "comparison"])
def test_it_opens(browser: Any, hostile_run: Path, image_run: Path, comparison: Path, page_of: str, width: int) -> None:
    path, sections = {
        "hostile": (hostile_run / "report.html", (*SECTIONS, "oracle")),
        "images": (image_run / "report.html", SECTIONS),
        "comparison": (comparison, ("verdict", "runs", "course", "settings")),
    }[page_of]
    with opened(browser, path, width, sections) as page:
        assert page.evaluate("document.querySelectorAll('script').length") == 3


@pytest.fixture(scope="module")
def office31(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from webcam to dslr, two images of each class, with the labels of the target for the oracle."""
    folder, data = tmp_path_factory.mktemp("office31"), shared / "data" / "office31"
    if not data.is_dir():
        pytest.skip(f"there is no {data}")
    names: dict[str, list[Path]] = {}
    for domain in ("webcam", "dslr"):
        images = data / domain / "images"
        chosen = [path for each in sorted(images.iterdir()) for path in sorted(each.iterdir())[:2]]
        names[domain] = [path.relative_to(images) for path in chosen]
        for path, name in zip(chosen, names[domain], strict=True):
            (folder / domain / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / domain / name)
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((name, name.parent.name) for name in names["dslr"])])
    flags = {
        "out": folder / "run",
        "target-labels": folder / "labels.csv",
        "weights": shared / "weights" / "resnet50-imagenet.safetensors",
        "finetune": "head",
        "images.size": 96,  # the page shows the files, not what the network sees
        "network.views": 0,
        "rounds": 3,
        "training.steps": 5,
        "training.accelerator": "cpu",
    }
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    assert main(["adapt", str(folder / "webcam"), str(folder / "dslr"), *words]) == 0
    return folder / "run"


@pytest.mark.parametrize("width", [1280, 390])
def test_photographs_of_office31(browser: Any, office31: Path, width: int) -> None:
    path = office31 / "report.html"
    assert path.stat().st_size < 8e6
    with opened(browser, path, width, (*SECTIONS, "oracle")) as page:
        assert page.locator("#check img").count() == 24
        pictures = page.locator("#gallery img")
        chosen = class_samples(read_run(office31).predictions).values()
        assert pictures.count() == sum(len(part) for some in chosen for part in some)  # every one, once
        assert pictures.evaluate_all("(images) => images.every((each) => each.complete && each.naturalWidth >= 64)")
        data = page.evaluate("JSON.parse(document.getElementById('data').textContent)")
        assert len(data["points"][0]["thumbnails"]) == 124


def test_a_point_of_the_map_tells_its_name_and_shows_its_picture(browser: Any, image_run: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((image_run / "report.html").as_uri())
    page.wait_for_selector("#chart-map-after .point")
    page.locator("#chart-map-after").scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # scrolling hides the card
    cards = []
    for place in range(5):  # a point may lie on another one
        box = page.locator("#chart-map-after .point").nth(place).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#card:not([hidden]) img")
        cards.append(page.locator("#card").inner_text())
    assert any("source, labeled" in card for card in cards)
    page.select_option("#highlight", "1")
    assert "0.07" in page.evaluate("JSON.stringify(document.querySelector('#chart-map-after').data[0].marker.opacity)")
    page.close()


def test_training_is_folded_and_its_link_unfolds_it(browser: Any, hostile_run: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((hostile_run / "report.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    assert not page.locator("#chart-classification").is_visible()
    page.click("nav a[href='#course']")
    page.wait_for_selector("#chart-classification .main-svg")
    width = page.locator("#chart-classification .main-svg").first.bounding_box()["width"]
    assert 200 < width <= page.locator("#chart-classification").bounding_box()["width"]
    page.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_without_javascript_there_are_text_tables_pictures_and_maps(browser: Any, image_run: Path, width: int) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": width, "height": 844})
    page = context.new_page()
    page.goto((image_run / "report.html").as_uri())
    for name in SECTIONS:
        assert page.locator(f"#{name}").is_visible(), name
    assert page.locator("#check img").first.bounding_box()["width"] > 50
    assert page.locator("#map svg").count() == 2
    assert page.locator("#map svg").first.bounding_box()["height"] > 200
    assert not page.locator("#highlight").is_visible()
    page.locator("#course > details > summary").click()
    assert page.locator("#course noscript p").first.is_visible()
    page.get_by_text("Every round in numbers").first.click()
    assert page.locator("#course table").first.is_visible()
    context.close()
