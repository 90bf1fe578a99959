"""Lets torchvision and timm be imported beside a torch build that their compiled operators do not fit.

The torchvision wheel of the package index is built for CUDA. Beside a CPU build of torch its operators do not load, and
`import torchvision` then stops at "operator torchvision::nms does not exist". Nothing here uses those operators: it is
enough to declare them. Call `declare_missing_operators` before you import torchvision or timm.
"""

import importlib.machinery
import importlib.util
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # arguments and result of both operators
OPERATORS = ("nms", "qnms")  # the operators for which torchvision registers shapes while it is being imported


def declare_missing_operators() -> tuple[str, ...]:
    """Declare the operators, if any, that torchvision's own library does not provide here, and return their names."""
    # A declaration made first would clash with a library that does load, so the library gets the first try.
    _load_own_library()
    missing = tuple(name for name in OPERATORS if not hasattr(torch.ops.torchvision, name))
    for name in missing:
        torch.library.define(f"torchvision::{name}", SCHEMA)
    return missing


def _load_own_library() -> None:
    """Load torchvision's compiled operators as its import would do, without importing it."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        library = Path(spec.origin).with_name(f"_C{suffix}")
        if library.is_file():
            try:
                torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            except OSError:  # built for another torch, or for CUDA
                return
