"""What an exported file says of itself: classes, input, and how its confidence is computed; each value is JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from candapt.settings import ImageSettings
from candapt.storage.safe_reading import fitted, from_plain

FORMAT = 1  # version of the names and meanings below; it increases when they must be read differently
INPUT = "input"  # name of the only input: float32, shape (n, *shape)
OUTPUTS = (
    "probabilities",
    "confidence",
    "label",
    "unknown",
)  # names of the outputs, in order; later formats may have more
SIMILAR = ("similar", "similarity")  # further outputs of a file with stored samples: nearest source samples, cosines
RESIZE_RULE = (
    "Pillow: upright, RGB (or L if gray), on white where transparent; resize((resize, resize), BICUBIC); crop size x "
    "size from the center; divide by 255; subtract mean; divide by std; channels first"
)

ConfidenceKind = Literal["neighbors", "class", "softmax"]
"""What the confidence comes from: neighbors in stored samples, the class and the softmax, or the softmax alone."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of an exported file."""

    method: str  # that trained the network
    classes: tuple[str, ...]  # class names in the order of the probabilities
    shape: tuple[int, ...]  # shape of one sample: (channels, height, width), or (features,)
    images: ImageSettings | None  # how an image becomes a sample; None for a model over features
    confidence: ConfidenceKind
    opset: int | None  # version of ONNX's operators; None for other formats
    candapt_version: str
    quantized: str | None = None  # kind of quantization
    names_unknown: bool = False  # whether the run calls samples `unknown` whose output of that name is above one half

    def describe(self) -> dict[str, str]:
        """Names and values, each as JSON in ASCII, so that any language can read them."""
        plain = {**asdict(self), "format": FORMAT}
        images = plain.pop("images")
        if self.images is not None:
            plain |= {name: images[name] for name in _IMAGE_FIELDS} | {"resize_rule": RESIZE_RULE}
        return {name: json.dumps(value) for name, value in plain.items() if value is not None}

    @classmethod
    def read(cls, described: Mapping[str, str]) -> "Metadata":
        """The inverse of `describe`; a `ValueError` or `KeyError` for what candapt has not written."""
        if "format" not in described:
            raise ValueError("it was not made by candapt")
        plain = {name: json.loads(value) for name, value in described.items()}
        if plain["format"] != FORMAT:
            raise ValueError(f"it was written in format {plain['format']!r}; this version reads {FORMAT}")
        images = {name: plain[name] for name in _IMAGE_FIELDS if name in plain}
        own = cls(
            fitted(plain["method"], str, "method"),
            fitted(plain["classes"], tuple[str, ...], "classes"),
            fitted(plain["shape"], tuple[int, ...], "shape"),
            from_plain(ImageSettings, images) if images else None,
            fitted(plain["confidence"], ConfidenceKind, "confidence"),
            fitted(plain.get("opset"), int | None, "opset"),
            fitted(plain["candapt_version"], str, "candapt_version"),
            fitted(plain.get("quantized"), str | None, "quantized"),
            fitted(plain.get("names_unknown", False), bool, "names_unknown"),
        )
        if own.images is not None and own.shape != (own.images.channels, own.images.size, own.images.size):
            raise ValueError(f"its shape is {own.shape}, which its image settings do not make")
        return own


_IMAGE_FIELDS = ("size", "resize", "mean", "std", "grey", "shrink")  # those that a reader of images needs
