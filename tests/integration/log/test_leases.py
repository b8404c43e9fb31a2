"""Planned batches over the log API: leased once, settled once, in order over any number of batches, kills and restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.errors import FailedPrecondition, NotFound
from penstock.log.http import HttpLog
from penstock.log.log import Leases
from penstock.testing.clock import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.log.log_server import ask
from tests.integration.log.test_log_api_kill import running

KILLS = int(os.environ.get("PENSTOCK_LEASE_KILLS", "2"))


class Place:
    """A server in this process with a clock of its own, and its log."""

    def __init__(self, server: LocalServer, clock: ManualClock) -> None:
        self.clock = clock
        self.broker: Broker = server.broker
        self.queues = QueueManager(broker=self.broker)
        self.topics = MessageQueue(broker=self.broker)
        self.log = HttpLog(server.url)


@pytest.fixture
def place() -> Iterator[Place]:
    clock = ManualClock()
    with LocalServer(clock=clock) as server:
        here = Place(server, clock)
        yield here
        here.log.close()


def rows(log: HttpLog, query: str, leases: Leases) -> list[dict[str, Any]]:
    """The messages of a batch in the order of delivery."""
    if not leases.rows:
        return []
    batches = [
        batch
        for start, stop in zip(leases.cuts, leases.cuts[1:], strict=False)
        for batch in log.leased(query, leases.batch, start, stop)
    ]
    return sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: row["position"])


def values(found: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in found]


def offsets(found: list[dict[str, Any]], *wanted: str) -> list[int]:
    return [row["offset"] for row in found if row["value"].decode() in wanted]


def test_a_batch_is_the_same_when_it_is_asked_for_again_and_settled_once(place: Place) -> None:
    place.queues.create("q", QueueConfig())
    for text in "abcdef":
        place.queues.publish("q", text)
    log = place.log
    leases = log.leases("job", "queue:q", rows=4, parts=3)
    assert (leases.batch, leases.rows, leases.fresh, leases.is_repeat) == (0, 4, 4, False)
    again = log.leases("job", "queue:q", rows=100)
    assert (again.batch, again.rows, again.is_repeat) == (0, 4, True)
    found = rows(log, "job", leases)
    assert values(found) == list("abcd")
    assert rows(log, "job", again) == found

    endings = {
        "ack": offsets(found, "a"),
        "dead": [{"offsets": offsets(found, "b"), "reason": "undeliverable", "error": "404", "attempts": 7}],
        "nack": [{"offsets": offsets(found, "c"), "delay": 30}],
        "keep": [{"offset": offsets(found, "d")[0], "delay": 5, "attempts": 2, "failures": 1}],
    }
    settled = log.settle("job", 0, endings)
    assert (settled.settled, settled.missed, settled.carried, settled.is_repeat) == (3, 0, 1, False)
    assert log.settle("job", 0, endings).is_repeat
    assert [letter.attempts for letter in place.queues.dead_letters("q")] == [7]

    second = log.leases("job", "queue:q", batch=1)
    found = rows(log, "job", second)
    assert (second.rows, second.fresh) == (3, 2)
    assert values(found) == list("def")
    assert (found[0]["tried"], found[0]["failures"], found[0]["wait"].total_seconds()) == (2, 1, 5)
    with pytest.raises(FailedPrecondition, match="is not settled"):
        log.leases("job", "queue:q", batch=2)
    log.settle("job", 1, {"ack": [row["offset"] for row in found]})
    assert log.leases("job", "queue:q").rows == 0
    place.clock.advance(30)
    last = log.leases("job", "queue:q")
    assert [row["attempt"] for row in rows(log, "job", last)] == [2]


def test_a_batch_holds_many_messages_of_a_key_and_keeps_their_order(place: Place) -> None:
    place.topics.register_topic("t")
    place.topics.register_subscription("s", "t", SubscriptionOptions(message_ordering=True))
    place.topics.publish("t", [Message(f"{key}{number}".encode(), ordering_key=key) for number in range(3) for key in "xy"])
    log = place.log
    leases = log.leases("job", "subscription:s")
    found = rows(log, "job", leases)
    assert values(found) == ["x0", "y0", "x1", "y1", "x2", "y2"]
    # x1 fails: x2 may not overtake it, y is not concerned.
    log.settle(
        "job", 0, {"ack": offsets(found, "x0", "y0", "y1", "y2"), "nack": [{"offsets": offsets(found, "x1"), "delay": 10}]}
    )
    assert log.leases("job", "subscription:s").rows == 0
    place.clock.advance(10)
    assert values(rows(log, "job", log.leases("job", "subscription:s"))) == ["x1", "x2"]


def test_what_is_released_with_a_delay_waits_and_counts_no_attempt(place: Place) -> None:
    place.topics.register_topic("t")
    place.topics.register_subscription("s", "t", SubscriptionOptions(message_ordering=True))
    place.topics.publish("t", [Message(text.encode(), ordering_key="k") for text in "ab"])
    log = place.log
    found = rows(log, "job", log.leases("job", "subscription:s"))
    log.settle("job", 0, {"release": [{"offsets": offsets(found, "a"), "delay": 20}]})
    assert log.leases("job", "subscription:s").rows == 0
    place.clock.advance(20)
    found = rows(log, "job", log.leases("job", "subscription:s"))
    assert [(row["value"], row["attempt"]) for row in found] == [(b"a", 1), (b"b", 1)]


def test_a_batch_that_expires_is_redelivered_and_its_settlement_finds_nothing(place: Place) -> None:
    place.queues.create("q", QueueConfig())
    place.queues.publish("q", "a")
    log = place.log
    leases = log.leases("job", "queue:q", seconds=60)
    found = rows(log, "job", leases)
    place.clock.advance(50)
    assert log.extend("job", 0, 60) == 1
    place.clock.advance(50)
    assert log.leases("job", "queue:q", seconds=60).is_repeat
    place.clock.advance(61)
    place.broker.catch_up()
    following = log.leases("job", "queue:q")
    assert (following.batch, following.rows, following.fresh) == (1, 1, 1)
    assert log.settle("job", 0, {"ack": offsets(found, "a")}).is_repeat
    assert [row["attempt"] for row in rows(log, "job", following)] == [2]


def test_a_query_has_one_source_and_lets_go_of_what_it_holds(place: Place) -> None:
    place.queues.create("q", QueueConfig())
    place.queues.create("other", QueueConfig())
    place.queues.publish("q", "a")
    log = place.log
    assert log.leases("job", "queue:q").rows == 1
    with pytest.raises(FailedPrecondition, match="takes from queue:q"):
        log.leases("job", "queue:other")
    with pytest.raises(NotFound):
        log.leases("more", "queue:nowhere")
    assert log.release("job") == 1
    message = place.queues.consume("q")
    assert message is not None
    assert message.retry_count == 0


def test_attempts_are_recorded_once(place: Place) -> None:
    place.queues.create("q", QueueConfig())
    message_id = place.queues.publish("q", "a").message_id
    log = place.log
    found = rows(log, "job", log.leases("job", "queue:q"))
    attempt = [found[0]["offset"], "m1", "POOL", "http://target/", 1, 1, 500, 1234, "ERROR_PROCESS", "status 500"]
    for _ in range(2):
        log.settle("job", 0, {"attempts": [attempt], "router_name": "orders"})
    kinds = [row.kind for row in place.broker.history(message_id)]
    assert kinds.count("attempted") == 1


def test_a_batch_expires_as_a_whole_however_long_it_took_to_take_it(place: Place) -> None:
    place.queues.create("q", QueueConfig())
    place.queues.publish("q", "a")
    log = place.log
    log.leases("job", "queue:q", seconds=60)
    log.settle("job", 0, {})  # carried over
    place.clock.advance(30)
    place.queues.publish("q", "b")
    assert log.leases("job", "queue:q", seconds=60).rows == 2
    assert log.extend("job", 1, 90) == 2
    place.clock.advance(89)
    assert log.leases("job", "queue:q", seconds=1).rows == 2
    place.clock.advance(1)
    place.broker.catch_up()
    found = rows(log, "job", log.leases("job", "queue:q"))
    assert [(row["value"], row["attempt"]) for row in found] == [(b"a", 2), (b"b", 2)]


def test_dead_letters_of_a_source_that_keeps_none_are_kept_in_a_queue_of_their_own(place: Place) -> None:
    place.topics.register_topic("t")
    place.topics.register_subscription("s", "t")
    place.topics.publish("t", [Message(text.encode(), attributes={"n": text}) for text in "ab"])
    log = place.log
    found = rows(log, "job", log.leases("job", "subscription:s"))
    endings = {"dead": [{"offsets": offsets(found, "a", "b"), "reason": "undeliverable", "error": "404", "attempts": 3}]}
    settled = log.settle("job", 0, endings)
    assert (settled.settled, settled.missed, settled.carried) == (2, 0, 0)
    assert log.settle("job", 0, endings).is_repeat
    letters = place.queues.dead_letters("router.s")
    assert sorted((letter.message.payload, letter.reason, letter.last_error, letter.attempts) for letter in letters) == [
        (b"a", "undeliverable", "404", 3),
        (b"b", "undeliverable", "404", 3),
    ]
    assert letters[0].message.headers["router.queue"] == "s"
    assert log.leases("job", "subscription:s").rows == 0


def test_kills_between_leases_and_settlement_lose_nothing_and_settle_once(tmp_path: Path) -> None:
    """The server is killed after a plan, and while a settlement runs: every message is acked exactly once, in order."""
    count = 4_000
    with running(tmp_path / "data") as (server, log):
        log.create_topic("events")
        options = {"topic": "projects/penstock/topics/events", "enableMessageOrdering": True}
        made = ask(server.url, "PUT", "/v1/projects/penstock/subscriptions/pushed", options)
        assert made.status == 200, made.body
        numbers = range(count)
        table = pa.table({"value": [f"{number}" for number in numbers], "key": [f"k{number % 7}" for number in numbers]})
        log.stage("w", "0", table.to_batches(), stream="events")
        log.commit("w", ["0"], query="w", batch=0)
        seen: list[str] = []
        kills = 0
        while (leases := log.leases("job", "subscription:pushed", rows=count // KILLS)).rows:
            if kills % 2 == 0:
                server.kill_and_restart()
                again = log.leases("job", "subscription:pushed")
                assert (again.batch, again.rows, again.is_repeat) == (leases.batch, leases.rows, True)
            found = rows(log, "job", leases)
            seen += values(found)
            with ThreadPoolExecutor(1) as thread:
                settling = thread.submit(log.settle, "job", leases.batch, {"ack": [row["offset"] for row in found]})
                if kills % 2:
                    server.kill_and_restart()
                settling.result()
            assert log.settle("job", leases.batch, {}).is_repeat
            kills += 1
        assert kills >= KILLS
        assert sorted(seen, key=int) == [f"{number}" for number in numbers]
        for key in range(7):
            mine = [int(text) for text in seen if int(text) % 7 == key]
            assert mine == sorted(mine)
        span = log.spans().events
        acked = [
            row["message_offset"]
            for batch in log.events(span.earliest, span.latest)
            for row in batch.to_pylist()
            if row["kind"] == "acked"
        ]
        assert sorted(acked) == [*numbers]
