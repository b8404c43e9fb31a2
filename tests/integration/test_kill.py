"""kill -9, again and again: nothing confirmed is lost, no key is overtaken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker, MessageQueue, QueueManager
from penstock.clock import SystemClock
from penstock.errors import DataDirectoryInUse
from penstock.journal.journal import is_database
from penstock.journal.postgres_reader import ReadOnlyPostgres
from penstock.journal.sqlite import SqliteJournal
from penstock.testing import ManualClock
from tests.integration.victim import open_broker, read_notes
from tests.postgres_server import needs_postgres, postgres_server

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
PATIENCE = 60.0
DAY = 86_400.0


def start(data: str, notes: Path, life: int, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.integration.victim", data, str(notes), str(life), str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def live_for(victim: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait; it must not end by itself."""
    try:
        victim.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    assert victim.stderr is not None
    pytest.fail(f"it ended by itself with {victim.returncode}:\n{victim.stderr.read().decode()}")


def live_until(victim: subprocess.Popen[bytes], note: Path, words: bytes, count: int = 1) -> None:
    """Return when it has noted something so often."""
    for _ in range(int(PATIENCE / 0.005)):
        if note.exists() and note.read_bytes().count(words) >= count:
            return
        live_for(victim, 0.005)
    pytest.fail(f"it did not note {count} times {words!r}")


def torment(data: str, notes: Path, rng: random.Random, kills: int = KILLS, disturb: Callable[[], None] | None = None) -> None:
    """Start, kill, and start again; `disturb` harms the database of one that is at work."""
    for life in range(kills):
        victim = start(data, notes, life, rng.getrandbits(32))
        note = notes / f"{life:05}.jsonl"
        try:
            if life % 6 != 3:
                live_until(victim, note, b'["ready"')
                if life % 10 == 0 and not is_database(data):
                    with pytest.raises(DataDirectoryInUse, match=str(victim.pid)):
                        Broker(data_dir=data)
                live_until(victim, note, b'["confirmed", "orders"', rng.randrange(20, 400))
                if disturb is not None:
                    disturb()
                    count = note.read_bytes().count(b'["confirmed", "orders"')
                    live_until(victim, note, b'["confirmed", "orders"', count + rng.randrange(20, 400))
            else:
                live_for(victim, rng.uniform(0.05, 0.4))  # in the middle of its start
        finally:
            victim.kill()
            victim.communicate()


def drain(data: str) -> list[tuple[str, str, str, str]]:
    """Everything that is still there, as (queue, payload, key, id) in the order it comes."""
    rest: list[tuple[str, str, str, str]] = []
    # Leases of those who were killed run on; a day later they are all over.
    clock = ManualClock(SystemClock().now() / 1_000_000 + DAY)
    with open_broker(data, clock) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        for name in ("billing", "audit"):
            while some := queue.pull(name, 1000):
                rest += [(name, one.data.decode().rstrip(), one.ordering_key or "", one.id) for one in some]
                queue.ack_many([one.ack_id for one in some])
        rest += [("tasks", one.message.payload, "", one.message.message_id) for one in manager.dead_letters("tasks")]
        while tasks := manager.consume_many("tasks"):
            rest += [("tasks", task.payload, "", task.message_id) for task in tasks]
            for task in tasks:
                manager.ack("tasks", task.message_id)
    return rest


def stored_payloads(journal: SqliteJournal | ReadOnlyPostgres) -> list[str]:
    state, happened = journal.load()
    state.replay(happened)
    number = next(stream.number for stream in state.streams.values() if stream.name == "orders")
    return [
        message.data.decode().rstrip()
        for summary, chunk in journal.read(number, 0, 1 << 40)
        for message in chunk.messages(summary.published_at)
    ]


@pytest.mark.timeout(120 + 3 * KILLS)
def test_no_confirmed_message_is_lost_and_no_key_overtaken_however_often_the_process_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().getrandbits(32)))
    data, notes = str(tmp_path / "data"), tmp_path / "notes"
    notes.mkdir()
    try:
        torment(data, notes, random.Random(seed))
        check(data, notes)
    except BaseException as error:
        error.add_note(f"repeat: PENSTOCK_SEED={seed} PENSTOCK_KILLS={KILLS} python -m pytest {Path(__file__).relative_to(ROOT)}")
        raise


@needs_postgres
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_the_same_on_postgresql_whose_connections_and_processes_are_killed_too(tmp_path: Path, kills: int) -> None:
    rng, notes = random.Random(random.SystemRandom().getrandbits(32)), tmp_path / "notes"
    notes.mkdir()
    with postgres_server() as server:
        address = server.new_database()

        def disturb() -> None:
            if kills > 2 and rng.random() < 0.3:
                server.kill()
                server.start()
            for _ in range(rng.randrange(1, 5)):
                server.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock%'"
                    " AND query LIKE '%WITH own%'"
                )

        torment(address, notes, rng, kills, disturb)
        check(address, notes)


def check(data: str, notes: Path) -> None:
    open_broker(data).close()
    journal = ReadOnlyPostgres(data) if is_database(data) else SqliteJournal(data)
    journal.verify()
    stored = stored_payloads(journal)
    journal.close()

    intents: dict[str, set[str]] = {"orders": set(), "tasks": set()}
    confirmed: dict[str, dict[str, str]] = {"orders": {}, "tasks": {}}
    refused: set[str] = set()
    deliveries: list[tuple[str, str, str, str]] = []
    for kind, *fields in read_notes(notes):
        if kind == "intent":
            intents[fields[0]].add(fields[1])
        elif kind == "confirmed":
            confirmed[fields[0]][fields[2]] = fields[1]
        elif kind == "refused" and not fields[1].startswith("faithful"):  # which tries again
            refused.add(fields[1])
        elif kind == "delivered":
            deliveries.append((fields[0], fields[1], fields[2], fields[3]))
    deliveries += drain(data)

    for queue, stream in (("billing", "orders"), ("audit", "orders"), ("tasks", "tasks")):
        got = {message_id: payload for name, payload, _, message_id in deliveries if name == queue}
        assert set(got.values()) <= intents[stream], "something was delivered that nobody published"
        lost = {message_id: payload for message_id, payload in confirmed[stream].items() if got.get(message_id) != payload}
        assert not lost, f"{len(lost)} confirmed messages of {stream} never reached {queue}: {list(lost.items())[:5]}"

    stored_all_the_same = refused & {payload for _, payload, _, _ in deliveries}
    assert not stored_all_the_same, f"refused, and stored all the same: {sorted(stored_all_the_same)[:5]}"

    repeated = [payload for payload, count in Counter(stored).items() if count > 1]
    assert not repeated, f"stored twice: {repeated[:5]}"

    place = {payload: offset for offset, payload in enumerate(stored)}
    last: dict[str, tuple[int, str]] = {}
    seen: set[str] = set()
    for name, payload, key, message_id in deliveries:
        if name == "billing" and key and message_id not in seen:
            seen.add(message_id)
            previous = last.get(key, (-1, ""))
            assert place[payload] > previous[0], f"key {key}: {payload!r} came first after {previous[1]!r}"
            last[key] = (place[payload], payload)

    ranks: dict[str, tuple[int, int]] = {}
    for payload in stored:
        producer, *rest = payload.split()
        rank = (int(rest[0]), int(rest[1]) if len(rest) > 1 else 0)
        assert rank > ranks.get(producer, (-1, -1)), f"{payload!r} is stored before what {producer} published earlier"
        ranks[producer] = rank
