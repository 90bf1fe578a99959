"""The site builds without a warning, loads nothing from elsewhere, and its links lead somewhere."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT

OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages that are no part of the site, whose links nothing else checks."""
ATTEMPTS = 12
"""How often the search is typed: on a busy machine a page takes long to listen."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it; a page that is not in the navigation is a warning, and that an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr  # not with --quiet, which overlooks warnings
    assert "WARNING" not in done.stderr
    return folder


class _Loaded(HTMLParser):
    """Addresses that a page loads by itself: scripts, styles, pictures and frames; not where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        name = "href" if tag == "link" else "src"
        if tag != "a":
            self.addresses += [value for key, value in attributes if key == name and value]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        parser = _Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.addresses
        assert [address for address in parser.addresses if re.match(r"(\w+:)?//", address)] == [], page.name
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(@import|url\()\s*['\"]?(\w+:)?//", styles)


def test_the_reference_has_every_public_name(site: Path) -> None:
    import candapt

    text = (site / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'id="candapt\.[\w.]*?(\w+)"', text))
    assert set(candapt.__all__) - described == {"METHODS"}  # a table; its rows have pages


def test_it_is_searched_from_disk(site: Path) -> None:
    """Without a server and without a request to elsewhere."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    own = next((path for name in names if (path := shutil.which(name))), None)
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=own, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium starts here: {str(error).splitlines()[0]}")
        page, requests, complaints = browser.new_page(), list[str](), list[Any]()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: complaints.append(error))
        page.goto((site / "index.html").as_uri())
        for _ in range(ATTEMPTS):  # what is typed before the page listens is lost
            page.fill("input.md-search__input", "")
            page.click("input.md-search__input")
            page.keyboard.type("contrastive discrepancy")
            with suppress(playwright.TimeoutError):
                page.wait_for_selector(".md-search-result__item", timeout=5_000)
                break
        assert page.is_visible(".md-search-result__item")
        assert complaints == []
        assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
        browser.close()


@pytest.mark.parametrize("name", OUTSIDE)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}
