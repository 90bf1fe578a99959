"""Every row of the table of methods: it learns, repeats itself, resumes, and updates what it says."""

import ast
import inspect
import json
import math
import textwrap
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch

from candapt.adaptation import adapt, build_method, initial_parts
from candapt.data.domains import Side
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.model import load
from candapt.presets import make_settings
from candapt.settings import Settings
from candapt.training.batches import read_batches
from candapt.training.checkpoint import checkpoints, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from tests.methods.rotated import accuracy, adapted, begin, make_rotated, short_settings
from tests.toy import Hooks, make_toy, quick_settings

every = pytest.mark.parametrize("method", METHODS)
DOCS = Path(__file__).parents[2] / "docs" / "methods"


@every
def test_it_learns(method: str) -> None:
    assert accuracy(method) > 0.5  # chance is a third
    if method != "source-only":
        assert accuracy(method) > accuracy("source-only") + 0.05


def test_source_only_has_something_left_to_gain() -> None:
    source = adapted("source-only").model.predict(make_rotated().task.source, Side.SOURCE).labels
    assert float((source == make_rotated().task.source.labels).float().mean()) > 0.95
    assert accuracy("source-only") < 0.8


@every
def test_the_same_seed_gives_the_same_predictions(method: str) -> None:
    shorter = short_settings(method, **{"rounds": 2, "training.steps": 5})
    first, again = (adapt(make_rotated().task, shorter).predictions.probabilities for _ in range(2))
    assert torch.equal(again, first)


@every
def test_it_trains_in_mixed_precision(method: str) -> None:
    toy = make_toy()
    full, mixed = (adapt(toy.task, quick_settings(method, training__precision=p)) for p in ("32-true", "bf16-mixed"))
    trained = [next(iter(each.model.method.network.head.parameters())) for each in (full, mixed)]
    assert trained[1].dtype == torch.float32
    assert not torch.equal(*trained)
    for ours, theirs in zip(full.history, mixed.history, strict=True):
        assert theirs["classification"] == pytest.approx(ours["classification"], rel=0.05)


@every
def test_it_goes_on_from_a_checkpoint(method: str, tmp_path: Path) -> None:
    started = begin(short_settings(method))

    def on_step(training: Training, done: int, planned: int) -> None:
        if started.state.round == 1 and done == 2:
            save_checkpoint(started, tmp_path)
            raise KeyboardInterrupt  # in the middle of the second round

    with pytest.raises(KeyboardInterrupt):
        started.run([Hooks(on_step=on_step)])
    (path,) = checkpoints(tmp_path)

    torch.manual_seed(99)  # another process has another random state
    resumed = begin(short_settings(method))
    with torch.no_grad():
        for parameter in resumed.method.parameters():
            parameter.add_(1)  # whatever it starts from is replaced
    restore_checkpoint(resumed, path)
    resumed.run()
    resumed.method.final_clusters(resumed.describe_round())  # as `adapt` does

    expected, ended = adapted(method).model.method.state_dict(), resumed.method.state_dict()
    assert expected.keys() == ended.keys()
    assert all(torch.equal(expected[name], ended[name]) for name in expected)


@every
def test_a_saved_model_predicts_the_same(method: str, tmp_path: Path) -> None:
    adapted(method).model.save(tmp_path)
    predicted = load(tmp_path).predict(make_rotated().task.target)
    assert torch.equal(predicted.probabilities, adapted(method).predictions.probabilities)


@every
def test_it_leaves_the_network_that_it_is_given_as_it_is(method: str) -> None:
    settings = short_settings(method)
    parts = initial_parts(make_rotated().task, settings)
    network = parts.network
    modules = dict(network.named_modules())
    values = {name: value.clone() for name, value in network.state_dict().items()}
    made = build_method(parts, settings)
    trained = made.get_submodule(made.phases[0].updates[0].partition(".")[0])
    assert trained.backbone is network.backbone  # shared, since a copy would take memory
    assert dict(network.named_modules()) == modules
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert network.state_dict().keys() == values.keys()
    assert all(torch.equal(value, values[name]) for name, value in network.state_dict().items())


