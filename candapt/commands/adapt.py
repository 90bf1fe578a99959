"""`candapt adapt`: train on files, into a run folder."""

import logging
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from candapt import processes
from candapt.adaptation import Result
from candapt.adaptation import adapt as train
from candapt.assessment import BASELINE, Baseline, Evidence, assess, judge_sources, train_baseline, with_confidence
from candapt.commands.decisions import as_recorded
from candapt.commands.launch import PROCESSES, ProcessOptions, launch
from candapt.commands.parser import Given, Parser, read_config, switch
from candapt.commands.report import report
from candapt.commands.training import Inputs, TrainingOptions, parse_training, read_inputs, training_parser
from candapt.console import log_to, recorded_log
from candapt.data.domains import Side
from candapt.data.inventory import describe_data, sentences
from candapt.data.joining import separate_domains
from candapt.data.known_labels import write_known_labels
from candapt.errors import UserError, advice_on_failure
from candapt.evaluation.metrics import accuracy, domain_discrepancy, measure, where_known
from candapt.export.card import write_card
from candapt.settings import Settings, setting
from candapt.storage.files import flatten
from candapt.storage.interruption import Interruption
from candapt.storage.provenance import require_same
from candapt.storage.runs import RunFolder, new_run_path, versions, write_left_out
from candapt.training.batches import make_fabric
from candapt.training.callbacks import TrainingBar
from candapt.training.checkpoint import MINUTES, Checkpoints
from candapt.training.head_first import HeadFirst
from candapt.training.loop import Training
from candapt.training.optimizers import choose_optimizer
from candapt.training.state import Record

log = logging.getLogger(__name__)

AUTO = "auto"  # in place of a method: try some


@dataclass(frozen=True)
class AdaptOptions(TrainingOptions, ProcessOptions):
    """Options of `candapt adapt`."""

    out: Path | None = None
    """New folder for the run (default: a new one under runs/); with --resume the run's folder."""
    resume: bool = switch()
    """Resume the run in --out; no other arguments are needed."""
    force: bool = switch()
    """Resume even if data, settings, versions or code have changed."""
    checkpoint_minutes: float = setting(MINUTES)
    """Minutes between two checkpoints within a round; 0 writes one after every step."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = adapt_parser()
    execute(parser, parser.parse(arguments))


def execute(parser: Parser, given: Given) -> Path:
    """Run the command with what was given; the run folder."""
    starting = ProcessOptions(**{name: given.values[name] for name in PROCESSES if name in given.values})
    if starting.several and not given.wants_help:
        return _execute_in_processes(parser, given, starting)
    if is_auto(given):
        from candapt.commands import auto  # it uses this module

        return auto.main(given)
    options = options_of(parser, given)
    options = options if options.out else replace(options, out=new_run_path(options.settings.method))
    run(options)
    return options.out or Path()


def _execute_in_processes(parser: Parser, given: Given, starting: ProcessOptions) -> Path:
    """Run the command in processes that are started here."""
    method = AUTO
    if not is_auto(given):
        method = options_of(parser, given).settings.method  # fails on bad settings before any process starts
    out: Path = given.values.get("out") or new_run_path(method)
    values = {name: value for name, value in given.values.items() if name not in PROCESSES}
    launch("adapt", parser.arguments({**values, "out": out}), starting, _advice(out, starting))
    return out


def _advice(out: Path, starting: ProcessOptions | None = None) -> str:
    """How to continue a run that was stopped."""
    flags = [] if starting is None else starting.flags
    return f"continue with: {shlex.join(['candapt', 'adapt', '--out', str(out), '--resume', *flags])}"


def is_auto(given: Given) -> bool:
    """Whether several methods shall be tried, or a run that tries them is to be resumed."""
    out, config = given.values.get("out"), given.values.get("config")
    if given.values.get("resume") and out is not None and "method" not in given.values:
        return bool((out / "auto.yaml").is_file())
    named = given.values.get("method") or (read_config(config).get("method") if config else None)
    return bool(named == AUTO)


def parse(arguments: Sequence[str]) -> AdaptOptions:
    """Options from the command line; a run that is resumed supplies its own configuration."""
    parser = adapt_parser()
    return options_of(parser, parser.parse(arguments))


def adapt_parser() -> Parser:
    """The parser of the command."""
    return training_parser("adapt", AdaptOptions)


def options_of(parser: Parser, given: Given) -> AdaptOptions:
    """Options from what was given, the configuration and the preset."""
    options = parse_training(parser, AdaptOptions, given, _configuration(given))
    if options.checkpoint_minutes < 0:
        raise UserError(f"--checkpoint-minutes is {options.checkpoint_minutes}, but must be at least 0.")
    return options


def _configuration(given: Given) -> dict[str, Any]:
    """The content of --config, or of the resumed run's config.yaml if neither a file nor a preset is given."""
    out, values = given.values.get("out"), given.values
    if not values.get("resume") or given.wants_help:
        return read_config(values.get("config"))
    if out is None:
        raise UserError("--out is missing: --resume needs the folder of the run.")
    RunFolder.check(out, resume=True)
    if "config" in values or "preset" in values:
        return read_config(values.get("config"))
    if (out / "config.yaml").is_file():
        return read_config(out / "config.yaml")
    if values.get("source") is None:
        raise UserError(f"The run in {str(out)!r} was stopped before it began: give SOURCE and TARGET once more.")
    return {}


