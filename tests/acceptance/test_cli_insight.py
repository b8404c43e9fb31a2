"""`penstock trace`, `explain`, `top`, `bench` and `completion`, as a person or a script meets them."""

import asyncio
import codecs
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.client import PubSub
from penstock.testing.server import LocalServer
from penstock.wire.operations import Operations
from tests.acceptance.command import COMMAND, Penstock

NOWHERE = "http://127.0.0.1:1"
SECONDS = 60


class Scene(NamedTuple):
    """Ids of messages, by what has become of them."""

    acked: str
    nacked: str
    held: str
    fresh: str
    buried: str
    task: str


async def play(url: str) -> Scene:
    """Messages in every state that can be told of."""
    async with PubSub(url) as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing").create()
        audit = await topic.subscription("audit").create()
        keyed = await topic.subscription("keyed", message_ordering=True).create()
        ids = [await topic.publish_message(b"x", ordering_key="k") for _ in range(4)]
        first, second, _ = await billing.pull(3, ack_deadline=600)
        await first.ack_with_response()
        await second.nack_with_response()
        await keyed.pull(1, ack_deadline=600)
        await audit.pause_delivery()
        queue = await pubsub.queue("tasks").create()
        tasks = [await queue.publish(b"job") for _ in range(2)]
        [task] = await queue.consume(1)
        await pubsub.link.call(Operations.nack_messages, "tasks", [task.id], requeue=False, error="it \x1b[31mbroke")
        return Scene(*ids, *tasks)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture(scope="module")
def scene(server: LocalServer) -> Scene:
    return asyncio.run(play(server.url))


@pytest.fixture
def penstock(server: LocalServer, tmp_path: Path) -> Penstock:
    return Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})


# ── trace ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_trace_tells_the_life_of_a_message(penstock: Penstock, scene: Scene) -> None:
    told = penstock.good(f"trace {scene.acked}").out
    head, _, now = told.partition("\nnow\n")

    assert head.startswith(f"message {scene.acked} of topic orders\n\nTIME ")
    assert [line.split()[3] if "+" not in line else line.split()[5] for line in head.splitlines()[3:] if line] == [
        "published",
        "leased",
        "acked",
        "leased",
    ]
    assert "for 10m 00s" in head
    places = dict(line.split(maxsplit=1) for line in now.splitlines())
    assert places["billing"].startswith("done: acked at ")
    assert places["audit"] == "waits: deliveries are paused"
    assert places["keyed"].startswith("held by a consumer until ")

    blocked = penstock.good(f"trace {scene.nacked}").out
    assert re.search(r"^  billing  ready: waits for a consumer to take it$", blocked, re.MULTILINE)
    assert f"waits behind message {scene.acked} of the same ordering key" in blocked


def test_trace_of_a_task_tells_why_it_died_and_cannot_paint_the_terminal(penstock: Penstock, scene: Scene) -> None:
    told = penstock.good(f"trace {scene.buried}").out
    assert told.startswith(f"message {scene.buried} of queue tasks\n")
    assert re.search(
        r"^  tasks  dead: moved to the dead letters of the queue at .*, because a consumer rejected it", told, re.MULTILINE
    )
    assert "\\x1b[31mbroke" in told
    assert "\x1b" not in told

    document = penstock.good(f"trace {scene.buried} --json").json
    assert (document["message_id"], document["queue"]) == (scene.buried, "tasks")
    assert [event["event"] for event in document["events"]] == ["published", "leased", "dead_lettered"]
    assert document["events"][2]["detail"]["error"] == "it \x1b[31mbroke"
    assert [state["in"] for state in document["states"]] == ["tasks"]


# ── explain ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_explain_says_what_waits_and_what_to_do(penstock: Penstock, scene: Scene) -> None:
    paused = penstock.good("explain audit --limit 2").out
    assert "  4 messages not settled" in paused
    assert paused.count("waits: deliveries are paused") == 2
    assert "  and 2 more\n" in paused
    assert "  - deliveries are paused: penstock subscription resume audit\n" in paused

    keyed = penstock.good("explain keyed").out
    assert re.search(r"^  \(no name\) +1 +\d{4}-", keyed, re.MULTILINE)
    assert keyed.count(f"waits behind message {scene.acked}") == 3
    assert f"see penstock trace {scene.acked}\n" in keyed


