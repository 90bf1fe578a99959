"""Every reader of files that others may have made, with small valid files to start from."""

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import yaml
from lightning_fabric import Fabric
from PIL import Image

from benchmarks.fuzzing import mutation
from candapt import model
from candapt.adaptation import Result, adapt, initial_parts
from candapt.benchmark.runner import read_stored
from candapt.commands.main import main
from candapt.data.domains import Domain, Task
from candapt.data.features import labeled_arrays, labeled_feature_domain
from candapt.data.images import image_domain
from candapt.data.inputs import read_target_labels
from candapt.data.lists import labeled_list_domain, list_domain
from candapt.errors import UserError
from candapt.methods import METHODS
from candapt.network.backbones import build_backbone
from candapt.network.modules import SmallCNN
from candapt.presets import make_settings
from candapt.report.run_data import read_run
from candapt.review.answers import FOLDER, LINES, read_csv, write_csv
from candapt.review.measurement import measure_answers
from candapt.review.sampling import Population, Sample
from candapt.settings import ImageSettings, Range
from candapt.storage.runs import describe_settings
from candapt.training.checkpoint import DamagedError, restore_checkpoint, save_checkpoint
from candapt.training.loop import Training
from candapt.tuning.folder import TuningFolder, best_of
from candapt.tuning.search import Search, propose

WIDTH, CLASSES = 6, 3
QUICK: dict[str, Any] = {
    "rounds": 1,
    "training.steps": 1,
    "network.bottleneck": 4,
    "training.accelerator": "cpu",
}
"""Settings by which a network is trained in a moment."""


@dataclass(frozen=True)
class Reader:
    """Something that reads a file."""

    file: str
    """What the changed file is called in the folder."""
    seeds: Callable[[], list[bytes]]
    """Valid files."""
    read: Callable[[Path], object]
    """Reads the file in this folder, and uses what it got as the commands would."""
    mutators: tuple[mutation.Mutator, ...] = (mutation.change_bytes,)
    beside: Callable[[], Mapping[str, bytes]] = dict
    """Files that lie beside it, by name."""


def _samples(seed: int = 0) -> tuple[Any, Any]:
    labels = np.arange(12) % CLASSES
    return np.random.default_rng(seed).normal(size=(12, WIDTH)).astype(np.float32) + labels[:, None], labels


def _bytes_of(save: Callable[[Path], object], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"file{suffix}")
        save(path)
        return path.read_bytes()


# --- images ---


def _image_seeds() -> list[bytes]:
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 4), dtype=np.uint8)
    grey, deep = values[..., 0], values[..., 0].astype(np.uint16) * 257
    pages = [Image.fromarray(values[..., :3]), Image.fromarray(values[..., 1:])]
    turned = Image.Exif()
    turned[0x0112] = 6
    made: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (pages[0], "JPEG", {"exif": turned}),
        (pages[0], "JPEG", {"progressive": True}),
        (pages[0].convert("CMYK"), "JPEG", {}),
        (Image.fromarray(values), "PNG", {}),
        (Image.fromarray(deep), "PNG", {}),
        (Image.fromarray(grey).convert("P"), "PNG", {"transparency": 0}),
        (pages[0], "PNG", {"save_all": True, "append_images": pages[1:]}),
        (pages[0], "PPM", {}),
        (Image.fromarray(grey.astype(np.float32)), "PPM", {}),
        (pages[0], "BMP", {}),
        (pages[0], "WEBP", {"lossless": True}),
        (pages[0], "WEBP", {"save_all": True, "append_images": pages[1:]}),
        (pages[0], "TIFF", {"compression": "tiff_lzw", "save_all": True, "append_images": pages[1:]}),
        (Image.fromarray(grey.astype(np.float32)), "TIFF", {"exif": turned}),
        (Image.fromarray(grey).convert("1"), "TIFF", {"compression": "group4"}),
        (pages[0], "TIFF", {"compression": "jpeg"}),
        (pages[0], "GIF", {"save_all": True, "append_images": pages[1:]}),
    ]
    plain = [b"P3 2 1 255 1 2 3 4 5 6\n", b"P1 3 1 1 0 1\n"]
    return [_image_bytes(image, kind, options) for image, kind, options in made] + plain


