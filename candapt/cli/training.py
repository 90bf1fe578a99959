"""What the commands that train on SOURCE and TARGET have in common."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from candapt.cli.config import read_config, settings_from_file
from candapt.cli.settings import add_common, add_groups
from candapt.cli.words import given_path, look_ahead, one_of
from candapt.methods import METHODS
from candapt.presets import DEFAULT, PRESETS
from candapt.settings import Settings


@dataclass(frozen=True)
class Chosen:
    """What must be known before there is a parser: which settings there are, and where their defaults come from."""

    method: str
    preset: str
    config: dict[str, Any]
    """The content of the configuration file."""
    flags: list[str]
    """All other words."""

    def add_settings(self, parser: ArgumentParser) -> None:
        """The flags of the method and the preset, and all that every training may be told."""
        parser.add_argument("--method", default=self.method, help=f"One of {', '.join(METHODS)}.")
        parser.add_argument("--seed", type=int, default=Settings.seed, help="Seed of every random draw.")
        add_common(parser, self.preset)
        add_groups(parser, [self.method], PRESETS[self.preset])

    def words(self, parser: ArgumentParser, foreign: Collection[str] = ()) -> list[str]:
        """What the parser is to parse, the file first; what is foreign to the command stays out of the file."""
        # Settings of methods that were not chosen stay out too.
        foreign = {"source", "target", "target_labels", *foreign, *METHODS} - {self.method}
        from_file = settings_from_file(self.config, parser, foreign)
        return [*from_file, "--method", self.method, "--preset", self.preset, *self.flags]

    def paths(self, options: Namespace) -> tuple[Path, Path]:
        """Source and target, from the words or else from the file."""
        source, target = (getattr(options, name) or self.config.get(name) for name in ("source", "target"))
        return (
            given_path(source, "SOURCE", "a labelled folder or .npz file"),
            given_path(target, "TARGET", "an unlabelled folder or .npz file"),
        )


def choose(arguments: Sequence[str]) -> Chosen:
    """Look for method, preset and configuration among the words."""
    chosen, flags = look_ahead(arguments, "method", "preset", "config")
    config = read_config(Path(chosen.config)) if chosen.config else {}
    method = one_of(chosen.method or config.get("method", "can"), METHODS, "--method")
    preset = one_of(chosen.preset or config.get("preset", DEFAULT), PRESETS, "--preset")
    return Chosen(method, preset, config, flags)


def add_paths(parser: ArgumentParser) -> None:
    """SOURCE and TARGET, which a file may tell as well."""
    parser.add_argument("source", nargs="?", help="Labelled: a folder with one sub-folder a class, .txt list or .npz.")
    parser.add_argument("target", nargs="?", help="Unlabelled: any folder of images, .txt list or .npz with x.")
