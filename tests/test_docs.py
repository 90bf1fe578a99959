"""README and docs say what the records say: tables and figures are up to date, claims hold, nothing else compares."""

import pytest

from benchmarks import tables
from benchmarks.claims import check_claims, unmarked

PAGES = {page.relative_to(tables.ROOT).as_posix(): page for page in tables.pages()}


def test_the_tables_of_the_paper_are_views_of_the_suite() -> None:
    index = PAGES["docs/methods/index.md"].read_text(encoding="utf-8")
    assert "<!-- table suite office31 can can-no-ao can-no-cas -->" in index
    assert "86.1" in tables.suite("office31", "can", "columns=A→W,A→D,D→A,W→A")  # the paper's own average of Table 4


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_the_records_say(page: str) -> None:
    text = PAGES[page].read_text(encoding="utf-8")
    assert tables.fill(text) == text, "run `python -m benchmarks.tables`"
    assert check_claims(text) == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_compare_nothing_else(page: str) -> None:
    assert unmarked(PAGES[page].read_text(encoding="utf-8")) == []
