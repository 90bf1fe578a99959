"""A tiny suite is recorded and verified: its figures repeat, and figures that were changed do not pass."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import record, suites, tables, verify
from benchmarks.record import load

FLAGS = ["--methods", "source-only,can", "--tasks", "A->W,D->A", "--seeds", "0,1", "--jobs", "1"]
FLAGS += ["--rounds", "1", "--training.steps", "2", "--network.bottleneck", "8"]


@pytest.fixture
def recorded(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a recorded suite."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setitem(suites.DATA, "office31", features)
    assert suites.main(["office31", "--name", "tiny", "--out", str(tmp_path / "runs"), *FLAGS]) == 0
    return tmp_path / "results/suite-tiny.json"


def outcome() -> dict[str, Any]:
    (table,) = load("verify")["tables"]
    return dict(table)


def change(path: Path, *, by: float = 0.0, **provenance: object) -> None:
    """Change every recorded accuracy, and what all cells were measured with."""
    content = json.loads(path.read_text())
    for row in content["rows"]:
        row["last"] = {name: [value + by for value in values] for name, values in row["last"].items()}
    for each in content["measured_with"]:
        each |= provenance
    path.write_text(json.dumps(content))


def test_every_cell_is_recorded_with_its_provenance(recorded: Path) -> None:
    content = json.loads(recorded.read_text())
    assert content["command"].startswith("python -m benchmarks.suites office31 --name tiny --methods source-only,can")
    assert "runs" not in content["command"]  # the folder decides nothing
    (made,) = content["measured_with"]
    assert made["code"] == content["code"]
    for row in content["rows"]:
        assert row["measured_with"] == {"A→W": [0, 0], "D→A": [0, 0]}


@pytest.mark.usefixtures("recorded")
def test_a_cell_repeats_to_the_last_bit(capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("0", "1"):
        assert verify.main(["--tables", "tiny", "--seed", seed]) == 0
        assert outcome()["exact"]
        assert outcome()["repeated"] == outcome()["recorded"]
    assert "ok suite-tiny: " in capsys.readouterr().out


def test_the_seed_chooses_the_cell(recorded: Path) -> None:
    items = verify.suite_items(json.loads(recorded.read_text()))
    assert len({item.name for item in items}) == 8


@pytest.mark.parametrize("by", [1e-9, 0.5])
def test_another_figure_fails_where_bits_must_be_equal(
    recorded: Path, by: float, capsys: pytest.CaptureFixture[str]
) -> None:
    change(recorded, by=by)
    assert verify.main(["--tables", "suite-tiny"]) == 1
    assert "FAILED suite-tiny: " in capsys.readouterr().out


@pytest.mark.parametrize(("by", "code"), [(0.01, 0), (5.0, 1)])
def test_other_code_may_differ_within_the_spread(recorded: Path, by: float, code: int) -> None:
    change(recorded, by=by, code="other")
    assert verify.main(["--tables", "tiny"]) == code
    assert not outcome()["exact"]
    assert outcome()["tolerance"] >= verify.LEAST_TOLERANCE


def test_what_takes_too_long_or_is_not_recorded_is_said(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--tables", "tiny", "--longest", "0"]) == 0
    assert "give --longest" in capsys.readouterr().out
    assert verify.main(["--tables", "missing"]) == 1
    (recorded.parent / "losses.json").write_text("{}")
    assert verify.main(["--tables", "losses"]) == 0
    assert "losses: not repeated (times differ" in capsys.readouterr().out


def test_missing_data_is_a_failure(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(suites.DATA, "office31", recorded.parent / "missing.npz")
    assert verify.main(["--tables", "tiny"]) == 1
    assert "FAILED suite-tiny" in capsys.readouterr().out


def test_the_caption_tells_when_cells_differ_in_code(recorded: Path) -> None:
    assert "versions of the code" not in tables.suite("tiny")
    content = json.loads(recorded.read_text())
    content["measured_with"].append(content["measured_with"][0] | {"code": "other", "threads": 7})
    content["rows"][1]["measured_with"]["D→A"] = [0, 1]
    recorded.write_text(json.dumps(content))
    assert "cells from 2 versions of the code" in tables.suite("tiny")
    assert " or 7 threads" in tables.suite("tiny")
    for view in (tables.suite("tiny", "source-only"), tables.suite("tiny", "columns=A→W")):  # without that cell
        assert "versions of the code" not in view
    del content["measured_with"]
    recorded.write_text(json.dumps(content))
    assert "threads not recorded" in tables.suite("tiny")
    assert tables.suite("tiny").endswith("; code not recorded.")


def test_a_view_of_some_columns_averages_these(recorded: Path) -> None:
    content = json.loads(recorded.read_text())
    for row in content["rows"]:
        row["last"] = {"A→W": [0.5, 0.7], "D→A": [0.1, 0.1], "Average": [0.3, 0.4]}
        row["paper"] = {"A→W": 80.0, "D→A": 60.0}
    recorded.write_text(json.dumps(content))
    assert "| can | **60.0** ± 14.1 (80.0) | **60.0** ± 14.1 (80.0) |" in tables.suite("tiny", "can", "columns=A→W")
    both = tables.suite("tiny", "tiny:can as ours", "columns=D→A,A→W")
    assert "| ours | **10.0** ± 0.0 (60.0) | **60.0** ± 14.1 (80.0) | **35.0** ± 7.1 (70.0) |" in both
