"""The command line: each command is a function of its words, with a parser of its own."""

from candapt.cli.entry import main

__all__ = ["main"]