def test_explain_of_a_queue(penstock: Penstock, scene: Scene) -> None:
    told = penstock.good("explain tasks --queue").out
    assert told.startswith("queue tasks\n  1 message not settled")
    assert "penstock queue consume tasks" in told

    document = penstock.good("explain tasks --queue --json").json
    assert (document["state"]["ready"], document["state"]["dead"]) == (1, 1)
    assert [one["message_id"] for one in document["oldest"]] == [scene.task]
    assert len(document["advice"]) == 1


def test_explain_of_one_message(penstock: Penstock, scene: Scene) -> None:
    assert penstock.good(f"explain billing {scene.fresh}").out == f"{scene.fresh}  ready: waits for a consumer to take it\n"
    assert "held by a consumer until" in penstock.good(f"explain billing {scene.held}").out
    settled = penstock.good(f"explain billing {scene.acked}").out
    assert settled.endswith(f"its life: penstock trace {scene.acked}\n")
    document = penstock.good(f"explain tasks {scene.task} --queue --json").json
    assert (document["is_unsettled"], document["explanation"]["reason"]) == (True, None)
    assert penstock.good(f"explain tasks {scene.acked} --queue --json").json["is_unsettled"] is False


def test_explain_finds_a_queue_by_its_name_and_counts_delayed_messages(tmp_path: Path, server: LocalServer) -> None:
    penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PENSTOCK_PROJECT": "delays"})
    penstock.good("queue create mail")
    message_id = penstock.good("queue publish mail hi --delay 1h").out.strip()

    lines = penstock.good("explain mail").out.splitlines()
    assert lines[:2] == ["queue mail", "  1 message not settled (2 B): 0 to be delivered, 1 delayed, 0 with consumers"]
    assert penstock.good("explain mail --queue").out.splitlines()[:2] == lines[:2]
    assert "delayed until" in penstock.good(f"explain mail {message_id}").out
    [heading, row] = penstock.good("queue list").out.splitlines()
    assert dict(zip(heading.split()[:3], row.split(), strict=False)) == {"NAME": "mail", "DEPTH": "0", "DELAYED": "1"}


# ── top ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_top_once_is_a_table_and_a_line_for_programs(penstock: Penstock, scene: Scene) -> None:
    shown = penstock.good("top --once --interval 100ms --sort name").out.splitlines()
    assert re.match(r"penstock \d+\.\d+\.\d+  healthy  http://", shown[0])
    assert shown[1].startswith("backlog 12  in flight 2  published 0/s")
    assert [line.split()[0] for line in shown[3:] if line] == [
        *("SUBSCRIPTION", "audit", "billing", "keyed"),
        *("QUEUE", "tasks", "TOPIC", "orders"),
    ]

    [document] = penstock.good("top --once --json --interval 100ms").json_lines
    assert document["server"]["problem"] is None
    assert [topic["total"] for topic in document["topics"]] == [4]
    assert {one["name"]: one["backlog"] for one in document["subscriptions"]} == {"audit": 4, "billing": 3, "keyed": 4}
    assert [queue["dead"] for queue in document["queues"]] == [1]


def test_top_gives_a_json_line_for_each_interval_until_it_is_ended(penstock: Penstock, scene: Scene) -> None:
    with penstock.start("top", "--json", "--interval", "100ms") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        assert process.wait(SECONDS) == 143
        process.communicate()
    assert all(line.startswith('{"at": ') for line in lines)


