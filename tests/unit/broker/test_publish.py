"""The one publish path: what is checked, the limits of each API, and what schemas and transforms do to a publish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue
from penstock.broker import publish as publishing
from penstock.broker import topic_rules
from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.keyed_threads import KeyedThreads
from penstock.broker.publish import publish, publish_async, publish_then
from penstock.broker.writer import DROPPED, Ticket
from penstock.errors import (
    BrokerClosed,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    TopicNotFound,
    TransformFailed,
    Unavailable,
)
from penstock.google import messages
from penstock.google.publisher import PUBLISH
from penstock.values.message import StoredMessage, accept, accept_typed
from penstock.values.stored_forms import SCHEMA_PREFIX
from tests.topic_rules import AVRO, SCHEMA, make_topics, schema_body, topic_spec

MIB = 1024 * 1024
ATTRIBUTES: dict[str, dict[str, str]] = {
    "100 attributes": {f"k{number}": "v" for number in range(100)},
    "101 attributes": {f"k{number}": "v" for number in range(101)},
}

TAKEN: list[tuple[str, list[Message]]] = [
    ("ga", [Message(b"x")]),
    ("ga", [Message(attributes={"a": ""})]),
    ("ga", [Message(b"x")] * 1000),
    ("a", [Message(b"x")] * 1001),
    ("ga", [Message(b"x", ordering_key="k" * 1024)] * 2),
    ("a", [Message(b"x", ordering_key="a"), Message(b"x", ordering_key="b"), Message(b"x")]),
    ("ga", [Message(attributes=ATTRIBUTES["100 attributes"])]),
    ("a", [Message(attributes=ATTRIBUTES["101 attributes"])]),
    ("ga", [Message(attributes={"k" * 256: "v" * 1024})]),
    ("ga", [Message(attributes={"é" * 128: "한" * 341})]),
    ("g", [Message(attributes={"googclient_traceparent": "00-1-2-01"})]),
    ("ga", [Message(attributes={"Goog": "x", "goo": "y"})]),
    ("ga", [Message(b"x" * (10 * MIB))]),
    ("a", [Message(bytearray(b"x"))]),  # type: ignore[arg-type]  # it is taken all the same
    ("a", [Message(b"x", priority=9, ttl=1, deliver_at=1, producer_id="p", sequence=0)]),
]

REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("ga", [], InvalidArgument, "messages is empty"),
    ("a", Message(b"x"), InvalidArgument, "a list of Message"),
    ("a", "text", InvalidArgument, "a list of Message"),
    ("a", None, InvalidArgument, "a list of Message"),
    ("a", [b"x"], InvalidArgument, r"messages\[0\]"),
    ("g", [Message(b"x")] * 1001, InvalidArgument, "messages has 1001 entries"),
    ("ga", [Message()], InvalidArgument, r"messages\[0\] is empty"),
    ("ga", [Message(b"x"), Message(ordering_key="")], InvalidArgument, r"messages\[1\] is empty"),
    ("ga", [Message(ordering_key="k")], InvalidArgument, r"messages\[0\] is empty"),
    ("g", [Message(attributes=ATTRIBUTES["101 attributes"])], InvalidArgument, "attributes has 101 entries"),
    ("ga", [Message(attributes={"k" * 257: "v"})], InvalidArgument, "is 257 bytes long, expected at most 256"),
    ("ga", [Message(attributes={"é" * 128 + "x": "v"})], InvalidArgument, "is 257 bytes long"),
    ("ga", [Message(attributes={"k": "v" * 1025})], InvalidArgument, r"messages\[0\].attributes\['k'\] is 1025 bytes"),
    ("ga", [Message(attributes={"k": "한" * 342})], InvalidArgument, "is 1026 bytes long"),
    ("ga", [Message(attributes={"": "v"})], InvalidArgument, r"key of messages\[0\].attributes is ''"),
    ("ga", [Message(attributes={"goog": "v"})], InvalidArgument, "does not start with 'goog'"),
    ("ga", [Message(attributes={"googlable": "v"})], InvalidArgument, "does not start with 'goog'"),
    ("a", [Message(attributes={"googclient_x": "v"})], InvalidArgument, "does not start with 'goog'"),
    ("a", [Message(attributes={"a": 1})], InvalidArgument, "a string"),  # type: ignore[dict-item]  # what a test of types is for
    ("ga", [Message(b"x", ordering_key="k" * 1025)], InvalidArgument, "ordering_key is 1025 bytes long"),
    ("ga", [Message(b"x" * (10 * MIB), ordering_key="k")], InvalidArgument, "10485761 bytes"),
    ("a", [Message("x")], InvalidArgument, "bytes"),  # type: ignore[arg-type]  # what a test of types is for
    ("a", [Message(b"x", priority=10)], InvalidArgument, "priority"),
    ("a", [Message(b"x", ttl=0)], InvalidArgument, "ttl"),
    ("a", [Message(b"x", producer_id="p")], InvalidArgument, "sequence"),
    *[
        ("g", [Message(b"x", ordering_key=key) for key in keys], FailedPrecondition, "expected one ordering key")
        for keys in (("a", "b"), ("a", ""), ("", "b"), ("a", "a", "b"))
    ],
]


def accepted(api: str, given: Any, request_bytes: int = 0) -> list[StoredMessage]:
    """What `given` becomes: as protobuf messages of Google's API ("g"), or as it is ("a"), as all others take it."""
    if api == "a":
        return accept(given, 1).messages
    fields = ("data", "attributes", "ordering_key")
    request = messages.PublishRequest(messages=[{name: getattr(one, name) for name in fields} for one in given])
    return accept_typed(request.messages, 1, PUBLISH, request_bytes).messages


