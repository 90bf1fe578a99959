"""Models for other programs: a run's target-ready network as one ONNX file or `torch.export` program, and its use."""

from candapt.export.runtime import OnnxModel

__all__ = ["OnnxModel"]
