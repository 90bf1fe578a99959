"""Labels of target samples that the user knows: `path,label` in a CSV file, read to steer a training."""

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from candapt.data.domains import Domain, KnownLabels
from candapt.errors import UserError, nearest_name
from candapt.storage.files import open_table, write_atomically
from candapt.storage.safe_reading import MAX_TABLE, check_file, contained, shortened

KNOWN_LABELS = "known_labels.csv"  # the copy in a run folder
CONTENT = "content"  # its column with a digest of each sample, by which other files can be told to hold the same one
CHUNK = 256  # samples read together to digest them


def read_known_labels(path: Path, target: Domain, classes: Sequence[str]) -> KnownLabels:
    """The known labels of a target; a `UserError` for a sample or class that does not exist and for repeated samples.

    Lines without a label, as `candapt suggest` writes them for a person to fill in, are passed over.
    """
    places = {name: row for row, name in enumerate(target.names)}
    position = {name: index for index, name in enumerate(classes)}
    labels: dict[int, int] = {}
    for name, label in _filled_lines(path):
        if name not in places:
            near = nearest_name(name, target.names)
            hint = f"did you mean {near!r}?" if near else "paths are as in predictions.csv, relative to TARGET."
            raise UserError(f"{str(path)!r} names {shortened(repr(name), 120)}, which the target does not have: {hint}")
        if label not in position:
            near = nearest_name(label, classes)
            hint = f"did you mean {near!r}?" if near else f"choose among {shortened(', '.join(classes), 200)}."
            raise UserError(f"{str(path)!r} has the label {shortened(repr(label), 80)}, no class of the source: {hint}")
        row, number = places[name], position[label]
        if row in labels:
            other = classes[labels[row]]
            both = "twice" if labels[row] == number else f"as {other!r} and as {label!r}"
            raise UserError(f"{str(path)!r} labels {shortened(repr(name), 120)} {both}: give each sample one line.")
        labels[row] = number
    if not labels:
        raise UserError(f"{str(path)!r} has no label: write a class name into the column label of at least one line.")
    rows = sorted(labels)
    return KnownLabels(torch.tensor(rows), torch.tensor([labels[row] for row in rows]))


def _filled_lines(path: Path) -> list[tuple[str, str]]:
    """Path and label of the lines that have a label."""
    try:
        check_file(path, MAX_TABLE)
        # utf-8-sig: spreadsheet programs begin a file with a byte order mark
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"path", "label"} <= set(reader.fieldnames or ()):
                raise UserError(f"{str(path)!r} must be a CSV file with the columns path and label in its first line.")
            lines = [(row["path"] or "", (row["label"] or "").strip()) for row in reader]
    except UserError:
        raise
    except (OSError, csv.Error, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"The known labels {str(path)!r} cannot be read ({reason}): check the file.") from None
    return [(name, label) for name, label in lines if label]


def write_known_labels(folder: Path, known: KnownLabels, target: Domain, classes: Sequence[str]) -> None:
    """Write the known labels of a run into its folder, with a digest of each sample's content."""
    digests = sample_digests(target, known.rows.tolist())
    with write_atomically(folder / KNOWN_LABELS) as part, open_table(part) as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", CONTENT])
        for row, label, content in zip(known.rows.tolist(), known.labels.tolist(), digests, strict=True):
            writer.writerow([target.names[row], classes[label], content])


def known_names(run: Path) -> set[str]:
    """Names of the target samples whose labels steered a run, as in its `predictions.csv`."""
    return {row.get("path") or "" for row in _stored_lines(run)}


def known_rows(run: Path, domain: Domain) -> list[int]:
    """Rows of a domain with the content of a sample whose label steered a run: no accuracy of that run counts them."""
    known = {row.get(CONTENT) for row in _stored_lines(run)}
    if not known:
        return []
    return [row for row, content in enumerate(sample_digests(domain, range(domain.size))) if content in known]


def _stored_lines(run: Path) -> list[dict[str, str]]:
    """The lines of a run's own list of known labels; none if it has no such list."""
    path = run / KNOWN_LABELS
    if not path.exists():
        return []
    try:
        check_file(contained(run, KNOWN_LABELS), MAX_TABLE)
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return list(csv.DictReader(file))
    except (OSError, csv.Error, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({shortened(str(error))}): the run is damaged.") from None


def sample_digests(domain: Domain, rows: Sequence[int]) -> list[str]:
    """A digest of the content of some samples: of the file for images, of the values for arrays."""
    hashes = getattr(domain.samples, "hashes", None)
    if hashes:
        return [hashes[row] for row in rows]
    digests: list[str] = []
    for chunk in torch.split(torch.tensor(list(rows), dtype=torch.int64), CHUNK):
        values = domain.samples.read(chunk).contiguous().numpy()
        digests += [hashlib.blake2b(each.tobytes(), digest_size=16).hexdigest() for each in values]
    return digests
