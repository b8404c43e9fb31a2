"""The records of a router in a broker: attempts in its event log, dead letters in a queue of their own.

Attempts of one turn of the loop become one record for each queue. A dead message from a queue outside this broker goes into the
work queue `router.<queue>`, among its dead letters, where it can be inspected and redriven like any other. If it is redriven, it
becomes ready in that queue, which is another source of the router (see `redriven`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import msgspec

from penstock.api.dead_letter_queues import PREFIX, DeadLetterQueues
from penstock.broker.aio import AsyncBroker
from penstock.errors import BrokerClosed, Unavailable
from penstock.journal.core import events
from penstock.journal.core.events import Texts, column, text_column
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.core.message import RoutedMessage
from penstock.router.records import MAX_TEXT, Attempt, cut, plain_target
from penstock.router.sources.local import MAX_ERROR, BrokerQueues
from penstock.values.lease import Lease
from penstock.values.message import MAX_ATTRIBUTE_VALUE_BYTES, plain_text

MAX_NAME: Final = 200

_NAME: Final = re.compile(r"[^A-Za-z0-9._~%+-]+")
_OWN: Final = re.compile(r"penstocks?:", re.IGNORECASE)


def dead_letter_queue(queue: str) -> str:
    """The name of the work queue that keeps the dead letters of a router's queue."""
    plain = _NAME.sub("-", shown_uri(queue)).strip("-")
    return f"{PREFIX}{plain or sha256(queue.encode()).hexdigest()[:16]}"[:MAX_NAME]


def redriven(config: QueueConfig) -> QueueConfig | None:
    """The source for redriven dead letters of a queue; None if the queue keeps and redrives them itself."""
    if _OWN.match(config.uri) and "/subscriptions/" not in config.uri:
        return None
    name = dead_letter_queue(config.name)
    return msgspec.structs.replace(config, name=name, uri=f"penstock:///queues/{quote(name, safe='')}", connections=1)


class BrokerRecords:
    """The records of a router in a broker's process (`router.records.Records`). Create it inside the running loop."""

    def __init__(self, aio: AsyncBroker, local: BrokerQueues) -> None:
        self._aio, self._broker = aio, aio.broker
        self._numbers = local.numbers
        self._letters = DeadLetterQueues(aio)
        self._loop = asyncio.get_running_loop()
        self._attempts: list[Attempt] = []

    def attempted(self, attempt: Attempt) -> None:
        """Record an attempt together with the others of this turn of the loop."""
        if not self._attempts:
            # Before the settlements of this turn go to the source: in the log, an attempt comes before the ack that follows.
            self._loop.call_soon(self._write)
        self._attempts.append(attempt)

    async def dead_letter(self, item: RoutedMessage, reason: str, error: str) -> None:
        """Keep a dead message; returns when it is on disk, if the broker has one."""
        name = dead_letter_queue(item.queue)
        await self._letters.open(name)
        pointer, received = item.pointer, item.received
        headers = {
            "router.queue": shown_uri(item.queue),
            "router.broker_id": received.broker_id,
            "router.message_id": pointer.message_id,
            "router.pool": pointer.pool,
            "router.target": plain_target(pointer.target),
        }
        headers = {key: _header(text) for key, text in headers.items() if text}
        attempts, text = max(item.attempts, 1), plain_text(error[:MAX_ERROR]) or None
        await self._letters.add(name, received.body, headers, reason=reason, attempts=attempts, error=text)
        await self._letters.durable()

    async def flush(self) -> None:
        """Write the pending records, and sync them to disk."""
        self._write()
        with suppress(BrokerClosed, Unavailable):
            await self._aio.durable()

    def _write(self) -> None:
        attempts, self._attempts = self._attempts, []
        if not attempts:
            return
        by_queue: dict[str, list[Attempt]] = {}
        for one in attempts:
            queue = one.item.queue
            if queue in by_queue:
                by_queue[queue].append(one)
            else:
                by_queue[queue] = [one]
        told = [self._record(queue, those) for queue, those in by_queue.items()]
        with suppress(BrokerClosed):
            self._broker.record(told)

    def _record(self, queue: str, attempts: list[Attempt]) -> events.Attempted:
        number, stream = self._numbers.get(queue, (None, None))
        offsets: list[int] | None = None
        published: events.Column | None = None
        items = [one.item for one in attempts]
        pointers = [item.pointer for item in items]
        if stream is not None:
            leases: list[Lease] = [item.received.receipt for item in items]
            try:
                offsets = [lease.offset for lease in leases]
                published = column([lease.message.publish_at for lease in leases])
            except AttributeError:
                number = offsets = None  # some are of another queue that had this name before: they hold no leases
        outcomes = [one.came for one in attempts]
        return events.Attempted(
            number,
            attempts[-1].at,
            offsets,
            published,
            _all_cut([pointer.message_id for pointer in pointers]),
            shown_uri(queue) if "@" in queue or "?" in queue else queue,
            text_column([one.pool for one in attempts]),
            self._targets([pointer.target for pointer in pointers]),
            column([one.number for one in attempts]),
            column([one.calls for one in attempts]),
            column([outcome.status for outcome in outcomes]),
            column([one.duration for one in attempts]),
            text_column([outcome.result for outcome in outcomes]),
            text_column(_all_cut([outcome.error for outcome in outcomes])),
        )

    def _targets(self, targets: list[str]) -> events.Texts:
        told = text_column(targets)
        return plain_target(told) if isinstance(told, str) else text_column([plain_target(target) for target in told])


def _each(change: Callable[[str], str], texts: Texts) -> Texts:
    return change(texts) if isinstance(texts, str) else [change(text) for text in texts]


def _all_cut(texts: list[str]) -> list[str]:
    return texts if max(map(len, texts)) <= MAX_TEXT else [cut(text) for text in texts]


def _header(text: str) -> str:
    """Text that a message may contain, cut to a number of bytes."""
    return text if len(text) * 4 <= MAX_ATTRIBUTE_VALUE_BYTES else text.encode()[:MAX_TEXT].decode(errors="ignore")
