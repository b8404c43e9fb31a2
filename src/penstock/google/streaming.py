"""StreamingPull: a stream of deliveries, with acks and deadlines sent on it or beside it.

A stream is a consumer of its subscription: its messages are limited by the options of its first request, and by how fast its
client reads, because nothing is leased before the last answer is written. When it ends, its leases last until their deadlines, as
Google's do: a client that closes its stream first and acknowledges later gets nothing twice, and if it nacks on shutdown, its
messages are redelivered at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from penstock.access import Principal, Verb
from penstock.broker.async_consumer import CHECK_SECONDS, StreamConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.settlement import ACK, GIVE_BACK, new_deadline
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.errors import InvalidArgument, PenstockError, SubscriptionNotFound, Unavailable
from penstock.google import messages, wire
from penstock.google.core.consumer_requests import StreamChange, StreamOpening, changed, opened
from penstock.google.resources import Resources
from penstock.google.subscriber import Subscriber
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.policy import MAX_ORDERING_WINDOW

MAX_MESSAGES = 1_000
MAX_BYTES = 1024 * 1024
"""The size of one answer: clients with gRPC's default refuse more than 4 MiB. A larger message is sent alone."""
FEW = 10
GATHER_SECONDS = 0.002
"""After an answer with few messages the next one waits this long for more: an answer costs as much as a hundred messages."""
MAX_ANSWERS = 100

Read = Callable[[], Awaitable[bytes | None]]
"""The next request; None if the client has closed its side."""
Write = Callable[[bytes], Awaitable[None]]
"""Send an answer; returns once the transport has taken it."""


class Streams:
    """All open streams."""

    def __init__(self, resources: Resources, subscriber: Subscriber, rules: SubscriptionRules) -> None:
        self.resources = resources
        self.subscriber = subscriber
        self.rules = rules
        self._open: set[_Stream] = set()
        self._numbers = itertools.count(1)
        # Names of consumers are stored, so those of the next run must differ.
        self._run = f"{resources.broker.clock.now():x}"
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, read: Read, write: Write, caller: Principal, still: Callable[[], object]) -> None:
        """Serve one stream until its client ends it; any other end is raised. `still` raises if the caller may not continue."""
        first = await read()
        if first is None:
            raise InvalidArgument("the stream has no request, expected a first one that names the subscription")
        opening = opened(messages.StreamingPullRequest.FromString(first))
        name = opening.subscription
        caller.check(Verb.CONSUME, name.project, name.id, kind="subscription")
        if self._is_stopping:
            raise Unavailable("the server is stopping")
        stream = _Stream(self, f"stream-{self._run}-{next(self._numbers)}", opening, read, write, still)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def stop(self) -> None:
        """End all streams. Their clients reconnect to the next run and settle their messages there."""
        self._is_stopping = True
        for stream in [*self._open]:
            stream.cut(Unavailable("the server is stopping"))


