"""`candapt cache`: outputs of frozen layers that are kept on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.table import Table

from candapt.commands.parser import parse_options, positional
from candapt.console import fitted, output
from candapt.errors import known_name
from candapt.network.activations import ActivationCache, CacheEntry
from candapt.storage.safe_reading import format_size


@dataclass(frozen=True)
class CacheOptions:
    """Options of `candapt cache`."""

    action: str = positional("list")
    """list, or clear: everything, or the entry KEY alone."""
    key: str | None = positional(None)
    """First column of the list, or the beginning of it."""
    cache: Path | None = None
    """Folder of the cache (default: CANDAPT_CACHE, else the user's cache folder)."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    options = parse_options(CacheOptions, "cache", arguments)
    actions = {"list": list_cache, "clear": clear_cache}
    actions[known_name(options.action, actions, "action")](options.cache, options.key)


def list_cache(folder: Path | None, key: str | None = None) -> None:
    """Show the entries of the activation cache, the last used first."""
    cache = ActivationCache(folder)
    entries = cache.find(key)
    if not entries:
        output.print(f"The cache {cache.folder} is empty.")
        return
    table = Table("key", "backbone", "depth", "images", "views", "size", "last used", "state", box=None)
    for entry in entries:
        table.add_row(*describe_entry(entry))
    output.print(fitted(table))
    output.print(f"{format_size(sum(entry.size for entry in entries))} in {cache.folder}")


def clear_cache(folder: Path | None, key: str | None = None) -> None:
    """Remove all entries of the activation cache, or one."""
    cache = ActivationCache(folder)
    entries = cache.find(key)
    size = sum(entry.size for entry in entries)
    for entry in entries:
        cache.remove(entry)
    output.print(f"Removed {len(entries)} of the entries in {cache.folder}, {format_size(size)}.")


def describe_entry(entry: CacheEntry) -> list[str]:
    """The cells of an entry's row."""
    about, begun = entry.about, entry.begun
    facts = [str(about.get(name, "?")) for name in ("backbone", "finetune", "images")]
    used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
    state = f"partial ({', '.join(begun)})" if begun or not entry.views else "complete"
    return [entry.folder.name[:12], *facts, str(len(entry.views)), format_size(entry.size), used, state]
