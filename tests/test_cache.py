"""The activation cache: what is stored, when it is found again, and what happens when making it is cut short."""

import logging
import os
import pickle
import shutil
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from candapt.adaptation import adapt
from candapt.commands.main import main
from candapt.data.domains import ArraySamples, Domain, Task
from candapt.data.features import SmallImageSamples
from candapt.data.images import image_domain
from candapt.errors import UserError
from candapt.model import load
from candapt.network.activations import (
    CHUNK,
    ActivationCache,
    CachedSamples,
    CacheEntry,
    FrozenSamples,
    View,
    after_layers,
    default_folder,
)
from candapt.network.build import NetworkParts, build_parts
from candapt.settings import ImageSettings, NetworkSettings
from candapt.storage.folders import locked
from tests.images import BACKBONES, SIZE, photo_task, write_photos, write_weights
from tests.predictions import without_confidence
from tests.toy import quick_settings

SMALL = NetworkSettings(backbone="small-cnn", finetune="head", head="linear")


def parts_of(settings: NetworkSettings = SMALL, shape: tuple[int, ...] = (1, 16, 16), seed: int = 0) -> NetworkParts:
    torch.manual_seed(seed)
    return build_parts(settings, shape, 2)


def drawings(count: int = 2 * CHUNK + 5) -> Domain:
    x = np.random.default_rng(0).uniform(size=(count, 1, 16, 16)).astype(np.float32)
    return Domain(SmallImageSamples(x))


@pytest.fixture
def cache(tmp_path: Path) -> ActivationCache:
    return ActivationCache(tmp_path / "cache")


def everything(domain: Domain, seed: int | None = None) -> torch.Tensor:
    return domain.samples.read(torch.arange(domain.size), seed=seed)


class TestWhatIsStored:
    def test_the_evaluation_view_is_what_the_layers_give_rounded(self, cache: ActivationCache) -> None:
        parts, domain = parts_of(), drawings()
        (stored,) = cache.through(parts, domain)
        assert parts.frozen is not None
        with torch.no_grad():
            expected = parts.frozen(everything(domain))
        made = everything(stored)
        assert made.dtype == torch.float32
        assert stored.names == domain.names
        torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-4)
        assert torch.equal(made, made.half().float())
        computed = everything(after_layers(parts.frozen, domain))
        assert torch.equal(made, computed)  # what a prediction computes, to the bit

    def test_training_views(self, cache: ActivationCache) -> None:
        (stored,) = cache.through(parts_of(), drawings())
        views = [everything(Domain(CachedSamples(path))) for path in stored.samples.training]  # type: ignore[attr-defined]
        assert len(views) == 2
        assert not torch.equal(views[0], views[1])
        made = everything(stored, seed=3)
        from_first = (made == views[0]).flatten(1).all(1)
        from_second = (made == views[1]).flatten(1).all(1)
        assert (from_first ^ from_second).all()
        assert 10 < from_first.sum() < len(made) - 10
        assert torch.equal(made, everything(stored, seed=3))
        assert not torch.equal(made, everything(stored, seed=4))

    def test_chunks_are_augmented_differently(self, cache: ActivationCache) -> None:
        same = Domain(
            SmallImageSamples(np.tile(drawings(1).samples.read(torch.arange(1)).numpy(), (CHUNK + 1, 1, 1, 1)))
        )
        (stored,) = cache.through(parts_of(), same)
        view = CachedSamples(stored.samples.training[0]).read(torch.tensor([0, CHUNK]))  # type: ignore[attr-defined]
        assert not torch.equal(view[0], view[1])

    def test_without_training_views(self, cache: ActivationCache) -> None:
        settings = NetworkSettings(backbone="small-cnn", finetune="head", views=0)
        (stored,) = cache.through(parts_of(settings), drawings())
        assert torch.equal(everything(stored, seed=1), everything(stored))
        (plain,) = cache.through(parts_of(), Domain(ArraySamples(everything(drawings()).numpy())))
        assert torch.equal(everything(plain, seed=1), everything(stored))  # samples that have no training views
        assert [entry.views for entry in cache.entries()] == [["evaluation"]]

    def test_samples_are_read_in_any_order_and_by_other_processes(self, cache: ActivationCache) -> None:
        (stored,) = cache.through(parts_of(), drawings())
        indices = torch.tensor([66, 0, 31, 32, 0])
        expected = everything(stored)[indices]
        assert torch.equal(stored.samples.read(indices), expected)
        assert torch.equal(pickle.loads(pickle.dumps(stored.samples)).read(indices), expected)
        assert len(pickle.dumps(stored.samples)) < 2000
        assert stored.samples.read(torch.arange(0)).shape == (0, 256)

    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_any_number_of_streams_gives_what_the_layers_give(self, threads: int) -> None:
        frozen, domain = parts_of().frozen, drawings(3 * CHUNK + 5)
        assert frozen is not None
        with torch.inference_mode():
            expected = torch.cat([frozen(part) for part in everything(domain).split(CHUNK)])
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            samples = FrozenSamples(frozen, domain.samples, dtype=torch.float32)
            order = [0, 1, 2, 3, 3, 1, 0]
            chunks = [samples.chunk(number) for number in order]
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        for number, chunk in zip(order, chunks, strict=True):
            torch.testing.assert_close(chunk, expected[number * CHUNK : (number + 1) * CHUNK])

    def test_values_beyond_half_precision_stay_finite(self) -> None:
        samples = FrozenSamples(torch.nn.Conv2d(1, 1, 1), ArraySamples(np.array([1e9, -1e9]).reshape(2, 1, 1, 1)))
        assert samples.chunk(0).isfinite().all()


