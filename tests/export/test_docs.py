"""The examples of docs/export.md run as they stand, in Python and in JavaScript, and say what the run's model says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

import candapt
from candapt.commands.main import main
from candapt.data.images import image_domain
from candapt.export.runtime import evaluation_view
from candapt.settings import ImageSettings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "export.md").read_text(encoding="utf-8")
PACKAGES = ("onnxruntime-web@1.30", "pngjs@7")
MINUTES = 5


def blocks(language: str) -> list[str]:
    """The code of the page."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(photo_run: Path, photo_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an exported model and a photograph that is resized in both directions."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(photo_file, folder / "model.onnx")
    shutil.copy(photo_run / "model.json", folder)
    shutil.copy(DOCS / "javascript" / "preprocess.mjs", folder)
    pixels = np.random.default_rng(3).integers(0, 256, size=(50, 70, 3)).astype(np.uint8)
    (folder / "photos").mkdir()
    Image.fromarray(pixels).save(folder / "photos" / "photo.png")
    shutil.copy(folder / "photos" / "photo.png", folder)
    return folder


@pytest.fixture(scope="module")
def answer(place: Path, photo_run: Path) -> tuple[str, float]:
    """Class and confidence of the photograph by PyTorch."""
    model = candapt.load(photo_run)
    predictions = model.predict(image_domain(place / "photos", model.images)[0])
    return model.classes[int(predictions.labels[0])], float(predictions.confidence[0])


def parsed(printed: str) -> tuple[str, float]:
    name, confidence = printed.split()
    return name, float(confidence)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in order but for a run that only the reader has; other tests run them on one."""
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("candapt ")]
    assert len(lines) == 4
    for line in lines:
        assert main(shlex.split(line)[1:]) == 2
        assert "holds no finished run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", range(2))
def test_python(place: Path, answer: tuple[str, float], number: int) -> None:
    """The first is what uses Pillow, numpy and onnxruntime alone."""
    code = blocks("python")[number]
    if number == 0:
        assert "candapt" not in code
        assert len([line for line in code.splitlines() if line.strip()]) <= 15
    check = "\nimport sys; assert 'torch' not in sys.modules"
    words = [sys.executable, "-c", code + check]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    name, confidence = parsed(done.stdout)
    assert (name, confidence) == (answer[0], pytest.approx(answer[1], abs=1e-4))


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder with the JavaScript packages that the page names, kept in the user's cache."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "candapt-tests" / "npm"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):  # tests run in several processes
        ready = cache / "ready.json"
        if not ready.exists() or json.loads(ready.read_text()) != list(PACKAGES):
            install(npm, cache)
            ready.write_text(json.dumps(PACKAGES))
    return cache / "node_modules"


def install(npm: str, folder: Path) -> None:
    """Fetch the packages, or skip the test."""
    words = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *PACKAGES]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {' and '.join(PACKAGES)} within {MINUTES} minutes")
    if done.returncode:
        pytest.skip(f"npm cannot install {' and '.join(PACKAGES)}: {done.stderr.strip()[-200:]}")


def run_node(place: Path, modules: Path, code: str) -> str:
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(modules)
    (place / "example.mjs").write_text(code, encoding="utf-8")
    done = subprocess.run(["node", "example.mjs"], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_javascript(place: Path, modules: Path, answer: tuple[str, float]) -> None:
    (code,) = blocks("js")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    name, confidence = parsed(run_node(place, modules, code))
    assert (name, confidence) == (answer[0], pytest.approx(answer[1], abs=1e-3))


@pytest.mark.parametrize(
    ("mode", "size", "resize"),
    [("RGB", (70, 50), 37), ("L", (20, 31), 40), ("RGBA", (37, 37), 37), ("RGB", (9, 8), 30)],
)
def test_preprocessing_in_javascript_is_pillows(
    tmp_path: Path, modules: Path, mode: str, size: tuple[int, int], resize: int
) -> None:
    """Larger and smaller images, gray ones, transparent ones, and a crop that cannot be centered."""
    random = np.random.default_rng(0)
    channels = len(Image.new(mode, (1, 1)).getbands())
    pixels = random.integers(0, 256, size=(size[1], size[0], channels)).astype(np.uint8).squeeze()
    Image.fromarray(pixels, mode=mode).save(tmp_path / "photo.png")
    gray = mode == "L"
    mean, std = ((0.5,), (0.25,)) if gray else ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    settings = ImageSettings(size=resize - 5, resize=resize, mean=mean, std=std, grey=gray)
    expected = evaluation_view(Image.open(tmp_path / "photo.png"), settings)
    shutil.copy(DOCS / "javascript" / "preprocess.mjs", tmp_path)
    images = {name: getattr(settings, name) for name in ("size", "resize", "mean", "std", "grey")}
    code = f"""
import {{ readFileSync }} from "node:fs";
import {{ PNG }} from "pngjs";
import {{ toInput }} from "./preprocess.mjs";
const photo = PNG.sync.read(readFileSync("photo.png"));
console.log(JSON.stringify(Array.from(toInput(photo.data, photo.width, photo.height, {json.dumps(images)}))));
"""
    made = np.array(json.loads(run_node(tmp_path, modules, code))).reshape(expected.shape)
    steps = np.abs(made - expected) * np.array(std)[:, None, None] * 255
    assert steps.max() < 1.01  # one of 255 levels, where Pillow's whole numbers round otherwise
    assert (steps < 0.01).mean() > 0.98