OWN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """`penstock` on a terminal of its own."""

    def __init__(self, penstock: Penstock, *words: str, size: tuple[int, int] = (24, 80)) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(size)
        self.before = termios.tcgetattr(self._theirs)
        environment = penstock.environment | {"TERM": "xterm-256color"}
        # A session of its own, so that the terminal is its own, and its keys and signals too.
        command = [sys.executable, "-c", OWN_TERMINAL, *COMMAND, *words]
        self.process = subprocess.Popen(command, env=environment, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # a character may come in two pieces
        self.seen = ""

    def resize(self, size: tuple[int, int]) -> None:
        ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, pattern: str) -> str:
        """Read until it shows something; returns what came up to there, and forgets it."""
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            ready, _, _ = select.select([self._ours], [], [], SECONDS)
            assert ready, f"{pattern!r} never came: {self.seen[-2000:]!r}"
            self.seen += self._decode(os.read(self._ours, 65_536))
        upto, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return upto

    def end(self) -> int:
        """The exit code, when it has ended by itself and left the terminal as it was."""
        self.wait_for(re.escape("\x1b[?25h\x1b[?1049l"))
        code: int = self.process.wait(SECONDS)
        assert termios.tcgetattr(self._theirs) == self.before
        return code

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


def test_top_draws_on_a_terminal_follows_keys_and_size_and_leaves_it_as_it_was(penstock: Penstock, scene: Scene) -> None:
    with Terminal(penstock, "top", "--interval", "1m") as terminal:  # so whatever is drawn again, a key or the size did it
        drawn = terminal.wait_for(r"q quit.*scroll")
        assert drawn.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
        assert "by backlog" in drawn
        terminal.press(b"n")
        terminal.wait_for("by name")
        terminal.press(b"p")
        terminal.wait_for("PAUSED")
        terminal.resize((6, 40))
        screen = terminal.wait_for(r"\x1b\[H(.(?!\x1b\[H))*q quit  b backlog  r rate[^\n]*↓\d+")
        lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", screen.rpartition("\x1b[H")[2]).split("\r\n")
        assert len(lines) == 6
        assert max(map(len, lines)) <= 40
        terminal.press(b"\x1b[B")
        terminal.wait_for("↑1")
        terminal.press(b"q")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    ("key", "number", "code"), [(b"\x03", None, 130), pytest.param(b"", signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_top_leaves_the_terminal_as_it_was_however_it_ends(
    penstock: Penstock, scene: Scene, key: bytes, number: signal.Signals | None, code: int
) -> None:
    with Terminal(penstock, "top", "--interval", "100ms") as terminal:
        terminal.wait_for("TOPIC")
        if number is not None:
            terminal.process.send_signal(number)
        terminal.press(key)
        assert terminal.end() == code


def test_top_says_that_a_server_went_away(tmp_path: Path) -> None:
    server = LocalServer().start()
    with Terminal(Penstock(tmp_path, {"PENSTOCK_SERVER": server.url}), "top", "--interval", "100ms") as terminal:
        terminal.wait_for("nothing here yet")
        server.stop()
        terminal.wait_for("NO ANSWER for")
        terminal.press(b"q")
        assert terminal.end() == 0


# ── bench ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Penstock]:
    """A server of its own: in half a second `bench` makes more events than a broker in memory keeps, and traces end there."""
    with LocalServer() as running:
        yield Penstock(tmp_path, {"PENSTOCK_SERVER": running.url})


def test_bench_measures_and_leaves_nothing_behind(loaded: Penstock) -> None:
    done = loaded.good("bench --seconds 200ms --size 1KB --batch 10 --publishers 2 --subscribers 2")
    assert done.err.endswith("in memory: 1000 B a message, 10 a publish, 2 at once\n")
    lines = done.out.splitlines()
    assert lines[0].split() == ["MESSAGES", "SECONDS", "MESSAGES/s", "BYTES/s", "P50", "P95", "P99"]
    assert [line[:10].strip() for line in lines[1:4]] == ["publish", "consume", "end to end"]

    measured = loaded.good("bench --seconds 100ms --json")
    assert measured.err == ""
    publish, consume, end_to_end = measured.json["results"]
    assert publish["messages"] == consume["messages"] > 0
    assert 0 < publish["p50"] <= publish["p95"] <= publish["p99"]
    assert end_to_end["messages"] == 20
    assert not [one for one in loaded.good("topic list --json").json if "bench" in one["name"]]
    assert not [one for one in loaded.good("subscription list --json").json if "bench" in one["name"]]


def test_an_interrupted_bench_leaves_nothing_behind(loaded: Penstock) -> None:
    with loaded.start("bench", "--seconds", "60") as process:
        assert process.stderr is not None
        assert "a publish" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.communicate() == ("", "")
    assert not [one for one in loaded.good("topic list --json").json if "bench" in one["name"]]


def test_bench_shows_how_far_it_is(loaded: Penstock) -> None:
    with Terminal(loaded, "bench", "--seconds", "500ms") as terminal:
        terminal.wait_for(r"publishing  [\d,]+")
        terminal.wait_for(r"end to end  \[")
        terminal.wait_for("to the handler")
        assert terminal.process.wait(SECONDS) == 0


# ── completion ───────────────────────────────────────────────────────────────────────────────────────────────────────────

COMPLETE = """
source "$1"; shift
[[ $(complete -p penstock) == "complete -F _penstock penstock" ]] || exit 1
COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; _penstock
printf "%s\\n" "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "penstock.bash"
    file.write_text(Penstock(file.parent).good("completion bash").out)
    return file


def complete(penstock: Penstock, script: Path, line: str) -> list[str]:
    # Beside the interpreter, as it is installed: the script calls it by the name that was typed.
    path = f"{Path(sys.executable).parent}:{penstock.environment['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-uc", COMPLETE, "bash", script, line],
        cwd=penstock.folder,
        env=penstock.environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


COMPLETIONS = [
    ("penstock expl", ["explain"]),
    ("penstock topic d", ["delete"]),
    ("penstock --v", ["--version"]),
    ("penstock top --o", ["--once"]),
    ("penstock top --once --interval ", []),
    ("penstock top --once --interval 1s --sor", ["--sort"]),
    ("penstock top --sort ", ["backlog", "rate", "age", "name"]),
    ("penstock top --sort=n", ["name"]),
    ("penstock serve --log-format ", ["text", "json"]),
    ("penstock completion ", ["bash", "zsh", "fish"]),
    ("penstock topic create ", []),
    ("penstock doctor --config=a", ["a file.toml", "a folder"]),
    ("penstock top --data-dir a", ["a folder"]),
    ("penstock nonsense ", []),
    ("penstock topic nonsense --", []),
    ("penstock publish --server http://127.0.0.1:1 ", []),
    ("penstock 'unclosed $(touch pwned) ", []),
]


def test_bash_completes(penstock: Penstock, script: Path, subtests: pytest.Subtests) -> None:
    (penstock.folder / "a file.toml").touch()
    (penstock.folder / "a folder").mkdir()
    for line, words in COMPLETIONS:
        with subtests.test(line=line):
            assert complete(penstock, script, line) == words
    assert not (penstock.folder / "pwned").exists()


def test_bash_completes_the_names_of_what_exists(penstock: Penstock, script: Path, server: LocalServer, scene: Scene) -> None:
    assert complete(penstock, script, "penstock explain ") == ["audit", "billing", "keyed", "tasks"]
    assert complete(penstock, script, "penstock topic delete or") == ["orders"]
    assert complete(penstock, script, "penstock queue stats ") == ["tasks"]
    elsewhere = Penstock(penstock.folder, {"PENSTOCK_SERVER": NOWHERE})
    assert complete(elsewhere, script, "penstock explain b") == []
    assert complete(elsewhere, script, f"penstock explain --server {server.url} b") == ["billing"]
    assert complete(elsewhere, script, f"penstock explain --server={server.url} b") == ["billing"]


def test_bash_completes_the_names_of_contexts(penstock: Penstock, script: Path) -> None:
    for name in ("prod", "dev"):
        penstock.good(f"context add {name} --server {NOWHERE}")
    assert complete(penstock, script, "penstock topic list --context ") == ["dev", "prod"]
    assert complete(penstock, script, "penstock context use p") == ["prod"]
    assert complete(penstock, script, "penstock context remove dev p") == ["prod"]
    assert complete(penstock, script, "penstock context add ") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])  # bash reads its own above
def test_a_shell_that_is_here_can_read_its_script(penstock: Penstock, shell: str) -> None:
    text = penstock.good(f"completion {shell}").out
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
