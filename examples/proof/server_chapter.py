"""The server's part of the proof: `penstock serve` as a process of its own, used by real clients, killed, and started again."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.extras import how_to_install
from proof.screen import ClaimFailed, Screen

if TYPE_CHECKING:
    from penstock.testing.server import ServerProcess
    from proof.google_chapter import Google, Load, Received

NEEDED = {"aiohttp": "server", "grpc": "server", "uvloop": "server", "jwt": "server"}  # the library, and its extra
GOOGLE, SYNAP = "google-cloud-pubsub", "synap-sdk"
MODULES = {GOOGLE: "google.cloud.pubsub_v1", SYNAP: "synap_sdk"}

KEYS = 100
EACH = 80  # messages of each key
KILLS = (2_000, 5_000)  # confirmed messages after which the server is killed
HTTP_SECONDS = 10


class Addressed(Protocol):
    """A server."""

    @property
    def url(self) -> str:
        """Its address."""


class ServerDemo:
    """The steps, over one server and its data directory."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory

    def run(self) -> None:
        """All steps, in order, as far as what they need is installed."""
        missing = missing_extras()
        if missing:
            self.screen.step("The server")
            self.screen.say(f"Left out: it needs more libraries: {how_to_install(*missing)}.")
            return
        with serving(self.directory) as server:
            self.http(server)
            if self._has(SYNAP, "Work queues with synap-sdk"):
                self.queues(server)
            if not self._has(GOOGLE, "Topics with Google's own client"):
                return
            self.topics(server)
        self.crash()

    def _has(self, client: str, step: str) -> bool:
        self.screen.step(step)
        is_there = _is_installed(MODULES[client])
        if not is_there:
            self.screen.say(f"Left out: the client is not installed, pip install {client}.")
        return is_there

    def http(self, server: ServerProcess) -> None:
        """What any program can do that speaks HTTP."""
        screen = self.screen
        screen.step("The server: penstock serve, and plain HTTP")
        screen.say(f"It runs as a process of its own, here at {server.url} and, for gRPC, {server.grpc}.")
        calls: list[tuple[str, str, object]] = [
            ("GET", "/health/ready", None),
            ("PUT", "/v1/projects/demo/topics/news", {}),
            ("PUT", "/v1/projects/demo/subscriptions/desk", {"topic": "projects/demo/topics/news"}),
            ("POST", "/v1/projects/demo/topics/news:publish", {"messages": [{"data": base64.b64encode(b"hello").decode()}]}),
            ("POST", "/v1/projects/demo/subscriptions/desk:pull", {"maxMessages": 10}),
        ]
        answers = [call(server, method, path, body) for method, path, body in calls]
        screen.table(
            ["request", "answer"],
            [[f"{method} {path}", code] for (method, path, _), (code, _) in zip(calls, answers, strict=True)],
        )
        screen.proves("it is ready, and every call succeeds", [code for code, _ in answers] == [200] * len(calls), answers)
        [received] = answers[-1][1].get("receivedMessages", [None])
        data = base64.b64decode(received["message"]["data"]) if received else None
        screen.proves("what was published over REST was pulled over REST", data == b"hello", answers[-1])
        code, refusal = call(server, "POST", "/v1/projects/demo/topics/nwes:publish", {"messages": [{"data": "aGVsbG8="}]})
        sentence = refusal.get("error", {}).get("message", "")
        screen.say(f"A topic that does not exist: {code}, {sentence!r}.")
        screen.proves("a mistake gets the right status and a sentence that names it", code == 404 and "nwes" in sentence, refusal)

    def queues(self, server: ServerProcess) -> None:
        """Priorities and retries, with the SDK that others wrote."""
        screen = self.screen
        screen.say("A queue over HTTP, with the unmodified SDK: put, take, ack; a job that fails once is redelivered.")
        rows = asyncio.run(_work(server.url))
        screen.table(["taken", "priority", "retries", "outcome"], rows)
        wanted = [
            ("alarm", 9, 0, "acked"),
            ("invoice", 5, 0, "released"),
            ("invoice", 5, 1, "acked"),
            ("report", 1, 0, "acked"),
        ]
        screen.proves("the urgent comes first, and what failed was tried again before the rest", rows == wanted, rows)

    def topics(self, server: ServerProcess) -> None:
        """Ordering keys and a dead letter, with Google's client."""
        from proof.google_chapter import ATTEMPTS, Google, client_errors  # noqa: PLC0415  # needs the client

        screen = self.screen
        screen.say(
            f"Its only setting: PUBSUB_EMULATOR_HOST={server.grpc}. It publishes with ordering keys and streams deliveries."
        )
        with client_errors(), Google(server.grpc) as google:
            orders, graveyard = google.topic("orders"), google.topic("graveyard")
            undertaker = google.subscription("undertaker", graveyard)
            policy = google.dead_letter_policy(graveyard)
            billing = google.subscription("billing", orders, enable_message_ordering=True, dead_letter_policy=policy)
            names = ["ann 1", "bob 1", "ann 2", "bob 2", "ann 3"]
            for future in [google.publisher.publish(orders, name.encode(), ordering_key=name[:3]) for name in names]:
                future.result(HTTP_SECONDS)
            attempts, acked = self._bill(google, billing)
            outcomes = [[name, attempts[name], acked.get(name, "dead letter")] for name in names]
            screen.table(["message", "deliveries", "outcome"], outcomes)
            of_ann = [name for name in acked if name.startswith("ann")]
            screen.proves("the messages of a key were processed in order", of_ann == ["ann 1", "ann 2", "ann 3"], acked)
            letters: list[dict[str, str]] = []

            def bury(letter: Received) -> None:
                letters.append({"data": letter.data.decode(), **letter.attributes})
                letter.ack()

            google.receive(undertaker, bury, lambda: bool(letters))
            letter = letters[0] if letters else {}
            shown = {key: letter.get(key) for key in ("data", "CloudPubSubDeadLetterSourceSubscription", "penstock.reason")}
            screen.table(["the dead letter has", ""], shown.items())
            screen.proves(
                f"'bob 1' always failed: {ATTEMPTS} deliveries, then a dead letter with its reason, and 'bob 2' after it",
                (attempts["bob 1"], "bob 2" in acked) == (ATTEMPTS, True)
                and [*shown.values()] == ["bob 1", "billing", "max_retries_exceeded"],
                (dict(attempts), letters),
            )

    def _bill(self, google: Google, subscription: str) -> tuple[dict[str, int], dict[str, str]]:
        from proof.google_chapter import ATTEMPTS  # noqa: PLC0415  # needs the client

        attempts: dict[str, int] = defaultdict(int)
        acked: dict[str, str] = {}

        def bill(message: Received) -> None:
            name = message.data.decode()
            attempts[name] += 1
            if name == "bob 1":
                acked.pop("bob 2", None)  # is redelivered after it, as a later message of the same key
                message.nack()
            else:
                acked[name] = "acked"
                message.ack()

        google.receive(subscription, bill, lambda: len(acked) == 4 and attempts["bob 1"] == ATTEMPTS)
        return attempts, acked

    def crash(self) -> None:
        """Confirmed is confirmed, also over the network."""
        from proof.google_chapter import Drain, Google, Load, client_errors  # noqa: PLC0415  # needs the client

        screen = self.screen
        screen.step("kill -9 of the server, under load")
        total = KEYS * EACH
        screen.say(
            f"Google's client publishes {total:,} messages under {KEYS} ordering keys. The server is killed {len(KILLS)} times in"
            " the middle and started again on its data directory; the client finds it again by itself."
        )
        with client_errors(), serving(self.directory) as first, Google(first.grpc) as google:
            topic = google.topic("readings")
            archive = google.subscription("archive", topic, enable_message_ordering=True)
            load = Load(google, topic, [f"sensor {number}" for number in range(KEYS)])
            sending = threading.Thread(target=load.send, args=(EACH,), daemon=True)
            started = monotonic()
            sending.start()
            self._kill(first, load, KILLS[0])
            with serving(self.directory, port=first.port, grpc_port=first.grpc_port) as second:
                self._kill(second, load, KILLS[1])
            with serving(self.directory, port=first.port, grpc_port=first.grpc_port) as third:
                load.wait(total)
                sending.join()
                took = (monotonic() - started) / SECOND
                drain = Drain(load.confirmed)
                drain.take(google, archive)
                code = third.stop()
        twice = drain.ids - set(load.confirmed)
        screen.table(
            ["confirmed", "found", "lost", "sent again by the client, both kept"],
            [[f"{len(counted):,}" for counted in (load.confirmed, drain.ids, drain.missing, twice)]],
        )
        is_all = len(load.confirmed) == total
        screen.proves(f"{total:,} confirmed over the network, 0 lost", is_all and not drain.missing, sorted(drain.missing)[:3])
        screen.proves("the messages of every key came in the order they were sent", drain.is_in_order)
        screen.say(
            f"Published in {took:.1f} s, kills and restarts included; then received and acked at"
            f" {len(drain.ids) / drain.seconds:,.0f} messages/s by one client, in order."
        )
        screen.proves("told to stop, the server ends with exit code 0", code == 0, code)

    def _kill(self, server: ServerProcess, load: Load, after: int) -> None:
        load.wait(after)
        server.kill()
        self.screen.say(f"  killed when {len(load.confirmed):,} were confirmed")


