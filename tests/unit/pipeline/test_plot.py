"""The page of the metrics: what it shows, and that nothing in a name can break it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from penstock.pipeline.plot import MOST_STREAMS, page, write_html
from penstock.pipeline.schemas import METRICS

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def row(minute: int, *, stream: str = "orders", subscription: str | None = "s", **columns: Any) -> dict[str, Any]:
    """A row of the metrics in which nothing happened, but for some columns."""
    names = [field.split()[0] for field in METRICS.split(", ")]
    empty: dict[str, Any] = {
        name: 0 if " not null" in field else None for name, field in zip(names, METRICS.split(", "), strict=True)
    }
    where = {"window_start": START + timedelta(minutes=minute), "window_end": START + timedelta(minutes=minute + 1)}
    return empty | where | {"stream": stream, "subscription": subscription} | columns


def charts(text: str) -> list[ET.Element]:
    """Every chart, parsed: what is not well-formed is refused."""
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text)]


def heights(chart: ET.Element, curve: str) -> list[float]:
    """The heights of a curve's points."""
    (path,) = [found for found in chart.iter("path") if curve in found.attrib["class"].split()]
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path.attrib["d"])]


def test_without_rows_it_says_so() -> None:
    assert "nothing to show yet" in page([])


def test_rates_are_summed_over_consumers_and_a_window_without_rows_is_zero() -> None:
    rows = [
        row(0, consumer="a", acked_per_second=30.0),
        row(0, consumer="b", acked_per_second=10.0),
        row(2, consumer="a", acked_per_second=20.0),
    ]

    rates, _ = charts(page(rows))

    bottom, top = 176.0, 10.0
    assert heights(rates, "acked") == [top, bottom, (top + bottom) / 2]


def test_the_slowest_consumer_counts_and_a_gap_breaks_the_line() -> None:
    rows = [row(0, consumer="a", wait_p95_ms=10.0), row(0, consumer="b", wait_p95_ms=40.0), row(2, wait_p95_ms=20.0)]

    _, times = charts(page(rows))

    assert heights(times, "wait") == [10.0, 93.0]
    (path,) = [found for found in times.iter("path") if "wait" in found.attrib["class"]]
    assert path.attrib["d"].count("M") == 2
    assert [found for found in times.iter("path") if "processing" in found.attrib["class"]] == []


def test_the_last_window_is_told_in_numbers() -> None:
    text = page(
        [row(0, acked_per_second=1.0), row(1, consumer="w", acked_per_second=1234.0, wait_p95_ms=1500.0, error_ratio=0.25)]
    )

    assert "The window from 12:01" in text
    assert all(f"<td>{cell}</td>" in text for cell in ("w", "1,234", "1.5 s", "25 %", "–"))


def test_names_are_only_text() -> None:
    hostile = "<script>alert('x')</script>&\"'"

    text = page([row(0, stream=hostile, subscription=hostile, consumer=hostile)])

    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 3


def test_the_busiest_streams_are_shown_and_it_says_how_many_are_not() -> None:
    rows = [row(0, stream=f"stream-{number:02}", published=number, subscription=None) for number in range(MOST_STREAMS + 3)]

    text = page(rows)

    assert re.findall(r"<h2>(.*?)</h2>", text)[0] == f"stream-{MOST_STREAMS + 2:02}"
    assert len(charts(text)) == 2 * MOST_STREAMS
    assert "3 streams with less traffic" in text


@pytest.mark.parametrize("link", ["http://", "https://", "<script", "@import"])
def test_it_needs_nothing_from_anywhere(link: str) -> None:
    assert link not in page([row(0)])


def test_a_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    written = write_html([row(0)], tmp_path / "new" / "metrics.html")

    assert written.read_text(encoding="utf-8") == page([row(0)])
