"""`penstock hub …` as its user sees it: what it says, what it does, and how it ends. Wrong calls: test_cli_wrong_calls.py."""

import asyncio
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.access import Keyring
from penstock.cli.hub import value_of
from penstock.clock import SystemClock
from penstock.hub.client.client import HubClient
from penstock.testing.proxy import Direction, FaultyProxy
from penstock.testing.server import LocalServer
from tests.acceptance.command import COMMAND, Penstock
from tests.ports import free_port

SECONDS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """One for all tests: each uses topics of its own. Those below `chat` have a history."""
    with LocalServer(hub_history=("chat",)) as server:
        yield server


@pytest.fixture
def penstock(tmp_path: Path, server: LocalServer) -> Penstock:
    return Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})


@contextmanager
def listening(penstock: Penstock, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`penstock hub listen` as a process that listens."""
    process = penstock.start("hub", "listen", *words)
    assert process.stderr is not None, "it is piped"
    try:
        first = process.stderr.readline()
        assert first.startswith("listening to "), first + process.stderr.read()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def meanwhile(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Other clients of the hub, in a thread, while a command runs here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work)
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


async def publish(server: LocalServer, topic: str, *values: object) -> None:
    """Publish as soon as somebody subscribes to the topic."""
    async with HubClient(server.url) as hub, asyncio.timeout(SECONDS):
        await heard(hub, topic)
        for value in values:
            await hub.publish(topic, value)


async def heard(hub: HubClient, topic: str) -> None:
    while not (await hub.topic_info(topic)).subscriber_count:  # noqa: ASYNC110  # nobody tells of it
        await asyncio.sleep(0.01)


def printed() -> bool:
    """Whether the command that runs in this process has printed something."""
    output = sys.stdout.buffer
    return isinstance(output, io.BytesIO) and bool(output.getvalue())


# ── listen ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_published_is_shown_a_line_each_and_subscribers_are_counted(penstock: Penstock) -> None:
    with listening(penstock, "orders/#", "--count", "2") as process:
        done = penstock("hub", "publish", "orders/eu", '{"id": 1}', "hello", "--type", "order:created", "--as", "@(shop/till)")
        assert (done.code, done.out) == (0, "published to orders/eu: 1 subscriber\n" * 2)

        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 0
    assert re.fullmatch(r"2 messages in [\d.]+ m?s\n", err)
    first, second = map(json.loads, out.splitlines())
    assert (first["topic"], first["type"], first["from"], first["data"]) == (
        "orders/eu",
        "order:created",
        "@(shop/till)",
        {"id": 1},
    )
    assert (second["data"], second["position"]["offset"], second["gap"]) == ("hello", 1, False)


def test_ctrl_c_ends_it_with_a_summary_and_how_to_go_on(penstock: Penstock) -> None:
    penstock.good("hub publish chat/lobby before")
    with listening(penstock, "chat/lobby") as process:
        penstock.good("hub publish chat/lobby one")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["data"] == "one"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 130
    found = re.fullmatch(r"1 message in [\d.]+ m?s; to continue from here: --since (\S+)\n", err)
    assert found is not None, err
    penstock.good("hub publish chat/lobby two 3")

    done = penstock("hub", "listen", "chat/lobby", "--since", found[1], "--count", "2")

    assert [one["data"] for one in done.json_lines] == ["two", 3]


@pytest.mark.long
def test_sigterm_ends_it_too(penstock: Penstock) -> None:
    with listening(penstock, "chat/#") as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)

    assert (process.returncode, err.startswith("0 messages in")) == (143, True)


def test_a_gap_is_told(penstock: Penstock, server: LocalServer) -> None:
    with meanwhile(publish(server, "gap", 1)):
        done = penstock("hub", "listen", "gap", "--since", "long-gone:5", "--count", "1")

    gap, first, _ = done.err.splitlines()
    assert gap == "messages of 'gap' may be missing: the hub could not bring everything that came after offset 5 of long-gone"
    assert first.startswith("listening to gap")
    assert done.json["gap"] is True


def test_people_at_a_terminal_get_lines_that_do_nothing_to_it(penstock: Penstock) -> None:
    ours, theirs = pty.openpty()
    words = (*COMMAND, "hub", "listen", "chat/x", "--presence", "--count", "2", "--as", "@(shop/ann)")
    environment = {**penstock.environment, "NO_COLOR": "1"}
    with subprocess.Popen(words, env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("listening to chat/x as @(shop/ann)")
        penstock.good("hub publish chat/x {} --type order:created --as @(shop/bob)")
        penstock("hub", "publish", "chat/x", "\x1b[2J\u202e", "--type", "\x1b]0;title", "--as", "@(shop/bob)")
        process.wait(SECONDS)
        shown = os.read(ours, 10_000).decode().splitlines()
    os.close(ours)

    assert shown[0] == "chat/x: @(shop/ann)"
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}  chat/x  order:created  @\(shop/bob\)  {}", shown[1])
    assert shown[2].endswith(r'chat/x  \x1b]0;title  @(shop/bob)  "\u001b[2J\u202e"')


def test_it_says_when_it_reconnects(tmp_path: Path) -> None:
    port = free_port()
    penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": f"http://127.0.0.1:{port}"})
    server = LocalServer(port=port).start()
    try:
        with listening(penstock, "news", "--count", "1") as process:
            assert process.stderr is not None
            server.stop()
            lost = process.stderr.readline()
            server = LocalServer(port=port).start()
            said = [process.stderr.readline()]
            while not said[-1].startswith("connected again"):
                said.append(process.stderr.readline())
                assert said[-1], said
            gap = process.stderr.readline()
            penstock.good("hub publish news 1")
            out, _ = process.communicate(timeout=SECONDS)
    finally:
        server.stop()

    assert lost == "lost the connection: the server is stopping; trying again now\n"
    assert gap.startswith("messages of 'news' may be missing")
    assert json.loads(out)["data"] == 1


def test_a_durable_listener_gets_what_came_while_it_was_away_once(penstock: Penstock, server: LocalServer) -> None:
    line = "hub listen durable/# --durable --as @(shop/carl) --count"
    with meanwhile(publish(server, "durable/eu", 1)):
        assert penstock.good(f"{line} 1").json["data"] == 1
    penstock.good("hub publish durable/eu 2 3")

    assert [one["data"] for one in penstock.good(f"{line} 2").json_lines] == [2, 3]


def test_who_comes_and_goes_is_shown_on_demand(penstock: Penstock, server: LocalServer) -> None:
    async def visit() -> None:
        async with HubClient(server.url, address="@(shop/bob)") as bob, asyncio.timeout(SECONDS):
            while not printed():  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.01)
            async with bob.subscribe("lounge"):
                pass
            await bob.publish("lounge", 1)

    with meanwhile(visit()):
        *presence, message = penstock.good("hub listen lounge --presence --count 1 --as @(shop/ann)").json_lines

    assert [(one["presence"], one["actors"]) for one in presence] == [
        ("list", ["@(shop/ann)"]),
        ("join", ["@(shop/bob)"]),
        ("leave", ["@(shop/bob)"]),
    ]
    assert message["data"] == 1


def test_a_message_that_several_patterns_cover_is_shown_once(penstock: Penstock, server: LocalServer) -> None:
    with meanwhile(publish(server, "covered/eu", 1, 2, 3)):
        done = penstock.good("hub listen +/eu covered/# covered/eu --count 3")

    assert [one["data"] for one in done.json_lines] == [1, 2, 3]


@pytest.mark.long
def test_no_more_messages_are_shown_than_were_asked_for_however_many_patterns_bring_them(penstock: Penstock) -> None:
    patterns = [f"many/{number}" for number in range(20)]
    with listening(penstock, *patterns, "--count", "3") as process:
        process.send_signal(signal.SIGSTOP)  # so that all of them come at once
        for pattern in patterns[:8]:
            penstock.good(f"hub publish {pattern} 1")
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=SECONDS)

    assert len(out.splitlines()) == 3
    assert err.startswith("3 messages in ")


def test_who_reads_no_more_is_told_to_go_on_behind_what_was_read(penstock: Penstock) -> None:
    with listening(penstock, "chat/pipe") as process:
        assert process.stdout is not None, "it is piped"
        assert process.stderr is not None, "it is piped"
        penstock.good("hub publish chat/pipe 1")
        place = json.loads(process.stdout.readline())["position"]
        process.stdout.close()
        penstock.good("hub publish chat/pipe 2")
        assert process.wait(SECONDS) == 1
        summary = process.stderr.read()

    assert summary.startswith("1 message in ")
    assert summary.endswith(f"--since {place['epoch']}:{place['offset']}\n")


@pytest.mark.long
def test_it_ends_when_nobody_reads_who_comes_and_goes(penstock: Penstock) -> None:
    with listening(penstock, "door", "--presence") as process:
        assert process.stdout is not None, "it is piped"
        process.stdout.readline()
        process.stdout.close()
        with listening(penstock, "door"):
            assert process.wait(SECONDS) == 1
        assert process.stderr is not None, "it is piped"
        assert "Traceback" not in process.stderr.read()


@pytest.mark.long
def test_a_server_that_does_not_answer_does_not_hold_up_the_end(tmp_path: Path, server: LocalServer) -> None:
    with FaultyProxy("127.0.0.1", server.server.port) as proxy:
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": f"http://{proxy.address}"})
        with listening(penstock, *(f"silent/{number}" for number in range(6))) as process:
            proxy.swallow()
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 130


@pytest.mark.long
def test_a_durable_listener_waits_for_a_server_that_does_not_take_its_acknowledgements(tmp_path: Path) -> None:
    with LocalServer() as server, FaultyProxy("127.0.0.1", server.server.port) as proxy:
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": f"http://{proxy.address}"})
        with listening(penstock, "orders", "--durable", "--as", "@(shop/till)") as process:
            proxy.swallow(Direction.UP)
            Penstock(tmp_path, {"PENSTOCK_SERVER": server.url}).good("hub publish orders 1")
            assert process.stdout is not None, "it is piped"
            assert process.stderr is not None, "it is piped"
            assert json.loads(process.stdout.readline())["data"] == 1
            # A call of the client takes ten seconds at most; then it would say that it ends.
            assert select.select([process.stderr], [], [], 12) == ([], [], [])


# ── publish ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_line_of_the_standard_input_is_a_message(penstock: Penstock) -> None:
    before = penstock.good("hub publish chat/stdin before --json").json["position"]
    done = penstock("hub", "publish", "chat/stdin", "-", stdin='1\n\n{"a": "ü"}\r\nplain text\nNaN')
    assert (done.code, done.out) == (0, "published 4 messages to chat/stdin; the last reached 0 subscribers\n")

    found = penstock.good(f"hub listen chat/stdin --count 4 --since {before['epoch']}:{before['offset']}")
    assert [one["data"] for one in found.json_lines] == [1, {"a": "ü"}, "plain text", "NaN"]


def test_messages_of_the_standard_input_that_were_published_before_an_error_are_counted(penstock: Penstock) -> None:
    done = penstock("hub", "publish", "orders", "-", stdin=b"1\n2\n\xff\n")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("published 2 messages, then it ended\n")


def test_programs_are_told_of_each_message(penstock: Penstock) -> None:
    first, second = penstock.good("hub publish chat/json 1 2 --json").json_lines

    assert [(one["topic"], one["subscriber_count"]) for one in (first, second)] == [("chat/json", 0)] * 2
    assert second["position"] == first["position"] | {"offset": first["position"]["offset"] + 1}


def test_waiting_for_a_subscriber_that_does_not_come_publishes_nothing(penstock: Penstock) -> None:
    before = penstock.good("hub info chat/empty --json").json["position"]
    done = penstock("hub", "publish", "chat/empty", "1", "--wait", "50ms")

    assert done.code == 4
    assert done.err.startswith("penstock: no client subscribed to chat/empty in 0.05 s; nothing was published\nsubscribe first")
    assert penstock.good("hub info chat/empty --json").json["position"] == before


def test_broken_json_is_sent_as_text_and_told_once(penstock: Penstock) -> None:
    done = penstock("hub", "publish", "broken", '{"id": 1', "{", "hello")

    assert done.out == "published to broken: 0 subscribers\n" * 3
    assert done.err == 'this looks like JSON but is not valid, so it is sent as text: {"id": 1\n'


@pytest.mark.parametrize("data", ["1e999", "[" * 100_000])
def test_what_only_looks_like_a_value_is_sent_as_the_text_it_is(data: str) -> None:
    assert value_of(data) is data


# ── topics, actors, info, and who calls ──────────────────────────────────────────────────────────────────────────────────


def test_topics_and_actors_are_listed(penstock: Penstock, server: LocalServer) -> None:
    ready, over = threading.Event(), threading.Event()

    async def dance() -> None:
        ann, bob = (HubClient(server.url, address=f"@(shop/{name})", capabilities=("dance",)) for name in ("ann", "bob"))
        async with ann, bob, ann.subscribe("floor/1"), bob.subscribe("floor/1"):
            ready.set()
            await asyncio.to_thread(over.wait, SECONDS)

    with meanwhile(dance()):
        assert ready.wait(SECONDS)
        try:
            topics = penstock.good("hub topics floor")
            actors = penstock.good("hub actors --capability dance")
            document = penstock.good("hub actors --capability dance --json").json
        finally:
            over.set()

    assert topics.out == "TOPIC    SUBSCRIBERS\nfloor/1            2\n"
    assert [line.split()[:2] for line in actors.out.splitlines()] == [
        ["ADDRESS", "CAPABILITIES"],
        ["@(shop/ann)", "dance"],
        ["@(shop/bob)", "dance"],
    ]
    assert [one["address"] for one in document] == ["@(shop/ann)", "@(shop/bob)"]
    assert penstock.good("hub topics nosuch").err == "no topic has subscribers that begins with nosuch\n"
    assert penstock.good("hub actors --capability fly").err == "no actors are registered\n"


def test_what_is_known_of_a_topic_is_shown(penstock: Penstock) -> None:
    position = penstock.good("hub publish chat/known x --json").json["position"]

    lines = dict(line.split("  ", 1) for line in penstock.good("hub info chat/known").out.splitlines())

    assert {name: value.strip() for name, value in lines.items() if name != "position"} == {
        "topic": "chat/known",
        "subscribers": "0",
        "by exactly this name": "0",
        "history": "yes",
        "bound to": "hub.chat",
    }
    assert penstock.good("hub info chat/known --json").json["position"] == position


def test_a_token_comes_from_a_file_or_the_environment_and_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    secret = Keyring(file).create("ann", SystemClock().now())
    (tmp_path / "mine").write_text(secret + "\n")
    with LocalServer(auth="token", token_file=file) as server:
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})
        refused = penstock("hub", "publish", "chat/x", "1")
        assert (refused.code, refused.err.splitlines()[0].startswith("penstock: not authenticated")) == (1, True)
        assert penstock("hub", "publish", "chat/x", "1", "--token-file", "mine").code == 0
        assert Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PENSTOCK_TOKEN": secret})("hub", "topics").code == 0
        assert secret not in refused.err + refused.out


def test_a_server_without_a_hub_is_told(tmp_path: Path) -> None:
    with LocalServer(hub=False) as server:
        done = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})("hub", "topics")

    assert (done.code, "there is no hub at" in done.err) == (1, True)


@pytest.mark.parametrize(
    "words", [("publish", "orders", "1", "--type", "\udcff"), ("topics", "\udcff"), ("topics", "--token", "\udcff")]
)
def test_words_that_are_no_text_are_refused(penstock: Penstock, words: tuple[str, ...]) -> None:
    done = penstock("hub", *words)

    assert (done.code, done.out) == (2, "")
    assert "cannot be written as JSON" in done.err
    assert "Traceback" not in done.err