class TestWhenItIsFoundAgain:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names: list[str] = []
        make = View.make
        monkeypatch.setattr(View, "make", lambda view, *rest: (names.append(view.name), make(view, *rest)))
        return names

    def test_the_same_is_computed_once(self, cache: ActivationCache, made: list[str]) -> None:
        cache.through(parts_of(), drawings(), drawings())
        assert made == ["evaluation", "affine-1", "affine-2"]
        cache.through(parts_of(), drawings())
        assert len(made) == 3

    def test_more_views_are_added_and_fewer_found(self, cache: ActivationCache, made: list[str]) -> None:
        for views, expected in ((1, 2), (3, 4), (2, 4), (0, 4)):
            cache.through(parts_of(NetworkSettings(backbone="small-cnn", finetune="head", views=views)), drawings())
            assert len(made) == expected
        assert len(cache.entries()) == 1

    def test_what_it_depends_on(self, cache: ActivationCache, tmp_path: Path) -> None:
        folder = write_photos(tmp_path / "photos")

        def entry(parts: NetworkParts, **changes: Any) -> CacheEntry:
            images = ImageSettings(**{"size": 16, "resize": 18, "mean": (0.5,), "std": (0.5,), "grey": True, **changes})
            return cache.views(parts, image_domain(folder, images)[0])[0].entry

        first = entry(parts_of())
        assert entry(parts_of()) == first
        assert entry(parts_of(), augmentation="strong") == first  # other training views beside the same evaluation view
        different = [
            entry(parts_of(seed=1)),
            entry(parts_of(NetworkSettings(backbone="small-cnn", finetune="last-stage"))),
            entry(parts_of(), resize=20),
            entry(parts_of(), mean=(0.4,)),
        ]
        shutil.move(folder, tmp_path / "moved")
        folder = tmp_path / "moved"
        assert entry(parts_of()) == first  # the same bytes in another place
        with (folder / "cat" / "0.png").open("ab") as file:
            file.write(b"!")
        different.append(entry(parts_of()))
        (folder / "cat" / "1.png").unlink()
        different.append(entry(parts_of()))
        assert len({first, *different}) == 7

    def test_the_place_of_the_strides_matters(self, cache: ActivationCache) -> None:
        first, second = (
            NetworkParts(parts_of().frozen, parts_of().network, SMALL, {"bottleneck_stride": stride})
            for stride in ("1x1", "3x3")
        )
        assert cache.views(first, drawings())[0].entry != cache.views(second, drawings())[0].entry

    def test_mirror_images_have_entries_of_their_own(self, cache: ActivationCache) -> None:
        parts, domain = parts_of(replace(SMALL, mirror=True)), drawings(40)
        assert cache.views(parts, domain)[0].entry != cache.views(parts_of(), domain)[0].entry
        (stored,) = cache.through(parts, domain)
        made = everything(stored)
        torch.testing.assert_close(made.norm(dim=1), torch.ones(40), rtol=1e-3, atol=1e-3)
        assert torch.equal(made, everything(after_layers(parts.frozen, domain)))

    def test_kinds_of_training_views_lie_side_by_side(self, cache: ActivationCache, tmp_path: Path) -> None:
        folder = write_photos(tmp_path / "photos")
        for kind in ("paper", "strong", "none"):
            images = ImageSettings(size=16, resize=18, mean=(0.5,), std=(0.5,), grey=True, augmentation=kind)  # type: ignore[arg-type]
            cache.through(parts_of(), image_domain(folder, images)[0])
        (entry,) = cache.entries()
        assert entry.views == ["evaluation", "paper-1", "paper-2", "strong-1", "strong-2"]
        assert not entry.begun


