"""The contrastive domain discrepancy against known numbers, a loop over pairs, and what must leave it unchanged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from candapt.losses import cdd, classwise_mmd, contrastive_domain_discrepancy, layouts, shared_classes
from tests.references import discrepancies as reference

quick = settings(derandomize=True, deadline=None, max_examples=50)

# Numbers from the authors' code in float64 (source counts 2, 3, 2 and target counts 2, 2, 3).
MATRIX = [
    [6.47559694718595, 2.72208147724767, 6.64739558970413],
    [5.95823056899157, 8.11695809961234, 8.74665335448278],
    [9.2458149563172, 11.4952854462273, 6.76856536119600],
]
SOURCE_LABELS = torch.tensor([0, 0, 1, 1, 1, 2, 2])
TARGET_LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])


def known_layers() -> tuple[list[Tensor], list[Tensor]]:
    i = torch.arange(7, dtype=torch.float64)[:, None]
    j = torch.arange(4, dtype=torch.float64)
    source, target = torch.sin(0.7 * i + 0.3 * j + 0.1), torch.cos(0.5 * i - 0.2 * j)
    return [source, (2 * source[:, :3]).softmax(1)], [target, (2 * target[:, :3]).softmax(1)]


def batch(
    *, seed: int = 0, counts: tuple[tuple[int, int], ...] = ((3, 3), (2, 4), (3, 1)), dim: int = 5, shift: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, target and their labels in shuffled order, float64; `counts` are (source, target) a class."""
    random = torch.Generator().manual_seed(seed)
    centers = 2 * torch.randn(len(counts), dim, generator=random, dtype=torch.float64)
    sides = []
    for side in (0, 1):
        labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count[side])]).long()
        labels = labels[torch.randperm(len(labels), generator=random)]
        noise = torch.randn(len(labels), dim, generator=random, dtype=torch.float64)
        sides.append((centers[labels] + noise + side * shift, labels))
    return sides[0][0], sides[1][0], sides[0][1], sides[1][1]


# Known numbers


@pytest.mark.parametrize(
    ("num_classes", "intra", "inter"),
    [(5, 4.272224081598857, 2.240773069648532), (None, 7.120373469331426, 7.469243565495108)],
)
def test_it_gives_the_numbers_of_the_authors_code(num_classes: int | None, intra: float, inter: float) -> None:
    arguments = (*known_layers(), SOURCE_LABELS, TARGET_LABELS)
    whole = contrastive_domain_discrepancy(*arguments, num_classes=num_classes)
    same_class = contrastive_domain_discrepancy(*arguments, num_classes=num_classes, intra_only=True)
    assert whole.item() == pytest.approx(intra - inter, abs=1e-9)
    assert same_class.item() == pytest.approx(intra, abs=1e-9)


def test_the_matrix_has_the_numbers_of_the_authors_code() -> None:
    matrix = classwise_mmd(*known_layers(), SOURCE_LABELS, TARGET_LABELS)
    torch.testing.assert_close(matrix, torch.tensor(MATRIX, dtype=torch.float64), atol=1e-9, rtol=0)


def test_the_known_numbers_in_single_precision() -> None:
    source, target = ([layer.float() for layer in layers] for layers in known_layers())
    value = contrastive_domain_discrepancy(source, target, SOURCE_LABELS, TARGET_LABELS, num_classes=5)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(2.031451011950325, abs=1e-5)


# A loop over pairs


class_counts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4).filter(
    lambda counts: sum(s for s, _ in counts) > 0 and sum(t for _, t in counts) > 0
)


