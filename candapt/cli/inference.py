"""The words of `candapt predict` and `candapt evaluate`."""

from candapt.cli.flags import add_strict, make_parser, path_type
from candapt.cli.words import strict_last
from candapt.commands import inference as work


def predict(arguments: list[str]) -> None:
    """Predict new images or features with the model of a run."""
    parser = make_parser("predict", predict)
    parser.add_argument("run", type=path_type, help="Run folder.")
    parser.add_argument("input", type=path_type, help="Folder of images, .txt file that lists images, or .npz with x.")
    parser.add_argument("--out", type=path_type, required=True, help="File to write.")
    parser.add_argument(
        "--format",
        type=work.Format,
        default="csv",
        help="csv: a table; visda: class numbers in the order of the challenge's image_list.txt.",
    )
    add_strict(parser)
    options = parser.parse_args(strict_last(arguments))
    work.predict(options.run, options.input, options.out, format=options.format, strict=options.strict)


def evaluate(arguments: list[str]) -> None:
    """Measure the model of a run on labelled data."""
    parser = make_parser("evaluate", evaluate)
    parser.add_argument("run", type=path_type, help="Run folder.")
    parser.add_argument(
        "labeled", type=path_type, help="Folder with one sub-folder a class, .txt list, or .npz with x, y."
    )
    parser.add_argument("--out", type=path_type, default=None, help="JSON file for all figures.")
    add_strict(parser)
    options = parser.parse_args(strict_last(arguments))
    work.evaluate(options.run, options.labeled, options.out, strict=options.strict)