def test_what_each_api_takes(subtests: pytest.Subtests) -> None:
    for number, (apis, given) in enumerate(TAKEN):
        for api in apis:
            with subtests.test(number=number, api=api):
                assert len(accepted(api, given)) == len(given)


def test_what_each_api_refuses(subtests: pytest.Subtests) -> None:
    for number, (apis, given, kind, problem) in enumerate(REFUSED):
        for api in apis:
            with subtests.test(number=number, api=api), pytest.raises(kind, match=problem):
                accepted(api, given)


def test_the_rest_of_the_table_is_not_forgotten() -> None:
    """What one API takes and the other refuses stands in both tables."""
    only = [(api, given) for apis, given in TAKEN if len(apis) == 1 for api in apis]
    for api, given in only:
        if type(given[0].data) is bytes and given[0].ttl is None:  # Google's API has neither other types nor more fields
            with pytest.raises((InvalidArgument, FailedPrecondition)):
                accepted("a" if api == "g" else "g", given)


def test_a_request_of_google_has_room_for_a_message_of_10_megabytes_and_no_more() -> None:
    most = 10 * MIB + 64 * 1024
    accepted("g", [Message(b"x")], most)
    with pytest.raises(InvalidArgument, match=f"{most + 1} bytes long"):
        accepted("g", [Message(b"x")], most + 1)


def test_messages_of_protobuf_are_checked_as_they_are() -> None:
    first, second = accepted("g", [Message(b"x"), Message(attributes={"a": "b"})])
    assert (first.data, first.attributes, first.size) == (b"x", None, 1)
    assert (second.data, second.attributes, second.size) == (b"", {"a": "b"}, 2)
    assert type(second.attributes) is dict


# ── schemas and transforms, however one waits ────────────────────────────────────────────────────────────────────────────

Publish = Callable[[Broker, str, list[Message]], list[str]]


def waiting(broker: Broker, topic: str, given: list[Message]) -> list[str]:
    return publish(broker, Catalog.topic, topic, given).message_ids()


def awaiting(broker: Broker, topic: str, given: list[Message]) -> list[str]:
    async def run() -> list[str]:
        aio = AsyncBroker(broker)
        try:
            async with asyncio.timeout(30):
                return (await publish_async(aio, Catalog.topic, topic, given)).message_ids()
        finally:
            aio.close()

    return asyncio.run(run())


def called_back(broker: Broker, topic: str, given: list[Message]) -> list[str]:
    tickets: list[Ticket] = []
    done = threading.Event()

    def told(ticket: Ticket) -> None:
        tickets.append(ticket)
        done.set()

    publish_then(broker, Catalog.topic, topic, given, told)
    assert done.wait(30)
    if tickets[0].error is not None:
        raise tickets[0].error
    return tickets[0].placed().message_ids()


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path if request.param == "disk" else None) as broker:
        make_topics(broker)
        topics = MessageQueue(broker=broker)
        for topic in ("checked", "scripted", "plain"):
            topics.register_subscription(f"{topic}-sub", topic)
        yield broker


def stored(broker: Broker, topic: str) -> list[bytes]:
    return [message.data for message in MessageQueue(broker=broker).pull(f"{topic}-sub", 100)]


every_way = pytest.mark.parametrize("publish_by", [waiting, awaiting, called_back])


@every_way
def test_messages_have_to_fit_the_schema_all_or_none(broker: Broker, publish_by: Publish) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        publish_by(broker, "checked", [Message(b'{"id": "x"}'), Message(b"{}")])
    [name] = publish_by(broker, "checked", [Message(b'{"id": "x"}', {"mine": "1"})])
    [message] = MessageQueue(broker=broker).pull("checked-sub", 10)
    assert message.id == name
    assert message.attributes == {
        "mine": "1",
        "googclient_schemaencoding": "JSON",
        "googclient_schemaname": SCHEMA,
        "googclient_schemarevisionid": "00000000",
    }


@every_way
def test_a_transform_changes_drops_and_refuses(broker: Broker, publish_by: Publish) -> None:
    with pytest.raises(TransformFailed):
        publish_by(broker, "scripted", [Message(b"a"), Message(b"fail")])
    ids = publish_by(broker, "scripted", [Message(b"drop"), Message(b"a"), Message(b"drop"), Message(b"b"), Message(b"drop")])
    assert [one == DROPPED for one in ids] == [True, False, True, False, True]
    assert publish_by(broker, "scripted", [Message(b"drop")]) == [DROPPED]
    pulled = MessageQueue(broker=broker).pull("scripted-sub", 10)
    assert [(one.id, one.data) for one in pulled] == [(ids[1], b"A"), (ids[3], b"B")]


