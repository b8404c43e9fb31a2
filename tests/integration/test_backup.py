"""A backup is taken while a server is under load, and what is restored from it is all that the server had."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import sqlite3
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import DeadLetterPolicy, Message, MessageQueue, PubSub, backup, sync
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.errors import (
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    ServerUnreachable,
    Unauthenticated,
    Unavailable,
)
from penstock.journal.directory import write_mark
from penstock.journal.sqlite import SqliteJournal
from penstock.log.directory import DirectoryLog
from penstock.server import backup as served
from penstock.testing.server import LocalServer
from penstock.wire.operations import Operations

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
PATIENCE = 60


class Place:
    """A data directory with tokens, and a server on it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        self.now = SystemClock().now()
        self.keyring = Keyring(self.data / "tokens.json")
        self.token = self.keyring.create("operator", self.now)

    def server(self, data: Path | None = None, **settings: Any) -> LocalServer:
        return LocalServer(**{"data_dir": data or self.data, "auth": "token", **settings})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def fill(pubsub: PubSub) -> None:
    """Something of each kind, in every state that is stored."""
    await pubsub.schema("order").create("AVRO", AVRO)
    orders = await pubsub.topic("orders").create()
    await (await pubsub.topic("dead").create()).subscription("graves").create()
    policy = DeadLetterPolicy("dead", max_delivery_attempts=5)
    failing = await orders.subscription("failing", dead_letter_policy=policy, message_ordering=True).create()
    billing = await orders.subscription("billing", filter='attributes.region = "eu"').create()
    await (await orders.subscription("paused").create()).pause_delivery()
    for number in range(6):
        region = "eu" if number % 2 else "us"
        await orders.publish_message(b"order %d" % number, {"region": region}, f"key-{number % 2}")
    for _ in range(5):
        for message in await failing.pull(1):
            await message.nack_with_response()
    for message in await billing.pull(1, ack_deadline=600):
        await message.ack_with_response()
    await billing.pull(1, ack_deadline=600)
    await billing.create_snapshot("before-deploy")
    tasks = await pubsub.queue("tasks").create(max_retries=0)
    for payload in ("a", {"b": [1, None]}, b"\x00\xff"):
        await tasks.publish(payload, priority=7, headers={"tenant": "x"})
    [held] = await tasks.consume(1)
    await pubsub.link.call(Operations.nack_messages, "tasks", [held.id], requeue=False, error="no good")
    await tasks.consume(1)


async def everything(pubsub: PubSub) -> dict[str, Any]:
    """What can be asked of a server, but for what passes with time and for the load."""
    subscriptions, queues = await pubsub.subscriptions(), await pubsub.queues()
    return {
        "topics": [one for one in await pubsub.topics() if one.name != "load"],
        "subscriptions": subscriptions,
        "subscription stats": [timeless(await pubsub.subscription(one.name).stats()) for one in subscriptions],
        "waiting": [[(m.data, m.attributes) for m in await pubsub.subscription(one.name).peek(100)] for one in subscriptions],
        "snapshots": await pubsub.snapshots(),
        "schemas": await pubsub.schemas(),
        "queues": [(name, await pubsub.queue(name).config()) for name in queues],
        "queue stats": [timeless(await pubsub.queue(name).stats()) for name in queues],
        "dead letters": [await pubsub.queue(name).dead_letters() for name in queues],
    }


def timeless(stats: Any) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(stats).items() if "age" not in name and name != "consumers"}


class Load:
    """Publishes to the topic `load` until it is closed, and counts what was confirmed."""

    def __init__(self, url: str, token: str) -> None:
        self.confirmed = 0
        self._has_begun, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish(url, token)))

    async def _publish(self, url: str, token: str) -> None:
        async with PubSub(url, token=token) as pubsub:
            topic = await pubsub.topic("load").create()
            while not self._is_over.is_set():
                await topic.publish_many(Message(b"%d" % (self.confirmed + n)) for n in range(50))
                self.confirmed += 50
                self._has_begun.set()

    def __enter__(self) -> Load:
        self._thread.start()
        assert self._has_begun.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def take(how: str, place: Place, server: LocalServer, target: Path) -> None:
    """Make a backup beside the server, or let it send one."""
    if how == "directory":
        backup.back_up(place.data, target)
    else:
        backup.download(server.url, target, token=place.token)


