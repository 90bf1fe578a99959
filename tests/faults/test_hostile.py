"""Files from strangers: they run no code, reach no file outside of their folder, and take bounded memory.

Each line of `docs/security.md` names the test here that proves it.
"""

import inspect
import io
import json
import os
import pickle
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from benchmarks.fuzzing.trial import limits
from candapt.adaptation import adapt
from candapt.benchmark.plan import make_plan
from candapt.benchmark.runner import BenchmarkFolder, read_stored
from candapt.benchmark.runner import run as run_benchmark
from candapt.commands.main import main
from candapt.commands.parser import read_config
from candapt.data import decoding
from candapt.data.decoding import read_image
from candapt.data.domains import Domain
from candapt.data.features import feature_domain, labeled_feature_domain
from candapt.data.images import find_images, image_domain
from candapt.data.inputs import read_target_labels
from candapt.data.lists import list_domain
from candapt.errors import UserError
from candapt.model import load
from candapt.network.modules import SmallCNN
from candapt.network.weights import read_weights
from candapt.settings import ImageSettings
from candapt.storage import safe_reading
from candapt.storage.files import digest, read_tensors, write_atomically
from candapt.storage.runs import RunFolder
from candapt.training.checkpoint import restore_checkpoint, save_checkpoint
from tests.toy import Toy, make_toy, make_training, quick_settings
from tests.toy import run as finish

X, Y = np.arange(24, dtype=np.float32).reshape(8, 3), np.arange(8) % 2
LITTLE = 2**30
"""Bytes that a refusal may take; what is refused would take far more."""
NOT_IN_FILES = {"config", "out", "cache", "resume", "force"}
"""Flags that only the user may give."""

_events: list[tuple[str, str]] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is not None and event in ("open", "socket.connect", "subprocess.Popen", "os.system", "os.rename"):
        _events.append((event, str(arguments[0])))


sys.addaudithook(_listen)


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """What Python opens, starts, connects to and renames."""
    global _events
    _events = []
    try:
        yield _events
    finally:
        _events = None


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    """Must not have gone off in the end; that it can is made sure first."""
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    (tmp_path / "sprung").rmdir()
    yield Trap(tmp_path / "sprung")
    assert not (tmp_path / "sprung").exists()


@pytest.fixture(scope="module")
def toy() -> Toy:
    return make_toy(samples=8, classes=3, width=6)


