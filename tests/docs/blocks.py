"""The code blocks of README and docs.

A block in a language is run by `test_blocks.py`. One that cannot run there has a comment right before it that says
why, or which other test runs it:

    <!-- not run: it installs packages -->
    <!-- run by tests/export/test_pages.py -->
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

TEXT = ("", "text")  # languages of what is no code: output, formulas, drawings
_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.M | re.S)
_MARKER = re.compile(r"<!-- (not run|run by):? ([^>]+?) -->\s*\Z")
_LOOKS_LIKE_CODE = re.compile(r"^ *(\$ |candapt |pip |python |make |import |from \w+ import )", re.M)


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    language: str
    text: str
    line: int  # number of the line after the fence
    not_run: str  # why it is not run; empty if it is
    run_by: str  # the other test that runs it

    @property
    def is_code(self) -> bool:
        """Whether it is in a language."""
        return self.language not in TEXT

    @property
    def is_disguised(self) -> bool:
        """Whether it is marked as text but reads like commands or a program."""
        return not self.is_code and _LOOKS_LIKE_CODE.search(self.text) is not None


def blocks(page: str) -> list[Block]:
    """The blocks in the text of a page, in order."""
    found = []
    for match in _FENCED.finditer(page):
        marker = _MARKER.search(page[: match.start()])
        kind, about = (marker[1], marker[2]) if marker else ("", "")
        text, line = textwrap.dedent(match["text"]), page[: match.start("text")].count("\n") + 1
        reason, test = (about if kind == name else "" for name in ("not run", "run by"))
        found.append(Block(match["language"], text, line, reason, test))
    return found
