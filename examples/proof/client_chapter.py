"""The client's part of the proof: Penstock's own client on a server that is killed under it, then a worker."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock import IncomingMessage, PubSub, Topic, Worker
from penstock.clock import monotonic
from penstock.durations import SECOND
from proof.screen import ClaimFailed, Screen
from proof.server_chapter import missing_extras, serving

if TYPE_CHECKING:
    from penstock.testing.server import ServerProcess

CUSTOMERS = 50
EACH = 80  # events of each customer
TOTAL = CUSTOMERS * EACH
BACKOFF = 0.2  # seconds before a failed task is run again; doubled each time
PATIENCE = 60.0  # seconds that a step waits at most for what must come sooner


class BankBusy(Exception):
    """What a task of the proof raises while the bank has no time."""


class ClientDemo:
    """The steps, over one server and its data directory."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory

    def run(self) -> None:
        """All steps, in order; none where the server's libraries are missing, which its own steps have said."""
        if not missing_extras():
            # Lost connections and failed tasks are logged, and would stand on the terminal between what the steps show of them.
            logging.getLogger("penstock").addHandler(logging.NullHandler())
            asyncio.run(self._run())

    async def _run(self) -> None:
        async with MortalServer(self.directory) as server, PubSub(server.url, give_up_seconds=PATIENCE) as pubsub:
            await self.stream(server, pubsub)
            await self.work(pubsub)

    async def stream(self, server: MortalServer, pubsub: PubSub) -> None:
        """Confirmed is confirmed, stored once, and in order, whatever happens to the server."""
        screen = self.screen
        screen.step("The client: kill -9 of the server while events stream")
        screen.say(
            f"PubSub({server.url!r}): {CUSTOMERS} customers publish {EACH} events each, the next when the last is"
            " confirmed. A subscription streams them, in order for each customer. In the middle the server is killed, and"
            " started again on its data directory."
        )
        topic = await pubsub.topic("events").create()
        subscription = await topic.subscription("ledger", message_ordering=True).create()
        events = Events(topic)
        subscription.on("message", events.receive)
        subscription.on("error", events.cuts.append)
        subscription.open()
        started = monotonic()
        async with _soon(f"{TOTAL:,} events are confirmed and received"), asyncio.TaskGroup() as customers:
            for number in range(1, CUSTOMERS + 1):
                customers.create_task(events.publish(f"customer {number}"))
            await events.half_confirmed.wait()
            screen.say(f"  killed when {len(events.confirmed):,} were confirmed and {len(events.received):,} received")
            await server.die_and_return()
            await events.all_received.wait()
        took = (monotonic() - started) / SECOND
        await subscription.close()
        again = sum(events.received.values()) - len(events.received)
        lost, extra = events.confirmed - events.received.keys(), events.received.keys() - events.confirmed
        screen.table(
            ["confirmed", "received", "lost", "stored twice", "delivered again", "out of order"],
            [
                [
                    f"{n:,}"
                    for n in (len(events.confirmed), len(events.received), len(lost), len(extra), again, events.out_of_order)
                ]
            ],
        )
        is_all = len(events.confirmed) == TOTAL
        screen.proves(f"{TOTAL:,} confirmed to the client, 0 lost", is_all and not lost, sorted(lost)[:3])
        screen.proves("what was sent again after a lost connection was stored once", not extra, sorted(extra)[:3])
        screen.proves("the events of every customer came in the order they were published", not events.out_of_order)
        backlog = (await subscription.stats()).backlog
        screen.proves(
            "the connection was lost, publishers and stream continued by themselves, and nothing is left",
            bool(events.cuts) and backlog == 0,
            (events.cuts, backlog),
        )
        screen.say(
            f"All in {took:.1f} s, kill and restart included. An event delivered again is one whose ack died with the server."
        )

    async def work(self, pubsub: PubSub) -> None:
        """Tasks: one that works, one that needs three tries, one that never will."""
        screen = self.screen
        screen.step("A worker")
        screen.say(f"Three tasks. A failed one is run again after {BACKOFF} s, then twice as long, as often as it may be.")
        worker = Worker(pubsub=pubsub)
        tries: Counter[int] = Counter()
        ends: dict[str, str] = {}
        rows: list[list[object]] = []
        is_over = asyncio.Event()

        @worker.task("mails")
        def mail(order: int) -> None:  # a plain function runs in a thread
            tries[order] += 1

        @worker.task("charges", max_retries=3, backoff=(BACKOFF, 60))
        async def charge(order: int) -> None:
            tries[order] += 1
            if tries[order] < 3:
                raise BankBusy("try again")

        @worker.task("invoices", max_retries=1, backoff=(BACKOFF, 60))
        async def invoice(order: int) -> None:
            raise ValueError(f"order {order} has no address")

        @worker.on_success
        @worker.on_failure
        def note(result: Any) -> None:
            again = "" if result.delay is None else f"again after {result.delay:g} s"
            why = "" if result.error is None else f"{type(result.error).__name__}: {result.error}"
            rows.append([result.task, result.attempt, str(result.outcome), why, again])
            if result.outcome != "retried":
                ends[result.message_id] = f"{result.outcome} at run {result.attempt}"
            if len(ends) == 3:
                is_over.set()

        sent = [await mail.send(1), await charge.send(2), await invoice.send(3)]
        await worker.start()
        async with _soon("three tasks end"):
            await is_over.wait()
        await worker.close()
        screen.table(["task", "run", "outcome", "error", ""], rows)
        outcomes = [ends.get(message_id, "?") for message_id in sent]
        screen.proves(
            "one worked at once, one failed twice and worked, one failed for good",
            outcomes == ["succeeded at run 1", "succeeded at run 3", "dead at run 2"],
            outcomes,
        )
        letters = [(letter.message.message_id, letter.last_error) for letter in await pubsub.queue("invoices").dead_letters()]
        screen.proves(
            "the one that failed for good is a dead letter, with its error",
            letters == [(sent[2], "ValueError: order 3 has no address")],
            letters,
        )
        life = await pubsub.trace(sent[1])
        screen.say(f"pubsub.trace({sent[1]!r}), the life of the second:")
        screen.table(
            ["at", "what", "in", "delivery"],
            [
                [
                    f"{(event.at - life[0].at).total_seconds():.2f} s",
                    event.kind,
                    event.subscription or event.topic,
                    event.attempt or "",
                ]
                for event in life
            ],
        )
        kinds = [event.kind for event in life]
        screen.proves(
            "two failures and a success, and nothing is missing",
            kinds == ["published", *["leased", "nacked"] * 2, "leased", "acked"],
            kinds,
        )