@every_way
def test_a_topic_whose_schema_was_deleted_takes_nothing(broker: Broker, publish_by: Publish) -> None:
    broker.change(lambda catalog, now: catalog.drop_document(f"{SCHEMA_PREFIX}{SCHEMA}", now))
    with pytest.raises(FailedPrecondition, match="deleted"):
        publish_by(broker, "checked", [Message(b'{"id": "x"}')])


@every_way
def test_the_newest_revision_that_fits_is_named(broker: Broker, publish_by: Publish) -> None:
    body = schema_body(AVRO, AVRO.replace("]}", ', {"name": "n", "type": "int"}]}'))
    broker.change(lambda catalog, now: catalog.keep_document(f"{SCHEMA_PREFIX}{SCHEMA}", body, now))
    publish_by(broker, "checked", [Message(b'{"id": "x"}'), Message(b'{"id": "x", "n": 1}')])
    pulled = MessageQueue(broker=broker).pull("checked-sub", 10)
    assert [one.attributes["googclient_schemarevisionid"] for one in pulled] == ["00000000", "00000001"]


@every_way
def test_what_has_no_rules_needs_no_thread(broker: Broker, publish_by: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KeyedThreads, "start")
    publish_by(broker, "plain", [Message(b"fail")])
    assert stored(broker, "plain") == [b"fail"]


@every_way
def test_a_closed_broker_or_a_missing_topic_is_refused(broker: Broker, publish_by: Publish) -> None:
    with pytest.raises(TopicNotFound):
        publish_by(broker, "missing", [Message(b"x")])
    broker.close()
    for topic in ("plain", "scripted"):
        with pytest.raises(BrokerClosed):
            publish_by(broker, topic, [Message(b"x")])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(it has begun, let it end) for the messages that say `slow`."""
    begun, end = threading.Event(), threading.Event()
    passed = topic_rules._passed

    def slow(form: Any, revisions: Any, given: Any) -> Any:
        if any(message.data == b"slow" for message in given):
            begun.set()
            assert end.wait(30)
        return passed(form, revisions, given)

    monkeypatch.setattr(topic_rules, "_passed", slow)
    yield begun, end
    end.set()


def test_nothing_overtakes_what_is_looked_at(broker: Broker, held: tuple[threading.Event, threading.Event]) -> None:
    """Not even when the topic has lost its transforms since."""
    begun, end = held
    done: list[Ticket] = []
    both = threading.Semaphore(0)

    def told(ticket: Ticket) -> None:
        done.append(ticket)
        both.release()

    publish_then(broker, Catalog.topic, "scripted", [Message(b"slow")], told)
    assert begun.wait(30)
    spec = topic_spec(name="scripted")
    broker.change(lambda catalog, now: catalog.update_topic("scripted", spec, None, now))
    publish_then(broker, Catalog.topic, "scripted", [Message(b"next")], told)
    waiting(broker, "plain", [Message(b"x")])
    assert not done
    end.set()
    assert both.acquire(timeout=30)
    assert both.acquire(timeout=30)
    assert stored(broker, "scripted") == [b"SLOW", b"next"]


@pytest.mark.parametrize("publish_by", [waiting, awaiting])
def test_a_turn_that_does_not_come_in_time_is_refused(
    broker: Broker, held: tuple[threading.Event, threading.Event], publish_by: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end = held
    monkeypatch.setattr(publishing, "MAX_WAIT", 0.01)
    done = threading.Event()
    publish_then(broker, Catalog.topic, "scripted", [Message(b"slow")], lambda _: done.set())
    assert begun.wait(30)
    with pytest.raises(ResourceExhausted, match="earlier messages of this topic"):
        publish_by(broker, "scripted", [Message(b"late")])
    end.set()
    assert done.wait(30)
    assert stored(broker, "scripted") == [b"SLOW"]


def test_a_caller_that_is_cancelled_while_it_waits_publishes_nothing(
    broker: Broker, held: tuple[threading.Event, threading.Event]
) -> None:
    begun, end = held

    async def run() -> None:
        aio = AsyncBroker(broker)
        first = asyncio.create_task(publish_async(aio, Catalog.topic, "scripted", [Message(b"slow")]))
        assert await asyncio.to_thread(begun.wait, 30)
        left = asyncio.create_task(publish_async(aio, Catalog.topic, "scripted", [Message(b"left")]))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        end.set()
        await first
        aio.close()

    asyncio.run(run())
    waiting(broker, "scripted", [Message(b"last")])
    assert stored(broker, "scripted") == [b"SLOW", b"LAST"]


@every_way
def test_a_fault_is_told_without_the_payload(
    broker: Broker, publish_by: Publish, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "a payload"

    def broken(*_: object) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(topic_rules, "_passed", broken)
    for _ in range(2):
        with pytest.raises(Unavailable):
            publish_by(broker, "checked", [Message(b"x")])
    assert "RuntimeError" in caplog.text
    assert secret not in caplog.text
