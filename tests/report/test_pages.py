"""What pages show, that names in them stay text, and that they need nothing else."""

import base64
import csv
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from candapt.benchmark.tables import benchmark_page
from candapt.commands.main import main
from candapt.errors import UserError
from candapt.report import write_comparison, write_report
from candapt.report.comparison import agreement, distinct_names, overview
from candapt.report.page import script_json
from candapt.report.run_data import read_run
from candapt.report.run_page import run_page
from candapt.review.answers import Answer, AnswerFile
from tests.benchmark.made import made_results
from tests.report.shared import FLAGS, HOSTILE, SECTIONS


class Elements(HTMLParser):
    """Every element of a page, and the content of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        inside = self.tags and self.tags[-1][0] == "script"
        (self.scripts if inside else self.text).append(data)

    @property
    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.tags}

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(next(script for script in self.scripts if script.startswith('{"charts"')))
        return data


@pytest.fixture
def copied(hostile_run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    return Path(shutil.copytree(hostile_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))


def change_summary(folder: Path, **changes: Any) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestRun:
    def test_every_section_and_every_chart(self, hostile_run: Path) -> None:
        page = Elements((hostile_run / "report.html").read_text(encoding="utf-8"))
        assert {*SECTIONS, "oracle"} <= page.ids
        drawn = {attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes}
        assert drawn == page.data["charts"].keys()
        order = [each.get("id") for _, each in page.tags]
        places = [order.index(name) for name in (*SECTIONS[:6], "oracle", *SECTIONS[6:])]
        assert places == sorted(places)  # what to do first, the training last
        assert {"classification", "discrepancy", "cdd", "kept_share", "map-before", "map-after", "classes"} <= drawn
        assert {"oracle-accuracy", "oracle-cdd", "calibration", "confusion", "class-accuracy"} <= drawn

    def test_without_true_labels_there_is_no_oracle(self, image_run: Path) -> None:
        text = (image_run / "report.html").read_text(encoding="utf-8")
        assert "oracle" not in Elements(text).ids
        assert set(SECTIONS) <= Elements(text).ids

    def test_small_images_have_pictures(self, image_run: Path) -> None:
        page = Elements((image_run / "report.html").read_text(encoding="utf-8"))
        sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
        assert len(sources) >= 24
        assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
        (points,) = page.data["points"]  # both maps have the same, which is stored once
        assert page.data["maps"] == {"map-before": 0, "map-after": 0}
        assert len(points["thumbnails"]) == 80

    def test_it_is_made_again_the_same_from_the_folder_alone(self, hostile_run: Path, tmp_path: Path) -> None:
        write_report(hostile_run, tmp_path / "again.html")
        assert (tmp_path / "again.html").read_bytes() == (hostile_run / "report.html").read_bytes()

    def test_data_that_are_gone_cost_the_pictures_only(self, image_run: Path, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(image_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
        text = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(text.replace(str(image_run.parent), str(tmp_path / "gone")))
        page = Elements(write_report(folder).read_text(encoding="utf-8"))
        assert set(SECTIONS) <= page.ids
        assert not any(tag == "img" for tag, _ in page.tags)

    def test_a_run_without_a_map(self, copied: Path) -> None:
        (copied / "embedding.npz").unlink()
        page = Elements(write_report(copied).read_text(encoding="utf-8"))
        assert "map" not in page.ids
        assert not page.data["points"]

    def test_scores_warnings_and_the_estimate_are_shown_when_there_are_any(self, copied: Path) -> None:
        lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
        scored = [line | {"score_snd": 1.5 + line["round"], "score_dev": None, "score_new": 2.0} for line in lines]
        (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scored))
        change_summary(
            copied,
            warnings=[{"kind": "collapse", "sentence": "Few classes are predicted <b>at all</b>."}],
            estimated_accuracy={"value": 0.87, "low": 0.8, "high": 0.93, "method": "agreement"},
            selection={"score": "snd", "round": 0, "last": {"round": 1, "differing_predictions": 0.25}},
            source_only={"scores": {"score_snd": 1.25}},
        )
        text = run_page(read_run(copied))
        page = Elements(text)
        words = " ".join(page.text)
        assert "Few classes are predicted <b>at all</b>." in words
        assert "Do not trust the result before you have read a warning below." in words
        assert "87%" in words
        assert "between 80% and 93%, without labels" in words
        assert "Of 2 rounds, round 1 was kept: the best one by the label-free score snd." in words
        assert "The last one predicts another class for 25.0% of the target." in words
        score = page.data["charts"]["score_snd"]
        assert score["data"][0]["y"] == [1.5, 2.5]
        assert any(shape["y0"] == 1.25 for shape in score["layout"]["shapes"])
        assert page.data["charts"]["score_new"]["data"][0]["y"] == [2.0, 2.0]  # of another version

    def test_no_warning_is_mentioned_only_where_there_was_one_to_raise(self, copied: Path) -> None:
        words = " ".join(Elements(run_page(read_run(copied))).text)
        assert "No warning was raised" not in words
        assert "adaptation did harm" not in words
        change_summary(copied, warnings=[], estimated_accuracy={"value": 0.87, "low": 0.8, "high": 0.93, "method": "x"})
        words = " ".join(Elements(run_page(read_run(copied))).text)
        assert "No warning was raised, and an estimated 87% of the predictions are right." in words
        assert "adaptation did harm" in words


class TestReview:
    """What `candapt review` measured stands beside the label-free estimate."""

    @pytest.fixture
    def reviewed(self, copied: Path) -> Path:
        """A run with an estimate, of which 60 predictions were judged: 48 right, 10 wrong, 2 that nobody could tell."""
        change_summary(copied, warnings=[], estimated_accuracy={"value": 0.97, "low": 0.9, "high": 1.0, "method": "x"})
        answers = AnswerFile(copied)
        answers.prepare()
        with answers.exclusive():
            for row, each in enumerate(read_run(copied).predictions[:60]):
                verdict, label = (
                    ("right", each.label) if row < 48 else ("wrong", None) if row < 58 else ("unsure", None)
                )
                answers.append(Answer(each.name, verdict, label, each.label, "confidence"))  # type: ignore[arg-type]
        return copied

    def test_it_is_shown_everywhere(self, reviewed: Path) -> None:
        run = read_run(reviewed)
        assert run.measured is not None
        assert run.measured.interval is not None
        value, low, high = (f"{each:.0%}" for each in run.measured.interval)
        words = " ".join(" ".join(Elements(run_page(run)).text).split())
        assert f"Measured by review, {value} are right, between {low} and {high} (95% interval, 58 answers)." in words
        assert f"Measured by review {value} between {low} and {high}, 58 answers" in words
        assert "2 answers “cannot say”: left out of the accuracy." in words
        assert "Go by the review: it shows that the estimate without labels, 97%, is too high." in words
        assert "judge 50 random predictions" not in words
        assert HOSTILE[0] in words  # the table of classes

    def test_comparisons_have_it_too(self, reviewed: Path, hostile_run: Path) -> None:
        overview_of = overview([read_run(reviewed), read_run(hostile_run)], ["a", "b"], [])
        assert "measured by review" in overview_of.columns[:4]

    def test_without_a_review_the_page_says_how_to_make_one(self, copied: Path) -> None:
        words = " ".join(Elements(run_page(read_run(copied))).text)
        assert "judge 50 random predictions, two minutes of work." in words
        assert f"candapt review {copied}" in words
        assert "Measured by review" not in words

    def test_a_review_that_has_just_begun(self, reviewed: Path) -> None:
        lines = (reviewed / "review" / "answers.jsonl").read_text().splitlines(keepends=True)
        (reviewed / "review" / "answers.jsonl").write_text("".join(lines[:7]))
        words = " ".join(Elements(run_page(read_run(reviewed))).text)
        assert "You have 7 answers so far." in words
        assert "Go by the review" not in words


class TestSafety:
    def test_names_stay_text(self, copied: Path) -> None:
        with (copied / "predictions.csv").open(newline="") as file:
            rows = list(csv.reader(file))
        for number, row in enumerate(rows[1:]):
            row[0] = f"<img src=x onerror=alert({number})>.jpg"
        with (copied / "predictions.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        page = Elements(run_page(read_run(copied)))
        assert not any("onerror" in attributes or attributes.get("src") == "x" for _, attributes in page.tags)
        assert sum(tag == "script" for tag, _ in page.tags) == 3  # data, Plotly, the page's own
        assert HOSTILE[0] in page.text

    def test_plotly_reads_no_html_in_names(self, hostile_run: Path) -> None:
        charts = Elements((hostile_run / "report.html").read_text(encoding="utf-8")).data["charts"]
        ticks = charts["classes"]["layout"]["yaxis"]["ticktext"]
        assert ticks[-1] == "plain"
        assert ticks[0].startswith("&lt;script&gt;")
        assert not any("<" in text for text in ticks)
        assert not any("<" in text for row in charts["confusion"]["data"][0]["text"] for text in row)

    def test_the_policy_allows_the_scripts_and_no_address(self, hostile_run: Path) -> None:
        page = Elements((hostile_run / "report.html").read_text(encoding="utf-8"))
        policy = next(each["content"] for tag, each in page.tags if each.get("http-equiv") and tag == "meta") or ""
        assert "default-src 'none'" in policy
        assert "http" not in policy
        assert "unsafe" not in policy.split("script-src")[1].split(";")[0]
        for script in page.scripts:
            if script.strip() and not script.startswith('{"charts"'):  # space between elements is none
                digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
                assert f"'sha256-{digest}'" in policy

    def test_nothing_is_loaded_and_it_is_small(self, hostile_run: Path) -> None:
        path = hostile_run / "report.html"
        assert path.stat().st_size < 8_000_000
        for _, attributes in Elements(path.read_text(encoding="utf-8")).tags:
            for name in ("src", "href", "srcset", "action"):
                assert (attributes.get(name) or "#").startswith(("#", "data:"))

    @given(
        st.recursive(
            st.text() | st.floats() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        )
    )
    def test_any_data_can_stand_in_a_script(self, content: Any) -> None:
        text = script_json(content)
        assert "<" not in text
        assert text.isascii()
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class TestComparison:
    def test_two_runs(self, hostile_run: Path, copied: Path, tmp_path: Path) -> None:
        out = write_comparison([hostile_run, copied], tmp_path / "both.html")
        page = Elements(out.read_text(encoding="utf-8"))
        assert {"verdict", "runs", "course", "map", "classes", "settings"} <= page.ids
        assert len(page.data["charts"]["of-cdd"]["data"]) == 2
        assert "Measured with true labels (oracle)" in " ".join(page.text)

    def test_runs_are_told_apart_by_the_folders_above(self, hostile_run: Path, copied: Path) -> None:
        runs = [read_run(hostile_run), read_run(copied)]
        assert distinct_names(runs) == [f"{hostile_run.parent.name}/run", f"{copied.parent.name}/run"]
        with pytest.raises(UserError, match="named twice"):
            distinct_names([runs[0], runs[0]])

    def test_agreement(self, hostile_run: Path, copied: Path, image_run: Path) -> None:
        runs = [read_run(hostile_run), read_run(copied)]
        table = agreement(runs, ["a", "b"])
        assert table is not None
        assert [row[1:] for row in table.rows] == [("100.0%", "100.0%")] * 2
        assert agreement([runs[0], read_run(image_run)], ["a", "b"]) is None

    def test_other_tasks_can_be_compared(self, hostile_run: Path, image_run: Path, tmp_path: Path) -> None:
        page = Elements(write_comparison([hostile_run, image_run], tmp_path / "both.html").read_text(encoding="utf-8"))
        assert {"runs", "course", "settings"} <= page.ids
        assert "map" not in page.ids


class TestCommand:
    def test_the_page_is_made_again(self, copied: Path, tmp_path: Path) -> None:
        (copied / "report.html").write_text("old")
        assert main(["report", str(copied)]) == 0
        assert "<h1>" in (copied / "report.html").read_text(encoding="utf-8")
        assert main(["report", str(copied), str(copied.parent / "run"), "--out", str(tmp_path / "b.html")]) == 2
        assert main(["report", str(copied), "--out", str(tmp_path / "c.html")]) == 0
        assert (tmp_path / "c.html").read_bytes() == (copied / "report.html").read_bytes()

    def test_refusals_are_one_sentence(self, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "mine.html").write_text("mine")
        damaged = tmp_path / "damaged"
        damaged.mkdir()
        (damaged / "summary.json").write_text("{")
        for words, reason in (
            ([tmp_path], "holds no finished run"),
            ([damaged], "is damaged"),
            ([copied, damaged], "give the file for their comparison by --out"),
            ([copied, "--out", tmp_path / "mine.html"], "exists already"),
            ([copied, "--out", tmp_path / "no" / "where.html"], "cannot be written"),
        ):
            capsys.readouterr()
            assert main(["report", *map(str, words)]) == 2
            printed = capsys.readouterr().err
            assert reason in printed
            assert printed.count("\n") == 1
        assert (tmp_path / "mine.html").read_text() == "mine"

    def test_a_run_may_go_without(self, files: Path, tmp_path: Path) -> None:
        paths = [str(files / "source.npz"), str(files / "target.npz"), "--out", str(tmp_path / "run")]
        assert main(["adapt", *paths, *FLAGS, "--report", "false"]) == 0
        assert not {"report.html", "embedding.npz"} & {path.name for path in (tmp_path / "run").iterdir()}

    def test_predictions_are_the_same_with_and_without(self, files: Path, tmp_path: Path) -> None:
        for method in ("can", "source-only"):
            written = []
            for wanted in ("true", "false"):
                out = tmp_path / f"{method}-{wanted}"
                paths = [str(files / "source.npz"), str(files / "target.npz"), "--out", str(out)]
                words = ["--method", method, "--report", wanted, "--training.statistics", "running"]
                assert main(["adapt", *paths, *FLAGS, *words]) == 0
                written.append((out / "predictions.csv").read_bytes())
            assert written[0] == written[1]


def test_no_chart_shows_a_number_that_is_none(copied: Path) -> None:
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    lines[0]["classification"] = float("nan")
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = run_page(read_run(copied))
    assert Elements(text).data["charts"]["classification"]["data"][0]["y"][0] is None
    assert not re.search(r"\bNaN\b", Elements(text).scripts[0])


def test_the_page_of_a_benchmark() -> None:
    results = made_results() | {"tasks": [{}, {}], "versions": [{"torch": "2"}, {"torch": "3"}]}
    stored = [{"row": name, "oracle_curve": curve} for name, curve in (("can", [0.5, 0.9]), ("dann", [0.4]))]
    page = Elements(benchmark_page(results, stored))
    words = " ".join(page.text)
    assert "After the last round can is best on average over 2 tasks: 75.0%." in words
    assert "art_1→50% & <b>" in words
    assert "94.5 ± 1.2" in words
    assert {"verdict", "results", "course", "settings"} <= page.ids
    lines = page.data["charts"]["accuracy"]["data"]
    assert [line["y"] for line in lines] == [[0.5, 0.9], [0.4, 0.4]]  # one that has settled stays where it was
