"""The words of `candapt cache`."""

from candapt.cli.flags import add_cache, make_parser
from candapt.cli.words import one_of
from candapt.commands import cache as work


def cache(arguments: list[str]) -> None:
    """List what frozen layers made of images and is kept on disk, or clear it."""
    parser = make_parser("cache", cache)
    parser.add_argument("action", nargs="?", type=str, default="list", help="list, or clear: all, or the KEY alone.")
    parser.add_argument("key", nargs="?", type=str | None, default=None, help="First column of the list, or its start.")
    add_cache(parser)
    options = parser.parse_args(arguments)
    actions = {"list": work.list_cache, "clear": work.clear_cache}
    actions[one_of(options.action, actions, "The action")](options.cache, options.key)
