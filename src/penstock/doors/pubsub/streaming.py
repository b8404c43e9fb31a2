"""StreamingPull: a stream of deliveries, with acks and deadlines coming back on it or beside it.

A stream is a consumer of its subscription: what it holds is bounded by the limits of its first request, and by what its client
takes off the wire, because nothing is leased while the last answer has not been written. When it ends, what it still holds goes
back after a moment: a client that is merely slow to say goodbye has its acks in by then, and one that died does not keep
messages from others. A client that has another stream open on the subscription (`client_id` tells) lives on, so its leases
do; and so do those of an exactly-once subscription, which end by their deadline alone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from penstock.access import Principal, Verb
from penstock.broker.aio import Bell
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import release
from penstock.clock import monotonic
from penstock.doors.pubsub import messages, wire
from penstock.doors.pubsub.core.streaming import StreamChange, StreamOpening, changed, opened
from penstock.doors.pubsub.inspection import Inspection
from penstock.doors.pubsub.resources import Resources
from penstock.doors.pubsub.subscriber import Subscriber, deadline_verb
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, SubscriptionNotFound, Unavailable

MAX_MESSAGES = 1_000
MAX_BYTES = 1024 * 1024
"""How much one answer holds: clients that keep gRPC's default refuse more than 4 MiB. A larger message comes alone."""
FEW = 10
GATHER_SECONDS = 0.002
"""After an answer with few messages the next waits this long for company: an answer costs as much as a hundred messages in it."""
MAX_ANSWERS = 100
GRACE_SECONDS = 0.5

Read = Callable[[], Awaitable[bytes | None]]
"""The next request, None when the client has said its last."""
Write = Callable[[bytes], Awaitable[None]]
"""Send an answer; returns when the transport has taken it."""


class Streams:
    """All open streams."""

    def __init__(self, resources: Resources, subscriber: Subscriber, inspection: Inspection) -> None:
        self.resources = resources
        self.subscriber = subscriber
        self.inspection = inspection
        self._open: dict[str, _Stream] = {}
        self._clients: Counter[tuple[str, str]] = Counter()
        """How many streams a client has open on a subscription."""
        self._leaving: dict[_Stream, asyncio.TimerHandle] = {}
        """Streams that have ended and hold messages for a moment longer."""
        self._numbers = itertools.count(1)
        # The names of consumers are written down, so those of the next run must be others.
        self._run = f"{resources.broker.clock.now():x}"
        self._stopping = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, read: Read, write: Write, caller: Principal, still: Callable[[], object]) -> None:
        """Serve one stream until its client leaves; whatever else ends it is raised. `still` raises when it may no longer."""
        first = await read()
        if first is None:
            raise InvalidArgument("the stream has no request, wanted a first one that names the subscription")
        opening = opened(messages.StreamingPullRequest.FromString(first))
        name = opening.subscription
        caller.check(Verb.CONSUME, name.project, name.id, kind="subscription")
        if self._stopping.is_set():
            raise Unavailable("the server is stopping")
        stream = _Stream(self, f"stream-{self._run}-{next(self._numbers)}", opening, read, write, still)
        self._open[stream.consumer] = stream
        self._clients[stream.client] += 1
        try:
            await stream.run()
        finally:
            del self._open[stream.consumer]
            self._clients[stream.client] -= 1
            if not self._clients[stream.client]:
                del self._clients[stream.client]
            if self._stopping.is_set():
                self._release(stream)
            else:
                loop = asyncio.get_running_loop()
                self._leaving[stream] = loop.call_later(GRACE_SECONDS, self._release, stream)

    def stop(self) -> None:
        """End all streams; what they hold, and what those held that left a moment ago, goes back at once."""
        self._stopping.set()
        for stream, release_later in list(self._leaving.items()):
            release_later.cancel()
            self._release(stream)
        for stream in list(self._open.values()):
            stream.cut(Unavailable("the server is stopping"))

    def _release(self, stream: _Stream) -> None:
        self._leaving.pop(stream, None)
        broker = self.resources.broker
        with broker.lock:
            queue = broker.catalog.subscriptions.get(stream.key)
            if queue is None or queue.number != stream.number or queue.policy.exactly_once:
                return
            if not self._stopping.is_set() and stream.client_id and self._clients[stream.client]:
                return
            release(broker, queue, stream.consumer, broker.clock.now())