def run(options: AdaptOptions, baseline: Baseline | None = None, whole: Path | None = None) -> Result | None:
    """Train on a labeled source and an unlabeled target; write a run folder.

    A baseline to compare with is trained if none is given and the options ask for one. A complete run gives None.
    If it is part of a `whole` run, that one is to be resumed after a stop.
    """
    out = options.out or Path()
    make_fabric(options.settings.training)  # a device or a number format may be missing; it connects processes
    options = _restarted(options)
    processes.by_first(lambda: RunFolder.check(out, resume=options.resume))
    options = _as_begun(options) if options.resume else options
    if options.resume and _is_complete(options, RunFolder(out)):
        return None
    with Interruption() as interruption, ExitStack() as opened:
        with recorded_log() as records:
            inputs = read_inputs(options)  # before the folder is claimed: files or weights may be missing or not fit
        options = replace(options, settings=inputs.settings, images=inputs.choice)
        fabric = make_fabric(options.settings.training)
        provenance = inputs.provenance(options.describe())
        opened.enter_context(advice_on_failure(_advice(whole or out)))

        def begin() -> dict[str, Any]:
            """Claim the folder and write what the run is started with; of several processes the first does."""
            folder = opened.enter_context(RunFolder.open(out, resume=options.resume))
            opened.enter_context(log_to(out / "log.txt", records))
            before = folder.read_provenance()
            require_same(out, before, provenance, force=options.force)
            reasons: dict[str, Any] = provenance["reasons"] | (before or {}).get("reasons", {})
            folder.write_provenance(provenance | {"reasons": reasons})
            folder.write_config(options.describe())
            return reasons  # a resumed run does not decide again

        inputs = replace(inputs, reasons=processes.by_first(begin))
        minutes = options.checkpoint_minutes
        checkpoints = Checkpoints(out / "checkpoints", minutes=minutes, interruption=interruption)
        log.info("Run folder: %s", out)
        return _train(options, inputs, RunFolder(out), baseline, fabric=fabric, checkpoints=checkpoints)


def _restarted(options: AdaptOptions) -> AdaptOptions:
    """The options, to resume what there is if `torchrun` has started the processes again after one had ended."""
    begun = (options.out or Path()) / "config.yaml"
    return replace(options, resume=True) if processes.restarts() and begun.is_file() else options


def _as_begun(options: AdaptOptions) -> AdaptOptions:
    """The options of a run to resume, with what its first process decided."""
    begun = (RunFolder(options.out or Path()).read_provenance() or {}).get("settings", {})
    settings, images = as_recorded(options.settings, options.images, flatten(begun))
    return replace(options, settings=settings, images=images)