@given(
    seed=st.integers(0, 10_000),
    counts=class_counts,
    dim=st.integers(1, 6),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    layers=st.integers(1, 2),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    extra_classes=st.sampled_from([None, 0, 3]),
    intra_only=st.booleans(),
)
@quick
def test_value_and_gradient_equal_the_loop_over_pairs(
    seed: int,
    counts: list[tuple[int, int]],
    dim: int,
    scale: float,
    layers: int,
    dtype: torch.dtype,
    extra_classes: int | None,
    intra_only: bool,
) -> None:
    source, target, source_labels, target_labels = batch(seed=seed, counts=tuple(counts), dim=dim)
    inputs = [(scale * side).to(dtype) for side in (source, target)]
    num_classes = None if extra_classes is None else len(counts) + extra_classes

    fast = [x.clone().requires_grad_() for x in inputs]
    value = contrastive_domain_discrepancy(
        *([x, x.tanh()][:layers] for x in fast),
        source_labels,
        target_labels,
        num_classes=num_classes,
        intra_only=intra_only,
    )
    gradients = torch.autograd.grad(value, fast)
    slow = [x.double().requires_grad_() for x in inputs]
    expected = reference.cdd(
        *([x, x.tanh()][:layers] for x in slow),
        source_labels.tolist(),
        target_labels.tolist(),
        num_classes,
        intra_only,
    ) + 0 * sum(x.sum() for x in slow)
    expected_gradients = torch.autograd.grad(expected, slow)

    precision = 1e-10 if dtype == torch.float64 else 2e-5
    assert value.dtype == dtype
    assert value.item() == pytest.approx(expected.item(), abs=precision * 10)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        size = max(1.0, right.abs().max().item())
        torch.testing.assert_close(gradient.double(), right, atol=precision * size, rtol=precision)


# What must hold whatever the features


def test_identical_domains_have_no_discrepancy_within_and_a_negative_one_overall() -> None:
    # The case that a wrong implementation is known by: it returned +54.2 here.
    source, _, labels, _ = batch(seed=1, counts=((4, 1), (4, 1), (4, 1)), dim=8)
    assert contrastive_domain_discrepancy(source, source, labels, labels, intra_only=True) == 0
    assert contrastive_domain_discrepancy(source, source, labels, labels) < 0


@given(seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.float32, torch.float64]), dim=st.integers(1, 40))
@quick
def test_identical_domains_never_have_a_positive_discrepancy(seed: int, dtype: torch.dtype, dim: int) -> None:
    source, _, labels, _ = batch(seed=seed, counts=((3, 1), (1, 1), (2, 1)), dim=dim)
    source = source.to(dtype)
    matrix = classwise_mmd(source, source, labels, labels)
    assert (matrix.diagonal() == 0).all()
    assert contrastive_domain_discrepancy(source, source, labels, labels) <= 0


@given(seed=st.integers(0, 10_000), counts=class_counts)
@quick
def test_the_order_of_rows_and_the_names_of_classes_do_not_matter(seed: int, counts: list[tuple[int, int]]) -> None:
    source, target, source_labels, target_labels = batch(seed=seed, counts=tuple(counts))
    value = contrastive_domain_discrepancy(source, target, source_labels, target_labels)
    random = torch.Generator().manual_seed(seed)
    names = 7 * torch.randperm(len(counts), generator=random) - 3
    rows, columns = (torch.randperm(len(x), generator=random) for x in (source, target))
    moved = contrastive_domain_discrepancy(
        source[rows], target[columns], names[source_labels[rows]], names[target_labels[columns]].int()
    )
    torch.testing.assert_close(moved, value)


@given(seed=st.integers(0, 10_000), offset=st.floats(-50, 50), scale=st.floats(0.01, 100))
@quick
def test_moving_and_scaling_all_features_changes_nothing(seed: int, offset: float, scale: float) -> None:
    source, target, *labels = batch(seed=seed)
    value = contrastive_domain_discrepancy(source, target, *labels)
    moved = contrastive_domain_discrepancy(scale * (source + offset), scale * (target + offset), *labels)
    torch.testing.assert_close(moved, value, atol=1e-8, rtol=1e-8)


def test_pulling_a_class_together_lowers_it_and_pulling_classes_together_raises_it() -> None:
    source, target, *labels = batch(seed=3, counts=((3, 3), (3, 3)), shift=0.0)
    value = contrastive_domain_discrepancy(source, target, *labels)
    apart = labels[1][:, None] * torch.full((1, 5), 2.0, dtype=torch.float64)
    assert contrastive_domain_discrepancy(source, target + apart, *labels, intra_only=True) > (
        contrastive_domain_discrepancy(source, target, *labels, intra_only=True)
    )
    swapped = contrastive_domain_discrepancy(source, target, labels[0], 1 - labels[1])
    assert swapped > value


# Numbers that are easy to get wrong


