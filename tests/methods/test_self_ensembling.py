"""Self-ensembling: the loss by hand, the moving average, and that the two views differ."""

from math import log

import pytest
import torch

from candapt.data.domains import Side
from candapt.methods.base import Batch
from candapt.settings import TrainingSettings
from candapt.training.optimizers import build_optimizers
from tests.methods.rotated import adapted, begin, gradients, short_settings, small_batch, tiny

PARTS = {"source": Side.SOURCE, "target": Side.TARGET, "target_again": Side.TARGET}


def batch() -> Batch:
    return small_batch(**PARTS)


@pytest.mark.parametrize("double_softmax", [False, True])
def test_the_losses_by_hand(double_softmax: bool) -> None:
    parts = batch()
    undecided = tiny("self-ensembling").network(parts["target_again"].x, Side.TARGET).probabilities.amax(1)
    threshold = undecided.mean().item()  # some samples lie above it
    settings = {"weight": 5.0, "balance": 0.2, "noise": 0.0, "double_softmax": double_softmax}
    method = tiny("self-ensembling", threshold=threshold, **settings)
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.add_(0.1)  # so that student and teacher differ
    losses = method.forward(parts, method.phases[0], 0.5)

    source = method.student(parts["source"].x, Side.SOURCE).logits
    scores = source.softmax(1) if double_softmax else source
    expected = -sum(scores[i].softmax(0)[label].log().item() for i, label in enumerate(parts["source"].labels)) / 6
    assert losses["classification"].item() == pytest.approx(expected, rel=1e-5)

    student = method.student(parts["target"].x, Side.TARGET).probabilities.tolist()
    teacher = method.network(parts["target_again"].x, Side.TARGET).probabilities.tolist()
    sure = [max(row) > threshold for row in teacher]
    assert 0 < sum(sure) < 6
    rows = zip(student, teacher, sure, strict=True)
    errors = [sum((s - t) ** 2 for s, t in zip(a, b, strict=True)) / 3 if kept else 0 for a, b, kept in rows]
    assert losses["consistency"].item() == pytest.approx(5 * sum(errors) / 6, rel=1e-4)

    shares = [sum(row[k] for row in student) / 6 for k in range(3)]
    terms = [-(log(q) / 3 + 2 / 3 * log(1 - q)) for q in shares]
    assert losses["balance"].item() == pytest.approx(5 * 0.2 * sum(terms) * sum(sure) / 6, rel=1e-4)


def test_only_the_student_learns() -> None:
    method = tiny("self-ensembling", threshold=0.0).train()
    assert not any(parameter.requires_grad for parameter in method.network.parameters())
    total = torch.stack(list(method.forward(batch(), method.phases[0], 0.5).values())).sum()
    assert any(g.any() for g in gradients(total, method.student))


def test_the_teacher_is_a_moving_average() -> None:
    method = tiny("self-ensembling", decay=0.9)
    before = [parameter.clone() for parameter in method.network.parameters()]
    statistics = {name: value.clone() for name, value in method.network.named_buffers()}
    for student, teacher in zip(method.student.parameters(), before, strict=True):
        assert torch.equal(student, teacher)
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.add_(1)
    for _ in range(2):
        method.after_step()
    for teacher, start in zip(method.network.parameters(), before, strict=True):
        torch.testing.assert_close(teacher, start + 1 - 0.9**2)
    assert all(torch.equal(value, statistics[name]) for name, value in method.network.named_buffers())


def test_the_teacher_knows_the_statistics_of_both_domains() -> None:
    method = adapted("self-ensembling").model.method
    for side in Side:
        teacher, student = (
            net.backbone.input_norm.norms[side].running_mean for net in (method.network, method.student)
        )
        assert torch.allclose(teacher, student, atol=0.03)  # they see different noise
        assert teacher.abs().max() > 0.15


def test_the_target_is_read_twice() -> None:
    training = begin(short_settings("self-ensembling"))
    draws = training.method.draws(training.describe_round(), None)
    assert all(torch.equal(draw["target"].indices, draw["target_again"].indices) for draw in draws)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_noise_is_in_proportion_to_the_samples(noise: float) -> None:
    method, x = tiny("self-ensembling", noise=noise), 30 * torch.randn(200, 50)
    first, second = method.noisy(x), method.noisy(x)
    assert torch.equal(first, second) is (noise == 0)
    assert (first - x).std().item() == pytest.approx(noise * x.std().item(), rel=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_noise_is_in_proportion_to_each_feature(noise: float) -> None:
    method, x = tiny("self-ensembling", feature_noise=noise), torch.logspace(-2, 2, 20) * torch.randn(2000, 20)
    first, second = method.noisy(x), method.noisy(x)
    assert torch.equal(first, second) is (noise == 0)
    torch.testing.assert_close((first - x).std(0), noise * x.std(0), rtol=0.1, atol=0)


@pytest.mark.parametrize(("shape", "noise"), [((2000, 50), 0.6), ((50, 3, 20, 20), 0.1)])
def test_vectors_have_more_noise_than_images_by_default(shape: tuple[int, ...], noise: float) -> None:
    method, x = tiny("self-ensembling"), 30 * torch.randn(shape)
    assert (method.noisy(x) - x).std().item() == pytest.approx(noise * x.std().item(), rel=0.02)


def test_dropout_differs_between_student_and_teacher() -> None:
    method = tiny("self-ensembling", threshold=0.0, noise=0.0).train()
    parts = {**batch(), "target_again": batch()["target"]}
    assert method.forward(parts, method.phases[0], 0.5)["consistency"] > 1e-4
    without = tiny("self-ensembling", threshold=0.0, noise=0.0, dropout=0.0).train()
    assert without.forward(parts, without.phases[0], 0.5)["consistency"].item() == pytest.approx(0, abs=1e-10)


def test_pretrained_layers_of_the_student_learn_slowly() -> None:
    training = begin(short_settings("self-ensembling"))
    training.method.student.pretrained = True
    groups = build_optimizers(training.method, TrainingSettings(learning_rate=0.003, optimizer="sgd"))[
        "student"
    ].param_groups
    rates = {id(p): group["initial_lr"] for group in groups for p in group["params"]}
    student = training.method.student
    assert {rates[id(p)] for p in student.backbone.parameters() if id(p) in rates} == {0.003}
    assert {rates[id(p)] for p in student.head.parameters()} == {0.03}
