"""`penstock publish`, `pull`, `queue publish`, `queue consume` and `dlq`, as a person or a script meets them."""

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.server import LocalServer
from tests.acceptance.command import COMMAND, Penstock, Run

SECONDS = 60


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def server(shared: LocalServer) -> Iterator[LocalServer]:
    """With the topic orders, its subscription billing, and the work queue tasks, whose messages are tried once."""
    topics, queues = MessageQueue(broker=shared.broker), QueueManager(broker=shared.broker)
    topics.register_topic("orders")
    topics.register_subscription("billing", "orders", SubscriptionOptions(message_ordering=True))
    queues.create("tasks", QueueConfig(max_retries=0))
    yield shared
    if topics.get_subscription("billing") is not None:
        topics.unregister_subscription("billing")
    topics.unregister_topic("orders")
    queues.delete("tasks")


@pytest.fixture
def penstock(server: LocalServer, tmp_path: Path) -> Penstock:
    return Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})


def test_messages_go_in_and_come_out_for_people(penstock: Penstock) -> None:
    done = penstock("publish", "orders", "first", "second\nline", "--attribute", "b=2", "--attribute", "a=1", "--key", "k")
    ids = done.out.split()
    assert (done.code, done.err, len(ids)) == (0, "", 2)

    shown = penstock.good("pull billing").out.splitlines()
    assert [line.split("  ")[0] for line in shown if not line.startswith(" ")] == ids
    assert shown[0].endswith(" UTC  key=k  a=1  b=2")
    assert [shown[1], *shown[3:]] == ["  first", "  second", "  line"]
    assert penstock.good("pull billing") == Run(0, "", "no messages\n")


def test_messages_go_in_and_come_out_for_programs(penstock: Penstock) -> None:
    ids = penstock("publish", "orders", "{}", "--key", "k", "--priority", "7", "--attribute", "a=x=y", "--json").json["ids"]

    [message] = penstock.good("pull billing --json").json_lines
    assert message.pop("publish_time").endswith("Z")
    assert message == {
        "id": ids[0],
        "data": "{}",
        "attributes": {"a": "x=y"},
        "ordering_key": "k",
        "delivery_attempt": 1,
        "priority": 7,
    }


def test_flags_may_stand_between_arguments(penstock: Penstock, server: LocalServer) -> None:
    penstock.good("publish orders --key k a --attribute x=y b -- -c")
    assert penstock.good("pull billing --format raw").out == "a\nb\n-c\n"
    [shown] = penstock("publish", "orders", "--json", "d").json["ids"]
    assert shown in penstock.good(f"explain billing --limit 1 {shown}").out


def test_json_is_json_whatever_the_terminal_can_show(penstock: Penstock) -> None:
    for penstock.environment["PYTHONIOENCODING"] in ("ascii", "latin-1", "utf-8"):
        penstock("publish", "orders", "ünï ☃")
        assert penstock.good("pull billing --json").json["data"] == "ünï ☃"


def test_bytes_stay_as_they_are(penstock: Penstock, tmp_path: Path) -> None:
    data = bytes(range(256)) + b"\n"
    penstock.good("publish orders", stdin=data)
    (tmp_path / "file").write_bytes(data)
    penstock.good("publish orders --file file")

    [first] = penstock.good("pull billing --max 1 --format json").json_lines
    assert first["data_base64"].startswith("AAECAwQF")
    done = penstock.good("pull billing --format raw")
    assert done.out.encode(errors="surrogateescape") == data + b"\n"


def test_a_message_cannot_do_things_to_a_terminal(penstock: Penstock) -> None:
    penstock.good("publish orders --attribute x=\x1b[2J\x9b", stdin="one\x1b]0;title\x07\r\ntwo\u202e")

    out = penstock.good("pull billing").out
    assert [character for character in out if not character.isprintable()] == ["\n"] * 3
    assert "x=\\x1b[2J\\x9b" in out
    assert "  one\\x1b]0;title\\x07\\r\n  two\\u202e\n" in out


