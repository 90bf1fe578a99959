"""Outputs over a whole domain, and statistics that do not depend on the order of the files."""

import pytest
import torch
from torch.nn.functional import normalize

from candapt.data.domains import Domain, Side
from candapt.methods.base import Method
from candapt.training.outputs import outputs_of, outputs_of_whole, read_in_order, refresh_statistics
from tests.toy import Toy, make_training, quick_settings


@pytest.fixture
def method(toy: Toy) -> Method:
    return make_training(toy.task, quick_settings()).method


@pytest.mark.parametrize("batch_size", [2, 7, 64, 1000])
def test_outputs_are_those_of_each_sample_in_order(toy: Toy, method: Method, batch_size: int) -> None:
    outputs = outputs_of(method, Domain(toy.target_x), Side.TARGET, batch_size=batch_size)
    with torch.no_grad():
        expected = [method.eval().predict(row[None], Side.TARGET) for row in torch.as_tensor(toy.target_x)]
    torch.testing.assert_close(outputs.features, torch.cat([one.features for one in expected]))
    torch.testing.assert_close(outputs.logits, torch.cat([one.logits for one in expected]))
    assert not outputs.logits.requires_grad


@pytest.mark.parametrize(("count", "batch_size"), [(1, 2), (2, 2), (3, 2), (5, 2), (10, 3), (10, 4), (257, 256)])
def test_every_sample_is_read_once_and_none_alone(toy: Toy, method: Method, count: int, batch_size: int) -> None:
    x = torch.arange(count, dtype=torch.float32)[:, None]
    batches = list(read_in_order(method, Domain(x), batch_size))
    assert torch.equal(torch.cat(batches), x)
    assert min(map(len, batches)) >= min(2, count)
    assert max(map(len, batches)) <= max(batch_size, 3)


def test_statistics_do_not_depend_on_the_order(toy: Toy, method: Method) -> None:
    """A folder is read class by class; were a batch one class, the order would tell what the labels are."""
    norms = [method.network.backbone.input_norm.norms[Side.TARGET], method.network.backbone.norm.norms[Side.TARGET]]
    order = toy.target_y.argsort(kind="stable")
    seen = []
    for x in (toy.target_x, toy.target_x[order]):
        refresh_statistics(method, Domain(x), Side.TARGET, batch_size=30)
        seen.append([value for norm in norms for value in (norm.running_mean.clone(), norm.running_var.clone())])
    (mean, variance, second_mean, second_variance), by_class = seen
    torch.testing.assert_close(mean, by_class[0])
    torch.testing.assert_close(variance, by_class[1])
    # Behind the first norm batches matter a little: they are normalized one by one.
    scale = second_variance.sqrt()
    assert float(((second_mean - by_class[2]) / scale).abs().max()) < 0.1
    assert float((second_variance / by_class[3]).log().abs().max()) < 0.3


class TestOnePass:
    """Statistics and outputs of a bottleneck over features from one product."""

    def test_statistics_are_those_of_the_whole_domain(self, toy: Toy, method: Method) -> None:
        outputs_of_whole(method, Domain(toy.target_x), Side.TARGET, batch_size=30)
        backbone = method.network.backbone
        units = normalize(torch.as_tensor(toy.target_x))
        first = backbone.input_norm.norms[Side.TARGET]
        torch.testing.assert_close(first.running_mean, units.mean(0))
        torch.testing.assert_close(first.running_var, units.var(0))
        with torch.no_grad():
            mapped = backbone.map(first(units))
        second = backbone.norm.norms[Side.TARGET]
        torch.testing.assert_close(second.running_mean, mapped.mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(second.running_var, mapped.var(0), rtol=1e-4, atol=1e-5)

    def test_outputs_are_those_of_a_second_pass(self, toy: Toy, method: Method) -> None:
        once = outputs_of_whole(method, Domain(toy.target_x), Side.TARGET, batch_size=30)
        again = outputs_of(method, Domain(toy.target_x), Side.TARGET, batch_size=30)
        assert torch.equal(once.features, again.features)
        assert torch.equal(once.logits, again.logits)

    def test_the_order_of_files_does_not_matter(self, toy: Toy, method: Method) -> None:
        order = torch.as_tensor(toy.target_y.argsort(kind="stable"))
        first = outputs_of_whole(method, Domain(toy.target_x), Side.TARGET, batch_size=30)
        other = outputs_of_whole(method, Domain(toy.target_x[order]), Side.TARGET, batch_size=30)
        torch.testing.assert_close(first.logits[order], other.logits, rtol=1e-3, atol=1e-4)

    def test_whole_weights_are_repetitions(self, toy: Toy, method: Method) -> None:
        weights = torch.arange(len(toy.target_x)) % 3 + 1
        some = outputs_of_whole(method, Domain(toy.target_x), Side.TARGET, batch_size=30, weights=weights.float())
        norm = method.network.backbone.norm.norms[Side.TARGET]
        mean = norm.running_mean.clone()
        rows = torch.arange(len(toy.target_x)).repeat_interleave(weights)
        outputs_of_whole(method, Domain(toy.target_x[rows]), Side.TARGET, batch_size=30)
        torch.testing.assert_close(
            mean, method.network.backbone.norm.norms[Side.TARGET].running_mean, rtol=1e-2, atol=1e-3
        )
        assert len(some.logits) == len(toy.target_x)
