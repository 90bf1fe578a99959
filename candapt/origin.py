"""What a run was started with, so that it goes on with the same data, settings and code or not at all."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from candapt.data.checking import ImageCheck
from candapt.data.domains import Domain, LabeledDomain, Task
from candapt.errors import UserError
from candapt.files import digest
from candapt.network.build import Layers
from candapt.runs import leaves, versions

log = logging.getLogger(__name__)

NAMED = 3
"""Changes that a refusal names."""

Origin = dict[str, Any]
"""What a run was started with, as JSON: settings, versions, and digests of data, weights and code."""

_WORDS = {
    "code": "the code of candapt",
    "data.source": "the data of the source",
    "data.target": "the data of the target",
    "data.target_labels": "the labels for the oracle",
    "weights": "the weights that the network starts from",
}
"""Digests by what they are of."""


def origin_of(
    settings: Mapping[str, Any],
    task: Task,
    checks: tuple[ImageCheck | None, ImageCheck | None],
    truth: Tensor | None,
    layers: Layers,
) -> Origin:
    """Describe a run that is about to start.

    Args:
        settings: the content of its `config.yaml`.
        task: its data.
        checks: what checking the image files of source and target has shown.
        truth: target labels for the oracle.
        layers: its network.
    """
    weights = {f"network.{name}": value for name, value in layers.network.state_dict().items()}
    if layers.frozen is not None:
        weights |= {f"frozen.{name}": value for name, value in layers.frozen.state_dict().items()}
    return {
        "settings": dict(settings),
        "versions": versions(),
        "code": code_digest(),
        "data": {
            "source": fingerprint(task.source, checks[0]),
            "target": fingerprint(task.target, checks[1]),
            "target_labels": None if truth is None else digest({"labels": truth}),
        },
        "weights": digest(weights),
        "machine": {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available()},
    }


def fingerprint(domain: Domain, check: ImageCheck | None) -> str:
    """A digest of names, labels and content: of the files for images, of the array for features."""
    tensors = {"labels": domain.labels} if isinstance(domain, LabeledDomain) else {}
    array = getattr(domain.samples, "array", None)
    if isinstance(array, Tensor):
        tensors["array"] = array
    classes = domain.classes if isinstance(domain, LabeledDomain) else ()
    return digest(tensors, json.dumps([list(domain.names), classes, check.hashes if check else None]))


def code_digest() -> str:
    """A digest of the sources of this package."""
    folder = Path(__file__).parent
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        hasher.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return hasher.hexdigest()


def refuse_changes(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, force: bool) -> None:
    """Refuse to go on with something else, or with `force` only say what changed.

    Args:
        folder: the run's folder.
        before: an origin or a part of one.
        now: the same of today.
        force: whether to go on nevertheless.
    """
    changes = differences(before, now)
    if changes and not force:
        more = f" (and {len(changes) - NAMED} more)" if len(changes) > NAMED else ""
        raise UserError(
            f"{str(folder)!r} was started with something else: {', '.join(changes[:NAMED])}{more}; put it back, or "
            "give --force to go on with what is there now; nothing was changed."
        )
    for change in changes:
        log.warning("Going on with something else than at the start: %s.", change)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was, each in a few words; the machine may be another."""
    then, today = (leaves({name: part for name, part in each.items() if name != "machine"}) for each in (before, now))
    told = []
    for name in sorted(then.keys() | today.keys()):
        if then.get(name) != today.get(name):
            short = name.removeprefix("settings.").removeprefix("versions.")
            told.append(
                f"{_WORDS[name]} changed"
                if name in _WORDS
                else f"{short} was {then.get(name)} and is {today.get(name)}"
            )
    return told


def warn_of_other_machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Say so if the results may differ in their last digits."""
    if before.get("machine") != now.get("machine"):
        log.warning("The number of threads or the device is another than at the start: the last digits may differ.")
