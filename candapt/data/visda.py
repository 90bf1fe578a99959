"""The VisDA-2017 challenge's conventions: its classes by number, its list files, its submissions."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from candapt.errors import UserError
from candapt.storage.files import write_atomically

CLASSES = (
    *("aeroplane", "bicycle", "bus", "car", "horse", "knife"),
    *("motorcycle", "person", "plant", "skateboard", "train", "truck"),
)  # the twelve classes by number
LIST = "image_list.txt"  # name of the list file in each of the challenge's folders


def list_of(place: Path) -> Path:
    """The list whose order a submission follows: the file itself, or the one in a folder."""
    file = place / LIST if place.is_dir() else place
    if not file.is_file():
        raise UserError(f"There is no list {str(file)!r}: a submission follows the order of the challenge's {LIST}.")
    return file


def speaks_of(classes: Sequence[str]) -> bool:
    """Whether these classes are the challenge's, or some of them."""
    return set(classes) <= set(CLASSES)


def write_submission(path: Path, labels: Tensor, classes: Sequence[str]) -> None:
    """Write the challenge's class number of each image, one per line.

    `labels` are indices into `classes`, which are the challenge's class names or their numbers as text.
    """
    known = {name: number for number, name in enumerate(CLASSES)} | {str(n): n for n in range(len(CLASSES))}
    if foreign := [name for name in classes if name not in known]:
        raise UserError(f"The model's class {foreign[0]!r} is none of the challenge's: {', '.join(CLASSES)}.")
    with write_atomically(path) as part:
        part.write_text("".join(f"{known[classes[label]]}\n" for label in labels.tolist()), encoding="ascii")
