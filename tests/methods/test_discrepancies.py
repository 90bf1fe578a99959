"""DAN, JAN and MCC: which layers go into the tested losses, and how strongly."""

import pytest
import torch

from candapt.data.domains import Side
from candapt.losses import minimum_class_confusion
from candapt.methods.base import Batch, BatchPart
from candapt.methods.dann import ramped
from candapt.network.network import Outputs
from tests.methods.rotated import small_batch, tiny
from tests.references.discrepancies import estimated_mmd, joint_mmd


def both(method: torch.nn.Module, batch: Batch) -> tuple[Outputs, Outputs]:
    return method.network(batch["source"].x, Side.SOURCE), method.network(batch["target"].x, Side.TARGET)


def fewer(batch: Batch, count: int) -> Batch:
    """The same with a smaller target."""
    target = batch["target"]
    return {**batch, "target": BatchPart(target.x[:count], target.labels[:count], target.norm)}


@pytest.mark.parametrize("estimator", ["unbiased", "biased", "linear"])
@pytest.mark.parametrize("output", ["logits", "probabilities", "none"])
def test_dan(output: str, estimator: str) -> None:
    method, batch = tiny("dan", weight=0.4, output=output, estimator=estimator), small_batch()
    source, target = both(method, batch)
    expected = estimated_mmd(source.features, target.features, estimator)
    if output != "none":
        expected = expected + estimated_mmd(getattr(source, output), getattr(target, output), estimator)
    losses = method.forward(batch, method.phases[0], 0.1)
    torch.testing.assert_close(losses["discrepancy"], 0.4 * expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        losses["classification"], -source.logits.log_softmax(1)[range(6), batch["source"].labels].mean()
    )


@pytest.mark.parametrize("ramp", [10.0, None])
@pytest.mark.parametrize("estimator", ["unbiased", "linear"])
def test_jan(estimator: str, ramp: float | None) -> None:
    method, batch = tiny("jan", weight=0.4, estimator=estimator, ramp=ramp), small_batch()
    layers = [[side.features, side.probabilities] for side in both(method, batch)]
    strength = 1 if ramp is None else ramped(0.1, ramp)
    expected = 0.4 * strength * joint_mmd(*layers, estimator, fixed={1: (1.68, (1.0,))})
    made = method.forward(batch, method.phases[0], 0.1)["discrepancy"]
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dan", "jan"])
def test_the_linear_estimate_takes_as_many_samples_as_both_have(name: str) -> None:
    method, batch = tiny(name, estimator="linear"), small_batch()
    made = method.forward(fewer(batch, 4), method.phases[0], 1.0)["discrepancy"]
    shorter = {name: BatchPart(part.x[:4], part.labels[:4], part.norm) for name, part in batch.items()}
    torch.testing.assert_close(made, method.forward(shorter, method.phases[0], 1.0)["discrepancy"])


def test_mcc_looks_at_the_target_alone() -> None:
    method, batch = tiny("mcc", weight=0.4, temperature=2.0), small_batch()
    _, target = both(method, batch)
    losses = method.forward(batch, method.phases[0], 0.1)
    torch.testing.assert_close(losses["confusion"], 0.4 * minimum_class_confusion(target.logits, temperature=2.0))
