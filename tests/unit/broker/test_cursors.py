"""Cursors: where readers outside the broker are, what they hold, and what a restart finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import cursors as module
from penstock.broker import retention
from penstock.broker.core import cursor as core
from penstock.broker.cursors import FILE
from penstock.broker.log_view import BrokerLog
from penstock.errors import (
    BrokerClosed,
    CorruptLog,
    CursorNotFound,
    InvalidArgument,
    JournalUnavailable,
    OutOfRange,
    PenstockError,
    PermissionDenied,
    QueueNotFound,
    ResourceExhausted,
    TopicNotFound,
)
from penstock.journal import memory, sqlite
from penstock.journal.core.outline import EVENTS
from penstock.testing import ManualClock

WEEK = 7 * 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["durable", pytest.param("memory", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker(clock=clock, data_dir=tmp_path / "data" if request.param == "durable" else None) as broker:
        yield broker


def filled(broker: Broker, *topics: str, count: int = 3) -> MessageQueue:
    queue = MessageQueue(broker=broker)
    for topic in topics:
        queue.register_topic(topic)
        for number in range(count):
            queue.publish(topic, [Message(str(number).encode())])
    return queue


def test_a_cursor_is_made_moved_and_told_with_its_lag(broker: Broker, clock: ManualClock) -> None:
    filled(broker, "orders", "users")
    QueueManager(broker=broker).create("tasks")
    broker.sync()
    events = broker.journal.event_range()[1]
    broker.cursors.advance("archive", {"orders": 1, EVENTS: events - 2}, clock.now())
    made = broker.cursors.advance("archive", {"users": 3, "queue:tasks": 0}, clock.now(), holds=True)

    assert made == broker.cursors.get("archive")
    assert made.offsets == {"orders": 1, EVENTS: events - 2, "users": 3, "queue:tasks": 0}
    assert made.lag == {"orders": 2, EVENTS: 2, "users": 0, "queue:tasks": 0}
    assert made.holds
    assert made.updated_at == clock.now()
    broker.cursors.advance("archive", {"orders": 0}, clock.now())
    assert broker.cursors.get("archive").lag["orders"] == 3, "a reader may start again"
    assert broker.cursors.get("archive").holds, "what is not said stays"
    broker.cursors.advance("a", {}, clock.now())
    assert [cursor.name for cursor in broker.cursors.all()] == ["a", "archive"]
    broker.cursors.delete("archive")
    assert [cursor.name for cursor in broker.cursors.all()] == ["a"]


def test_an_advance_makes_no_event(broker: Broker, clock: ManualClock) -> None:
    filled(broker, "orders")
    broker.sync()
    before = broker.journal.event_range()
    broker.cursors.advance("archive", {EVENTS: before[1]}, clock.now(), holds=True)
    broker.cursors.delete("archive")
    broker.sync()
    assert broker.journal.event_range() == before


def test_a_stream_that_was_made_again_is_not_the_one_that_was_read(broker: Broker, clock: ManualClock) -> None:
    queue = filled(broker, "orders", "users")
    broker.cursors.advance("archive", {"orders": 3, "users": 1}, clock.now(), holds=True)
    queue.unregister_topic("orders")
    assert broker.cursors.get("archive").offsets == {"users": 1}
    queue.register_topic("orders")
    assert broker.cursors.all()[0].offsets == {"users": 1}


def test_what_makes_no_sense_is_refused_and_changes_nothing(
    broker: Broker, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    rows: list[tuple[Any, Any, Any, type[PenstockError], str]] = [
        ("", {"orders": 1}, None, InvalidArgument, "cursor"),
        ("a\nb", {"orders": 1}, None, InvalidArgument, "control characters"),
        ("x" * 2_000, {"orders": 1}, None, InvalidArgument, "cursor"),
        (7, {"orders": 1}, None, InvalidArgument, "cursor"),
        ("a", {"orders": -1}, None, InvalidArgument, "orders"),
        ("a", {"orders": True}, None, InvalidArgument, "whole number"),
        ("a", {"orders": "1"}, None, InvalidArgument, "whole number"),
        ("a", {"orders": 4}, None, OutOfRange, "offset 4 of 'orders'"),
        ("a", {EVENTS: 1 << 40}, None, OutOfRange, EVENTS),
        ("a", {"nothing": 0}, None, TopicNotFound, "nothing"),
        ("a", {"queue:orders": 0}, None, QueueNotFound, "orders"),
        ("a", {"": 0}, None, InvalidArgument, "stream"),
        ("a", {"orders": 1}, "yes", InvalidArgument, "holds"),
    ]
    filled(broker, "orders")
    for name, offsets, holds, error, text in rows:
        with subtests.test(name=name, offsets=offsets):
            with pytest.raises(error, match=text):
                broker.cursors.advance(name, offsets, clock.now(), holds)
            assert broker.cursors.all() == []


def test_a_cursor_that_is_not_there_cannot_be_told_or_deleted(broker: Broker) -> None:
    with pytest.raises(CursorNotFound, match="Cursor not found: archive"):
        broker.cursors.get("archive")
    with pytest.raises(CursorNotFound, match="archive"):
        broker.cursors.delete("archive")


def test_there_may_not_be_too_many(broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_CURSORS", 3)
    for number in range(3):
        broker.cursors.advance(f"c{number}", {}, clock.now())
    with pytest.raises(ResourceExhausted, match="3 cursors"):
        broker.cursors.advance("one more", {}, clock.now())
    broker.cursors.advance("c1", {EVENTS: 0}, clock.now())
    broker.cursors.delete("c0")
    broker.cursors.advance("one more", {}, clock.now())


def test_tokens_and_projects_have_limits_of_their_own(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MAX_OF_TOKEN", 2)
    monkeypatch.setattr(core, "MAX_OF_PROJECT", 3)
    mine, theirs = module.CursorOwner("mine", lambda _: None), module.CursorOwner("theirs", lambda _: None)
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        for name in ("acme/1", "acme/2"):
            broker.cursors.advance(name, {}, clock.now(), caller=mine)
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        advance = broker.cursors.advance
        with pytest.raises(ResourceExhausted, match="this token has made 2 cursors, expected at most 2"):
            advance("other/3", {}, clock.now(), caller=mine)
        advance("acme/1", {EVENTS: 0}, clock.now(), caller=theirs)  # whoever moves it, it stays that of its maker
        advance("acme/3", {}, clock.now(), caller=theirs)
        with pytest.raises(ResourceExhausted, match="this project has 3 cursors, expected at most 3"):
            advance("acme/4", {}, clock.now(), caller=theirs)
        advance("other/1", {}, clock.now(), caller=theirs)
        broker.cursors.delete("acme/1")
        advance("acme/4", {}, clock.now(), caller=mine)


def test_a_cursor_that_holds_is_changed_only_by_callers_that_may_hold_its_streams(broker: Broker, clock: ManualClock) -> None:
    asked: list[set[str]] = []

    def refuse(streams: Iterable[str]) -> None:
        asked.append(set(streams))
        raise PermissionDenied("consume", "it")

    reader = module.CursorOwner("reader", refuse)
    cursors = broker.cursors
    cursors.advance("free", {EVENTS: 0}, clock.now(), caller=reader)
    cursors.delete("free", caller=reader)
    cursors.advance("held", {EVENTS: 0}, clock.now(), holds=True)
    assert asked == []
    changes: list[Callable[..., object]] = [
        partial(cursors.advance, "new", {EVENTS: 0}, clock.now(), True),
        partial(cursors.advance, "held", {}, clock.now(), False),
        partial(cursors.advance, "held", {EVENTS: 0}, clock.now()),
        partial(cursors.delete, "held"),
    ]
    for change in changes:
        with pytest.raises(PermissionDenied):
            change(caller=reader)
    assert asked == [{EVENTS}] * 4
    assert [(cursor.name, cursor.offsets, cursor.holds) for cursor in cursors.all()] == [("held", {EVENTS: 0}, True)]


# ── on disk ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_cursors_survive_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        queue = filled(broker, "orders", "users")
        broker.cursors.advance("archive", {"orders": 2, "users": 1, EVENTS: 4}, clock.now(), holds=True)
        broker.cursors.advance("metrics", {EVENTS: 1}, clock.now())
        queue.unregister_topic("users")
        queue.register_topic("users")
        before = broker.cursors.all()
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        assert broker.cursors.all() == before
        assert before[0].offsets == {"orders": 2, EVENTS: 4}
        broker.cursors.delete("archive")
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        assert [cursor.name for cursor in broker.cursors.all()] == ["metrics"]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_foreign_or_torn_file_is_refused_with_advice(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows = [
        (b"", "it begins with b''"),
        (b"{}", "it begins with"),
        (b"penstock cursors, format 2, crc 00000000\n{}", "it begins with b'penstock cursors, format 2"),
        (b"penstock cursors, format 1, crc 00000000\n{}", "checksum"),
        (b"penstock cursors, format 1, crc a505df1b\n[]", "checksum"),
        (b"penstock cursors, format 1, crc 82f0215c\n123", "checksum"),
    ]
    Broker(data_dir=tmp_path).close()
    for content, text in rows:
        with subtests.test(content=content):
            (tmp_path / FILE).write_bytes(content)
            with pytest.raises(CorruptLog, match=text) as caught:
                Broker(data_dir=tmp_path)
            assert "move cursors away" in str(caught.value.hint)
    (tmp_path / FILE).unlink()
    Broker(data_dir=tmp_path).close()


def test_every_cut_of_the_file_is_noticed(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        filled(broker, "orders")
        broker.cursors.advance("archive", {"orders": 2}, 1_000, holds=True)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:length])
        with pytest.raises(CorruptLog):
            module.load("data", (tmp_path / FILE).read_bytes())
    for place in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CorruptLog):
            module.load("data", (tmp_path / FILE).read_bytes())


def test_the_file_is_written_only_when_something_is_new(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        filled(broker, "orders")
        broker.cursors.advance("archive", {"orders": 2}, clock.now())
        written = (tmp_path / FILE).stat().st_ino
        clock.advance(1)
        broker.cursors.advance("archive", {"orders": 2}, clock.now())
        assert broker.cursors.get("archive").updated_at == clock.now()
        assert (tmp_path / FILE).stat().st_ino == written
        broker.cursors.advance("archive", {"orders": 3}, clock.now())
        assert (tmp_path / FILE).stat().st_ino != written


def test_a_disk_that_refuses_is_told_and_the_next_advance_writes_all(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Broker(clock=clock, data_dir=tmp_path) as broker:
        filled(broker, "orders")
        with monkeypatch.context() as patched:
            patched.setattr(sqlite, "replace_file", refuse)
            with pytest.raises(JournalUnavailable, match="No space left"):
                broker.cursors.advance("archive", {"orders": 1}, clock.now())
        broker.cursors.advance("other", {"orders": 2}, clock.now())
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        assert {cursor.name: cursor.offsets for cursor in broker.cursors.all()} == {
            "archive": {"orders": 1},
            "other": {"orders": 2},
        }


def test_many_readers_may_advance_at_once(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        filled(broker, "orders", count=50)

        def read(name: str) -> None:
            for offset in range(51):
                broker.cursors.advance(name, {"orders": offset}, offset)

        readers = [threading.Thread(target=read, args=(f"reader {number}",)) for number in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(30)
    with Broker(data_dir=tmp_path) as broker:
        assert [cursor.lag for cursor in broker.cursors.all()] == [{"orders": 0}] * 4


def test_a_closed_broker_takes_no_position(tmp_path: Path) -> None:
    broker = Broker(data_dir=tmp_path)
    filled(broker, "orders")
    broker.close()
    for offsets in ({"orders": 1}, {EVENTS: 0}, {}):
        with pytest.raises(BrokerClosed):
            broker.cursors.advance("archive", offsets, 0)


# ── what is held ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def later(broker: Broker, clock: ManualClock, seconds: float = 2 * WEEK) -> None:
    """Let time pass, and retention look."""
    clock.advance(seconds)
    queue = MessageQueue(broker=broker)
    queue.publish("tick", [Message(b"tick")])
    for _ in range(3):
        broker.sync()


def test_what_a_holding_cursor_has_not_read_stays(broker: Broker, clock: ManualClock) -> None:
    filled(broker, "orders", "users", "tick", count=200)
    broker.cursors.advance("archive", {"orders": 128, EVENTS: 300}, clock.now(), holds=True)
    broker.cursors.advance("looker", {"users": 0, EVENTS: 0}, clock.now())
    later(broker, clock)
    if broker.is_durable:
        broker.journal.checkpoint(broker.catalog.state())
        later(broker, clock)

    view = BrokerLog(broker)
    assert view.span("orders").earliest == 128
    assert view.span("users").earliest == 200, "a cursor that does not hold, and streams that are not named, keep nothing"
    assert view.event_range()[0] <= 300
    assert view.event_range()[0] > 0
    broker.cursors.advance("archive", {"orders": 200, EVENTS: view.event_range()[1]}, clock.now())
    later(broker, clock)
    assert view.span("orders").earliest == 200
    assert view.event_range()[0] > 300
    broker.cursors.advance("archive", {"tick": view.span("tick").earliest}, clock.now(), holds=False)
    later(broker, clock)
    assert view.span("tick").earliest >= 200


def test_the_first_look_after_a_restart_already_knows_what_is_held(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        filled(broker, "orders", "tick", count=10)
        broker.cursors.advance("archive", {"orders": 4, EVENTS: 5}, clock.now(), holds=True)
    clock.advance(2 * WEEK)
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        later(broker, clock, 3_600)  # until then the clock may be wrong
        assert BrokerLog(broker).span("orders").earliest == 4
        assert broker.journal.event_range()[0] <= 5
        broker.cursors.delete("archive")
        later(broker, clock, 100)
        assert BrokerLog(broker).span("orders").earliest == 10
        assert broker.journal.event_range()[0] > 5


def test_in_memory_nothing_that_is_held_is_shed(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 10_000)
    monkeypatch.setattr(memory, "EVENT_RECORDS", 100)
    monkeypatch.setattr(memory, "SLACK", 10)
    with Broker(clock=clock) as broker:
        queue = filled(broker, "orders", "users", count=0)
        broker.cursors.advance("archive", {"orders": 0, EVENTS: 1}, clock.now(), holds=True)
        for _ in range(300):
            for topic in ("orders", "users"):
                queue.publish(topic, [Message(b"x" * 100)])
        view = BrokerLog(broker)
        assert view.span("orders").earliest == 0
        assert view.span("users").earliest > 0
        assert view.event_range() == (1, 602)
        broker.cursors.delete("archive")
        for _ in range(100):
            queue.publish("orders", [Message(b"x" * 100)])
        assert view.span("orders").earliest > 0
        assert view.event_range()[0] > 1