class TestInterruption:
    def test_goes_on_where_it_was_stopped(self, cache: ActivationCache, monkeypatch: pytest.MonkeyPatch) -> None:
        parts, domain = parts_of(), drawings(4 * CHUNK)
        (expected,) = ActivationCache(cache.folder.with_name("whole")).through(parts, domain)
        computed: list[int] = []
        chunk = FrozenSamples.chunk

        def stops(samples: FrozenSamples, number: int) -> torch.Tensor:
            computed.append(number)
            if len(computed) == 7:
                raise KeyboardInterrupt
            return chunk(samples, number)

        monkeypatch.setattr(FrozenSamples, "chunk", stops)
        with pytest.raises(KeyboardInterrupt):
            cache.through(parts, domain)
        (entry,) = cache.entries()
        assert (entry.views, entry.begun) == (["evaluation"], ["affine-1"])
        begun = entry.folder / "affine-1.begun"
        with begun.open("ab") as file:
            file.write(b"half a row")
        seen: list[tuple[int, int]] = []
        (stored,) = cache.through(parts, domain, progress=lambda done, total: seen.append((done, total)))
        assert computed == [0, 1, 2, 3, 0, 1, 2, 2, 3, 0, 1, 2, 3]
        assert seen[-1] == (6 * CHUNK, 6 * CHUNK)
        assert torch.equal(everything(stored), everything(expected))
        assert torch.equal(everything(stored, seed=1), everything(expected, seed=1))
        assert sorted(path.suffix for path in entry.folder.iterdir()) == [".json", *[".npy"] * 3]

    def test_a_marker_that_promises_too_much_is_not_believed(self, cache: ActivationCache) -> None:
        parts, domain = parts_of(), drawings()
        view = cache.views(parts, domain)[0]
        view.entry.folder.mkdir(parents=True)
        (view.entry.folder / "evaluation.begun").write_bytes(b"short")
        (view.entry.folder / "evaluation.rows").write_text("64")
        (stored,) = cache.through(parts, domain)
        assert torch.equal(everything(stored), everything(after_layers(parts.frozen, domain)))

    def test_a_second_process_waits_for_the_first(
        self, cache: ActivationCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "candapt")
        parts, domain = parts_of(), drawings()
        (view, *_) = cache.views(parts, domain)
        with ThreadPoolExecutor(1) as pool:
            with view.entry.opened({}):
                waiting = pool.submit(cache.through, parts, domain)
                with pytest.raises(TimeoutError):
                    waiting.result(timeout=1)
                assert not view.entry.begun
            (stored,) = waiting.result(timeout=60)
        assert sum("is being written by process" in message for message in caplog.messages) == 1
        assert torch.equal(everything(stored), everything(after_layers(parts.frozen, domain)))

    def test_a_damaged_array_is_made_again(self, cache: ActivationCache) -> None:
        parts, domain = parts_of(), drawings()
        (stored,) = cache.through(parts, domain)
        expected, path = everything(stored), cache.views(parts, domain)[0].path
        os.truncate(path, 1000)
        (again,) = cache.through(parts, domain)
        assert torch.equal(everything(again), expected)


