"""Batches that a program outside of the broker delivers: planned, delivered by the program, and settled once.

    plan ──> planned ──settle──> settled ──> plan ──> …
              │   └──the deadline passes──> everything is redelivered, and the next plan is another batch
                            └──planned again: the same messages

A query has one batch at a time, with increasing numbers. Messages that a settlement does not name stay leased and are the first
of the next batch, so the order of a group is kept over any number of batches. A restart of either side changes nothing: the batch
is what the query's identity has leased, and each slice of a batch is settled in one commit with the records of its attempts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from penstock.broker.batches import SLICE, Attempt, BatchConsumer, Ending
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import PLAIN, DeliveryRules
from penstock.broker.documents import Documents
from penstock.errors import CorruptLog, FailedPrecondition, PermissionDenied, ResourceExhausted
from penstock.log import write_ledger
from penstock.log.log import QUEUE
from penstock.log.write_ledger import Ledger
from penstock.log.writes import ANY_WRITER, Writer
from penstock.values.lease import Lease

PREFIX = "batches/"
"""The prefix of the names of the documents."""
MAX_QUERIES = 10_000
CARRIED_FACTOR = 4
"""A query gets no new messages while it has leased this many times the rows of a batch."""
_NEW = 1 << 60
"""The base of the positions of messages that were not in the previous batch."""
_LOCKS = 64


class Carried(msgspec.Struct, array_like=True, frozen=True):
    """A message that was in an earlier batch, and was not settled with it."""

    offset: int
    due: int = 0
    """When it may be retried."""
    attempts: int = 0
    failures: int = 0
    """The number of its attempts that count."""


class QueryState(msgspec.Struct, array_like=True, frozen=True):
    """The last batch of a query. Stored as a document: fields are only ever added at the end, with a default."""

    ledger: Ledger
    source: str
    """`queue:NAME` or `subscription:NAME`, with the broker's name."""
    queue: int
    stream: int
    carried: tuple[Carried, ...] = ()
    """In the order of their positions."""


