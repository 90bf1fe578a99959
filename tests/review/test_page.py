"""The review page in a real browser: by keyboard, on a phone, closed and opened again, by two people at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from candapt.review.answers import current
from candapt.review.server import ReviewServer
from candapt.review.session import Plan, Session
from tests.chromium import headless_chromium
from tests.review.made import CLASSES, TRUTH, served, session

ESTIMATE = {"value": 0.95, "low": 0.88, "high": 1.0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with headless_chromium() as started:
        yield started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReviewServer]:
    with served(session(tmp_path, Plan(50, "confidence"), estimate=ESTIMATE)) as started:
        yield started


@contextmanager
def opened(browser: Any, address: str, width: int = 1280, profile: Any = None) -> Iterator[Any]:
    """The page with its first sample; it must have no error, ask nobody else, and fit the width."""
    complaints: list[str] = []
    context = profile or browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if not request.url.startswith(address) else None)
    page.goto(address)
    page.wait_for_selector("#main:not([hidden])")
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page.close()


def answer(page: Any, *, keys: tuple[str, str] = ("ArrowRight", "ArrowLeft")) -> None:
    """Judge what is shown by keyboard, and wait until it is stored."""
    before = page.text_content("#name") + page.text_content("#count")
    row = int(Path(page.text_content("#name")).stem)
    if page.text_content("#prediction") == TRUTH[row]:
        page.keyboard.press(keys[0])
    else:
        page.keyboard.press(keys[1])
        page.wait_for_selector("#chooser[open]")
        page.keyboard.type(TRUTH[row][:4].replace("_", " "))
        page.keyboard.press("Enter")
    page.wait_for_function("(before) => name_and_count() !== before".replace("name_and_count()", SHOWN), arg=before)


SHOWN = "(document.getElementById('name').textContent + document.getElementById('count').textContent)"


def answered(reviewed: Session) -> dict[str, bool | None]:
    return {name: each.label == TRUTH[int(Path(name).stem)] for name, each in current(reviewed.answers.read()).items()}


def test_fifty_answers_by_keyboard(browser: Any, server: ReviewServer) -> None:
    """Closed in the middle and opened again: nothing is lost."""
    reviewed = server.session
    profile = browser.new_context(viewport={"width": 1280, "height": 900})
    with opened(browser, server.address, profile=profile) as page:
        for number in range(23):
            answer(page, keys=("y", "n") if number % 2 else ("ArrowRight", "ArrowLeft"))
        assert page.text_content("#count") == "23 of 50 answers"
        assert not page.is_visible("#outcome")
        shown = page.text_content("#name")
    with opened(browser, server.address, profile=profile) as page:
        assert page.text_content("#count") == "23 of 50 answers"
        assert page.text_content("#name") == shown
        for _ in range(27):
            answer(page)
        measured = reviewed.measure()
        assert page.is_visible("#outcome")
        assert page.text_content("#headline") == f"{measured.sentence.split()[0]} right"
        assert measured.sentence.startswith(f"{page.text_content('#headline')}, {page.text_content('#between')}, by 50")
        assert page.is_visible("#estimate")
        for _ in range(10):
            answer(page)
        assert page.text_content("#count") == "60 answers"
    profile.close()
    assert len(answered(reviewed)) == 60
    assert all(answered(reviewed).values())  # every answer names the true class
    assert set(answered(reviewed)) == {reviewed.population.samples[row].name for row in reviewed.order[:60]}


def test_two_browsers_at_once(browser: Any, server: ReviewServer) -> None:
    with opened(browser, server.address) as one, opened(browser, server.address) as two:
        for _ in range(8):
            assert one.text_content("#name") != two.text_content("#name")
            answer(one)
            answer(two)
        assert two.text_content("#count") == "16 of 50 answers"
    assert len(server.session.answers.read()) == len(answered(server.session)) == 16
    assert len({each.reviewer for each in server.session.answers.read()}) == 2


def test_cannot_say_undo_and_the_other_choices(browser: Any, server: ReviewServer) -> None:
    with opened(browser, server.address) as page:
        first = page.text_content("#name")
        page.keyboard.press("ArrowDown")
        page.wait_for_function("() => document.getElementById('left-out').textContent === '1 of them “cannot say”'")
        page.keyboard.press("u")
        page.wait_for_function("() => document.getElementById('count').textContent === '0 of 50 answers'")
        assert page.text_content("#name") == first
        assert page.is_disabled("#undo")
        for word, verdict, label in (("none", "other", None), ("", "wrong", None), ("EMU", "wrong", CLASSES[3])):
            name = page.text_content("#name")
            page.click("#wrong")
            choices = page.locator("#choices li")
            assert page.text_content("#prediction") not in choices.all_text_contents()
            page.keyboard.type("" if word in ("", "none") else word)
            if word == "EMU" and page.text_content("#prediction") == CLASSES[3]:
                page.keyboard.press("Escape")
                continue
            for _ in range({"none": choices.count() - 2, "": choices.count() - 1}.get(word, 0)):
                page.keyboard.press("ArrowDown")
            page.keyboard.press("Enter")
            page.wait_for_function("(name) => document.getElementById('name').textContent !== name", arg=name)
            stored = server.session.answers.read()[-1]
            assert (stored.path, stored.answer, stored.label) == (name, verdict, label)
        page.keyboard.press("n")
        page.keyboard.press("Escape")
        assert not page.is_visible("#chooser")
        assert len(current(server.session.answers.read())) <= 3
        page.click("#reveal")
        assert page.is_visible("#outcome")


def test_names_stay_text_and_a_missing_picture_shows_the_name(browser: Any, tmp_path: Path) -> None:
    with served(session(tmp_path, picture=lambda name: None)) as server:
        page = browser.new_page()
        page.goto(server.address)
        page.wait_for_selector("#bare:not([hidden])")
        assert page.text_content("#title") == "catalogue → <i>webcam</i>"
        assert page.text_content("#bare").startswith("photos/")
        assert page.is_visible("#right")
        page.close()


def test_an_answer_that_is_not_stored_is_shown_again(browser: Any, server: ReviewServer) -> None:
    page = browser.new_page()
    page.goto(server.address)
    page.wait_for_selector("#main:not([hidden])")
    name = page.text_content("#name")
    server.session.answers.append = lambda answer: (_ for _ in ()).throw(OSError(28, "full"))  # type: ignore[method-assign]
    page.keyboard.press("y")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.text_content("#problem").startswith("Not stored. No space left on device")
    assert page.text_content("#name") == name
    page.close()


def test_on_a_phone(browser: Any, server: ReviewServer) -> None:
    with opened(browser, server.address, width=400) as page:
        for button in ("#right", "#wrong", "#unsure"):
            box = page.locator(button).bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400
            assert box["y"] + box["height"] <= 900  # without scrolling
        page.click("#wrong")
        page.locator("#choices li").first.click()
        page.wait_for_function("() => document.getElementById('count').textContent === '1 of 50 answers'")