def _image_bytes(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _read_images(folder: Path) -> None:
    domain, _ = image_domain(folder, ImageSettings(size=8, resize=8))
    domain.samples.read(torch.arange(domain.size), seed=0)


# --- arrays and tables ---


def _feature_seeds() -> list[bytes]:
    x, y = _samples()
    names = np.array(["a", "b", "ç"])
    return [
        _bytes_of(lambda path: np.savez(path, x=x, y=y), ".npz"),
        _bytes_of(lambda path: np.savez(path, x=x, y=y, classes=names), ".npz"),
        _bytes_of(lambda path: np.savez_compressed(path, x=x[:, :, None], y=y.astype(np.uint8)), ".npz"),
    ]


def _read_features(folder: Path) -> None:
    domain = labeled_feature_domain(folder / "f.npz")
    domain.samples.read(torch.arange(min(domain.size, 4)), seed=0)


def _label_seeds() -> list[bytes]:
    rows = "".join(f"{row},{'abc'[row % 3]}\r\n" for row in range(12))
    return [f"path,label\r\n{rows}".encode(), b'\xef\xbb\xbfpath,label,more\n"1","a\nb",x\n2,a\n3\n']


def _predictions_seeds() -> list[bytes]:
    return [_bytes_of(lambda path: _result().predictions.write_csv(path, ("a", "b", "c\n\udce9")), ".csv")]


def _read_labels(folder: Path) -> None:
    path = next(path for path in folder.iterdir() if path.name.startswith("labels."))
    read_target_labels(path, Domain(_samples()[0]), (*"abc", *"012"))


@cache
def _run_files() -> dict[str, bytes]:
    """What else a page is made of."""
    return {
        "model.json": _model_files()["model.json"],
        "config.yaml": b"source: a.npz\ntarget: b.npz\n",
        "summary.json": json.dumps({"method": "can", "oracle": {"accuracy": 0.5}, "data": {"source": 9}}).encode(),
        "metrics.jsonl": b'{"round": 0, "classification": 0.5}\n',
        "predictions.csv": _predictions_seeds()[0],
    }


def _read_run(folder: Path) -> None:
    read_run(folder, pictures=False)


def _answer_seeds() -> list[bytes]:
    names = [row.split(",")[0] for row in _predictions_seeds()[0].decode(errors="surrogateescape").splitlines()[1:4]]
    verdicts = zip(names, ("right", "wrong", "unsure"), ("a", "b", None), strict=True)
    lines = [{"path": name, "answer": answer, "label": label, "prediction": "a"} for name, answer, label in verdicts]
    return [b"".join(json.dumps(line).encode() + b"\n" for line in lines)]


def _read_answers(folder: Path) -> None:
    """The lines as the report counts them, and the same as a table; lines that are skipped count as refused."""
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / "answers.jsonl").replace(folder / FOLDER / LINES)
    run = read_run(folder, pictures=False)
    _ = run.measured
    write_csv(folder / "answers.csv", run.answers)
    read_csv(folder / "answers.csv")
    if len(run.answers) < (folder / FOLDER / LINES).read_bytes().count(b"\n"):
        raise UserError("Some lines are no answers.")


def _read_answer_table(folder: Path) -> None:
    measure_answers(Population((Sample("1", "a", 0.5), Sample("2", "b", 0.5))), read_csv(folder / "answers.csv"))


# --- tensors ---


@cache
def _result() -> Result:
    x, y = _samples()
    return adapt(Task(labeled_arrays(x, y, where="x"), Domain(_samples(1)[0])), make_settings(changes=QUICK))


