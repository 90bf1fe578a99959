"""The words of `candapt demo`."""

from pathlib import Path

from candapt.cli.flags import make_parser, path_type


def demo(arguments: list[str]) -> None:
    """See it work: from rendered digits to handwritten ones, source-only beside CAN, in about a minute."""
    parser = make_parser("demo", demo)
    parser.add_argument(
        "--out", type=path_type, default=Path("demo"), help="Folder for the two runs and their summary."
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of every random draw.")
    parser.add_argument("--report", type=bool, default=True, help="Write report.html for each run and for both.")
    options = parser.parse_args(arguments)
    from candapt.demo import demo as run_demo  # matplotlib and its fonts take seconds to import

    run_demo(options.out, options.seed, report=options.report)