@pytest.mark.parametrize("how", ["directory", "server"])
def test_a_backup_under_load_is_restored_with_everything_in_it(how: str, place: Place, tmp_path: Path) -> None:
    async def look(url: str, *, fills: bool = False) -> dict[str, Any]:
        async with PubSub(url, token=place.token) as pubsub:
            if fills:
                await fill(pubsub)
            return await everything(pubsub)

    with place.server() as server:
        before = asyncio.run(look(server.url, fills=True))
        server.broker.cursors.advance("spark", {"orders": 4}, place.now, holds=True)
        with Load(server.url, place.token) as load:
            confirmed = load.confirmed
            take(how, place, server, tmp_path / "backup")
        published = load.confirmed
    # Nothing below may come from what was backed up.
    shutil.rmtree(place.data)
    report = backup.restore(tmp_path / "backup", tmp_path / "restored")

    assert report.problems == []
    assert (report.streams, report.cursors, report.tokens) == (4, 1, 1)
    with place.server(tmp_path / "restored") as server:
        assert asyncio.run(look(server.url)) == before
        [cursor] = server.broker.cursors.all()
        assert (cursor.name, cursor.offsets, cursor.holds) == ("spark", {"orders": 4}, True)
    with DirectoryLog(tmp_path / "restored") as log:
        [load_span] = log.spans(["load"]).streams
        batches = log.messages(load_span, 0, load_span.latest, columns=["value"])
        values = [value for batch in batches for value in batch["value"].to_pylist()]
    assert confirmed <= load_span.latest <= published
    assert values == [b"%d" % number for number in range(load_span.latest)]


@pytest.mark.parametrize("how", ["directory", "server"])
def test_a_backup_is_its_owners_alone_and_leaves_nothing_behind(how: str, place: Place, tmp_path: Path) -> None:
    with place.server() as server:
        take(how, place, server, tmp_path / "backup")
        assert not (place.data / ".backup").exists()
    backup.restore(tmp_path / "backup", tmp_path / "restored")

    for copy in (tmp_path / "backup", tmp_path / "restored"):
        assert copy.stat().st_mode & 0o777 == 0o700
        files = {file.name: file.stat().st_mode & 0o777 for file in copy.iterdir()}
        assert files.keys() >= {"FORMAT", "high-water", "penstock.db", "tokens.json"}
        assert set(files.values()) == {0o600}


def test_a_token_file_elsewhere_is_part_of_a_backup(tmp_path: Path) -> None:
    place = Place(tmp_path)
    tokens = (place.data / "tokens.json").rename(tmp_path / "elsewhere.json")
    with place.server(token_file=tokens) as server:
        backup.download(server.url, tmp_path / "sent", token=place.token)
    backup.back_up(place.data, tmp_path / "copied", token_file=tokens)

    for copy in ("sent", "copied"):
        assert [token.name for token in Keyring(tmp_path / copy / "tokens.json").list()] == ["operator"]
    with pytest.raises(InvalidArgument, match=r"token_file is .* expected a file that exists"):
        backup.back_up(place.data, tmp_path / "none", token_file=tmp_path / "none.json")
    assert not (tmp_path / "none").exists()


def test_what_is_at_the_target_is_left_alone(place: Place, tmp_path: Path) -> None:
    MessageQueue(data_dir=place.data).close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    (tmp_path / "file").write_text("dear")
    for target in ("full", "file"):
        for call in (backup.back_up, backup.restore):
            with pytest.raises(InvalidArgument, match="expected a directory that does not exist or is empty"):
                call(place.data, tmp_path / target)
    assert (tmp_path / "full" / "letter").read_text() == (tmp_path / "file").read_text() == "dear"