@pytest.fixture(scope="module")
def saved(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    adapt(toy.task, quick_settings(rounds=1, training__steps=1)).model.save(folder)
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A run folder that a test may spoil."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("model.json", "model.safetensors"):
        (folder / name).write_bytes((saved / name).read_bytes())
    return folder


def change(run: Path, **changes: Any) -> None:
    """Change the description of a model; `network__dropout` is a setting of its network."""
    description = json.loads((run / "model.json").read_text())
    for name, value in changes.items():
        group, _, key = name.partition("__")
        if key:
            description[group][key] = value
        else:
            description[group] = value
    (run / "model.json").write_text(json.dumps(description))


class TestModels:
    @pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
    def test_a_link_out_of_the_run_folder_is_refused(self, run: Path, tmp_path: Path, name: str) -> None:
        (run / name).rename(tmp_path / "elsewhere")
        (run / name).symlink_to("../elsewhere")
        with pytest.raises(UserError, match="a link that leads out of the folder"):
            load(run)

    def test_a_link_within_the_run_folder_is_followed(self, run: Path) -> None:
        (run / "model.safetensors").rename(run / "weights")
        (run / "model.safetensors").symlink_to("weights")
        load(run)

    @pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
    def test_a_pipe_is_not_waited_for(self, run: Path, name: str) -> None:
        (run / name).unlink()
        os.mkfifo(run / name)
        with pytest.raises(UserError, match="not a plain file"), limits():
            load(run)

    def test_loading_opens_nothing_outside_of_the_run_folder(self, run: Path, tmp_path: Path) -> None:
        """Not even the files that its description and its configuration name."""
        (tmp_path / "bait.safetensors").write_bytes(b"bait")
        change(run, network__weights=str(tmp_path / "bait.safetensors"))
        (run / "config.yaml").write_text(f"source: {tmp_path}/bait\nnetwork: {tmp_path}/bait.safetensors\n")
        with watched() as events:
            load(run)
        assert events
        libraries = tuple(os.path.realpath(folder) for folder in (sys.prefix, sys.base_prefix))
        outside = [name for _, name in events if not os.path.realpath(name).startswith((str(run), *libraries))]
        assert outside == []
        assert {event for event, _ in events} == {"open"}

    @pytest.mark.parametrize("backbone", ["resnet18", "resnet50.tv_in1k"])
    def test_no_weights_are_fetched_or_opened(
        self, run: Path, tmp_path: Path, backbone: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a layout a network would be built as for training, with weights from a file or the hub."""
        monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
        (tmp_path / "bait.safetensors").write_bytes(b"bait")
        change(run, shape=[3, 8, 8], layout=None, network__backbone=backbone)
        change(run, network__weights=str(tmp_path / "bait.safetensors"))
        with watched() as events, pytest.raises(UserError, match="is damaged"):
            load(run)
        assert not [name for _, name in events if "bait" in name]

    @pytest.mark.parametrize(
        "name",
        [
            "hf_hub:a/b",
            "hf-hub:timm/resnet18",
            "local-dir:/etc",
            "local-dir:.",
            "resnet18.none",
            "../x",
            "",
            "A" * 10**6,
            3,
        ],
    )
    def test_names_that_timm_would_fetch_are_refused(
        self, run: Path, name: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
        change(run, shape=[3, 8, 8], layout={}, network__backbone=name)
        with pytest.raises(UserError) as caught:
            load(run)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        "changes",
        [
            {"shape": [10**6]},
            {"shape": [2**62]},
            {"network__bottleneck": 2 * 10**6},
            {"network__bottleneck": 10**18},
            {"shape": [3, 224, 224], "layout": {}, "network__backbone": "vit_giant_patch14_224"},
            {"shape": [1, 9000, 9000], "layout": {}, "network__backbone": "small-cnn"},
            {"classes": [str(number) for number in range(65_536)]},
            {"classes": ["x"] * 10**6},
            {"method": "dann", "settings": {"hidden": 10**9}},
        ],
    )
    def test_a_description_cannot_ask_for_memory(self, run: Path, changes: dict[str, Any]) -> None:
        """A network is only built if the tensors beside its description are its own."""
        change(run, **changes)
        with limits(memory=LITTLE), pytest.raises(UserError):
            load(run)

    def test_batches_are_of_bounded_size(self, run: Path, toy: Toy) -> None:
        change(run, batch_size=10**15)
        model = load(run)
        assert model.batch_size * 4 * 6 <= 2**31
        assert len(model.predict(Domain(toy.target_x)).names) == len(toy.target_y)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"network__dropout": "much"}, "dropout is 'much'"),
            ({"network__dropout": None}, "dropout is None"),
            ({"network__bottleneck": 16.5}, "bottleneck is 16.5"),
            ({"network__bottleneck": True}, "bottleneck is True"),
            ({"network__finetune": "most"}, "finetune is 'most'"),
            ({"network__nope": 1}, "has no 'nope'"),
            ({"settings__weight": "x"}, "weight is 'x'"),
            ({"settings__weight": float("nan")}, "weight is nan"),
            ({"shape": [6.0]}, "shape is"),
            ({"shape": [-6]}, "shape is"),
            ({"shape": []}, "shape is"),
            ({"shape": 6}, "shape is"),
            ({"classes": ["a", "b", 3]}, "classes is 3"),
            ({"classes": ["a", "a", "b"]}, "3 classes are named, 2 of them different"),
            ({"classes": "abc"}, "classes is 'abc'"),
            ({"batch_size": 0}, "batch_size is 0"),
            ({"batch_size": "9"}, "batch_size is '9'"),
            ({"layout": {"bottleneck_stride": "9x9"}}, "layout is"),
            ({"layout": None}, "layout is None"),
            ({"method": ["can"]}, "method is"),
            ({"images": {"size": 10**6, "resize": 10**6}}, "at most"),
            ({"images": {"size": 8.5}}, "size is 8.5"),
            ({"images": {}}, "which the image settings do not make"),
        ],
    )
    def test_values_of_another_kind_are_refused(self, run: Path, changes: dict[str, Any], reason: str) -> None:
        change(run, **changes)
        with pytest.raises(UserError, match=reason):
            load(run)

    @pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, '{"format": ' + "9" * 10**4 + "}", " " * 2**25])
    def test_descriptions_are_bounded(self, run: Path, text: str) -> None:
        (run / "model.json").write_text(text)
        with limits(memory=LITTLE), pytest.raises(UserError) as caught:
            load(run)
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize("case", ["nan", "infinity", "missing", "more", "shape", "complex", "centers", "text"])
    def test_tensors_must_be_those_of_the_network(self, run: Path, case: str) -> None:
        tensors = load_file(run / "model.safetensors")
        name = "method.network.head.weight"
        if case in ("nan", "infinity"):
            tensors[name][0, 0] = float(case)
        elif case == "missing":
            del tensors[name]
        elif case == "more":
            tensors["method.more"] = torch.zeros(1)
        elif case == "complex":
            tensors[name] = tensors[name].to(torch.complex64)
        elif case == "text":
            tensors["reach"] = torch.zeros(3, dtype=torch.bool)
        else:
            name = "centers" if case == "centers" else name
            tensors[name] = tensors[name].reshape(-1, 1).contiguous()
        save_file(tensors, run / "model.safetensors")
        with pytest.raises(UserError, match="is damaged"):
            load(run)

    @pytest.mark.parametrize("size", [2**24 + 1, 2**40, 2**63 - 1, 2**64 - 1])
    def test_headers_of_tensors_are_bounded(self, run: Path, size: int) -> None:
        with (run / "model.safetensors").open("r+b") as file:
            file.write(size.to_bytes(8, "little"))
            file.truncate(2**26)
        with limits(memory=LITTLE), pytest.raises(UserError, match="not a safetensors file"):
            load(run)


class TestWeights:
    def save(self, tmp_path: Path, content: Any) -> Path:
        torch.save(content, tmp_path / "w.pth")
        return tmp_path / "w.pth"

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_pickle_runs_no_code(self, tmp_path: Path, trap: Trap, zipped: bool) -> None:
        torch.save({"w": trap}, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)
        with pytest.raises(UserError, match="cannot be read as plain tensors"):
            read_weights(tmp_path / "w.pth")

    def test_a_bare_pickle_runs_no_code(self, tmp_path: Path, trap: Trap) -> None:
        for name in ("w.pth", "w.pt", "w.safetensors"):
            (tmp_path / name).write_bytes(pickle.dumps(trap))
            with pytest.raises(UserError):
                read_weights(tmp_path / name)

    def test_an_archive_cannot_grow(self, tmp_path: Path) -> None:
        old = self.save(tmp_path, {"w": torch.zeros(2**24)})
        with zipfile.ZipFile(old) as stored, zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as bomb:
            for part in stored.infolist():
                bomb.writestr(part.filename, stored.read(part))
        assert (tmp_path / "b.pth").stat().st_size < 2**18
        with pytest.raises(UserError, match="its parts are compressed"):
            read_weights(tmp_path / "b.pth")

    @pytest.mark.parametrize(
        "value",
        [torch.zeros(1, dtype=torch.half).expand(2**40), torch.zeros(3).to_sparse(), torch.zeros(3, device="meta")],
    )
    def test_small_tensors_that_look_large(self, tmp_path: Path, value: torch.Tensor) -> None:
        with limits(memory=LITTLE), pytest.raises(UserError, match="more values than it holds"):
            read_weights(self.save(tmp_path, {"w": value}))

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
    def test_numbers_must_be_finite(self, tmp_path: Path, name: str, value: float) -> None:
        state = SmallCNN().state_dict() | {"head.0.weight": torch.full((256, 512), value)}
        (torch.save if name == "w.pth" else save_file)(state, tmp_path / name)
        with pytest.raises(UserError, match="NaN or infinite"):
            read_weights(tmp_path / name)


def write_npz(path: Path, compression: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(shape: object, kind: str = "<f4", data: bytes = b"") -> bytes:
    """An array whose header says what it likes."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


class TestFeatureFiles:
    @pytest.mark.parametrize("name", ["x", "y", "classes"])
    def test_objects_run_no_code(self, tmp_path: Path, trap: Trap, name: str) -> None:
        np.savez(tmp_path / "f.npz", **{"x": X, "y": Y, name: np.array([trap] * 8, dtype=object)})  # type: ignore[arg-type]
        with pytest.raises(UserError, match="Python objects"):
            labeled_feature_domain(tmp_path / "f.npz")

    def test_a_member_that_is_a_pickle_runs_no_code(self, tmp_path: Path, trap: Trap) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            feature_domain(write_npz(tmp_path / "f.npz", x=pickle.dumps(trap)))

    @pytest.mark.parametrize(
        "content",
        [
            npy((10**12, 3)),
            npy((2**62, 4)),
            npy((-2, -3), data=bytes(24)),
            npy((-1, 3), data=bytes(12)),
            npy((True, 3), data=bytes(24)),
            npy((2, 3), data=bytes(20)),
            npy((2, 3), data=bytes(28)),
            npy((10**9, 3), "<U0"),
            npy((10**9, 3), "|S0"),
        ],
    )
    def test_a_header_cannot_ask_for_memory(self, tmp_path: Path, content: bytes) -> None:
        for members in ({"x": content}, {"x": npy((8, 3), data=bytes(96)), "classes": content}):
            path = write_npz(tmp_path / "f.npz", **members, y=npy((8,), "<i8", bytes(64)))
            with limits(memory=LITTLE), pytest.raises(UserError, match="another size than it has"):
                labeled_feature_domain(path)

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_text_is_made_of_letters(self, tmp_path: Path, order: str) -> None:
        """Of a larger number than the last letter's, Python cannot make a string."""
        classes = np.array([0x110000, ord("b")], dtype=f"{order}u4").tobytes()
        members = {"x": npy((8, 3), data=bytes(96)), "y": npy((8,), "<i8", bytes(64))}
        path = write_npz(tmp_path / "f.npz", **members, classes=npy((2,), f"{order}U1", classes))
        with pytest.raises(UserError, match="classes holds numbers that are no letters"):
            labeled_feature_domain(path)

    @pytest.mark.parametrize("kind", ["<m8[s]", "<M8[D]", "|V8"])
    @pytest.mark.parametrize("name", ["x", "y", "classes"])
    def test_only_numbers_and_text_are_read(self, tmp_path: Path, name: str, kind: str) -> None:
        members = {"x": npy((8, 3), data=bytes(96)), "y": npy((8,), "<i8", bytes(64))}
        path = write_npz(tmp_path / "f.npz", **(members | {name: npy((8,), kind, bytes(64))}))
        with pytest.raises(UserError, match="neither numbers nor text"):
            labeled_feature_domain(path)

    def test_a_bomb_is_not_unpacked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("candapt.data.features.memory", lambda: 2**24)
        content = npy((2**20, 4), data=bytes(2**24))
        path = write_npz(tmp_path / "f.npz", zipfile.ZIP_DEFLATED, x=content)
        assert path.stat().st_size < 2**16
        with pytest.raises(UserError, match="more than half of this machine's memory"):
            feature_domain(path)
        assert safe_reading.memory() > 2**28

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_two_members_of_one_name(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            for _ in range(2):
                archive.writestr("x.npy", npy((8, 3), data=bytes(96)))
        with pytest.raises(UserError, match="two arrays of one name"):
            feature_domain(tmp_path / "f.npz")

    def test_members_are_never_unpacked_to_disk(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        names = ("x.npy", "../out.npy", "/tmp/out.npy", "..\\out.npy")
        with zipfile.ZipFile(tmp_path / "in" / "f.npz", "w") as archive:
            for name in names:
                archive.writestr(name, npy((8, 3), data=bytes(96)))
        assert feature_domain(tmp_path / "in" / "f.npz").size == 8
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["f.npz", "in"]

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "f.npz")
        with limits(), pytest.raises(UserError, match=r"not an \.npz file"):
            feature_domain(tmp_path / "f.npz")

    def test_classes_are_bounded_and_different(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "many.npz", x=X, y=Y, classes=np.arange(70_000).astype(str))
        with pytest.raises(UserError, match="70,000 classes"):
            labeled_feature_domain(tmp_path / "many.npz")
        np.savez(tmp_path / "twice.npz", x=X, y=Y, classes=["a", "a"])
        with pytest.raises(UserError, match="names a class twice"):
            labeled_feature_domain(tmp_path / "twice.npz")

    def test_wide_rows_cannot_ask_for_memory(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The layer over them has a thousand weights for each of their columns."""
        np.savez_compressed(tmp_path / "f.npz", x=np.zeros((4, 600_000), np.float32), y=np.arange(4) % 2)
        with limits(memory=LITTLE):
            assert main(["adapt", *[str(tmp_path / "f.npz")] * 2, "--out", str(tmp_path / "run")]) == 2
        assert "give a smaller --network.bottleneck" in capsys.readouterr().err


def aliases(levels: int = 30) -> str:
    """A billion laughs."""
    lines = [f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 [lol]", *lines])


class TestConfigurations:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (aliases(), "aliases"),
            ("a: &a\n  b: *a\n", "aliases"),
            ("[" * 10**4, "nested too deeply"),
            ("a: " + "[" * 30 + "]" * 30, "nested too deeply"),
            ("{a: " * 2000, "nested too deeply"),
            ("seed: " + "9" * 10**4, "integer string conversion"),
            ("seed: 0x" + "f" * 10**4, "more than 18 digits"),
            ("seed: " + "1:" * 10**4 + "1", "more than 18 digits"),
            ("#" * 2**17, "larger than the 64 KiB"),
            ("? [a]\n: 3", "unhashable key"),
            ("3: 4", "not the name of a setting"),
            ("seed: !!binary aGFsbG8=", "is a bytes"),
            ("seed: !!timestamp 2001-02-30", "out of range"),
            ("- a", "settings by name"),
            ("\x00", "special characters"),
        ],
    )
    def test_files_are_bounded_and_plain(self, tmp_path: Path, text: str, reason: str) -> None:
        (tmp_path / "c.yaml").write_text(text)
        with limits(memory=LITTLE), pytest.raises(UserError, match=reason) as caught:
            read_config(tmp_path / "c.yaml")
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        "tag",
        ["python/object/apply:os.mkdir", "python/object/new:os.mkdir", "python/name:os.mkdir", "python/module:os"],
    )
    def test_no_code_is_run(self, tmp_path: Path, trap: Trap, tag: str) -> None:
        (tmp_path / "c.yaml").write_text(f"seed: !!{tag} [{trap.place}]\n")
        with pytest.raises(UserError, match="could not determine a constructor"):
            read_config(tmp_path / "c.yaml")

    @pytest.mark.parametrize(
        "settings",
        [
            {"network": "BAIT"},
            {"network": ["BAIT"]},
            {"training": "BAIT"},
            {"images": "BAIT"},
            {"can": "BAIT"},
            {"config": "BAIT"},
            {"out": "BAIT"},
            {"cache": "BAIT"},
            {"resume": True},
            {"force": True},
            {"network.backbone.x": "BAIT"},
            {"network": {"class_path": "os.mkdir", "init_args": {"path": "BAIT"}}},
            {"class_path": "os.mkdir"},
            {"__path__": "BAIT"},
            {"network+": {"backbone": "BAIT"}},
        ],
    )
    def test_only_settings_get_through(
        self, tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No other file is opened, nothing is imported, and where to write is not for a file to say."""
        bait = tmp_path / "bait"
        bait.write_text("dropout: 0.1\n")
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings).replace("BAIT", str(bait)))
        np.savez(tmp_path / "f.npz", x=X, y=Y)
        words = ["adapt", *[str(tmp_path / "f.npz")] * 2, "--config", str(tmp_path / "c.yaml")]
        with watched() as events:
            assert main([*words, *([] if "out" in settings else ["--out", str(tmp_path / "run")])]) == 2
        assert not [name for _, name in events if name == str(bait)]
        reason = "is not for a configuration file" if settings.keys() & NOT_IN_FILES else "is not a setting"
        assert reason in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_a_folder_may_be_named_like_a_date(self, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("source: 2024-01-01\n")
        assert read_config(tmp_path / "c.yaml") == {"source": "2024-01-01"}

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "c.yaml")
        with limits(), pytest.raises(UserError, match="not a plain file"):
            read_config(tmp_path / "c.yaml")


class TestTables:
    TARGET = Domain(X)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "text",
        ["", "path,label", "path,label\n" + "a" * 2**18, "path\n0\n", "path,label\n0\n", 'path,label\n"0,a', "\0" * 99],
    )
    def test_target_labels_are_read_or_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "l.csv").write_text(text)
        with pytest.raises(UserError):
            read_target_labels(tmp_path / "l.csv", self.TARGET, ("a", "b"))

    def test_size_and_kind_are_bounded(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.csv")
        with (tmp_path / "large.csv").open("wb") as file:
            file.truncate(safe_reading.MAX_TABLE + 1)
        for name in ("pipe.csv", "large.csv", "."):
            with limits(memory=LITTLE), pytest.raises(UserError, match="cannot be read"):
                read_target_labels(tmp_path / name, self.TARGET, ("a", "b"))

    def test_lists_name_nothing_that_hangs(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.png")
        Image.new("L", (4, 4)).save(tmp_path / "a.png")
        names = ("a.png", "pipe.png", "/dev/zero", "nul\0.png", ".", "a.png/b", "x" * 5000, f"a.png {'9' * 5000}")
        (tmp_path / "list.txt").write_text("\n".join(names))
        os.mkfifo(tmp_path / "pipe.txt")
        with limits(memory=LITTLE):
            domain, check = list_domain(tmp_path / "list.txt", ImageSettings())
            assert list(domain.names) == ["a.png"]
            assert len(check.broken) == len(names) - 1
            with pytest.raises(UserError, match="not a plain file"):
                list_domain(tmp_path / "pipe.txt", ImageSettings())


def png(width: int, height: int) -> bytes:
    """A PNG file with another size in its header than it has."""
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    import zlib

    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


class TestImages:
    @pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (178_000_001, 1)])
    def test_a_bomb_is_not_decoded(self, tmp_path: Path, size: tuple[int, int]) -> None:
        (tmp_path / "bomb.png").write_bytes(png(*size))
        with limits(memory=LITTLE), pytest.raises(UserError, match="has more pixels than the limit"):
            read_image(tmp_path / "bomb.png")

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path: Path) -> None:
        with (tmp_path / "large.png").open("wb") as file:
            file.truncate(decoding.MAX_BYTES + 1)
        with limits(memory=LITTLE // 2), pytest.raises(UserError, match="is larger than"):
            image_domain(tmp_path)

    def test_large_images_are_decoded_one_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        entered = []

        @contextmanager
        def lock() -> Iterator[None]:
            entered.append(1)
            yield

        monkeypatch.setattr(decoding, "LARGE", 100)
        monkeypatch.setattr(decoding, "_one_large", lock())
        Image.new("L", (10, 10)).save(tmp_path / "small.png")
        read_image(tmp_path / "small.png")
        assert not entered
        Image.new("L", (10, 11)).save(tmp_path / "large.png")
        read_image(tmp_path / "large.png")
        assert entered

    @pytest.mark.parametrize("kind", ["TIFF", "GIF", "PNG", "WEBP"])
    def test_only_the_first_of_many_pages_is_read(self, tmp_path: Path, kind: str) -> None:
        pages = [Image.new("RGB", (8, 8), color) for color in ("red", "blue") * 50]
        pages[0].save(tmp_path / "i.png", kind, save_all=True, append_images=pages[1:])
        assert read_image(tmp_path / "i.png").getpixel((4, 4))[0] > 200  # type: ignore[index]

    def test_pages_in_a_circle(self, tmp_path: Path) -> None:
        file = io.BytesIO()
        Image.new("L", (8, 8), 200).save(file, "TIFF")
        data = bytearray(file.getvalue())
        first = int.from_bytes(data[4:8], "little")
        after = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
        data[after : after + 4] = first.to_bytes(4, "little")  # the next page is the first one
        (tmp_path / "i.tif").write_bytes(data)
        with limits():
            assert read_image(tmp_path / "i.tif", grey=True).getpixel((0, 0)) == 200

    def test_no_outside_program_is_started(self, tmp_path: Path) -> None:
        """Pillow gives PostScript to Ghostscript, whatever the file is called."""
        (tmp_path / "i.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
        with watched() as events, pytest.raises(UserError, match="known format"):
            read_image(tmp_path / "i.png")
        assert {event for event, _ in events} <= {"open"}

    def test_a_maze_of_links_is_refused(self, tmp_path: Path) -> None:
        """Every folder links to all others: there are 12! ways through them."""
        for name in range(12):
            (tmp_path / str(name)).mkdir()
        for name in range(12):
            for other in set(range(12)) - {name}:
                (tmp_path / str(name) / f"to{other}").symlink_to(tmp_path / str(other))
        with limits(), pytest.raises(UserError, match="is reached over links in over 32 ways"):
            find_images(tmp_path)

    def test_folders_nested_deeper_than_calls(self, tmp_path: Path) -> None:
        deep = tmp_path / "/".join("a" * 300)
        deep.mkdir(parents=True)
        Image.new("L", (2, 2)).save(deep / "i.png")
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack()) + 200)
        try:
            assert find_images(tmp_path) == [deep / "i.png"]
        finally:
            sys.setrecursionlimit(usual)

    def test_pipes_and_devices_are_passed_over(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.png")
        (tmp_path / "device.png").symlink_to("/dev/zero")
        assert find_images(tmp_path) == []


class TestFolders:
    def test_nothing_is_written_through_a_link(self, tmp_path: Path) -> None:
        """One that waits where a file is about to be written, under its last name or the one before."""
        (tmp_path / "mine").write_text("mine")
        for name in ("a.json", "a.json.part"):
            (tmp_path / name).symlink_to("mine")
        with write_atomically(tmp_path / "a.json") as part:
            part.write_text("new")
        assert (tmp_path / "mine").read_text() == "mine"
        assert (tmp_path / "a.json").read_text() == "new"
        assert not (tmp_path / "a.json").is_symlink()

    @pytest.mark.parametrize("place", ["cells", "cells/A-W", "results.json"])
    def test_links_in_a_benchmark_folder_are_refused(self, tmp_path: Path, place: str) -> None:
        (tmp_path / "outside").mkdir()
        link = tmp_path / "out" / place
        link.parent.mkdir(parents=True)
        link.symlink_to(tmp_path / "outside")
        with pytest.raises(UserError, match="is a link"):
            BenchmarkFolder.check(tmp_path / "out", resume=True)

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "[" * 10**5, "9" * 10**4, "{}", '{"last": 3}', '{"last": {"accuracy": "x"}}', " " * 2**25],
    )
    def test_stored_cells_are_bounded_and_checked(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "seed-0.json").write_text(text)
        with limits(memory=LITTLE), pytest.raises(UserError, match="remove it to run the cell again"):
            read_stored(tmp_path / "seed-0.json", {})

    def test_a_cell_that_lacks_something_is_refused(self, tmp_path: Path) -> None:
        settings = {"source-only": quick_settings("source-only", rounds=1, training__steps=1)}
        arrays = {f"{name}_{part}": value for name in ("amazon", "dslr") for part, value in (("x", X), ("y", Y))}
        np.savez(tmp_path / "office31.npz", classes=np.array(["a", "b"]), **arrays)
        plan = make_plan("office31", tmp_path / "office31.npz", settings, tasks=["A→D"])
        run_benchmark(plan, tmp_path / "out")
        (path,) = (tmp_path / "out").rglob("seed-0.json")
        stored = json.loads(path.read_text())
        for name in stored:
            for changed in ({}, {name: None}, {name: [{"a": []}]}):
                path.write_text(json.dumps({key: value for key, value in stored.items() if key != name} | changed))
                with suppress(UserError):
                    run_benchmark(plan, tmp_path / "out")


