"""The log API over real sockets: every route, what it answers, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import MessageQueue
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import ArrowUnavailable
from penstock.extras import how_to_install
from penstock.log.arrow import read_events, read_stream
from penstock.log.http import HttpLog
from penstock.log.log import EVENTS
from penstock.server.server import _greeting
from penstock.testing.server import LocalServer
from tests.integration.log.log_server import Answer, arrow_body, ask, bury, fill


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    yield from served(tmp_path_factory)


def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(data_dir=tmp_path_factory.mktemp("log")) as server:
        fill(server.broker, "orders", 5000)
        fill(server.broker, "other/orders", 7)
        bury(server.broker, "jobs")
        yield server


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The same, for tests that count what there is: no other test makes topics here."""
    yield from served(tmp_path_factory)


def get(server: LocalServer, path: str) -> Answer:
    return ask(server.url, "GET", path)


def test_streams_are_listed_with_what_there_is_of_them(untouched: LocalServer) -> None:
    server = untouched
    found = get(server, "/log/streams").json()

    stream = server.broker.catalog.topic("orders")
    assert [span["stream"] for span in found["streams"]] == ["orders", "queue:jobs"]
    assert found["streams"][0] == {
        "stream": "orders",
        "number": stream.number,
        "earliest": 0,
        "latest": 5000,
        "published_at": stream.published_at,
    }
    assert found["events"]["earliest"] == 0
    assert found["events"]["latest"] > 5000


def test_streams_are_chosen_by_name_pattern_and_project(untouched: LocalServer) -> None:
    cases = {
        "name=orders": ["orders"],
        "name=queue:jobs&name=orders": ["queue:jobs", "orders"],
        "pattern=or.*": ["orders"],
        "pattern=order": [],
        "pattern=.*": ["orders", "queue:jobs"],
        "pattern=queue:.*|orders": ["orders", "queue:jobs"],
        "project=other": ["orders"],
        "project=nobody": [],
    }
    found = {query: get(untouched, f"/log/streams?{query}").json()["streams"] for query in cases}
    assert {query: [span["stream"] for span in streams] for query, streams in found.items()} == cases


def test_a_range_comes_as_arrow(server: LocalServer) -> None:
    answer = get(server, "/log/messages?stream=orders&start=1200&stop=3500")

    assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    wanted = [row for batch in read_stream(server.broker, "orders", 1200, 3500) for row in batch.to_pylist()]
    assert answer.table().to_pylist() == wanted


def test_batches_may_be_compressed(server: LocalServer) -> None:
    plain = get(server, "/log/messages?stream=orders&compression=none")
    assert plain.table().num_rows == 5000
    for compression in ("lz4", "zstd"):
        answer = get(server, f"/log/messages?stream=orders&compression={compression}")
        assert answer.table().num_rows == 5000
        assert len(answer.body) < len(plain.body) / 2


def test_columns_and_keys_are_chosen(server: LocalServer) -> None:
    table = get(server, "/log/messages?stream=orders&columns=offset,key&key=k1&key=k3&start=10&stop=21").table()

    assert table.column_names == ["offset", "key"]
    assert table.to_pydict() == {"offset": [11, 13, 16, 18], "key": ["k1", "k3", "k1", "k3"]}


def test_an_empty_range_is_an_empty_stream(server: LocalServer) -> None:
    for query in ("stream=orders&start=7&stop=7", "stream=orders&key=nobody", "stream=orders&start=5000"):
        answer = get(server, f"/log/messages?{query}")
        assert answer.table().num_rows == 0
        assert "value" in answer.table().column_names


def test_a_post_asks_the_same(server: LocalServer) -> None:
    fields = {"stream": "orders", "start": 3, "stop": 9, "columns": ["offset"], "keys": ["k0", "k1"]}

    assert ask(server.url, "POST", "/log/messages", fields).table().column(0).to_pylist() == [5, 6]
    assert ask(server.url, "POST", "/log/streams", {"names": ["orders"]}).json()["streams"][0]["latest"] == 5000


def test_a_head_says_what_would_come(server: LocalServer) -> None:
    answer = ask(server.url, "HEAD", "/log/messages?stream=orders")

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"


