"""`candapt cache`: what frozen layers made of images and is kept on disk."""

from datetime import datetime
from pathlib import Path

from rich.table import Table

from candapt.cache import ActivationCache, Entry
from candapt.console import fitted, output
from candapt.untrusted import size_in_words


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
    output.print(f"{size_in_words(sum(entry.size for entry in entries))} in {cache.folder}")


def clear_cache(folder: Path | None, key: str | None = None) -> None:
    """Remove all entries of the activation cache, or one."""
    cache = ActivationCache(folder)
    entries = cache.find(key)
    size = sum(entry.size for entry in entries)
    for entry in entries:
        cache.remove(entry)
    output.print(f"Removed {len(entries)} of the entries in {cache.folder}, {size_in_words(size)}.")


def describe_entry(entry: Entry) -> list[str]:
    """The cells of an entry's row."""
    about, begun = entry.about, entry.begun
    told = [str(about.get(name, "?")) for name in ("backbone", "finetune", "images")]
    used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
    state = f"partial ({', '.join(begun)})" if begun or not entry.views else "complete"
    return [entry.folder.name[:12], *told, str(len(entry.views)), size_in_words(entry.size), used, state]
