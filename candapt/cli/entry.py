"""Where a command begins and ends: what it is called, and what is said when it cannot go on."""

import sys
import warnings
from collections.abc import Callable, Sequence

from jsonargparse import ArgumentError

from candapt.cli.adapt import adapt
from candapt.cli.benchmark import benchmark
from candapt.cli.cache import cache
from candapt.cli.demo import demo
from candapt.cli.embed import embed
from candapt.cli.explanation import explain
from candapt.cli.inference import evaluate, predict
from candapt.cli.report import report
from candapt.cli.tune import tune
from candapt.console import console, output, show_log
from candapt.errors import UserError, trouble
from candapt.interruption import Interrupted
from candapt.runs import versions
from candapt.untrusted import printable, shortened

MAX_SENTENCE = 2000
"""Letters of an error; it may name files, and names may be long."""

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": demo,
    "adapt": adapt,
    "predict": predict,
    "evaluate": evaluate,
    "report": report,
    "tune": tune,
    "embed": embed,
    "cache": cache,
    "benchmark": benchmark,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, or 2 after one sentence that says what to put right."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        _print(overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        _print(f"candapt {versions()['candapt']}")
        return 0
    show_log()
    warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # Pillow's, lower than our own
    try:
        if any("\0" in word for word in arguments):
            raise UserError("A name with a null character cannot be that of a file.")
        if arguments[0] not in COMMANDS:
            raise UserError(f"There is no command {arguments[0]!r}: choose one of {', '.join(COMMANDS)}.")
        COMMANDS[arguments[0]](arguments[1:])
    except (UserError, ArgumentError) as error:
        sentence = str(error) if isinstance(error, UserError) else explain(error, arguments[0])
        _say(sentence)
        return 2
    except (OSError, MemoryError, RuntimeError) as error:  # a full disk, a vanished file: what is written stays
        if (reason := trouble(error)) is None:
            raise
        _say(f"{reason}; {_advice(error) or 'then start again'}.")
        return 2
    except KeyboardInterrupt as error:
        _say("; ".join(filter(None, ("stopped", _advice(error)))) + ".")
        return error.exit_code if isinstance(error, Interrupted) else 130
    return 0


def _print(text: str) -> None:
    """Plain text to standard output, whose reader may end early, as `head` does."""
    output.print(text, markup=False)


def _say(sentence: str) -> None:
    """Say what went wrong; what the sentence repeats of names and files cannot steer the terminal."""
    text = f"candapt: {printable(shortened(sentence, MAX_SENTENCE))}"
    console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _advice(error: BaseException) -> str:
    """How to go on, which the command may have noted on what ended it."""
    return "; ".join(getattr(error, "__notes__", ()))


def overview() -> str:
    """The help of the bare command."""
    lines = [f"  {name:<10} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: candapt COMMAND [options]",
            "",
            "Move an image classifier to a new domain that has no labels.",
            "",
            *lines,
            "",
            "candapt COMMAND --help tells more.",
        ]
    )