def _is_complete(options: AdaptOptions, folder: RunFolder) -> bool:
    """Whether the run to resume has finished; its settings must be the same unless forced."""
    provenance = folder.read_provenance()
    if provenance and not options.force:  # what else may have changed needs the data to be read
        settings = {"settings": provenance.get("settings")}
        require_same(folder.path, settings, {"settings": options.describe()}, force=False)
    if folder.complete:
        log.info("The run in %s is complete: %s", folder.path, folder.path / "predictions.csv")
    return folder.complete


def _train(options: AdaptOptions, inputs: Inputs, folder: RunFolder, baseline: Baseline | None, **how: Any) -> Result:
    """Train, and write everything that the run folder holds."""
    settings, task, truth = options.settings, inputs.task, inputs.truth
    inventory = describe_data(task, inputs.sources, inputs.target_check)
    writes = processes.is_first()
    if writes:
        write_left_out(folder.path, inputs.left_out)
    if writes and task.known is not None:
        write_known_labels(folder.path, task.known, task.target, task.source.classes)
    for sentence in (*sentences(task, inventory), *_describe_network(options, inputs)):
        log.info("%s", sentence)
    mapper = _mapper(folder.path, options) if writes else []
    with _Recorder(settings, folder if writes else None, truth) as recorder:
        how |= {"images": inputs.images, "parts": inputs.parts, "cache": inputs.cache}
        result = train(task, settings, callbacks=[recorder, *mapper], **how)
    if baseline is None and options.baseline:
        with TrainingBar(BASELINE, settings.rounds) as bar:
            baseline = train_baseline(result, [bar])
    if not writes:
        return result
    evidence = assess(result, baseline)
    judged = judge_sources(result, baseline, [source.title for source in inputs.sources])
    result = with_confidence(result, evidence)
    result.model.save(folder.path)
    named = result.model.names_unknown
    result.predictions.write_csv(folder.path / "predictions.csv", task.source.classes, name_unknown=named)
    for each in mapper:
        each.finish(result)
    # The summary marks the run as complete; the page can be made at any time.
    sources = {"sources": [each.describe() for each in judged]} if judged else {}
    decided = {"decisions": _decisions(inputs)}
    folder.write_summary(summarize(result, evidence, inventory, truth) | decided | sources)
    _log_outcome(result, evidence, folder.path)
    for sentence in filter(None, (each.sentence for each in judged)):
        log.warning("%s", sentence)
    if options.report:
        report([folder.path])
    else:
        write_card(folder.path)
    return result


def _mapper(folder: Path, options: AdaptOptions) -> list[Any]:
    """What draws the map of both domains, if there shall be a report."""
    if not options.report:
        return []
    from candapt.report.domain_map import Mapper  # scikit-learn's t-SNE takes seconds to import

    return [Mapper(folder, options.map_points)]


def _describe_network(options: AdaptOptions, inputs: Inputs) -> list[str]:
    """The network and what the cache needs for it, in sentences."""
    parts, settings = inputs.parts, options.settings
    optimizer = choose_optimizer(parts.network, settings.training)
    network = f"Network: {parts.settings.backbone}, fine-tuning {parts.settings.finetune} by {optimizer}."
    need = inputs.cache.describe_need(parts, *separate_domains(inputs.task))
    first = HeadFirst(parts, train).head_settings(settings)
    rounds = f"The head learns alone first, in {first.rounds} rounds." if first else ""
    return [sentence for sentence in (network, need, rounds) if sentence]


