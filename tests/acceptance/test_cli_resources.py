"""`penstock topic`, `subscription`, `snapshot` and `queue`, as a person or a script meets them."""

import re
from pathlib import Path

import pytest

from penstock import sync
from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock, Run

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def alone(tmp_path: Path) -> Penstock:
    """Directly on a data directory."""
    (tmp_path / "data").mkdir()
    return Penstock(tmp_path, {"PENSTOCK_DATA_DIR": "data"})


def test_the_life_of_a_topic(penstock: Penstock) -> None:
    assert penstock.good("topic list") == Run(0, "", "no topics; `penstock topic create NAME` creates one\n")
    assert penstock.good("topic create orders letters --retention 1h").out == "created topic orders\ncreated topic letters\n"
    assert penstock.good("topic create orders --exist-ok").out == "topic orders exists already\n"
    other = penstock(*"topic create orders --exist-ok --retention 9h".split())
    assert (other.code, "retention is" in other.err, "the command update" in other.err) == (1, True, True)
    assert penstock.good("topic update orders --retention 9h").out == "updated topic orders\n"
    penstock.good("topic create orders --exist-ok --retention 9h")
    penstock.good("topic update orders --retention none")
    penstock.good("subscription create billing --topic orders")

    listed = penstock.good("topic list").out.splitlines()
    assert listed[0].split() == ["NAME", "SUBSCRIPTIONS", "CREATED"]
    assert [line.split()[:2] for line in listed[1:]] == [["orders", "1"], ["letters", "0"]]
    assert [topic["name"] for topic in penstock.good("topic list --json").json] == ["orders", "letters"]
    assert re.search(r"^subscriptions +billing$", penstock.good("topic show orders").out, re.MULTILINE)
    shown = penstock.good("topic show orders --json").json
    assert (shown["name"], shown["subscriptions"]) == ("orders", ["billing"])

    assert penstock.good("topic delete orders letters --json").json == {"deleted": ["orders", "letters"]}
    assert penstock.good("topic list --json").json == []


def test_the_consumers_of_a_queue(tmp_path: Path) -> None:
    with LocalServer(memory=True) as server, sync.PubSub(server.url) as pubsub:
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})
        queue = pubsub.queue("tasks").create()
        assert penstock.good("queue consumers tasks") == Run(0, "", "queue tasks has no consumers\n")
        message_id = queue.publish("work")
        assert len(queue.consume(consumer="worker-1", prefetch=4)) == 1

        head, row = penstock.good("queue consumers tasks").out.splitlines()
        assert head.split() == ["CONSUMER", "CONNECTION", "PREFETCH", "HOLDS", "FOR", "UP", "TO"]
        assert row.split()[:4] == ["worker-1", "-", "4", "1"]
        [listed] = penstock.good("queue consumers tasks --json").json
        assert (listed["consumer_id"], listed["messages"][0]["message_id"]) == ("worker-1", message_id)
        assert penstock("queue", "consumers", "nosuch").code == 3


def test_what_was_done_before_an_error_is_told_to_programs_too(penstock: Penstock) -> None:
    made = penstock("topic", "create", "a", "b", "x/y", "c", "--json")
    assert (made.code, [topic["name"] for topic in made.json]) == (2, ["a", "b"])
    gone = penstock("topic", "delete", "a", "--json", "nosuch", "b")
    assert (gone.code, gone.json) == (3, {"deleted": ["a"]})
    assert penstock("topic", "delete", "nosuch", "--json").out == ""