def test_an_empty_directory_becomes_its_owners_alone(place: Place, tmp_path: Path) -> None:
    MessageQueue(data_dir=place.data).close()
    target = tmp_path / "empty"
    target.mkdir()
    target.chmod(0o777)
    with pytest.raises(InvalidArgument, match="token_file"):
        backup.back_up(place.data, target, token_file=tmp_path / "none.json")
    assert ([*target.iterdir()], target.stat().st_mode & 0o777) == ([], 0o777)

    backup.back_up(place.data, target)
    assert target.stat().st_mode & 0o777 == 0o700
    assert backup.verify(target).problems == []


def test_any_name_that_a_directory_can_have_is_a_target(place: Place, tmp_path: Path) -> None:
    MessageQueue(data_dir=place.data).close()
    target = os.fsdecode(os.fsencode(tmp_path) + b"/100 %?#\xff")
    backup.back_up(place.data, target)
    assert backup.verify(target).problems == []
    for bad in ("", "a\0b", None, 7):
        with pytest.raises(InvalidArgument, match=r"target is .*expected the path of a directory"):
            backup.back_up(place.data, bad)  # type: ignore[arg-type]


def test_a_target_that_cannot_be_looked_at_is_refused(place: Place, tmp_path: Path) -> None:
    MessageQueue(data_dir=place.data).close()
    for call in (backup.back_up, backup.restore):
        with pytest.raises(FailedPrecondition, match=r"cannot read .*: File name too long"):
            call(place.data, tmp_path / ("n" * 300))


def test_a_source_that_is_no_data_directory_leaves_nothing_at_the_target(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "none"):
        for call in (backup.back_up, backup.restore):
            with pytest.raises(InvalidArgument, match="expected the data directory of a broker"):
                call(tmp_path / source, tmp_path / "target")
        with pytest.raises(InvalidArgument, match="expected the data directory of a broker"):
            backup.verify(tmp_path / source)
    assert not (tmp_path / "target").exists()


@pytest.fixture
def damaged(place: Place) -> Path:
    """Three streams, of which one is damaged, and cursors and events that are, too."""
    with MessageQueue(data_dir=place.data) as topics:
        for name in ("a", "b", "c"):
            topics.register_topic(name)
            topics.publish(name, [Message(b"1"), Message(b"2")])
        topics.broker.cursors.advance("spark", {"a": 1}, place.now)
    with sqlite3.connect(place.data / "penstock.db") as database:
        [second] = database.execute("SELECT position FROM chunks ORDER BY position LIMIT 1 OFFSET 1").fetchone()
        database.execute("UPDATE chunks SET body = zeroblob(length(body)) WHERE position = ?", (second,))
    database.close()
    cursors = place.data / "cursors"
    cursors.write_bytes(cursors.read_bytes().replace(b"spark", b"spork"))
    return place.data


def test_verify_names_everything_that_is_damaged_and_counts_the_rest(damaged: Path, tmp_path: Path) -> None:
    read: list[int] = []
    report = backup.verify(damaged, progress=read.append)

    assert (report.streams, report.messages, report.cursors, report.tokens) == (2, 4, 0, 1)
    assert sum(read) == report.messages + report.events
    [stream, cursors] = report.problems
    assert "offsets 0 to 1 of stream" in stream
    assert "the checksum does not fit the bytes" in stream
    assert "cursors" in cursors
    with pytest.raises(CorruptLog, match="offsets 0 to 1 of stream"):
        backup.restore(damaged, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_verify_finds_a_log_that_was_cut(place: Place) -> None:
    with MessageQueue(data_dir=place.data) as topics:
        topics.register_topic("a")
    early = place.data.parent / "early"
    backup.back_up(place.data, early)
    with MessageQueue(data_dir=place.data) as topics:
        topics.publish("a", [Message(b"1")])
    shutil.copy(place.data / "high-water", early / "high-water")

    assert ["were confirmed" in problem for problem in backup.verify(early).problems] == [True]


@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"a mark of 12"])
def test_a_missing_or_damaged_mark_is_named(place: Place, content: bytes | None, tmp_path: Path) -> None:
    with MessageQueue(data_dir=place.data) as topics:
        topics.register_topic("a")
    backup.back_up(place.data, tmp_path / "copy")
    for path in (place.data, tmp_path / "copy"):
        (path / "high-water").unlink()
        if content is not None:
            (path / "high-water").write_bytes(content)
        assert ["high-water: the file is missing or damaged" in problem for problem in backup.verify(path).problems] == [True]
        with pytest.raises(CorruptLog, match="high-water"):
            backup.restore(path, tmp_path / "restored")


