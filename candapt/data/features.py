"""Domains from `.npz` files: `x` holds the samples, `y` their classes, `classes` the names if there are any.

Arrays that are large stay on disk, and so do those of folders of `.npy` shards.
"""

import math
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Samples
from candapt.data.stored import StoredRows, StoredSamples, large_rows, shards, stored_shards
from candapt.errors import UserError
from candapt.storage.safe_reading import format_size, memory, shortened

MAX_CLASSES = 65_536  # classes of a task; more are taken for a mistake

Arrays = dict[str, np.ndarray[Any, Any]]

# Readers of array headers by version; the third version is for names of record fields, which these arrays do not have.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(path: Path, *names: str) -> Arrays:
    """Those of the named arrays that an `.npz` file has; never runs code from the file.

    The size that an array declares is compared with what is stored and with the machine's memory before it is read.
    """
    place = repr(str(path))
    if not path.exists():
        raise UserError(f"There is no file {place}: check the path.")
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"{place} is not an .npz file, or not a whole one: write it with numpy.savez.")
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
        raise UserError(f"{place} cannot be read as an .npz file ({reason}): write it with numpy.savez.") from None


def _check_members(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise a `ValueError` for arrays that would take more memory than their values need, or than there is."""
    if len({member.filename for member in members}) < len(members):
        raise ValueError("it holds two arrays of one name")
    total = sum(member.file_size for member in members)
    if total > memory() // 2:
        raise ValueError(f"its arrays take {format_size(total)}, more than half of this machine's memory")
    for member in members:
        with archive.open(member) as file:
            shape, dtype = _declared(file)
            values = member.file_size - file.tell()
        if min(shape, default=0) < 0 or dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != values:
            raise ValueError(f"{member.filename} declares another size than it has")


def _declared(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type in the header of an array; a `ValueError` for Python objects, which would be unpickled."""
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
    """Raise a `ValueError` for text with numbers that no letter has, of which Python cannot make a string."""
    if array.dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array).reshape(-1).view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise ValueError(f"{name} holds numbers that are no letters")


def write_features(file: IO[bytes], rows: Iterable[Tensor], shape: tuple[int, ...], **arrays: Any) -> None:
    """Write an `.npz` file as `numpy.savez` does, with the rows of x (n, features) as they come, and further arrays."""
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
            for chunk in rows:
                member.write(chunk.numpy().tobytes())
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def feature_domain(path: Path, *, augment: bool = True) -> Domain:
    """The samples x of an `.npz` file, named by their row numbers; `augment` draws training views of small images."""
    if (rows := large_rows(path)) is not None:
        return Domain(checked_on_disk([rows]))
    return Domain(array_samples(checked_samples(read_arrays(path, "x"), path), augment=augment))


def labeled_feature_domain(path: Path, *, augment: bool = True) -> LabeledDomain:
    """The same with labels y."""
    rows = large_rows(path)
    arrays = read_arrays(path, *([] if rows else ["x"]), "y", "classes")
    x: Any = checked_on_disk([rows]) if rows else checked_samples(arrays, path)
    if "y" not in arrays:
        raise UserError(f"{path} has no array y: add the class number of each row of x.")
    return labeled_arrays(x, arrays["y"], arrays.get("classes"), where=str(path), augment=augment)


def checked_on_disk(rows: Sequence[StoredRows]) -> StoredSamples:
    """Feature vectors that stay on disk, if all of them are finite."""
    samples = StoredSamples(rows)
    assert samples.checked
    return samples


def shard_domain(folder: Path) -> Domain:
    """The samples of a folder of shards, `x*.npy`, in order of their names; they stay on disk."""
    return Domain(checked_on_disk(stored_shards(folder).parts))


def labeled_shard_domain(folder: Path) -> LabeledDomain:
    """The same with labels, `y*.npy`, and names of classes, `classes.npy`, if there are any."""
    arrays = {}
    for name, paths in (("y", shards(folder, "y")), ("classes", [folder / "classes.npy"])):
        try:
            found = [_one_array(path) for path in paths if path.is_file()]
            arrays[name] = np.concatenate(found) if found else None
        except Exception as error:  # damaged files make numpy raise almost anything
            raise UserError(f"The {name} in {str(folder)!r} cannot be read ({shortened(str(error), 80)}).") from None
    if arrays["y"] is None:
        raise UserError(f"{str(folder)!r} has no y*.npy: add the class number of each row of x.")
    samples = checked_on_disk(stored_shards(folder).parts)
    return labeled_arrays(samples, arrays["y"], arrays["classes"], where=str(folder))