class _Recorder(TrainingBar):
    """Writes each round to the run folder and shows it; figures from true labels, marked oracle, go nowhere else."""

    def __init__(self, settings: Settings, folder: RunFolder | None, truth: Tensor | None) -> None:
        super().__init__(settings.method, settings.rounds)
        self.settings, self.folder, self.truth = settings, folder, truth

    def on_round(self, training: Training, record: Record) -> None:
        """Write and show the round with figures that the training itself must not have."""
        is_due, shown = training.scorer.is_due(int(record["round"])), record
        if is_due:  # other rounds need no pass over the domains
            shown = record | round_discrepancies(training, self.truth)
        if is_due and self.truth is not None:
            predicted = training.outputs.of(Side.TARGET).logits.argmax(1)
            shown |= {"oracle_accuracy": accuracy(*where_known(self.truth, predicted))}
        if record.get("kept_classes") == 0:
            limit = getattr(self.settings.method_settings, "max_distance", None)
            advice = f"; raise --{self.settings.method}.max_distance, which is {limit:g}" if limit is not None else ""
            log.warning("No class was confident enough in this round: it trained on the source alone%s.", advice)
        if self.folder is not None:  # the first of several processes has one
            self.folder.append_metrics(shown)
        super().on_round(training, shown)


def round_discrepancies(training: Training, truth: Tensor | None) -> Record:
    """The discrepancy after a round with its pseudo labels, `cdd`, and with true ones if known, `oracle_cdd`."""
    clusters, rows, seed = training.state.clusters, training.scorer.rows, training.settings.seed
    source, target = (training.scorer.outputs(side) for side in Side)
    labels = {"cdd": target.logits.argmax(1) if clusters is None else clusters.labels[rows[Side.TARGET]]}
    if truth is not None:
        labels["oracle_cdd"] = truth[rows[Side.TARGET]]
    source_labels = training.task.source.labels[rows[Side.SOURCE]]
    values = {name: domain_discrepancy(source, target, source_labels, each, seed=seed) for name, each in labels.items()}
    return {name: value for name, value in values.items() if value is not None}


def summarize(result: Result, evidence: Evidence, inventory: dict[str, Any], truth: Tensor | None) -> dict[str, Any]:
    """The content of `summary.json`."""
    predictions, classes = result.predictions, result.model.classes
    counts = predictions.labels.bincount(minlength=len(classes)).tolist()
    return {
        "method": result.settings.method,
        "seed": result.settings.seed,
        "rounds": len(result.history),
        "stopped": "settled" if result.settled else "last round",
        "selection": result.choice.describe(),
        "seconds": round(result.seconds, 2),
        "data": inventory,
        "mean_confidence": float(predictions.confidence.mean()),
        "mean_softmax": float(predictions.softmax.mean()),
        "kept_share": float(predictions.kept.float().mean()),
        "cluster_agreement": _agreement(result),
        "predicted_counts": dict(zip(classes, counts, strict=True)),
        "versions": versions(),
        **({} if truth is None else {"oracle": measure(truth, predictions.probabilities, predictions.confidence)}),
        **evidence.describe(truth, classes, predictions.names),
    }


def _decisions(inputs: Inputs) -> dict[str, Any]:
    """What was used where settings leave a choice, and the reasons that the data gave."""
    images, network = inputs.images, inputs.parts.settings
    return {
        "backbone": network.backbone,
        "finetune": network.finetune,
        "precision": inputs.settings.training.precision,
        "size": images.size if images is not None else None,
        "mirror": network.mirror,
        **inputs.reasons,
    }


def _agreement(result: Result) -> float:
    """Share of the target on which classifier and clusters agree."""
    return float((result.predictions.labels == result.predictions.cluster_labels).float().mean())


def _log_outcome(result: Result, evidence: Evidence, folder: Path) -> None:
    """The last lines of a run."""
    choice = result.choice
    kept = "" if choice.round == choice.last_round else f" Kept round {choice.round + 1}, the best by {choice.select}."
    log.info(
        "Done in %.0f s after %d rounds.%s Classifier and clusters agree on %.1f%% of the target. Predictions: %s",
        *(result.seconds, len(result.history), kept, 100 * _agreement(result), folder / "predictions.csv"),
    )
    if evidence.estimate is not None:
        log.info("%s", evidence.estimate.sentence)
    for finding in (*evidence.findings, *evidence.notes):
        log.warning("%s", finding.sentence)
