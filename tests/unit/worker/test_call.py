"""What a task call looks like on its way, and which arguments can travel."""

import math
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.worker.core.call import Call, call_in, payload_of


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
)


@given(task=TEXT, args=st.lists(VALUES), kwargs=st.dictionaries(TEXT, VALUES))
def test_what_was_sent_arrives(task: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    stored = msgspec.json.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(payload_of(task, args, kwargs))))

    assert call_in(stored) == Call(1, task, args, kwargs)


def test_the_form_is_the_documented_one() -> None:
    assert payload_of("mail", ("a",), {"n": 1}) == {"v": 1, "task": "mail", "args": ["a"], "kwargs": {"n": 1}}


def test_what_is_almost_json_becomes_plain() -> None:
    plain = payload_of("t", ((1, (2,)),), {"colour": Colour.RED, "size": Size.LARGE, "deep": {Colour.RED: (1,)}})

    assert plain["args"] == [[1, [2]]]
    assert plain["kwargs"] == {"colour": "red", "size": 3, "deep": {"red": [1]}}
    assert type(plain["kwargs"]["colour"]) is str
    assert type(plain["kwargs"]["size"]) is int


def _loop() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_an_argument_that_json_cannot_carry_is_named(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        (b"bytes", "argument 'x'"),
        ({1, 2}, "argument 'x'"),
        (datetime(2026, 1, 1, tzinfo=UTC), "argument 'x'"),
        (object(), "argument 'x'"),
        (math.nan, "argument 'x'"),
        (-math.inf, "argument 'x'"),
        (2**64, "argument 'x'"),
        (-(2**63) - 1, "argument 'x'"),
        (1 + 2j, "argument 'x'"),
        ("\udc80", "argument 'x'"),
        ({1: "a"}, "a key of argument 'x'"),
        ({"\udc80": 1}, "a key of argument 'x'"),
        ({"a": [0, {"b": b""}]}, "argument 'x'['a'][1]['b']"),
    ]
    for value, path in rows:
        with subtests.test(value=value, path=path):
            with pytest.raises(InvalidArgument) as caught:
                payload_of("t", (), {"x": value})

            assert str(caught.value).startswith(f"{path} is ")
            assert "expected a JSON value" in str(caught.value)
            assert caught.value.hint


def test_a_positional_argument_is_named_by_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"^argument 2 is b'', expected a JSON value"):
        payload_of("t", (1, b""), {})


def test_an_argument_that_contains_itself_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nested too deeply, or contain themselves"):
        payload_of("t", (_loop(),), {})


def test_what_is_no_call_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"",
        b"hello",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b'{"v": 1}',
        b'{"task": "t"}',
        b'{"v": "1", "task": "t"}',
        b'{"v": 1, "task": 7}',
        b'{"v": 1, "task": "t", "args": {}}',
        b'{"v": 1, "task": "t", "kwargs": []}',
        b'{"v": 1, "task": "t"',
        b"[" * 100_000,
        b'{"v": 1, "task": "\xff"}',
    ]
    for data in rows:
        with subtests.test(data=data), pytest.raises(InvalidArgument, match=r"^the message is not a task call: "):
            call_in(data)


@given(st.binary())
def test_no_bytes_do_anything_but_decode_or_be_refused(data: bytes) -> None:
    try:
        call_in(data)
    except InvalidArgument:
        return


def test_a_call_of_a_later_version_is_told_from_rubbish() -> None:
    with pytest.raises(InvalidArgument, match="a task call of version 2, this worker reads version 1"):
        call_in(b'{"v": 2, "task": "t", "later": true}')


def test_only_version_and_name_must_be_there() -> None:
    assert call_in(b'{"v": 1, "task": "t", "trace": "ignored"}') == Call(1, "t", [], {})
