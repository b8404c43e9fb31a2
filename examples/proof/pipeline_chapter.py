"""The pipeline's part of the proof: traffic on a server, Spark archives and measures it, is killed, and continues."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from penstock import DeadLetterPolicy, IncomingMessage, Message, PubSub, SubscriptionOptions, Topic
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.extras import how_to_install
from proof.screen import ClaimFailed, Screen
from proof.server_chapter import Addressed, missing_extras, serving

if TYPE_CHECKING:
    from penstock.testing.server import ServerProcess

BATCH, PAUSE = 20, 0.1  # orders in a batch, and seconds between batches
LOOKS = 4  # at the growing lake
SHOWN = 12  # windows: a minute
PATIENCE = 600.0  # seconds that Spark may take to start, and to finish, on a busy machine
FLAGS = ("--interval", "1s", "--window", "5s", "--watermark", "1s")
PAGE = "penstock-proof-metrics.html"


class SparkInstallation:
    """Installs PySpark and Java in the background, if they are missing and a command for it is given."""

    def __init__(self, screen: Screen, command: str, log: Path) -> None:
        self._screen, self._command, self._log = screen, command, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._command and missing_for_spark():
            self._screen.say("PySpark is installed in the background, for the last steps; that takes a minute or two.")
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    shlex.split(self._command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

    def status(self) -> str:
        """What the installation does now; empty if there is none."""
        if self._process is None:
            return ""
        if self._process.poll() is not None:
            return "PySpark is installed" if self._process.returncode == 0 else "PySpark could not be installed"
        lines = self._log.read_text(errors="replace").split("\n")
        return f"installing PySpark: {next((line for line in reversed(lines) if line.strip()), 'starting')}"

    def wait(self) -> None:
        """Return when the installation has ended; show its output if it failed."""
        if self._process is None:
            return
        while self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=15)
                break
            self._screen.say(f"Waiting for the installation of PySpark, {self._screen.seconds:.0f} s since the start …")
        importlib.invalidate_caches()  # what was installed is found
        if self._process.returncode:
            self._screen.say(f"PySpark could not be installed:\n{self._log.read_text(errors='replace')}")


class Published(Protocol):
    """Orders that are published."""

    ids: set[str]

    @property
    def published(self) -> int:
        """How many."""


class PipelineDemo:
    """The steps, over one server, its data directory, and a lake. `page` is where the plot is left."""

    def __init__(self, screen: Screen, directory: Path, page: Path) -> None:
        self.screen = screen
        self.lake = directory / "lake"
        self._directory, self._scratch = directory / "broker", directory / "scratch"
        self._page = page

    def run(self, spark: SparkInstallation | None = None) -> None:
        """Run all steps, in order; none if Spark or the server's libraries are missing."""
        if spark is not None:
            spark.wait()
        if missing := missing_for_spark():
            self.screen.step("The pipeline")
            self.screen.say(f"Skipped: it needs {missing}.")
            return
        with serving(self._directory) as server:
            asyncio.run(self._run(server))

    async def _run(self, server: ServerProcess) -> None:
        async with PubSub(server.url) as pubsub:
            traffic = await Traffic.prepare(pubsub)
            async with traffic.flowing():
                await self.grow(server, traffic)
            await self.finish(server, traffic)
        await self.show()

    async def grow(self, server: Addressed, traffic: Published) -> None:
        """While traffic flows, the lake grows."""
        screen = self.screen
        screen.step("The pipeline: Spark beside a running server")
        screen.say(
            f"{BATCH / PAUSE:.0f} orders a second are published and processed."
            f" `penstock pipeline run` starts Spark, which archives messages and events, follows every message's life, and"
            f" makes metrics of every {FLAGS[3]}."
        )
        started = monotonic()
        job = await self._start("run", "--endpoint", server.url, *FLAGS)
        try:
            await _until(lambda: bool(self.archived()), PATIENCE, "the first rows are in the lake", job)
            screen.say(f"The first rows were in the lake after {(monotonic() - started) / SECOND:.0f} s, Spark's start included.")
            counts, rows = [0], []
            for _ in range(LOOKS):
                await _until(lambda: len(self.archived()) > counts[-1], PATIENCE, "the lake grows while orders come in", job)
                counts.append(len(self.archived()))
                rows.append([f"{traffic.published:,}", f"{counts[-1]:,}", self._files(), self._lag(server)])
            screen.table(["published", "in the lake", "files", "lag of archive-messages"], rows)
            screen.proves("the lake grew while orders came in", counts == sorted(set(counts)), counts)
        finally:
            with suppress(ProcessLookupError):
                job.kill()
            await job.communicate()
        screen.say(f"Then kill -9 of Spark's driver, in the middle, with {traffic.published:,} orders published.")

    async def finish(self, server: Addressed, traffic: Published) -> None:
        """What was cut off is finished: every row once."""
        screen = self.screen
        screen.step("The pipeline, killed and started again: every row exactly once")
        screen.say("`penstock pipeline run --once` continues from where the dead one was, takes all there is, and ends.")
        job = await self._start("run", "--once", "--endpoint", server.url, *FLAGS)
        code, errors = await _ended(job)
        screen.proves("it ended by itself, with exit code 0", code == 0, (code, errors[-500:]))
        archived = self.archived()
        found = Counter(archived)
        missing, strangers = traffic.ids - found.keys(), found.keys() - traffic.ids
        doubled = sum(found.values()) - len(found)
        screen.table(
            ["published", "in the lake", "missing", "doubled", "unknown"],
            [[f"{n:,}" for n in (len(traffic.ids), len(archived), len(missing), doubled, len(strangers))]],
        )
        is_exact = not missing and not strangers and not doubled
        screen.proves("each order that was confirmed is in the lake, once", is_exact, (missing, doubled, strangers))

    async def show(self) -> None:
        """The metrics, in the terminal and as a page."""
        screen = self.screen
        screen.step("Metrics of the last minute")
        code, out, errors = await self.command("show", "--minutes", "2", "--json")
        rows = json.loads(out or "[]")
        screen.proves("the metrics are in the lake", code == 0 and bool(rows), errors[-500:])
        published = {(row["window_start"], row["stream"]): row["published"] for row in rows if row["subscription"] is None}
        screen.table(
            ["window", "stream", "for", "published", "acked", "again", "dead", "wait p95", "work p95"],
            [
                [
                    str(row["window_start"])[11:19],
                    row["stream"],
                    row["subscription"],
                    published.get((row["window_start"], row["stream"]), 0),
                    row["acked"],
                    row["redelivered"],
                    row["dead_lettered"],
                    _milliseconds(row["wait_p95_ms"]),
                    _milliseconds(row["processing_p95_ms"]),
                ]
                for row in [row for row in rows if row["subscription"] is not None][-SHOWN:]
            ],
        )
        acked = sum(row["acked"] for row in rows)
        screen.proves("they tell of orders that were acked and of some that were not", acked > 0, acked)
        code, _, errors = await self.command("show", "--minutes", "2", "--html", str(self._page))
        screen.proves(f"the same as a plot, for a browser: {self._page.name}", code == 0 and self._page.exists(), errors)

    def archived(self) -> list[str]:
        """The ids of the orders in the lake, as any reader of Delta tables finds them."""
        from deltalake import DeltaTable  # noqa: PLC0415  # comes with Spark

        if not DeltaTable.is_deltatable(str(self.lake / "messages")):
            return []
        rows = DeltaTable(str(self.lake / "messages")).to_pyarrow_dataset().to_table(columns=["stream", "message_id"]).to_pylist()
        return [row["message_id"] for row in rows if row["stream"] == "orders"]

    def _files(self) -> int:
        from deltalake import DeltaTable  # noqa: PLC0415

        return len(DeltaTable(str(self.lake / "messages")).file_uris())

    def _lag(self, server: Addressed) -> str:
        from penstock.log.http import HttpLog  # noqa: PLC0415  # needs pyarrow

        log = HttpLog(server.url)
        try:
            return next((f"{sum(cursor.lag.values()):,}" for cursor in log.cursors() if cursor.name == "archive-messages"), "")
        finally:
            log.close()

    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "penstock", "pipeline", *words, "--lake", str(self.lake)]
        # What a killed Spark leaves lying goes with the directory.
        self._scratch.mkdir(parents=True, exist_ok=True)
        places = {"TMPDIR": str(self._scratch), "SPARK_LOCAL_DIRS": str(self._scratch)}
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=os.environ | places, process_group=0)

    async def command(self, *words: str) -> tuple[int | None, str, str]:
        """Run `penstock pipeline …` on the lake; returns its exit code, output and errors."""
        process = await self._start(*words)
        out, errors = await process.communicate()
        return process.returncode, out.decode(), errors.decode()


