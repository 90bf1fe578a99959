"""The model card of a run: `README.md` in the format of the Hugging Face Hub, made from the run folder alone."""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.storage.files import write_atomically, writing
from candapt.storage.safe_reading import check_file, contained, fitted, printable, read_json, read_yaml, shortened

if TYPE_CHECKING:
    from candapt.export.exporting import Exported

log = logging.getLogger(__name__)

FILE = "README.md"
CLASSES = 100  # maximum number of class names in a card; model.json has all
NAME = 80  # maximum number of characters of a name or a setting
PATHS = ("source", "more_sources", "target", "target_labels", "known_labels")  # of config.yaml, which are no settings
MARK = "<!-- Made by candapt; `candapt report` replaces it unless it was edited. Digest: "
"""The last line of a card, which tells one that was edited."""


def write_card(run: Path) -> Path | None:
    """Write the card of a finished run into its folder; one that someone has edited stays, and gives None."""
    path = run / FILE
    if not is_own(path):
        log.info("The model card %s was edited and stays as it is.", path)
        return None
    text = model_card(run)
    with writing(path), write_atomically(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def is_own(path: Path) -> bool:
    """Whether the file is as candapt wrote it, or does not exist."""
    if not path.exists() and not path.is_symlink():
        return True
    try:
        check_file(path, 2**20)
        text, _, digest = path.read_text(encoding="utf-8").rpartition(MARK)
    except (OSError, ValueError):
        return False
    return digest.startswith(_digest(text))


def model_card(run: Path, exported: "Exported | None" = None) -> str:
    """The card as text; with the file that was exported beside it, how to use that. A `UserError` for a damaged run."""
    if not (run / "summary.json").is_file():
        reason = "holds no finished run (no summary.json)"
        raise UserError(f"{str(run)!r} {reason}: give a folder made by `candapt adapt`.")
    try:
        summary = read_json(contained(run, "summary.json"))
        config = read_yaml(contained(run, "config.yaml"))
        model = read_json(contained(run, "model.json"))
        sections = (
            *_head(summary, config, model, exported),
            *_usage(model, exported),
            *_data(summary, config, model),
            *_method(summary, config),
            *_evidence(summary),
            *_limits(summary, model),
        )
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        reason = shortened(f"{type(error).__name__}: {error}", 160)
        raise UserError(f"The run in {str(run)!r} is damaged ({reason}).") from error
    text = "\n\n".join(sections) + "\n\n"
    return f"{text}{MARK}{_digest(text)} -->\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _head(summary: Any, config: Any, model: Any, exported: "Exported | None") -> Sequence[str]:
    """Front matter, title, and what the model is."""
    method, images = fitted(summary["method"], str, "method"), len(model["shape"]) == 3
    tags = ["candapt", "domain-adaptation", "unsupervised-domain-adaptation", method]
    front = {
        "library_name": "candapt",
        "pipeline_tag": "image-classification" if images else "tabular-classification",
        "tags": [*tags, "onnx"] if exported is not None and exported.metadata.opset else tags,
    }
    source, target = (_place(config.get(side)) for side in ("source", "target"))
    several, known = _further_sources(config), _known_labels(summary)
    learned = f"one domain (the source, {_code(source)})"
    if several:
        learned = f"{len(several) + 1} domains (the sources {', '.join(map(_code, (source, *several)))})"
    labels = f"with the labels of {known:,} of its samples" if known else "without any label of it"
    return (
        f"---\n{yaml.safe_dump(front, sort_keys=False)}# license: choose one before you publish this model\n---",
        f"# {_escaped(f'{source} → {target}')}",
        f"A classifier of {'images' if images else 'feature vectors'} into {len(model['classes'])} classes. It learned "
        f"from labeled samples of {learned} and was adapted to another one (the target, {_code(target)}) {labels}. "
        "It is meant for samples like those of the target.",
    )


def _usage(model: Any, exported: "Exported | None") -> Sequence[str]:
    """How to load the model."""
    loading = 'import candapt\n\nmodel = candapt.load("FOLDER")  # the folder with this file'
    if exported is not None:
        fetching = 'model = candapt.load(snapshot_download("NAMESPACE/NAME"))'
        loading = f"import candapt\nfrom huggingface_hub import snapshot_download\n\n{fetching}"
    sample = ", ".join(["n", *map(str, fitted(model["shape"], tuple[int, ...], "shape"))])
    using = f"predictions = model.predict(candapt.Domain(samples))  # an array of shape ({sample})"
    command = _fenced("sh", "candapt predict FOLDER NEW_SAMPLES --out predictions.csv")
    parts = ["## Use", _fenced("python", f"{loading}\n{using}"), "or on the command line", command]
    return parts if exported is None else [*parts, *_exported_usage(exported)]


def _exported_usage(exported: "Exported") -> Sequence[str]:
    """How to use the exported file without the run."""
    metadata, same = exported.metadata, f"{exported.agreement.sentence}."
    if metadata.opset is None:
        program = 'program = torch.export.load("model.pt2").module()\noutputs = program(batch)  # tensors by name'
        return [
            "`model.pt2` is the same network for PyTorch alone:",
            _fenced("python", f"import torch\n\n{program}"),
            same,
        ]
    call = 'model.predict_files(["photo.jpg"])' if metadata.images else "model.predict(batch)"
    code = 'from candapt.export import OnnxModel\n\nmodel = OnnxModel.load("model.onnx")'
    kind = f", quantized to {metadata.quantized}" if metadata.quantized else ""
    return [
        f"`model.onnx` (opset {metadata.opset}{kind}) is the same network for onnxruntime, in any language; its "
        "metadata has the classes and how an image becomes an input:",
        _fenced("python", f"{code}\nprobabilities, confidence = {call}"),
        same,
    ]


def _data(summary: Any, config: Any, model: Any) -> Sequence[str]:
    """What it was trained on, by name and number only."""
    data = _mapping(summary.get("data"))
    counts = ((side, _place(config.get(side)), data.get(side)) for side in ("source", "target"))
    rows = [
        f"* {side}: {_code(name)}" + (f", {count:,} samples" if isinstance(count, int) else "")
        for side, name, count in counts
    ]
    rows[0] += " with labels"
    if several := _further_sources(config):
        rows[0] += f", those of {', '.join(map(_code, several))} among them"
    known = _known_labels(summary)
    rows[1] += (
        f" without labels, except for {known:,} whose labels steered the training" if known else " without labels"
    )
    names = fitted(model["classes"], tuple[str, ...], "classes")
    listed = ", ".join(_code(name) for name in names[:CLASSES])
    more = f" and {len(names) - CLASSES:,} more in `model.json`" if len(names) > CLASSES else ""
    return ("## Data", "\n".join(rows), f"Classes: {listed}{more}.")


def _method(summary: Any, config: Any) -> Sequence[str]:
    """The method and all settings."""
    name = fitted(summary["method"], str, "method")
    method = METHODS.get(name)
    title = name if method is None else method.title + (f" ({method.reference})" if method.reference else "")
    settings = {key: value for key, value in config.items() if key not in PATHS}
    network = settings.get("network")
    if isinstance(network, dict) and network.get("weights"):
        settings["network"] = {**network, "weights": _place(network["weights"])}
    return (
        "## Method and settings",
        f"{_escaped(title)}, {_figure(summary, 'rounds', '{:.0f}')} rounds.",
        "<details><summary>All settings</summary>",
        _fenced("yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()),
        "</details>",
    )


def _evidence(summary: Any) -> Sequence[str]:
    """How far the model can be trusted, judged without target labels."""
    rows = []
    estimate = _mapping(summary.get("estimated_accuracy"))
    if isinstance(estimate.get("value"), float | int):
        value, low, high = (_figure(estimate, key, "{:.0%}") for key in ("value", "low", "high"))
        rows.append(f"* estimated accuracy on the target: {value}, probably between {low} and {high}")
    for text, key in (
        ("mean confidence on the target", "mean_confidence"),
        ("classifier and clusters agree on this share of the target", "cluster_agreement"),
    ):
        if isinstance(summary.get(key), float | int):
            rows.append(f"* {text}: {_figure(summary, key, '{:.1%}')}")
    found = [(kind, each) for kind in ("warnings", "notes") for each in summary.get(kind) or []]
    rows += [f"* {kind[:-1]}: {_escaped(_mapping(each).get('sentence', ''))}" for kind, each in found]
    if not found and summary.get("warnings") is not None:
        rows.append("* no warning was raised")
    parts = ["## Evidence without labels", "\n".join(rows) or "None was recorded."]
    if oracle := _mapping(summary.get("oracle")):
        measured = _figure(oracle, "accuracy", "{:.1%}")
        parts.append(f"Measured with true labels, which steered nothing (oracle): {measured} accuracy on the target.")
    return parts


def _limits(summary: Any, model: Any) -> Sequence[str]:
    assigned = "* Every sample is assigned to one of the classes above, even if it belongs to none of them."
    if model.get("names_unknown"):
        assigned = "* What looks like none of the classes above is called `unknown`; this is not always right."
    return (
        "## Limits",
        "\n".join(
            [
                assigned,
                "* The batch norms are those of the target: samples that look otherwise, also those of the source, get "
                "worse predictions.",
                "* The estimate and the confidence were made without labels of the target. They can be wrong; label a "
                "few samples to know.",
                "* The model repeats what the labels of the source teach, mistakes and biases included.",
            ]
        ),
        f"Made with {_versions(summary)}.",
    )


def _versions(summary: Any) -> str:
    """The packages that decide a result, with their versions."""
    shown = _mapping(summary.get("versions"))
    return (
        ", ".join(f"{name} {_escaped(shown[name])}" for name in ("candapt", "torch", "timm") if name in shown)
        or "candapt"
    )


def _further_sources(config: Any) -> list[str]:
    """The names of all sources but the first."""
    return [_place(each) for each in fitted(config.get("more_sources") or [], list, "more_sources")]


def _known_labels(summary: Any) -> int:
    """How many target samples have a label that steered the training."""
    known = _mapping(summary.get("data")).get("known_labels")
    return len(known) if isinstance(known, list) else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _figure(values: Mapping[str, Any], key: str, shape: str) -> str:
    """A number in a format; text where it is none."""
    value = values.get(key)
    return shape.format(value) if isinstance(value, float | int) else _escaped(str(value))


def _place(path: Any) -> str:
    """The name of a file or folder without those above it; `images` alone, as in Office-31, would mean nothing."""
    place = Path(str(path))
    name = place.stem if place.suffix in (".npz", ".txt") else place.name
    return place.parent.name if name == "images" and place.parent.name else name or "unnamed"


def _line(text: Any) -> str:
    """A foreign text on one line, with what cannot be printed escaped."""
    return printable(shortened(str(text), NAME * 4))


def _escaped(text: Any) -> str:
    r"""A foreign text that Markdown shows as it is, without links and HTML.

    >>> print(_escaped("<b> [x](y) https://z | a_b"))
    \<b\> \[x\](y) https:\//z \| a\_b
    """
    marked = re.sub(r"([\\`*_\[\]<>|~$&#@])", r"\\\1", _line(text))
    return marked.replace("://", ":\\//").replace("www.", "www\\.")


def _code(text: Any) -> str:
    r"""A foreign text as code, in which Markdown interprets nothing.

    >>> print(_code("a`b"), _code("plain"))
    ``a`b`` `plain`
    """
    line = printable(shortened(str(text), NAME)) or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def _fenced(language: str, text: str) -> str:
    """A block of code whose end the text cannot contain."""
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"
