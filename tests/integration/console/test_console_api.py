"""The console's operations over a real server: with data and without, with tokens that may and may not, and hostile input."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from penstock import DeadLetterPolicy, Message, MessageQueue, PubSub, QueueConfig, QueueManager, SubscriptionOptions, Worker
from penstock.access import Keyring, Verb
from penstock.client import HubClient
from penstock.clock import SystemClock
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.console.conftest import publish_triage
from tests.integration.console.shop import fill

pytestmark = pytest.mark.server

PATIENCE = 60.0
JSON = {"Content-Type": "application/json"}


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json["error"]["reason"])


class Console:
    """Calls the console of a server, with a token if one is given."""

    def __init__(self, server: LocalServer, token: str | None = None) -> None:
        self.server, self.token = server, token
        self.queues, self.topics = QueueManager(broker=server.broker), MessageQueue(broker=server.broker)

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            named["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.server.url + path, body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as found:
                return Answer(found.status, found.headers, found.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def get(self, path: str) -> Any:
        found = self.call("GET", f"/console/api/{path}")
        assert found.status == 200, (path, found.body)
        return found.json

    def post(self, path: str, body: object) -> Answer:
        return self.call("POST", f"/console/api/{path}", json.dumps(body).encode(), Content_Type="application/json")

    def done(self, path: str, body: object) -> Any:
        found = self.post(path, body)
        assert found.status == 200, (path, found.body)
        return found.json

    def until(self, path: str, is_right: Callable[[Any], bool]) -> Any:
        """Ask until the answer is as expected."""
        deadline = time.monotonic() + PATIENCE
        while not is_right(found := self.get(path)):
            assert time.monotonic() < deadline, found
        return found


@pytest.fixture
def console() -> Iterator[Console]:
    with LocalServer() as server:
        yield Console(server)


@pytest.fixture
def filled(console: Console) -> Console:
    """A queue with two messages that wait, one that is held and one that is dead; a topic with a subscription."""
    console.queues.create("mail")
    for number in range(4):
        console.queues.publish("mail", {"n": number, "to": "Ann"}, headers={"trace": str(number)})
    dead = console.queues.consume("mail", "w1")
    assert dead is not None
    console.queues.nack("mail", dead.message_id, False, error="SMTP 550 for 7")
    console.queues.consume("mail", "w1")
    console.topics.register_topic("orders")
    console.topics.register_subscription("billing", "orders")
    console.topics.publish("orders", [Message(b"first", {"a": "b"}), Message(b"\xff\x00", ordering_key="k")])
    return console


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Callable[..., Console]]:
    """Makes consoles with tokens of one server."""
    file = tmp_path / "tokens.json"
    keyring = Keyring(file)
    with LocalServer(auth="token", token_file=file) as server:

        def make(*verbs: Verb, project: str | None = None, names: tuple[str, ...] = ("*",)) -> Console:
            secret = keyring.create("test", SystemClock().now(), verbs=verbs, project=project, patterns=names)
            made, deadline = Console(server, secret), time.monotonic() + PATIENCE
            while made.call("GET", "/console/api/session").status == 401:  # the server has not looked at the file again
                assert time.monotonic() < deadline
            return made

        yield make


# ── pages and files ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shell_answers_at_the_root_and_at_every_page(console: Console) -> None:
    shell = console.call("GET", "/", Accept="text/html")
    assert shell.status == 200
    for path in ("/console", "/console/queues", "/console/queues/a%20b", "/console/stream/topic/x", "/console/a/b/c/d"):
        found = console.call("GET", path)
        assert (found.status, found.body) == (200, shell.body), path
    assert console.call("GET", "/").json["service"] == "penstock"  # for those who are no browser


def test_the_policy_lets_a_page_load_only_its_own_files(console: Console) -> None:
    policy = console.call("GET", "/console").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy


def test_a_file_that_has_not_changed_is_not_sent_again(console: Console) -> None:
    found = console.call("GET", "/console/static/index.html")
    assert found.headers["Content-Type"] == "text/html; charset=utf-8"
    again = console.call("GET", "/console/static/index.html", If_None_Match=found.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "nope.js",
        "..%2f__init__.py",
        "%2e%2e/__init__.py",
        "..",
        "pages/..%2findex.html",
        "pages/nope.js",
        "a/b/c.js",
        "index.html/",
    ],
)
def test_nothing_else_is_a_file_of_the_console(console: Console, path: str) -> None:
    assert console.call("GET", f"/console/static/{path}").status == 404


def test_an_unknown_operation_is_no_page(console: Console) -> None:
    assert console.call("GET", "/console/api/nope").status == 404
    assert console.call("GET", "/console/api").status == 404


# ── session, overview, tables ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_server_has_empty_pages(console: Console) -> None:
    session, overview = console.get("session"), console.get("overview")
    assert (session["project"], session["token"], session["needs_token"]) == ("penstock", None, False)
    assert session["verbs"] == ["consume", "manage", "metrics", "publish", "read"]
    assert overview["status"] == {"level": "ok", "text": "Healthy: there are no queues and subscriptions yet"}
    assert overview["totals"]["oldest_seconds"] is None
    for page in ("queues", "subscriptions", "topics"):
        found = console.get(page)
        assert (found["total"], found["matched"], found["rows"]) == (0, 0, []), page
    assert console.get("dead")["groups"] == []
    assert console.get("jobs") == {"jobs": []}


def test_the_tables_and_details_say_what_the_broker_holds(filled: Console) -> None:
    [row] = filled.get("queues")["rows"]
    assert (row["name"], row["ready"], row["in_flight"], row["dead"], row["consumers"]) == ("mail", 2, 1, 1, 1)
    assert row["why"]["reason"] == "leased"
    assert row["why"]["consumer"] == "w1"
    assert row["oldest_seconds"] >= 0
    detail = filled.get("queues/mail")
    assert detail["consumers"] == [{"name": "w1", "held": 1, "first_deadline_at": detail["oldest"][0]["why"]["until_at"]}]
    assert [one["why"]["reason"] for one in detail["oldest"]] == ["leased", "ready", "ready"]
    assert (detail["totals"]["published"], detail["totals"]["dead_lettered"]) == (4, 1)
    assert detail["settings"]["max_retries"] == 3
    [line] = filled.get("subscriptions")["rows"]
    assert (line["name"], line["topic"], line["ready"], line["why"]["reason"]) == ("billing", "orders", 2, "no_consumer")
    assert "penstock pull billing --follow" in filled.get("subscriptions/billing")["advice"][0]
    topic = filled.get("topics/orders")
    assert (topic["row"]["published"], topic["row"]["subscriptions"]) == (2, 1)
    assert [one["name"] for one in topic["subscriptions"]] == ["billing"]
    totals = filled.get("overview")["totals"]
    assert (totals["backlog"], totals["dead"], totals["queues"], totals["subscriptions"], totals["topics"]) == (5, 1, 1, 1, 1)


def test_tables_are_sorted_filtered_and_cut_at_the_server(console: Console) -> None:
    for name, waiting in (("alpha", 1), ("Beta", 3), ("gamma", 0)):
        console.queues.create(name)
        for _ in range(waiting):
            console.queues.publish(name, b"x", priority=waiting)

    def names(query: str) -> list[str]:
        return [row["name"] for row in console.get(f"queues?{query}")["rows"]]

    assert names("sort=ready&order=desc") == ["Beta", "alpha", "gamma"]
    assert names("sort=ready&order=asc") == ["gamma", "alpha", "Beta"]
    assert names("sort=name&order=asc") == ["Beta", "alpha", "gamma"]
    assert names("sort=oldest") == ["alpha", "Beta", "gamma"]  # what is empty has no age, and comes last
    assert names("filter=BET") == ["Beta"]
    assert names("sort=ready&offset=1&limit=1") == ["alpha"]
    assert console.get("queues?filter=zzz")["total"] == 3


def test_a_queue_shows_how_many_wait_with_each_priority(console: Console) -> None:
    console.queues.create("q")
    for priority in (9, 0, 9):
        console.queues.publish("q", b"x", priority=priority)
    [row] = console.get("queues")["rows"]
    assert row["priorities"] == [[9, 2], [0, 1]]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("queues?sort=nope", 400),
        ("queues?limit=0", 400),
        ("queues?limit=201", 400),
        ("queues?offset=-1", 400),
        ("queues?unknown=1", 400),
        ("queues?project=%20", 400),
        ("queues/nope", 404),
        ("queues/" + quote("a/b", safe=""), 400),
        ("queues/" + "x" * 700, 400),
        ("subscriptions/nope", 404),
        ("topics/nope", 404),
        ("streams/nope/x/messages", 400),
        ("streams/queue/nope/messages", 404),
        ("streams/topic/nope/messages/0", 404),
        ("streams/topic/nope/messages/x", 400),
        ("queues/nope/peek", 404),
        ("dead/letters", 400),
        ("dead/letters?source=mail", 400),
        ("dead/letters?source=queue:nope", 404),
        ("dead/export?selection=s-0", 400),
        ("jobs/j-9", 404),
    ],
)
def test_what_cannot_be_answered_is_a_clear_error(console: Console, path: str, status: int) -> None:
    found = console.call("GET", f"/console/api/{path}")
    assert found.status == status, found.body
    assert set(found.json["error"]) >= {"code", "message", "status", "reason"}


# ── actions ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def audits(console: Console) -> list[tuple[str, str, int]]:
    journal = console.server.broker.journal
    console.server.broker.sync()
    found = [event for _, event in journal.read_events(0, journal.event_range()[1]) if type(event).__name__ == "Audited"]
    return [(event.action, event.resource, event.affected) for event in found]  # type: ignore[union-attr]  # as above


def test_a_queue_is_paused_resumed_purged_and_deleted(filled: Console) -> None:
    assert filled.done("queues/mail/pause", {}) == {"name": "mail", "paused": True}
    assert filled.get("queues")["rows"][0]["state"] == "paused"
    assert filled.done("queues/mail/resume", {}) == {"name": "mail", "paused": False}
    assert filled.done("queues/mail/purge", {"confirm": "mail"}) == {"purged": 2}
    assert filled.queues.stats("mail").depth == 0
    assert filled.done("queues/mail/delete", {"confirm": "mail"}) == {"deleted": "mail"}
    assert filled.queues.list() == []
    assert audits(filled) == [("purge_queue", "mail", 2), ("delete_queue", "mail", 1)]


def test_a_subscription_and_a_topic_are_paused_and_deleted(filled: Console) -> None:
    assert filled.done("subscriptions/billing/pause", {})["paused"]
    assert filled.get("subscriptions")["rows"][0]["state"] == "paused"
    filled.done("subscriptions/billing/resume", {})
    filled.done("subscriptions/billing/delete", {"confirm": "billing"})
    filled.done("topics/orders/delete", {"confirm": "orders"})
    assert filled.topics.get_all_topics() == []
    assert audits(filled) == [("delete_subscription", "billing", 2), ("delete_topic", "orders", 1)]


@pytest.mark.parametrize(
    "path", ["queues/mail/purge", "queues/mail/delete", "subscriptions/billing/delete", "topics/orders/delete"]
)
def test_what_cannot_be_undone_asks_for_the_name(filled: Console, path: str) -> None:
    for body in ({}, {"confirm": None}, {"confirm": ""}, {"confirm": "other"}, {"confirm": "MAIL"}):
        assert filled.post(path, body).reason == "confirmation_required", body
    assert filled.queues.stats("mail").depth == 2
    assert audits(filled) == []


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b"confirm=mail", "multipart/form-data", 415),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"{", "application/json", 400),
        (b'{"x": 1}', "application/json", 400),
        (b"[" * 100_000, "application/json", 413),
    ],
)
def test_an_action_is_json_and_nothing_else(filled: Console, body: bytes, kind: str, status: int) -> None:
    assert filled.call("POST", "/console/api/queues/mail/pause", body, Content_Type=kind).status == status
    assert not filled.queues.stats("mail").paused


def test_a_page_of_another_site_can_do_nothing(filled: Console) -> None:
    for name, value in (("Origin", "https://evil.example"), ("Sec_Fetch_Site", "cross-site")):
        headers = {"Content_Type": "application/json", name: value}
        assert filled.call("POST", "/console/api/queues/mail/pause", b"{}", **headers).status == 403
        assert filled.call("GET", "/console/api/queues", None, **headers).status == 403
    assert not filled.queues.stats("mail").paused


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_browsed_from_both_ends(console: Console) -> None:
    console.topics.register_topic("orders")
    console.topics.publish("orders", [Message(f"m{number}".encode()) for number in range(5)])
    newest = console.get("streams/topic/orders/messages?limit=2")
    assert [row["preview"] for row in newest["rows"]] == ["m4", "m3"]
    assert (newest["earliest"], newest["latest"], newest["is_end"]) == (0, 5, False)
    older = console.get(f"streams/topic/orders/messages?limit=9&offset={newest['next']}")
    assert [row["preview"] for row in older["rows"]] == ["m2", "m1", "m0"]
    assert (older["next"], older["is_end"]) == (None, True)
    first = console.get("streams/topic/orders/messages?direction=newer&limit=2")
    assert [row["offset"] for row in first["rows"]] == [0, 1]
    rest = console.get(f"streams/topic/orders/messages?direction=newer&offset={first['next']}")
    assert [row["offset"] for row in rest["rows"]] == [2, 3, 4]


def test_messages_are_found_by_key_text_and_time() -> None:
    clock = ManualClock()
    with LocalServer(clock=clock) as server:
        console = Console(server)
        console.topics.register_topic("orders")
        console.topics.publish("orders", [Message(b'{"to": "Ann"}', ordering_key="a"), Message(b"x", ordering_key="b")])
        clock.advance(60)
        console.topics.publish("orders", [Message(b"Bob and ANN")])
        path = "streams/topic/orders/messages"
        assert [row["offset"] for row in console.get(f"{path}?text=ann")["rows"]] == [2, 0]
        assert [row["offset"] for row in console.get(f"{path}?key=b")["rows"]] == [1]
        assert console.get(f"{path}?text=nobody")["searched"]["messages"] == 3
        at = console.get(path)["rows"][0]["published_at"]
        assert [row["offset"] for row in console.get(f"{path}?direction=newer&time={quote(at)}")["rows"]] == [2]
        assert console.call("GET", f"/console/api/{path}?time=yesterday").status == 400


def test_a_payload_is_text_or_base64_cut_at_64_kib_and_whole_as_a_download(console: Console) -> None:
    console.topics.register_topic("t")
    large = "ä" * 70_000
    console.topics.publish("t", [Message(b'{"big": 12345678901234567890}'), Message(b"\xff\x00"), Message(large.encode())])
    path = "streams/topic/t/messages"
    assert console.get(f"{path}/0")["payload"]["text"] == '{"big": 12345678901234567890}'
    assert console.get(f"{path}/0")["payload"]["is_json"]
    assert console.get(f"{path}/1")["payload"]["base64"] == "/wA="
    cut = console.get(f"{path}/2")["payload"]
    assert (cut["is_cut"], len(cut["text"].encode()), cut["size"]) == (True, 65536, 140_000)
    raw = console.call("GET", f"/console/api/{path}/2/raw")
    assert raw.body == large.encode()
    assert raw.headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in raw.headers["Content-Security-Policy"]
    assert console.call("GET", f"/console/api/{path}/3").reason == "out_of_range"


def test_messages_are_published_to_topics_and_queues(filled: Console) -> None:
    sent = filled.done("streams/topic/orders/publish", {"text": "hi ☃", "attributes": {"x": "1"}, "key": "k", "priority": 7})
    found = filled.get(f"messages/{sent['message_id']}")["message"]
    assert (found["payload"]["text"], found["attributes"], found["key"], found["priority"]) == ("hi ☃", {"x": "1"}, "k", 7)
    sent = filled.done("streams/queue/mail/publish", {"json": {"n": 12345678901234567890}, "delay_seconds": 60})
    page = filled.get(f"messages/{sent['message_id']}")
    assert page["verdict"]["state"] == "delayed"
    assert json.loads(page["message"]["payload"]["text"]) == {"n": 12345678901234567890}
    assert filled.done("streams/topic/orders/publish", {"base64": "/w=="})["message_id"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "json": 1},
        {"base64": "%%"},
        {"text": "a", "priority": 10},
        {"text": "a", "delay_seconds": -1},
        {"text": "a", "attributes": {"a": 1}},
        {"text": 7},
    ],
)
def test_what_is_no_message_is_not_published(filled: Console, body: dict[str, object]) -> None:
    for stream in ("queue/mail", "topic/orders"):
        assert filled.post(f"streams/{stream}/publish", body).status == 400
    assert filled.queues.stats("mail").published_total == 4


def test_peek_shows_what_comes_next_and_leases_nothing(filled: Console) -> None:
    found = filled.get("queues/mail/peek?limit=1")["messages"]
    assert [json.loads(one["payload"]["text"])["n"] for one in found] == [2]
    assert [one["message_id"] for one in filled.get("subscriptions/billing/peek")["messages"]]
    assert filled.queues.stats("mail").in_flight == 1
    assert filled.topics.stats("billing").in_flight == 0


def test_the_tail_says_what_it_leaves_out(console: Console) -> None:
    console.topics.register_topic("t")
    assert console.get("streams/topic/t/tail") == {"from": 0, "to": 0, "skipped": 0, "rows": []}
    console.topics.publish("t", [Message(str(number).encode()) for number in range(12)])
    found = console.get("streams/topic/t/tail")
    assert ([row["preview"] for row in found["rows"]], found["skipped"]) == (["11", "10", "9", "8", "7"], 7)
    assert console.get("streams/topic/t/tail")["rows"] == []


# ── one message ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_durable", [False, True])
def test_the_life_of_a_message_that_died_and_came_back(tmp_path: Path, is_durable: bool) -> None:
    with LocalServer(data_dir=tmp_path) if is_durable else LocalServer() as server:
        console = Console(server)
        console.queues.create("mail")
        name = console.queues.publish("mail", "hello").message_id
        console.queues.consume("mail", "w1")
        console.queues.nack("mail", name, False, error="SMTP 550")
        page = console.get(f"messages/{name}")
        assert page["verdict"]["text"] == "Dead in mail after 1 attempt: SMTP 550"
        assert page["verdict"]["action"]["queue"] == "mail"
        assert [one["kind"] for one in page["events"]] == ["published", "leased", "dead_lettered"]
        assert page["log"] | {"begins_at": None, "read_to_at": None} == {
            "begins_at": None,
            "read_to_at": None,
            "progress": 1.0,
            "is_complete": True,
            "is_torn": False,
        }
        console.queues.retry_dead_letter("mail", name)
        console.queues.consume("mail", "w2")
        console.queues.ack("mail", name)
        page = console.get(f"messages/{name}")
        assert page["verdict"]["state"] == "done"
        assert [one["kind"] for one in page["lanes"][0]["segments"]] == ["waiting", "leased", "dead", "waiting", "leased"]
        assert [one["kind"] for one in page["events"]][-3:] == ["redriven", "leased", "acked"]
        assert page["command"] == f"penstock trace {name}"


def test_every_subscription_is_a_lane_and_a_blocked_one_names_its_blocker(console: Console) -> None:
    console.topics.register_topic("orders")
    console.topics.register_subscription("audit", "orders")
    console.topics.register_subscription("billing", "orders", SubscriptionOptions(message_ordering=True))
    first, second = console.topics.publish("orders", [Message(b"1", ordering_key="k"), Message(b"2", ordering_key="k")])
    for one in console.topics.pull("audit", 10):
        console.topics.ack(one.ack_id)
    page = console.get(f"messages/{second}")
    assert [(lane["name"], lane["state"]) for lane in page["lanes"]] == [("audit", "done"), ("billing", "waiting")]
    assert page["verdict"]["text"] == f"Waiting in billing: behind message {first} of key k. Done in 1 of 2"
    assert page["related"] == [{"kind": "blocker", "message_id": first, "text": "must be settled first in billing"}]


def test_a_dead_letter_in_a_topic_names_its_original(console: Console) -> None:
    console.topics.register_topic("dead")
    console.topics.register_subscription("keep", "dead")
    console.topics.register_topic("orders")
    policy = DeadLetterPolicy("dead", max_delivery_attempts=5)
    console.topics.register_subscription("billing", "orders", SubscriptionOptions(dead_letter_policy=policy))
    [original] = console.topics.publish("orders", [Message(b"x")])
    for _ in range(5):
        [one] = console.topics.pull("billing")
        console.topics.nack(one.ack_id)
    [letter] = console.topics.pull("keep")
    related = console.get(f"messages/{letter.id}")["related"]
    assert ("original", original) in [(one["kind"], one["message_id"]) for one in related]


@pytest.mark.parametrize("name", ["nope", "0" * 30, "f" * 30, "%00", "a" * 4000, "' OR 1=1", "☃"])
def test_an_unknown_id_is_unknown(filled: Console, name: str) -> None:
    page = filled.get(f"messages/{quote(name, safe='%')}")
    assert (page["is_known"], page["verdict"]["state"], page["message"]) == (False, "unknown", None)
    assert "which begins on" in page["verdict"]["text"]


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def bury(console: Console, queue: str, errors: list[str]) -> list[str]:
    for number, error in enumerate(errors):
        console.queues.publish(queue, {"n": number}, headers={"n": str(number)})
        found = console.queues.consume(queue, "w1")
        assert found is not None
        console.queues.nack(queue, found.message_id, False, error=error)
    return console.queues.dead_letter_ids(queue)


def test_letters_of_all_queues_are_grouped_and_shown(console: Console) -> None:
    for queue in ("mail", "sms"):
        console.queues.create(queue)
    ids = bury(console, "mail", ["SMTP 550 for 1", "boom", "SMTP 551 for 2"])
    bury(console, "sms", ["SMTP 550 for 1"])
    found = console.get("dead")
    groups = {(group["source"]["name"], group["signature"]): group for group in found["groups"]}
    assert found["total"] == 4
    assert {key: group["count"] for key, group in groups.items()} == {
        ("mail", "SMTP … for …"): 2,
        ("mail", "boom"): 1,
        ("sms", "SMTP … for …"): 1,
    }
    smtp = groups["mail", "SMTP … for …"]
    assert smtp["newest"] == [ids[2], ids[0]]
    assert sum(smtp["trend"]) == 2
    assert smtp["reason_text"] == "a consumer rejected it"
    rows = console.get(f"dead/letters?source=queue:mail&group={quote(smtp['id'])}")
    assert [row["error"] for row in rows["rows"]] == ["SMTP 551 for 2", "SMTP 550 for 1"]
    assert rows["rows"][0]["payload"]["text"] == '{"n":2}'
    where = quote("header.n=1 AND error~BOOM")
    assert [row["message_id"] for row in console.get(f"dead/letters?source=queue:mail&where={where}")["rows"]] == [ids[1]]
    assert console.call("GET", "/console/api/dead/letters?source=queue:mail&where=nonsense").status == 400


def test_a_selection_is_frozen_redriven_and_watched(console: Console) -> None:
    console.queues.create("mail")
    bury(console, "mail", ["a", "a", "b"])
    console.queues.publish("mail", "newer")
    console.queues.pause("mail")
    preview = console.done("dead/preview", {"source": "queue:mail", "where": "error=a"})
    assert (preview["matched"], preview["newer"], preview["is_paused"], preview["again"]) == (2, 1, True, 0)
    assert preview["text"][0].startswith("2 letters of mail match, the oldest died at ")
    assert "The queue is paused: nothing will move." in preview["text"]
    console.queues.resume("mail")
    bury(console, "mail", ["a"])  # later than the selection, and not in it; the newer message went with it
    job = console.done("dead/redrive", {"selection": preview["selection"]})
    job = console.until(f"jobs/{job['id']}", lambda found: found["state"] != "running")
    assert (job["state"], job["total"], job["moved"], job["waiting"]) == ("done", 2, 2, 3 - 1)
    first = console.queues.consume("mail", "w1")
    second = console.queues.consume("mail", "w1")
    assert first is not None
    assert second is not None
    console.queues.ack("mail", first.message_id)
    console.queues.nack("mail", second.message_id, False, error="a")
    job = console.get(f"jobs/{job['id']}")
    assert (job["acked"], job["dead_again"], job["waiting"]) == (1, 1, 0)
    assert console.get("jobs")["jobs"] == [job]
    assert [row["again"] for row in console.get("dead/letters?source=queue:mail&where=error%3Da")["rows"]].count(True) == 1
    assert ("redrive_dead_letters", "mail", 2) in audits(console)


def test_a_redrive_of_one_and_taking_it_back(console: Console) -> None:
    console.queues.create("mail")
    ids = bury(console, "mail", ["a", "b", "c"])
    preview = console.done("dead/preview", {"source": "queue:mail"})
    job = console.done("dead/redrive", {"selection": preview["selection"], "limit": 2, "rate": 1000})
    job = console.until(f"jobs/{job['id']}", lambda found: found["state"] != "running")
    assert (job["total"], job["moved"], job["waiting"]) == (2, 2, 2)
    console.queues.consume("mail", "w1")
    job = console.done(f"jobs/{job['id']}/take-back", {})
    assert (job["taken_back"], job["moved"], job["text"]) == (1, 1, "1 taken back, 1 already delivered")
    letters = {letter.message.message_id: letter for letter in console.queues.dead_letters("mail")}
    assert letters.keys() == {ids[1], ids[2]}
    assert (letters[ids[1]].reason, letters[ids[1]].last_error, letters[ids[1]].attempts) == ("explicit_nack", "b", 1)


def test_a_slow_redrive_can_be_stopped(console: Console) -> None:
    console.queues.create("mail")
    bury(console, "mail", ["a", "b", "c"])
    preview = console.done("dead/preview", {"source": "queue:mail"})
    job = console.done("dead/redrive", {"selection": preview["selection"], "rate": 0.001})
    console.until(f"jobs/{job['id']}", lambda found: found["moved"] == 1)
    job = console.done(f"jobs/{job['id']}/stop", {})
    assert (job["state"], job["moved"], job["left"]) == ("stopped", 1, 2)
    assert len(console.queues.dead_letter_ids("mail")) == 2


def test_letters_are_exported_and_purged_by_name(console: Console) -> None:
    console.queues.create("mail")
    bury(console, "mail", ["a", "b"])
    preview = console.done("dead/preview", {"source": "queue:mail", "message_ids": console.queues.dead_letter_ids("mail")[:1]})
    lines = console.call("GET", f"/console/api/dead/export?selection={preview['selection']}").body.splitlines()
    assert [json.loads(line)["last_error"] for line in lines] == ["a"]
    assert console.post("dead/purge", {"selection": preview["selection"]}).reason == "confirmation_required"
    assert console.done("dead/purge", {"selection": preview["selection"], "confirm": "mail"}) == {"purged": 1}
    assert len(console.queues.dead_letter_ids("mail")) == 1
    assert ("purge_dead_letters", "mail", 1) in audits(console)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("dead/preview", {}, 400),
        ("dead/preview", {"source": "mail"}, 400),
        ("dead/preview", {"source": "queue:nope"}, 404),
        ("dead/preview", {"source": "queue:mail", "where": "x"}, 400),
        ("dead/redrive", {"selection": "s-0"}, 400),
        ("dead/redrive", {"selection": "s-0", "rate": 0}, 400),
        ("dead/redrive", {"selection": "s-0", "limit": 0}, 400),
        ("dead/purge", {"selection": "s-0", "confirm": "mail"}, 400),
        ("jobs/j-1/stop", {}, 404),
        ("jobs/j-1/take-back", {}, 404),
    ],
)
def test_a_redrive_of_nothing_is_a_clear_error(filled: Console, path: str, body: dict[str, object], status: int) -> None:
    found = filled.post(path, body)
    assert found.status == status, found.body


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_token_there_are_the_pages_and_nothing_else(secured: Callable[..., Console]) -> None:
    nobody = Console(secured(Verb.READ).server)
    assert nobody.call("GET", "/console").status == 200
    assert nobody.call("GET", "/console/static/index.html").status == 200
    for path in ("session", "overview", "queues", "dead", "messages/x", "streams/queue/mail/messages", "jobs"):
        assert nobody.call("GET", f"/console/api/{path}").status == 401, path
    assert nobody.post("queues/mail/pause", {}).status == 401


def test_a_token_that_reads_sees_figures_and_no_payloads_and_changes_nothing(secured: Callable[..., Console]) -> None:
    everything, reader = secured(*Verb), secured(Verb.READ)
    everything.queues.create("mail")
    everything.queues.publish("mail", "secret words")
    assert reader.get("session")["verbs"] == ["metrics", "read"]
    assert reader.get("queues")["rows"][0]["ready"] == 1
    listed = reader.get("streams/queue/mail/messages")
    assert (listed["payloads"], listed["rows"][0]["preview"]) == ("denied", None)
    assert reader.get("streams/queue/mail/messages/0")["payload"] == {
        "state": "denied",
        "size": 12,
        "text": None,
        "base64": None,
        "is_cut": False,
        "is_json": False,
    }
    for path in ("messages?text=secret", "messages/0/raw"):
        assert reader.call("GET", f"/console/api/streams/queue/mail/{path}").status == 403, path
    assert reader.call("GET", "/console/api/queues/mail/peek").status == 403
    for path in ("queues/mail/pause", "queues/mail/purge", "dead/preview", "dead/redrive", "streams/queue/mail/publish"):
        found = reader.post(path, {"confirm": "mail"})
        assert found.status == 403, path
        assert re.search("manage|publish", found.json["error"]["message"]), path
    assert not everything.queues.stats("mail").paused
    assert everything.get("streams/queue/mail/messages?text=SECRET")["rows"][0]["preview"] == "secret words"


def test_a_token_without_read_sees_nothing(secured: Callable[..., Console]) -> None:
    publisher = secured(Verb.PUBLISH)
    assert publisher.get("session")["verbs"] == ["publish"]
    for path in ("overview", "queues", "queues/mail", "topics", "dead", "messages/x", "streams/queue/mail/messages"):
        assert publisher.call("GET", f"/console/api/{path}").status == 403, path


def test_a_token_for_some_names_sees_only_those(secured: Callable[..., Console]) -> None:
    everything, some = secured(*Verb), secured(*Verb, project="penstock", names=("mail*",))
    for queue in ("mail", "secret"):
        everything.queues.create(queue)
        bury(everything, queue, ["a"])
        everything.queues.publish(queue, "x")
    [hidden] = everything.queues.dead_letter_ids("secret")
    assert [row["name"] for row in some.get("queues")["rows"]] == ["mail"]
    assert some.get("overview")["totals"]["queues"] == 1
    assert some.get("dead")["total"] == 1
    assert not some.get(f"messages/{hidden}")["is_known"]
    for path in ("queues/secret", "streams/queue/secret/messages", "dead/letters?source=queue:secret", "queues/nope"):
        assert some.call("GET", f"/console/api/{path}").status == 403, path
    assert some.post("queues/secret/purge", {"confirm": "secret"}).status == 403
    selection = everything.done("dead/preview", {"source": "queue:secret"})["selection"]
    assert some.post("dead/redrive", {"selection": selection}).status == 403
    assert some.post("dead/purge", {"selection": selection, "confirm": "secret"}).status == 403
    assert some.call("GET", f"/console/api/dead/export?selection={selection}").status == 403


def test_a_token_of_one_project_does_not_see_another(secured: Callable[..., Console]) -> None:
    everything, shop = secured(*Verb), secured(*Verb, project="shop")
    everything.queues.create("mail")
    name = everything.queues.publish("mail", "x").message_id
    everything.queues.create("shop/mail")
    assert shop.get("session")["project"] == "shop"
    assert everything.get("session")["projects"] == ["penstock", "shop"]
    assert shop.get("session")["projects"] == ["shop"]
    assert shop.get("queues")["rows"][0]["backlog"] == 0
    assert shop.call("GET", "/console/api/queues?project=penstock").status == 403
    assert not shop.get(f"messages/{name}")["is_known"]
    assert everything.get("queues?project=shop")["total"] == 1


def test_hidden_payloads_are_neither_shown_nor_searched() -> None:
    with LocalServer(console_payloads="hidden") as server:
        console = Console(server)
        console.queues.create("mail")
        name = console.queues.publish("mail", "secret words").message_id
        assert console.get("session")["payloads"] == "hidden"
        assert console.get("streams/queue/mail/messages")["rows"][0]["preview"] is None
        for path in ("streams/queue/mail/messages/0", f"messages/{name}", "queues/mail/peek"):
            assert "secret" not in json.dumps(console.get(path)), path
        console.queues.publish("mail", {"v": 1, "task": "secret_task"})
        for _ in range(2):
            taken = console.queues.consume("mail", "w1")
            assert taken is not None
            console.queues.ack("mail", taken.message_id)
        found = console.until("workers", lambda page: page["tasks"]["deliveries"] == 2)
        assert [(row["queue"], row["task"], row["done"]) for row in found["tasks"]["rows"]] == [("mail", None, 2)]
        for path in ("messages?text=secret", "messages/0/raw"):
            assert console.call("GET", f"/console/api/streams/queue/mail/{path}").reason == "failed_precondition", path


# ── workers, hub, pipeline, router, settings ─────────────────────────────────────────────────────────────────────────────────


def test_workers_are_shown_with_what_they_hold(console: Console) -> None:
    assert console.get("workers")["workers"] == []
    console.queues.create("mail")
    name = console.queues.publish("mail", {"v": 1, "task": "send_mail", "args": []}).message_id
    console.queues.publish("mail", b"no task")
    console.queues.consume("mail", "w1")
    console.queues.consume("mail", "w1")
    [worker] = console.get("workers")["workers"]
    assert (worker["name"], worker["queues"], worker["held"]) == ("w1", ["mail"], 2)
    assert (name, "send_mail") in [(one["message_id"], one["task"]) for one in worker["running"]]
    session = console.get("session")
    assert all(session["started_at"] < one["since_at"] < one["deadline_at"] for one in worker["running"])


def test_a_worker_that_waits_is_connected(console: Console) -> None:
    async def scenario() -> None:
        async with PubSub(console.server.url) as pubsub:
            queue = await pubsub.queue("mail").create()
            waiting = asyncio.create_task(queue.consume(wait=PATIENCE, consumer="idle"))
            found = await asyncio.to_thread(console.until, "workers", lambda page: page["workers"])
            waiting.cancel()
        [worker] = found["workers"]
        assert (worker["name"], worker["queues"], worker["held"]) == ("idle", ["mail"], 0)

    asyncio.run(scenario())


def test_how_deliveries_ended_is_shown_with_the_worst_queue_first(console: Console) -> None:
    for name, ends in (("fine", "ack"), ("broken", "nack")):
        console.queues.create(name, QueueConfig(max_retries=0))
        console.queues.publish(name, b"1")
        message = console.queues.consume(name)
        assert message is not None
        getattr(console.queues, ends)(name, message.message_id)
    console.queues.create("unused")
    found = console.get("workers")["outcomes"]
    assert found == [
        {"queue": "broken", "done": 0, "failed": 1, "dead": 1},
        {"queue": "fine", "done": 1, "failed": 0, "dead": 0},
    ]


def test_deliveries_of_a_worker_are_shown_by_task(console: Console) -> None:
    before = console.get("workers")["tasks"]
    assert (before["deliveries"], before["rows"]) == (0, [])

    async def scenario() -> None:
        async with PubSub(console.server.url) as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("mail")
            async def send_mail(number: int) -> None:
                pass

            @worker.task("mail", max_retries=1, backoff=0)
            async def send_fax() -> None:
                raise ValueError("nobody has a fax")

            for number in range(3):
                await send_mail.send(number)
            await send_fax.send()
            await worker.start()
            await asyncio.to_thread(console.until, "workers", lambda page: page["tasks"]["deliveries"] == 5)
            await worker.stop()

    asyncio.run(scenario())
    console.queues.publish("mail", b"no task")
    taken = console.queues.consume("mail", "w1")
    assert taken is not None
    console.queues.nack("mail", taken.message_id, False)
    tasks = console.until("workers", lambda page: page["tasks"]["deliveries"] == 6)["tasks"]
    outcomes = {
        row["task"] and row["task"].rpartition(".")[2]: (row["done"], row["failed"], row["dead"]) for row in tasks["rows"]
    }
    assert outcomes == {"send_mail": (3, 0, 0), "send_fax": (0, 2, 1), None: (0, 1, 1)}
    assert all(0 <= row["p50_seconds"] <= row["p95_seconds"] < PATIENCE for row in tasks["rows"])
    assert before["since_at"] <= tasks["since_at"]


def test_tasks_are_named_to_those_who_may_see_payloads_of_the_queue(secured: Callable[..., Console]) -> None:
    operator = secured(*Verb)
    for name in ("mail", "secret"):
        operator.queues.create(name)
        operator.queues.publish(name, {"v": 1, "task": "work", "args": []})
        taken = operator.queues.consume(name, "w1")
        assert taken is not None
        operator.queues.ack(name, taken.message_id)
    assert [(row["queue"], row["task"]) for row in named(operator)] == [("mail", "work"), ("secret", "work")]
    assert [(row["queue"], row["task"]) for row in named(secured(Verb.READ))] == [("mail", None), ("secret", None)]
    assert [(row["queue"], row["task"]) for row in named(secured(*Verb, names=("mail",)))] == [("mail", "work")]


def named(console: Console) -> Any:
    return console.until("workers", lambda page: page["tasks"]["rows"])["tasks"]["rows"]


def push_to(console: Console, endpoint: str) -> None:
    body = {"topic": "projects/penstock/topics/orders", "pushConfig": {"pushEndpoint": endpoint}}
    made = console.call("PUT", "/v1/projects/penstock/subscriptions/pushed", json.dumps(body).encode(), **JSON)
    assert made.status == 200


def test_endpoints_are_named_to_those_who_may_consume(secured: Callable[..., Console]) -> None:
    operator = secured(*Verb)
    operator.topics.register_topic("orders")
    push_to(operator, "https://shop.example/hook")
    assert operator.get("subscriptions")["rows"][0]["push"] == "https://shop.example/hook"
    assert "shop.example" not in secured(Verb.READ).get("subscriptions")["rows"][0]["push"]


def test_a_subscription_says_how_far_it_is_and_where_it_pushes_to(console: Console) -> None:
    topics = console.topics
    topics.register_topic("orders")
    topics.register_subscription("billing", "orders")
    assert console.get("subscriptions/billing")["position"] == {"settled_to": 0, "latest": 0}
    topics.publish("orders", [Message(b"1"), Message(b"2"), Message(b"3")])
    [first, second] = topics.pull("billing", 2)
    topics.ack(second.ack_id)
    assert console.get("subscriptions/billing")["position"] == {"settled_to": 0, "latest": 3}
    topics.ack(first.ack_id)
    assert console.get("subscriptions/billing")["position"] == {"settled_to": 2, "latest": 3}
    push_to(console, "https://shop.example/hook?key=secret")
    rows = {row["name"]: row["push"] for row in console.get("subscriptions")["rows"]}
    assert rows == {"billing": None, "pushed": "https://shop.example/hook"}


def test_the_hub_and_the_readers_of_the_log_are_shown(console: Console) -> None:
    hub = console.get("hub")
    assert (hub["connections"], hub["actors"], hub["topic_rows"]) == (0, 0, [])
    assert console.get("pipeline")["cursors"] == []
    console.topics.register_topic("orders")
    console.topics.publish("orders", [Message(b"1"), Message(b"2"), Message(b"3")])
    console.server.broker.cursors.advance("lake", {"orders": 1}, console.server.broker.clock.now(), True)
    [cursor] = console.get("pipeline")["cursors"]
    assert (cursor["name"], cursor["lag"], cursor["holds"]) == ("lake", 2, True)
    [position] = cursor["streams"]
    [first, *_] = console.get("streams/topic/orders/messages")["rows"]
    assert position == {"stream": "orders", "offset": 1, "lag": 2, "read_to_at": first["published_at"]}
    console.server.broker.cursors.advance("lake", {"_penstock.events": 1}, console.server.broker.clock.now())
    [cursor] = console.get("pipeline")["cursors"]
    assert console.get("session")["started_at"] <= cursor["streams"][0]["read_to_at"] <= first["published_at"]


def test_the_newest_metrics_of_the_pipeline_are_shown(console: Console) -> None:
    assert console.get("pipeline")["metrics"] == []
    counts = dict.fromkeys(("published", "delivered", "acked", "nacked", "expired", "dead_lettered", "dropped"), 3)
    row = {"window_end": "2026-05-03T14:00:00.000Z", "stream": "orders", "subscription": None, "wait_p95_ms": 1.5, **counts}
    console.topics.register_topic("_penstock.metrics")
    console.topics.publish("_penstock.metrics", [Message(json.dumps(row).encode()), Message(b"nonsense")])
    [line] = console.get("pipeline")["metrics"]
    assert (line["stream"], line["published"], line["wait_p95_ms"]) == ("orders", 3, 1.5)


def test_levels_of_queues_pools_and_targets_are_shown(filled: Console, tmp_path: Path) -> None:
    filled.queues.publish("mail", "urgent", priority=9)
    levels = {(one["kind"], one["name"], one.get("priority")): one for one in filled.get("levels")["levels"]}
    mail = levels["queue", "mail", None]
    assert (mail["ready"], mail["in_flight"], mail["dead"], mail["oldest_seconds"] > 0) == (3, 1, 1, True)
    assert levels["queue", "mail", 9]["ready"] == 1
    assert levels["subscription", "billing", None]["ready"] == 2
    assert filled.get("levels/history") == {"windows": []}

    file = tmp_path / "router.json"
    pools = [{"code": "default", "concurrency": 2}]
    file.write_text(json.dumps({"queues": [{"queueUri": "penstock:///in"}], "connections": 1, "processingPools": pools}))
    with LocalServer(router=str(file)) as server:
        found = Console(server).until("levels", lambda page: any(one["kind"] == "pool" for one in page["levels"]))
        assert found["levels"][-1] == {"kind": "pool", "name": "default", "utilisation": 0.0}


def test_the_newest_triage_is_shown_to_those_who_may_see_everything(console: Console) -> None:
    assert console.get("triage") == {"at": None, "total": 0, "groups": []}
    filled = fill(console.server.broker)
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    publish_triage(filled, at.replace(day=1))
    group = publish_triage(filled, at.replace(day=2))
    console.topics.publish("_penstock.triage", [Message(b"nonsense")])
    found = console.get("triage")
    assert (found["at"], found["total"]) == ("2026-01-02T12:00:00Z", 4)
    (cause,) = found["groups"]
    assert (cause["id"], cause["samples"]) == (group, [filled.dead_mail])
    assert cause["shape"] == "{order: number, template: string, to: string}"
    assert console.get("pipeline")["triages"] == 3


def test_a_triage_names_the_fields_of_payloads_to_those_who_may_see_payloads(secured: Callable[..., Console]) -> None:
    reader = secured(Verb.READ)
    publish_triage(fill(reader.server.broker), datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert reader.get("triage")["groups"][0]["shape"] == ""
    assert secured(Verb.READ, Verb.CONSUME).get("triage")["groups"][0]["shape"] != ""
    assert secured(Verb.READ, names=("mail",)).call("GET", "/console/api/triage").status == 403


def test_the_actors_of_the_hub_are_shown(console: Console) -> None:
    async def scenario() -> Any:
        actor = HubClient(console.server.url, address="@(shop/1)", capabilities=("sell",))
        async with actor, actor.subscribe("orders/#"):
            return await asyncio.to_thread(console.get, "hub")

    found = asyncio.run(scenario())
    [actor] = found["actor_rows"]
    assert (actor["address"], actor["capabilities"], actor["subscriptions"]) == ("@(shop/1)", ["sell"], 1)
    assert found["topic_rows"] == [{"name": "orders/#", "subscribers": 1}]


def test_a_server_without_a_router_has_no_page_of_it(console: Console) -> None:
    assert not console.get("session")["parts"]["router"]
    assert console.call("GET", "/console/api/router").status == 404


def test_a_router_is_shown_without_rates_of_nothing(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    pools = [{"code": "default", "concurrency": 2}]
    file.write_text(json.dumps({"queues": [{"queueUri": "penstock:///in"}], "connections": 1, "processingPools": pools}))
    with LocalServer(router=str(file)) as server:
        console = Console(server)
        found = console.until("router", lambda page: bool(page["pools"]))
        assert found["pools"][0]["success_rate"] is None
        assert found["targets"] == []
        assert found["in_flight_total"] == 0
        assert console.post("router/reset-breaker", {"target": "nope"}).status == 404
        assert console.post("router/retry-now", {"message_id": "x"}).status == 404
        assert console.post("router/pause-pool", {"pool": "nope"}).status == 404
        assert console.done("router/pause-pool", {"pool": "default"}) == {"done": "default"}
        assert console.get("router")["pools"][0]["is_paused"]
        console.done("router/resume-pool", {"pool": "default"})
        assert not console.get("router")["pools"][0]["is_paused"]
        assert console.post("router/force-ack", {"message_id": "x"}).reason == "confirmation_required"
        assert console.post("router/force-ack", {"message_id": "x", "confirm": "x"}).status == 404


def test_settings_and_tokens_are_for_those_who_manage_everything(secured: Callable[..., Console]) -> None:
    manager, reader, shop = secured(*Verb), secured(Verb.READ), secured(*Verb, project="shop")
    found = manager.get("settings")
    assert {line["name"]: line["value"] for line in found["settings"]}["auth"] == "token"
    assert len(found["tokens"]) == 3
    assert "digest" not in json.dumps(found)
    assert reader.get("settings")["tokens"] is None
    for path in ("settings", "pipeline", "hub"):
        assert shop.call("GET", f"/console/api/{path}").status == 403, path
    name = str(reader.get("session")["token"]["id"])
    assert shop.post(f"tokens/{name}/revoke", {"confirm": name}).status == 403
    assert manager.post(f"tokens/{name}/revoke", {}).reason == "confirmation_required"
    assert manager.done(f"tokens/{name}/revoke", {"confirm": name}) == {"revoked": name}
    assert manager.post(f"tokens/{name}/revoke", {"confirm": name}).status == 404
    assert len(manager.get("settings")["tokens"]) == 2
    assert ("revoke_token", name, 1) in audits(manager)


# ── live ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class LiveConsole:
    """A live connection, in a loop of its own."""

    def __init__(self, console: Console, token: str | None = None, *, origin: str | None = None, **hello: object) -> None:
        self._runner = asyncio.Runner()
        self._url, self._origin = console.server.url, origin
        self._hello = {"token": token or console.token, **hello}

    def __enter__(self) -> "LiveConsole":
        self._runner.run(self._connect())
        self.say(self._hello)
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._session.close())
        self._runner.close()

    async def _connect(self) -> None:
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(f"{self._url}/console/live", origin=self._origin)

    def say(self, frame: object) -> None:
        self._runner.run(self._socket.send_str(frame if isinstance(frame, str) else json.dumps(frame)))

    def hear(self) -> Any:
        return json.loads(self._runner.run(self._socket.receive_str(timeout=PATIENCE)))

    def until(self, is_right: Callable[[Any], bool]) -> Any:
        while not is_right(found := self.hear()):
            pass
        return found

    def closed(self) -> int:
        async def read() -> int:
            while (await self._socket.receive(timeout=PATIENCE)).type != aiohttp.WSMsgType.CLOSE:
                pass
            return self._socket.close_code or 0

        return self._runner.run(read())


def test_a_watched_view_comes_at_once_and_again(filled: Console) -> None:
    with LiveConsole(filled) as live:
        assert live.hear()["session"]["project"] == "penstock"
        live.say({"watch": {"view": "queues", "key": "k1", "sort": "name", "limit": 10}})
        first = live.hear()
        assert (first["type"], first["view"], first["key"]) == ("snapshot", "queues", "k1")
        assert first["data"]["rows"][0]["ready"] == 2
        assert first["pulse"]["dead"] == 1
        filled.queues.publish("mail", "more")
        live.until(lambda frame: frame["data"]["rows"][0]["ready"] == 3)
        live.say({"watch": {"view": "queue", "key": "k2", "name": "mail"}})
        live.until(lambda frame: frame["key"] == "k2" and frame["data"]["row"]["ready"] == 3)


@pytest.mark.parametrize(
    "watch",
    [
        {"view": "overview"},
        {"view": "subscriptions"},
        {"view": "subscription", "name": "billing"},
        {"view": "topics"},
        {"view": "topic", "name": "orders"},
        {"view": "tail", "kind": "queue", "name": "mail"},
        {"view": "message", "id": "nope"},
        {"view": "dead"},
        {"view": "jobs"},
    ],
)
def test_every_view_can_be_watched_and_is_what_get_answers(filled: Console, watch: dict[str, object]) -> None:
    with LiveConsole(filled) as live:
        live.hear()
        live.say({"watch": watch})
        frame = live.hear()
        assert frame["type"] == "snapshot", frame
        path = {
            "tail": "streams/queue/mail/tail",
            "message": "messages/nope",
            "topic": "topics/orders",
            "subscription": "subscriptions/billing",
        }.get(str(watch["view"]), str(watch["view"]))
        assert frame["data"].keys() == filled.get(path).keys()


def test_a_rate_appears_while_somebody_looks(console: Console) -> None:
    console.queues.create("mail")
    with LiveConsole(console) as live:
        live.hear()
        live.say({"watch": {"view": "queues"}})

        def has_rate(frame: Any) -> bool:
            console.queues.publish("mail", "x")
            return bool(frame["data"]["rows"][0]["in_rate"])

        live.until(has_rate)


@pytest.mark.parametrize(
    "frame",
    [
        {"watch": {"view": "nope"}},
        {"watch": {"view": 7}},
        {"watch": {}},
        {"watch": {"view": "queues", "limit": "all"}},
        {"watch": {"view": "queues", "x": 1}},
        {"watch": {"view": "queues", "key": "x" * 201}},
        {"watch": {"view": "queue", "name": "nope"}},
        {"nope": 1},
        "[" * 1000,
        "no JSON",
    ],
)
def test_a_frame_that_cannot_be_is_an_error_and_the_connection_stays(filled: Console, frame: object) -> None:
    with LiveConsole(filled) as live:
        live.hear()
        live.say(frame)
        assert live.hear()["type"] == "error"
        live.say({"watch": {"view": "overview"}})
        live.until(lambda said: said["type"] == "snapshot")


def test_nobody_comes_in_without_a_token_or_to_a_foreign_project(secured: Callable[..., Console]) -> None:
    reader = secured(Verb.READ, project="shop")
    with LiveConsole(reader, token="pk_000000000000_" + "0" * 43) as live:
        assert live.hear()["error"]["code"] == 401
        assert live.closed() == 4401
    with LiveConsole(Console(reader.server)) as live:
        assert live.closed() == 4401
    with LiveConsole(reader, project="a b") as live:
        assert live.closed() == 4400
    with LiveConsole(reader, project="penstock") as live:
        live.hear()
        live.say({"watch": {"view": "queues"}})
        assert live.hear()["error"]["code"] == 403


def test_a_revoked_token_ends_the_connection(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    keyring = Keyring(file)
    secret = keyring.create("t", SystemClock().now(), verbs=[Verb.READ])
    with LocalServer(auth="token", token_file=file) as server, LiveConsole(Console(server, secret)) as live:
        live.hear()
        live.say({"watch": {"view": "overview"}})
        live.hear()
        keyring.revoke(secret.split("_")[1])
        assert live.closed() == 4401


def test_a_page_of_another_site_cannot_connect(console: Console) -> None:
    live = LiveConsole(console, origin="https://evil.example")
    with pytest.raises(aiohttp.WSServerHandshakeError):
        live.__enter__()
    live.__exit__()


# ── scale ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_totals_of_half_an_hour_are_kept_without_anybody_looking() -> None:
    clock = ManualClock()
    with LocalServer(clock=clock) as server:
        console = Console(server)
        console.queues.create("mail")
        console.get("overview")
        for _ in range(3):
            console.queues.publish("mail", "x")
        clock.advance(5)
        console.post("queues/mail/resume", {})  # what is changed by the console is sampled at once
        series = console.get("overview")["series"]
        assert series["in"][-1] == 0.6
        assert series["backlog"][-1] == 3
