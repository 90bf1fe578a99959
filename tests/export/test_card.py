"""Model cards: in the format of the Hub, from the run folder alone, whatever names are in it."""

import html
import json
import logging
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt

from candapt.commands.main import main
from candapt.errors import UserError
from candapt.export.card import CLASSES, FILE, model_card, write_card
from tests.toy import Toy

HOSTILE = ("<script>alert(1)</script>", "a|b`c``d", "# heading\n---\nlicense: mit", "[x](https://evil.example)")


@pytest.fixture
def run(feature_run: Path, tmp_path: Path) -> Path:
    """A run folder that a test may change."""
    return Path(shutil.copytree(feature_run, tmp_path / "run"))


def rendered(card: str) -> str:
    """The page that Markdown makes of what follows the front matter."""
    return str(MarkdownIt("commonmark").render(card.split("---\n", 2)[2]))


def change(run: Path, name: str, **changes: Any) -> Path:
    content = json.loads((run / name).read_text(encoding="utf-8"))
    (run / name).write_text(json.dumps(content | changes))
    return run


class TestContent:
    def test_every_run_has_one(self, feature_run: Path, photo_run: Path, gray_run: Path) -> None:
        for run in (feature_run, photo_run, gray_run):
            assert (run / FILE).read_text(encoding="utf-8") == model_card(run)

    def test_the_front_matter(self, feature_run: Path, photo_run: Path) -> None:
        for run, task in ((feature_run, "tabular-classification"), (photo_run, "image-classification")):
            empty, front, _ = model_card(run).split("---\n", 2)
            assert empty == ""
            content = yaml.safe_load(front)
            assert content["library_name"] == "candapt"
            assert content["pipeline_tag"] == task
            assert {"candapt", "domain-adaptation", "can"} <= set(content["tags"])
            assert "license" not in content  # it is the user's to choose
            assert "license: choose" in front

    def test_several_sources_and_known_labels_are_named_without_their_folders(self, run: Path) -> None:
        config = yaml.safe_load((run / "config.yaml").read_text())
        config |= {"more_sources": ["/home/someone/paintings"], "known_labels": "/home/someone/labels.csv"}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        summary = json.loads((run / "summary.json").read_text())
        known = {"known_labels": [["1", "a"], ["2", "b"]]}
        card = model_card(change(run, "summary.json", data=summary["data"] | known))
        assert "someone" not in card  # a card is made to be published
        assert "of 2 domains (the sources" in card
        assert "paintings" in card
        assert "with the labels of 2 of its samples" in card
        assert "without any label of it" not in card

    def test_a_model_that_names_unknown_objects_says_so(self, run: Path) -> None:
        assert "even if it belongs to none of them" in model_card(run)
        assert "is called `unknown`" in model_card(change(run, "model.json", names_unknown=True))

    def test_data_method_settings_evidence_limits_and_use(self, feature_run: Path) -> None:
        card, summary = model_card(feature_run), json.loads((feature_run / "summary.json").read_text())
        titles = re.findall("^## (.*)$", card, re.MULTILINE)
        assert titles == ["Use", "Data", "Method and settings", "Evidence without labels", "Limits"]
        assert "80 samples with labels" in card
        assert "arXiv:1901.00976" in card
        assert f"estimated accuracy on the target: {summary['estimated_accuracy']['value']:.0%}" in card
        settings = yaml.safe_load(re.findall("```yaml\n(.*?)```", card, re.DOTALL)[0])
        assert settings["network"]["heads"] == 3
        assert not {"source", "target", "target_labels"} & settings.keys()

    def test_it_names_no_folder_of_the_machine(self, photo_run: Path, feature_run: Path) -> None:
        for run in (photo_run, feature_run):
            assert str(run.parent) not in model_card(run)
        assert "weights: weights.safetensors" in model_card(photo_run)

    def test_warnings_notes_and_what_was_measured(self, run: Path) -> None:
        found = {"warnings": [{"sentence": "It is bad."}], "notes": [{"sentence": "Look at <it>."}]}
        card = model_card(change(run, "summary.json", **found, oracle={"accuracy": 0.876}))
        assert "* warning: It is bad." in card
        assert r"* note: Look at \<it\>." in card
        assert "(oracle): 87.6% accuracy" in card
        assert "no warning was raised" in model_card(change(run, "summary.json", warnings=[], notes=[]))

    def test_many_classes(self, run: Path) -> None:
        card = model_card(change(run, "model.json", classes=[f"class-{number}" for number in range(1000)]))
        assert f"`class-{CLASSES - 1}` and {1000 - CLASSES} more in `model.json`" in card
        assert f"class-{CLASSES}`" not in card

    def test_no_name_is_interpreted(self, run: Path) -> None:
        """Every name comes out of a Markdown renderer as it went in, on one line."""
        page = rendered(model_card(change(run, "model.json", classes=list(HOSTILE))))
        (line,) = re.findall("<p>Classes: (.*)</p>", page)
        assert [html.unescape(name) for name in re.findall("<code>(.*?)</code>", line)] == [
            " ".join(name.split()) for name in HOSTILE
        ]

    def test_hostile_names_of_places_and_methods(self, run: Path) -> None:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        config |= {"source": "/data/<img src=x>", "target": "/data/```\n# x", "network": {"weights": "/w/`a`\n```"}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        card = model_card(change(run, "summary.json", method="<b>[x](javascript:y) https://z</b>"))
        page = rendered(card)
        tags = {"h1", "h2", "p", "pre", "code", "ul", "li", "details", "summary", "a", "!--"}
        assert set(re.findall(r"<(!--|\w+)", page)) <= tags - {"a"}
        assert re.findall("<h1>(.*)</h1>", page) == ["&lt;img src=x&gt; → ``` # x"]
        assert "/data" not in card

    def test_a_name_that_is_not_unicode(self, run: Path) -> None:
        card = model_card(change(run, "model.json", classes=["caf\udce9", "b"]))
        assert r"caf\udce9" in card
        card.encode("utf-8")

    @pytest.mark.parametrize(
        "changes",
        [
            *({"data": 3}, {"data": {}}, {"warnings": 7}, {"warnings": [3]}, {"estimated_accuracy": []}),
            *({"versions": 3}, {"rounds": "many"}, {"oracle": {"accuracy": "x"}}, {"mean_confidence": None}),
        ],
    )
    def test_values_of_another_kind(self, run: Path, changes: dict[str, Any]) -> None:
        with suppress(UserError):
            assert model_card(change(run, "summary.json", **changes)).endswith("-->\n")

    def test_no_finished_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no finished run"):
            model_card(tmp_path)


class TestFile:
    def test_report_makes_it_anew(self, run: Path) -> None:
        (run / FILE).unlink()
        assert main(["report", str(run), "--pictures", "false"]) == 0
        assert (run / FILE).read_text(encoding="utf-8") == model_card(run)

    def test_a_report_elsewhere_leaves_the_folder_alone(self, run: Path, tmp_path: Path) -> None:
        (run / FILE).unlink()
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
        assert not (run / FILE).exists()

    def test_an_edited_card_stays(self, run: Path, caplog: pytest.LogCaptureFixture) -> None:
        change(run, "summary.json", rounds=7)
        assert write_card(run) == run / FILE
        assert "7 rounds" in (run / FILE).read_text(encoding="utf-8")
        edited = (run / FILE).read_text(encoding="utf-8").replace("# license: choose one", "license: mit #")
        (run / FILE).write_text(edited, encoding="utf-8")
        change(run, "summary.json", rounds=8)
        with caplog.at_level(logging.INFO, "candapt"):
            assert write_card(run) is None
        assert (run / FILE).read_text(encoding="utf-8") == edited
        assert "was edited and stays" in caplog.text

    def test_a_foreign_file_or_link_stays(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "notes").write_text("mine")
        (run / FILE).unlink()
        (run / FILE).symlink_to(tmp_path / "notes")
        assert write_card(run) is None
        assert (tmp_path / "notes").read_text() == "mine"

    def test_hostile_classes_through_the_command(self, toy: Toy, tmp_path: Path) -> None:
        np.savez(tmp_path / "source.npz", x=toy.source_x, y=toy.source_y, classes=HOSTILE)
        np.savez(tmp_path / "target.npz", x=toy.target_x)
        paths = [str(tmp_path / name) for name in ("source.npz", "target.npz")]
        quick = ["--rounds", "1", "--training.steps", "2", "--report", "false", "--network.bottleneck", "8"]
        assert main(["adapt", *paths, "--out", str(tmp_path / "run"), *quick]) == 0
        assert "license: mit" not in (tmp_path / "run" / FILE).read_text().split("---\n")[1]
