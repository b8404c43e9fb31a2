"""How far long work is: the line, and that it is drawn on a terminal alone."""

import io
import sys

import pytest

from penstock.cli import progress
from penstock.cli.progress import Progress, line


def test_a_line_with_a_total_has_a_bar_a_share_a_rate_and_what_is_left() -> None:
    assert line("publishing", 250, 1_000, 2.0, 120) == (
        "publishing  [########......................]   25%  250 of 1,000  125/s  6.0 s left"
    )
    assert line("publishing", 1_000, 1_000, 2.0, 120).endswith("100%  1,000 of 1,000  500/s  0 s left")
    assert "0%" in line("publishing", 0, 1_000, 0.0, 120)


def test_a_line_without_a_total_counts() -> None:
    assert line("publishing", 12_345, None, 2.0, 120) == "publishing  12,345  6,172/s"


@pytest.mark.parametrize("width", [0, 10, 40, 60, 79])
def test_a_line_never_wraps(width: int) -> None:
    assert len(line("publishing", 123_456, 1_000_000, 2.0, width)) <= width
    assert len(line("publishing", 123_456, None, 2.0, width)) <= width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    instant = [0]
    monkeypatch.setattr(progress, "monotonic", lambda: instant[0])
    return instant


def test_it_is_drawn_ten_times_a_second_at_most_and_gone_at_the_end(now: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("working", 100) as shown:
        for _ in range(100):
            now[0] += progress.INTERVAL // 10
            shown.advance(1)

    assert shown.done == 100
    drawn = terminal.getvalue().split("\r")[1:]
    assert len(drawn) == 11
    assert "10 of 100" in drawn[0]
    assert drawn[-1] == "\x1b[K"


@pytest.mark.parametrize(("stream", "interval"), [(io.StringIO(), progress.INTERVAL), (Terminal(), 0)])
def test_a_file_sees_nothing_and_neither_does_who_waits_only_a_moment(
    stream: io.StringIO, interval: int, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("working", 2) as shown:
        now[0] += interval
        shown.advance(2)

    assert stream.getvalue() == ""
