"""Time the contrastive domain discrepancy against a loop over pairs of classes: `python -m benchmarks.losses`.

The loop is laid out as the first implementations of the loss are: the differences of a pair of classes as one
(m, n, d) tensor, the distances inside a class kept, the kernels of every pair evaluated on their own. Both sides run
forward and backward on the same batch, turn by turn, so that whatever else the machine does meets both.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.class_loop import loop_discrepancy
from benchmarks.record import record
from candapt.losses import contrastive_domain_discrepancy

CASES = {
    # name: classes in the batch, samples of each class and domain, width of every layer, classes of the task
    "Office-31, features": (10, 3, (2048,), 31),
    "Office-31, features and probabilities": (10, 3, (2048, 31), 31),
    "VisDA-2017, features and probabilities": (6, 10, (2048, 12), 12),
}


def measure(name: str, repetitions: int) -> dict[str, Any]:
    """Times in milliseconds, their ratio and how far the two results lie apart."""
    classes, samples, widths, num_classes = CASES[name]
    random = torch.Generator().manual_seed(0)
    source = [torch.rand(classes * samples, width, generator=random).requires_grad_() for width in widths]
    target = [torch.rand(classes * samples, width, generator=random).requires_grad_() for width in widths]
    labels = torch.arange(classes).repeat_interleave(samples)

    def ours() -> Tensor:
        return contrastive_domain_discrepancy(source, target, labels, labels, num_classes=num_classes)

    def loop() -> Tensor:
        return loop_discrepancy(source, target, classes, num_classes)

    inputs = [*source, *target]
    value, gradient = forward_and_backward(ours, inputs)
    expected, expected_gradient = forward_and_backward(loop, inputs)
    times = [(elapsed(ours, inputs), elapsed(loop, inputs)) for _ in range(repetitions + 3)][3:]  # the first warm up
    ours_ms, loop_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "case": name,
        "ours_ms": round(ours_ms, 3),
        "loop_ms": round(loop_ms, 3),
        "ratio": round(loop_ms / ours_ms, 1),
        "fastest_ours_ms": round(min(ours for ours, _ in times), 3),
        "fastest_loop_ms": round(min(loop for _, loop in times), 3),
        "value_difference": abs(float(value - expected)),
        "gradient_difference": float((gradient - expected_gradient).abs().max() / expected_gradient.abs().max()),
    }


def forward_and_backward(loss: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The value and the gradient to the first layer of the source."""
    for layer in inputs:
        layer.grad = None
    value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    gradient = inputs[0].grad
    assert gradient is not None
    return value.detach(), gradient


def elapsed(loss: Callable[[], Tensor], inputs: list[Tensor]) -> float:
    start = time.perf_counter()
    forward_and_backward(loss, inputs)
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the contrastive domain discrepancy against a loop over pairs.")
    parser.add_argument("--repetitions", type=int, default=100, help="timed turns of each side (default: 100)")
    parser.add_argument("--threads", type=int, default=2, help="threads that torch may use (default: 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    print(f"{'forward + backward, median (fastest) in ms':<44}{'ours':>16}{'loop':>20}{'ratio':>8}")
    rows = []
    for name in CASES:
        row = measure(name, arguments.repetitions)
        ours, loop = (f"{row[f'{side}_ms']:.2f} ({row[f'fastest_{side}_ms']:.2f})" for side in ("ours", "loop"))
        print(f"{name:<44}{ours:>16}{loop:>20}{row['ratio']:>8.1f}")
        rows.append(row)
    load = round(os.getloadavg()[0], 1)  # well above 1: the machine was busy with other work
    record("losses", {"load_average": load, "repetitions": arguments.repetitions, "cases": rows})


if __name__ == "__main__":
    main()