class TestResume:
    @pytest.mark.parametrize(
        "place", ["log.txt", "metrics.jsonl", "checkpoints/origin.json", "checkpoints/a", "more/b"]
    )
    @pytest.mark.parametrize("kind", ["link", "pipe"])
    def test_links_in_a_run_that_is_continued_are_refused(self, tmp_path: Path, place: str, kind: str) -> None:
        run = tmp_path / "run"
        (run / place).parent.mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 0\n")
        (tmp_path / "mine").write_text("mine")
        if kind == "link":
            (run / place).symlink_to(tmp_path / "mine")
        else:
            os.mkfifo(run / place)
        with limits(), pytest.raises(UserError, match="a link" if kind == "link" else "not a plain file"):
            RunFolder.check(run, resume=True)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"round": "1"}, "whole numbers"),
            ({"round": -1}, "whole numbers"),
            ({"iteration": 1.5}, "whole numbers"),
            ({"round": 7}, "not that of its rounds"),
            ({"history": [{"round": "x"}]}, "other than numbers"),
            ({"history": 3}, "does not fit"),
            ({"part": {"steps": True}}, "does not fit"),
            ({"kept": {"round": 9, "merit": 0}}, "none of its rounds"),
            ({"seconds": "x"}, "does not fit"),
        ],
    )
    def test_a_checkpoint_tells_numbers(self, toy: Toy, tmp_path: Path, change: dict[str, Any], reason: str) -> None:
        settings = quick_settings(rounds=1, training__steps=1)
        path = save_checkpoint(finish(make_training(toy.task, settings)), tmp_path)
        tensors, metadata = read_tensors(path)
        text = json.dumps(json.loads(metadata["state"]) | change)
        save_file(tensors, path, {"state": text, "sha256": digest(tensors, text)})
        with pytest.raises(UserError, match=reason):
            restore_checkpoint(make_training(toy.task, settings), path)


