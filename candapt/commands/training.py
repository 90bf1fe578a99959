"""What the commands that train have in common: settings from flags, configuration and preset, and reading the data."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from candapt.adaptation import check_task, initial_parts
from candapt.commands.decisions import decide_network, decide_views, log_backbone
from candapt.commands.parser import (
    Flag,
    Given,
    Parser,
    flags_of,
    positional,
    print_help,
    switch,
    with_inputs,
)
from candapt.console import counting
from candapt.data.decoding import ImageCheck
from candapt.data.domains import Task
from candapt.data.inputs import (
    Reading,
    describe_inputs,
    domain_digest,
    read_domain,
    read_labeled_domain,
    read_target_labels,
    reader_of,
)
from candapt.data.inventory import NamedSource
from candapt.data.joining import join_sources, separate_domains, source_titles
from candapt.data.known_labels import read_known_labels
from candapt.errors import UserError, known_name
from candapt.evaluation.scores import SCORES, check_selection
from candapt.methods import METHODS
from candapt.model import UNKNOWN
from candapt.network.activations import ActivationCache
from candapt.network.build import NetworkParts, check_named_weights, expected_images
from candapt.presets import DEFAULT, PRESETS, make_settings, retired_settings
from candapt.settings import (
    LAST,
    ImageChoice,
    ImageSettings,
    NetworkSettings,
    Settings,
    TrainingSettings,
    image_choice,
)
from candapt.storage.files import digest, flatten, plain
from candapt.storage.provenance import Provenance, provenance_of
from candapt.storage.runs import describe_settings
from candapt.training.precision import decide_precision

NOT_IN_FILES = {"config", "out", "cache", "resume", "force", "devices", "nodes", "rendezvous"}
"""Options that a configuration file, which may come from a stranger, must not set."""


@dataclass(frozen=True)
class TrainingOptions:
    """Data and settings of a training from files."""

    source: Path = positional(None)
    """Labeled source."""
    target: Path = positional(None)
    """Unlabeled target."""
    settings: Settings = field(default_factory=Settings)
    images: ImageChoice = field(default_factory=ImageChoice)
    target_labels: Path | None = None
    """CSV file (path,label) or .npz file (y) with true labels, for figures marked oracle only."""
    more_sources: tuple[Path, ...] = ()
    """Further labeled sources of the same kind as SOURCE; classes are joined by name, and each has its own batch norm.
    Give them after SOURCE and TARGET."""
    known_labels: Path | None = None
    """CSV file (path,label) with labels of target samples that you know; they steer the training and count in no
    accuracy of the run."""
    strict: bool = switch()
    """Stop at files that do not decode, classes without an image and unknown classes, rather than leave them out."""
    baseline: bool = True
    """Train source-only too, to warn if adaptation did not help."""
    report: bool = True
    """Write report.html, with a map of both domains."""
    cache: Path | None = None
    """Folder for cached outputs of frozen layers (default: CANDAPT_CACHE, else the user's cache folder)."""
    map_points: int = 1000

    def describe(self) -> dict[str, Any]:
        """The content of `config.yaml`."""
        paths = {name: getattr(self, name) for name in ("source", "target", "target_labels", "known_labels")}
        return {
            **{name: str(path.absolute()) if path else None for name, path in paths.items()},
            **({"more_sources": plain(self.more_sources)} if self.more_sources else {}),
            "strict": self.strict,
            "baseline": self.baseline,
            "report": self.report,
            "images": plain(self.images),
            **describe_settings(self.settings),
        }


Options = TypeVar("Options", bound=TrainingOptions)
NO_FLAGS = {"settings", "images", "map_points"}  # fields of the options that are no flags of their own


def setting_flags() -> list[Flag]:
    """The flags of every setting of a training, for all methods."""
    select = f"Round to keep: {LAST}, or the best by one of {', '.join(SCORES)}."
    flags = [
        Flag("config", Path | None, "YAML file with settings, such as a run's config.yaml."),
        Flag("preset", str, f"Where defaults come from: {', '.join(PRESETS)}.", DEFAULT),
        Flag("rounds", int, "Maximum number of rounds.", Settings.rounds),
        Flag("select", str, select, LAST),
    ]
    for group, kind in (("images", ImageChoice), ("network", NetworkSettings), ("training", TrainingSettings)):
        flags += flags_of(kind, f"{group}.")
    return flags + [flag for name, method in METHODS.items() for flag in flags_of(method.Settings, f"{name}.")]


def training_parser(command: str, kind: type[TrainingOptions], skip: Collection[str] = ()) -> Parser:
    """A parser for the options of a command and all settings of a training."""
    texts = {"source": describe_inputs(labeled=True), "target": describe_inputs(labeled=False)}
    own = with_inputs(flags_of(kind, skip=NO_FLAGS | set(skip)), texts)
    auto = ", or auto: try four and keep the one that label-free evidence favors" if command == "adapt" else ""
    method = Flag("method", str, f"One of {', '.join(METHODS)}{auto}.", "can")
    seed = Flag("seed", int, "Seed of every random draw.", 0)
    return Parser(command, [*own, method, seed, *setting_flags()])


def parse_training(
    parser: Parser, kind: type[Options], given: Given, config: Mapping[str, Any], ignored: Collection[str] = ()
) -> Options:
    """The options of a command: flags override the configuration file, which overrides the preset.

    Names in the configuration that the command does not use are `ignored`.
    """
    method = known_name(given.values.get("method") or config.get("method", "can"), METHODS, "method")
    preset = known_name(given.values.get("preset") or config.get("preset", DEFAULT), PRESETS, "preset")
    if given.wants_help:
        show_help(parser, make_settings(method, preset=preset), [method])
    require_own_settings(given, [method])
    is_ignored = ignored_settings(parser, [*ignored, *given.values], [method])
    values = {**parser.from_config(config, is_ignored), **given.values}
    for name in ("source", "target"):
        if values.get(name) is None:
            kinds = parser.flags[name].help.partition(": ")[2].rstrip(".")
            raise UserError(f"{name.upper()} is missing: give a {kinds}, or a --config that names it.")
    changes, recipe = setting_changes(values), not is_former(config)
    settings = make_settings(method, preset=preset, seed=values.get("seed", 0), changes=changes, recipe=recipe)
    check_selection(settings.select)
    own = {name: value for name, value in values.items() if name in kind.__dataclass_fields__}
    published = {} if preset == DEFAULT else {"images.size": None}  # the paper's views are not chosen by the source
    return kind(**own, settings=settings, images=image_choice({**published, **values}))


def is_former(config: Mapping[str, Any]) -> bool:
    """Whether a run of version 0.1 wrote this configuration; it names all settings that there were."""
    network, training = config.get("network"), config.get("training")
    complete = isinstance(network, Mapping) and isinstance(training, Mapping) and {"rank", "views"} <= network.keys()
    return complete and "heads" not in (network or {}) and "evaluation_batch" in (training or {})


def setting_changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are settings of the network, the training or a method."""
    top, groups = {"rounds", "select"}, {"network", "training", *METHODS}
    return {name: value for name, value in values.items() if name in top or name.rpartition(".")[0] in groups}


def require_own_settings(given: Given, methods: Sequence[str]) -> None:
    """Raise a `UserError` for a flag of a method that is not trained."""
    for name in given.values:
        group = name.rpartition(".")[0]
        if group in METHODS and group not in methods:
            raise UserError(f"--{name} is a setting of {group}, but the method is {', '.join(methods)}: leave it out.")


def ignored_settings(parser: Parser, ignored: Collection[str], methods: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name in a configuration file is passed over: other methods' settings, and those of older versions."""
    retired = retired_settings()

    def is_ignored(name: str) -> bool:
        if name in NOT_IN_FILES:
            raise UserError(
                f"{name!r} is not for a configuration file: give it as a flag; `candapt {parser.command} --help` "
                "lists the settings."
            )
        return name in ignored or name in retired or (name in METHODS and name not in methods)

    return is_ignored


def show_help(parser: Parser, settings: Settings, methods: Sequence[str]) -> None:
    """Print the help with the defaults of these settings and the flags of these methods, and exit."""
    defaults = {**flatten(describe_settings(settings)), "method": settings.method}

    def hidden(name: str) -> bool:
        group = name.rpartition(".")[0]
        return group in METHODS and group not in methods

    print_help(parser.help(defaults, hidden))


@dataclass(frozen=True, eq=False)
class Inputs:
    """The data of a training, read and checked."""

    task: Task
    sources: Sequence[NamedSource]  # one for each source, as they were read
    images: ImageSettings | None
    target_check: ImageCheck | None  # of the target's image files
    truth: Tensor | None  # target labels for the oracle
    parts: NetworkParts
    cache: ActivationCache
    settings: Settings  # those of the options, with everything decided that depends on the data or the machine
    choice: ImageChoice  # the same for the choices about images
    reasons: dict[str, Any]  # why the data decided so

    @property
    def left_out(self) -> list[tuple[Path, str]]:
        """Image files that do not decode and classes without a usable one, each with the reason."""
        checks = (*(source.check for source in self.sources), self.target_check)
        return [item for check in checks if check for item in (*check.broken, *check.empty)]

    def provenance(self, settings: Mapping[str, Any]) -> Provenance:
        """What a run with these settings is started with."""
        digests = {
            "source": domain_digest(self.sources[0].domain, self.sources[0].check),
            **{f"source_{n}": domain_digest(each.domain, each.check) for n, each in enumerate(self.sources[1:], 2)},
            "target": domain_digest(self.task.target, self.target_check),
            "target_labels": None if self.truth is None else digest({"labels": self.truth}),
            "known_labels": None if self.task.known is None else digest(vars(self.task.known)),
        }
        weights = {f"network.{name}": value for name, value in self.parts.network.state_dict().items()}
        if self.parts.frozen is not None:
            weights |= {f"frozen.{name}": value for name, value in self.parts.frozen.state_dict().items()}
        return provenance_of(settings, digests, digest(weights)) | {"reasons": self.reasons}


def read_truth(options: TrainingOptions, task: Task) -> Tensor | None:
    """True labels of the target for the oracle, if they are given; -1 for samples whose known labels steer."""
    if options.target_labels is None:
        return None
    truth = read_target_labels(options.target_labels, task.target, task.source.classes, strict=options.strict)
    if task.known is not None:
        truth[task.known.rows] = -1
        if (truth < 0).all():
            raise UserError("--known-labels has every sample of --target-labels: none is left to measure on.")
    return truth


def require_other_places(sources: Sequence[Path], target: Path) -> None:
    """Raise a `UserError` if a further source is the target, whose labels would then steer, or another source again."""
    before = [sources[0].resolve()]
    for path in sources[1:]:
        place = path.resolve()
        if place == target.resolve():
            raise UserError(f"--more-sources names the target, {str(path)!r}: leave it out.")
        if place in before:
            raise UserError(f"{str(path)!r} is given twice as a source: leave one out.")
        before.append(place)


def read_inputs(options: TrainingOptions) -> Inputs:
    """Read the data, decide what depends on it or on the machine, and check that everything fits together."""
    places = (options.source, *options.more_sources)
    require_other_places(places, options.target)
    has_images = any(reader_of(path).has_images for path in (*places, options.target))
    settings = decide_network(options.settings) if has_images else options.settings
    images = expected_images(settings.network, options.images) if has_images else None
    if images is not None:
        check_named_weights(settings.network)
    with counting("checking images") as count:
        views = images or ImageSettings(augmentation=options.images.augmentation)
        reading = Reading(views, os.cpu_count() or 1, options.strict, count)
        read = [read_labeled_domain(path, reading) for path in places]
        target, target_check = read_domain(options.target, reading)
    sources = [NamedSource(title, *each) for title, each in zip(source_titles(places), read, strict=True)]
    source = join_sources([each.domain for each in sources], [each.title for each in sources])
    if settings.training.unknown == "label" and UNKNOWN in source.classes:
        raise UserError(
            f"--unknown label needs the name {UNKNOWN!r}, but a class of the source has it: rename the class."
        )
    known = read_known_labels(options.known_labels, target, source.classes) if options.known_labels else None
    task = Task(source, target, known)
    check_task(task)
    if has_images:
        log_backbone(options.settings)
    truth = read_truth(options, task)
    cache = ActivationCache(options.cache)
    made = decide_views(task, images, settings, options.images, cache)
    parts = initial_parts(made.task, made.settings)
    settings = replace(made.settings, training=decide_precision(made.settings.training, parts.settings))
    cache.require_room(parts, *separate_domains(made.task))
    decided = (settings, made.choice, made.reasons)
    return Inputs(made.task, sources, made.images, target_check, truth, parts, cache, *decided)