@every
def test_a_phase_updates_what_it_names_and_nothing_else(method: str) -> None:
    settings = short_settings(method)
    training = begin(short_settings(method, **{"warmup": 0} if hasattr(settings.method_settings, "warmup") else {}))
    training.method.after_step = lambda: None  # type: ignore[method-assign]
    round = training.describe_round()
    draws = training.method.draws(round, training.method.cluster(round))
    batch = next(read_batches(training.fabric, training.task, draws[:1], round.seed))
    training.method.train()
    for phase in training.method.phases:
        before = {name: value.clone() for name, value in training.method.named_parameters()}
        training.step([batch], phase, 0.5)
        moved = {name for name, value in training.method.named_parameters() if not torch.equal(value, before[name])}
        for part in phase.updates:
            assert any(name.startswith(f"{part}.") for name in moved), part
        assert all(name.startswith(tuple(f"{part}." for part in phase.updates)) for name in moved)


@every
def test_draws_can_be_made_again(method: str) -> None:
    training = begin(short_settings(method))
    round = training.describe_round()
    clusters = training.method.cluster(round)
    torch.manual_seed(5)
    for first, second in zip(*(training.method.draws(round, clusters) for _ in range(2)), strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name].indices, second[name].indices) for name in first)
        assert all(first[name].labels.unique().tolist() == [-1] for name in first if name.startswith("target"))


@every
def test_settings_are_plain_data_with_a_sentence_each(method: str) -> None:
    settings = METHODS[method].Settings()
    assert METHODS[method].Settings(**json.loads(json.dumps(asdict(settings)))) == settings
    described = [name for kind in type(settings).__mro__[:-1] for name in explained(kind)]
    assert {field.name for field in fields(settings)} <= set(described)


def limited() -> list[tuple[str, str, float, str]]:
    """A value outside of each limit of each method's settings, and what the error says of it."""
    cases = []
    for method, kind in METHODS.items():
        for field in fields(kind.Settings):
            low, high = (field.metadata.get(name, math.inf) for name in ("low", "high"))
            if math.isfinite(low):
                cases.append((method, field.name, low - 1, f"at least {low:g}"))
            if math.isfinite(high):
                cases.append((method, field.name, high + 1, f"at most {high:g}"))
    return cases


@pytest.mark.parametrize(("method", "name", "value", "limit"), limited())
def test_settings_have_limits(method: str, name: str, value: float, limit: str) -> None:
    own = METHODS[method].Settings(**{name: value})
    with pytest.raises(UserError) as caught:
        Settings(method=method, method_settings=own)
    assert str(caught.value) == f"{method}.{name} is {value}, but must be {limit}."


def test_a_batch_without_classes_is_refused_when_settings_are_made() -> None:
    with pytest.raises(UserError) as caught:
        Settings(method="can", method_settings=METHODS["can"].Settings(classes=0))
    assert str(caught.value) == "can.classes is 0, but must be at least 1."
    with pytest.raises(UserError, match=r"can\.classes is 0, but must be at least 1\."):
        short_settings("can", classes=0)


@every
def test_searched_values_lie_within_the_limits(method: str) -> None:
    for field in fields(METHODS[method].Settings):
        if (search := field.metadata.get("search")) is not None:
            assert field.metadata["low"] <= search.low < search.high <= field.metadata["high"]
            assert search.holds(field.default), field.name


def explained(kind: type) -> list[str]:
    """Fields of a class that a docstring follows."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    pairs = zip(tree.body, tree.body[1:], strict=False)
    return [
        ast.unparse(field.target)
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and ast.unparse(text).rstrip("'\"").endswith(".")
    ]


@every
def test_its_page_tells_every_setting_with_its_default(method: str) -> None:
    page = (DOCS / f"{method}.md").read_text(encoding="utf-8")
    defaults = make_settings(method).method_settings
    for field in fields(METHODS[method].Settings):
        value = getattr(defaults, field.name)
        default = json.dumps(value) if not isinstance(value, str) else value
        assert f"| `{method}.{field.name}` | {default} |" in page, field.name


def test_pages_are_of_methods() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} == set(METHODS)
