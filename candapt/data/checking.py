"""Every image file of a domain is decoded once before it is trained on, in parallel."""

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from candapt.data.decoding import BrokenImageError, Stored, check_size, decode, why_unusable

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


@dataclass(frozen=True)
class ImageCheck:
    """What decoding every file of a list has shown."""

    paths: tuple[Path, ...]
    """Files that decode, in the order given."""
    sizes: tuple[tuple[int, int], ...]
    """Width and height of each of them, upright."""
    hashes: tuple[str, ...]
    """Hash of the bytes of each of them."""
    broken: tuple[tuple[Path, str], ...] = ()
    """Files that do not decode, each with the reason."""
    empty: tuple[tuple[Path, str], ...] = ()
    """Class folders without a usable image, each with that for a reason."""
    grey: int = 0
    """How many of the files that decode are stored without color."""

    def duplicates(self, other: "ImageCheck") -> list[tuple[Path, Path]]:
        """Pairs of one file here and one there whose bytes are the same."""
        there: dict[str, list[Path]] = {}
        for path, digest in zip(other.paths, other.hashes, strict=True):
            there.setdefault(digest, []).append(path)
        return [
            (path, twin) for path, digest in zip(self.paths, self.hashes, strict=True) for twin in there.get(digest, ())
        ]


def check_images(paths: Sequence[Path], *, workers: int = 1, progress: Progress | None = None) -> ImageCheck:
    """Decode every file once, in threads, and note what does not decode.

    JPEGs are decoded at an eighth of their size: all of their data is still gone through, so a truncated one is found.

    Args:
        paths: image files.
        workers: threads.
        progress: called after each file with (done, total).
    """
    good: list[tuple[Path, Stored, str]] = []
    broken: list[tuple[Path, str]] = []
    results = in_threads(_check_one, paths, workers)
    for done, (path, result) in enumerate(zip(paths, results, strict=True), start=1):
        if isinstance(result, str):
            broken.append((path, result))
        else:
            good.append((path, *result))
        if progress is not None:
            progress(done, len(paths))
    checked, stored, hashes = zip(*good, strict=True) if good else ((), (), ())
    sizes, grey = tuple(image.size for image in stored), sum(image.grey for image in stored)
    return ImageCheck(checked, sizes, hashes, tuple(broken), grey=grey)


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items. Threads do: Pillow decodes and resizes without holding the interpreter."""
    if workers <= 1 or len(items) <= 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(workers, len(items))) as pool:
        yield from pool.map(work, items)


def _check_one(path: Path) -> tuple[Stored, str] | str:
    """What one file holds and the hash of its bytes, or the reason why it is broken."""
    try:
        check_size(path)
        data = path.read_bytes()  # read once, for the hash and the decoder
        _, stored = decode(path, io.BytesIO(data), min_size=1)
    except BrokenImageError as error:
        return error.reason
    except (OSError, ValueError) as error:  # a value that no name can have: a null character in a list
        return why_unusable(error)
    return stored, content_hash(data)


def content_hash(data: bytes) -> str:
    """Tells one content from another."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()