def test_another_project_has_its_own_names(server: LocalServer) -> None:
    table = get(server, "/log/messages?stream=orders&project=other").table()

    assert table.num_rows == 7
    assert set(table.column("stream").to_pylist()) == {"orders"}


def test_events_come_as_they_are(server: LocalServer) -> None:
    latest = get(server, "/log/streams").json()["events"]["latest"]
    wanted = [row for batch in read_events(server.broker, 0, latest) for row in batch.to_pylist()]

    assert get(server, f"/log/events?stop={latest}").table().to_pylist() == wanted
    some = get(server, f"/log/events?stream=queue:jobs&stop={latest}").table().to_pylist()
    assert some == [row for row in wanted if row["stream"] == "queue:jobs"]
    others = get(server, f"/log/events?project=other&stop={latest}").table()
    assert set(others.column("stream").to_pylist()) == {"orders"}


def test_dead_letters_come_with_their_payloads(server: LocalServer) -> None:
    (letter,) = get(server, "/log/deadletters").table().to_pylist()

    assert (letter["stream"], letter["subscription"], letter["value"], letter["error"]) == ("queue:jobs", "jobs", b"dies", "no")
    assert get(server, "/log/deadletters?stream=orders").table().num_rows == 0


def test_offsets_of_instants(server: LocalServer) -> None:
    stream = server.broker.catalog.topic("orders")
    first = next(iter(server.broker.journal.summaries(stream.number, 0, 1))).published_at

    def offset(at: int, name: str = "orders") -> int:
        found = ask(server.url, "POST", "/log/offsets", {"times": {name: at}}).json()["offsets"]
        return int(found[name])

    assert (offset(0), offset(first), offset(stream.published_at + 1)) == (0, 0, 5000)
    assert 0 < offset(first + 1) <= 1000
    assert (offset(0, EVENTS), offset(2**58, EVENTS)) == (0, get(server, "/log/streams").json()["events"]["latest"])


def test_limits_share_fairly(server: LocalServer) -> None:
    def ends(starts: dict[str, int], most: int) -> dict[str, int]:
        found = ask(server.url, "POST", "/log/limits", {"starts": starts, "max_bytes": most}).json()["offsets"]
        return dict(found)

    assert ends({"orders": 0}, 1) == {"orders": 1}
    assert 400 <= ends({"orders": 10}, 6000)["orders"] <= 600
    assert ends({"orders": 0, "queue:jobs": 0}, 10_000_000) == {"orders": 5000, "queue:jobs": 1}
    assert ends({}, 5) == {}


def test_cursors_are_set_listed_and_forgotten(server: LocalServer) -> None:
    path = "/log/cursors/spark%20job"
    made = ask(server.url, "PUT", path, {"offsets": {"orders": 4000, EVENTS: 0}, "holds": True}).json()

    assert (made["name"], made["offsets"]["orders"], made["lag"]["orders"], made["holds"]) == ("spark job", 4000, 1000, True)
    moved = ask(server.url, "PUT", path, {"offsets": {"orders": 4500}}).json()
    assert (moved["offsets"], moved["holds"]) == ({"orders": 4500, EVENTS: 0}, True)
    assert get(server, path).json()["lag"]["orders"] == 500
    assert [cursor["name"] for cursor in get(server, "/log/cursors").json()] == ["spark job"]
    assert get(server, "/log/cursors?project=other").json() == []
    assert ask(server.url, "DELETE", path).status == 200
    assert ask(server.url, "DELETE", path).error["reason"] == "cursor_not_found"
    assert get(server, "/log/cursors").json() == []


def test_a_write_is_staged_listed_and_committed(server: LocalServer) -> None:
    MessageQueue(broker=server.broker).register_topic("sink")
    put = ask(server.url, "PUT", "/log/writes/w1/parts/0?stream=sink", arrow_body(value=["a", "b"]))

    assert put.json() == {"part": "0", "rows": 2, "bytes": put.json()["bytes"]}
    (write,) = get(server, "/log/writes").json()
    assert (write["write"], write["state"], write["parts"], write["rows"], write["streams"]) == ("w1", "staged", 1, 2, ["sink"])
    assert write["age_seconds"] < 60
    fields = {"parts": ["0"], "query": "q1", "batch": 0}
    assert ask(server.url, "POST", "/log/writes/w1/commit", fields).json() == {"rows": 2, "is_repeat": False}
    assert ask(server.url, "POST", "/log/writes/w1/commit", fields).json() == {"rows": 2, "is_repeat": True}
    assert get(server, "/log/writes").json() == []
    assert get(server, "/log/messages?stream=sink").table().column("value").to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("encoding", ["JSON", "BINARY"])