class Events:
    """Publishes numbered events, receives them, and keeps the books."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._next: Counter[str] = Counter()
        self.confirmed: set[str] = set()
        self.received: Counter[str] = Counter()
        self.cuts: list[Exception] = []
        self.out_of_order = 0
        self.half_confirmed = asyncio.Event()
        self.all_received = asyncio.Event()

    async def publish(self, customer: str) -> None:
        """All events of a customer, one after the other."""
        for number in range(EACH):
            self.confirmed.add(await self._topic.publish_message(b"%d" % number, ordering_key=customer))
            if len(self.confirmed) >= TOTAL // 2:
                self.half_confirmed.set()

    def receive(self, message: IncomingMessage) -> None:
        """One event. A number may be redelivered, since an ack may die with the server; none may be passed over."""
        number, customer = int(message.data), message.ordering_key
        self.out_of_order += number > self._next[customer]
        self._next[customer] = max(self._next[customer], number + 1)
        self.received[message.id] += 1
        message.ack()
        if sum(self._next.values()) == TOTAL:
            self.all_received.set()


class MortalServer:
    """A server that can be killed, and comes back where it was. Use it with `async with`."""

    def __init__(self, directory: Path, **options: object) -> None:
        self._directory, self._options = directory, options
        self._processes = ExitStack()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Its address, before and after."""
        assert self._process is not None, "it is entered"
        return self._process.url

    async def die_and_return(self) -> None:
        """Kill -9, and start it again on its data directory and its ports."""
        await _to_its_end(self._die_and_return())

    async def _die_and_return(self) -> None:
        assert self._process is not None, "it is entered"
        await asyncio.to_thread(self._process.kill)
        await self._start(port=self._process.port, grpc_port=self._process.grpc_port, native_port=self._process.native_port)

    async def _start(self, **ports: int) -> None:
        # In a thread: the client continues meanwhile.
        serve = serving(self._directory, **self._options, **ports)
        self._process = await asyncio.to_thread(self._processes.enter_context, serve)

    async def __aenter__(self) -> Self:
        try:
            await _to_its_end(self._start())
        except BaseException:
            await asyncio.to_thread(self._processes.close)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._processes.close)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that must not stop halfway: a cancellation takes effect after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


@asynccontextmanager
async def _soon(claim: str) -> AsyncIterator[None]:
    """What happens inside does not take forever."""
    try:
        async with asyncio.timeout(PATIENCE):
            yield
    except TimeoutError:
        raise ClaimFailed(f"{claim} within {PATIENCE:g} s") from None
    except ExceptionGroup as failures:
        raise ClaimFailed(f"{claim} (found: {failures.exceptions[0]})") from failures
