"""What is served: the model of a run with its queue, its source samples and what is known of it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from candapt.evaluation.unknown import LIKELY
from candapt.model import UNKNOWN, Model
from candapt.serving.engine import Engine, Outcome, TorchEngine
from candapt.serving.inputs import ImageReader, scaled_to
from candapt.serving.limits import Limits
from candapt.serving.onnx_engine import OnnxEngine
from candapt.serving.source import SourceSamples, read_source, source_samples, value_range
from candapt.storage.runs import versions
from candapt.storage.safe_reading import contained, fitted, read_json, read_yaml, shortened

MAX_SENTENCES = 20  # warnings of a run that are repeated


@dataclass(frozen=True, eq=False)
class Service:
    """A model that is ready to answer."""

    engine: Engine
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one sample
    limits: Limits
    images: ImageReader | None  # None if the model takes no image files
    source: SourceSamples | None
    facts: dict[str, Any]  # what is known of the run
    names_unknown: bool = False  # whether what is likely none of the classes is called `unknown`

    @property
    def takes_arrays(self) -> bool:
        """Whether samples may be sent as JSON: to models that were trained on arrays."""
        return str(self.facts["input"]["kind"]) != "images"

    def describe(self) -> dict[str, Any]:
        """The answer to `GET /model`."""
        bounds = self.limits
        return {
            **self.facts,
            "engine": self.engine.name,
            "classes": list(self.classes),
            "similar": {
                "samples": 0 if self.source is None else len(self.source.vectors),
                "pictures": self.source is not None and self.source.names is not None and len(self.shape) == 3,
            },
            "limits": {
                "samples": bounds.samples,
                "file_bytes": bounds.file_bytes,
                "request_bytes": bounds.request_bytes,
                "pixels": bounds.pixels,
                "seconds": bounds.seconds,
            },
        }

    def answer(self, name: str, outcome: Outcome, top: int, similar: int, *, pictures: bool) -> dict[str, Any]:
        """What is answered for one sample: `top` classes, and `similar` source samples, perhaps with pictures."""
        own, unknown = outcome.probabilities[0], None if outcome.unknown is None else float(outcome.unknown[0])
        order = np.argsort(-own, kind="stable")[:top].tolist()
        label, confidence = self.classes[order[0]], float(outcome.confidence[0])
        if self.names_unknown and unknown is not None and unknown > LIKELY:
            label, confidence = UNKNOWN, unknown
        return {
            "name": name,
            "label": label,
            "confidence": confidence,
            "softmax": float(own[order[0]]),
            "unknown": unknown,
            "probabilities": [{"label": self.classes[each], "probability": float(own[each])} for each in order],
            "similar": self._similar(outcome, similar, pictures=pictures),
        }

    def _similar(self, outcome: Outcome, count: int, *, pictures: bool) -> list[dict[str, Any]]:
        source, near = self.source, outcome.near
        if source is None or near is None:
            return []
        return [
            {
                "name": None if source.names is None else source.names[row],
                "label": self.classes[int(source.labels[row])],
                "similarity": similarity,
                "picture": source.picture(row) if pictures else None,
            }
            for row, similarity in list(zip(near.rows[0].tolist(), near.similarity[0].tolist(), strict=True))[:count]
        ]


def make_service(
    run: Path, model: Model, limits: Limits, *, onnx: OnnxEngine | None = None, pictures: bool = True, source: int = 500
) -> Service:
    """Everything that is needed to serve the model of a run.

    Args:
        run: its folder.
        model: loaded from there.
        limits: of requests.
        onnx: the same model exported, to compute with in place of PyTorch.
        pictures: read the source from where the run says that it is; otherwise nothing outside its folder is read.
        source: source samples to compare with if the model stores none; an exported one has to.
    """
    domain = read_source(run, model) if pictures else None
    samples = source_samples(run, model, domain, source) if onnx is None or onnx.stores_source else None
    engine: Engine = onnx or TorchEngine(model, samples)
    images, kind = _image_reader(engine, model, limits, value_range(domain))
    engine.predict(np.zeros((1, *model.shape), dtype=np.float32))  # whatever is slow the first time
    facts = describe_run(run, model) | {"input": _describe_input(model, kind)}
    return Service(engine, model.classes, tuple(model.shape), limits, images, samples, facts, model.names_unknown)


def _image_reader(
    engine: Engine, model: Model, limits: Limits, values: tuple[float, float] | None
) -> tuple[ImageReader | None, str]:
    """How image files become samples, and the kind of the model's input."""
    if model.images is not None:
        return ImageReader(engine.prepare, model.images.grey, model.images.min_size, limits.pixels), "images"
    if len(model.shape) == 1:
        return None, "vectors"
    if values is None or model.shape[0] not in (1, 3):
        return None, "arrays"
    prepare = scaled_to(model.shape, *values)
    return ImageReader(prepare, model.shape[0] == 1, 2 * max(model.shape[1:]), limits.pixels), "arrays or images"


def _describe_input(model: Model, kind: str) -> dict[str, Any]:
    settings = model.images
    more = (
        {} if settings is None else {"resize": settings.resize, "mean": list(settings.mean), "std": list(settings.std)}
    )
    return {"kind": kind, "shape": list(model.shape), **more}


def describe_run(run: Path, model: Model) -> dict[str, Any]:
    """Task, method, label-free evidence and versions of a run, which may come from a stranger."""
    summary = _read(run, "summary.json")
    estimate = summary.get("estimated_accuracy")
    return {
        "task": _task(run),
        "method": model.method_name,
        "backbone": model.parts.settings.backbone,
        "evidence": {
            "calibrated": model.calibrator is not None,
            "mean_confidence": _share(summary, "mean_confidence"),
            "estimated_accuracy": _estimate(estimate) if isinstance(estimate, dict) else None,
            "warnings": _sentences(summary.get("warnings")),
            "notes": _sentences(summary.get("notes")),
        },
        "versions": {"trained": _versions(summary.get("versions")), "serving": versions()},
    }


def _read(run: Path, name: str) -> dict[str, Any]:
    """The content of a file of a run; empty if it cannot be read."""
    try:
        path = contained(run, name)
        return read_yaml(path) if path.suffix == ".yaml" else read_json(path)
    except (OSError, ValueError):
        return {}


def _task(run: Path) -> str:
    """Names of both domains, or of the run."""
    config = _read(run, "config.yaml")
    names = [Path(str(config[side])) for side in ("source", "target") if config.get(side)]
    if len(names) < 2:
        return run.resolve().name
    return " → ".join(each.parent.name if each.name == "images" and each.parent.name else each.stem for each in names)


def _share(values: dict[str, Any], name: str) -> float | None:
    """A number between 0 and 1; None for anything else."""
    try:
        number: float = fitted(values.get(name), float, name)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 1 else None


def _estimate(estimate: dict[str, Any]) -> dict[str, float | None] | None:
    figures = {name: _share(estimate, name) for name in ("value", "low", "high")}
    return None if None in figures.values() else figures


def _sentences(findings: Any) -> list[str]:
    """The sentences of warnings or notes."""
    listed = findings if isinstance(findings, list) else []
    texts = [each.get("sentence") for each in listed[:MAX_SENTENCES] if isinstance(each, dict)]
    return [shortened(text, 1000) for text in texts if isinstance(text, str)]


def _versions(stored: Any) -> dict[str, str]:
    pairs = stored.items() if isinstance(stored, dict) else ()
    return {str(name)[:80]: shortened(str(version), 80) for name, version in list(pairs)[:MAX_SENTENCES]}
