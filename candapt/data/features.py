"""Domains from `.npz` files: `x` holds the samples, `y` their classes, `classes` the names if there are any."""

import math
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Samples
from candapt.data.small_images import SmallImageSamples
from candapt.errors import UserError
from candapt.untrusted import memory, shortened, size_in_words

MAX_CLASSES = 65_536
"""Classes of a task; more are taken for a mistake."""

Arrays = dict[str, np.ndarray[Any, Any]]


def read_arrays(path: Path, *names: str) -> Arrays:
    """The named arrays of an `.npz` file that it has; never runs code from the file.

    What an array declares is compared with what is stored and with the memory of this machine before it is read.
    """
    if not path.exists():
        raise UserError(f"There is no file {str(path)!r}: check the path.")
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"{str(path)!r} is not an .npz file, or not a whole one: write it with numpy.savez.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename in {f"{name}.npy" for name in names}]
            _check_members(archive, members)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in names if name in file.files}
        for name, array in arrays.items():
            _check_text(array, name)
        return arrays
    except Exception as error:  # damaged files make zipfile, zlib and numpy raise almost anything
        reason = shortened(str(error) or type(error).__name__)
        raise UserError(
            f"{str(path)!r} cannot be read as an .npz file ({reason}): write it with numpy.savez."
        ) from None


def _check_members(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse arrays that would take more memory than they hold values for, or than there is."""
    if len({member.filename for member in members}) < len(members):
        raise ValueError("it holds two arrays of one name")
    total = sum(member.file_size for member in members)
    if total > memory() // 2:
        raise ValueError(f"its arrays take {size_in_words(total)}, more than half of this machine's memory")
    for member in members:
        with archive.open(member) as file:
            shape, dtype = _declared(file)
            values = member.file_size - file.tell()
        if min(shape, default=0) < 0 or dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != values:
            raise ValueError(f"{member.filename} declares another size than it has")


def _declared(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type in the header of an array; an object array, which is pickled, is refused."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"an array is of format {version}")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    if dtype.kind not in "biufcSU":  # numpy would count times among the whole numbers
        raise ValueError(f"it holds {shortened(str(dtype), 40)}, which is neither numbers nor text")
    return shape, dtype


def _check_text(array: np.ndarray[Any, Any], name: str) -> None:
    """Refuse text with numbers that no letter has, of which Python cannot make a string."""
    if array.dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise ValueError(f"{name} holds numbers that are no letters")


_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers by version; the third one is for names of record fields, which these arrays do not have."""


def feature_domain(path: Path, *, augment: bool = True) -> Domain:
    """The samples of a feature file, named by their row numbers; labels in the file are not read.

    Args:
        path: `.npz` file with x.
        augment: draw random training views of small images; feature vectors have none.
    """
    return Domain(array_samples(checked_samples(read_arrays(path, "x"), path), augment=augment))


def labeled_feature_domain(path: Path, *, augment: bool = True) -> LabeledDomain:
    """The same with labels, from an `.npz` file with x and y."""
    arrays = read_arrays(path, "x", "y", "classes")
    x = checked_samples(arrays, path)
    if "y" not in arrays:
        raise UserError(f"{path} has no array y: add the class number of each row of x.")
    return labeled_arrays(x, arrays["y"], arrays.get("classes"), where=str(path), augment=augment)


def array_samples(x: Any, *, augment: bool = True) -> Samples:
    """Feature vectors (n, d), or images (n, h, w) or (n, channels, h, w) with random training views."""
    x = np.asarray(x)
    if x.ndim == 2 or not augment:
        return ArraySamples(x[:, None] if x.ndim == 3 else x)
    return SmallImageSamples(x[:, None] if x.ndim == 3 else x)


def labeled_arrays(x: Any, y: Any, names: Any = None, *, where: str, augment: bool = True) -> LabeledDomain:
    """A labelled domain from arrays; without names the classes are called by their numbers."""
    y = np.asarray(y)
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"{where} has {len(x)} rows of x but labels of shape {y.shape}: give one label per row.")
    if y.dtype.kind not in "iu":
        raise UserError(f"The labels in {where} are not integers but {y.dtype}: number the classes 0, 1, 2, …")
    numbers, labels = np.unique(y, return_inverse=True)
    if len(numbers) < 2:
        raise UserError(f"{where} has only one class ({numbers[0]}): a classifier needs at least two.")
    if names is None:
        classes = tuple(str(number) for number in numbers)
    else:
        classes, labels = tuple(str(name) for name in np.asarray(names).ravel()), y
        if len(set(classes)) < len(classes):
            raise UserError(f"{where} names a class twice: give each class a name of its own.")
        if y.min() < 0 or y.max() >= len(classes):
            raise UserError(f"{where} names {len(classes)} classes but has labels from {y.min()} to {y.max()}.")
    if len(classes) > MAX_CLASSES:
        raise UserError(f"{where} has {len(classes):,} classes, but at most {MAX_CLASSES:,} can be told apart.")
    samples = array_samples(x, augment=augment)
    return LabeledDomain(samples, (), torch.as_tensor(labels.astype(np.int64)), classes)


def checked_samples(arrays: Arrays, path: Path | str) -> np.ndarray[Any, Any]:
    """The array x, if it holds finite numbers: (n, features), (n, height, width) or (n, channels, height, width)."""
    if "x" not in arrays:
        raise UserError(f"{path} has no array x: save the samples as x, one row each.")
    x = arrays["x"]
    if x.ndim not in (2, 3, 4) or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
        raise UserError(f"x in {path} is {x.dtype} of shape {x.shape}: give numbers of shape (n, features).")
    if 0 in x.shape:
        raise UserError(f"x in {path} has shape {x.shape}: give samples that are not empty.")
    with np.errstate(over="ignore"):  # what single precision cannot hold is infinite, which is refused below
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise UserError(
            f"x in {path} holds values that are NaN or infinite in single precision, first in row {row}: "
            "remove or replace them."
        )
    return x