class _Stream:
    """One stream: the destination of its consumer's deliveries (`penstock.broker.async_consumer.Sink`)."""

    def __init__(  # noqa: PLR0917  # the parts of one stream
        self,
        streams: Streams,
        consumer: str,
        opening: StreamOpening,
        read: Read,
        write: Write,
        still: Callable[[], object],
    ) -> None:
        self._aio, self._subscriber = streams.resources.aio, streams.subscriber
        self._opening = opening
        self._read, self._write, self._still = read, write, still
        self._key = streams.resources.key(opening.subscription)
        self._consumer = StreamConsumer(
            self._aio,
            Catalog.subscription,
            self._key,
            self,
            rules=streams.rules,
            identity=consumer,
            ack_deadline=opening.ack_deadline,
            prefetch=opening.max_messages,
            prefetch_bytes=opening.max_bytes,
            key_window=MAX_ORDERING_WINDOW,
            batch=MAX_MESSAGES,
            batch_bytes=MAX_BYTES,
        )
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        """Set if there is something to write, or the stream has ended."""
        self._deliveries: deque[tuple[bytes, list[Lease]]] = deque()
        self._is_gathering = False
        self._answers: list[Any] = []
        """Confirmations and keep-alives that wait to be written."""
        self._waiting = 0
        """Their total size in bytes."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._properties = b""
        """The properties of the subscription for every answer: Google's client forgets what an answer does not repeat."""
        self._task: asyncio.Task[Any] | None = None
        self._is_writing = False
        self._failure: Exception | None = None
        self._is_over = False

    # ── for the consumer ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        """The room of one answer; none while another one is still to be written."""
        self._learn(self._consumer.queue)
        return 0 if self._deliveries or self._is_writing or self._is_gathering else MAX_MESSAGES

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        """Write these next. After few messages the next answer waits a moment for more."""
        with_attempt = queue.policy.dead_letter_topic is not None
        data = b"".join(wire.received(queue.number, queue.stream, leases, with_attempt=with_attempt))
        self._deliveries.append((data, leases))
        if len(leases) < FEW:
            self._is_gathering = True
            self._loop.call_later(GATHER_SECONDS, self._gathered)
        self._news.set()

    def end(self, error: Exception | None) -> None:
        """End the stream, with an error or because its client has ended it."""
        if isinstance(error, SubscriptionNotFound):
            error = SubscriptionNotFound(str(self._opening.subscription))
        self._failure = self._failure or error
        self._is_over = True
        self._news.set()

    def _gathered(self) -> None:
        self._is_gathering = False
        self._consumer.wake()

    def _learn(self, queue: QueueDescription) -> None:
        properties = _properties(queue.policy.exactly_once, queue.policy.ordered)
        if properties != self._properties:
            self._properties = properties
            self._answers.insert(0, messages.StreamingPullResponse())
            self._news.set()

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cut(self, failure: Exception) -> None:
        """End the stream now, also if its client does not read."""
        self.end(failure)
        if self._is_writing and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Deliver until the stream is over. The client then keeps its messages until their deadlines, as with Google."""
        self._consumer.start()
        self._learn(self._consumer.queue)
        self._consumer.look()  # a client that ends the stream with its first request gets what is deliverable now
        reader = asyncio.create_task(self._listen())
        watch = self._loop.call_later(CHECK_SECONDS, self._check)
        try:
            await self._deliver()
        finally:
            self._is_over = True
            watch.cancel()
            reader.cancel()
            self._consumer.stop()
            for _, leases in self._deliveries:
                self._consumer.settle(leases, GIVE_BACK)  # no client has seen them
            self._consumer.forget()

    def _check(self) -> None:
        """A revoked or expired token ends the stream, also without deliveries."""
        if self._is_over:
            return
        try:
            self._still()
        except PenstockError as error:
            self.cut(error)
        else:
            self._loop.call_later(CHECK_SECONDS, self._check)

    async def _listen(self) -> None:
        try:
            await self._apply(self._opening.change)
            while (data := await self._read()) is not None:
                change = changed(messages.StreamingPullRequest.FromString(data))
                if change:
                    await self._apply(change)
                else:
                    self._answer(messages.StreamingPullResponse())
                # Requests of a client that does not read its answers are not read; they wait on its own side.
                await self._has_room.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends the stream, and `run` raises it
            self.end(error)
        else:
            self.end(None)

    async def _apply(self, change: StreamChange) -> None:
        if change.ack_deadline is not None:
            self._consumer.ack_deadline = change.ack_deadline
        confirmed = messages.StreamingPullResponse()
        is_exact = False
        if change.ack_ids:
            ack_ids = list(change.ack_ids)
            settled = self._subscriber.settle_now(self._key, ack_ids, ACK)
            is_exact = settled.queue.policy.exactly_once
            if is_exact:
                failed = self._subscriber.confirmed(settled.queue, ack_ids, settled.failed)
                confirmed.acknowledge_confirmation.ack_ids.extend(_without(ack_ids, failed))
                confirmed.acknowledge_confirmation.invalid_ack_ids.extend(failed)
        by_span: dict[int, list[str]] = {}
        for ack_id, span in change.deadlines:
            by_span.setdefault(span, []).append(ack_id)
        for span, ack_ids in by_span.items():
            settled = self._subscriber.settle_now(self._key, ack_ids, new_deadline(span))
            is_exact = settled.queue.policy.exactly_once
            if is_exact:
                confirmed.modify_ack_deadline_confirmation.ack_ids.extend(_without(ack_ids, settled.failed))
                confirmed.modify_ack_deadline_confirmation.invalid_ack_ids.extend(settled.failed)
        if is_exact:
            await self._aio.durable()
            self._answer(confirmed)

    def _answer(self, answer: Any) -> None:
        self._answers.append(answer)
        self._waiting += answer.ByteSize()
        if len(self._answers) >= MAX_ANSWERS or self._waiting >= MAX_BYTES:
            self._has_room.clear()
        self._news.set()

    async def _deliver(self) -> None:
        """Write deliveries and answers as they arrive."""
        self._task = asyncio.current_task()
        while True:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            answers, self._answers = self._answers, []
            for answer in answers:
                await self._send(answer.SerializeToString())
            if not self._answers:
                self._waiting = 0
                self._has_room.set()
            while self._deliveries:
                await self._send(self._deliveries.popleft()[0])
            if self._is_over:  # its client has closed its side, and got what was deliverable
                return
            self._consumer.wake()

    async def _send(self, answer: bytes) -> None:
        self._is_writing = True
        await self._write(answer + self._properties)
        self._is_writing = False


@cache
def _properties(exactly_once: bool, ordered: bool) -> bytes:
    """The client's properties of its subscription, as a field that can be appended to any answer."""
    answer = messages.StreamingPullResponse()
    answer.subscription_properties.exactly_once_delivery_enabled = exactly_once
    answer.subscription_properties.message_ordering_enabled = ordered
    data: bytes = answer.SerializeToString()
    return data


def _without(ack_ids: list[str], failed: list[str]) -> list[str]:
    gone = set(failed)
    return [ack_id for ack_id in ack_ids if ack_id not in gone] if gone else ack_ids