def _one_array(path: Path) -> np.ndarray[Any, Any]:
    """The array (n,) or (n, 1) in an `.npy` file; a `ValueError` for another or for a header that does not fit it."""
    with path.open("rb") as file:
        shape, dtype = _declared(file)
        if not shape or math.prod(shape[1:]) != 1:
            raise ValueError(f"{path.name} is of shape {shape}, not (n,)")
        if shape[0] * dtype.itemsize != path.stat().st_size - file.tell():
            raise ValueError(f"{path.name} declares another size than it has")
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
    _check_text(array, path.name)
    return array.reshape(-1)


def array_samples(x: Any, *, augment: bool = True) -> Samples:
    """Feature vectors (n, d), or images (n, h, w) or (n, channels, h, w) with random training views."""
    if isinstance(x, StoredSamples):
        return x
    x = np.asarray(x)
    x = x[:, None] if x.ndim == 3 else x
    return ArraySamples(x) if x.ndim == 2 or not augment else SmallImageSamples(x)


def labeled_arrays(x: Any, y: Any, names: Any = None, *, where: str, augment: bool = True) -> LabeledDomain:
    """A labeled domain from arrays; without names the classes are called by their numbers."""
    y = np.asarray(y)
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"{where} has {len(x)} rows of x but labels of shape {y.shape}: give one label per row.")
    if y.dtype.kind not in "iu":
        raise UserError(f"The labels in {where} are not integers but {y.dtype}: number the classes 0, 1, 2, …")
    numbers, labels = np.unique(y, return_inverse=True)
    if len(numbers) < 2:
        raise UserError(f"{where} has only one class ({numbers[0]}): a classifier needs at least two.")
    if names is None:
        classes = tuple(map(str, numbers))
    else:
        classes, labels = tuple(map(str, np.asarray(names).ravel())), y
        if len(set(classes)) < len(classes):
            raise UserError(f"{where} names a class twice: give each class a name of its own.")
        if y.min() < 0 or y.max() >= len(classes):
            raise UserError(f"{where} names {len(classes)} classes but has labels from {y.min()} to {y.max()}.")
    if len(classes) > MAX_CLASSES:
        raise UserError(f"{where} has {len(classes):,} classes, but at most {MAX_CLASSES:,} are supported.")
    return LabeledDomain(array_samples(x, augment=augment), (), torch.as_tensor(labels.astype(np.int64)), classes)


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


class SmallImageSamples(ArraySamples):
    """Images of shape (n, channels, height, width); in training they are turned, zoomed, slanted and shifted a little.

    This replaces the random crop of photographs. There is no flip, which would turn some characters into others.
    """

    augmentation = "affine"
    views_by_sample = False
    ROTATION = math.radians(10)  # largest angle either way
    ZOOM = 0.1  # largest logarithm of the zoom of either axis
    SHEAR = 0.1  # largest slant either way, as a share of the height
    SHIFT = 0.08  # largest shift either way along each axis, as a share of the image

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        # Fills what a view uncovers at the border: drawn characters have the darkest value as their background.
        self.background = float(self.array.amin()) if len(self.array) else 0.0

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        """The images at `indices`, or with a seed random views of them."""
        images = super().read(indices)
        if seed is None:
            return images
        grid = F.affine_grid(self.random_maps(len(images), seed), list(images.shape), align_corners=False)
        return F.grid_sample(images - self.background, grid, align_corners=False) + self.background

    def random_maps(self, count: int, seed: int) -> Tensor:
        """Affine maps from positions in a view to those in its image, shape (count, 2, 3), in half images."""
        generator = torch.Generator().manual_seed(seed)
        limits = torch.tensor([self.ROTATION, self.ZOOM, self.ZOOM, self.SHEAR, 2 * self.SHIFT, 2 * self.SHIFT])
        angle, wide, high, slant, right, down = ((2 * torch.rand(count, 6, generator=generator) - 1) * limits).unbind(1)
        cos, sin = angle.cos(), angle.sin()
        rows = [cos * wide.exp(), slant - sin * wide.exp(), right, sin * high.exp(), cos * high.exp(), down]
        return torch.stack(rows, 1).view(count, 2, 3)