class TestRoom:
    def test_the_size_is_known_before_it_is_made(self, cache: ActivationCache) -> None:
        need = cache.describe_need(parts_of(), drawings(100))
        assert need == f"The cache needs 150 KiB for 100 images × 3 views in {cache.folder}."
        assert not cache.folder.exists()
        cache.through(parts_of(), drawings(100))
        need = cache.describe_need(parts_of(), drawings(100))
        assert need == f"The cache has everything in {cache.folder}."
        assert cache.describe_need(replace(parts_of(), frozen=None), drawings(100)) == ""

    def test_a_disk_without_room_is_refused(self, cache: ActivationCache, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100_000))
        with pytest.raises(UserError, match=r"needs 150 KiB for 100 images × 3 views, but .* has only 97.7 KiB free"):
            cache.require_room(parts_of(), drawings(100))
        assert not cache.folder.exists()
        cache.require_room(parts_of(), drawings(50))

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match=r"cannot be written .*: give another folder by --cache"):
            ActivationCache(tmp_path / "file" / "cache").through(parts_of(), drawings())

    def test_where_it_is(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("CANDAPT_CACHE", str(tmp_path / "own"))
        assert default_folder() == tmp_path / "own"
        monkeypatch.delenv("CANDAPT_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert default_folder() == tmp_path / "candapt"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert default_folder() == Path.home() / ".cache" / "candapt"


class TestRemoval:
    def test_an_entry_that_is_written_stays(self, cache: ActivationCache) -> None:
        cache.through(parts_of(), drawings())
        (entry,) = cache.entries()
        with locked(entry.folder), pytest.raises(UserError, match="is being written"):
            cache.remove(entry)
        cache.remove(entry)
        assert not cache.entries()

    def test_other_folders_are_no_entries(self, cache: ActivationCache) -> None:
        (cache.folder / "photos").mkdir(parents=True)
        assert not cache.entries()


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("finetune", ["last-stage", "head"])
def test_training_over_the_cache(backbone: str, finetune: str, tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights.safetensors", backbone)
    task: Task = photo_task(tmp_path)
    settings = quick_settings(
        network__backbone=backbone,
        network__weights=weights,
        network__finetune=finetune,
        network__bottleneck=None,
        training__steps=2,
        training__batch_size=4,
    )
    result = adapt(task, settings, images=SIZE, cache=ActivationCache(tmp_path / "cache"))
    result.model.save(tmp_path)
    again = load(tmp_path).predict(task.target)
    assert torch.equal(again.probabilities, result.predictions.probabilities)
    assert torch.equal(again.features, result.predictions.features)
    trained = {name.split(".")[1] for name, _ in result.model.parts.network.named_parameters()}
    assert ("layers" in trained) is (finetune == "last-stage")


class TestCommand:
    @pytest.fixture
    def filled(self, cache: ActivationCache) -> ActivationCache:
        cache.through(parts_of(), drawings())
        cache.through(parts_of(NetworkSettings(backbone="small-cnn", finetune="last-stage", views=1)), drawings())
        cache.entries()[0].folder.joinpath("affine-2.begun").write_bytes(b"")
        return cache

    @staticmethod
    def run(cache: ActivationCache, *words: str) -> int:
        return main(["cache", *words, "--cache", str(cache.folder)])

    def test_list(self, filled: ActivationCache, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.run(filled) == 0
        titles, newest, oldest, total = map(str.rstrip, capsys.readouterr().out.splitlines())
        assert titles.split()[:6] == ["key", "backbone", "depth", "images", "views", "size"]
        entries = filled.entries()
        assert newest.split()[:5] == [entries[0].folder.name[:12], "small-cnn", "last-stage", "69", "2"]
        assert newest.endswith("partial (affine-2)")
        assert oldest.split()[:7] == [entries[1].folder.name[:12], "small-cnn", "head", "69", "3", "104", "KiB"]
        assert oldest.endswith("complete")
        assert total.endswith(str(filled.folder))

    def test_clear_one(self, filled: ActivationCache) -> None:
        kept, removed = filled.entries()
        assert self.run(filled, "clear", removed.folder.name[:12]) == 0
        assert filled.entries() == [kept]

    def test_clear_all(self, filled: ActivationCache, capsys: pytest.CaptureFixture[str]) -> None:
        (filled.folder / "notes.txt").write_text("mine")
        assert self.run(filled, "clear") == 0
        assert capsys.readouterr().out.startswith("Removed 2 of the entries in ")
        assert [path.name for path in filled.folder.iterdir()] == ["notes.txt"]
        assert self.run(filled) == 0
        assert capsys.readouterr().out == f"The cache {filled.folder} is empty.\n"

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("clear", "nothing"), "0 keys in"),
            (("clear", ""), "2 keys in"),
            (("wipe",), "There is no action 'wipe': choose one of list, clear."),
        ],
    )
    def test_what_is_refused(
        self, filled: ActivationCache, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(filled, *words) == 2
        assert sentence in capsys.readouterr().err
        assert len(filled.entries()) == 2

    def test_an_entry_that_nothing_is_known_of(self, filled: ActivationCache) -> None:
        entry = filled.entries()[0]
        (entry.folder / "about.json").write_text("?")
        assert self.run(filled) == 0
        assert self.run(filled, "clear", entry.folder.name) == 0


class TestFromTheCommandLine:
    @pytest.fixture
    def words(self, tmp_path: Path) -> list[str]:
        """An adaptation to photographs, all but the depth."""
        weights = write_weights(tmp_path / "weights.safetensors", "test_resnet")
        photos = (write_photos(tmp_path / "source"), write_photos(tmp_path / "target", seed=1))
        flags = [*("--backbone", "test_resnet", "--weights", weights, "--images.size", 32, "--rounds", 1)]
        flags += [*("--training.steps", 2, "--training.batch_size", 4, "--cache", tmp_path / "cache")]
        return [str(word) for word in ("adapt", *photos, "--out", tmp_path / "run", *flags)]

    @pytest.mark.parametrize("finetune", ["last-stage", "head"])
    def test_predict_reproduces_the_predictions(self, words: list[str], finetune: str, tmp_path: Path) -> None:
        assert main([*words, "--finetune", finetune]) == 0
        run, again = tmp_path / "run", tmp_path / "again.csv"
        assert main(["predict", str(run), str(tmp_path / "target"), "--out", str(again)]) == 0
        assert without_confidence(again) == without_confidence(run / "predictions.csv")
        log = (run / "log.txt").read_text()
        assert 0 < log.index("The cache needs ") < log.index("round 1/1")
        (entries,) = {tuple(entry.views) for entry in ActivationCache(tmp_path / "cache").entries()}
        assert entries == (("evaluation", "paper-1", "paper-2") if finetune == "last-stage" else ("evaluation",))

    def test_without_room_nothing_is_begun(
        self, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        usage = namedtuple("usage", "free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1000))
        assert main([*words, "--finetune", "head"]) == 2
        assert "has only 1000 bytes free" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
        assert not (tmp_path / "cache").exists()