def test_rows_have_to_fit_the_schema_of_their_topic(server: LocalServer, encoding: str) -> None:
    topic, project = f"readings-{encoding.lower()}", "/v1/projects/penstock"
    fields = [{"name": "celsius", "type": "int"}]
    definition = json.dumps({"type": "record", "name": "Reading", "fields": fields})
    schema = ask(server.url, "POST", f"{project}/schemas?schemaId={topic}", {"type": "AVRO", "definition": definition})
    settings = {"schema": schema.json()["name"], "encoding": encoding}
    assert ask(server.url, "PUT", f"{project}/topics/{topic}", {"schemaSettings": settings}).status == 200
    # In Avro's binary form, a whole number is zigzag: 21 is 42.
    good, bad = (b'{"celsius": 21}', b'{"celsius": "warm"}') if encoding == "JSON" else (b"\x2a", b"\x2a\x2a")
    path = f"/log/writes/{topic}/parts"

    refused = ask(server.url, "PUT", f"{path}/0?stream={topic}", arrow_body(value=[good, bad]))
    assert (refused.status, refused.error["reason"]) == (400, "invalid_argument")
    assert "schema" in refused.error["message"].lower()
    staged = ask(server.url, "PUT", f"{path}/0?stream={topic}", arrow_body(value=[good, good])).json()
    assert staged["rows"] == 2
    done = ask(server.url, "POST", f"/log/writes/{topic}/commit", {"parts": ["0"], "query": topic, "batch": 0})
    assert done.json() == {"rows": 2, "is_repeat": False}
    table = get(server, f"/log/messages?stream={topic}").table()
    assert table.column("value").to_pylist() == [good, good]
    attributes = [dict(pairs) for pairs in table.column("attributes").to_pylist()]
    assert all(one["googclient_schemaencoding"] == encoding for one in attributes)


def test_an_aborted_write_is_forgotten(server: LocalServer) -> None:
    ask(server.url, "PUT", "/log/writes/w2/parts/0?stream=orders", arrow_body(value=["a"]))

    assert ask(server.url, "DELETE", "/log/writes/w2").status == 200
    assert ask(server.url, "DELETE", "/log/writes/w2").status == 200
    refused = ask(server.url, "POST", "/log/writes/w2/commit", {"parts": ["0"], "query": "q2", "batch": 0})
    assert (refused.status, refused.error["reason"]) == (404, "part_not_found")


def test_a_topic_is_made_once(server: LocalServer) -> None:
    assert ask(server.url, "PUT", "/log/streams/_penstock.metrics").json() == {"created": True}
    assert ask(server.url, "PUT", "/log/streams/_penstock.metrics").json() == {"created": False}
    assert "_penstock.metrics" in server.broker.catalog.topics
    MessageQueue(broker=server.broker).unregister_topic("_penstock.metrics")


def test_a_name_may_be_long(server: LocalServer) -> None:
    name = "n" * 1024
    MessageQueue(broker=server.broker).register_topic(name)
    assert get(server, f"/log/messages?stream={name}").table().num_rows == 0
    MessageQueue(broker=server.broker).unregister_topic(name)


