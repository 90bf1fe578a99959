"""`candapt evaluate`: accuracy of a run's model on labeled data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from candapt.commands.parser import parse_options, positional, switch
from candapt.commands.predict import model_reading
from candapt.console import output
from candapt.data.inputs import describe_inputs, match_classes, read_labeled_domain, unknown_classes
from candapt.data.known_labels import known_rows
from candapt.errors import UserError
from candapt.evaluation.metrics import measure
from candapt.evaluation.unknown import LIKELY
from candapt.model import load
from candapt.storage.files import require_new, write_json, writing


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `candapt evaluate`."""

    run: Path = positional()
    """Run folder."""
    labeled: Path = positional()
    """Labeled samples."""
    out: Path | None = None
    """JSON file for all figures."""
    strict: bool = switch()
    """Stop at files that do not decode and unknown classes, rather than leave them out."""


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    run(parse_options(EvaluateOptions, "evaluate", arguments, {"labeled": describe_inputs(labeled=True)}))


def run(options: EvaluateOptions) -> dict[str, Any]:
    """Measure a model on labeled data; classes are matched by name."""
    if options.out is not None:
        require_new(options.out)
    model = load(options.run)
    with model_reading(model, strict=options.strict) as reading:
        domain, _ = read_labeled_domain(options.labeled, reading)
    truth = match_classes(domain, model.classes)
    unknown = unknown_classes([domain.classes[label] for label in domain.labels], model.classes)
    if unknown and options.strict:
        where = str(options.labeled)
        raise UserError(f"{where!r} has samples of {unknown}, which the model does not know: remove them.")
    known = known_rows(options.run, domain)
    truth[known] = -1
    if (truth < 0).all():
        raise UserError(f"The labels of all samples in {str(options.labeled)!r} steered the run: give others.")
    predictions = model.predict(domain)
    figures = measure(truth, predictions.probabilities, predictions.confidence)
    output.print(f"accuracy             {figures['accuracy']:.1%}")
    output.print(f"mean class accuracy  {figures['mean_class_accuracy']:.1%}")
    output.print(f"calibration error    {figures['calibration_error']:.1%}")
    output.print(f"samples              {figures['samples']}")
    if unknown:
        count = figures["left_out"] - len(known)
        left_out = f"left out             {count} of classes that the model does not know: {unknown}"
        output.print(left_out, markup=False)
        if predictions.unknown is not None:
            called, others = predictions.unknown > LIKELY, truth < 0
            others[known] = False
            figures["called_unknown"] = {
                "left_out": int(called[others].sum()),
                "counted": int(called[truth >= 0].sum()),
            }
            found, wrong = figures["called_unknown"].values()
            output.print(
                f"called unknown       {found} of the {count} left out, {wrong} of the {figures['samples']} counted"
            )
    if known:
        output.print(f"not counted          {len(known)} whose labels were given by --known-labels")
    if options.out is not None:
        with writing(options.out):
            write_json(options.out, figures | {"classes": list(model.classes)})
    return figures
