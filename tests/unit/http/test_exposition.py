"""Prometheus' text format, as a strict parser reads it."""

import math

import pytest

from penstock.http.monitoring import Histogram, Metric, Sample, exposition
from tests.unit.http.prometheus import BadMetrics, parse

PLAIN = Metric("jobs", "gauge", "How many\nthere are \\ were.")
LABELLED = Metric("jobs_total", "counter", "Done.", ("project", "queue"))
TIMES = Metric("seconds", "histogram", "How long.", ("route",))


def test_what_is_written_can_be_read_again() -> None:
    hostile = 'a"b\\c\nd{}=,é\t'
    samples = [
        Sample(PLAIN, (), 1.5),
        Sample(LABELLED, ("p", hostile), 1234567890123456),
        Sample(TIMES, ("/x",), Histogram((0.1, 1), (1, 2, 3), 9.25)),
        Sample(LABELLED, ("p", "other"), 0),
    ]
    families = parse("".join(exposition(samples)))

    assert families["jobs"].samples == {("jobs", ()): 1.5}
    assert families["jobs_total"].samples == {
        ("jobs_total", (("project", "p"), ("queue", hostile))): 1234567890123456,
        ("jobs_total", (("project", "p"), ("queue", "other"))): 0,
    }
    assert families["seconds"].samples == {
        ("seconds_bucket", (("le", "0.1"), ("route", "/x"))): 1,
        ("seconds_bucket", (("le", "1"), ("route", "/x"))): 3,
        ("seconds_bucket", (("le", "+Inf"), ("route", "/x"))): 6,
        ("seconds_sum", (("route", "/x"),)): 9.25,
        ("seconds_count", (("route", "/x"),)): 6,
    }


def test_nothing_at_all_is_an_empty_text() -> None:
    assert "".join(exposition([])) == ""
    assert parse("") == {}


def test_infinity_has_the_formats_own_spelling() -> None:
    assert "jobs +Inf\n" in "".join(exposition([Sample(PLAIN, (), math.inf)]))


def test_the_parser_is_strict(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "jobs 1",
        "jobs 1\n",
        "# TYPE jobs gauge\njobs one\n",
        "# TYPE jobs gauge\njobs 1\njobs 2\n",
        '# TYPE jobs gauge\njobs 1\n# TYPE other gauge\nother 1\njobs{a="b"} 2\n',
        '# TYPE jobs gauge\njobs{a="b} 1\n',
        '# TYPE jobs gauge\njobs{a="\\x"} 1\n',
        "# TYPE jobs counter\njobs 1\n",
        "# TYPE jobs_total counter\njobs_total -1\n",
        '# TYPE t histogram\nt_bucket{le="1"} 2\nt_bucket{le="+Inf"} 1\nt_sum 1\nt_count 1\n',
        '# TYPE t histogram\nt_bucket{le="1"} 2\nt_sum 1\nt_count 2\n',
    ]
    for text in rows:
        with subtests.test(text=text), pytest.raises(BadMetrics):
            parse(text)
