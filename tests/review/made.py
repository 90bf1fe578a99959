"""A review to drive in tests: of small images with known classes."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from candapt.review.answers import AnswerFile
from candapt.review.sampling import Population, Sample
from candapt.review.server import ReviewServer
from candapt.review.session import Plan, Session

CLASSES = ("cat", "dog", "guinea_pig", "<b>emu</b>", "zebra")
COLORS = ("#b5651d", "#2f6f9f", "#6a994e", "#bc4749", "#8d99ae")
TRUTH = [CLASSES[row % 5] for row in range(300)]


def predictions() -> tuple[Sample, ...]:
    """Every tenth prediction is wrong: it says the next class; confidence does not know."""
    wrong = [CLASSES[(row + 1) % 5] if row % 10 == 3 else label for row, label in enumerate(TRUTH)]
    return tuple(Sample(f"photos/{row}.jpg", label, (row * 7 % 300) / 300) for row, label in enumerate(wrong))


def picture(name: str) -> bytes:
    """A plate in the color of the true class."""
    row, buffer = int(Path(name).stem), BytesIO()
    Image.new("RGB", (320, 240), COLORS[row % 5]).save(buffer, "JPEG")
    return buffer.getvalue()


def session(run: Path, plan: Plan | None = None, known: Sequence[str] = (), **changes: Any) -> Session:
    """A session over a folder."""
    answers = AnswerFile(run)
    answers.prepare()
    settings = {"title": "catalogue → <i>webcam</i>", "picture": picture, **changes}
    return Session(Population(predictions(), frozenset(known)), CLASSES, answers, plan or Plan(), **settings)


@contextmanager
def served(reviewed: Session) -> Iterator[ReviewServer]:
    """A server that answers."""
    with ReviewServer(reviewed) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()
