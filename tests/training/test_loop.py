"""The training loop: what it depends on, what it tells, when it stops, and that CAN learns by it."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from candapt.adaptation import adapt
from candapt.clustering import cosine_distances
from candapt.data.domains import ArraySamples, Domain, LabeledDomain, Side, Task
from candapt.data.features import labeled_arrays
from candapt.errors import UserError
from candapt.randomness import generator
from candapt.settings import Settings
from candapt.storage.interruption import SIGNALS
from candapt.training.batches import read_batches
from candapt.training.loop import Training
from candapt.training.optimizers import learning_rate_factor
from candapt.training.state import Record
from tests.toy import Hooks, Toy, make_toy, make_training, quick_settings, run, timeless, weights


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


SOURCE_STATISTICS = {"source-only__statistics": "source"}
"""A network that has not seen the target at all, where CAN has to make up for the whole shift."""


class NoisySamples(ArraySamples):
    """Samples whose training views are random, as those of images are."""

    def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
        x = super().read(indices)
        return x if seed is None else x + torch.randn(x.shape, generator=generator(seed))


@pytest.fixture
def noisy(toy: Toy) -> Task:
    task = toy.task
    source = LabeledDomain(NoisySamples(toy.source_x), (), task.source.labels, task.source.classes)
    return Task(source, Domain(NoisySamples(toy.target_x)))


def planned_steps(task: Task, settings: Settings) -> int:
    """Steps of the first round."""
    training = make_training(task, settings)
    round = training.describe_round()
    training.cluster(round)
    return len(training.method.draws(round, training.state.clusters))


class TestDeterminism:
    @pytest.mark.parametrize("method", ["can", "source-only"])
    def test_the_same_seed_gives_the_same_weights(self, noisy: Task, method: str) -> None:
        first, second = (run(make_training(noisy, quick_settings(method))) for _ in range(2))
        assert same(weights(first), weights(second))
        assert timeless(first.state.history) == timeless(second.state.history)

    def test_what_was_drawn_before_does_not_matter(self, noisy: Task) -> None:
        first = run(make_training(noisy, quick_settings()))
        torch.manual_seed(123)
        torch.rand(7)
        assert same(weights(first), weights(run(make_training(noisy, quick_settings()))))

    def test_another_seed_gives_other_weights(self, noisy: Task) -> None:
        first, second = (run(make_training(noisy, quick_settings(seed=seed))) for seed in (0, 1))
        assert not torch.equal(first.method.network.head.weight, second.method.network.head.weight)

    def test_another_seed_draws_other_batches(self, noisy: Task) -> None:
        draws = [make_training(noisy, quick_settings(seed=seed)).describe_round() for seed in (0, 1)]
        batches = [torch.stack([d["source"].indices for d in r.random_draws(5, Side.SOURCE)]) for r in draws]
        assert not torch.equal(*batches)

    def test_the_number_of_workers_does_not_matter(self, noisy: Task) -> None:
        first, second = (run(make_training(noisy, quick_settings(training__workers=n))) for n in (0, 2))
        assert same(weights(first), weights(second))

    def test_workers_leave_signals_to_their_starter(self, toy: Toy) -> None:
        """A service manager that stops a run signals all of its processes, and the run wants to save itself."""

        class Signaled(ArraySamples):
            def read(self, indices: Tensor, *, seed: int | None = None) -> Tensor:
                if seed is not None:
                    for number in SIGNALS:
                        os.kill(os.getpid(), number)
                return super().read(indices)

        source = LabeledDomain(Signaled(toy.source_x), (), toy.task.source.labels, toy.task.source.classes)
        training = run(make_training(Task(source, toy.task.target), quick_settings(training__workers=1)))
        assert training.state.round == 2

    def test_global_random_states_are_left_alone(self, toy: Toy) -> None:
        torch.manual_seed(5)
        np.random.seed(5)
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        adapt(toy.task, quick_settings())
        assert torch.equal(torch.get_rng_state(), before)
        assert np.array_equal(np.random.get_state()[1], numpy_before)


class TestRounds:
    def test_what_is_told(self, toy: Toy) -> None:
        training = make_training(toy.task, quick_settings(training__steps=3, training__settled=0))
        steps: list[tuple[int, int]] = []
        records: list[Record] = []
        training.run(
            [
                Hooks(on_step=lambda training, *counts: steps.append(counts)),
                Hooks(on_round=lambda training, record: records.append(record)),
            ]
        )
        assert steps == [(1, 3), (2, 3), (3, 3)] * 2
        assert records == training.state.history
        assert [record["round"] for record in records] == [0, 1]
        assert [record["iteration"] for record in records] == [3, 6]
        expected = {"classification", "discrepancy", "kept_samples", "kept_share", "kept_classes", "learning_rate"}
        assert expected | {"seconds", "mean_distance"} <= records[0].keys()
        assert {"label_change", "center_shift"} <= records[1].keys()

    @pytest.mark.parametrize("schedule", ["progress", "iteration", "constant"])
    def test_the_learning_rate_follows_the_schedule(self, toy: Toy, schedule: str) -> None:
        training = make_training(toy.task, quick_settings(training__steps=3, training__schedule=schedule))
        used: list[float] = []
        training.run([Hooks(on_step=lambda *_: used.append(training.optimizers["network"].param_groups[0]["lr"]))])
        expected = [
            0.001 * learning_rate_factor(schedule, progress=i / 6, iteration=i, slope=10, power=0.75)
            for i in range(len(used))
        ]
        assert used == pytest.approx(expected)
        recorded = [record["learning_rate"] for record in training.state.history]
        assert recorded == pytest.approx([sum(used[i : i + 3]) / 3 for i in range(0, len(used), 3)])

    def test_it_stops_when_settled(self, toy: Toy) -> None:
        adapted = adapt(toy.task, quick_settings(rounds=6, training__settled=1.1))
        assert len(adapted.history) == 3  # the first round is a warm-up, and two in a row must be quiet
        assert adapted.settled

    def test_it_goes_on_to_the_last_round_otherwise(self, toy: Toy) -> None:
        adapted = adapt(toy.task, quick_settings(rounds=3, training__settled=0))
        assert len(adapted.history) == 3
        assert not adapted.settled

    def test_the_method_may_choose_the_number_of_steps(self, toy: Toy) -> None:
        training = make_training(toy.task, quick_settings(rounds=1, training__steps=None, can__classes=2))
        run(training)
        assert training.state.iteration == 20  # methods.md 1.6: 4 classes x (30 // 3 draws) / 2 classes a step

    def test_the_authors_rule_can_be_cut_short(self, toy: Toy) -> None:
        whole, third, none = (
            planned_steps(toy.task, quick_settings(training__steps=None, can__epoch_share=share, can__warmup=0))
            for share in (1.0, 1 / 3, 0.0)
        )
        assert (third, none) == (-(-whole // 3), 1)

    def test_clusters_can_be_of_training_views(self, noisy: Task) -> None:
        evaluated, drawn = (
            make_training(noisy, quick_settings(training__clustering_views=views))
            for views in ("evaluation", "training")
        )
        for training in (evaluated, drawn):
            training.cluster(training.describe_round())
        assert evaluated.state.clusters is not None
        assert drawn.state.clusters is not None
        assert not torch.equal(evaluated.state.clusters.distances, drawn.state.clusters.distances)
        again = make_training(noisy, quick_settings(training__clustering_views="training"))
        again.cluster(again.describe_round())
        assert again.state.clusters is not None
        assert torch.equal(again.state.clusters.distances, drawn.state.clusters.distances)

    def test_outputs_are_computed_once_between_two_steps(self, toy: Toy) -> None:
        training = make_training(toy.task, quick_settings(rounds=1))
        first = training.outputs.of(Side.TARGET)
        assert training.outputs.of(Side.TARGET) is first
        run(training)
        assert training.outputs.of(Side.TARGET) is not first

    @staticmethod
    def has_target_statistics(training: Training, toy: Toy) -> bool:
        training.outputs.of(Side.TARGET)
        norm = training.method.network.backbone.input_norm.norms[Side.TARGET]
        unit = torch.nn.functional.normalize(torch.as_tensor(toy.target_x), dim=1)
        return torch.allclose(norm.running_mean, unit.mean(0), atol=1e-6)

    @pytest.mark.parametrize("statistics", ["domain", "running"])
    def test_statistics_of_the_whole_domain(self, toy: Toy, statistics: str) -> None:
        training = run(make_training(toy.task, quick_settings(training__statistics=statistics)))
        assert self.has_target_statistics(training, toy) is (statistics == "domain")

    @pytest.mark.parametrize("pretrained", [False, True])
    def test_a_new_network_starts_from_statistics_of_the_domain(self, toy: Toy, pretrained: bool) -> None:
        training = make_training(toy.task, quick_settings(training__statistics="running"))
        training.method.network.pretrained = pretrained
        assert self.has_target_statistics(training, toy) is not pretrained

    def test_a_method_that_never_sees_the_target_knows_its_statistics(self, toy: Toy) -> None:
        """With running averages there is no other way for source-only to standardize it."""
        training = run(make_training(toy.task, quick_settings("source-only", training__statistics="running")))
        assert self.has_target_statistics(training, toy)

    @pytest.mark.parametrize("statistics", ["domain", "running"])
    @pytest.mark.parametrize("method", ["can", "source-only"])
    def test_looking_on_changes_nothing(self, toy: Toy, method: str, statistics: str) -> None:
        """Someone with target labels may measure after each round; the outcome must be the same to the last bit."""

        def look(training: Training, record: Record) -> None:
            training.outputs.of(Side.TARGET)

        settings = quick_settings(method, training__statistics=statistics)
        alone, watched = (make_training(toy.task, settings) for _ in range(2))
        run(alone)
        watched.run([Hooks(on_round=look)])
        clusters = [t.method.final_clusters(t.describe_round()) for t in (alone, watched)]
        assert same(weights(alone), weights(watched))
        assert torch.equal(clusters[0].distances, clusters[1].distances)
        assert torch.equal(clusters[0].centers, clusters[1].centers)


class TestAccumulation:
    @pytest.mark.parametrize("method", ["can", "mcd"])
    def test_an_update_has_the_mean_of_the_gradients(self, toy: Toy, method: str) -> None:
        """With gradient descent without momentum, of two batches the update is the mean of theirs."""
        plain = {"training__optimizer": "sgd", "training__momentum": 0.0, "network__dropout": 0.0}
        settings = quick_settings(method, **plain)
        moved = []
        for chosen in ([0], [1], [0, 1]):
            torch.manual_seed(0)  # heads of a method start at random
            training = make_training(toy.task, settings)
            round = training.describe_round()
            draws = training.method.draws(round, training.method.cluster(round))[:2]
            batches = list(read_batches(training.fabric, training.task, draws, round.seed))
            before, phase = weights(training), training.method.phases[0]
            training.method.eval()  # no dropout in heads either
            training.step([batches[number] for number in chosen], phase, 0.5)
            moved.append({name: value - before[name] for name, value in training.method.named_parameters()})
        for name, value in moved[2].items():
            torch.testing.assert_close(value, (moved[0][name] + moved[1][name]) / 2, atol=1e-6, rtol=1e-4)

    def test_a_last_group_may_be_smaller(self, toy: Toy) -> None:
        training = run(make_training(toy.task, quick_settings(training__steps=5, training__accumulate=2, rounds=2)))
        assert [record["iteration"] for record in training.state.history] == [3, 6]


class TestNothingKept:
    """When no class survives the filters, the round trains on cross-entropy alone."""

    def test_the_discrepancy_is_left_out(self, toy: Toy) -> None:
        training = run(make_training(toy.task, quick_settings(can__max_distance=1e-9)))
        for record in training.state.history:
            assert record["kept_samples"] == record["kept_classes"] == 0
            assert "discrepancy" not in record
            assert record["classification"] > 0

    def test_it_trains_as_source_only_does(self, toy: Toy) -> None:
        nothing = quick_settings(can__max_distance=1e-9, can__confusion=0, training__settled=0, network__heads=1)
        trained = [
            dict(run(make_training(toy.task, settings)).method.network.named_parameters())
            for settings in (nothing, quick_settings("source-only", **SOURCE_STATISTICS))
        ]
        assert same(*trained)

    def test_the_authors_rule_gives_way_to_an_epoch(self, toy: Toy) -> None:
        """Their rule counts kept classes; a round without one still sees the larger domain once."""
        settings = quick_settings(can__max_distance=1e-9, training__steps=None, rounds=1)
        training = run(make_training(toy.task, settings))
        larger = max(toy.task.source.size, toy.task.target.size)
        assert training.state.iteration == larger // settings.training.batch_size > 1

    def test_a_single_kept_sample_is_not_aligned(self, toy: Toy) -> None:
        """Batch norm cannot take a batch of one."""
        first = make_training(toy.task, quick_settings())
        nearest = first.method.cluster(first.describe_round()).distances.sort().values
        limit = float((nearest[0] + nearest[1]) / 2)
        settings = quick_settings(rounds=1, can__max_distance=limit, can__min_samples=1)
        (record,) = run(make_training(toy.task, settings)).state.history
        assert record["kept_samples"] == 1
        assert "discrepancy" not in record

    def test_warm_up_rounds_do_not_align(self, toy: Toy) -> None:
        training = run(make_training(toy.task, quick_settings(can__warmup=1, training__settled=0)))
        assert ["discrepancy" in record for record in training.state.history] == [False, True]


class TestTrouble:
    def test_a_loss_that_is_no_number_is_named_with_its_step(self, toy: Toy) -> None:
        training = make_training(toy.task, quick_settings(training__learning_rate=1e30))
        with pytest.raises(UserError, match=r"round 1, step [2-5] .*\(classification (nan|inf).*learning_rate"):
            run(training)

    @pytest.mark.parametrize("method", ["can", "can-no-ao", "dann"])
    def test_data_whose_features_are_no_numbers(self, method: str) -> None:
        images = np.random.default_rng(0).uniform(size=(40, 16, 16)).astype(np.float32) * np.float32(3e38)
        source = labeled_arrays(images, np.arange(40) % 4, where="the images")
        with pytest.raises(UserError, match="In round 1 the target cannot be clustered: The initial centers hold inf"):
            adapt(Task(source, Domain(source.samples)), quick_settings(method))

    @pytest.mark.parametrize("method", ["can", "dann"])
    @pytest.mark.parametrize("event", ["on_step", "on_round"])
    def test_weights_that_are_no_numbers_after_the_last_step(self, toy: Toy, method: str, event: str) -> None:
        """The next one to look is the scorer, or the model that is made of the last round."""

        def spoil(training: Training, *_: object) -> None:
            if training.state.round == (1 if event == "on_step" else 2):
                training.method.network.backbone.bottleneck.weight.data.fill_(torch.nan)
                training.outputs.forget()

        with pytest.raises(UserError, match="In round 2 the target cannot be clustered: The initial centers hold inf"):
            adapt(toy.task, quick_settings(method, training__steps=1), callbacks=[Hooks(**{event: spoil})])

    def test_source_and_target_must_be_of_one_shape(self, toy: Toy) -> None:
        with pytest.raises(UserError, match=r"\(24,\) but target samples \(5,\)"):
            adapt(Task(toy.task.source, Domain(toy.target_x[:, :5])), quick_settings())

    def test_one_target_sample_is_too_few(self, toy: Toy) -> None:
        with pytest.raises(UserError, match="fewer than two"):
            adapt(Task(toy.task.source, Domain(toy.target_x[:1])), quick_settings())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("rounds", 0),
            ("network__bottleneck", 0),
            ("training__steps", 0),
            ("training__batch_size", 1),
            ("training__evaluation_batch", 1),
            ("training__workers", -1),
            ("training__learning_rate", -0.1),
        ],
    )
    def test_impossible_numbers(self, toy: Toy, name: str, value: float) -> None:
        with pytest.raises(UserError, match=f"{name.replace('__', '.')} is {value}, but must be at least"):
            adapt(toy.task, quick_settings(**{name: value}))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
    def test_a_device_that_is_not_there(self, toy: Toy) -> None:
        with pytest.raises(UserError, match="'cuda', which this machine does not have"):
            adapt(toy.task, quick_settings(training__accelerator="cuda"))

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_very_small_domains(self, toy: Toy, count: int) -> None:
        """No batch of one sample is made anywhere, which batch norm could not take."""
        task = replace(toy.task, target=Domain(toy.target_x[:count]))
        adapted = adapt(task, quick_settings(training__evaluation_batch=2))
        assert len(adapted.predictions.labels) == count


class TestLearning:
    def test_can_beats_source_only_on_a_shift(self) -> None:
        accuracy: dict[str, list[float]] = {"source-only": [], "can": []}
        for seed in range(3):
            toy = make_toy(seed=seed)
            for method in accuracy:
                own = {"can__warmup": 1} if method == "can" else SOURCE_STATISTICS
                settings = quick_settings(
                    method,
                    rounds=6,
                    network__bottleneck=64,
                    training__steps=10,
                    training__learning_rate=0.005,
                    **own,
                )
                predicted = adapt(toy.task, settings).predictions.labels.numpy()
                accuracy[method].append(float((predicted == toy.target_y).mean()))
        assert np.mean(accuracy["can"]) > 0.98
        assert np.mean(accuracy["source-only"]) < 0.8

    def test_the_classifier_and_the_clusters_agree_in_the_end(self, toy: Toy) -> None:
        changes = {"network__bottleneck": 64, "training__steps": 20, "training__learning_rate": 0.01}
        adapted = adapt(toy.task, quick_settings(rounds=6, **changes))
        assert float((adapted.predictions.labels == adapted.predictions.cluster_labels).float().mean()) > 0.95


def test_final_looks_are_in_single_precision(toy: Toy) -> None:
    """As whoever loads the model will compute: distances and the clusters' reach must fit together."""
    adapted = adapt(toy.task, quick_settings(training__precision="bf16-mixed"))
    features = adapted.predictions.features
    assert not torch.equal(features, features.bfloat16().float())
    nearest = cosine_distances(features, adapted.model.centers).argmin(1)
    assert torch.equal(adapted.predictions.cluster_labels, nearest)
    assert adapted.predictions.kept.all()