@contextmanager
def serving(directory: Path, **options: object) -> Iterator[ServerProcess]:
    """A server as a process of its own, on that data directory."""
    from penstock.testing.server import ServerProcess  # noqa: PLC0415  # needs the server's libraries

    try:
        with ServerProcess(directory, **options) as server:
            yield server
    except (RuntimeError, OSError) as error:  # it did not start, or did not answer
        raise ClaimFailed(f"the server serves: {error}") from error


def missing_extras() -> list[str]:
    """What has to be installed for a server, by the names of Penstock's extras."""
    return sorted({extra for module, extra in NEEDED.items() if not _is_installed(module)})


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False


def call(server: Addressed, method: str, path: str, body: object) -> tuple[int, Any]:  # Any: JSON
    """The status and the JSON of the answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def _work(url: str) -> list[tuple[str, int, int, str]]:
    """Put three jobs and work them off; the invoice fails the first time."""
    from synap_sdk import SynapClient, SynapConfig  # noqa: PLC0415  # needs the client

    rows = []
    async with SynapClient(SynapConfig(url, timeout=HTTP_SECONDS)) as client:
        await client.queue.create_queue("jobs")
        for name, priority in (("report", 1), ("invoice", 5), ("alarm", 9)):
            await client.queue.publish("jobs", {"do": name}, priority=priority)
        while message := await client.queue.consume("jobs", "worker-1"):
            name, is_failing = message.payload["do"], message.payload["do"] == "invoice" and not message.retries
            settle = client.queue.nack if is_failing else client.queue.ack
            await settle("jobs", message.id)
            rows.append((name, message.priority, message.retries, "released" if is_failing else "acked"))
    return rows