@cache
def _model_files() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _result().model.save(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _beside(name: str) -> Callable[[], Mapping[str, bytes]]:
    return lambda: {name: _model_files()[name]}


def _read_model(folder: Path) -> None:
    loaded = model.load(folder)
    if loaded.shape == (WIDTH,):
        predictions = loaded.predict(Domain(_samples()[0]))
        predictions.write_csv(folder / "predictions.csv", loaded.classes)


def _small_network() -> dict[str, torch.Tensor]:
    return {
        name: value.half() if value.is_floating_point() else value for name, value in SmallCNN().state_dict().items()
    }


def _weights_seeds() -> list[bytes]:
    from safetensors.torch import save

    return [save(_small_network(), {"bottleneck_stride": "3x3"})]


def _torch_seeds() -> list[bytes]:
    state = _small_network()
    return [
        _torch_bytes(state, zipped=True),
        _torch_bytes({"state_dict": state}, zipped=False),
    ]


def _torch_bytes(content: Any, *, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def _read_weights(folder: Path) -> None:
    path = next(path for path in folder.iterdir() if path.name.startswith("weights."))
    build_backbone("small-cnn", weights=path)


def _training() -> Training:
    """A training that has not begun."""
    x, y = _samples()
    settings = make_settings(changes=QUICK)
    task = Task(labeled_arrays(x, y, where="x"), Domain(_samples(1)[0]))
    method = METHODS[settings.method](initial_parts(task, settings).network, settings.method_settings)
    return Training(Fabric(accelerator="cpu", devices=1), method, task, settings)


def _checkpoint_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        training = _training()
        training.run()
        return [save_checkpoint(training, Path(folder)).read_bytes()]


def _read_checkpoint(folder: Path) -> None:
    """As `--resume` does, where a damaged checkpoint is passed over."""
    training = _training()
    try:
        restore_checkpoint(training, folder / "round-0001.safetensors")
    except DamagedError as error:
        raise UserError(str(error)) from None
    training.run()


# --- settings and results ---


def _config_seeds() -> list[bytes]:
    data = {"source": "a.npz", "target": "b.npz", "target_labels": None, "strict": False, "images": {"size": None}}
    made = [describe_settings(make_settings(method)) for method in ("can", "dann")]
    return [yaml.safe_dump({**data, **settings}).encode() for settings in made]


def _read_config(folder: Path) -> None:
    """All of `candapt adapt --config FILE` up to the reading of the data."""
    words = ["adapt", "--config", str(folder / "c.yaml"), "--out", str(folder / "out")]
    with (
        mock.patch("candapt.commands.adapt.run"),
        redirect_stderr(io.StringIO()),
    ):
        if main(words) != 0:
            raise UserError("refused")


def _list_seeds() -> list[bytes]:
    return [b"a.png 0\nb c.png 1\n", b"\xef\xbb\xbfa.png\nb c.png\n../x/a.png\n", b"a.png 0\nb c.png 1\na.png 1\n"]


def _listed_images() -> dict[str, bytes]:
    return {name: _image_bytes(Image.new("L", (4, 4)), "PNG", {}) for name in ("a.png", "b c.png")}


def _read_list(folder: Path) -> None:
    settings = ImageSettings(size=8, resize=8)
    domain, _ = list_domain(folder / "list.txt", settings)
    domain.samples.read(torch.arange(min(domain.size, 4)))
    labeled_list_domain(folder / "list.txt", settings, classes=("a", "b"))


def _cell_seeds() -> list[bytes]:
    measured = {"round": 3, "accuracy": 0.5, "mean_class_accuracy": 0.5, "class_accuracies": {"a": 0.5}}
    cell = {
        **{
            "row": "can",
            "seconds": 1.5,
            "rounds": 4,
            "threads": 1,
            "samples": {"source": 9},
            "versions": {"torch": "2"},
        },
        **{"network": {"backbone": "features", "finetune": "head"}, "chosen": {"rule": "last", **measured}},
        **{"last": measured, "oracle": measured, "task": {"name": "a"}, "settings": {"seed": 0}},
        **{"each_round": [{"warmup": 0, "score_agreement": 0.5, **measured}], "oracle_curve": [0.5]},
    }
    return [json.dumps(cell).encode()]


def _read_cell(folder: Path) -> None:
    read_stored(folder / "cell.json", {"row": "can", "task": {"name": "a"}, "settings": {"seed": 0}})


_SEARCH = Search(make_settings("can"), {"can.weight": Range(0.03, 3, log=True)}, "class_ami")


def _trials_seeds() -> list[bytes]:
    made = [
        {"number": 0, "state": "complete", "scores": [None, 0.5], "seconds": 1.5, "score": 0.5, "round": 1},
        {"number": 1, "state": "pruned", "scores": [0.4], "seconds": 0.5, "score": None, "round": None},
        {"number": 2, "state": "failed", "scores": [], "seconds": 0.1, "reason": "no numbers"},
    ]
    trials = [trial | {"settings": {"can.weight": 0.3}} for trial in made]
    return [json.dumps({"trials": trials[:count]}).encode() for count in (1, 3)]


def _read_trials(folder: Path) -> None:
    """As `candapt tune --resume` does."""
    trials = TuningFolder(folder).read_trials(_SEARCH.space)
    if trials:
        best_of(trials, _SEARCH.score)
    propose(_SEARCH, trials)


READERS: dict[str, Reader] = {
    "images": Reader("i.png", _image_seeds, _read_images, (mutation.change_bytes, mutation.change_png)),
    "features": Reader(
        "f.npz",
        _feature_seeds,
        _read_features,
        (mutation.change_bytes, mutation.change_archive, mutation.change_array_header),
    ),
    "labels-csv": Reader("labels.csv", _label_seeds, _read_labels),
    "labels-npz": Reader(
        "labels.npz",
        _feature_seeds,
        _read_labels,
        (mutation.change_bytes, mutation.change_archive, mutation.change_array_header),
    ),
    "predictions-csv": Reader(
        "predictions.csv",
        _predictions_seeds,
        _read_run,
        beside=lambda: {name: content for name, content in _run_files().items() if name != "predictions.csv"},
    ),
    "summary-json": Reader(
        "summary.json",
        lambda: [_run_files()["summary.json"]],
        _read_run,
        (mutation.change_bytes, mutation.change_json),
        lambda: {name: content for name, content in _run_files().items() if name != "summary.json"},
    ),
    "answers-jsonl": Reader("answers.jsonl", _answer_seeds, _read_answers, beside=_run_files),
    "answers-csv": Reader(
        "answers.csv",
        lambda: [b"path,label,answer,stratify\n1,a,right,confidence\n2,,unsure,none\n"],
        _read_answer_table,
    ),
    "weights-safetensors": Reader(
        "weights.safetensors", _weights_seeds, _read_weights, (mutation.change_bytes, mutation.change_safetensors)
    ),
    "weights-pth": Reader("weights.pth", _torch_seeds, _read_weights, (mutation.change_bytes, mutation.change_archive)),
    "model-safetensors": Reader(
        "model.safetensors",
        lambda: [_model_files()["model.safetensors"]],
        _read_model,
        (mutation.change_bytes, mutation.change_safetensors),
        _beside("model.json"),
    ),
    "model-json": Reader(
        "model.json",
        lambda: [_model_files()["model.json"]],
        _read_model,
        (mutation.change_bytes, mutation.change_json),
        _beside("model.safetensors"),
    ),
    "checkpoint": Reader(
        "round-0001.safetensors",
        _checkpoint_seeds,
        _read_checkpoint,
        (mutation.change_bytes, mutation.change_safetensors, mutation.change_checkpoint, mutation.change_checkpoint),
    ),
    "image-list": Reader("list.txt", _list_seeds, _read_list, beside=_listed_images),
    "cell": Reader("cell.json", _cell_seeds, _read_cell, (mutation.change_bytes, mutation.change_json)),
    "trials": Reader("trials.json", _trials_seeds, _read_trials, (mutation.change_bytes, mutation.change_json)),
    "config": Reader("c.yaml", _config_seeds, _read_config, (mutation.change_bytes, mutation.change_yaml)),
}
"""By name."""
