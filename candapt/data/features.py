"""Domains from `.npz` files: `x` holds the samples, `y` their classes, `classes` the names if there are any."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candapt.data.domains import ArraySamples, Domain, LabeledDomain
from candapt.errors import UserError

Arrays = dict[str, np.ndarray[Any, Any]]


def read_arrays(path: Path, *names: str) -> Arrays:
    """The named arrays of an `.npz` file that it has; never runs code from the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names if name in file.files}
    except FileNotFoundError:
        raise UserError(f"There is no file {path}: check the path.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read as an .npz file ({error}): write it with numpy.savez.") from None


def feature_domain(path: Path) -> Domain:
    """The samples of a feature file, named by their row numbers; labels in the file are not read."""
    return Domain(ArraySamples(checked_samples(read_arrays(path, "x"), path)))


def labeled_feature_domain(path: Path) -> LabeledDomain:
    """The samples of a feature file with their labels."""
    arrays = read_arrays(path, "x", "y", "classes")
    x = checked_samples(arrays, path)
    if "y" not in arrays:
        raise UserError(f"{path} has no array y: add the class number of each row of x.")
    return labeled_arrays(x, arrays["y"], arrays.get("classes"), where=str(path))


def labeled_arrays(x: Any, y: Any, names: Any = None, *, where: str) -> LabeledDomain:
    """A labelled domain from arrays; without names the classes are called by their numbers."""
    y = np.asarray(y)
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"{where} has {len(x)} rows of x but labels of shape {y.shape}: give one label per row.")
    if not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"The labels in {where} are not integers but {y.dtype}: number the classes 0, 1, 2, …")
    numbers, labels = np.unique(y, return_inverse=True)
    if len(numbers) < 2:
        raise UserError(f"{where} has only one class ({numbers[0]}): a classifier needs at least two.")
    if names is None:
        classes = tuple(str(number) for number in numbers)
    else:
        classes, labels = tuple(str(name) for name in np.asarray(names).ravel()), y
        if y.min() < 0 or y.max() >= len(classes):
            raise UserError(f"{where} names {len(classes)} classes but has labels from {y.min()} to {y.max()}.")
    samples = ArraySamples(x)
    return LabeledDomain(samples, (), torch.as_tensor(labels.astype(np.int64)), classes)


def checked_samples(arrays: Arrays, path: Path | str) -> np.ndarray[Any, Any]:
    """The array x, if it holds finite numbers: (n, features), (n, height, width) or (n, channels, height, width)."""
    if "x" not in arrays:
        raise UserError(f"{path} has no array x: save the samples as x, one row each.")
    x = arrays["x"]
    if x.ndim not in (2, 3, 4) or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
        raise UserError(f"x in {path} is {x.dtype} of shape {x.shape}: give numbers of shape (n, features).")
    if len(x) < 2 or 0 in x.shape:
        raise UserError(f"x in {path} has shape {x.shape}: give at least two samples that are not empty.")
    if not np.isfinite(x).all():
        row = int(np.argwhere(~np.isfinite(x))[0][0])
        raise UserError(f"x in {path} holds NaN or infinite values, first in row {row}: remove or replace them.")
    return x[:, None] if x.ndim == 3 else x
