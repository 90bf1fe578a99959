"""A real browser for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def headless_chromium() -> Iterator[Any]:
    """Headless Chromium: the one that `playwright install chromium` gives, or the system's; skips where none starts."""
    playwright = pytest.importorskip("playwright.sync_api")
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
