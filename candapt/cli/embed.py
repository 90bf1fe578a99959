"""The words of `candapt embed`."""

from candapt.cli.flags import add_strict, make_parser, path_type
from candapt.cli.words import spelled_out, strict_last
from candapt.commands import embed as work
from candapt.settings import ImageChoice, NetworkSettings

HEAD_SETTINGS = {"finetune", "views", "head", "bottleneck", "dropout"}
"""What only a training needs to know of the network."""


def embed(arguments: list[str]) -> None:
    """Write the features that a frozen backbone gives of images to an .npz file, to adapt later without them."""
    parser = make_parser("embed", embed)
    parser.add_argument("input", type=path_type, help="Folder of images.")
    parser.add_argument(
        "--out", type=path_type, required=True, help=".npz file to write: x, names; with labels y, classes."
    )
    parser.add_argument("--labeled", action="store_true", help="INPUT has one sub-folder a class; write y and classes.")
    add_strict(parser)
    parser.add_class_arguments(NetworkSettings, "network", skip=HEAD_SETTINGS)
    parser.add_class_arguments(ImageChoice, "images", skip={"augmentation"})
    options = parser.parse_args(strict_last(spelled_out(arguments)))
    made = parser.instantiate(options)
    work.embed(
        options.input,
        options.out,
        made.network,
        made.images,
        labeled=options.labeled,
        strict=options.strict,
    )
