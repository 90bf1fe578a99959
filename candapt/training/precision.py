"""The number format of a training, chosen by what the processor or the GPU has instructions for."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from candapt.network.backbones import SMALL_CNN
from candapt.settings import NetworkSettings, TrainingSettings

BF16 = ("avx512_bf16", "amx_bf16")  # instructions that multiply in bfloat16; without them it is slower than float32


def decide_precision(training: TrainingSettings, network: NetworkSettings) -> TrainingSettings:
    """Replace the precision `auto` by what fits the decided settings of a network on this machine.

    A head over features and a small network take seconds, so only layers of a pretrained backbone are worth it.
    """
    if training.precision != "auto":
        return training
    is_heavy = network.finetune in ("all", "last-stage") and network.backbone != SMALL_CNN
    return replace(training, precision="bf16-mixed" if is_heavy and _has_bf16(training.accelerator) else "32-true")


def _has_bf16(accelerator: Literal["auto", "cpu", "cuda", "mps"]) -> bool:
    """Whether the device has instructions for bfloat16."""
    if accelerator in ("auto", "cuda") and torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if accelerator == "mps" or (accelerator == "auto" and torch.backends.mps.is_available()):
        return False
    return processor_has_bf16()


def processor_has_bf16() -> bool:
    """Whether the processor multiplies in bfloat16, by torch or, where torch does not say, by Linux."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)  # since torch 2.11
    if capabilities is not None:
        known = capabilities()
        return any(known.get(name, False) for name in BF16)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return any(name in flags for name in BF16)
