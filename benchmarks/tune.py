"""`candapt tune` on amazon → dslr features, killed with SIGKILL on the way and resumed: `python -m benchmarks.tune`.

Needs `data/office31-resnet50-features.npz` below `../shared` or the folder that CANDAPT_SHARED names. `--trials` and
`--rounds` make it shorter. The file of the target that is searched on has no labels; they only measure, at the end,
what the winner and the defaults predict.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kills import continued, finish, start
from benchmarks.record import record
from candapt.commands import adapt
from candapt.commands.adapt import AdaptOptions
from candapt.console import show_log
from candapt.evaluation.metrics import accuracy
from candapt.evaluation.scores import SCORES
from candapt.presets import make_settings
from candapt.settings import Settings
from candapt.tuning.space import DEFAULT_SCORE

SOURCE, TARGET = "amazon", "dslr"
INTO_A_TRIAL = 2.0
"""Seconds between the end of a trial and a kill, so that it hits a training."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--score", default=DEFAULT_SCORE)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    show_log()
    torch.set_num_threads(1)  # as the searching processes have
    shared = Path(os.environ.get("CANDAPT_SHARED", Path(__file__).parents[2] / "shared"))
    with np.load(shared / "data" / "office31-resnet50-features.npz") as file, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "source.npz", x=file[f"{SOURCE}_x"], y=file[f"{SOURCE}_y"], classes=file["classes"])
        np.savez(folder / "target.npz", x=file[f"{TARGET}_x"])
        content = measure(folder, torch.as_tensor(file[f"{TARGET}_y"]), options)
    name = "tune" if options.score == DEFAULT_SCORE else f"tune-{options.score}"
    record(name, {"task": f"Office-31 {SOURCE} → {TARGET}, ResNet-50 features", "seed": options.seed, **content})


def measure(folder: Path, truth: torch.Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Search with kills on the way, then train the defaults and the winner once more and look at the labels."""
    words = ["tune", folder / "source.npz", folder / "target.npz", "--trials", options.trials]
    words += ["--rounds", options.rounds, "--seed", options.seed, "--score", options.score]
    out, started = folder / "out", time.monotonic()
    stops = [(number + 1) * options.trials // (options.kills + 1) for number in range(options.kills)]
    hits = sum(kill_after(words, out, trials) for trials in stops)
    finish(*continued(words, out))
    seconds = time.monotonic() - started
    trials = json.loads((out / "trials.json").read_text(encoding="utf-8"))["trials"]
    sign = 1 if SCORES[options.score].higher_is_better else -1
    best = max((trial for trial in trials if trial["score"] is not None), key=lambda trial: sign * trial["score"])
    settings = make_settings("can", seed=options.seed, changes={"rounds": options.rounds})
    return {
        "score": options.score,
        "trials": len(trials),
        "rounds": options.rounds,
        "kills": hits,
        "pruned": sum(trial["state"] == "pruned" for trial in trials),
        "failed": sum(trial["state"] == "failed" for trial in trials),
        "seconds": round(seconds, 1),
        "seconds_training": round(sum(trial["seconds"] for trial in trials), 1),
        "defaults": again(folder, "defaults", settings, trials[0], options.score, truth),
        "winner": again(folder, "winner", settings.changed(best["settings"]), best, options.score, truth),
    }


def kill_after(words: list[Any], out: Path, trials: int) -> bool:
    """Start or resume, and kill within the training that follows so many trials; returns whether it was still alive."""
    process = start(*continued(words, out))
    while process.is_alive() and count(out) < trials:
        time.sleep(0.1)
    process.join(INTO_A_TRIAL)
    alive = process.is_alive()
    process.kill()
    process.join()
    return alive


def count(out: Path) -> int:
    """Trials that have ended."""
    path = out / "trials.json"
    return len(json.loads(path.read_text(encoding="utf-8"))["trials"]) if path.exists() else 0


def again(
    folder: Path, name: str, settings: Settings, trial: dict[str, Any], score: str, truth: torch.Tensor
) -> dict[str, Any]:
    """The training of a trial once more, outside of the search; its predictions are measured by the oracle."""
    files = (folder / "source.npz", folder / "target.npz")
    result = adapt.run(AdaptOptions(*files, settings, baseline=False, report=False, out=folder / name))
    assert result is not None  # the folder is new
    return {
        "trial": trial["number"],
        "settings": trial["settings"],
        "score": trial["score"],
        "score_again": result.record[f"score_{score}"],
        "oracle_accuracy": accuracy(truth, result.predictions.labels),
    }


if __name__ == "__main__":
    main()
