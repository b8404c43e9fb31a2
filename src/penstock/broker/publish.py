"""The one way into a topic: check the messages, apply the topic's schema and transforms, hand them to the writer.

`publish` waits in a thread, `publish_async` in an event loop, and `publish_then` calls back. A thread that waits may commit by
itself; a loop is woken once for all publishes that were committed together.

Schemas and transforms are applied in threads, in the order in which messages were published to their topic, and the messages
reach the log in that order. Other messages do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.stream import Stream
from penstock.broker.keyed_threads import Call
from penstock.broker.topic_rules import MAX_WAIT, Passed
from penstock.broker.writer import Placement, Ticket
from penstock.errors import BrokerClosed, FailedPrecondition, PenstockError
from penstock.values.message import Batch, Message, accept, check_producer, summarize

if TYPE_CHECKING:
    from penstock.broker.aio import AsyncBroker  # a program without an event loop does not load it

Find = Callable[[Catalog, str], Stream]
"""Finds a stream by its name, such as `Catalog.topic`."""


def publish(broker: Broker, find: Find, name: str, messages: Sequence[Message]) -> Placement:
    """Publish messages, all or none; returns their places once they are durable. Blocks."""
    now = broker.clock.now()
    batch = accept(messages, now)
    if now >= broker.next_due:
        broker.catch_up()
    lock = broker.lock
    lock.acquire()
    try:
        if broker.is_closed:
            raise BrokerClosed
        stream = find(broker.catalog, name)
        if stream.spec and broker.rules.needed(stream):
            ticket = Ticket(stream, batch)
            call = _start(broker, ticket, stream, batch)
        elif broker.is_durable:
            ticket, call = Ticket(stream, batch), None
        else:
            return broker.publish_now(stream, batch, now)
    finally:
        lock.release()
    if call is None:
        broker.append(ticket)
    elif not ticket.is_finished_within(MAX_WAIT):
        call.give_up(MAX_WAIT)
    return ticket.placed()


async def publish_async(
    aio: AsyncBroker,
    find: Find,
    name: str,
    messages: Sequence[Message] | Batch,
    *,
    origin: tuple[str, int] | None = None,
) -> Placement:
    """The same for an event loop, without blocking it. With an `origin`, a repeated request adds nothing.

    A batch is not checked again: `accept_typed`, or a client in this process, has checked it.
    """
    broker, now = aio.broker, aio.advance()
    if isinstance(messages, Batch):
        batch = messages
    else:
        batch = accept(messages, now)
        if origin is not None:
            originated(batch, origin)
    call, lock = None, broker.lock
    lock.acquire()
    try:
        if broker.is_closed:
            raise BrokerClosed
        stream = find(broker.catalog, name)
        has_rules = bool(stream.spec) and broker.rules.needed(stream)
        if not has_rules and not broker.is_durable:
            return broker.publish_now(stream, batch, now)
        ticket, future = aio.ticket(stream, batch)
        if has_rules:
            call = _start(broker, ticket, stream, batch)
    finally:
        lock.release()
    if call is None:
        broker.append(ticket)
        return (await future).placed()
    timer = aio.call_later(MAX_WAIT, lambda: call.give_up(MAX_WAIT))
    try:
        return (await future).placed()
    finally:
        timer.cancel()
        call.give_up()  # has an effect only if the caller was cancelled


def publish_then(
    broker: Broker,
    find: Find,
    name: str,
    messages: Sequence[Message],
    done: Callable[[Ticket], None],
) -> None:
    """The same with a callback: `done` is called with the ticket, in any thread. It must return at once and must not fail.

    Messages wait for earlier ones of their topic without a limit: the caller limits how many it has in flight.
    """
    now = broker.clock.now()
    batch = accept(messages, now)
    if now >= broker.next_due:
        broker.advance(now)
    with broker.lock:
        broker.check_open()
        stream = find(broker.catalog, name)
        ticket = Ticket(stream, batch, done)
        if stream.spec and broker.rules.needed(stream):
            _start(broker, ticket, stream, batch)
            return
        if not broker.is_durable:
            placed = broker.publish_now(stream, batch, now)
            ticket.first, ticket.at = placed.first, placed.at
    if broker.is_durable:
        broker.append(ticket)
    else:
        ticket.finish()


def originated(batch: Batch, origin: tuple[str, int] | None) -> Batch:
    """A batch, idempotent if the producer gives its id and a sequence."""
    if origin is not None and batch.producers is None:
        batch.producers = [check_producer(*origin, "origin"), *[None] * (len(batch.messages) - 1)]
        batch.is_whole = True
    return batch


def dropped(topic: str) -> FailedPrecondition:
    """The error of APIs that return an offset for a message that a transform dropped."""
    return FailedPrecondition(f"a transform of topic {topic!r} dropped the message", hint="see the topic's transforms")


def _start(broker: Broker, ticket: Ticket, stream: Stream, batch: Batch) -> Call:
    """Apply the topic's rules to a publish, then commit it. Call it with the lock held."""

    def done(outcome: Passed | PenstockError) -> None:
        if isinstance(outcome, PenstockError):
            ticket.error = outcome
        else:
            ticket.batch, ticket.dropped = _kept(batch, outcome)
            if ticket.batch.messages:
                try:
                    broker.append(ticket)
                except PenstockError as error:
                    ticket.error = error
                else:
                    return
        ticket.finish()

    return broker.rules.start(stream, batch.messages, done)


def _kept(batch: Batch, passed: Passed) -> tuple[Batch, list[int] | None]:
    """The rest of a batch, and which of its messages were dropped."""
    places = [index for index, message in enumerate(passed) if message is not None]
    dropped = [index for index, message in enumerate(passed) if message is None] or None
    if not places:
        return Batch([], 0, None, False), dropped
    kept = summarize([message for message in passed if message is not None])
    if batch.producers is not None:
        # The first message of a batch, whichever that is now, has the sequence that identifies a repeat.
        first = batch.producers[0] if batch.is_whole else batch.producers[places[0]]
        kept.producers = [first, *(batch.producers[index] for index in places[1:])]
        kept.is_whole = batch.is_whole
    return kept, dropped
