"""The words of `candapt report`."""

from candapt.cli.flags import make_parser, path_type
from candapt.commands import report as work


def report(arguments: list[str]) -> None:
    """Make the page of a run again, or one page that compares several runs."""
    parser = make_parser("report", report)
    parser.add_argument("runs", type=path_type, nargs="+", help="Run folders.")
    parser.add_argument("--out", type=path_type, default=None, help="HTML file; one run has its own: report.html.")
    parser.add_argument(
        "--pictures",
        type=bool,
        default=True,
        help="Show images from where the run says that they are; false reads nothing outside of its folder.",
    )
    options = parser.parse_args(arguments)
    work.report(options.runs, options.out, pictures=options.pictures)
