"""What a log holds, by name: the same of a live broker and of its data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import catalog, retention
from penstock.broker.log_view import BrokerLog, LogView, kind_of, offsets_at, offsets_for, select, sizes_after
from penstock.errors import BrokerClosed, InvalidArgument, OutOfRange, PenstockError, QueueNotFound, TopicNotFound
from penstock.journal.core import checkpoint
from penstock.journal.core.outline import EVENTS, stream_name
from penstock.log.directory import DirectoryLog
from penstock.testing import ManualClock

SECOND = 1_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["durable", pytest.param("memory", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    with Broker(clock=clock, data_dir=tmp_path / "data" if request.param == "durable" else None) as broker:
        yield broker


def views(broker: Broker, stack: ExitStack) -> list[LogView]:
    """The log of a broker, and, where there is one, that of its data directory."""
    found: list[LogView] = [BrokerLog(broker)]
    if broker.is_durable:
        broker.sync()
        found.append(stack.enter_context(DirectoryLog(broker.journal.path))._view)  # type: ignore[attr-defined]
    return found


def test_every_stream_has_a_name_of_its_own_in_the_log(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [
        ("topic", "orders", "orders"),
        ("queue", "orders", "queue:orders"),
        ("topic", "queue:orders", "topic:queue:orders"),
        ("topic", "topic:orders", "topic:topic:orders"),
        ("queue", "topic:orders", "queue:topic:orders"),
        ("topic", "a:b", "a:b"),
        ("queue", "x" * 1_024, "queue:" + "x" * 1_024),
    ]
    for kind, name, shown in rows:
        with subtests.test(kind=kind, name=name):
            assert stream_name(kind, name) == shown
            assert kind_of(shown) == (kind, name)


def test_what_cannot_be_a_name_is_refused(broker: Broker, subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["", "x" * 1_025, "a\nb", "queue:a\0", "\ud800", 7, None, b"orders"]
    for name in rows:
        with subtests.test(name=name), ExitStack() as stack:
            for view in views(broker, stack):
                with pytest.raises(InvalidArgument, match="stream"):
                    view.span(name)


def test_streams_are_selected_by_name_or_pattern(broker: Broker) -> None:
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    for name in ("orders", "order-lines", "users"):
        queue.register_topic(name)
    queues.create("orders")
    queue.publish("orders", [Message(b"x"), Message(b"y")])
    with ExitStack() as stack:
        for view in views(broker, stack):
            assert [span.stream for span in select(view)] == ["order-lines", "orders", "queue:orders", "users"]
            assert [span.stream for span in select(view, pattern="order.*")] == ["order-lines", "orders"]
            assert [span.stream for span in select(view, pattern="rder")] == []
            assert [span.stream for span in select(view, ["users", "orders", "users"])] == ["users", "orders"]
            [span] = select(view, ["topic:orders"])
            assert (span.stream, span.earliest, span.latest, span.published_at) == ("orders", 0, 2, broker.clock.now())
            with pytest.raises(TopicNotFound, match="missing"):
                select(view, ["orders", "missing"])
            with pytest.raises(QueueNotFound, match="users"):
                select(view, ["queue:users"])
            for wrong in ("(", "[a", "(?=a)b", r"(a)\1", "\ud800"):
                with pytest.raises(InvalidArgument, match="pattern"):
                    select(view, pattern=wrong)
            with pytest.raises(InvalidArgument, match="both"):
                select(view, ["orders"], "orders")


def test_instants_are_turned_into_offsets(broker: Broker, clock: ManualClock) -> None:
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_topic("empty")
    start = clock.now()
    for _ in range(20):
        queue.publish("orders", [Message(b"x")] * 3)
        clock.advance(1)
    with ExitStack() as stack:
        for view in views(broker, stack):
            for second in range(-1, 22):
                for step, extra in ((-1, 0), (0, 0), (1, 1)):
                    found = offsets_at(view, {"orders": start + second * SECOND + step, "empty": start})
                    assert found == {"orders": 3 * min(max(second + extra, 0), 20), "empty": 0}
            # Two topics were made at the first instant, before the first messages.
            assert offsets_at(view, {EVENTS: start + SECOND}) == {EVENTS: 5}
            assert offsets_at(view, {EVENTS: start - 1}) == {EVENTS: 0}
            assert offsets_at(view, {EVENTS: start + 99 * SECOND}) == {EVENTS: 62}


def test_bytes_are_shared_fairly(broker: Broker) -> None:
    queue = MessageQueue(broker=broker)
    for topic in ("large", "small", "empty"):
        queue.register_topic(topic)
    for _ in range(10):
        queue.publish("large", [Message(b"x" * 100)] * 100)
        queue.publish("small", [Message(b"x" * 10)] * 2)
    starts = {"large": 0, "small": 0, "empty": 0}
    with ExitStack() as stack:
        for view in views(broker, stack):
            everything = {"large": 1_000, "small": 20, "empty": 0}
            assert offsets_for(view, starts, 1 << 40) == everything
            assert offsets_for(view, starts, 100_200) == everything
            for limit in (50_000, 20_000, 5_000, 1_000):
                found = offsets_for(view, starts, limit)
                assert found["small"] == 20, "what is small enough comes as a whole"
                assert limit * 0.5 <= found["large"] * 100 <= limit
            assert offsets_for(view, starts, 1) == {"large": 1, "small": 1, "empty": 0}, "never stuck"
            assert offsets_for(view, {"large": 999, "small": 20}, 1) == {"large": 1_000, "small": 20}
            assert offsets_for(view, {}, 5) == {}
            found = offsets_for(view, {EVENTS: 3, "large": 0}, 2_000)
            assert 5 <= found[EVENTS] - 3 <= 15
            assert 5 <= found["large"] <= 15


def test_sizes_are_estimated_from_the_first_chunks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.log_view.SIZED_CHUNKS", 4)
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_topic("empty")
    for _ in range(10):
        queue.publish("orders", [Message(b"x" * 100)] * 10)
    with ExitStack() as stack:
        for view in views(broker, stack):
            found = sizes_after(view, {"orders": 15, "empty": 0, EVENTS: 3})
            assert 8_500 <= found["orders"] <= 17_000
            assert found["empty"] == 0
            assert found[EVENTS] == 100 * (view.event_range()[1] - 3)
            assert sizes_after(view, {"orders": 100}) == {"orders": 0}
            with pytest.raises(TopicNotFound):
                sizes_after(view, {"missing": 0})


def test_a_question_about_very_many_chunks_is_answered_in_part(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.log_view.MAX_STEPS", 10)
    queue = MessageQueue(broker=broker)
    for topic in ("a", "b"):
        queue.register_topic(topic)
        for _ in range(20):
            queue.publish(topic, [Message(b"x")])
    with ExitStack() as stack:
        for view in views(broker, stack):
            answers = [{"a": 0, "b": 0}]
            while answers[-1] != {"a": 20, "b": 20}:
                assert len(answers) < 10
                answers.append(offsets_for(view, answers[-1], 1 << 50))
            if broker.is_durable:  # a chunk for each publish
                assert answers[1:] == [{"a": 5 * turn, "b": 5 * turn} for turn in range(1, 5)]


def test_a_start_that_makes_no_sense_is_refused(broker: Broker, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, int, type[PenstockError]]] = [
        ({"orders": 2}, 10, OutOfRange),
        ({"orders": -1}, 10, OutOfRange),
        ({"orders": "0"}, 10, InvalidArgument),
        ({"orders": 0}, 0, InvalidArgument),
        ({"orders": 0}, True, InvalidArgument),
        ({"missing": 0}, 10, TopicNotFound),
        ({EVENTS: 99}, 10, OutOfRange),
    ]
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.publish("orders", [Message(b"x")])
    for starts, max_bytes, error in rows:
        with subtests.test(starts=starts, max_bytes=max_bytes), ExitStack() as stack:
            for view in views(broker, stack):
                with pytest.raises(error):
                    offsets_for(view, starts, max_bytes)


def test_names_of_the_departed_survive_checkpoints_and_leave_with_their_events(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queues.create("tasks")
        queues.delete("tasks")
        queue.unregister_topic("orders")
        queue.unregister_subscription("billing")
        names = BrokerLog(broker).names()
        assert (names.streams, names.queues, names.stream_of) == (
            {1: "orders", 3: "queue:tasks"},
            {2: "billing", 3: "tasks"},
            {2: 1, 3: 3},
        )
    with Broker(clock=clock, data_dir=tmp_path) as broker, DirectoryLog(tmp_path) as log:
        assert BrokerLog(broker).names() == names
        assert log._view.names() == names
        queue = MessageQueue(broker=broker)
        queue.register_topic("tick")
        for _ in range(3):
            clock.advance(retention.RETENTION // SECOND)
            broker.journal.checkpoint(broker.catalog.state())
            queue.publish("tick", [Message(b"x")])
            broker.sync()
        assert broker.journal.event_range()[0] > 0
        assert BrokerLog(broker).names().streams == {4: "tick"}


def test_no_more_departed_are_remembered_than_fit(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_DELETED_RESOURCES", 3)
    with Broker(clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        for number in range(5):
            queue.register_topic(f"t{number}")
            queue.unregister_topic(f"t{number}")
        assert isinstance(broker.catalog, catalog.Catalog)
        assert BrokerLog(broker).names().streams == {3: "t2", 4: "t3", 5: "t4"}


def test_a_closed_broker_has_no_log(broker: Broker) -> None:
    broker.close()
    with pytest.raises(BrokerClosed):
        BrokerLog(broker).spans()