def test_an_update_changes_what_is_given_and_takes_away_what_is_named(penstock: Penstock) -> None:
    penstock.good("topic create orders letters others")
    penstock.good("subscription create billing --topic orders --min-backoff 1s --max-backoff 60s --exactly-once")
    penstock.good("subscription update billing --dead-letter-topic letters --max-attempts 7")

    penstock.good("subscription update billing --min-backoff 2s --dead-letter-topic others --no-exactly-once --no-retain-acked")
    found = penstock.good("subscription show billing --json").json
    assert found["retry_policy"] == {"minimum_backoff": 2, "maximum_backoff": 60}
    assert found["dead_letter_policy"] == {"dead_letter_topic": "others", "max_delivery_attempts": 7}
    assert (found["exactly_once"], found["retain_acked_messages"]) == (False, False)
    penstock.good("subscription update billing --max-attempts 9")
    found = penstock.good("subscription update billing --no-backoff --retain-acked --json").json
    assert (found["retry_policy"], found["retain_acked_messages"]) == (None, True)
    assert found["dead_letter_policy"] == {"dead_letter_topic": "others", "max_delivery_attempts": 9}
    assert penstock.good("subscription update billing --no-dead-letters --json").json["dead_letter_policy"] is None
    both = penstock(*"subscription update billing --no-backoff --min-backoff 1s".split())
    assert (both.code, both.err.splitlines()[0]) == (2, "penstock: --no-backoff and --min-backoff are both given")
    none = penstock("subscription", "update", "billing")
    assert (none.code, none.err.splitlines()[1]) == (2, "`penstock subscription update --help` lists the flags")

    penstock.good("queue create tasks --ttl 1h --max-backoff 60s --max-dead-letters 0")
    found = penstock.good("queue update tasks --min-backoff 5s --max-dead-letters 10 --json").json
    assert found["retry_policy"] == {"minimum_backoff": 5, "maximum_backoff": 60}
    assert (found["dead_letter_enabled"], found["dead_letter_max_size"], found["message_ttl"]) == (True, 10, 3_600)
    found = penstock.good("queue update tasks --no-ttl --no-backoff --json").json
    assert (found["message_ttl"], found["retry_policy"]) == (None, None)
    assert penstock("queue", "update", "tasks").code == 2


def test_exist_ok_compares_only_the_flags_that_are_given(penstock: Penstock) -> None:
    penstock.good("topic create orders letters")
    penstock.good(
        "subscription create s --topic orders --min-backoff 1s --max-backoff 20s --dead-letter-topic letters --max-attempts 9"
    )
    penstock.good("queue create q --min-backoff 1s --max-backoff 20s")
    for line in (
        "subscription create s --topic orders --exist-ok --min-backoff 1s",
        "subscription create s --topic orders --exist-ok --max-backoff 20s",
        "subscription create s --topic orders --exist-ok --dead-letter-topic letters",
        "subscription create s --topic orders --exist-ok --max-attempts 9",
        "queue create q --exist-ok --min-backoff 1s",
        "queue create q --exist-ok --max-backoff 20s",
    ):
        assert penstock.good(line).out.endswith("exists already\n")
    for line in (
        "subscription create s --topic orders --exist-ok --min-backoff 2s",
        "subscription create s --topic orders --exist-ok --max-attempts 8",
        "queue create q --exist-ok --max-backoff 21s",
    ):
        refused = penstock(*line.split())
        assert (refused.code, "with other settings" in refused.err) == (1, True), line


def test_the_life_of_a_subscription(penstock: Penstock) -> None:
    penstock.good("topic create orders letters")
    made = penstock(
        *"subscription create billing --topic orders --ack-deadline 1m --ordering --max-backoff 5s --max-attempts 7".split(),
        *"--dead-letter-topic letters --exactly-once --retention 2d --max-bytes 1MiB --overflow reject --no-retain-acked".split(),
        "--json",
        "--filter",
        'attributes.kind = "order"',
    )
    assert made.code == 0, made.err
    assert (
        made.json.items()
        >= {
            "name": "billing",
            "topic": "orders",
            "ack_deadline_seconds": 60,
            "message_ordering": True,
            "filter": 'attributes.kind = "order"',
            "retry_policy": {"minimum_backoff": 5, "maximum_backoff": 5},
            "dead_letter_policy": {"dead_letter_topic": "letters", "max_delivery_attempts": 7},
            "exactly_once": True,
            "message_retention_duration": 172_800,
            "retain_acked_messages": False,
            "max_bytes": 2**20,
            "overflow": "reject",
        }.items()
    )
    assert penstock.good("subscription show billing --json").json == made.json
    assert re.search(r"^max_delivery_attempts +7$", penstock.good("subscription show billing").out, re.MULTILINE)

    penstock.good("publish orders one two --attribute kind=order")
    [row] = penstock.good("subscription list").out.splitlines()[1:]
    assert row.split()[:4] == ["billing", "orders", "2", "0"]
    assert [one["name"] for one in penstock.good("subscription list --topic orders --json").json] == ["billing"]
    assert penstock.good("subscription list --topic letters --json").json == []
    assert penstock.good("subscription stats billing --json").json["backlog"] == 2
    assert re.search(r"^backlog +2$", penstock.good("subscription stats billing").out, re.MULTILINE)

    assert penstock.good("subscription pause billing").out == "paused subscription billing\n"
    assert penstock.good("subscription list").out.split()[-1] == "paused"
    assert penstock.good("pull billing").err == "no messages\n"
    assert penstock.good("subscription resume billing --json").json == {"resumed": ["billing"]}
    assert len(penstock.good("pull billing --json").json_lines) == 2
    assert penstock.good("subscription delete billing").out == "deleted subscription billing\n"
    assert "creates one" in penstock.good("subscription list").err