HUGE = "9" * 30
GOOD = arrow_body(value=["a"])
HOSTILE: list[tuple[str, str, Any, int, str]] = [
    ("GET", "/log/streams?name=nope", None, 404, "topic_not_found"),
    ("GET", "/log/streams?name=queue:nope", None, 404, "queue_not_found"),
    ("GET", "/log/streams?name=other/orders", None, 400, "invalid_argument"),
    ("GET", "/log/streams?name=", None, 400, "invalid_argument"),
    ("GET", "/log/streams?nmae=orders", None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=(", None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=a%2B%2B", None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=(%3F!a)b", None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=(a{1000}){1000}", None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=" + "a" * 1001, None, 400, "invalid_argument"),
    ("GET", "/log/streams?pattern=a&name=orders", None, 400, "invalid_argument"),
    ("GET", "/log/streams?project=../x", None, 400, "invalid_argument"),
    ("PUT", "/log/streams/queue:x", None, 400, "invalid_argument"),
    ("PUT", "/log/streams/a%2Fb", None, 400, "invalid_argument"),
    ("PUT", f"/log/streams/{'n' * 1025}", None, 400, "invalid_argument"),
    ("GET", "/log/messages", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=nope", None, 404, "topic_not_found"),
    ("GET", f"/log/messages?stream={EVENTS}", None, 404, "topic_not_found"),
    ("GET", "/log/messages?stream=orders&start=9&stop=8", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=orders&start=-1", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=orders&start=1.5", None, 400, "invalid_argument"),
    ("GET", f"/log/messages?stream=orders&stop={HUGE}", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=orders&stop=5001", None, 400, "out_of_range"),
    ("GET", "/log/messages?stream=orders&start=5001", None, 400, "out_of_range"),
    ("GET", "/log/messages?stream=orders&number=99", None, 400, "stream_replaced"),
    ("GET", "/log/messages?stream=orders&columns=offset,nope", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=orders&columns=", None, 400, "invalid_argument"),
    ("GET", "/log/messages?stream=orders&compression=gzip", None, 400, "invalid_argument"),
    ("GET", "/log/events?stream=nope", None, 404, "topic_not_found"),
    ("GET", "/log/events?start=5&stop=4", None, 400, "invalid_argument"),
    ("GET", f"/log/events?stop={2**39}", None, 400, "out_of_range"),
    ("GET", "/log/deadletters?stream=queue:nope", None, 404, "queue_not_found"),
    ("POST", "/log/streams", b"{", 400, "invalid_argument"),
    ("POST", "/log/streams", b"", 400, "invalid_argument"),
    ("POST", "/log/streams", {"names": "orders"}, 400, "invalid_argument"),
    ("POST", "/log/messages", {"stream": "orders", "offset": 3}, 400, "invalid_argument"),
    ("POST", "/log/offsets", {"times": {"nope": 0}}, 404, "topic_not_found"),
    ("POST", "/log/offsets", {"times": {"orders": -1}}, 400, "invalid_argument"),
    ("POST", "/log/offsets", {"times": {"orders": "now"}}, 400, "invalid_argument"),
    ("POST", "/log/offsets", {}, 400, "invalid_argument"),
    ("POST", "/log/limits", {"starts": {"orders": 0}, "max_bytes": 0}, 400, "invalid_argument"),
    ("POST", "/log/limits", {"starts": {"orders": 6000}, "max_bytes": 10}, 400, "out_of_range"),
    ("POST", "/log/limits", {"starts": {"nope": 0}, "max_bytes": 10}, 404, "topic_not_found"),
    ("GET", "/log/cursors/nope", None, 404, "cursor_not_found"),
    ("GET", "/log/cursors/a%2Fb", None, 400, "invalid_argument"),
    ("GET", "/log/cursors/a%00b", None, 400, "invalid_argument"),
    ("PUT", "/log/cursors/..%2F..%2Fetc", {"offsets": {}}, 400, "invalid_argument"),
    ("PUT", "/log/cursors/c", {"offsets": {"nope": 0}}, 404, "topic_not_found"),
    ("PUT", "/log/cursors/c", {"offsets": {"orders": 5001}}, 400, "out_of_range"),
    ("PUT", "/log/cursors/c", {"offsets": {"orders": -1}}, 400, "invalid_argument"),
    ("PUT", "/log/cursors/c", {"offsets": {"orders": 1}, "holds": "yes"}, 400, "invalid_argument"),
    ("PUT", "/log/writes/../parts/0?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/..?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/a%2Fb/parts/0?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/a%2F..%2Fb?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/.hidden?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", f"/log/writes/w/parts/{'p' * 201}?stream=orders", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/0?stream=nope", GOOD, 404, "topic_not_found"),
    ("PUT", "/log/writes/w/parts/0", GOOD, 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/0?stream=orders", b"", 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/0?stream=orders", b"garbage", 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/0?stream=orders", GOOD[:-8], 400, "invalid_argument"),
    ("PUT", "/log/writes/w/parts/0?stream=orders", arrow_body(value=[1]), 400, "invalid_argument"),
    ("POST", "/log/writes/w/commit", {"parts": ["0"], "query": "hostile", "batch": 0}, 404, "part_not_found"),
    ("POST", "/log/writes/w/commit", {"parts": ["../0"], "query": "hostile", "batch": 0}, 400, "invalid_argument"),
    ("POST", "/log/writes/w/commit", {"parts": [], "query": "a/b", "batch": 0}, 400, "invalid_argument"),
    ("POST", "/log/writes/w/commit", {"parts": [], "query": "hostile\n", "batch": 0}, 400, "invalid_argument"),
    ("POST", "/log/writes/w/commit", {"parts": [], "query": "hostile", "batch": -1}, 400, "invalid_argument"),
    ("POST", "/log/writes/w/commit", {"parts": [], "query": "hostile", "batch": 2**63}, 400, "invalid_argument"),
    ("POST", "/log/writes/..%2F/commit", {"parts": [], "query": "hostile", "batch": 0}, 400, "invalid_argument"),
    ("DELETE", "/log/writes/..%2F..", None, 400, "invalid_argument"),
]


def test_what_is_wrong_is_told(server: LocalServer, subtests: pytest.Subtests) -> None:
    for method, path, body, status, reason in HOSTILE:
        with subtests.test(method=method, path=path[:60], body=repr(body)[:60]):
            answer = ask(server.url, method, path, body)
            assert (answer.status, answer.error["reason"]) == (status, reason), answer.error
            assert answer.error["message"]
            assert get(server, "/log/writes").json() == [], "nothing of it stays"


def test_no_pattern_keeps_the_server_busy(server: LocalServer) -> None:
    """A search that tries everything would take years: the request would time out."""
    name = "a" * 250
    MessageQueue(broker=server.broker).register_topic(name)
    for pattern in ("(a*)*b", "(a|a)*b", "(.*)*(.*)*(.*)*x", "a?" * 100 + "a" * 100):
        assert ask(server.url, "POST", "/log/streams", {"pattern": pattern}).status in {200, 400}
    MessageQueue(broker=server.broker).unregister_topic(name)


def test_without_pyarrow_the_server_says_what_to_install(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(server, "/log/streams?pattern=a").status == 200
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for module in ("penstock.log.arrow", "penstock.broker.name_patterns"):
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(module)

    for path in ("/log/messages?stream=orders", "/log/events", "/log/streams?pattern=a"):
        answer = get(server, path)
        assert (answer.status, answer.error["reason"]) == (501, "arrow_unavailable")
        assert how_to_install("arrow") in answer.error["hint"]
    assert get(server, "/log/streams").status == 200
    with HttpLog(server.url) as log:
        span = log.spans(["orders"]).streams[0]
        with pytest.raises(ArrowUnavailable, match="the server cannot read Arrow: pyarrow is not installed there"):
            list(log.messages(span, 0, 10))
    assert [line for line in _greeting(server.server) if "log API" in line and how_to_install("arrow") in line]


# ── who may ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Guarded:
    """A server that asks for tokens, with some topics."""

    def __init__(self, path: Path) -> None:
        self.tokens = path / "tokens"
        self.keyring = Keyring(self.tokens)
        self.server = LocalServer(auth="token", token_file=self.tokens)

    def token(self, *verbs: Verb, project: str | None = "penstock", patterns: tuple[str, ...] = ("*",)) -> str:
        secret = self.keyring.create("test", SystemClock().now(), verbs=verbs, project=project, patterns=patterns)
        while self.ask(secret, "GET", "/log/streams").status == 401:
            pass  # the server looks at the file now and then
        return secret

    def ask(self, token: str, method: str, path: str, body: Any = None) -> Answer:
        return ask(self.server.url, method, path, body, Authorization=f"Bearer {token}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("tokens"))
    with guarded.server as server:
        for topic in ("orders", "secret", "other/orders"):
            fill(server.broker, topic, 3)
        yield guarded


def test_a_listing_shows_only_what_a_token_covers(guarded: Guarded) -> None:
    some = guarded.token(Verb.READ, patterns=("ord*",))
    everything = guarded.token(Verb.READ, project=None)

    assert [s["stream"] for s in guarded.ask(some, "GET", "/log/streams").json()["streams"]] == ["orders"]
    assert [s["stream"] for s in guarded.ask(everything, "GET", "/log/streams").json()["streams"]] == ["orders", "secret"]
    others = guarded.ask(everything, "GET", "/log/streams?project=other").json()["streams"]
    assert [s["stream"] for s in others] == ["orders"]


def test_events_are_only_those_of_streams_that_a_token_covers(guarded: Guarded) -> None:
    def streams(token: str, query: str = "") -> set[str]:
        found = guarded.ask(token, "GET", f"/log/events{query}").table().column("stream").to_pylist()
        return {name for name in found if name is not None}  # other tests have left events of no stream: what a write has done

    assert streams(guarded.token(Verb.READ, patterns=("ord*",))) == {"orders"}
    assert streams(guarded.token(Verb.READ)) == {"orders", "secret"}
    assert streams(guarded.token(Verb.READ, project="other")) == {"orders"}
    assert streams(guarded.token(Verb.READ, project=None)) == {"orders", "secret", "other/orders"}


def test_what_a_token_does_not_cover_is_refused_whether_it_exists_or_not(guarded: Guarded) -> None:
    reader = guarded.token(Verb.READ, patterns=("ord*",))
    writer, metrics = guarded.token(Verb.PUBLISH, patterns=("ord*",)), guarded.token(Verb.METRICS)
    two = arrow_body(value=["a", "b"], stream=["orders", "secret"])
    cases: list[tuple[str, str, str, Any]] = [
        (reader, "GET", "/log/streams?name=secret", None),
        (reader, "GET", "/log/streams?name=nope", None),
        (reader, "GET", "/log/messages?stream=secret", None),
        (reader, "GET", "/log/messages?stream=orders&project=other", None),
        (reader, "GET", "/log/events?stream=secret", None),
        (reader, "GET", "/log/deadletters?stream=nope", None),
        (reader, "GET", "/log/messages?stream=orders", None),
        (reader, "GET", "/log/deadletters", None),
        (metrics, "GET", "/log/streams", None),
        (metrics, "GET", "/log/events", None),
        (reader, "POST", "/log/offsets", {"times": {"secret": 0}}),
        (reader, "POST", "/log/limits", {"starts": {"secret": 0}, "max_bytes": 1}),
        (reader, "PUT", "/log/cursors/c", {"offsets": {"secret": 0}}),
        (reader, "PUT", "/log/writes/w/parts/0?stream=orders", GOOD),
        (reader, "GET", "/log/writes", None),
        (reader, "PUT", "/log/streams/orders-2", None),
        (reader, "POST", "/log/writes/w/commit", {"parts": [], "query": "q", "batch": 0}),
        (writer, "PUT", "/log/writes/w/parts/0?stream=secret", GOOD),
        (writer, "PUT", "/log/writes/w/parts/0?stream=orders", two),
        (writer, "GET", "/log/streams", None),
        (writer, "GET", "/log/messages?stream=orders", None),
        (writer, "GET", "/log/cursors", None),
    ]
    for token, method, path, body in cases:
        answer = guarded.ask(token, method, path, body)
        assert (answer.status, answer.error["reason"]) == (403, "permission_denied"), (method, path)
    assert ask(guarded.server.url, "GET", "/log/streams").status == 401


def test_a_write_of_others_is_neither_seen_nor_committed_nor_aborted(guarded: Guarded) -> None:
    everything, writer = guarded.token(Verb.PUBLISH), guarded.token(Verb.PUBLISH, patterns=("ord*",))
    guarded.ask(everything, "PUT", "/log/writes/w/parts/0?stream=secret", GOOD)

    assert guarded.ask(writer, "GET", "/log/writes").json() == []
    commit = {"parts": ["0"], "query": "q", "batch": 0}
    assert guarded.ask(writer, "POST", "/log/writes/w/commit", commit).status == 403
    assert guarded.ask(writer, "DELETE", "/log/writes/w").status == 403
    assert len(guarded.ask(everything, "GET", "/log/writes").json()) == 1
    assert guarded.ask(everything, "POST", "/log/writes/w/commit", commit).json() == {"rows": 1, "is_repeat": False}


def test_payloads_are_for_tokens_that_consume_and_for_readers_made_before(guarded: Guarded) -> None:
    consumer, reader = guarded.token(Verb.CONSUME, patterns=("ord*",)), guarded.token(Verb.READ, patterns=("ord*",))
    reads = ("/log/messages?stream=orders", "/log/deadletters")

    assert guarded.ask(consumer, "GET", reads[0]).table().num_rows >= 3
    assert [guarded.ask(reader, "GET", path).status for path in reads] == [403, 403]
    file = guarded.tokens
    made = json.loads(file.read_bytes())
    del next(token for token in made["tokens"] if token["id"] == reader.split("_")[1])["rules"]
    changed = file.with_name("changed")
    changed.touch(mode=0o600)
    changed.write_text(json.dumps(made))
    changed.replace(file)  # as a whole: the server reads it at any moment
    until = SystemClock().now() + 60 * SECOND
    while guarded.ask(reader, "GET", reads[0]).status == 403 and SystemClock().now() < until:
        pass  # the server looks at the file once a second
    assert [guarded.ask(reader, "GET", path).status for path in reads] == [200, 200]


def test_parts_of_a_write_belong_to_the_token_that_staged_them(guarded: Guarded) -> None:
    owner, other = guarded.token(Verb.PUBLISH), guarded.token(Verb.PUBLISH, patterns=("ord*",))
    empty = arrow_body(value=pa.array([], pa.string()))
    assert guarded.ask(owner, "PUT", "/log/writes/owned/parts/0?stream=secret", GOOD).status == 200
    assert guarded.ask(owner, "PUT", "/log/writes/blank/parts/0", empty).status == 200

    # Neither the same part nor another one of the write, whatever streams its rows name.
    for path in ("owned/parts/0?stream=orders", "owned/parts/1?stream=orders", "owned/parts/0", "blank/parts/0?stream=orders"):
        answer = guarded.ask(other, "PUT", f"/log/writes/{path}", empty if path == "owned/parts/0" else GOOD)
        assert (answer.status, answer.error["reason"]) == (403, "permission_denied"), path
    assert guarded.ask(other, "DELETE", "/log/writes/blank").status == 403
    assert guarded.ask(owner, "PUT", "/log/writes/owned/parts/0?stream=secret", arrow_body(value=["a", "b"])).status == 200
    commit = {"parts": ["0"], "query": "owned", "batch": 0}
    assert guarded.ask(owner, "POST", "/log/writes/owned/commit", commit).json() == {"rows": 2, "is_repeat": False}
    assert guarded.ask(owner, "DELETE", "/log/writes/blank").status == 200


def test_batches_of_a_query_are_not_used_up_by_a_token_for_other_names(guarded: Guarded) -> None:
    owner, other = guarded.token(Verb.PUBLISH), guarded.token(Verb.PUBLISH, patterns=("ord*",))
    heir = guarded.token(Verb.PUBLISH, patterns=("sec*",))  # the owner's token was replaced by this one

    def commit(token: str, batch: int, query: str) -> Answer:
        return guarded.ask(
            token, "POST", "/log/writes/q/commit", {"parts": ["0"] if batch < 5 else [], "query": query, "batch": batch}
        )

    for batch, token in enumerate((owner, heir)):
        guarded.ask(token, "PUT", "/log/writes/q/parts/0?stream=secret", GOOD)
        assert commit(token, batch, "nightly").json() == {"rows": 1, "is_repeat": False}
        assert commit(other, 9, "nightly").status == 403
    # Nor is a query that wrote nothing yet taken for somebody else's.
    assert commit(other, 9, "new").status == 200
    assert commit(owner, 0, "new").status == 403


def test_a_cursor_shows_only_streams_that_a_token_covers(guarded: Guarded) -> None:
    everything, some = guarded.token(Verb.READ), guarded.token(Verb.READ, patterns=("ord*",))
    guarded.ask(everything, "PUT", "/log/cursors/both", {"offsets": {"orders": 1, "secret": 2}})

    assert guarded.ask(some, "GET", "/log/cursors/both").json()["offsets"] == {"orders": 1}
    assert guarded.ask(some, "DELETE", "/log/cursors/both").status == 403
    assert guarded.ask(everything, "DELETE", "/log/cursors/both").status == 200


def test_a_write_of_others_is_not_ended_by_a_repeat_or_by_no_parts(guarded: Guarded) -> None:
    everything, writer = guarded.token(Verb.PUBLISH), guarded.token(Verb.PUBLISH, patterns=("ord*",))
    guarded.ask(everything, "PUT", "/log/writes/theirs/parts/0?stream=secret", GOOD)
    none = {"parts": [], "query": "mine", "batch": 5}
    assert guarded.ask(writer, "POST", "/log/writes/mine/commit", none).json() == {"rows": 0, "is_repeat": False}

    for batch in (5, 6):
        assert guarded.ask(writer, "POST", "/log/writes/theirs/commit", {**none, "batch": batch}).status == 403
    assert [write["write"] for write in guarded.ask(everything, "GET", "/log/writes").json()] == ["theirs"]
    guarded.ask(everything, "DELETE", "/log/writes/theirs")


def test_a_cursor_of_others_is_neither_seen_nor_moved_nor_let_go(guarded: Guarded) -> None:
    everything, some = guarded.token(Verb.READ, Verb.CONSUME), guarded.token(Verb.READ, Verb.CONSUME, patterns=("ord*",))
    for name, offsets in (("theirs", {"secret": 2}), ("shared", {"orders": 1, "secret": 2})):
        guarded.ask(everything, "PUT", f"/log/cursors/{name}", {"offsets": offsets, "holds": True})

    assert [cursor["name"] for cursor in guarded.ask(some, "GET", "/log/cursors").json()] == ["shared"]
    assert guarded.ask(some, "GET", "/log/cursors/theirs").status == 404
    assert guarded.ask(some, "DELETE", "/log/cursors/theirs").status == 404
    for name in ("theirs", "shared"):
        for change in ({"offsets": {}, "holds": False}, {"offsets": {"orders": 3}}):
            assert guarded.ask(some, "PUT", f"/log/cursors/{name}", change).status == 403
    assert [cursor["holds"] for cursor in guarded.ask(everything, "GET", "/log/cursors").json()] == [True, True]
    for name in ("theirs", "shared"):
        assert guarded.ask(everything, "DELETE", f"/log/cursors/{name}").status == 200


def test_retention_is_held_only_by_tokens_that_consume(guarded: Guarded) -> None:
    reader, some = guarded.token(Verb.READ), guarded.token(Verb.READ, Verb.CONSUME, patterns=("ord*",))
    everything = guarded.token(Verb.READ, Verb.CONSUME)

    def hold(token: str, stream: str, **fields: Any) -> int:
        return guarded.ask(token, "PUT", "/log/cursors/keeper", {"offsets": {stream: 1}, "holds": True, **fields}).status

    assert hold(reader, "orders", holds=False) == 200
    assert [hold(reader, "orders"), hold(reader, EVENTS), hold(some, EVENTS)] == [403, 403, 403]
    assert hold(some, "orders") == 200
    # A reader does not let go either of what others hold.
    assert hold(reader, "orders", holds=False) == 403
    assert guarded.ask(reader, "DELETE", "/log/cursors/keeper").status == 403
    assert hold(everything, EVENTS) == 200
    assert guarded.ask(some, "DELETE", "/log/cursors/keeper").status == 403
    assert guarded.ask(everything, "DELETE", "/log/cursors/keeper").status == 200


def test_projects_have_their_own_writes_and_queries(guarded: Guarded) -> None:
    for project in ("penstock", "other"):
        token = guarded.token(Verb.PUBLISH, project=project)
        assert guarded.ask(token, "PUT", "/log/writes/same/parts/0?stream=orders", GOOD).status == 200
        assert [write["write"] for write in guarded.ask(token, "GET", "/log/writes").json()] == ["same"]
        commit = {"parts": ["0"], "query": "same", "batch": 0}
        assert guarded.ask(token, "POST", "/log/writes/same/commit", commit).json() == {"rows": 1, "is_repeat": False}
