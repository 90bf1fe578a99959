"""Runs the lines of a block of shell, as far as a test can."""

import logging
import re
import shlex
import subprocess
import tomllib
from types import TracebackType
from typing import Self

from candapt.commands.main import main
from tests.docs.blocks import ROOT
from tests.forks import Command

TOOLS = ("cat", "cp", "curl", "echo", "head", "ls", "mkdir", "mv", "unzip")
"""Programs besides candapt that are run; blocks with others must say why they are not."""
SERVERS = ("review", "serve")  # commands that go on until they are stopped
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])


class Shell:
    """Runs lines one after the other; servers that they start go on until the end."""

    def __init__(self) -> None:
        self.servers: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for server in self.servers:  # how they end is tested with the servers
            server.kill()

    def run(self, line: str) -> None:
        """Run one line, which must work."""
        words = shlex.split(line, comments=True)
        if words[:1] == ["candapt"] and words[1] in SERVERS:
            self.start(words[1:])
        elif words[:1] == ["candapt"]:
            code = main(words[1:])
            logging.getLogger("candapt").handlers.clear()
            assert code == 0, line
        elif words[:2] == ["pip", "install"]:
            check_install(words[2:])
        elif words:
            assert words[0] in TOOLS, f"{words[0]} is not run here; say in a comment before the block why"
            subprocess.run(["sh", "-c", line], check=True)

    def start(self, words: list[str]) -> None:
        """Start a command and wait until it has printed an address, or has ended well."""
        server, lines = Command(*words), []
        for line in server.lines():
            lines.append(line)
            if "http://" in line:
                self.servers.append(server)
                return
        assert server.wait() == 0, "".join(lines)


def check_install(words: list[str]) -> None:
    """Check that a line installs extras of this package, which are installed where the tests run."""
    for word in words:
        match = re.fullmatch(r"candapt\[([\w,]+)\]", word)
        assert match, f"pip is not run here: say in a comment before the block why, or install only extras, not {word}"
        assert set(match[1].split(",")) <= EXTRAS, f"there is no extra {match[1]}"
