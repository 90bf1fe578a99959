"""Take the pictures of README and docs from the pages of a run: `python -m benchmarks.pictures RUN`.

RUN is demo/can after `make demo`. Its report is photographed as it is, a review of it after 50 answers, which the true
labels of the digits give, in a copy of the run, and the page of `candapt serve` with some digits dropped on it. Needs
Debian's chromium, or a browser that `--browser` names.
"""

import argparse
import io
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.serve import serving
from candapt.data.digits import enlarge, handwritten_digits
from candapt.data.domains import Side
from candapt.report.run_data import read_run
from candapt.report.thumbnails import thumbnails_of
from candapt.review.answers import AnswerFile
from candapt.review.server import ReviewServer
from candapt.review.session import Plan, Session

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
REPORT, REVIEW, SERVE = (1280, 1180), (1280, 820), (1280, 915)  # width and height
DROPPED = (1000, 1001)  # rows of the digits that are dropped on the page


def photograph(browser: str, address: str, name: str, size: tuple[int, int]) -> None:
    """Write `docs/pictures/NAME.png`."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        wait = ["--disable-quic", "--virtual-time-budget=8000"]
        shot = [f"--window-size={size[0]},{size[1]}", f"--screenshot={PICTURES / name}.png"]
        subprocess.run([browser, *flags, *quiet, *wait, *shot, address], check=True)


def reviewed(folder: Path) -> Session:
    """A review of the demonstration after 50 answers."""
    run, truth = read_run(folder), handwritten_digits()[1].tolist()
    pictures, answers = thumbnails_of(run)[Side.TARGET], AnswerFile(folder)
    answers.prepare()
    estimate = {name: run.section("estimated_accuracy")[name] for name in ("value", "low", "high")}
    session = Session(
        run.population,
        run.classes,
        answers,
        Plan(50, "confidence"),
        title=run.task,
        estimate=estimate,
        picture=lambda name: pictures.jpeg(name, 960),
    )
    state = session.show("picture")
    for _ in range(50):
        row, label = state["sample"]["row"], str(truth[state["sample"]["row"]])
        is_right = label == state["sample"]["prediction"]
        state = session.answer("picture", row, "right" if is_right else "wrong", None if is_right else label)
    return session


def photograph_served(browser: str, run: Path) -> None:
    """Write `docs/pictures/serve.png`: the page of a server with some handwritten digits on it."""
    from playwright.sync_api import sync_playwright

    digits = enlarge(handwritten_digits()[0])[list(DROPPED)]
    files = []
    for row, digit in zip(DROPPED, digits, strict=True):
        buffer = io.BytesIO()
        image = Image.fromarray(np.round(digit / digit.max() * 255).astype(np.uint8).reshape(digit.shape[-2:]))
        image.resize((160, 160), Image.Resampling.NEAREST).save(buffer, "PNG")
        files.append({"name": f"digit {row}.png", "mimeType": "image/png", "buffer": buffer.getvalue()})
    with serving(run) as (address, _), sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=shutil.which(browser) or browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": SERVE[0], "height": SERVE[1]})
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        page.set_input_files("#files", files)  # type: ignore[arg-type]  # as playwright's documentation has it
        page.locator(".result[data-done=predicted]").nth(len(files) - 1).wait_for()
        page.screenshot(path=PICTURES / "serve.png")
        opened.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--browser", default="chromium")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    photograph(options.browser, (options.run / "report.html").absolute().as_uri(), "report", REPORT)
    with tempfile.TemporaryDirectory() as name:
        copied = Path(shutil.copytree(options.run, Path(name, "run"), ignore=shutil.ignore_patterns("review")))
        with ReviewServer(reviewed(copied)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            photograph(options.browser, server.address, "review", REVIEW)
            server.shutdown()
    photograph_served(options.browser, options.run)


if __name__ == "__main__":
    main()