def test_a_tight_cluster_far_from_the_origin_keeps_its_distances() -> None:
    source, target, *labels = batch(seed=4, counts=((3, 3), (3, 3), (3, 3)), dim=64)
    # Spread 1, each class 4096 away in its own direction: |x|^2 is 10^7 times the distances inside a class.
    far = 4096 * torch.eye(64, dtype=torch.float64)[:3]
    source, target = (x.float().double() + far[y] for x, y in zip((source, target), labels, strict=True))
    exact = classwise_mmd(source.float().double(), target.float().double(), *labels)
    torch.testing.assert_close(
        classwise_mmd(source.float(), target.float(), *labels).double(), exact, atol=1e-4, rtol=0
    )


def test_coinciding_samples_give_finite_gradients() -> None:
    source = torch.zeros(4, 3, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    value = contrastive_domain_discrepancy(source, source.detach(), labels, labels)
    value.backward()
    assert value == 0
    assert (source.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    source, target, *labels = batch(seed=5, dim=2048)
    inputs = [(50 * x).to(dtype).requires_grad_() for x in (source, target)]  # squared distances overflow float16
    value = contrastive_domain_discrepancy(*inputs, *labels)
    expected = contrastive_domain_discrepancy(*(x.float() for x in inputs), *labels)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert inputs[0].grad is not None
    assert inputs[0].grad.dtype == dtype


def test_backward_inside_autocast_keeps_its_precision() -> None:
    source, target, *labels = batch(seed=6)
    gradients = []
    for enabled in (False, True):
        inputs = source.float().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            contrastive_domain_discrepancy(inputs, target.float(), *labels).backward()
        gradients.append(inputs.grad)
    torch.testing.assert_close(*gradients)


# Which classes take part


def test_a_class_missing_on_one_side_takes_no_part() -> None:
    source, target, source_labels, target_labels = batch(counts=((2, 3), (3, 0), (0, 2), (2, 2)))
    shared_source, shared_target = source_labels % 3 == 0, target_labels % 3 == 0
    expected = contrastive_domain_discrepancy(
        source[shared_source], target[shared_target], source_labels[shared_source], target_labels[shared_target]
    )
    source[~shared_source] = torch.nan
    source.requires_grad_()
    value = contrastive_domain_discrepancy(source, target, source_labels, target_labels)
    value.backward()
    assert torch.equal(value, expected)
    assert (source.grad[~shared_source] == 0).all()
    assert torch.isfinite(source.grad).all()
    assert shared_classes(source_labels, target_labels).tolist() == [0, 3]


def test_a_single_shared_class_gives_the_part_within_classes_alone() -> None:
    source, target, *labels = batch(counts=((2, 3), (3, 0)))
    whole = contrastive_domain_discrepancy(source, target, *labels)
    assert torch.equal(whole, contrastive_domain_discrepancy(source, target, *labels, intra_only=True))
    assert torch.equal(whole, contrastive_domain_discrepancy(source, target, *labels, num_classes=1))
    torch.testing.assert_close(contrastive_domain_discrepancy(source, target, *labels, num_classes=4), whole / 4)


@pytest.mark.parametrize("num_classes", [None, 1, 4])
def test_without_a_shared_class_it_is_a_zero_that_can_be_differentiated(num_classes: int | None) -> None:
    source, target, *labels = batch(counts=((3, 0), (0, 2)))
    source.requires_grad_()
    value = contrastive_domain_discrepancy([source, source.tanh()], [target, target], *labels, num_classes=num_classes)
    value.backward()
    assert value == 0
    assert torch.equal(source.grad, torch.zeros_like(source))


def test_it_makes_no_tensor_of_pairs_times_features() -> None:
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            tensors = [x for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]
            largest = max([largest, *(x.numel() for x in tensors)])
            return result

    source, target, *labels = batch(counts=((3, 3),) * 4, dim=2000)
    with Watch():
        contrastive_domain_discrepancy(source.requires_grad_(), target, *labels).backward()
    assert largest <= 24 * 2000  # the features of both domains together


def test_a_batch_of_shared_classes_is_not_copied() -> None:
    layers = [torch.ones(4, 3)]
    assert cdd._shared_rows(layers, [5, 7, 5, 7], {5: 0, 7: 1}) is layers
    assert len(cdd._shared_rows(layers, [5, 7, 5, 9], {5: 0, 7: 1})[0]) == 3


def test_batches_of_other_classes_in_the_same_layout_share_their_tables() -> None:
    source, target, *_ = batch(counts=((3, 3),) * 3)
    layouts._make_once.cache_clear()
    for names in ([0, 1, 2], [30, 4, 17]):
        labels = torch.tensor(names).repeat_interleave(3)
        contrastive_domain_discrepancy(source, target, labels, labels)
    assert layouts._make_once.cache_info()[:2] == (1, 1)


def test_tables_that_are_too_large_to_keep_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target, *labels = batch(seed=7)
    value = contrastive_domain_discrepancy(source, target, *labels)
    layouts._make_once.cache_clear()
    monkeypatch.setattr(layouts, "LARGEST_CACHED", 0)
    assert torch.equal(contrastive_domain_discrepancy(source, target, *labels), value)
    assert layouts._make_once.cache_info().currsize == 0


def test_tables_made_without_gradients_serve_later_ones() -> None:
    source, target, *labels = batch(seed=8)
    layouts._make_once.cache_clear()
    with torch.inference_mode():
        value = contrastive_domain_discrepancy(source, target, *labels)
    again = contrastive_domain_discrepancy(source.clone().requires_grad_(), target, *labels)
    again.backward()
    assert torch.equal(again.detach(), value)


def test_eight_layers_are_the_sum_of_each() -> None:
    source, target, *labels = batch(seed=9)
    layers = [
        f(x).requires_grad_() for x in (source, target) for f in (torch.sin, torch.cos, torch.tanh, torch.exp) * 2
    ]
    whole = contrastive_domain_discrepancy(layers[:8], layers[8:], *labels)
    parts = sum(contrastive_domain_discrepancy(s, t, *labels) for s, t in zip(layers[:8], layers[8:], strict=True))
    torch.testing.assert_close(whole, parts)
    for one, other in zip(*(torch.autograd.grad(x, layers) for x in (whole, parts)), strict=True):
        torch.testing.assert_close(one, other)


def test_everything_is_made_where_the_features_are() -> None:
    source, target, *labels = batch(counts=((2, 3), (3, 0), (1, 2)))
    expected = contrastive_domain_discrepancy(source, target, *labels)
    with torch.device("meta"):  # whatever does not ask for a device ends there, where it has no values
        assert torch.equal(contrastive_domain_discrepancy(source, target, *labels), expected)


# What it refuses


def refused(**changes: object) -> str:
    source, target, source_labels, target_labels = batch()
    arguments = {
        "source": source,
        "target": target,
        "source_labels": source_labels,
        "target_labels": target_labels,
        **changes,
    }
    with pytest.raises(ValueError, match=r"\.$") as error:
        contrastive_domain_discrepancy(**arguments)  # type: ignore[arg-type]
    return str(error.value)


def test_it_refuses_what_does_not_fit_together_and_says_why() -> None:
    source = batch()[0]
    wrong = refused(source_labels=torch.ones(7).long())
    assert wrong == "The source has 8 samples, but its labels have shape (7,)."
    wrong = refused(target_labels=torch.ones(8, 1).long())
    assert wrong == "The target has 8 samples, but its labels have shape (8, 1)."
    assert refused(source_labels=torch.ones(8)) == "The source labels must be integers, got torch.float32."
    assert refused(target_labels=torch.ones(8)) == "The target labels must be integers, got torch.float32."
    assert refused(target=torch.ones(8, 4)) == "Layer 0 has 5 features in the source, 4 in the target."
    wrong = refused(source=[source, source], target=[source, source[:, :3]])
    assert wrong == "Layer 1 has 5 features in the source, 3 in the target."
    assert "got 2 and 1" in refused(source=[source, source])
    assert "got 0 and 0" in refused(source=[], target=[])
    for domain in ("source", "target"):
        good, bad = [source, source], [source, source[:7]]
        wrong = refused(**{"source": good, "target": good, domain: bad})
        assert wrong == f"Layer 1 of the {domain} has 7 samples where layer 0 has 8."
        wrong = refused(**{domain: source[..., None]})
        assert wrong == f"Layer 0 of the {domain} must have shape (n, d), got (8, 5, 1)."
        empty = {domain: torch.ones(0, 5), f"{domain}_labels": torch.ones(0).long()}
        assert refused(**empty) == (
            f"The {domain} batch is empty; a discrepancy needs at least one sample of each domain."
        )
        types = "torch.int64 and torch.float64" if domain == "source" else "torch.float64 and torch.int64"
        assert refused(**{domain: source.long()}) == f"Layer 0 must hold floating-point features, got {types}."
    assert "num_classes is 2, but the batch has 3" in refused(num_classes=2)
