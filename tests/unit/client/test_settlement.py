"""Acks, nacks and deadlines on their way to a channel that a script plays: together, kept while there is none, and too late."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.client.core.stream import HeldDeliveries
from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.settlement import Settler
from penstock.clock import SystemClock, monotonic
from penstock.durations import SECOND
from penstock.errors import BrokerClosed, FailedPrecondition, PenstockError, PermissionDenied, Unavailable
from penstock.wire.frames import Body, Delivery, Limits, Nack, Opened, receipt
from tests.conformance.stream_drivers import in_loop

OPENED = Opened(1, 1, None, False, False)


class ScriptedChannel:
    """Keeps what it is given, and answers as it was told to."""

    opened = OPENED

    def __init__(self, error: PenstockError | None = None, failed: list[int] | None = None) -> None:
        self.settled: list[Any] = []
        self.begun: list[int] = []
        self._error, self._failed = error, failed or []

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        if self._error is not None:
            raise self._error
        self.settled.append((acks, nacks, deadlines))
        self.begun += begun

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        if self._error is not None:
            raise self._error
        self.settled.append((acks, nacks, deadlines))
        return self._failed

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        return [], []

    def adjust(self, limits: Limits) -> None:
        raise AssertionError("not here")

    async def close(self, *, keep: bool = False) -> None:
        raise AssertionError("not here")


class Desk:
    """A settler, and messages that it settles."""

    def __init__(self, count: int = 4) -> None:
        self.changes = self.moves = 0
        self.holdings: HeldDeliveries[IncomingMessage] = HeldDeliveries(60 * SECOND)
        self.settler = Settler(self.holdings, SystemClock(), self._changed, self._moved)
        now = monotonic()
        self.messages = [
            IncomingMessage(
                self.settler,
                OPENED,
                Delivery(number, 1, 0, Body(now, b"", None, "", 4, 0, None, None)),
                receipt(number, 1, 0),
                now,
                now + 60 * SECOND,
            )
            for number in range(count)
        ]
        for message in self.messages:
            self.holdings.by_receipt[message.receipt] = message

    def _changed(self) -> None:
        self.changes += 1

    def _moved(self) -> None:
        self.moves += 1


@in_loop
async def test_what_is_asked_for_in_one_turn_goes_together() -> None:
    desk, channel = Desk(), ScriptedChannel()
    desk.settler.use(channel)
    one, two, three, four = desk.messages
    one.ack()
    two.ack()
    three.nack()
    four.modify_ack_deadline(30)
    assert channel.settled == []
    await asyncio.sleep(0)
    assert channel.settled == [([one.receipt, two.receipt], [Nack(three.receipt)], [([four.receipt], 30)])]
    assert [*desk.holdings.by_receipt] == [four.receipt]
    assert (desk.changes, desk.moves) == (1, 1)


@in_loop
async def test_without_a_channel_everything_waits_for_one() -> None:
    desk, channel = Desk(), ScriptedChannel()
    desk.messages[0].ack()
    desk.messages[1].nack()
    await asyncio.sleep(0)
    assert desk.settler.pending == [message.receipt for message in desk.messages[:2]]
    desk.settler.repeat([77], [Nack(78)])
    desk.settler.use(channel)
    await asyncio.sleep(0)
    assert channel.settled == [([desk.messages[0].receipt, 77], [Nack(desk.messages[1].receipt), Nack(78)], [])]
    assert desk.settler.pending == []


@in_loop
async def test_letting_go_sends_what_there_is_first_and_then_nothing_more() -> None:
    desk, channel = Desk(), ScriptedChannel()
    desk.settler.use(channel)
    desk.messages[0].ack()
    desk.settler.let_go()
    assert (len(channel.settled), desk.settler.is_connected) == (1, False)
    desk.messages[1].ack()
    await asyncio.sleep(0)
    assert len(channel.settled) == 1
    desk.settler.let_go()  # twice does no harm
    assert desk.settler.pending == [desk.messages[1].receipt]


@in_loop
async def test_what_did_not_arrive_by_the_end_is_told_and_later_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.messages[0].ack()
    with caplog.at_level(logging.WARNING, "penstock.client"):
        desk.settler.end()
    assert "1 acks did not reach the broker" in caplog.text
    desk.messages[1].ack()
    desk.messages[2].modify_ack_deadline(5)
    await asyncio.sleep(0)
    assert (desk.settler.pending, desk.settler._deadlines) == ([], {})
    assert await desk.messages[3].ack_with_response() is AckResponse.INVALID


@in_loop
async def test_a_channel_that_refuses_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.settler.use(ScriptedChannel(BrokerClosed()))
    desk.messages[0].ack()
    await asyncio.sleep(0)
    assert "1 acks and 0 nacks have no effect" in caplog.text


@in_loop
async def test_each_outcome_has_its_response(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, PenstockError | None, list[int], AckResponse]] = [
        ("in time", None, [], AckResponse.SUCCESS),
        ("too late", None, [1], AckResponse.INVALID),
        ("not allowed", PermissionDenied("consume", "s"), [], AckResponse.PERMISSION_DENIED),
        ("detached", FailedPrecondition("detached"), [], AckResponse.FAILED_PRECONDITION),
        ("lost on its way", Unavailable("away"), [], AckResponse.OTHER),
        ("unknown", PenstockError("?"), [], AckResponse.OTHER),
    ]
    for title, error, failed, response in rows:
        with subtests.test(title):
            desk = Desk()
            desk.settler.use(ScriptedChannel(error, failed))
            assert await desk.messages[0].ack_with_response() is response
            assert await desk.messages[1].nack_with_response() is response
            assert await desk.messages[2].modify_ack_deadline_with_response(30) is response
            assert [*desk.holdings.by_receipt] == [desk.messages[2].receipt, desk.messages[3].receipt]


@in_loop
async def test_a_response_waits_for_a_channel_while_the_lease_lasts() -> None:
    desk = Desk()
    asking = asyncio.create_task(desk.messages[0].ack_with_response())
    await asyncio.sleep(0)
    assert desk.messages[0].receipt in desk.holdings.by_receipt  # it is still held: who comes back must say so
    desk.settler.use(ScriptedChannel())
    assert await asking is AckResponse.SUCCESS
    desk.settler.let_go()
    desk.messages[1].deadline = 0
    assert await desk.messages[1].ack_with_response() is AckResponse.OTHER
    asking = asyncio.create_task(desk.messages[2].ack_with_response())
    await asyncio.sleep(0)
    desk.settler.end()
    assert await asking is AckResponse.INVALID


def test_a_message_that_outlives_its_loop_is_settled_without_effect() -> None:
    async def begin() -> Desk:
        return Desk()

    desk = asyncio.run(begin())
    for settle in (desk.messages[0].ack, desk.messages[1].nack):
        thread = threading.Thread(target=settle)
        thread.start()
        thread.join()
    assert desk.settler.pending == []


@in_loop
async def test_what_somebody_begins_to_work_on_is_said_unless_it_is_done_in_the_same_turn() -> None:
    desk, channel = Desk(), ScriptedChannel()
    desk.settler.use(channel)
    slow, quick, *_ = desk.messages
    slow.begin()
    quick.begin()
    quick.ack()
    quick.begin()
    await asyncio.sleep(0)
    assert (channel.begun, channel.settled) == ([slow.receipt], [([quick.receipt], [], [])])
