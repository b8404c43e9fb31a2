"""What each kind of value accepts, from text and typed, and what it refuses with which words."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.values import (
    BINDING,
    FLAG,
    HOST,
    HOST_PATTERN,
    JWKS,
    ORIGIN,
    PATH,
    PORT,
    PROJECT,
    TOPIC_PREFIX,
    URL,
    WORD,
    ValueType,
    choice,
    duration,
    number,
    several,
    size,
    size_bytes,
)
from penstock.durations import duration_seconds
from penstock.errors import InvalidArgument

KINDS: dict[str, ValueType[Any]] = {
    "flag": FLAG,
    "port": PORT,
    "path": PATH,
    "host": HOST,
    "project": PROJECT,
    "url": URL,
    "origin": ORIGIN,
    "host pattern": HOST_PATTERN,
    "jwks": JWKS,
    "word": WORD,
    "binding": BINDING,
    "topic prefix": TOPIC_PREFIX,
    "number": number(0, 100),
    "choice": choice("text", "json"),
    "duration": duration(0, 86_400),
    "size": size(1, 2**30),
    "ports": several(PORT),
}


def test_a_duration_is_seconds_or_has_a_unit(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [
        ("90", 90),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7_200),
        ("30d", 2_592_000),
        (" 30 s ", 30),
    ]
    for text, seconds in rows:
        with subtests.test(text=text, seconds=seconds):
            assert duration_seconds(text) == seconds


def test_a_size_is_bytes_or_has_a_unit(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int]] = [
        ("0", 0),
        ("65536", 65_536),
        ("10MB", 10_000_000),
        ("64KiB", 65_536),
        ("1.5 MiB", 1_572_864),
        ("1gb", 10**9),
        ("7B", 7),
    ]
    for text, octets in rows:
        with subtests.test(text=text, octets=octets):
            assert size_bytes(text) == octets


def test_text_is_read(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, object]] = [
        *(("flag", text, True) for text in ("1", "true", "TRUE", "yes", "on")),
        *(("flag", text, False) for text in ("0", "false", "No", "off")),
        ("port", "0", 0),
        ("port", "65535", 65_535),
        ("path", "a/b", Path("a/b")),
        *(("host", text, text) for text in ("localhost", "127.0.0.1", "::1", "::", "fe80::1%eth0", "a-b.example.com")),
        ("project", "acme-1", "acme-1"),
        ("url", "https://penstock.example:8085/base/", "https://penstock.example:8085/base"),
        ("origin", "*", "*"),
        ("origin", "http://localhost:3000", "http://localhost:3000"),
        *(("host pattern", text, text) for text in ("*", "*.example.com", "127.0.0.1:9000", "[::1]:80")),
        ("jwks", "https://login.example/keys/?p=1", "https://login.example/keys/?p=1"),
        ("word", "https://login.example/tenant", "https://login.example/tenant"),
        *(
            ("binding", text, text)
            for text in ("orders/#=orders", "#=all", "+=one", "a/+/c/#=A.b~c", "a//b=abc", "/=abc", "a" * 256 + "=abc", "a=hubs")
        ),
        *(("topic prefix", text, text) for text in ("chat", "Chat/eu_1/x-y", "a" * 200)),
        ("number", "2.5", 2.5),
        ("ports", "1, 2,,3", (1, 2, 3)),
        ("ports", "", ()),
    ]
    for kind, text, value in rows:
        with subtests.test(kind=kind, text=text):
            assert KINDS[kind].read(text, "it", is_text=True) == value


def test_text_that_is_none_of_the_kind_is_refused_with_its_origin_and_what_was_wanted(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        *(("flag", text) for text in ("", "2", "truth", "ja")),
        *(("port", text) for text in ("-1", "65536", "70000", "80.0", "8_085", "\uff18\uff10", "0x50", "eighty", "", "9" * 5000)),
        *(("path", text) for text in ("", " ", "a\0b")),
        *(("host", text) for text in ("", "a b", "http://a", "a/b", "*", "-a", "ä.example", "a:80:", "1:2", "x" * 300)),
        *(("project", text) for text in ("", "a/b", "-a", "ä", "x" * 101, "a\n")),
        *(
            ("url", text)
            for text in ("", "penstock.example", "ftp://a", "http://", "http://a?b=c", "http://a#b", "http://a:99999", "http://[")
        ),
        *(("origin", text) for text in ("", "app.example", "https://app.example/", "https://app.example/path", "null")),
        *(("host pattern", text) for text in ("", "http://a", "a/b", "a b")),
        *(
            ("jwks", text)
            for text in ("", "login.example", "file:///keys", "https://", "https://a#b", "https://a:0", "http://a b")
        ),
        *(("word", text) for text in ("", "a b", "ä", "a\n", "x" * 513)),
        *(
            ("binding", text)
            for text in (
                *(
                    "",
                    "=",
                    "orders",
                    "orders=",
                    "=orders",
                    "a=ab",
                    "a=1bc",
                    "a=a b",
                    "a=" + "b" * 256,
                    "a" * 257 + "=abc",
                    "a=abc=d",
                    "a=goog1",
                ),
                *(
                    "a=hub",
                    "a=hub.chat",
                    "a=HUB",
                    "#/a=abc",
                    "a#=abc",
                    "a+/b=abc",
                    "a.b=abc",
                    "ä=abc",
                    "a" * 257 + "=abc",
                    "a=abc\n",
                ),
            )
        ),
        *(("topic prefix", text) for text in ("", "/", "/a", "a/", "a//b", "a/#", "+", "a.b", "ä", "a\n", "a" * 201)),
        *(("number", text) for text in ("nan", "inf", "-1", "101", "1e1", "")),
        *(("choice", text) for text in ("", "JSON", "xml")),
        *(("duration", text) for text in ("", "-1s", "1 week", "s", "1d1h", "2d", "nan", "1e3", "9" * 400)),
        *(("size", text) for text in ("", "-1", "10 M", "1.5B", "10TB", "0", "2GiB", "1,000")),
        ("ports", "1,70000"),
    ]
    for kind, text in rows:
        with subtests.test(kind=kind, text=text):
            with pytest.raises(InvalidArgument) as caught:
                KINDS[kind].read(text, "--thing", is_text=True)

            assert str(caught.value).startswith("--thing is ")
            assert KINDS[kind].wanted in str(caught.value)
            assert len(str(caught.value)) < 400


def test_a_typed_value_of_another_type_is_refused_and_nothing_else_is_raised(subtests: pytest.Subtests) -> None:
    values = [None, object(), b"bytes", {}, {1}, 1j, float("nan"), float("inf"), 1 << 200, -1, [None], [[]], ()]
    for name, kind in KINDS.items():
        with subtests.test(name):
            for value in values:
                if name != "ports" or value != ():
                    with pytest.raises(InvalidArgument):
                        kind.read(value, "key")


def test_a_file_that_can_say_a_number_must_say_it(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, object]] = [
        ("port", "8085"),
        ("flag", "true"),
        ("flag", 1),
        ("port", True),
        ("number", "1"),
        ("ports", "1"),
    ]
    for kind, value in rows:
        with subtests.test(kind=kind, value=value), pytest.raises(InvalidArgument):
            KINDS[kind].read(value, "key")


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as caught:
        URL.read("https://me:hunter2@penstock.example", "--public-url", is_text=True)

    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert "password" in str(caught.value.hint)


@given(text=st.text(max_size=40), kind=st.sampled_from(sorted(KINDS)))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        once = KINDS[kind].read(text, "it", is_text=True)
    except InvalidArgument:
        return
    assert KINDS[kind].read(once, "it") == once  # what was read is itself a right value
