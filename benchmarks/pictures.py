"""Take the pictures of README and docs from a run's page: `python -m benchmarks.pictures RUN`.

RUN is a run folder with a report.html, such as demo/can after `make demo`. Needs Debian's chromium, or a browser that
`--browser` names.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SIZE = (1280, 1180)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--browser", default="chromium")
    options = parser.parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        shot = [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={PICTURES / 'report.png'}"]
        page = (options.run / "report.html").absolute().as_uri()
        subprocess.run([options.browser, *flags, *quiet, *shot, page], check=True)


if __name__ == "__main__":
    main()