def test_every_line_is_a_message(penstock: Penstock, tmp_path: Path) -> None:
    told = penstock.good("publish orders --lines", stdin="one\n\ntwo\r\n" + "x" * 300_000 + "\nlast")
    assert told.out == ""
    assert told.err.startswith("published 4 messages in ")
    (tmp_path / "lines").write_text("\n".join(map(str, range(2_345))))
    assert penstock.good("publish orders --lines --file lines --json").json["published"] == 2_345
    assert penstock.good("publish orders again --count 1200 --json").json["published"] == 1_200

    pulled = penstock.good("pull billing --max 10000 --json").json_lines
    assert [message["data"] for message in pulled[:4]] == ["one", "two", "x" * 300_000, "last"]
    assert [message["data"] for message in pulled[4:2_349]] == [str(number) for number in range(2_345)]
    assert len(pulled) == 4 + 2_345 + 1_200


def test_pull_waits_peeks_and_leaves_as_it_is_told(penstock: Penstock, server: LocalServer) -> None:
    publish = MessageQueue(broker=server.broker).publish
    later = threading.Timer(0.2, publish, ["orders", [Message(b"late")]])  # should it come before, the pull takes it as well
    later.start()
    assert penstock.good("pull billing --wait 60 --json").json["data"] == "late"
    later.join()

    penstock.good("publish orders a b")
    assert [one["data"] for one in penstock.good("pull billing --peek --json").json_lines] == ["a", "b"]
    [held] = penstock.good("pull billing --no-ack --max 1 --json").json_lines
    stats = MessageQueue(broker=server.broker).stats("billing")
    assert (held["data"], stats.in_flight, stats.acked_total) == ("a", 1, 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)])
def test_following_goes_on_until_it_is_told_to_stop(
    penstock: Penstock, server: LocalServer, number: signal.Signals, code: int
) -> None:
    topics = MessageQueue(broker=server.broker)
    process = penstock.start("pull", "billing", "--follow", "--json")
    assert process.stdout is not None
    for data in (b"one", b"two", b"three"):
        topics.publish("orders", [Message(data)])
        assert json.loads(process.stdout.readline())["data"] == data.decode()
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, out, err) == (code, "", "")
    stats = topics.stats("billing")
    assert (stats.acked_total, stats.backlog) == (3, 0)


def test_following_stops_after_so_many_and_gives_the_rest_back(penstock: Penstock, server: LocalServer) -> None:
    topics = MessageQueue(broker=server.broker)
    for number in range(5):
        topics.publish("orders", [Message(str(number).encode())])

    assert penstock.good("pull billing --follow --max 3 --format raw").out == "0\n1\n2\n"
    stats = topics.stats("billing")
    assert (stats.acked_total, stats.ready, stats.in_flight) == (3, 2, 0)


def test_a_reader_that_leaves_ends_it_quietly_and_keeps_what_it_did_not_see(penstock: Penstock, server: LocalServer) -> None:
    topics = MessageQueue(broker=server.broker)
    process = penstock.start("pull", "billing", "--follow", "--format", "raw")
    topics.publish("orders", [Message(b"seen")])
    assert process.stdout is not None
    assert process.stdout.readline() == "seen\n"
    process.stdout.close()
    topics.publish("orders", [Message(b"unseen")])
    assert process.wait(SECONDS) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()

    assert [one.data for one in topics.pull("billing", max_messages=10)] == [b"unseen"]


def test_following_ends_with_the_subscription(penstock: Penstock, server: LocalServer) -> None:
    topics = MessageQueue(broker=server.broker)
    topics.publish("orders", [Message(b"seen")])

    def end() -> None:
        until = monotonic() + SECONDS * SECOND
        while topics.stats("billing").acked_total < 1 and monotonic() < until:
            threading.Event().wait(0.01)
        topics.unregister_subscription("billing")

    ending = threading.Thread(target=end)
    ending.start()
    done = penstock("pull", "billing", "--follow", "--format", "raw")
    ending.join()

    assert (done.code, done.out) == (3, "seen\n")
    assert done.err.startswith("penstock: Subscription not found: billing\n")