class _Stream:
    """One stream."""

    def __init__(  # noqa: PLR0917  # the parts of one stream
        self,
        streams: Streams,
        consumer: str,
        opening: StreamOpening,
        read: Read,
        write: Write,
        still: Callable[[], object],
    ) -> None:
        self._streams = streams
        self._resources, self._subscriber, self._inspection = streams.resources, streams.subscriber, streams.inspection
        self._aio, self._broker = self._resources.aio, self._resources.broker
        self._opening = opening
        self._read, self._write = read, write
        self._still, self._asked = still, monotonic()
        self.consumer = consumer
        self.client_id = opening.client_id
        self.key = self._resources.key(opening.subscription)
        self.client = (opening.client_id, self.key)
        self.number = 0
        self._ack_deadline = opening.ack_deadline
        self._bell = Bell()
        self._answers: list[Any] = []
        """Confirmations and signs of life that wait to be written."""
        self._waiting = 0
        """Bytes of those."""
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._properties = b""
        """What every answer says of the subscription: Google's client forgets what one answer does not repeat."""
        self._task: asyncio.Task[Any] | None = None
        self._is_writing = False
        self._failure: Exception | None = None
        self._is_over = False

    def end(self, failure: Exception | None) -> None:
        """Let the stream end, with an error or because its client has left."""
        self._failure = self._failure or failure
        self._is_over = True
        self._bell.ring()

    def cut(self, failure: Exception) -> None:
        """Let the stream end now, also when its client takes nothing off the wire."""
        self.end(failure)
        if self._is_writing and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Deliver until the stream is over."""
        broker, ring = self._broker, self._bell.ring
        with broker.lock:
            queue = broker.catalog.subscription(self.key)
            self._resources.check_pulled(queue)
            self.number = queue.number
            broker.bells.hang(self.number, ring)
        reader = asyncio.create_task(self._listen())
        try:
            with self._resources.in_use(self.number):
                await self._deliver()
        finally:
            reader.cancel()
            with broker.lock:
                broker.bells.take_down(self.number, ring)

    async def _listen(self) -> None:
        """Take the client's requests."""
        try:
            await self._apply(self._opening.change)
            while (data := await self._read()) is not None:
                change = changed(messages.StreamingPullRequest.FromString(data))
                if change:
                    await self._apply(change)
                else:
                    self._answer(messages.StreamingPullResponse())
                # A client that asks and does not read is heard no further; its requests then wait on its own side.
                await self._has_room.wait()
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends the stream, and `run` raises it
            self.end(error)
        else:
            self.end(None)

    async def _apply(self, change: StreamChange) -> None:
        if change.ack_deadline is not None:
            self._ack_deadline = change.ack_deadline
        answer = messages.StreamingPullResponse()
        is_exact = False
        if change.ack_ids:
            ack_ids = list(change.ack_ids)
            failed, queue, _ = self._subscriber.settle_now(self.key, ack_ids, Queue.ack)
            is_exact = queue.policy.exactly_once
            failed = self._subscriber.confirmed(queue, ack_ids, failed)
            answer.acknowledge_confirmation.ack_ids.extend(_without(ack_ids, failed))
            answer.acknowledge_confirmation.invalid_ack_ids.extend(failed)
        by_span: dict[int, list[str]] = {}
        for ack_id, span in change.deadlines:
            by_span.setdefault(span, []).append(ack_id)
        for span, ack_ids in by_span.items():
            failed, queue, _ = self._subscriber.settle_now(self.key, ack_ids, deadline_verb(span))
            is_exact = queue.policy.exactly_once
            answer.modify_ack_deadline_confirmation.ack_ids.extend(_without(ack_ids, failed))
            answer.modify_ack_deadline_confirmation.invalid_ack_ids.extend(failed)
        if is_exact:
            await self._aio.durable()
            self._answer(answer)

    def _answer(self, answer: Any) -> None:
        self._answers.append(answer)
        self._waiting += answer.ByteSize()
        if len(self._answers) >= MAX_ANSWERS or self._waiting >= MAX_BYTES:
            self._has_room.clear()
        self._bell.ring()

    async def _deliver(self) -> None:
        """Write deliveries as they become possible, and answers as they come up."""
        self._task = asyncio.current_task()
        while True:
            self._bell.clear()
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                return
            if monotonic() - self._asked >= SECOND:
                # A token that was revoked or has run out ends the stream before its next delivery.
                self._still()
                self._asked = monotonic()
            queue, leases = self._grant()
            properties = _properties(queue.policy.exactly_once, queue.policy.ordered)
            if properties != self._properties:
                self._properties = properties
                self._answers.insert(0, messages.StreamingPullResponse())
            answers, self._answers = self._answers, []
            for answer in answers:
                await self._send(answer.SerializeToString())
            if not self._answers:
                self._waiting = 0
                self._has_room.set()
            if leases:
                ready = await self._inspection.deliver(queue, leases, MAX_BYTES)
                if ready:
                    await self._send(self._encoded(queue, ready))
                if len(ready) < FEW:
                    await asyncio.sleep(GATHER_SECONDS)
            elif queue.absent is not None:
                await self._aio.call(self._broker.load, queue)
            elif not answers:
                await self._bell.wait()

    async def _send(self, answer: bytes) -> None:
        self._is_writing = True
        await self._write(answer + self._properties)
        self._is_writing = False

    def _grant(self) -> tuple[Queue, list[Lease]]:
        """Lease what there is room for."""
        now = self._aio.advance()
        with self._broker.lock:
            queue, leases = self._broker.grant(
                Catalog.subscription,
                self.key,
                MAX_MESSAGES,
                now,
                ack_deadline=self._ack_deadline,
                consumer=self.consumer,
                prefetch=self._opening.max_messages,
                prefetch_bytes=self._opening.max_bytes,
                max_bytes=MAX_BYTES,
            )
            if queue.number != self.number:
                # It was deleted and made again: this stream was opened on the one that is gone.
                release(self._broker, queue, self.consumer, now)
                raise SubscriptionNotFound(str(self._opening.subscription))
            self._resources.check_pulled(queue)
        return queue, leases

    @staticmethod
    def _encoded(queue: Queue, leases: list[Lease]) -> bytes:
        with_attempt = queue.policy.dead_letter_topic is not None
        return b"".join(wire.received(queue.number, queue.stream, leases, with_attempt=with_attempt))


@cache
def _properties(exactly_once: bool, ordered: bool) -> bytes:
    """What the client must know of its subscription, as a field that can be put behind any answer."""
    answer = messages.StreamingPullResponse()
    answer.subscription_properties.exactly_once_delivery_enabled = exactly_once
    answer.subscription_properties.message_ordering_enabled = ordered
    data: bytes = answer.SerializeToString()
    return data


def _without(ack_ids: list[str], failed: list[str]) -> list[str]:
    gone = set(failed)
    return [ack_id for ack_id in ack_ids if ack_id not in gone] if gone else ack_ids
