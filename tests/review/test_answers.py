"""Answers are never lost: every line is stored at once, whoever writes, and damage costs only the damaged line."""

import csv
import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from candapt.errors import UserError
from candapt.review.answers import CLAIM_SECONDS, Answer, AnswerFile, current, read_csv, write_csv

RIGHT = Answer("a.jpg", "right", "cat", "cat", "confidence", 3, "me", "2026-01-01T00:00:00+00:00")
WRONG = Answer("b.jpg", "wrong", "dog", "cat")
OTHER = Answer("c.jpg", "other", None, "cat")
UNSURE = Answer("caf\udce9.jpg", "unsure", None, "cat")
ALL = [RIGHT, WRONG, OTHER, UNSURE]


@pytest.fixture
def answers(tmp_path: Path) -> AnswerFile:
    file = AnswerFile(tmp_path)
    file.prepare()
    return file


def store(answers: AnswerFile, *lines: Answer) -> None:
    with answers.exclusive():
        for each in lines:
            answers.append(each)


def store_one_by_one(run: Path, lines: list[Answer]) -> None:
    for each in lines:
        store(AnswerFile(run), each)


class TestFile:
    def test_they_read_back(self, answers: AnswerFile) -> None:
        assert answers.read() == []
        store(answers, *ALL)
        assert answers.read() == ALL
        assert AnswerFile(answers.run).read() == ALL
        assert len((answers.folder / "answers.jsonl").read_text("ascii").splitlines()) == 4

    @pytest.mark.parametrize("cut", range(1, 40, 6))
    def test_a_line_that_was_cut_off_costs_itself_only(self, answers: AnswerFile, cut: int) -> None:
        store(answers, RIGHT, WRONG)
        path = answers.folder / "answers.jsonl"
        os.truncate(path, path.stat().st_size - cut)
        expected = [RIGHT, WRONG] if cut == 1 else [RIGHT]  # nothing but the line break was lost
        assert answers.read() == expected
        store(answers, OTHER)
        assert answers.read() == [*expected, OTHER]

    @pytest.mark.parametrize(
        "line", ["", "{", "[1]", "3", '{"path": 3}', '{"path": "a", "answer": "maybe"}', "[" * 10**5]
    )
    def test_lines_of_another_kind_are_skipped(self, answers: AnswerFile, line: str) -> None:
        store(answers, RIGHT)
        with (answers.folder / "answers.jsonl").open("a") as file:
            file.write(line + "\n")
        store(answers, WRONG)
        assert answers.read() == [RIGHT, WRONG]

    def test_threads_write_whole_lines(self, answers: AnswerFile) -> None:
        lines = [replace(RIGHT, path=f"{number}.jpg") for number in range(60)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda each: store(answers, each), lines))
        assert {each.path for each in answers.read()} == {each.path for each in lines}

    @pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="would take long to start")
    def test_processes_write_whole_lines(self, answers: AnswerFile) -> None:
        lines = [[replace(RIGHT, path=f"{who}-{number}.jpg") for number in range(15)] for who in "abc"]
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=store_one_by_one, args=(answers.run, each)) for each in lines]
        for process in started:
            process.start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0, 0, 0]
        assert {each.path for each in answers.read()} == {each.path for some in lines for each in some}

    def test_links_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "review").symlink_to("../elsewhere")
        with pytest.raises(UserError, match="is a link"):
            AnswerFile(tmp_path / "run").prepare()
        (tmp_path / "run" / "review").unlink()
        file = AnswerFile(tmp_path / "run")
        file.prepare()
        (tmp_path / "mine").write_text("mine")
        (file.folder / "answers.jsonl").symlink_to(tmp_path / "mine")
        with pytest.raises(UserError, match="is a link"):
            file.prepare()
        with pytest.raises(ValueError, match="leads out"):
            file.read()
        with pytest.raises(OSError, match="symbolic link"):
            store(file, RIGHT)
        assert (tmp_path / "mine").read_text() == "mine"

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "review").write_text("mine")
        with pytest.raises(UserError, match="cannot be written"):
            AnswerFile(tmp_path).prepare()


class TestCurrent:
    def test_the_last_answer_counts(self) -> None:
        again = replace(RIGHT, answer="wrong", label="dog")
        assert list(current([RIGHT, WRONG, again]).values()) == [WRONG, again]

    def test_withdrawn_answers_do_not(self) -> None:
        undone = replace(RIGHT, answer="undone", label=None)
        assert list(current([RIGHT, WRONG, undone])) == ["b.jpg"]
        assert list(current([RIGHT, undone, RIGHT])) == ["a.jpg"]

    @pytest.mark.parametrize(
        ("answer", "prediction", "expected"),
        [
            (RIGHT, "cat", True),
            (RIGHT, "dog", False),  # of another run
            (WRONG, "cat", False),
            (WRONG, "dog", True),
            (replace(WRONG, label=None), "cat", False),
            (replace(WRONG, label=None), "dog", None),
            (OTHER, "dog", False),
            (OTHER, "unknown", True),  # what `--unknown label` calls it
            (UNSURE, "cat", None),
        ],
    )
    def test_whether_a_prediction_is_right(self, answer: Answer, prediction: str, expected: bool | None) -> None:
        assert answer.is_right(prediction) is expected


class TestClaims:
    def test_they_end(self, answers: AnswerFile) -> None:
        assert answers.read_claims(0) == {}
        answers.write_claims({"a.jpg": "me"}, 1000.0)
        assert answers.read_claims(1001) == {"a.jpg": "me"}
        assert answers.read_claims(1000 + CLAIM_SECONDS) == {}
        assert answers.read_claims(10) == {}  # the clock was set back

    @pytest.mark.parametrize("text", ["", "[]", '{"a": 3}', '{"a": [1, "x"]}', '{"a": [3, 999]}'])
    def test_damage_does_not_matter(self, answers: AnswerFile, text: str) -> None:
        (answers.folder / "claims.json").write_text(text)
        assert answers.read_claims(1000) == {}


class TestTable:
    def test_it_reads_back(self, tmp_path: Path) -> None:
        write_csv(tmp_path / "a.csv", ALL)
        expected = [replace(each, seed=0, reviewer="", time="") for each in ALL]  # these matter to nobody
        assert read_csv(tmp_path / "a.csv") == expected

    def test_it_has_the_columns_of_known_labels(self, answers: AnswerFile) -> None:
        store(answers, *ALL, replace(WRONG, answer="undone"))
        with answers.write_table().open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
        assert [(row["path"], row["label"]) for row in rows] == [("a.jpg", "cat"), ("c.jpg", ""), ("caf\udce9.jpg", "")]

    def test_any_table_of_labels_will_do(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("\ufefflabel,path\ncat,a.jpg\n,b.jpg\ndog,c.jpg\n", encoding="utf-8")
        read = read_csv(tmp_path / "a.csv")
        assert [(each.path, each.is_right("cat")) for each in read] == [("a.jpg", True), ("c.jpg", False)]

    @pytest.mark.parametrize("text", ["", "path,answer\na,right\n", "\0", 'path,label\n"' + "x" * 200_000])
    def test_other_files_are_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(UserError):
            read_csv(tmp_path / "a.csv")
        with pytest.raises(UserError, match="cannot be read"):
            read_csv(tmp_path / "none.csv")

    def test_json_lines_stay_one_line(self, answers: AnswerFile) -> None:
        odd = replace(RIGHT, path="a\n\u2028b.jpg")
        store(answers, odd)
        (line,) = (answers.folder / "answers.jsonl").read_text("ascii").splitlines()
        assert json.loads(line)["path"] == odd.path
        assert answers.read() == [odd]