def test_tasks_go_in_and_come_out(penstock: Penstock) -> None:
    penstock.good("queue publish tasks text --header k=v --priority 9 --max-retries 2 --ttl 1h")
    penstock.good('queue publish tasks {"a":[1]} null --type json')
    penstock.good("queue publish tasks --type bytes", stdin=b"\xff")
    assert penstock.good("queue publish tasks --lines --json", stdin="1\n2\n").json["published"] == 2
    penstock.good("queue publish tasks later --delay 1h")

    assert penstock.good("queue peek tasks").out.splitlines()[1] == "  text"
    assert penstock.good("queue peek tasks --format raw").out == "text\n"
    first, *rest = penstock.good("queue consume tasks --json").json_lines
    assert first.items() >= {"payload": "text", "headers": {"k": "v"}, "priority": 9, "retry_count": 0, "max_retries": 2}.items()
    assert [one.get("payload", one.get("payload_base64")) for one in rest] == [{"a": [1]}, None, "/w==", "1", "2"]
    assert penstock.good("queue consume tasks") == Run(0, "", "no messages\n")
    assert penstock.good("queue peek tasks").err == "no messages\n"


def test_tasks_are_followed(penstock: Penstock, server: LocalServer) -> None:
    queues = QueueManager(broker=server.broker)
    for payload in ("one", {"two": 2}, "three"):
        queues.publish("tasks", payload)

    assert penstock.good("queue consume tasks --follow --max 2 --format raw").out == 'one\n{"two": 2}\n'
    stats = queues.stats("tasks")
    assert (stats.acked_total, stats.depth) == (2, 1)


def bury(server: LocalServer, *errors: str) -> list[str]:
    """Make dead letters with these errors; returns their ids."""
    queues = QueueManager(broker=server.broker)
    ids = []
    for number, error in enumerate(errors):
        queues.publish("tasks", number, headers={"tenant": f"t{number}"})
        [message] = queues.consume_many("tasks", "worker")
        queues.nack("tasks", message.message_id, error=error)
        ids.append(message.message_id)
    return ids


def test_dead_letters_are_listed_put_back_and_removed(penstock: Penstock, server: LocalServer) -> None:
    queues = QueueManager(broker=server.broker)
    assert penstock.good("dlq list tasks") == Run(0, "", "no dead letters\n")
    ids = bury(server, "timed out", "refused", "timed out\x1b[1m", "Refused again")

    lines = penstock.good("dlq list tasks").out.splitlines()
    assert lines[0].split() == ["ID", "AGE", "ATTEMPTS", "REASON", "PAYLOAD", "ERROR"]
    assert [line.split()[0] for line in lines[1:]] == ids
    assert lines[3].endswith("timed out\\x1b[1m")
    shown = penstock.good(f"dlq show tasks {ids[2]}").out
    assert {" ".join(line.split()) for line in shown.splitlines()} >= {
        f"message {ids[2]}",
        "error timed out\\x1b[1m",
        "attempts 1",
        "header tenant t2",
        "payload",
        "2",
    }
    assert "dead_lettered" in shown
    letter = penstock.good(f"dlq show tasks {ids[1]} --json").json
    assert letter.items() >= {"id": ids[1], "queue": "tasks", "payload": 1, "last_error": "refused"}.items()
    assert [event["event"] for event in letter["events"]] == ["published", "leased", "dead_lettered"]
    assert penstock("dlq", "show", "tasks", "nosuch").code == 3
    [letter] = penstock("dlq", "list", "tasks", "--json", "--where", "header.tenant=t1").json
    assert letter.items() >= {"id": ids[1], "payload": 1, "attempts": 1, "last_error": "refused"}.items()
    assert penstock("dlq", "list", "tasks", "--where", "error~refused AND age>1h").out == ""
    assert len(penstock("dlq", "list", "tasks", "--where", "error~refused and age<1h", "--json").json) == 2

    done = penstock("dlq", "redrive", "tasks", "--where", "error~'timed OUT'", "--limit", "1")
    assert done == Run(0, "put 1 dead letter back into queue tasks\n", "")
    [again] = queues.consume_many("tasks", "worker")
    assert again.message_id == ids[0]
    asked = penstock("dlq", "purge", "tasks", "--where", "error~refused")
    assert asked == Run(
        2, "", "penstock: will not remove 2 dead letters of queue tasks without --yes: there is no terminal to ask on\n"
    )
    assert penstock("dlq", "purge", "tasks", "--where", "error~refused", "--yes", "--json").json == {"purged": 2}
    assert penstock.good("dlq redrive tasks --json").json == {"redriven": 1}
    assert penstock.good("dlq purge tasks --yes").out == "removed 0 dead letters of queue tasks\n"


