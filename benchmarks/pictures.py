"""Take the pictures of README and docs from the pages of a run: `python -m benchmarks.pictures RUN`.

RUN is demo/can after `make demo`. Its report is photographed as it is, and a review of it after 50 answers, which the
true labels of the digits give, in a copy of the run. Needs Debian's chromium, or a browser that `--browser` names.
"""

import argparse
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from candapt.data.digits import handwritten_digits
from candapt.data.domains import Side
from candapt.report.run_data import read_run
from candapt.report.thumbnails import thumbnails_of
from candapt.review.answers import AnswerFile
from candapt.review.server import ReviewServer
from candapt.review.session import Plan, Session

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
REPORT, REVIEW = (1280, 1180), (1280, 820)  # width and height


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


if __name__ == "__main__":
    main()