class TestTerminal:
    def test_names_cannot_steer_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        name = "a\x1b]0;owned\x07\x1b[2J\r\x9b1m\udce9"
        for word in (name, f"--{name}", str(tmp_path / name)):
            for words in ([word], ["adapt", word, word, "--out", str(tmp_path / "run")], ["predict", word, word]):
                assert main(words) == 2
                sentence = capsys.readouterr().err
                assert sentence.count("\n") == 1
                assert sentence.rstrip("\n").isprintable()

    def test_sentences_are_bounded(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["predict", "x" * 10**6, "y", "--out", "z"]) == 2
        assert len(capsys.readouterr().err) < 3000


def test_every_claim_of_the_threat_model_names_a_test() -> None:
    """`docs/security.md` has tests by file and name, and they exist."""
    root = Path(__file__).parents[2]
    text = (root / "docs" / "security.md").read_text()
    tables = [
        part.splitlines() for part in text.split("\n\n") if part.startswith("| what they could try | what happens |")
    ]
    claims = [row for _, _, *rows in tables for row in rows if row.startswith("| ")]
    assert len(claims) > 20
    for claim in claims:
        proof = claim.rstrip(" |").rpartition("|")[2]
        names = [part for part in proof.split("`") if "::test" in part]
        assert names, claim
        for name in names:
            file, _, function = name.rpartition("::")
            assert f"def {function}(" in (root / "tests" / f"{file}.py").read_text(), name
