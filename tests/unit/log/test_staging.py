"""Staged writes: rows are checked like a publish, and published exactly once whatever happens on the way."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager
from penstock.durations import DAY, SECOND
from penstock.errors import (
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    JournalUnavailable,
    PartNotFound,
    QueueFull,
    ResourceExhausted,
    TopicNotFound,
    TransformFailed,
)
from penstock.journal.journal import Commit
from penstock.log import staged_part
from penstock.log.staging import StagingLimits
from penstock.log.write_ledger import PREFIX, REMEMBERED_FOR
from penstock.log.writes import CommitResult, Writes
from penstock.testing import ManualClock
from penstock.values.message import StoredMessage
from tests.topic_rules import SCRIPT, topic_spec
from tests.unit.log.desk import Desk, body_of, opened, rows

MIB = 1024 * 1024


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["durable", pytest.param("memory", marks=pytest.mark.long)])
def desk(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Desk]:
    with Broker(data_dir=tmp_path if request.param == "durable" else None, clock=clock) as broker:
        MessageQueue(broker=broker).register_topic("t")
        MessageQueue(broker=broker).register_topic("u")
        desk = Desk(broker)
        yield desk
        desk.writes.close()


def test_a_write_is_published_by_its_commit_and_only_then(desk: Desk) -> None:
    info = desk.stage("w", "p", rows(value=[b"a", b"b"]))

    assert (info.rows, info.streams) == (2, {"t": 2})
    assert desk.values() == []
    assert desk.commit("w", "p") == CommitResult(2, is_repeat=False)
    assert desk.values() == [b"a", b"b"]
    assert desk.files() == []
    assert desk.writes.listed() == []


def test_parts_are_published_in_the_order_of_the_commit(desk: Desk) -> None:
    for part in ("one", "two", "three"):
        desk.stage("w", part, rows(value=[f"{part} {n}" for n in range(3)]))

    desk.commit("w", "three", "one")

    assert desk.values() == [f"{part} {n}".encode() for part in ("three", "one") for n in range(3)]


def test_a_part_that_is_staged_again_replaces_the_one_before(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["old"] * 1000))
    desk.stage("w", "p", rows(value=["new"]))

    assert desk.writes.staging.bytes == desk.writes.staging.parts("w")["p"].bytes
    desk.commit("w", "p")
    assert desk.values() == [b"new"]
    assert desk.writes.staging.bytes == 0


def test_every_column_arrives(desk: Desk, clock: ManualClock) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    attributes = pa.array([[("a", "1"), ("b", "ä")], None, []], pa.map_(pa.string(), pa.string()))
    batch = rows(
        value=pa.array([b"\xff", b"x", b"y"]),
        key=["k", None, ""],
        attributes=attributes,
        priority=pa.array([9, None, 0], pa.int16()),
        ttl=pa.array([1.5, None, 60.0]),
        deliver_at=pa.array([None, at, None], pa.timestamp("ms", tz="Europe/Berlin")),
    )
    desk.stage("w", "p", batch)
    desk.commit("w", "p")

    stream = desk.broker.catalog.topic("t")
    found = [desk.broker.message(stream, offset) for offset in range(3)]
    now = clock.now()
    assert found == [
        StoredMessage(now, b"\xff", {"a": "1", "b": "ä"}, "k", 9, 7, expires_at=now + 1_500_000),
        StoredMessage(now, b"x", None, "", 5, 1, deliver_at=int(at.timestamp()) * SECOND),
        StoredMessage(now, b"y", None, "", 0, 1, expires_at=now + 60 * SECOND),
    ]


def test_values_come_in_many_types(desk: Desk, subtests: pytest.Subtests) -> None:
    table: list[pa.Array] = [
        pa.array(["a"]),
        pa.array([b"a"]),
        pa.array([b"a"], pa.large_binary()),
        pa.array(["a"], pa.large_string()),
        pa.array(["a"], pa.string_view()),
        pa.array([b"a"], pa.binary_view()),
        pa.array([b"a"], pa.binary(1)),
        pa.array(["a"]).dictionary_encode(),
    ]
    for value in table:
        with subtests.test(str(value.type)):
            name = str(value.type)
            MessageQueue(broker=desk.broker).register_topic(name)
            batch = rows(value=value, key=pa.array(["k"]).dictionary_encode(), priority=pa.nulls(1))
            desk.stage(name, "p", batch, stream=name)
            desk.commit(name, "p", query=name)

            assert desk.values(name) == [b"a"]


def test_each_row_may_name_its_stream(desk: Desk) -> None:
    QueueManager(broker=desk.broker).create("jobs", QueueConfig(default_priority=7, message_ttl=60))
    batch = rows(value=["1", "2", "3", "4"], stream=["u", None, "queue:jobs", "u"])

    info = desk.stage("w", "p", batch)
    desk.commit("w", "p")

    assert info.streams == {"u": 2, "t": 1, "queue:jobs": 1}
    assert (desk.values("t"), desk.values("u"), desk.values("queue:jobs")) == ([b"2"], [b"1", b"4"], [b"3"])
    job = QueueManager(broker=desk.broker).consume("jobs")
    assert job is not None
    assert (job.payload, job.priority, job.max_retries) == (b"3", 7, 3)
    stored = desk.broker.message(desk.broker.catalog.work_stream("jobs"), 0)
    assert stored is not None
    assert stored.expires_at == stored.publish_at + 60 * SECOND


TEXTS = pa.map_(pa.string(), pa.string())
HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("no value column", {"key": ["a"]}, "expected value among them"),
    ("unknown column", {"value": ["a"], "vaule": ["b"]}, "column 'vaule' is not known, expected some of value, key"),
    ("numbers as value", {"value": [1]}, "column 'value' is int64, expected binary or string"),
    ("null values only", {"value": pa.nulls(1)}, "column 'value' is null"),
    ("binary key", {"value": ["a"], "key": [b"k"]}, "column 'key' is binary, expected string"),
    ("text priority", {"value": ["a"], "priority": ["9"]}, "expected a whole number"),
    ("boolean priority", {"value": ["a"], "priority": [True]}, "column 'priority' is bool"),
    ("naive time", {"value": ["a"], "deliver_at": pa.array([1], pa.timestamp("us"))}, "expected timestamp with a time zone"),
    ("list of attributes", {"value": ["a"], "attributes": [["a"]]}, r"expected map<string, string>"),
    ("empty row", {"value": ["a", "", "b"]}, "row 1 is empty"),
    ("null row", {"value": ["a", None]}, "row 1 is empty"),
    ("priority 10", {"value": ["a", "b"], "priority": [1, 10]}, "row 1: priority is 10, expected a whole number from 0 to 9"),
    ("priority -1", {"value": ["a"], "priority": [-1]}, "row 0: priority is -1"),
    ("huge priority", {"value": ["a"], "priority": pa.array([2**64 - 1], pa.uint64())}, "column 'priority' cannot be read"),
    ("ttl 0", {"value": ["a"], "ttl": [0]}, "row 0: ttl is 0.0, expected seconds, more than 0"),
    ("ttl below 0", {"value": ["a", "b"], "ttl": [1.0, -1.0]}, "row 1: ttl is -1.0"),
    ("ttl nan", {"value": ["a"], "ttl": [float("nan")]}, "row 0: ttl is nan"),
    ("ttl for ever", {"value": ["a"], "ttl": [float("inf")]}, "row 0: ttl is inf"),
    ("deliver before 1970", {"value": ["a"], "deliver_at": pa.array([-1], pa.timestamp("us", tz="UTC"))}, "row 0: deliver_at"),
    ("long key", {"value": ["a", "b"], "key": ["k", "ä" * 513]}, "row 1: key is .*expected at most 1024 bytes"),
    ("large message", {"value": pa.array([b"a", bytes(10 * MIB + 1)])}, "row 1 is 10485761 bytes"),
    ("large with key", {"value": pa.array([bytes(10 * MIB)]), "key": ["k"]}, "row 0 is 10485761 bytes"),
    ("empty attribute key", {"value": ["a"], "attributes": pa.array([[("", "x")]], TEXTS)}, "row 0: an attribute key is ''"),
    ("reserved key", {"value": ["a"], "attributes": pa.array([[("google", "x")]], TEXTS)}, "row 0: .*reserved"),
    (
        "null attribute",
        {"value": list("ab"), "attributes": pa.array([None, [("k", None)]], TEXTS)},
        "row 1: attribute 'k'",
    ),
    ("long attribute", {"value": ["a"], "attributes": pa.array([[("k", "x" * 1025)]], TEXTS)}, "at most 1024 bytes"),
    ("long attribute key", {"value": ["a"], "attributes": pa.array([[("k" * 257, "x")]], TEXTS)}, "at most 256 bytes"),
    ("missing stream", {"value": ["a"], "stream": ["nope"]}, "Topic not found: nope"),
    ("missing queue", {"value": ["a"], "stream": ["queue:nope"]}, "Queue not found: nope"),
]


def test_what_a_publish_would_refuse_is_refused_when_it_is_staged(desk: Desk, subtests: pytest.Subtests) -> None:
    for title, columns, problem in HOSTILE:
        with subtests.test(title):
            with pytest.raises((InvalidArgument, TopicNotFound.__mro__[1]), match=problem):
                desk.stage("w", "p", rows(**columns))

            assert desk.files() == []
            assert desk.writes.staging.bytes == 0


def test_the_row_that_is_told_is_counted_over_all_batches(desk: Desk) -> None:
    good = rows(value=["a"] * 10, stream=["t", "u"] * 5)
    bad = rows(value=["a", "b", "c", ""], stream=["u", "t", "t", "u"])

    with pytest.raises(InvalidArgument, match="row 13 is empty"):
        desk.stage("w", "p", good, good.slice(1, 0), bad)


def test_a_row_without_a_stream_is_refused_when_there_is_none_for_all(desk: Desk) -> None:
    with pytest.raises(InvalidArgument, match="row 1 names no stream"):
        desk.stage("w", "p", rows(value=["a", "b"], stream=["t", None]), stream=None)
    with pytest.raises(InvalidArgument, match="row 0 names no stream"):
        desk.stage("w", "p", rows(value=["a"]), stream=None)


def test_a_key_is_no_part_of_a_work_queue(desk: Desk) -> None:
    QueueManager(broker=desk.broker).create("jobs")

    with pytest.raises(InvalidArgument, match="row 1: key is 'k', expected none"):
        desk.stage("w", "p", rows(value=["a", ""], key=[None, "k"]), stream="queue:jobs")
    desk.stage("w", "p", rows(value=["a", ""], key=[None, ""]), stream="queue:jobs")


WHOLE = body_of(rows(value=["a" * 100] * 100, key=["k"] * 100))


def test_what_is_no_arrow_stream_is_refused(desk: Desk, subtests: pytest.Subtests) -> None:
    bodies: list[tuple[str, bytes]] = [
        ("empty", b""),
        ("garbage", b"garbage"),
        ("only an end", b"\xff\xff\xff\xff\0\0\0\0"),
        ("zeros", bytes(1000)),
        ("no end", WHOLE[:-8]),
        ("half", WHOLE[: len(WHOLE) // 2]),
        ("half with an end", WHOLE[: len(WHOLE) // 2] + WHOLE[-8:]),
        ("a huge head", b"\xff\xff\xff\xff\xff\xff\xff\x7f" + WHOLE[8:]),
        ("a broken batch", WHOLE[:200] + b"\xff" * 64 + WHOLE[264:]),
    ]
    for title, body in bodies:
        with subtests.test(title):
            with pytest.raises(InvalidArgument, match=r"Arrow|column|row"):
                desk.send("w", "p", body)

            assert desk.files() == []


def test_bytes_of_a_body_that_were_changed_never_crash_the_check(desk: Desk) -> None:
    whole = body_of(rows(value=["a" * 10] * 20, key=["k"] * 20, attributes=pa.array([[("a", "b")]] * 20, TEXTS)))
    for place in range(0, len(whole) - 8, 7):
        body = bytearray(whole)
        body[place] ^= 0xFF
        with contextlib.suppress(InvalidArgument, TopicNotFound):
            desk.send("w", "p", bytes(body))


def test_a_repeated_batch_adds_nothing_whatever_is_staged_for_it(desk: Desk) -> None:
    desk.stage("w1", "p", rows(value=["a", "b"]))
    desk.commit("w1", "p", batch=3)
    desk.stage("w2", "p", rows(value=["other", "rows", "now"]))

    assert desk.commit("w2", "p", batch=3) == CommitResult(2, is_repeat=True)
    assert desk.commit("w2", "p", batch=1) == CommitResult(0, is_repeat=True)
    assert desk.values() == [b"a", b"b"]
    assert desk.files() == []


def test_a_note_is_kept_with_the_last_batch(desk: Desk) -> None:
    assert desk.commit("w", batch=1, note="first") == CommitResult(0, is_repeat=False, note="first")
    assert desk.commit("w", batch=1, note="second") == CommitResult(0, is_repeat=True, note="first")
    desk.stage("w2", "p", rows(value=["a"]))
    assert desk.commit("w2", "p", batch=2, note="of rows") == CommitResult(1, is_repeat=False, note="of rows")
    assert desk.commit("w2", batch=2) == CommitResult(1, is_repeat=True, note="of rows")
    assert desk.commit("w2", batch=1) == CommitResult(0, is_repeat=True)


def test_an_empty_batch_counts_too(desk: Desk) -> None:
    assert desk.commit("w", batch=4) == CommitResult(0, is_repeat=False)
    assert desk.commit("w", batch=4) == CommitResult(0, is_repeat=True)
    desk.stage("w", "p", rows(value=["a"]).slice(0, 0))
    assert desk.commit("w", "p", batch=5) == CommitResult(0, is_repeat=False)


def test_queries_do_not_know_each_other(desk: Desk) -> None:
    for query in ("one", "two", "other/one"):
        desk.stage("w", "p", rows(value=[query]))
        assert not desk.commit("w", "p", query=query).is_repeat

    assert desk.values() == [b"one", b"two", b"other/one"]


def test_a_part_that_is_not_there_fails_the_commit_before_anything_happens(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a"]))

    with pytest.raises(PartNotFound, match="q of write w"):
        desk.commit("w", "p", "q")
    with pytest.raises(InvalidArgument, match="each part once"):
        desk.commit("w", "p", "p")
    assert desk.values() == []
    assert desk.commit("w", "p") == CommitResult(1, is_repeat=False)


@pytest.mark.parametrize("query", ["q", None])
def test_a_commit_without_pyarrow_decides_nothing(tmp_path: Path, query: str | None) -> None:
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        desk.stage("w", "a", rows(value=["1"]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "pyarrow", None)
            for module in ("penstock.log.staged_part", "penstock.log.arrow_rows"):
                patch.delitem(sys.modules, module)
                patch.delattr(module)
            with pytest.raises(ImportError):
                desk.commit("w", "a", query=query)
        assert not broker.catalog.documents
        desk.writes.close()
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        assert desk.values() == []
        assert desk.commit("w", "a", query=query) == CommitResult(1, is_repeat=False)
        assert desk.values() == [b"1"]
        desk.writes.close()


def test_a_stream_that_is_deleted_before_the_commit_fails_it_as_a_whole(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a", "b"], stream=["t", "u"]))
    MessageQueue(broker=desk.broker).unregister_topic("u")

    with pytest.raises(TopicNotFound, match="u"):
        desk.commit("w", "p")
    assert desk.values() == []


def test_a_queue_without_room_for_all_rows_refuses_the_commit(desk: Desk) -> None:
    queues = QueueManager(broker=desk.broker)
    queues.create("jobs", QueueConfig(max_depth=3))
    queues.publish("jobs", "first")
    desk.stage("w", "p", rows(value=["a", "b", "c"]), stream="queue:jobs")

    with pytest.raises(QueueFull):
        desk.commit("w", "p")
    queues.ack("jobs", queues.consume_many("jobs")[0].message_id)
    assert desk.commit("w", "p") == CommitResult(3, is_repeat=False)


def test_an_aborted_write_is_gone(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a"]))
    desk.writes.abort("w")
    desk.writes.abort("w")

    assert desk.files() == []
    with pytest.raises(PartNotFound):
        desk.commit("w", "p")


def test_an_upload_that_ends_in_the_middle_leaves_nothing(desk: Desk) -> None:
    with desk.writes.staging.upload("w", "p") as upload:
        upload.write(WHOLE[:100])
        assert desk.writes.staging.bytes == 100

    assert desk.files() == []
    assert desk.writes.staging.bytes == 0


def test_what_is_staged_is_limited(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        MessageQueue(broker=broker).register_topic("t")
        size = len(WHOLE)
        desk = Desk(broker, limits=StagingLimits(max_part_bytes=size + 200, max_bytes=3 * size - 1, max_writes=2))
        desk.send("w1", "p", WHOLE)
        desk.send("w2", "p", WHOLE)

        with pytest.raises(ResourceExhausted, match="2 writes are staged"):
            desk.send("w3", "p", WHOLE)
        with pytest.raises(ResourceExhausted, match="bytes are staged"):
            desk.send("w2", "q", WHOLE)
        with pytest.raises(InvalidArgument, match="the part is larger than"):
            desk.send("w2", "q", WHOLE + bytes(300))
        desk.commit("w1", "p")
        desk.send("w3", "p", WHOLE)
        desk.writes.close()


def test_a_day_after_its_last_touch_a_write_is_removed(desk: Desk, clock: ManualClock) -> None:
    desk.stage("old", "p", rows(value=["a"]))
    clock.advance(DAY // SECOND - 1)
    desk.stage("new", "p", rows(value=["b"]))
    desk.writes.tidy()
    assert [write.write for write, _ in desk.writes.listed()] == ["old", "new"]

    clock.advance(1)
    desk.writes.tidy()

    assert [write.write for write, _ in desk.writes.listed()] == ["new"]
    assert desk.files() == ["_/new/p.arrow"]


def test_a_query_is_forgotten_after_its_time(desk: Desk, clock: ManualClock) -> None:
    desk.commit("w", query="old")
    clock.advance(REMEMBERED_FOR // SECOND - 1)
    desk.commit("w", query="new")
    clock.advance(1)
    desk.writes.tidy()

    assert [name for name in desk.broker.catalog.documents if name.startswith(PREFIX)] == ["writes/new"]


def test_a_write_without_a_query_leaves_no_entry(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.writes.MAX_QUERIES", 1)
    desk.commit("w", query="named")
    for number in range(3):
        desk.stage(f"w{number}", "p", rows(value=[str(number)]))
        assert desk.commit(f"w{number}", "p", query=None) == CommitResult(1, is_repeat=False)
        assert desk.commit(f"w{number}", "p", query=None) == CommitResult(1, is_repeat=True), "its answer was lost"
    desk.stage("w0", "p", rows(value=["again"]))
    assert desk.commit("w0", "p", query=None) == CommitResult(1, is_repeat=False), "another write of the same name"
    assert desk.commit("nothing", query=None) == CommitResult(0, is_repeat=False)

    assert desk.values() == [b"0", b"1", b"2", b"again"]
    assert [name for name in desk.broker.catalog.documents if name.startswith(PREFIX)] == ["writes/named"]
    with pytest.raises(PartNotFound):
        desk.commit("unknown", "p", query=None)


def test_a_restart_finds_what_was_staged_and_removes_what_is_too_old(tmp_path: Path, clock: ManualClock) -> None:
    with Broker(data_dir=tmp_path, clock=clock) as broker:
        MessageQueue(broker=broker).register_topic("t")
        desk = Desk(broker)
        desk.stage("old", "p", rows(value=["a"]))
        clock.advance(DAY // SECOND)
        desk.stage("p1/new", "p", rows(value=["b"]))
        (tmp_path / "staged" / "p1" / "new" / "q.1.part").write_bytes(b"half")
        size = desk.writes.staging.parts("p1/new")["p"].bytes
        desk.writes.close()
    with Broker(data_dir=tmp_path, clock=clock) as broker:
        desk = Desk(broker)
        desk.writes.tidy()

        assert [write.write for write, _ in desk.writes.listed()] == ["p1/new"]
        assert desk.writes.staging.bytes == size
        assert desk.commit("p1/new", "p") == CommitResult(1, is_repeat=False)
        desk.writes.close()


def test_a_damaged_part_is_found_at_the_start(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        MessageQueue(broker=broker).register_topic("t")
        desk = Desk(broker)
        desk.stage("w", "p", rows(value=["a"]))
        desk.writes.close()
        path = tmp_path / "staged" / "_" / "w" / "p.arrow"
        path.write_bytes(path.read_bytes()[:-1])

        with pytest.raises(CorruptLog, match=r"p\.arrow"):
            Writes(broker)


def test_rules_of_a_topic_hold_for_staged_rows(desk: Desk) -> None:
    spec = topic_spec(code=SCRIPT, name="u")
    desk.broker.change(lambda catalog, now: catalog.update_topic("u", spec, None, now))
    batch = rows(value=["aa", "drop", "cc", "dd"], stream=["u", "u", "t", "u"], ttl=[9.0, 9.0, None, None])

    assert desk.stage("w", "p", batch).streams == {"u": 2, "t": 1}
    with pytest.raises(TransformFailed):
        desk.stage("w", "q", rows(value=["fail"]), stream="u")
    assert desk.commit("w", "p") == CommitResult(3, is_repeat=False)
    assert (desk.values("u"), desk.values("t")) == ([b"AA", b"DD"], [b"cc"])
    first = desk.broker.message(desk.broker.catalog.topic("u"), 0)
    assert first is not None
    assert first.expires_at == first.publish_at + 9 * SECOND


def test_large_messages_go_in_small_slices(desk: Desk) -> None:
    values = [bytes([n]) * (3 * MIB) for n in range(8)]
    desk.stage("w", "p", rows(value=pa.array(values)))
    desk.commit("w", "p")

    assert desk.values() == values


# ── exactly once ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_part, "SLICE_ROWS", 10)


def staged(desk: Desk, write: str) -> dict[str, list[bytes]]:
    """Three parts that go to two topics; returns what must be where."""
    wanted: dict[str, list[bytes]] = {"t": [], "u": []}
    for part in range(3):
        streams = ["t" if part == 0 or n % 3 else "u" for n in range(23)]
        values = [f"{write} {part} {n}" for n in range(23)]
        batch = rows(value=values, stream=streams)
        desk.stage(write, str(part), batch.slice(0, 4), batch.slice(4, 15), batch.slice(19))
        for stream, value in zip(streams, values, strict=True):
            wanted[stream].append(value.encode())
    return wanted


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("query", ["q", None])
def test_a_crash_between_any_two_commits_of_the_journal_loses_and_doubles_nothing(tmp_path: Path, query: str | None) -> None:
    copies: list[Path] = []
    with opened(tmp_path / "log") as broker:
        desk = Desk(broker)
        wanted = staged(desk, "w")
        append = broker.journal.append

        def crashing(commit: Commit) -> None:
            """What a crash before, and one after, this commit would leave."""
            for moment in ("before", "after"):
                copies.append(tmp_path / f"{len(copies)} {moment}")
                shutil.copytree(broker.journal.path, copies[-1])  # type: ignore[attr-defined]  # of a durable one
                if moment == "before":
                    append(commit)

        broker.journal.append = crashing  # type: ignore[method-assign]
        assert desk.commit("w", "0", "1", "2", query=query) == CommitResult(69, is_repeat=False)
        assert {name: desk.values(name) for name in wanted} == wanted
        broker.journal.append = append  # type: ignore[method-assign]
        desk.writes.close()

    assert len(copies) > 20
    outcomes = set()
    for copy in copies:
        with opened(copy) as broker:
            desk = Desk(broker)
            # Of a write without a query nothing is known any more when all of it has ended.
            with contextlib.suppress(*[PartNotFound] if query is None and copy is copies[-1] else []):
                result = desk.commit("w", "0", "1", "2", query=query)
                outcomes.add(result.is_repeat)
                assert result.rows == 69
            assert {name: desk.values(name) for name in wanted} == wanted, copy.name
            assert desk.files() == []
            assert query is not None or not broker.catalog.documents
            desk.writes.close()
    assert outcomes == {True, False}, "some crashes come before the decision, some after it"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("failing", [1, 2, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, *range(6, 12)))])
def test_a_disk_that_refuses_for_a_while_only_delays(tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.writes.RETRY_SECONDS", 0.02)
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        wanted = staged(desk, "w")
        append, calls = broker.journal.append, 0

        def refusing(commit: Commit) -> None:
            nonlocal calls
            calls += 1
            if failing <= calls < failing + 3:
                raise JournalUnavailable(str(tmp_path), "full")
            append(commit)

        broker.journal.append = refusing  # type: ignore[method-assign]
        results: list[CommitResult] = []
        while not results:
            with contextlib.suppress(JournalUnavailable):
                results.append(desk.commit("w", "0", "1", "2"))
        assert results[0].rows == 69
        assert {name: desk.values(name) for name in wanted} == wanted
        desk.writes.close()


@pytest.mark.usefixtures("small")
def test_what_was_decided_is_finished_by_itself_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as broker:
        desk = Desk(broker)
        wanted = staged(desk, "w")
        append, copy = broker.journal.append, tmp_path / "copy"
        counter = iter(range(1000))

        def copying(commit: Commit) -> None:
            append(commit)
            if next(counter) == 4:
                shutil.copytree(broker.journal.path, copy)  # type: ignore[attr-defined]  # of a durable one

        broker.journal.append = copying  # type: ignore[method-assign]
        desk.commit("w", "0", "1", "2")
        desk.writes.close()
    with opened(copy) as broker:
        finished = threading.Event()
        append = broker.journal.append

        def watching(commit: Commit) -> None:
            append(commit)
            if broker.catalog.topic("t").next_offset + broker.catalog.topic("u").next_offset >= 60:
                finished.set()

        broker.journal.append = watching  # type: ignore[method-assign]
        desk = Desk(broker)
        assert finished.wait(30)
        desk.commit("w", batch=1)
        assert {name: desk.values(name) for name in wanted} == wanted
        desk.writes.close()


@pytest.mark.usefixtures("small")
def test_a_topic_that_is_deleted_while_its_rows_are_published_takes_only_its_own_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        wanted = staged(desk, "w")
        append, done, topics = broker.journal.append, threading.Event(), MessageQueue(broker=broker)

        def deleting(commit: Commit) -> None:
            append(commit)
            if commit.appends and not done.is_set():
                done.set()
                with broker.lock:
                    broker.emit(broker.catalog.delete_topic("u", broker.clock.now()))

        broker.journal.append = deleting  # type: ignore[method-assign]
        assert desk.commit("w", "0", "1", "2").rows == 69
        assert desk.values("t") == wanted["t"]
        assert not topics.topic_exists("u")
        desk.writes.close()


def test_commits_of_one_query_at_the_same_time_come_one_after_the_other(desk: Desk) -> None:
    desk.stage("w1", "p", rows(value=["a"] * 30_000))
    desk.stage("w2", "p", rows(value=["b"] * 30_000))
    results: list[CommitResult] = []
    threads = [threading.Thread(target=lambda w=write: results.append(desk.commit(w, "p", batch=0))) for write in ("w1", "w2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(result.is_repeat for result in results) == [False, True]
    assert len(desk.values()) == 30_000
    assert len(set(desk.values())) == 1


def test_a_write_that_is_being_published_takes_no_more_parts(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        desk.stage("w", "p", rows(value=["a"] * 20_000))
        append, refused = broker.journal.append, []

        def meddling(commit: Commit) -> None:
            append(commit)
            if commit.appends:
                for meddle in (lambda: desk.stage("w", "p", rows(value=["b"])), lambda: desk.writes.abort("w")):
                    try:
                        meddle()
                    except FailedPrecondition as error:
                        refused.append(str(error))

        broker.journal.append = meddling  # type: ignore[method-assign]
        desk.commit("w", "p")
        assert "is being published" in refused[0]
        assert desk.values() == [b"a"] * 20_000
        desk.writes.close()


def test_a_mark_is_kept_with_its_messages_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path) as broker:
        desk = Desk(broker)
        desk.stage("w", "p", rows(value=["a"]))
        append = broker.journal.append

        def refusing(commit: Commit) -> None:
            if commit.appends:
                raise JournalUnavailable(str(tmp_path), "full")
            append(commit)

        broker.journal.append = refusing  # type: ignore[method-assign]
        with pytest.raises(JournalUnavailable):
            desk.commit("w", "p")
        decided = broker.catalog.documents["writes/q"]
        broker.journal.append = append  # type: ignore[method-assign]
        MessageQueue(broker=broker).publish("u", [Message(b"another publish brings the journal back")])
        assert broker.catalog.documents["writes/q"] == decided or desk.values() == [b"a"]
        assert desk.commit("w", "p") == CommitResult(1, is_repeat=True)
        assert desk.values() == [b"a"]
        desk.writes.close()