def test_a_subscription_is_moved_to_a_place(penstock: Penstock) -> None:
    penstock.good("topic create orders")
    penstock.good("subscription create billing --topic orders")
    penstock.good("publish orders a b c")
    assert (
        penstock.good("snapshot create before --subscription billing").out == "created snapshot before of subscription billing\n"
    )
    assert penstock.good("subscription seek billing --end").out == "moved subscription billing: 0 messages to deliver\n"

    for place, backlog in (
        ("--snapshot before", 3),
        ("--offset 1", 2),
        ("--ago 1h", 3),
        ("--time 2999-01-01T00:00:00Z", 0),
        ("--start", 3),
    ):
        assert penstock.good(f"subscription seek billing {place} --json").json == {"name": "billing", "backlog": backlog}, place

    [row] = penstock.good("snapshot list").out.splitlines()[1:]
    assert row.split()[:2] == ["before", "orders"]
    assert penstock.good("snapshot list --json").json[0]["name"] == "before"
    assert penstock.good("snapshot delete before").out == "deleted snapshot before\n"
    assert penstock.good("snapshot list").out == ""


def test_the_life_of_a_queue(penstock: Penstock) -> None:
    assert "penstock queue create NAME" in penstock.good("queue list").err
    made = penstock.good(
        "queue create tasks --ack-deadline 5s --max-retries 1 --min-backoff 20m --ttl 1d --priority 3 --prefetch 2000 "
        "--max-depth 500 --overflow discard --max-dead-letters 0 --json"
    )
    assert (
        made.json.items()
        >= {
            "name": "tasks",
            "ack_deadline_secs": 5,
            "max_retries": 1,
            "retry_policy": {"minimum_backoff": 1_200, "maximum_backoff": 1_200},
            "message_ttl": 86_400,
            "default_priority": 3,
            "default_prefetch": 2_000,
            "max_depth": 500,
            "overflow": "discard",
            "dead_letter_enabled": False,
        }.items()
    )
    assert penstock.good("queue show tasks --json").json == made.json
    assert re.search(r"^maximum_backoff +1,200$", penstock.good("queue show tasks").out, re.MULTILINE)
    assert penstock.good("queue create tasks --exist-ok").out == "queue tasks exists already\n"
    assert "max_retries is" in penstock(*"queue create tasks --exist-ok --max-retries 77".split()).err
    assert penstock.good("queue update tasks --max-retries 77").out == "updated queue tasks\n"
    assert penstock.good("queue create tasks --exist-ok --max-retries 77").out == "queue tasks exists already\n"

    penstock.good("queue publish tasks a b")
    assert penstock.good("queue pause tasks").out == "paused queue tasks\n"
    [row] = penstock.good("queue list").out.splitlines()[1:]
    assert (row.split()[:2], row.split()[-1]) == (["tasks", "2"], "paused")
    penstock.good("queue resume tasks")
    [listed] = penstock.good("queue list --json").json
    assert (listed["queue"], listed["depth"], listed["paused"]) == ("tasks", 2, False)
    assert penstock.good("queue stats tasks --json").json["depth"] == 2
    assert re.search(r"^depth +2$", penstock.good("queue stats tasks").out, re.MULTILINE)

    asked = penstock("queue", "purge", "tasks")
    assert (asked.code, asked.out, asked.err) == (
        2,
        "",
        "penstock: will not remove 2 messages from queue tasks without --yes: there is no terminal to ask on\n",
    )
    assert penstock.good("queue purge tasks --yes").out == "removed 2 messages from queue tasks\n"
    assert penstock.good("queue purge tasks --json").json == {"purged": 0}
    assert penstock.good("queue delete tasks").out == "deleted queue tasks\n"
    assert penstock.good("queue list --json").json == []