@dataclass
class Traffic:
    """Orders that are published, and a subscription that works on them."""

    topic: Topic
    ids: set[str] = field(default_factory=set)

    @classmethod
    async def prepare(cls, pubsub: PubSub) -> Traffic:
        """The topic, and who takes from it: every 20th order needs a second try, every 100th dies."""
        topic, letters = await pubsub.topic("orders").create(), await pubsub.topic("dead-orders").create()
        await letters.subscription("triage").create()
        subscription = topic.subscription("billing")
        await subscription.create(options=SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("dead-orders", 2)))

        def work(message: IncomingMessage) -> None:
            number = int(message.data)
            if number % 100 == 0 or (number % 20 == 0 and message.delivery_attempt == 1):
                message.nack()
            else:
                message.ack()

        subscription.on("message", work)
        subscription.open()
        return cls(topic)

    @property
    def published(self) -> int:
        """How many orders are confirmed."""
        return len(self.ids)

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """As long as it is entered, orders are published."""
        is_over = asyncio.Event()
        flow = asyncio.create_task(self._flow(is_over))
        try:
            yield
        finally:
            # Not cancelled: an order that is stored and was not counted would look like a stranger in the lake.
            is_over.set()
            await flow

    async def _flow(self, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            batch = [Message(data=b"%d" % number) for number in range(self.published + 1, self.published + BATCH + 1)]
            self.ids |= {*await self.topic.publish_many(batch)}
            await asyncio.sleep(PAUSE)


async def _until(is_so: Callable[[], bool], seconds: float, claim: str, job: asyncio.subprocess.Process) -> None:
    """Return when it is so; what must come sooner or later comes before the job has ended."""
    until = monotonic() + seconds * SECOND
    while not is_so():
        if job.returncode is not None or monotonic() > until:
            with suppress(ProcessLookupError):
                job.kill()
            _, errors = await _ended(job)
            raise ClaimFailed(f"{claim} (found: {errors[-500:]!r})")
        await asyncio.sleep(0.2)


async def _ended(job: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """(exit code, what it complained of) of a job that is about to end."""
    try:
        async with asyncio.timeout(PATIENCE):
            _, errors = await job.communicate()
    except TimeoutError:
        job.kill()
        _, errors = await job.communicate()
    return job.returncode, errors.decode()


def missing_for_spark() -> str:
    """What is not installed, as words; empty when everything is."""
    if extras := [*missing_extras(), *(["spark"] if find_spec("pyspark") is None or find_spec("pyarrow") is None else [])]:
        return f"more libraries: {how_to_install(*extras)}"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else "java"
    return "" if shutil.which(java) else "Java 17 or newer"


def _milliseconds(value: Any) -> str:
    return "" if value is None else f"{value:,.1f} ms"