class Source(NamedTuple):
    """A work queue or a subscription, by its name in the broker."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Planned(NamedTuple):
    """A batch. Without messages there is nothing to deliver, and no batch was planned."""

    batch: int
    leases: Sequence[Lease]
    fresh: int
    """The number of messages that were in no batch of the query before."""
    due: int
    """When the first of them may be delivered."""
    is_repeat: bool


class PlannedMessage(NamedTuple):
    """A message of a batch."""

    lease: Lease
    position: int
    """Its position in the order of the queue."""
    carried: Carried | None


class Settlement(NamedTuple):
    """How a batch ends."""

    endings: Sequence[Ending]
    """In the order in which they are applied."""
    kept: Mapping[int, Carried]
    """The state of messages that stay leased by the query."""
    attempts: Sequence[Attempt] = ()
    router_name: str = ""
    """The name of the queue in the configuration of the router that tried to deliver its messages."""


class Settled(NamedTuple):
    """The result of a settlement."""

    settled: int
    missed: int
    """Messages that were named, but not leased any more."""
    carried: int
    is_repeat: bool


class LeasedBatches:
    """The batches of all queries of a broker. Every method may wait for the disk. Thread-safe."""

    def __init__(self, broker: Broker, rules: DeliveryRules = PLAIN) -> None:
        self._broker = broker
        self._rules = rules
        self._states = Documents(broker, PREFIX)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def plan(
        self,
        query: str,
        source: Source,
        *,
        rows: int,
        max_bytes: int,
        hold_for: int,
        batch: int | None = None,
        caller: Writer = ANY_WRITER,
    ) -> Planned:
        """The unsettled batch of a query, or a new one of at most `rows` new messages.

        `hold_for`: microseconds until its messages are redelivered, counted from this call. `batch`: the expected number.
        """
        with self._lock_of(query):
            state = self._checked(query, caller)
            if state is None:
                self._make_room()
            elif state.source != str(source):
                raise FailedPrecondition(
                    f"query {query!r} takes from {state.source}, and {source} is asked for", hint="use a name for each of them"
                )
            consumer = self._consumer(query, source, hold_for)
            consumer.attach()
            held = consumer.held()
            last = -1 if state is None else state.ledger.batch
            is_open = state is not None and not state.ledger.is_finished and state.queue == consumer.number and bool(held)
            number = last if is_open else last + 1
            if batch is not None and batch != number:
                what = f"batch {last} is not settled" if is_open and batch > last else f"the next batch is {number}"
                raise FailedPrecondition(f"batch {batch} of query {query!r} cannot be planned: {what}")
            known = self._carried(state, consumer)
            if not is_open:
                # Messages whose leases expired count as new if they are leased again now.
                known = {lease.offset: known.get(lease.offset, Carried(lease.offset)) for lease in held}
                consumer.fill(min(rows, CARRIED_FACTOR * rows - len(held)), max_bytes)
                held = consumer.held()
            if held:
                consumer.extend(hold_for)  # one deadline for all: a batch expires as a whole
            if held and not is_open:
                ledger = self._ledger(number, source, rows=len(held), done=0, caller=caller)
                self._keep(query, QueryState(ledger, str(source), consumer.number, consumer.queue.stream, tuple(known.values())))
            fresh = sum([lease.offset not in known for lease in held])
            due = 0 if fresh or not held else min(known[lease.offset].due for lease in held)
            return Planned(number, held, fresh, due, is_open)

    def messages(self, query: str, batch: int, start: int, stop: int, *, caller: Writer = ANY_WRITER) -> list[PlannedMessage]:
        """The messages of a batch between two offsets, in the order of their offsets."""
        found = self._messages(*self._current(query, batch, caller))
        return [message for message in found if start <= message.lease.offset < stop]

    def source(self, query: str) -> tuple[str, int]:
        """The name of the queue of a query's last batch, and the number of its stream; 0 if there is no batch."""
        state = self._checked(query, ANY_WRITER)
        return ("", 0) if state is None else (_source(state.source).name, state.stream)

    def extend(self, query: str, batch: int, hold_for: int, *, caller: Writer = ANY_WRITER) -> int:
        """Extend the leases of a batch to `hold_for` microseconds from now; returns the number of leased messages."""
        with self._lock_of(query):
            return self._current(query, batch, caller)[1].extend(hold_for)

    def unkept(self, query: str, batch: int, offsets: Collection[int], *, caller: Writer = ANY_WRITER) -> list[Lease]:
        """The messages of a batch, out of `offsets`, that would be lost as dead letters, because their queue keeps none."""
        _, consumer = self._current(query, batch, caller)
        policy = consumer.queue.policy
        if policy.dead_letter_topic is not None or policy.dead_letter_size:
            return []
        return [lease for lease in consumer.held() if lease.offset in offsets]

    def settle(self, query: str, batch: int, settlement: Settlement, *, caller: Writer = ANY_WRITER) -> Settled:
        """Settle a batch, once. Messages that are not named stay leased, and are the first of the next batch.

        A call that failed in the middle can be repeated, also with other endings: messages that were settled stay so.
        """
        with self._lock_of(query):
            state = self._checked(query, caller)
            if state is None or batch > state.ledger.batch:
                raise FailedPrecondition(f"batch {batch} of query {query!r} was not planned", hint="ask for its leases first")
            if batch < state.ledger.batch or state.ledger.is_finished:
                return Settled(0, 0, 0, is_repeat=True)
            source = _source(state.source)
            consumer = self._consumer(query, source, 0)
            consumer.attach()
            order = {message.lease.offset: message.position for message in self._messages(state, consumer)}
            by_offset: dict[int, list[Attempt]] = {}
            for attempt in settlement.attempts:
                by_offset.setdefault(attempt.offset, []).append(attempt)
            named = settled = 0
            for offsets, verb in settlement.endings:
                named += len(offsets)
                for first in range(0, len(offsets), SLICE):
                    part = offsets[first : first + SLICE]
                    tries = [one for offset in part for one in by_offset.get(offset, ())]
                    settled += consumer.end([(part, verb)], tries, source=settlement.router_name)
            before = self._carried(state, consumer)
            left = sorted((lease.offset for lease in consumer.held()), key=lambda offset: order.get(offset, _NEW + offset))
            carried = tuple(settlement.kept.get(offset) or before.get(offset) or Carried(offset) for offset in left)
            ledger = self._ledger(batch, source, rows=state.ledger.rows, done=state.ledger.rows, caller=caller)
            settled_state = QueryState(ledger, state.source, state.queue, state.stream, carried)
            tries = [one for offset in left for one in by_offset.get(offset, ())]
            consumer.end((), tries, source=settlement.router_name, document=(PREFIX + query, _encode(settled_state)))
            consumer.durable()
            return Settled(settled, named - settled, len(carried), is_repeat=False)

    def release(self, query: str, *, caller: Writer = ANY_WRITER) -> int:
        """Requeue all messages that a query has leased, without counting an attempt; returns how many."""
        with self._lock_of(query):
            state = self._checked(query, caller)
            if state is None:
                return 0
            source = _source(state.source)
            consumer = self._consumer(query, source, 0)
            consumer.attach()
            held = len(consumer.held())
            consumer.release()
            ledger = self._ledger(state.ledger.batch, source, rows=held, done=held, caller=caller)
            self._keep(query, QueryState(ledger, state.source, state.queue, state.stream))
            return held

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _current(self, query: str, batch: int, caller: Writer) -> tuple[QueryState, BatchConsumer]:
        """The planned batch of a query. FailedPrecondition if it is another one, was settled, or has expired."""
        state = self._checked(query, caller)
        if state is not None and state.ledger.batch == batch and not state.ledger.is_finished:
            consumer = self._consumer(query, _source(state.source), 0)
            consumer.attach()
            if consumer.number == state.queue:
                return state, consumer
        raise FailedPrecondition(f"batch {batch} of query {query!r} is not planned, or it was settled")

    def _messages(self, state: QueryState, consumer: BatchConsumer) -> list[PlannedMessage]:
        carried = self._carried(state, consumer)
        places = {offset: place for place, offset in enumerate(carried)}
        is_keyed = consumer.queue.policy.ordered
        return [
            PlannedMessage(lease, places.get(lease.offset, _position(lease, is_keyed=is_keyed)), carried.get(lease.offset))
            for lease in consumer.held()
        ]

    def _carried(self, state: QueryState | None, consumer: BatchConsumer) -> dict[int, Carried]:
        """The messages carried over into the batch, by offset and in order."""
        if state is None or state.queue != consumer.number:
            return {}
        return {one.offset: one for one in state.carried}

    def _consumer(self, query: str, source: Source, hold_for: int) -> BatchConsumer:
        is_queue = source.kind == QUEUE
        return BatchConsumer(
            self._broker,
            Catalog.work_queue if is_queue else Catalog.subscription,
            source.name,
            PLAIN if is_queue else self._rules,
            identity=PREFIX + query,
            hold_for=hold_for,
        )

    def _ledger(self, batch: int, source: Source, *, rows: int, done: int, caller: Writer) -> Ledger:
        now = self._broker.clock.now()
        return Ledger(write_ledger.VERSION, batch, now, "", rows, done, owner=caller.token_id, streams=(source.name,))

    def _checked(self, query: str, caller: Writer) -> QueryState | None:
        """The state of a query, if the caller may continue it."""
        body = self._states.get(query)
        if body is None:
            return None
        try:
            state = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise CorruptLog("the catalogue", f"document {PREFIX + query!r}", str(error)) from error
        if not write_ledger.may_continue(state.ledger, caller.token_id, caller.may_publish):
            raise PermissionDenied("consume", f"the queue of query {query.rpartition('/')[2]}")
        return state

    def _keep(self, query: str, state: QueryState) -> None:
        self._states.keep(query, _encode(state))

    def _make_room(self) -> None:
        """If there are too many queries, remove those that have been unused for very long."""
        known = self._states.all()
        if len(known) < MAX_QUERIES:
            return
        now = self._broker.clock.now()
        silent = [name for name, body in known.items() if write_ledger.is_forgotten(name, _decoder.decode(body).ledger, now)]
        for name in silent:
            self._states.drop(name)
        if not silent:
            raise ResourceExhausted(
                f"{len(known)} queries lease batches, which is the maximum", hint="use the same name for every run of a query"
            )

    def _lock_of(self, query: str) -> threading.Lock:
        return self._locks[hash(query) % _LOCKS]


def _source(text: str) -> Source:
    kind, _, name = text.partition(":")
    return Source(kind, name)


def _position(lease: Lease, *, is_keyed: bool) -> int:
    """The position of a message that was not carried over: by priority and age, or with ordering keys only by age."""
    urgency = 0 if is_keyed else (15 - lease.message.priority) << 50
    return _NEW + urgency + lease.offset


_encode: Callable[[QueryState], bytes] = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(QueryState)