def test_deleting_asks_only_if_messages_would_be_lost(penstock: Penstock) -> None:
    penstock.good("topic create orders")
    penstock.good("subscription create billing --topic orders")
    penstock.good("subscription create audit --topic orders")
    penstock.good("queue create tasks")
    penstock.good("publish orders hello")
    penstock.good("queue publish tasks later --delay 1h")
    for line, with_what in (
        ("queue delete tasks", "queue tasks with 1 message"),
        ("queue purge tasks", "1 message from queue tasks"),
        ("subscription delete billing", "subscription billing with 1 message"),
        ("topic delete orders", "topic orders with 2 messages of its subscriptions"),
    ):
        refused = penstock(*line.split())
        assert (refused.code, refused.out) == (2, ""), line
        assert f"{with_what} without --yes" in refused.err

    penstock.good("pull audit")
    for line in (
        "subscription delete audit",
        "subscription delete billing --yes",
        "topic delete orders",
        "queue delete tasks --yes",
    ):
        penstock.good(line)


def test_a_name_that_does_not_exist_is_answered_with_one_that_does(penstock: Penstock, subtests: pytest.Subtests) -> None:
    penstock.good("topic create letters")
    penstock.good("subscription create desk --topic letters")
    penstock.good("queue create mail")
    for line, hint in (
        ("publish lettrs x", "did you mean letters?"),
        ("pull dsk", "did you mean desk?"),
        ("pull letters", "letters is a topic; its subscriptions: desk"),
        ("publish mail x", "mail is a queue: see penstock queue --help"),
        ("queue stats mial", "did you mean mail?"),
        ("explain mial", "did you mean the queue mail?"),
        ("topic show nothing-like-it", "create it first, or check the spelling of the name"),
    ):
        with subtests.test(line):
            found = penstock(*line.split())
            assert (found.code, found.out) == (3, "")
            assert found.err.splitlines()[1:] == [hint]


def test_what_exists_already_is_told_with_what_to_do(alone: Penstock) -> None:
    alone.good("topic create orders")

    found = alone("topic", "create", "orders")
    assert found == Run(
        1, "", "penstock: Topic already exists: orders\nchoose another name, or use --exist-ok to keep it as it is\n"
    )


def test_all_of_it_works_on_a_data_directory_without_a_server(alone: Penstock) -> None:
    alone.good("topic create orders")
    alone.good("subscription create billing --topic orders")
    alone.good("queue create tasks")
    alone.good("publish orders hello")
    assert alone.good("pull billing --json").json_lines[0]["data"] == "hello"
    assert alone.good("pull billing").err == "no messages\n"  # the ack is kept
    assert [topic["name"] for topic in alone.good("topic list --json").json] == ["orders"]
    assert [queue["queue"] for queue in alone.good("queue list --json --data-dir data").json] == ["tasks"]


def test_a_directory_that_a_server_has_is_told_with_the_flag_to_use(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data"):
        found = Penstock(tmp_path)("topic", "list", "--data-dir", "data")

    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("penstock: data directory 'data' is in use by process ")
    assert "--server URL" in found.err


def test_a_flag_wins_over_the_environment(penstock: Penstock, server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    penstock.good("topic create remote")

    assert penstock.good("topic list --json --data-dir data").json == []
    assert penstock.good("topic list --json --project another").json == []
    other = Penstock(tmp_path, penstock.environment | {"PENSTOCK_SERVER": NOWHERE})
    assert [topic["name"] for topic in other.good(f"topic list --json --server {server.url}").json] == ["remote"]


def test_a_token_is_sent_and_what_it_may_not_do_is_told(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens.json")
    token = keyring.create("reader", SystemClock().now(), patterns=["public-*"])
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})
        refused = penstock("topic", "list")
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("penstock: not authenticated: ")
        assert "--token" in refused.err
        assert "PENSTOCK_TOKEN" in refused.err
        assert penstock.good(f"topic create public-one --token {token}").code == 0
        known = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PENSTOCK_TOKEN": token})
        assert [topic["name"] for topic in known.good("topic list --json").json] == ["public-one"]
        forbidden = known("topic", "create", "secret")
        assert (forbidden.code, forbidden.err.startswith("penstock: this token may not ")) == (1, True)
        assert token not in refused.err + forbidden.err
