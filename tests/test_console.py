"""What a user sees of long work."""

import logging

import pytest

from candapt import console


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


class TestLinesOfAProgressBar:
    def test_where_there_is_no_terminal_a_line_tells_the_progress_every_half_minute(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = 100.0
        with caplog.at_level(logging.INFO, "candapt"), console.counting("features") as count:
            count.bar.get_time = lambda: clock
            count.bar.tasks[0].start_time = clock
            for done in range(1, 101):
                clock += 1.0
                count(done, 100)
        assert lines(caplog) == [
            "features: 30 %, about 1 min 10 s left",
            "features: 60 %, about 40.0 s left",
            "features: 90 %, about 10.0 s left",
        ]

    def test_short_work_and_a_terminal_have_none(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with caplog.at_level(logging.INFO, "candapt"):
            with console.counting("features") as count:
                count(1, 2)
            monkeypatch.setattr(console.console, "_force_terminal", True)
            monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
            with console.counting("features") as count:
                count(1, 2)
        assert lines(caplog) == []
