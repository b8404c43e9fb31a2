"""The queue API on real sockets: commands good and hostile, paths, WebSockets, projects, and the two binary protocols."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker
from penstock.access import Keyring, Verb
from penstock.broker.aio import AsyncBroker
from penstock.durations import SECOND
from penstock.http.authentication import TokenGate
from penstock.queue_api import Queues, Resp3Server, SocketLimits, SynapRpcServer, routes
from penstock.queue_api.commands import COMMANDS
from penstock.queue_api.resp3 import Resp3Codec
from penstock.testing import ManualClock
from penstock.values.policy import RetryPolicy
from penstock.values.queue import NewMessage
from tests.integration.http_client import PATIENCE, Answer, Client, connected, eventually, run, scenario, serving
from tests.topic_rules import make_topics


@dataclass
class Place:
    """A served broker."""

    client: Client
    queues: Queues
    port: int
    broker: Broker

    async def ask(self, command: str, **payload: Any) -> Answer:
        return await self.client.ask("POST", "/api/v1/command", envelope(command, payload))

    async def do(self, command: str, **payload: Any) -> Any:
        answer = await self.ask(command, **payload)
        assert answer.status == 200, answer.body
        body = answer.json()
        assert (body["success"], body["request_id"], body["error"]) == (True, "r-1", None)
        return body["payload"]


def envelope(command: object, payload: object) -> bytes:
    return json.dumps({"command": command, "request_id": "r-1", "payload": payload}).encode()


@asynccontextmanager
async def place(data_dir: Path | None = None, **options: Any) -> AsyncIterator[Place]:
    with Broker(data_dir=data_dir) as broker:
        aio = AsyncBroker(broker)
        queues = Queues(aio)
        async with serving(routes(queues), **options) as (_, port), connected(port) as client:
            yield Place(client, queues, port, broker)
        aio.close()


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_the_example_of_the_specification(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.do("queue.create", queue="tasks")
        body = {"type": "process_video", "video_id": "vid_123"}
        for priority in (9, 9):
            await here.do("queue.publish", queue="tasks", message="urgent", priority=priority)
        published = await here.do("queue.publish", queue="tasks", message=body, priority=8, headers={"source": "web-app"})
        assert published["position"] == 3
        for _ in range(2):
            urgent = await here.do("queue.consume", queue="tasks")
            assert (await here.do("queue.ack", queue="tasks", message_id=urgent["message_id"])) == {"success": True}

        taken = await here.do("queue.consume", queue="tasks", timeout=10, ack_deadline=60)

        assert taken.pop("created_at").endswith("Z")
        assert taken == {
            "message_id": published["message_id"],
            "message": body,
            "priority": 8,
            "retry_count": 0,
            "max_retries": 3,
            "headers": {"source": "web-app"},
        }
        nacked = await here.do("queue.nack", queue="tasks", message_id=taken["message_id"], requeue=True)
        assert nacked == {"success": True, "action": "requeued"}


@scenario
async def test_a_message_comes_back_as_it_was_given() -> None:
    bodies: list[object] = [None, True, 0, -1.5, "text", [1, 2], {"a": {"b": []}}, "", [], {}, 10**30]
    async with place() as here:
        for number, body in enumerate(bodies):
            queue = f"q-{number}"
            await here.do("queue.create", name=queue)
            await here.do("queue.publish", queue=queue, message=body)
            assert (await here.do("queue.peek", queue=queue))["message"] == body
            assert (await here.do("queue.consume", queue=queue))["message"] == body


@scenario
async def test_the_payload_of_the_sdk_is_bytes_and_any_other_payload_what_it_is() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        for payload, stored in (
            ([104, 105], b"hi"),
            ([], b""),
            ({"a": 1}, {"a": 1}),
            ([300], [300]),
            ([True], [True]),
            ("x", "x"),
        ):
            await here.do("queue.publish", queue="q", payload=payload)
            [message] = await here.queues.of().lease("q")
            assert message.payload == stored
            here.queues.of().ack("q", message.message_id)


@scenario
async def test_who_names_a_consumer_gets_the_answer_of_the_sdk() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        assert await here.do("queue.consume", queue="q", consumer_id="w") == {"message": None}
        message_id = (await here.do("queue.publish", queue="q", message={"a": 1}))["message_id"]
        message = (await here.do("queue.consume", queue="q", consumer_id="w"))["message"]
        assert (message["id"], bytes(message["payload"]), message["retry_count"]) == (message_id, b'{"a":1}', 0)


@scenario
async def test_batches() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        ids = (await here.do("queue.publish_batch", queue="q", messages=[{"message": n} for n in range(5)]))["message_ids"]
        taken = await here.do("queue.consume_batch", queue="q", consumer_id="w", max_messages=4)
        assert [message["message"] for message in taken["messages"]] == [0, 1, 2, 3]
        acked = await here.do("queue.ack_batch", queue="q", message_ids=[ids[0], ids[0], "nothing", ids[4]])
        assert (acked["success"], acked["acked"]) == (False, 1)
        assert {one: why["code"] for one, why in acked["failed"].items()} == {
            "nothing": "message_not_found",
            ids[4]: "message_not_found",
        }
        nacked = await here.do("queue.nack_batch", queue="q", message_ids=ids[1:4], requeue=False, error="bad")
        assert nacked == {"success": True, "nacked": 3, "failed": {}}
        letters = (await here.do("dlq.list", queue="q"))["dead_letters"]
        assert [(letter["message"], letter["reason"], letter["last_error"]) for letter in letters] == [
            (n, "explicit_nack", "bad") for n in (1, 2, 3)
        ]


@scenario
async def test_one_bad_message_refuses_its_batch() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        answer = await here.ask("queue.publish_batch", queue="q", messages=[{"message": 1}, {"message": 2, "ttl": 0}])
        assert answer.status == 400
        assert "messages[1]: ttl is 0" in answer.json()["error"]
        assert (await here.do("queue.stats", queue="q"))["depth"] == 0


@scenario
async def test_decision_67_calls_without_a_consumer_id_are_limited_by_their_own_prefetch_only() -> None:
    async with place() as here:
        await here.do("queue.create", name="q", default_prefetch=2)
        await here.do("queue.publish_batch", queue="q", messages=[{"message": number} for number in range(12)])

        alone = [(await here.do("queue.consume", queue="q"))["message"] for _ in range(4)]
        assert alone == [0, 1, 2, 3]
        assert (await here.do("queue.consume_batch", queue="q"))["count"] == 2
        assert (await here.do("queue.consume_batch", queue="q", prefetch=3))["count"] == 3
        named = [await here.do("queue.consume_batch", queue="q", consumer_id="w") for _ in range(2)]
        assert [one["count"] for one in named] == [2, 0]


@scenario
async def test_the_life_of_a_queue_and_of_its_dead_letters() -> None:
    async with place() as here:
        assert await here.do("queue.create", name="q", max_depth=7, ack_deadline_secs=11, default_max_retries=0) == {
            "success": True,
            "queue": "q",
            "created": True,
        }
        assert not (await here.do("queue.create", name="q"))["created"]
        config = await here.do("queue.config", queue="q")
        assert (config["max_depth"], config["ack_deadline_secs"], config["max_retries"]) == (7, 11, 0)
        assert await here.do("queue.list") == {"queues": ["q"]}
        assert await here.do("queue.exists", queue="q") == {"exists": True}
        assert await here.do("queue.exists", queue="a\n/") == {"exists": False}
        first = (await here.do("queue.publish", queue="q", message="a"))["message_id"]
        await here.do("queue.consume", queue="q")
        await here.do("queue.extend", queue="q", message_id=first, seconds=100)
        assert await here.do("queue.nack", queue="q", message_id=first) == {"success": True, "action": "dead_lettered"}
        await here.do("queue.retry_dead_letter", queue="q", message_id=first)
        assert (await here.do("queue.consume", queue="q", consumer_id="w"))["message"]["id"] == first
        assert (await here.do("queue.release_consumer", queue="q", consumer_id="w"))["released"] == 1
        await here.do("queue.pause", queue="q")
        assert (await here.do("queue.consume", queue="q"))["message_id"] is None
        await here.do("queue.resume", queue="q")
        await here.do("queue.consume", queue="q")
        await here.do("queue.nack", queue="q", message_id=first, requeue=False)
        assert (await here.do("dlq.redrive", queue="q"))["redriven"] == 1
        assert (await here.do("queue.purge", queue="q"))["purged"] == 1
        assert (await here.do("queue.purge_dead_letters", queue="q"))["purged"] == 0
        assert (await here.do("queue.stats", queue="q"))["dead_lettered_total"] == 2
        assert (await here.do("queue.delete", queue="q"))["deleted"]
        assert not (await here.do("queue.delete", queue="q"))["deleted"]


Q = {"queue": "q"}
ID = {**Q, "message_id": "ID"}
IDS = {**Q, "message_ids": ["ID"]}
ROOM = {"room": "r"}
PUBLISH: tuple[str, dict[str, Any], dict[str, Any]] = ("queue.publish", {**Q, "message": 1}, {"position": 1})
CONSUME: tuple[str, dict[str, Any], dict[str, Any]] = ("queue.consume", Q, {"message_id": "ID"})
NACK: tuple[str, dict[str, Any], dict[str, Any]] = ("queue.nack", ID, {"action": "dead_lettered"})
EVERY_COMMAND: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("queue.create", {**Q, "max_retries": 0}, {"created": True}),
    ("queue.update", {**Q, "max_depth": 9}, {"max_depth": 9, "max_retries": 0}),
    ("queue.config", Q, {"max_depth": 9, "max_retries": 0}),
    ("queue.list", {}, {"queues": ["q"]}),
    ("queue.exists", Q, {"exists": True}),
    PUBLISH,
    ("queue.peek", Q, {"message_id": "ID"}),
    CONSUME,
    ("queue.extend", {**ID, "seconds": 100}, {"success": True}),
    NACK,
    ("queue.dead_letters", Q, {"count": 1}),
    ("queue.retry_dead_letter", ID, {"success": True}),
    CONSUME,
    ("queue.nack_batch", IDS, {"nacked": 1}),
    ("dlq.list", Q, {"count": 1}),
    ("dlq.retry", ID, {"success": True}),
    CONSUME,
    NACK,
    ("queue.redrive", Q, {"redriven": 1}),
    CONSUME,
    NACK,
    ("dlq.redrive", Q, {"redriven": 1}),
    CONSUME,
    NACK,
    ("queue.purge_dead_letters", Q, {"purged": 1}),
    PUBLISH,
    CONSUME,
    NACK,
    ("dlq.purge", Q, {"purged": 1}),
    ("queue.publish_batch", {**Q, "messages": [{"message": 1}]}, {"count": 1}),
    ("queue.consume_batch", {**Q, "consumer_id": "w"}, {"count": 1}),
    ("queue.consumers", Q, {"count": 1}),
    ("queue.release_consumer", {**Q, "consumer_id": "w"}, {"released": 1}),
    ("queue.pause", Q, {"success": True}),
    ("queue.stats", Q, {"paused": True, "depth": 1}),
    ("queue.resume", Q, {"success": True}),
    ("queue.stats", Q, {"paused": False}),
    ("queue.purge", Q, {"purged": 1}),
    PUBLISH,
    CONSUME,
    ("queue.ack", ID, {"success": True}),
    PUBLISH,
    CONSUME,
    ("queue.ack_batch", IDS, {"acked": 1}),
    ("queue.delete", Q, {"deleted": True}),
    ("stream.create", ROOM, {"room": "r", "created": True}),
    ("stream.get_or_create", ROOM, {"room": "r", "created": False}),
    ("stream.list", {}, {"rooms": ["r"]}),
    ("stream.publish", {**ROOM, "event": "said", "data": 1}, {"offset": 0}),
    ("stream.consume", ROOM, {"next_offset": 1}),
    ("stream.read", ROOM, {"next_offset": 1}),
    ("stream.stats", ROOM, {"event_count": 1}),
    ("pubsub.topics", {}, {"topics": ["r"]}),
    ("pubsub.list", {}, {"topics": ["r"]}),
    ("pubsub.publish", {"topic": "r", "payload": 1}, {"topic": "r", "subscribers_matched": 0}),
    ("stream.delete", ROOM, {"deleted": True}),
]


@scenario
async def test_every_command_does_what_its_name_says() -> None:
    message_id = ""
    async with place() as here:
        for number, (command, fields, expected) in enumerate(EVERY_COMMAND):
            given = msgspec.json.decode(msgspec.json.encode(fields).replace(b'"ID"', f'"{message_id}"'.encode()))
            answer = await here.do(command, **given)
            if command == "queue.publish":
                message_id = answer["message_id"]
            found = {name: answer[name] for name in expected}
            assert found == {name: message_id if value == "ID" else value for name, value in expected.items()}, (number, command)
    assert {command for command, _, _ in EVERY_COMMAND} == set(COMMANDS)


HOSTILE: list[tuple[str, object, int, str]] = [
    ("queue.publsh", Q, 400, "unknown command 'queue.publsh'"),
    ("", Q, 400, "unknown command ''"),
    ("queue.publish", {**Q, "message": 1, "prioriti": 5}, 400, "prioriti is not a field"),
    ("queue.publish", {"message": 1}, 400, "queue is missing"),
    ("queue.publish", Q, 400, "message is missing"),
    ("queue.publish", {**Q, "message": 1, "payload": [1]}, 400, "given together"),
    ("queue.publish", {**Q, "message": 1, "priority": "9"}, 400, "priority: expected `int | null`, got `str`"),
    ("queue.publish", {**Q, "message": 1, "priority": 10}, 400, "Invalid priority: 10"),
    ("queue.publish", {**Q, "message": 1, "priority": True}, 400, "priority"),
    ("queue.publish", {**Q, "message": 1, "ttl": -1}, 400, "ttl is -1"),
    ("queue.publish", {**Q, "message": 1, "headers": {"a": 1}}, 400, "headers"),
    ("queue.publish", {**Q, "message": 1, "delay": 1, "deliver_at": 5}, 400, "delay and deliver_at"),
    ("queue.publish", {**Q, "message": 1, "deliver_at": "2030-01-01T00:00:00"}, 400, "time zone"),
    ("queue.publish", {"queue": "gone", "message": 1}, 404, "Queue not found: gone"),
    ("queue.publish", {"queue": "", "message": 1}, 400, "queue is ''"),
    ("queue.publish", {"queue": "a\x00b", "message": 1}, 400, "control characters"),
    ("queue.publish", {"queue": "other/q", "message": 1}, 400, "no '/'"),
    ("queue.publish", [], 400, "expected `object`, got `array`"),
    ("queue.publish", None, 400, "expected `object`, got `null`"),
    ("queue.publish_batch", {**Q, "messages": []}, 400, "messages"),
    ("queue.publish_batch", {**Q, "messages": [{"massage": 1}]}, 400, "massage is not a field"),
    ("queue.consume", {**Q, "timeout": -1}, 400, "timeout is -1"),
    ("queue.consume", {**Q, "timeout": 1e300}, 400, "timeout is"),
    ("queue.consume", {**Q, "ack_deadline": 0}, 400, "ack_deadline is 0"),
    ("queue.consume", {**Q, "prefetch": 0}, 400, "prefetch is 0"),
    ("queue.consume", {**Q, "prefetch": 10**6}, 400, "prefetch is 1000000"),
    ("queue.consume", {**Q, "consumer_id": ""}, 400, "consumer_id is ''"),
    ("queue.consume", {"queue": "gone"}, 404, "Queue not found: gone"),
    ("queue.consume_batch", {**Q, "max_messages": 0}, 400, "max_messages is 0"),
    ("queue.ack", {**Q, "message_id": "x" * 500}, 404, "Message not found: xxx"),
    ("queue.ack", {**Q, "message_id": 5}, 400, "message_id: expected `str`"),
    ("queue.ack_batch", {**Q, "message_ids": "abc"}, 400, "message_ids: expected `array`"),
    ("queue.nack", {**Q, "message_id": "x", "requeue": "no"}, 400, "requeue: expected `bool`"),
    ("queue.extend", {**Q, "message_id": "x"}, 400, "seconds is missing"),
    ("queue.extend", {**Q, "message_id": "x", "seconds": -1}, 400, "seconds is -1"),
    ("queue.release_consumer", {**Q, "consumer_id": "nobody"}, 404, "Consumer not found: nobody"),
    ("queue.retry_dead_letter", {**Q, "message_id": "x"}, 404, "Message not found: x"),
    ("queue.dead_letters", {**Q, "limit": 0}, 400, "limit is 0"),
    ("queue.create", {}, 400, "queue is missing"),
    ("queue.create", {"name": "n", "max_depth": 0}, 400, "max_depth is 0"),
    ("queue.create", {"name": "n", "overflow": "explode"}, 400, "overflow is 'explode'"),
    ("queue.create", {"name": "n", "config": {"max_dept": 1}}, 400, "config.max_dept is not a field"),
    ("queue.stats", {"queue": "gone"}, 404, "Queue not found: gone"),
    ("queue.list", {"queue": "q"}, 400, "queue is not a field"),
    ("pubsub.publish", {"topic": "gone", "payload": 1}, 404, "Topic not found: gone"),
    ("pubsub.subscribe", {"topics": ["a"]}, 400, "unknown command"),
    ("stream.consume", {"room": "gone"}, 404, "Topic not found: gone"),
    ("stream.publish", {"room": "gone", "event": "e"}, 400, "data is missing"),
]


def test_hostile_commands_get_the_right_status_and_the_envelope(subtests: pytest.Subtests) -> None:
    async def main() -> None:
        async with place() as here:
            await here.do("queue.create", name="q")
            for command, payload, status, text in HOSTILE:
                answer = await here.client.ask("POST", "/api/v1/command", envelope(command, payload))
                body = answer.json()
                with subtests.test(command=command, payload=payload):
                    assert (answer.status, body["success"], body["request_id"], body["payload"]) == (status, False, "r-1", None)
                    assert text in body["error"]
                    assert body["code"]

    run(main())


HINTS: list[tuple[str, object, str]] = [
    ("queue.publsh", Q, "did you mean 'queue.publish'?"),
    ("queue.publish", {**Q, "message": 1, "prioriti": 5}, "did you mean 'priority'?"),
    ("queue.publish_batch", {**Q, "messages": [{"massage": 1}]}, "did you mean 'message'?"),
    ("queue.publish", {"queue": "gone", "message": 1}, "create it first with the command queue.create"),
]
NO_ENVELOPES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b'{"command": 5}',
    b'{"payload": {}}',
    b'{"command":"queue.list"}x',
    b"[" * 100_000,
    b'{"command":"queue.list","request_id":7}',
    b'{"command":"queue.list","extra":1}',
    b'{"a":"\\ud800"}',
]


@scenario
async def test_errors_say_what_to_do() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        for command, payload, hint in HINTS:
            answer = await here.client.ask("POST", "/api/v1/command", envelope(command, payload))
            assert answer.json()["hint"] == hint


@scenario
async def test_what_is_no_envelope_is_refused() -> None:
    async with place() as here:
        for body in NO_ENVELOPES:
            answer = await here.client.ask("POST", "/api/v1/command", body)
            assert (answer.status, answer.json()["success"]) == (400, False), body[:50]
        assert await here.do("queue.list") == {"queues": []}


@scenario
async def test_status_by_kind() -> None:
    async with place() as here:
        await here.do("queue.create", name="q", max_depth=1, ack_deadline_secs=0.001)
        message_id = (await here.do("queue.publish", queue="q", message=1))["message_id"]
        full = await here.ask("queue.publish", queue="q", message=2)
        assert (full.status, full.json()["code"], full.json()["error"]) == (507, "queue_full", "Queue is full: q")
        await here.do("queue.consume", queue="q")
        await here.do("queue.pause", queue="q")
        await eventually(lambda: here.queues.manager.stats("q").expired_total == 1)
        late = await here.ask("queue.ack", queue="q", message_id=message_id)
        assert (late.status, late.json()["code"]) == (409, "ack_deadline_exceeded")


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_durable", [False, pytest.param(True, marks=pytest.mark.long)])
@scenario
async def test_a_long_poll_wakes_when_a_message_comes(is_durable: bool, tmp_path: Path) -> None:
    async with place(tmp_path if is_durable else None) as here, connected(here.port) as other:
        await here.do("queue.create", name="q")
        waiting = asyncio.create_task(here.do("queue.consume", queue="q", timeout=60))
        await eventually(lambda: bool(here.broker.notifier.callbacks))
        await other.ask("POST", "/api/v1/command", envelope("queue.publish", {"queue": "q", "message": "at last"}))
        assert (await waiting)["message"] == "at last"


@scenario
async def test_a_long_poll_whose_client_is_gone_takes_nothing() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        async with connected(here.port) as other:
            await other.send(_request(envelope("queue.consume", {"queue": "q", "timeout": 60})))
            await eventually(lambda: bool(here.broker.notifier.callbacks))
        await eventually(lambda: not here.broker.notifier.callbacks)
        await here.do("queue.publish", queue="q", message=1)
        assert (await here.do("queue.stats", queue="q"))["in_flight"] == 0


def _request(body: bytes) -> bytes:
    return b"POST /api/v1/command HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@scenario
async def test_a_server_that_stops_answers_long_polls_at_once() -> None:
    with Broker() as broker:
        queues = Queues(AsyncBroker(broker))
        async with serving(routes(queues)) as (server, port), connected(port) as client:
            await queues.of().create("q")
            poll = asyncio.create_task(
                client.ask("POST", "/api/v1/command", envelope("queue.consume", {"queue": "q", "timeout": 60}))
            )
            await eventually(lambda: bool(broker.notifier.callbacks))
            queues.close()
            await server.stop(5.0)
            assert (await poll).json()["payload"]["message_id"] is None
        queues.broker.close()


# ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_the_paths_of_a_queue() -> None:
    async with place() as here:

        async def ask(method: str, path: str, body: object = None) -> Any:
            answer = await here.client.ask(method, path, None if body is None else json.dumps(body).encode())
            assert answer.status == 200, answer.body
            return answer.json()

        assert (await ask("POST", "/queue/q", {"max_depth": 5, "prefetch_limit": 0}))["queue"] == "q"
        assert await ask("GET", "/queue/list") == {"queues": ["q"]}
        empty = dict.fromkeys(("message_id", "payload", "priority", "retry_count", "max_retries", "headers"))
        assert await ask("GET", "/queue/q/consume/w") == empty
        published = await ask("POST", "/queue/q/publish", {"payload": [104, 105], "priority": 3, "headers": {"a": "b"}})
        taken = await ask("GET", "/queue/q/consume/w?timeout=1&ack_deadline=20&prefetch=3")
        assert taken == {
            "message_id": published["message_id"],
            "payload": [104, 105],
            "priority": 3,
            "retry_count": 0,
            "max_retries": 3,
            "headers": {"a": "b"},
        }
        assert (await ask("POST", "/queue/q/nack", {"message_id": taken["message_id"], "requeue": True}))["action"] == "requeued"
        await ask("GET", "/queue/q/consume/w")
        assert await ask("POST", "/queue/q/ack", {"message_id": taken["message_id"]}) == {"success": True}
        await ask("POST", "/queue/q/publish", {"payload": [1]})
        assert (await ask("GET", "/queue/q/stats"))["depth"] == 1
        assert await ask("POST", "/queue/q/purge") == {"success": True, "purged": 1}
        assert await ask("DELETE", "/queue/q") == {"success": True, "deleted": True}


REFUSED_PATHS: list[tuple[str, str, object, int, str]] = [
    ("POST", "/queue/gone/publish", {"payload": [1]}, 404, "Queue not found: gone"),
    ("POST", "/queue/q/publish", {}, 400, "payload is missing"),
    ("POST", "/queue/q/publish", {"payload": [1], "priority": 11}, 400, "Invalid priority"),
    ("POST", "/queue/q/publish", {"payload": [1], "foo": 11}, 400, "foo is not a field"),
    ("POST", "/queue/q/ack", {"message_id": "x"}, 404, "Message not found: x"),
    ("POST", "/queue/q/nack", {"message_id": "x"}, 400, "requeue is missing"),
    ("GET", "/queue/q/consume/w?timeout=soon", None, 400, "timeout: expected `float`"),
    ("GET", "/queue/q/consume/w?prefetch=0", None, 400, "prefetch is 0"),
    ("GET", "/queue/gone/consume/w", None, 404, "Queue not found: gone"),
    ("GET", "/queue/gone/stats", None, 404, "Queue not found: gone"),
    ("POST", "/queue/a%2Fb", {}, 400, "no '/'"),
    ("GET", "/queue/q/ws/w", None, 426, "WebSocket"),
]


@scenario
async def test_paths_refuse_with_their_own_bodies() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        for method, path, body, status, error in REFUSED_PATHS:
            answer = await here.client.ask(method, path, None if body is None else json.dumps(body).encode())
            assert (answer.status, answer.json()["code"]) == (status, status), path
            assert error in answer.json()["error"], path


@scenario
async def test_a_full_queue_is_507_by_path_too() -> None:
    async with place() as here:
        await here.do("queue.create", name="q", max_depth=1)
        await here.do("queue.publish", queue="q", message=1)
        answer = await here.client.ask("POST", "/queue/q/publish", b'{"payload":[1]}')
        assert (answer.status, answer.json()) == (507, {"error": "Queue is full: q", "code": 507})


# ── WebSocket ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def socket(here: Place, path: str, **headers: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"http://127.0.0.1:{here.port}{path}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, headers=headers) as connection:
        yield connection


@pytest.mark.parametrize(("ends", "by"), [("revoked", "delivery"), ("expired", "command")])
@scenario
async def test_a_socket_ends_with_its_token(ends: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.http.authentication.ASK_AGAIN", 0)  # instead of a second
    clock, keyring = ManualClock(), Keyring(tmp_path / "tokens")
    secret = keyring.create("one", clock.now(), expires=clock.now() + 60 * SECOND)
    async with place(gate=TokenGate(keyring, clock=clock)) as here:
        queues = here.queues.of()
        await queues.create("q")
        async with socket(here, "/queue/q/ws/w?prefetch=10", Authorization=f"Bearer {secret}") as consumer:
            assert (await consumer.receive_json(timeout=PATIENCE))["type"] == "connected"
            await queues.publish("q", NewMessage(b"while it is good"))
            message = await consumer.receive_json(timeout=PATIENCE)
            if ends == "revoked":
                keyring.revoke(secret.split("_")[1])
            clock.advance(2 if ends == "revoked" else 61)
            if by == "delivery":
                await queues.publish("q", NewMessage(b"never to be seen by this consumer"))
            else:
                await consumer.send_json({"command": "ack", "message_id": message["message_id"]})
            end = await consumer.receive(timeout=PATIENCE)
            assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, 4401)
            assert ends in str(end.extra)
        await eventually(lambda: here.queues.manager.stats("q").in_flight == 0)
        assert here.queues.manager.stats("q").depth == (2 if by == "delivery" else 1)


@scenario
async def test_a_socket_gets_messages_as_they_come_and_settles_them() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        async with socket(here, "/queue/q/ws/w?prefetch=2") as consumer:
            welcome = await consumer.receive_json(timeout=PATIENCE)
            assert welcome == {"type": "connected", "queue": "q", "consumer_id": "w", "prefetch": 2}
            await here.do("queue.publish", queue="q", message={"n": 1}, headers={"a": "b"})
            frame = await consumer.receive_json(timeout=PATIENCE)
            assert (frame["type"], bytes(frame["payload"]), frame["headers"], frame["retry_count"]) == (
                "message",
                b'{"n":1}',
                {"a": "b"},
                0,
            )
            await consumer.send_json({"command": "extend", "message_id": frame["message_id"], "seconds": 50})
            await consumer.send_json({"command": "nack", "message_id": frame["message_id"], "requeue": True})
            again = await consumer.receive_json(timeout=PATIENCE)
            assert (again["message_id"], again["retry_count"]) == (frame["message_id"], 1)
            await consumer.send_json({"command": "ack", "message_id": frame["message_id"]})
            await eventually(lambda: here.queues.manager.stats("q").acked_total == 1)


@scenario
async def test_a_socket_never_holds_more_than_its_prefetch_and_gives_back_when_it_closes() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        await here.do("queue.publish_batch", queue="q", messages=[{"message": n} for n in range(20)])
        async with socket(here, "/queue/q/ws/w?prefetch=3") as consumer:
            await consumer.receive_json(timeout=PATIENCE)
            held = [await consumer.receive_json(timeout=PATIENCE) for _ in range(3)]
            assert here.queues.manager.stats("q").in_flight == 3
            await consumer.send_json({"command": "ack", "message_id": held[0]["message_id"]})
            assert bytes((await consumer.receive_json(timeout=PATIENCE))["payload"]) == b"3"
            assert here.queues.manager.stats("q").in_flight == 3
        await eventually(lambda: here.queues.manager.stats("q").in_flight == 0)
        stats = here.queues.manager.stats("q")
        assert (stats.depth, stats.consumers, stats.nacked_total) == (19, 0, 0)
        first = await here.do("queue.consume", queue="q")
        assert (first["message"], first["retry_count"]) == (1, 0), "giving back counts no retry"


@scenario
async def test_two_sockets_of_one_name_are_two_consumers() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        await here.do("queue.publish_batch", queue="q", messages=[{"message": n} for n in range(4)])
        async with socket(here, "/queue/q/ws/w?prefetch=1") as one:
            await one.receive_json(timeout=PATIENCE)
            mine = await one.receive_json(timeout=PATIENCE)
            async with socket(here, "/queue/q/ws/w?prefetch=1") as two:
                await two.receive_json(timeout=PATIENCE)
                theirs = await two.receive_json(timeout=PATIENCE)
                assert theirs["message_id"] != mine["message_id"]
                await two.send_json({"command": "ack", "message_id": mine["message_id"]})
                refused = await two.receive_json(timeout=PATIENCE)
                assert (refused["type"], refused["code"]) == ("error", "message_not_found")
            await eventually(lambda: here.queues.manager.stats("q").in_flight == 1)


@scenario
async def test_bad_frames_get_an_error_frame_and_the_socket_goes_on() -> None:
    frames = ["", "{", "[]", "null", '{"command":"ack"}', '{"command":"dance","message_id":"x"}', '{"message_id":"x"}']
    frames += [
        '{"command":"ack","message_id":5}',
        '{"command":"ack","message_id":"x","more":1}',
        '{"command":"ack","message_id":"x"}',
    ]
    frames += ['{"command":"extend","message_id":"x","seconds":-1}', "[" * 10_000]
    async with place() as here:
        await here.do("queue.create", name="q")
        async with socket(here, "/queue/q/ws/w") as consumer:
            await consumer.receive_json(timeout=PATIENCE)
            for frame in frames:
                await consumer.send_str(frame)
                assert (await consumer.receive_json(timeout=PATIENCE))["type"] == "error", frame
            await consumer.send_bytes(b"\x00")
            assert (await consumer.receive_json(timeout=PATIENCE))["type"] == "error"
            await here.do("queue.publish", queue="q", message=1)
            assert (await consumer.receive_json(timeout=PATIENCE))["type"] == "message"


@scenario
async def test_a_socket_of_a_deleted_queue_is_closed() -> None:
    async with place() as here:
        await here.do("queue.create", name="q")
        async with socket(here, "/queue/q/ws/w") as consumer:
            await consumer.receive_json(timeout=PATIENCE)
            await here.do("queue.delete", queue="q")
            assert (await consumer.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE
            assert consumer.close_code == 4404


@scenario
async def test_a_socket_of_no_queue_is_refused_before_it_opens() -> None:
    async with place() as here:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with socket(here, "/queue/gone/ws/w"):
                pass
        assert refused.value.status == 404


# ── projects and tokens ──────────────────────────────────────────────────────────────────────────────────────────────────


@scenario
async def test_two_projects_do_not_see_each_other(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens")
    tokens = {project: keyring.create(project, 1, project=project) for project in ("red", "blue")}
    async with place(gate=TokenGate(keyring)) as here:

        async def ask(project: str, command: str, **payload: Any) -> Answer:
            body = envelope(command, payload)
            return await here.client.ask("POST", "/api/v1/command", body, Authorization=f"Bearer {tokens[project]}")

        await ask("red", "queue.create", name="q")
        await ask("red", "queue.publish", queue="q", message="secret")
        assert (await ask("red", "queue.list")).json()["payload"] == {"queues": ["q"]}
        assert (await ask("red", "queue.stats", queue="q")).json()["payload"]["queue"] == "q"
        assert (await ask("blue", "queue.list")).json()["payload"] == {"queues": []}
        lost = await ask("blue", "queue.consume", queue="q")
        assert (lost.status, lost.json()["error"]) == (404, "Queue not found: q")
        assert (await ask("blue", "queue.consume", queue="red/q")).status == 400
        await ask("blue", "queue.create", name="q")
        assert (await ask("blue", "queue.consume", queue="q")).json()["payload"]["message_id"] is None
        body = envelope("queue.list", {})
        foreign = await here.client.ask(
            "POST", "/api/v1/command", body, Authorization=f"Bearer {tokens['blue']}", X_Penstock_Project="red"
        )
        assert (foreign.status, foreign.json()["code"]) == (403, "permission_denied")
        for name in ("", "red/x", "../red", "a" * 101, "-"):
            odd = await here.client.ask(
                "POST", "/api/v1/command", body, Authorization=f"Bearer {tokens['blue']}", X_Penstock_Project=name
            )
            assert odd.status == 400, name
        nobody = await here.client.ask("POST", "/api/v1/command", body)
        assert (nobody.status, nobody.json()["success"]) == (401, False)


VERBS = {
    "publish": ("queue.publish", "queue.publish_batch"),
    "consume": (
        "queue.consume",
        "queue.ack",
        "queue.nack",
        "queue.extend",
        "queue.release_consumer",
        "queue.ack_batch",
        "queue.peek",
        "dlq.list",
    ),
    "manage": ("queue.create", "queue.delete", "queue.purge", "queue.pause", "queue.redrive", "dlq.purge", "dlq.retry"),
    "read": ("queue.list", "queue.stats", "queue.config", "queue.exists"),
    "metrics": (),
}
FIELDS: dict[str, dict[str, Any]] = {
    "queue.publish": {"message": 1},
    "queue.publish_batch": {"messages": [{"message": 1}]},
    **{command: {"message_id": "x"} for command in ("queue.ack", "queue.nack", "dlq.retry")},
    "queue.ack_batch": {"message_ids": ["x"]},
    "queue.extend": {"message_id": "x", "seconds": 1},
    "queue.release_consumer": {"consumer_id": "x"},
}


@scenario
async def test_a_token_does_what_its_verb_allows_and_nothing_else(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens")
    tokens = {verb: keyring.create(verb, 1, verbs=[Verb(verb)]) for verb in VERBS}
    async with place(gate=TokenGate(keyring)) as here:
        for (verb, token), (wanted, commands) in product(tokens.items(), VERBS.items()):
            for command in commands:
                payload = {} if command == "queue.list" else {"queue": "q", **FIELDS.get(command, {})}
                answer = await here.client.ask(
                    "POST", "/api/v1/command", envelope(command, payload), Authorization=f"Bearer {token}"
                )
                assert (answer.status == 403) == (wanted != verb), (verb, command, answer)


@pytest.mark.parametrize("is_durable", [False, pytest.param(True, marks=pytest.mark.long)])
@scenario
async def test_the_schema_and_the_transforms_of_a_topic_are_applied(is_durable: bool, tmp_path: Path) -> None:
    async with place(tmp_path if is_durable else None) as here:
        await asyncio.to_thread(make_topics, here.queues.broker.broker)

        def asked(command: str, topic: str, value: object) -> dict[str, object]:
            if command == "pubsub.publish":
                return {"topic": topic, "payload": value}
            return {"room": topic, "event": "e", "data": value}

        for command in ("pubsub.publish", "stream.publish"):
            for topic, value, code in (("checked", {"id": 1}, "invalid_argument"), ("scripted", "fail", "transform_failed")):
                refused = await here.ask(command, **asked(command, topic, value))
                assert (refused.status, refused.json()["code"]) == (400, code), refused
            await here.do(command, **asked(command, "checked", {"id": "x"}))
            await here.do(command, **asked(command, "scripted", "a"))
        dropped = await here.do("pubsub.publish", topic="scripted", payload="drop")
        assert int(dropped["message_id"], 16) == 0
        refused = await here.ask("stream.publish", room="scripted", event="e", data="drop")
        assert (refused.status, refused.json()["code"]) == (400, "failed_precondition")
        read = await here.do("stream.consume", room="scripted", from_offset=0)
        assert [event["data"] for event in read["events"]] == ["A", "A"]
        assert (await here.do("stream.stats", room="checked"))["event_count"] == 2


# ── RESP3 and SynapRPC ───────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def binary(kind: type[Resp3Server | SynapRpcServer], **options: Any) -> AsyncIterator[tuple[Queues, int]]:
    with Broker() as broker:
        aio = AsyncBroker(broker)
        queues = Queues(aio)
        server = kind(queues, **options)
        port = await server.start("127.0.0.1", 0)
        try:
            yield queues, port
        finally:
            await server.stop()
            aio.close()


async def said(client: Client, count: int) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await client.reader.readexactly(count)


def frame(body: object) -> bytes:
    data = msgspec.msgpack.encode(body)
    return len(data).to_bytes(4, "little") + data


def resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


async def resp_ask(client: Client, *words: bytes) -> bytes:
    """The first line of an answer."""
    await client.send(resp(*words))
    async with asyncio.timeout(PATIENCE):
        return (await client.reader.readline()).rstrip()


@scenario
async def test_resp3_answers_a_pipeline_in_order() -> None:
    async with binary(Resp3Server) as (_, port), connected(port) as client:
        calls = [(b"PING",), (b"QCREATE", b"q", b"0", b"30"), (b"QPURGE", b"q"), (b"NONSENSE",), (b"PING", b"hi"), (b"QUIT",)]
        await client.send(b"".join(resp(*call) for call in calls))
        async with asyncio.timeout(PATIENCE):
            text = await client.reader.read(-1)
        assert text.startswith(b"$4\r\nPONG\r\n+OK\r\n:0\r\n-ERR unknown command 'NONSENSE'")
        assert text.endswith(b"$2\r\nhi\r\n+OK\r\n")


@scenario
async def test_resp3_takes_both_ways_to_write_arguments() -> None:
    async with binary(Resp3Server) as (queues, port), connected(port) as client:
        assert await resp_ask(client, b"QCREATE", b"q") == b"+OK"
        for words in ((b"7", b"2"), (b"PRIORITY", b"7", b"MAX_RETRIES", b"2"), (b"priority", b"7", b"retries", b"2")):
            await client.send(resp(b"QPUBLISH", b"q", b"x", *words))
            await said(client, len(b"$30\r\n") + 32)
            [message] = await queues.of().lease("q")
            assert (message.priority, message.max_retries) == (7, 2)
            assert await resp_ask(client, b"QNACK", b"q", message.message_id.encode(), b"REQUEUE", b"0") == b"+OK"
        assert queues.manager.stats("q").dead_letters == 3


@scenario
async def test_consumers_are_listed_over_http_and_rest() -> None:
    async with place() as here:
        await here.do("queue.create", queue="q")
        await here.do("queue.publish", queue="q", message=1)
        taken = await here.do("queue.consume", queue="q", consumer_id="a", prefetch=3)
        async with socket(here, "/queue/q/ws/w?prefetch=2") as waiting:
            await waiting.receive()
            await eventually(lambda: here.queues.broker.connected(1) != {})
            listed = await here.do("queue.consumers", queue="q")
            caller, reader = listed["consumers"]
            assert (caller["consumer_id"], caller["connection_id"], caller["prefetch"]) == ("a", None, 3)
            [held] = caller["messages"]
            assert held["message_id"] == taken["message"]["id"]
            assert held["delivered_at"] < held["ack_deadline"]
            assert (reader["prefetch"], reader["current_messages"], reader["messages"]) == (2, 0, [])
            assert reader["consumer_id"].startswith("w#")
            assert reader["connection_id"].startswith("127.0.0.1:")
            assert (await here.do("queue.stats", queue="q"))["consumers"] == listed["count"] == 2
            answer = await here.client.ask("GET", "/queue/q/consumers?max_messages=0")
            assert [(one["current_messages"], one["messages"]) for one in answer.json()["consumers"]] == [(1, []), (0, [])]
        assert (await here.client.ask("GET", "/queue/nothing/consumers")).status == 404


@scenario
async def test_consumers_are_listed_over_resp3_and_synap_rpc() -> None:
    async with binary(Resp3Server) as (queues, port), connected(port) as client:
        await queues.of().create("q")
        await queues.of().publish("q", NewMessage(b"x"))
        [message] = await queues.of().lease("q", "a")
        assert await resp_ask(client, b"QCONSUMERS", b"q") == b"*1"
        text = await client.reader.readuntil(message.message_id.encode())
        assert text.startswith(
            b"*10\r\n$11\r\nconsumer_id\r\n$1\r\na\r\n$13\r\nconnection_id\r\n$-1\r\n$8\r\nprefetch\r\n:10\r\n"
        )
    async with binary(SynapRpcServer) as (queues, port), connected(port) as client:
        await queues.of().create("q")
        await queues.of().publish("q", NewMessage(b"x"))
        await queues.of().lease("q", "a")
        await client.send(frame([1, "QCONSUMERS", [{"Str": "q"}, {"Int": 0}]]))
        size = int.from_bytes(await client.reader.readexactly(4), "little")
        _, answer = msgspec.msgpack.decode(await client.reader.readexactly(size))
        [consumer] = answer["Ok"]["Array"]
        found = {key["Str"]: value for key, value in consumer["Map"]}
        assert (found["consumer_id"], found["current_messages"], found["messages"]) == ({"Str": "a"}, {"Int": 1}, {"Array": []})


@scenario
async def test_an_update_changes_what_is_given_and_takes_away_what_is_null() -> None:
    async with place() as here:
        await here.do("queue.create", name="q", message_ttl=60, retry_policy={"minimum_backoff": 0.5, "maximum_backoff": 8})
        config = await here.do("queue.update", queue="q", max_retries=9, retry_policy={"maximum_backoff": 5})
        assert config["retry_policy"] == {"minimum_backoff": 0.5, "maximum_backoff": 5}
        assert (config["max_retries"], config["message_ttl"]) == (9, 60)
        config = await here.do("queue.update", queue="q", retry_policy=None, message_ttl=None)
        assert (config["retry_policy"], config["message_ttl"], config["max_retries"]) == (None, None, 9)
        config = await here.do("queue.update", queue="q", retry_policy={"minimum_backoff": 1})
        assert config["retry_policy"] == {"minimum_backoff": 1, "maximum_backoff": 600}


@scenario
async def test_a_backoff_is_set_over_resp3_and_synap_rpc() -> None:
    async with binary(Resp3Server) as (queues, port), connected(port) as client:
        assert await resp_ask(client, b"QCREATE", b"q", b"0", b"30", b"MIN_BACKOFF", b"0.5", b"MAX_BACKOFF", b"8") == b"+OK"
        assert queues.manager.config("q").retry_policy == RetryPolicy(0.5, 8)
        assert await resp_ask(client, b"QUPDATE", b"q", b"min_backoff", b"2", b"MAX_RETRIES", b"9") == b"+OK"
        config = queues.manager.config("q")
        assert (config.retry_policy, config.max_retries, config.ack_deadline_secs) == (RetryPolicy(2, 8), 9, 30)
        answer = await resp_ask(client, b"QUPDATE", b"q", b"MIN_BACKOFF", b"9", b"MAX_BACKOFF", b"8")
        assert answer.startswith(b"-ERR retry_policy.minimum_backoff is 9.0, expected at most maximum_backoff (8.0)")
    async with binary(SynapRpcServer) as (queues, port), connected(port) as client:
        await client.send(
            frame([1, "QCREATE", [{"Str": "q"}, {"Str": "MIN_BACKOFF"}, {"Str": "1"}, {"Str": "MAX_BACKOFF"}, {"Int": 4}]])
        )
        await eventually(lambda: queues.manager.exists("q"))
        assert queues.manager.config("q").retry_policy == RetryPolicy(1, 4)


@scenario
async def test_resp3_consume_may_wait_and_a_client_that_goes_takes_nothing() -> None:
    async with binary(Resp3Server) as (queues, port):
        await queues.of().create("q")
        async with connected(port) as client:
            await client.send(resp(b"QCONSUME", b"q", b"w", b"TIMEOUT", b"60"))
            await eventually(lambda: bool(queues.broker.broker.notifier.callbacks))
            queues.manager.publish("q", b"hello")
            assert (await said(client, 4)) == b"*4\r\n"
        async with connected(port) as client:
            await client.send(resp(b"QCONSUME", b"q", b"w", b"60"))
            await eventually(lambda: bool(queues.broker.broker.notifier.callbacks))
        await eventually(lambda: not queues.broker.broker.notifier.callbacks)
        queues.manager.publish("q", b"hello")
        assert queues.manager.stats("q").depth == 1


LOST_FRAMES = [
    b"*2000\r\n",
    b"*1\r\n$99999999999\r\n",
    b"*1\r\n$20000000\r\n",
    b"*1\r\n:5\r\n",
    b"*x\r\n",
    b"*1\r\n$-1\r\n",
    b"x" * 5000,
    b"*1\r\n$3\r\nPINGG\r\n",
    b"*1\r\n*1\r\n$4\r\nPING\r\n",
    b"Host: x\r\n",
    b"PING / HTTP/1.1\r\n",
    b"\x16\x03\x01\n",
]


@scenario
async def test_resp3_says_why_framing_is_lost_and_closes() -> None:
    async with binary(Resp3Server) as (_, port):
        for data in LOST_FRAMES:
            async with connected(port) as client:
                await client.send(data)
                async with asyncio.timeout(PATIENCE):
                    assert (await client.reader.readline()).startswith(b"-ERR Protocol error: "), data[:50]
                assert await client.is_cut()


SMUGGLED = b"QCREATE smuggled\r\n" + resp(b"QCREATE", b"smuggled") + frame([1, "QCREATE", [{"Str": "smuggled"}]])


@pytest.mark.parametrize("kind", [Resp3Server, SynapRpcServer])
@scenario
async def test_http_is_refused_in_http_and_nothing_in_it_is_executed(kind: type[Resp3Server | SynapRpcServer]) -> None:
    """A web page of any site can send such requests to a server on the visitor's machine."""
    limits = SocketLimits(max_frame_bytes=2**30)
    async with binary(kind, limits=limits) as (queues, port):
        for line in (b"POST / HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET /QCREATE HTTP/1.1", b"PRI * HTTP/2.0"):
            async with connected(port) as client:
                await client.send(line + b"\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED)
                answer = await client.answer()
                assert answer.status == 400
                assert b"not HTTP" in answer.body
                assert await client.is_cut()
        assert await queues.of().list_queues() == []


@scenario
async def test_tokens_over_resp3(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens")
    secret = keyring.create("one", 1, project="red", verbs=[Verb.READ])
    async with binary(Resp3Server, gate=TokenGate(keyring)) as (queues, port), connected(port) as client:
        await queues.of(project="red").create("mine")
        assert await resp_ask(client, b"PING") == b"$4"
        await said(client, 6)
        assert (await resp_ask(client, b"QLIST")).startswith(b"-NOAUTH ")
        assert (await resp_ask(client, b"AUTH", b"wrong")).startswith(b"-WRONGPASS ")
        assert await resp_ask(client, b"AUTH", b"user", secret.encode()) == b"+OK"
        assert await resp_ask(client, b"QLIST") == b"*1"
        assert (await said(client, 10)) == b"$4\r\nmine\r\n"
        assert (await resp_ask(client, b"QCREATE", b"q")).startswith(b"-NOPERM ")
    async with binary(Resp3Server, gate=TokenGate(keyring)) as (_, port), connected(port) as client:
        await client.send(resp(b"QPUBLISH", b"q", b"x" * 10_000))
        async with asyncio.timeout(PATIENCE):
            assert b"is more than" in await client.reader.readline(), "a stranger sends no large requests"


async def answered(client: Client) -> Any:
    size = int.from_bytes(await said(client, 4), "little")
    return msgspec.msgpack.decode(await said(client, size))


@scenario
async def test_rpc_calls_run_side_by_side() -> None:
    async with binary(SynapRpcServer) as (queues, port), connected(port) as client:
        await queues.of().create("q")
        await client.send(frame([1, "QCONSUME", [{"Str": "q"}, {"Str": "w"}, {"Int": 60}]]))
        await client.send(frame({"id": 2, "command": "ping", "args": []}))
        assert await answered(client) == [2, {"Ok": {"Str": "PONG"}}]
        await client.send(frame([3, "QPUBLISH", [{"Str": "q"}, {"Bytes": [104, 105]}, {"Str": "9"}, {"Int": 2}]]))
        answers = dict([await answered(client), await answered(client)])
        pairs = {key["Str"]: value for key, value in answers[1]["Ok"]["Map"]}
        assert (pairs["payload"], pairs["priority"], pairs["id"]) == ({"Bytes": b"hi"}, {"Int": 9}, answers[3]["Ok"])


BAD_REQUESTS: list[tuple[object, str]] = [
    (5, "cannot be read"),
    ([], "cannot be read"),
    ([1, 2, 3], "cannot be read"),
    ([1, "PING"], "cannot be read"),
    ([1, "QLIST", [5]], "cannot be read"),
    ([1, "QLIST", [{"Array": []}]], "cannot be read"),
    ([1, "QLIST", [{}]], "has 0 tags"),
    ([1, "QLIST", [{"Int": 1, "Str": "a"}]], "has 2 tags"),
    ([1, "QLIST", [{"Bytes": [300]}]], "cannot be read"),
    ([1, "QLIST", [{"Int": 1}] * 40], "cannot be read"),
    ([-1, "PING", []], "the id of a request"),
    ([1, "QACK", [{"Str": "q"}]], "message_id is missing"),
    ([1, "QACK", [{"Str": "q"}, {"Int": 5}]], "message_id is 5, expected text"),
    ([1, "QLIST", [{"Str": "q"}]], "expected at most 0"),
    ([1, "QPUBLISH", [{"Str": "q"}, {"Str": "x"}, {"Str": "high"}]], "PRIORITY is 'high'"),
    ([1, "QPUBLISH", [{"Str": "q"}, {"Str": "x"}, {"Str": "1"}, {"Str": "1"}, {"Str": "MORE"}]], "an option is 'MORE'"),
    ([1, "SUBSCRIBE", [{"Str": "t"}]], "unknown command"),
]


@scenario
async def test_rpc_answers_bad_requests_and_goes_on() -> None:
    async with binary(SynapRpcServer) as (queues, port), connected(port) as client:
        await queues.of().create("q")
        for body, text in BAD_REQUESTS:
            await client.send(frame(body))
            assert text in (await answered(client))[1]["Err"], body
        await client.send(frame([7, "PING", []]))
        assert await answered(client) == [7, {"Ok": {"Str": "PONG"}}]


@scenario
async def test_rpc_refuses_a_frame_that_is_too_large_before_it_comes() -> None:
    async with binary(SynapRpcServer) as (_, port), connected(port) as client:
        await client.send(b"\xff\xff\xff\xff")
        assert "is more than" in (await answered(client))[1]["Err"]
        assert await client.is_cut()


@pytest.mark.parametrize("kind", [Resp3Server, SynapRpcServer])
@scenario
async def test_connections_are_limited_and_idle_ones_end(kind: type[Resp3Server | SynapRpcServer]) -> None:
    async with binary(kind, limits=SocketLimits(max_connections=1, idle_seconds=0.2)) as (_, port), connected(port) as first:
        async with connected(port) as second:
            assert await second.is_cut()
        assert await first.is_cut()


@pytest.mark.parametrize("kind", [Resp3Server, SynapRpcServer])
@scenario
async def test_half_a_request_ends_the_connection_and_a_quiet_client_stays(kind: type[Resp3Server | SynapRpcServer]) -> None:
    """Also one that goes on byte by byte; what was complete before it is answered."""
    whole = resp(b"PING", b"a" * 50) if kind is Resp3Server else frame([1, "PING", [{"Str": "a" * 50}]])
    async with (
        binary(kind, limits=SocketLimits(request_seconds=0.3)) as (_, port),
        connected(port) as quiet,
        connected(port) as silent,
        connected(port) as slow,
    ):
        await silent.send(whole[:20])
        await slow.send(whole)
        await said(slow, 50)

        async def trickle() -> None:
            with suppress(ConnectionError):
                for byte in whole[:-1]:  # for several times the limit
                    await slow.send(bytes([byte]))
                    await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        assert await silent.is_cut()
        assert await slow.is_cut()
        trickling.cancel()
        await quiet.send(whole)
        await said(quiet, 50)


@pytest.mark.parametrize("kind", [Resp3Server, SynapRpcServer])
@scenario
async def test_a_client_that_does_not_say_who_it_is_is_cut(kind: type[Resp3Server | SynapRpcServer], tmp_path: Path) -> None:
    gate = TokenGate(Keyring(tmp_path / "tokens"))
    async with binary(kind, gate=gate, limits=SocketLimits(hello_seconds=0.1)) as (_, port), connected(port) as client:
        await client.send(resp(b"PING") if kind is Resp3Server else frame([1, "PING", []]))
        assert await client.is_cut()


@scenario
async def test_the_schema_of_a_topic_is_applied_over_resp3() -> None:
    async with binary(Resp3Server) as (queues, port), connected(port) as client:
        await asyncio.to_thread(make_topics, queues.broker.broker)
        for words in ((b"PUBLISH", b"checked", b"1"), (b"SPUBLISH", b"checked", b"e", b"1")):
            assert (await resp_ask(client, *words)).startswith(b"-ERR message does not match its schema")


SECRET = "a-payload-that-must-not-be-seen"


@scenario
async def test_an_unknown_error_of_a_command_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("penstock.queue_api.topics.publish_async", broken)
    async with binary(Resp3Server) as (_, port), connected(port) as client:
        await resp_ask(client, b"SCREATE", b"room")
        assert await resp_ask(client, b"PUBLISH", b"room", b"1") == b"-ERR an error inside the server"
    assert "command 'PUBLISH' failed with RuntimeError at" in caplog.text
    assert "in broken" in caplog.text
    assert SECRET not in caplog.text


@scenario
async def test_an_unknown_error_of_a_connection_ends_it_and_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_take(_: Resp3Codec) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(Resp3Codec, "take", broken_take)
    async with binary(Resp3Server) as (_, port), connected(port) as client:
        assert await client.is_cut()
        gc.collect()  # when asyncio would speak
    assert "a connection failed with RuntimeError at" in caplog.text
    assert "in broken_take" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("kind", [Resp3Server, SynapRpcServer])
@given(
    data=st.lists(
        st.binary(max_size=200) | st.sampled_from([b"*1\r\n", b"$4\r\nPING\r\n", frame([1, "QLIST", []]), resp(b"QLIST")])
    )
)
def test_any_bytes_leave_others_unharmed(kind: type[Resp3Server | SynapRpcServer], data: list[bytes]) -> None:
    async def main() -> None:
        async with binary(kind) as (_, port), connected(port) as good:
            async with connected(port) as bad:
                with suppress(ConnectionError):
                    for piece in data:
                        await bad.send(piece)
            if kind is SynapRpcServer:
                await good.send(frame([9, "PING", []]))
                assert await answered(good) == [9, {"Ok": {"Str": "PONG"}}]
            else:
                assert await resp_ask(good, b"PING") == b"$4"

    run(main())
