"""The entry point: finds the command, runs it, and turns what went wrong into one sentence and an exit code."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from candapt.commands import COMMANDS
from candapt.errors import LOST_CODE, UserError, describe_machine_error, is_lost_connection, known_name

MAX_SENTENCE = 2000  # longest error message; it may name files, and names may be long
WAIT_SECONDS, LONGEST_WAIT = 5.0, 60.0  # for the processes before this one on its machine to tell of an error: for each


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or 2 after one sentence that says what to fix."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        _print(overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        _print(f"candapt {version('candapt')}")
        return 0
    try:
        if any("\0" in argument for argument in arguments):
            raise UserError("A file name cannot contain a null character.")
        name = known_name(arguments[0], COMMANDS, "command")
        return _run(name, arguments[1:])
    except UserError as error:
        _print_in_turn(str(error))
        return 2


def _run(name: str, arguments: list[str]) -> int:
    """Import and run a command."""
    from candapt.console import show_log
    from candapt.storage.interruption import Interrupted

    show_log(quiet=os.environ.get("RANK", "0") != "0")
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # Pillow's, lower than our own
    try:
        import_module(f"candapt.commands.{name}").main(arguments)
    except (OSError, MemoryError, RuntimeError) as error:  # a full disk, a vanished file: what was written stays
        if (reason := describe_machine_error(error)) is None:
            raise
        is_lost = is_lost_connection(error)
        sentence = f"{reason}; {_advice(error) or 'then start again'}."
        if not is_lost:
            _print_in_turn(sentence)
        elif not _starter_tells():
            _print_error(sentence)
        return LOST_CODE if is_lost else 2
    except KeyboardInterrupt as error:
        code = error.exit_code if isinstance(error, Interrupted) else 130
        is_told = code == 128 + signal.SIGTERM and _starter_tells()  # which ends the processes by that signal
        if _local_rank() == 0 and not is_told:  # all were stopped
            _print_error("; ".join(filter(None, ("stopped", _advice(error)))) + ".")
        return code
    return 0


def _starter_tells() -> bool:
    """Whether another `candapt` process has started this one, and tells what happened to it and to the others."""
    # The one that starts them has the first variable too, but no rank.
    return "CANDAPT_STARTED" in os.environ and "LOCAL_RANK" in os.environ


def overview() -> str:
    """The help of the bare command."""
    return "\n".join(
        [
            "usage: candapt COMMAND [options]",
            "",
            "Move an image classifier to a new domain that has no labels.",
            "",
            *(f"  {name:<10} {summary}" for name, summary in COMMANDS.items()),
            "",
            "`candapt COMMAND --help` lists the options of a command.",
        ]
    )


def _print(text: str) -> None:
    """Print to standard output, whose reader may close it early, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = None


def _local_rank() -> int:
    """Number of this process among those of its command on this machine, from 0 on."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _print_in_turn(sentence: str) -> None:
    """Print an error, unless a process before this one on its machine has met the same and ends first.

    Who started the processes ends all of them once one has ended: an error of this one alone, such as a GPU without
    memory, and one that the first process has not met yet, would otherwise never be printed.
    """
    time.sleep(min(WAIT_SECONDS * _local_rank(), LONGEST_WAIT))
    _print_error(sentence)


def _print_error(sentence: str) -> None:
    """Print to standard error; names in the sentence cannot control the terminal."""
    from candapt.storage.safe_reading import printable, shortened

    text = f"candapt: {printable(shortened(sentence, MAX_SENTENCE))}"
    print(f"\x1b[31m{text}\x1b[0m" if sys.stderr.isatty() else text, file=sys.stderr)


def _advice(error: BaseException) -> str:
    """How to continue, which the command may have attached to the error."""
    return "; ".join(getattr(error, "__notes__", ()))