def test_a_log_that_was_cut_is_not_backed_up(place: Place, tmp_path: Path) -> None:
    with MessageQueue(data_dir=place.data) as topics:
        topics.register_topic("a")
    write_mark(place.data, 1_000)
    with pytest.raises(CorruptLog, match="but 1000 were confirmed"):
        backup.back_up(place.data, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("how", ["directory", "server"])
def test_a_backup_whose_files_are_not_what_was_copied_is_damaged(how: str, place: Place, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with place.server() as server:
        server.broker.cursors.advance("spark", {}, place.now)
        take(how, place, server, copy)
    assert backup.verify(copy).problems == []
    (copy / "cursors").unlink()
    Keyring(copy / "tokens.json").create("intruder", place.now)
    (copy / "router-config.json").write_text("{}")

    found = backup.verify(copy).problems
    assert [problem.partition(f"corrupt log {str(copy)!r}: ")[2] for problem in found] == [
        "cursors: the file is missing",
        "tokens.json: this is not the file that was backed up",
        "router-config.json: this is not the file that was backed up",
    ]
    with pytest.raises(CorruptLog, match=r"tokens\.json: this is not the file"):
        backup.restore(copy, tmp_path / "restored")
    for name in ("tokens.json", "router-config.json"):
        (copy / name).unlink()
    assert any("tokens.json: the file is missing" in problem for problem in backup.verify(copy).problems)

    (copy / "backup.json").write_text("[1]")
    assert any("backup.json: " in problem for problem in backup.verify(copy).problems)
    # A broker that works on it may change what it likes.
    MessageQueue(data_dir=copy).close()
    assert backup.verify(copy).problems == []


def test_a_restored_directory_may_change(place: Place, tmp_path: Path) -> None:
    MessageQueue(data_dir=place.data).close()
    backup.back_up(place.data, tmp_path / "copy")
    backup.restore(tmp_path / "copy", tmp_path / "restored")
    (tmp_path / "restored" / "tokens.json").unlink()
    assert backup.verify(tmp_path / "restored").problems == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_is_named_and_nothing_is_left_on_it(place: Place, small_disk: Path) -> None:
    with place.server() as server:
        with sync.PubSub(server.url, token=place.token) as pubsub:
            orders = pubsub.topic("orders").create()
            orders.publish_many(Message(bytes(100_000)) for _ in range(20))
        for how in ("directory", "server"):
            with pytest.raises(FailedPrecondition, match=r"cannot .*(the disk is full|No space left on device)"):
                take(how, place, server, small_disk / "copy")
            assert [*small_disk.iterdir()] == []


def test_a_backup_of_a_backup_is_the_same(place: Place, tmp_path: Path) -> None:
    with MessageQueue(data_dir=place.data) as topics:
        topics.register_topic("a")
        topics.publish("a", [Message(b"1")])
    backup.back_up(place.data, tmp_path / "one")
    backup.back_up(tmp_path / "one", tmp_path / "two")

    assert backup.verify(tmp_path / "one") == backup.verify(tmp_path / "two") == backup.verify(place.data)
    journal = SqliteJournal(tmp_path / "two")
    journal.verify()
    journal.close()


def test_a_server_sends_a_backup_only_to_tokens_that_cover_everything(place: Place, tmp_path: Path) -> None:
    weak = [
        place.keyring.create("one project", place.now, project="shop"),
        place.keyring.create("some names", place.now, patterns=["orders-*"]),
        place.keyring.create("no consume", place.now, verbs=[Verb.READ, Verb.MANAGE, Verb.PUBLISH, Verb.METRICS]),
    ]
    with place.server() as server:
        for token in weak:
            with pytest.raises(FailedPrecondition, match=r"may not .* everything, which a backup needs"):
                backup.download(server.url, tmp_path / "backup", token=token)
        for none in (None, "penstock_nobody"):
            with pytest.raises(Unauthenticated):
                backup.download(server.url, tmp_path / "backup", token=none)
    assert not (tmp_path / "backup").exists()


def test_a_server_in_memory_has_no_backup(tmp_path: Path) -> None:
    with LocalServer() as server, pytest.raises(FailedPrecondition, match="keeps its messages in memory only"):
        backup.download(server.url, tmp_path / "backup")


def test_a_server_makes_one_backup_at_a_time(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_copies, second_was_refused = threading.Event(), threading.Event()

    def slow(*args: Any, **options: Any) -> None:
        first_copies.set()
        assert second_was_refused.wait(PATIENCE)
        backup.back_up(*args, **options)

    monkeypatch.setattr(served, "back_up", slow)
    with place.server() as server:
        first = threading.Thread(target=backup.download, args=(server.url, tmp_path / "one"), kwargs={"token": place.token})
        first.start()
        assert first_copies.wait(PATIENCE)
        with pytest.raises(Unavailable, match="another backup is being made"):
            backup.download(server.url, tmp_path / "two", token=place.token)
        second_was_refused.set()
        first.join()
    assert backup.verify(tmp_path / "one").problems == []


@contextmanager
def answering(body: bytes, *, status: int = 200, length: int | None = None) -> Iterator[str]:
    """A server that gives one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length or len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def archive(*names: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as packed:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, 3 if kind == tarfile.REGTYPE else 0
            packed.addfile(info, io.BytesIO(b"abc"))
    return file.getvalue()


def test_an_answer_that_is_no_backup_leaves_nothing(tmp_path: Path, subtests: pytest.Subtests) -> None:
    whole = archive("penstock.db", "high-water", "FORMAT")
    cases: list[tuple[bytes, dict[str, Any], type[Exception], str]] = [
        (b"<html>", {}, ServerUnreachable, "cut off"),
        (b"<html>", {"status": 404}, FailedPrecondition, "answers 404"),
        (whole[:700], {"length": len(whole)}, ServerUnreachable, "cut off"),
        (whole[: 6 * 512], {"length": 8 * 512}, ServerUnreachable, "1024 bytes are missing"),
        (archive("penstock.db"), {}, FailedPrecondition, "not complete"),
        (archive("penstock.db", "../evil"), {}, FailedPrecondition, "no part of a backup"),
        (archive("penstock.db", "tokens.json", kind=tarfile.SYMTYPE), {}, FailedPrecondition, "no part of a backup"),
    ]
    for number, (body, options, error, text) in enumerate(cases):
        with subtests.test(case=number), answering(body, **options) as url:
            with pytest.raises(error, match=text):
                backup.download(url, tmp_path / "backup")
            assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "evil").exists()
    with pytest.raises(ServerUnreachable):
        backup.download("http://127.0.0.1:1", tmp_path / "backup")
    with LocalServer() as server, pytest.raises(ServerUnreachable, match="it does not speak HTTP"):
        backup.download(f"http://{server.grpc}", tmp_path / "backup")
    with pytest.raises(Unauthenticated, match="this is not a Penstock token"):
        backup.download("http://127.0.0.1:1", tmp_path / "backup", token="two\nlines")
    with pytest.raises(InvalidArgument, match="expected the address of the HTTP port"):
        backup.download("penstock://127.0.0.1:1", tmp_path / "backup")
