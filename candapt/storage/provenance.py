"""Provenance: what a run was started with, so that it resumes with the same data, settings and code or not at all."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from candapt.errors import UserError
from candapt.storage.files import flatten
from candapt.storage.runs import versions

log = logging.getLogger(__name__)

MAX_NAMED = 3  # changes that an error names before it only counts

Provenance = dict[str, Any]  # what a run was started with, as JSON: settings, versions, digests of data, weights, code

_DIGESTS = {
    "code": "the code of candapt",
    "data.source": "the data of the source",
    "data.target": "the data of the target",
    "data.target_labels": "the labels for the oracle",
    "weights": "the weights that the network starts from",
}  # what each digest is of


def provenance_of(settings: Mapping[str, Any], data: Mapping[str, str | None], weights: str) -> Provenance:
    """The provenance of a run that is about to start, from the content of its `config.yaml` and from digests."""
    return {
        "settings": dict(settings),
        "versions": versions(),
        "code": code_digest(),
        "data": dict(data),
        "weights": weights,
        "machine": {"threads": torch.get_num_threads(), "gpu": torch.cuda.is_available()},
    }


def code_digest() -> str:
    """A digest of the sources of this package."""
    folder = Path(__file__).parents[1]
    hasher = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        hasher.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return hasher.hexdigest()


def require_same(folder: Path, before: Mapping[str, Any] | None, now: Mapping[str, Any], *, force: bool) -> None:
    """Raise a `UserError` if a run would resume with something else than it was started with; `force` only logs it."""
    if before is None:  # the run was stopped before its provenance was written
        return
    changes = differences(before, now)
    if changes and not force:
        more = f" (and {len(changes) - MAX_NAMED} more)" if len(changes) > MAX_NAMED else ""
        raise UserError(
            f"{str(folder)!r} was started with something else: {', '.join(changes[:MAX_NAMED])}{more}; restore it, or "
            "give --force to continue with what is there now; nothing was changed."
        )
    for change in changes:
        log.warning("Continuing with something else than at the start: %s.", change)
    if "machine" in now and before.get("machine") != now["machine"]:
        log.warning("The number of threads or the device differs from the start: the last digits may differ.")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed, each in a few words; the machine may differ."""
    then, today = (flatten({name: part for name, part in each.items() if name != "machine"}) for each in (before, now))
    changes = []
    for name in sorted(then.keys() | today.keys()):
        old, new = then.get(name), today.get(name)
        if old != new:
            short = name.removeprefix("settings.").removeprefix("versions.")
            changes.append(f"{_DIGESTS[name]} changed" if name in _DIGESTS else f"{short} was {old} and is {new}")
    return changes
