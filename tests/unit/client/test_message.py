"""What a message says about itself, and whom it tells what becomes of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.client.message import AckResponse, IncomingMessage
from penstock.errors import InvalidArgument
from penstock.ids import parse_ack_id, parse_message_id
from penstock.wire.frames import Body, Delivery, Nack, Opened, receipt

NOW = 1_767_225_600_000_000


class Holder:
    """Keeps what it is told."""

    def __init__(self, response: AckResponse = AckResponse.SUCCESS) -> None:
        self.told: list[Any] = []
        self._response = response

    def begin(self, message: IncomingMessage) -> None:
        raise AssertionError("streams say it")

    def ack(self, message: IncomingMessage) -> None:
        self.told.append("ack")

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        self.told.append(nack)

    def move(self, message: IncomingMessage, seconds: float) -> None:
        self.told.append(seconds)

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        self.told.append((acks, nack, seconds))
        return self._response


def message(settler: Holder | None = None, data: bytes = b"{}", attributes: dict[str, str] | None = None) -> IncomingMessage:
    body = Body(NOW, data, attributes, "key", 7, 0, None, None)
    return IncomingMessage(
        settler or Holder(), Opened(3, 5, None, False, False), Delivery(11, 2, 4, body), receipt(11, 2, 4), NOW + 5, NOW + 60
    )


def test_it_says_all_about_itself() -> None:
    one = message(data=b"hello", attributes={"a": "1"})
    assert (one.data, one.length, one.attributes, one.ordering_key, one.priority) == (b"hello", 5, {"a": "1"}, "key", 7)
    assert (one.delivery_attempt, one.offset, one.is_settled, one.stream) == (2, 11, False, 0)
    assert one.publish_time == datetime(2026, 1, 1, tzinfo=UTC)
    assert one.received == datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=5)
    assert parse_message_id(one.id) == (NOW, 5, 11)
    assert parse_ack_id(one.ack_id) == (3, 11, 2, 4)
    assert repr(one) == f"<IncomingMessage {one.id} attempt 2, 5 bytes>"


def test_attributes_cannot_be_changed(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, str] | None] = [None, {}, {"a": "1"}]
    for attributes in rows:
        with subtests.test(attributes=attributes):
            one = message(attributes=attributes)
            assert one.attributes == (attributes or {})
            with pytest.raises(TypeError):
                one.attributes["b"] = "2"  # type: ignore[index]  # that is the point


def test_nothing_of_it_can_be_set() -> None:
    one = message()
    for name in ("id", "ack_id", "data", "attributes", "ordering_key", "publish_time", "delivery_attempt", "length"):
        with pytest.raises(AttributeError):
            setattr(one, name, None)


def test_json_is_read(subtests: pytest.Subtests) -> None:
    rows: list[tuple[bytes, object]] = [(b'{"a": [1, null]}', {"a": [1, None]}), (b'"x"', "x"), (b"0", 0)]
    for data, value in rows:
        with subtests.test(data=data, value=value):
            assert message(data=data).json() == value


def test_what_is_no_json_says_so_with_the_id(subtests: pytest.Subtests) -> None:
    for data in (b"", b"{", b"\xff", b"nope"):
        with subtests.test(data=data):
            one = message(data=data)
            with pytest.raises(InvalidArgument, match=f"the data of message {one.id} is not JSON"):
                one.json()


def test_the_first_call_counts_and_later_ones_do_nothing() -> None:
    for first in ("ack", "nack"):
        settler = Holder()
        one = message(settler)
        getattr(one, first)()
        assert one.is_settled
        one.ack()
        one.nack()
        one.modify_ack_deadline(30)
        one.modify_ack_deadline(0)
        assert settler.told == ["ack" if first == "ack" else Nack(one.receipt)]


def test_a_deadline_moves_as_often_as_wanted_and_0_gives_back() -> None:
    settler = Holder()
    one = message(settler)
    states = []
    for seconds in (30, 600, 0, 30):
        one.modify_ack_deadline(seconds)
        states.append(one.is_settled)
    assert states == [False, False, True, True]
    assert settler.told == [30, 600, 0]


def test_a_deadline_that_cannot_be_is_refused_in_the_words_of_the_specification(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [-1, -0.001, 600.001, 601, float("nan"), float("inf"), None, "10", True]
    for seconds in rows:
        with subtests.test(seconds=seconds):
            settler = Holder()
            one = message(settler)
            text = f"Ack deadline must be between 0 and 600 seconds, got {seconds!r}"
            with pytest.raises(InvalidArgument) as refused:
                one.modify_ack_deadline(seconds)
            assert str(refused.value) == text
            with pytest.raises(InvalidArgument, match="Ack deadline must be between 0 and 600 seconds"):
                asyncio.run(one.modify_ack_deadline_with_response(seconds))
            assert (settler.told, one.is_settled, refused.value.code) == ([], False, 3)


def test_a_deadline_may_be_anything_up_to_600_seconds(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [0.001, 1, 599.999, 600, timedelta(seconds=30)]
    for seconds in rows:
        with subtests.test(seconds=seconds):
            settler = Holder()
            message(settler).modify_ack_deadline(seconds)
            assert settler.told == [seconds.total_seconds() if isinstance(seconds, timedelta) else seconds]


@pytest.mark.parametrize("response", [*AckResponse])
def test_a_response_is_what_the_holder_says_and_the_second_is_invalid(response: AckResponse) -> None:
    async def settle() -> None:
        for verb, told in (
            ("ack_with_response", lambda mark: ([mark], None, None)),
            ("nack_with_response", lambda mark: (None, Nack(mark), None)),
        ):
            settler = Holder(response)
            one = message(settler)
            assert await getattr(one, verb)() is response
            assert await one.ack_with_response() is AckResponse.INVALID
            assert await one.nack_with_response() is AckResponse.INVALID
            assert await one.modify_ack_deadline_with_response(10) is AckResponse.INVALID
            assert settler.told == [told(one.receipt)]

    asyncio.run(settle())


def test_a_deadline_with_response_settles_only_with_0() -> None:
    async def move() -> None:
        settler = Holder()
        one = message(settler)
        states = []
        for seconds in (10, 0):
            assert await one.modify_ack_deadline_with_response(seconds) is AckResponse.SUCCESS
            states.append(one.is_settled)
        assert states == [False, True]
        assert settler.told == [(None, None, 10), (None, None, 0)]

    asyncio.run(move())


def test_the_numbers_of_responses_are_grpcs() -> None:
    assert {one.name: one.value for one in AckResponse} == {
        "SUCCESS": 0,
        "INVALID": 3,
        "PERMISSION_DENIED": 7,
        "FAILED_PRECONDITION": 9,
        "OTHER": 13,
    }
