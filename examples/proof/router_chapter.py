"""The router's part of the proof: from a queue of the server to a target in this process that fails, recovers and refuses."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import PubSub, WorkQueue
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.extras import how_to_install
from proof.screen import ClaimFailed, Screen
from proof.server_chapter import call, missing_extras, serving

if TYPE_CHECKING:
    from penstock.testing.server import ServerProcess
    from penstock.testing.target import Request, Target

T = TypeVar("T")

CONFIG = {
    "queues": [{"queueName": "orders", "queueUri": "penstock:///queues/orders"}],
    "processingPools": [{"code": "HOOKS", "concurrency": 20}],
}
CUSTOMERS = 10
EACH = 5  # orders of each customer
TOTAL = CUSTOMERS * EACH
QUIET = 1.0  # seconds for which an open breaker is watched
TRICKLE = 0.25  # seconds between the orders that come while the target recovers
LOOK = 0.05  # seconds between two looks at what is awaited
PATIENCE = 60.0  # seconds that a step waits at most for what must come sooner
LIBRARIES = ("httptools", "h2")


class RouterDemo:
    """The steps, over one server that has a router, and two targets."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory

    def run(self) -> None:
        """All steps, in order; none where libraries are missing."""
        if missing_extras():
            return  # the server's own steps have said it
        if any(find_spec(library) is None for library in LIBRARIES):
            self.screen.step("The router")
            self.screen.say(f"Left out: it needs {how_to_install('router')}.")
            return
        from penstock.testing.target import Target  # noqa: PLC0415  # needs the server's libraries

        logging.getLogger("penstock").addHandler(logging.NullHandler())
        self.directory.mkdir(parents=True)
        config = self.directory / "router.json"
        config.write_text(json.dumps(CONFIG), encoding="utf-8")
        with (
            Target() as shop,
            Target() as other,
            serving(self.directory / "data", router=config, router_allow="127.0.0.1") as server,
        ):
            asyncio.run(self._run(server, shop, other))

    async def _run(self, server: ServerProcess, shop: Target, other: Target) -> None:
        async with PubSub(server.url) as pubsub:
            queue = await pubsub.queue("orders").create(exist_ok=True)
            await self.deliver(queue, shop)
            await self.fail(server, queue, shop, other)
            await self.recover(server, queue, shop)
            await self.refuse(pubsub, queue, shop)

    async def deliver(self, queue: WorkQueue, shop: Target) -> None:
        """From a queue to a target."""
        screen = self.screen
        screen.step("The router: from a queue to an HTTP target")
        screen.say(f"penstock serve --router router.json. {TOTAL} orders of {CUSTOMERS} customers go to the queue 'orders':")
        started = monotonic()
        for number in range(EACH):
            for customer in range(CUSTOMERS):
                await self._send(queue, f"{shop.url}/orders", f"customer {customer}", f"{customer}-{number}")
        came = await _requests(shop, TOTAL)
        took = (monotonic() - started) / SECOND
        first = came[0]
        screen.say(f"  POST {first.path}  {first.body.decode()}")
        screen.say(f"All were delivered {took:.2f} s after the first was sent.")
        ids = [request.message_id for request in came]
        screen.proves("each order was delivered once", len(ids) == len({*ids}) == TOTAL, len(ids))
        pairs = [(one, later) for at, one in enumerate(came) for later in came[at + 1 :] if _customer(one) == _customer(later)]
        screen.proves(
            "the orders of each customer came in the order they were sent, and one at a time",
            not any(later.message_id < one.message_id or one.overlaps(later) for one, later in pairs),
            ids,
        )

    async def fail(self, server: ServerProcess, queue: WorkQueue, shop: Target, other: Target) -> None:
        """A target that fails is left alone, and the others are served."""
        from penstock.testing.target import respond  # noqa: PLC0415

        screen = self.screen
        screen.step("A target fails: its circuit breaker opens")
        shop.behaviour = respond(500)
        for customer in range(CUSTOMERS):
            await self._send(queue, f"{shop.url}/orders", f"customer {customer}", f"{customer}-{EACH}")
        breaker = await _until(
            lambda: _breaker(server, shop), lambda found: found["state"] == "OPEN", "the breaker of a failing target opens"
        )
        screen.say("The target answers every call with 500. Half of its last 10 calls have failed:")
        screen.table(
            ["target", "breaker", "succeeded", "failed"],
            [[shop.url, breaker["state"], breaker["successfulCalls"], breaker["failedCalls"]]],
        )
        await asyncio.sleep(0.1)  # what was on its way when it opened
        before = len(shop.requests)
        started = monotonic()
        for number in range(CUSTOMERS):
            await self._send(queue, f"{other.url}/mails", f"customer {number}, mails", f"mail-{number}")
        mails = await _requests(other, CUSTOMERS)
        took = (monotonic() - started) / SECOND
        await asyncio.sleep(max(QUIET - took, 0))
        screen.proves(
            f"while it is open no call reaches the target: 0 in {QUIET:g} s", len(shop.requests) == before, len(shop.requests)
        )
        screen.proves(
            f"another target of the same pool got its {CUSTOMERS} messages within {took:.2f} s", len(mails) == CUSTOMERS
        )

    async def recover(self, server: ServerProcess, queue: WorkQueue, shop: Target) -> None:
        """What waited is delivered."""
        from penstock.testing.target import respond  # noqa: PLC0415

        screen = self.screen
        screen.step("The target recovers, and so does the pool")
        shop.behaviour = respond()
        started, wanted = monotonic(), {f"{customer}-{EACH}" for customer in range(CUSTOMERS)}

        async def order() -> str:
            name = f"{CUSTOMERS}-{len(wanted):03}"
            wanted.add(name)
            await self._send(queue, f"{shop.url}/orders", f"customer {CUSTOMERS}", name)
            await asyncio.sleep(TRICKLE)
            return str((await _breaker(server, shop))["state"])

        async def missing() -> set[str]:
            return wanted - {request.message_id for request in shop.requests if request.status == 200}

        await _until(order, lambda state: state == "CLOSED", "the breaker closes")
        closed = (monotonic() - started) / SECOND
        await _until(missing, lambda found: not found, "everything that waited is delivered")
        took = (monotonic() - started) / SECOND
        screen.say(
            "It answers 200 again, and orders continue coming. Calls find it out, one at a time; three that succeed close the"
            f" breaker after {closed:.1f} s. The last order is delivered after {took:.1f} s."
        )
        done = [request.message_id for request in shop.requests if request.status == 200]
        screen.proves(f"all {len(wanted)} orders were delivered, none was lost", wanted <= {*done}, len(wanted))
        last = [one for one in done if one.startswith(f"{CUSTOMERS}-")]
        screen.proves("in order, though they had to wait", last == sorted(last), last)
        stats = await _until(queue.stats, lambda found: found.in_flight + found.depth == 0, "the queue is empty")
        screen.proves("the queue is empty, and nothing died", stats.dead_letters == 0, stats)

    async def refuse(self, pubsub: PubSub, queue: WorkQueue, shop: Target) -> None:
        """What a target refuses for good is kept."""
        from penstock.testing.target import respond  # noqa: PLC0415

        screen = self.screen
        screen.step("A refusal is a dead letter, and can be redriven")
        shop.behaviour = {"/invoices": respond(400), "*": respond()}
        sent = await self._send(queue, f"{shop.url}/invoices", "invoices", "invoice-1")
        letters = await _until(queue.dead_letters, bool, "what a target refuses is kept as a dead letter")
        screen.say("/invoices answers 400: to try again would not help.")
        screen.table(
            ["message", "reason", "attempts", "last error"],
            [["invoice-1", letter.reason, letter.attempts, letter.last_error] for letter in letters],
        )
        [letter] = letters
        screen.proves(
            "it is not lost, and not tried forever: it is a dead letter of its queue",
            (letter.message.message_id, letter.reason, letter.attempts) == (sent, "undeliverable", 1),
            letter,
        )
        shop.behaviour = respond()
        await queue.redrive()
        events = await _until(
            lambda: pubsub.trace("invoice-1"), lambda found: [one.kind for one in found].count("attempted") == 2, "it is tried"
        )
        ordered = sorted(events, key=lambda event: event.at)
        screen.say("The endpoint is repaired, the letter redriven. The life of the message, by `penstock trace invoice-1`:")
        screen.table(
            ["at", "what", "status", "outcome"],
            [
                [
                    f"{(event.at - ordered[0].at).total_seconds():.2f} s",
                    event.kind,
                    event.detail.get("status", ""),
                    event.detail.get("outcome", ""),
                ]
                for event in ordered
            ],
        )
        tried = [(event.detail["status"], event.detail["outcome"]) for event in ordered if event.kind == "attempted"]
        screen.proves(
            "every attempt is in the event log: refused, then delivered",
            tried == [("400", "ERROR_CONFIG"), ("200", "SUCCESS")],
            tried,
        )

    async def _send(self, queue: WorkQueue, target: str, group: str, message_id: str) -> str:
        return await queue.publish({"id": message_id, "poolCode": "HOOKS", "mediationTarget": target, "messageGroupId": group})


async def _breaker(server: ServerProcess, target: Target) -> Any:  # Any: JSON
    _, found = await asyncio.to_thread(call, server, "GET", "/monitoring/circuit-breakers", None)
    return found.get(target.url, {"state": "CLOSED"})


async def _requests(target: Target, count: int) -> list[Request]:
    """What came to a target, as soon as that is so much."""
    try:
        return await asyncio.to_thread(target.wait_for, count, PATIENCE)
    except TimeoutError as error:
        raise ClaimFailed(f"{count} messages are delivered ({error})") from None


async def _until(look: Callable[[], Awaitable[T]], is_so: Callable[[T], object], claim: str) -> T:
    """What is found when it is so."""
    deadline = monotonic() + int(PATIENCE * SECOND)
    while not is_so(found := await look()):
        if monotonic() > deadline:
            raise ClaimFailed(f"{claim} within {PATIENCE:g} s (found: {found!r})")
        await asyncio.sleep(LOOK)
    return found


def _customer(request: Request) -> str:
    return request.message_id.partition("-")[0]