def test_dead_letters_show_the_task_or_the_payload_and_that_they_were_rejected(penstock: Penstock, server: LocalServer) -> None:
    queues = QueueManager(broker=server.broker)
    call = {"v": 1, "task": "send_email", "args": ["ann"], "kwargs": {"subject": "Hi\x1b[1m"}}
    for payload in (call, {"page": 7}, b"\xff", "plain"):
        queues.publish("tasks", payload)
        [message] = queues.consume_many("tasks", "worker")
        queues.nack("tasks", message.message_id, requeue=False)

    lines = penstock.good("dlq list tasks").out.splitlines()[1:]
    assert [line.split(maxsplit=5)[4] for line in lines] == ["rejected"] * 4
    shown = ['send_email("ann", subject="Hi\\u001b[1m")', '{"page": 7}', "(base64) /w==", "plain"]
    assert [line.split("rejected")[1].rsplit(maxsplit=1)[0].strip() for line in lines] == shown
    [letter] = penstock("dlq", "list", "tasks", "--json", "--where", "task=send_email AND reason=rejected").json
    assert letter["reason"] == "explicit_nack"


def test_more_dead_letters_than_one_batch_are_all_put_back(penstock: Penstock, server: LocalServer) -> None:
    bury(server, *["x"] * 450)

    assert penstock.good("dlq redrive tasks --json").json == {"redriven": 450}
    assert QueueManager(broker=server.broker).stats("tasks").depth == 450


@pytest.mark.parametrize(
    ("answer", "code", "left"), [(b"y\n", 0, 0), pytest.param(b"\n", 1, 1, marks=pytest.mark.long), (signal.SIGINT, 130, 1)]
)
def test_a_person_is_asked_before_letters_are_removed(
    penstock: Penstock, server: LocalServer, answer: bytes | signal.Signals, code: int, left: int
) -> None:
    bury(server, "x")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "dlq", "purge", "tasks"], env=penstock.environment, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(ours, 1000)
        if isinstance(answer, bytes):
            os.write(ours, answer)
        else:
            process.send_signal(answer)
        assert process.wait(SECONDS) == code
    os.close(ours)

    assert b"remove 1 dead letter of queue tasks? [y/N] " in asked
    assert QueueManager(broker=server.broker).stats("tasks").dead_letters == left


def test_a_message_that_cannot_be_sent_ends_a_stream_of_lines(penstock: Penstock, server: LocalServer) -> None:
    done = penstock("queue", "publish", "tasks", "--lines", "--type", "json", stdin="1\n2\nthree\n4\n")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("penstock: a payload is not JSON: ")
    assert QueueManager(broker=server.broker).stats("tasks").depth == 0  # one batch, all or none


def test_a_stream_of_lines_that_ends_early_says_how_far_it_came(penstock: Penstock, server: LocalServer) -> None:
    queues = QueueManager(broker=server.broker)
    with subprocess.Popen(
        [*COMMAND, "queue", "publish", "tasks", "--lines", "--type", "json"],
        env=penstock.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("1\n2\nthr")
        process.stdin.flush()
        assert len(queues.consume_many("tasks", timeout=SECONDS)) == 2  # they go while the rest is still to come
        process.stdin.write("ee\n")
        process.stdin.flush()
        assert process.wait(SECONDS) == 2  # and it does not wait for the end of the input
        told = process.stderr.read().splitlines()

    assert told[0] == "published 2 messages, then it ended"
    assert told[1].startswith("penstock: a payload is not JSON: ")
