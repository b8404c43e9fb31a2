"""Names in the lake: where a lake may be, and directories from which a stream's name comes back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.pipeline.lake.files import LONGEST, directory, escaped, lake_path

NAMES = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=400)


def unescaped(text: str) -> str:
    """The name in a directory's name, as Spark reads it."""
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text)


def test_a_lake_is_a_path_or_a_file_url(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | Path, str]] = [
        ("/data/lake", "/data/lake"),
        ("/data/./x/../lake/", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("file:///data/my%20lake", "/data/my lake"),
        ("FILE://localhost/data", "/data"),
        (Path("/data/a:b"), "/data/a:b"),
    ]
    for given_path, wanted in cases:
        with subtests.test(given_path=given_path, wanted=wanted):
            assert lake_path(given_path) == Path(wanted)


def test_a_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_path("lake") == tmp_path / "lake"


def test_other_places_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        "",
        "s3://bucket/lake",
        "s3a://bucket",
        "hdfs:///lake",
        "gs://x",
        "file://other-host/lake",
        "file:relative",
        "dbfs:/x",
        "a\0b",
        7,
        None,
    ]
    for given_path in cases:
        with subtests.test(given_path=given_path), pytest.raises(InvalidArgument, match="lake"):
            lake_path(given_path)


def test_names_are_escaped_as_spark_does_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("orders", "orders"),
        ("queue:orders", "queue%3Aorders"),
        ("a/b", "a%2Fb"),
        ("100%", "%3100%25"),
        ("007", "%3007"),
        ("2026-01-01", "%32026-01-01"),
        ("-1.5e3", "%2D1.5e3"),
        (".5", "%2E5"),
        ("NaN", "%4EaN"),
        ("null", "%6Eull"),
        ("__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__"),
        ("größe", "größe"),
        ("a b", "a b"),
        ("a=b{c}[d]^e", "a%3Db%7Bc}%5Bd%5D%5Ee"),
        (".hidden", ".hidden"),
        ("..", ".."),
    ]
    for stream, wanted in cases:
        with subtests.test(stream=stream, wanted=wanted):
            assert escaped(stream) == wanted
            assert unescaped(wanted) == stream


@given(stream=NAMES)
def test_a_name_is_one_directory_and_comes_back(stream: str) -> None:
    text = escaped(stream)

    assert "/" not in text
    assert len(f"stream={text}".encode()) <= 255
    if len(stream.encode()) * 3 <= LONGEST:
        assert unescaped(text) == stream


@given(one=NAMES, two=NAMES)
def test_two_names_are_two_directories(one: str, two: str) -> None:
    assert (escaped(one) == escaped(two)) == (one == two)


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert escaped("x" * 1000) != escaped("x" * 1001)
    assert escaped("%" * 400)[-33] == "~"


def test_directories_of_tables() -> None:
    assert directory("a/b", "2026-01-31") == "stream=a%2Fb/date=2026-01-31"
    assert directory("", "2026-01-31") == "date=2026-01-31"
