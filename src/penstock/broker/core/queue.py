"""The state machine of a message in one queue. Nothing else changes the state of a message.

    publish ──> waiting ──lease──> leased ──ack────────────────────> settled
                 ▲  ▲ │              │ │
                 │  │ └─ttl──┐       │ └─nack, expiry; attempts left ─> delayed (backoff) ──due──┐
                 │  │        ▼       │                                                           │
                 │  └──── dead <─────┘  last attempt, nack without requeue, ttl                  │
                 │  redrive │                                                                    │
                 │          └─> the queue's own list, or another topic                           │
                 └───────────────────────────────────────────────────────────────────────────────┘

A subscription is a queue fed by a topic; a work queue is fed directly. *Waiting* is one of: ready (deliverable now, see `ready`),
behind its key's head (see `ordering`), or delayed until an instant. Every command takes `now`, changes the state and returns
the events that say what changed; an instant is over when `now >= instant`.

The messages themselves lie in the stream's `pages`. Where one is needed and not resident, the command stops before it, having
done the rest, and leaves its offset in `absent`: the shell reads it from the log and calls again.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TypeVar

import msgspec

from penstock.broker.core import events
from penstock.broker.core.events import Event, Ranges, column
from penstock.broker.core.filter import Filter
from penstock.broker.core.image import Counters, DeadLetterEntry, QueueImage, Trace, entries, holds
from penstock.broker.core.leases import Consumer, Lease, Leases
from penstock.broker.core.message import Batch, StoredMessage
from penstock.broker.core.outcome import EXPLICIT_NACK, MAX_ATTEMPTS, TTL_EXPIRED, Burial, Outcome, Piece, Why
from penstock.broker.core.pages import Pages
from penstock.broker.core.policy import Overflow, Policy
from penstock.broker.core.ready import merge
from penstock.broker.core.waiting import Waiting
from penstock.durations import FOREVER

E = TypeVar("E", bound=Event)

MAX_IDLE_CONSUMERS = 10_000


class Queue:
    """One subscription or work queue."""

    __slots__ = (
        "_consumers",
        "_filter",
        "_leases",
        "_mortal",
        "_mortal_heap",
        "_pages",
        "_retire_at",
        "_traces",
        "_waiting",
        "absent",
        "backlog",
        "counters",
        "created_at",
        "dead",
        "dead_letter_open",
        "detached",
        "epoch",
        "high",
        "name",
        "number",
        "paused",
        "policy",
        "scheduled",
        "size",
        "spec",
        "stream",
    )

    def __init__(self, image: QueueImage, pages: Pages) -> None:
        self.number = image.number
        self.name = image.name
        self.stream = image.stream
        self.created_at = image.created_at
        self.policy: Policy = image.policy
        self.spec = image.spec
        self.detached = image.detached
        self.scheduled = FOREVER
        """When the shell will tick this queue; kept here so that it is found without a look-up."""
        self.dead_letter_open = True
        """Whether somebody would receive a dead letter in the topic; the shell keeps it true to life."""
        self.absent: int | None = None
        self._pages = pages
        self._filter = Filter.parse(image.policy.filter) if image.policy.filter else None
        self.restore(image, (), 0)

    def offer(self, first: int, batch: Batch, now: int) -> events.Dropped | None:
        """Take newly published messages. What the filter refuses is settled; what finds no room is dropped, where policy says so."""
        policy, count = self.policy, len(batch.messages)
        self.high = first + count
        bounded = policy.overflow == Overflow.DISCARD
        fits = not bounded or (
            self.backlog + count <= policy.capacity_messages and self.size + batch.size <= policy.capacity_bytes
        )
        if policy.retention is not None:
            self._retire_at = min(self._retire_at, batch.messages[0].publish_at + policy.retention)
        if fits and batch.priority is not None and self._filter is None and not (policy.ordered and batch.keyed):
            self._waiting.add_run(batch.priority, first, self.high)
            self.backlog += count
            self.size += batch.size
            return None
        dropped: Ranges = []
        for offset, message in enumerate(batch.messages, first):
            if self._filter is not None and not self._filter.matches(message.attributes or {}):
                continue
            if bounded and self._is_full(0, 0):
                dropped.append((offset, offset + 1))
            else:
                self._admit(offset, message, _later(message.deliver_at, now), mortal=True)
        return self._noted(events.Dropped(self.number, now, "overflow", merge(dropped))) if dropped else None

    def has_room(self, batch: Batch, count: int, size: int) -> bool:
        """Whether every message of a batch may enter, given `count` messages of `size` bytes that are on their way."""
        if self.policy.overflow != Overflow.REJECT or self.detached:
            return True
        for message in batch.messages:
            if self._filter is None or self._filter.matches(message.attributes or {}):
                if self._is_full(count, size):
                    return False
                count += 1
                size += message.size
        return True

    def has_space(self) -> bool:
        """Whether one more message would be taken."""
        return self.policy.overflow == Overflow.SPILL or not self._is_full(0, 0)

    def redrive(self, letters: list[tuple[int, StoredMessage]], now: int) -> events.Redriven:
        """Put dead letters back as new: no attempts, no time to live, at their place in age."""
        self.epoch += 1
        for offset, message in letters:
            self.dead.pop(offset, None)
            self._traces[offset] = Trace(immortal=True)
            self._admit(offset, message, None, mortal=False)
        offsets = [offset for offset, _ in letters]
        published = column([message.publish_at for _, message in letters])
        return events.Redriven(self.number, now, offsets, published, self.epoch)

    def lease(
        self, now: int, want: int, *, ack_deadline: int | None = None, consumer: str | None = None, prefetch: int | None = None
    ) -> list[Lease]:
        """Hand out up to `want` messages, most urgent and oldest first, as far as flow control and prefetch allow."""
        self.absent = None
        policy, leases = self.policy, self._leases
        if self.paused or self.detached:
            return []
        if policy.flow_messages is not None:
            want = min(want, policy.flow_messages - len(leases))
        holder = None
        if consumer is not None:
            holder = self._consumer(consumer)
            limit = prefetch if prefetch is not None else policy.prefetch
            if limit is not None:
                want = min(want, limit - holder.in_flight)
        if want <= 0:
            return []
        deadline = now + (policy.ack_deadline if ack_deadline is None else ack_deadline)
        budget = None if policy.flow_bytes is None else policy.flow_bytes - leases.size
        granted: list[Lease] = []
        for level in self._waiting.levels():
            while level.count and len(granted) < want and self.absent is None:
                run = level.run(want - len(granted)) if budget is None else range(0)
                if run:
                    messages = self._pages.span(run)
                    if len(messages) < len(run):
                        self.absent = run.start + len(messages)
                    level.skip(len(messages))
                else:
                    offset = level.first()
                    assert offset is not None, "a level's count is the number of its offsets"
                    message = self._pages.get(offset)
                    if budget is not None and budget <= 0:
                        break
                    if message is None:
                        self.absent = offset
                        break
                    level.pop()
                    run, messages = range(offset, offset + 1), [message]
                    if budget is not None:
                        budget -= message.size
                granted += self._deliveries(run, messages, deadline, holder)
        if granted:
            leases.grant(granted, deadline, sum([lease.message.size for lease in granted]))
            if holder is not None:
                holder.in_flight += len(granted)
        return granted

    def leased(self, leases: list[Lease], now: int) -> events.Leased:
        """The event of a delivery."""
        first = leases[0]
        return self._noted(
            events.Leased(
                self.number,
                now,
                [lease.offset for lease in leases],
                column([lease.message.publish_at for lease in leases]),
                column([lease.attempt for lease in leases]),
                first.epoch,
                first.deadline,
                first.consumer.consumer_id if first.consumer else None,
            )
        )

    def find(self, offset: int, attempt: int, epoch: int) -> Lease | None:
        """The live lease of exactly this delivery."""
        lease = self._leases.get(offset)
        return lease if lease is not None and lease.attempt == attempt and lease.epoch == epoch else None

    def lease_of(self, offset: int) -> Lease | None:
        """The live lease of a message, whoever holds it."""
        return self._leases.get(offset)

    def has_expired(self, offset: int) -> bool:
        """Whether the last lease of an unsettled or dead message ran out."""
        last = self._traces.get(offset) or self.dead.get(offset)
        return last is not None and last.cause == "expired"

    def extend(self, lease: Lease, deadline: int, now: int) -> events.Extended:
        """Give a live lease another deadline."""
        self._leases.move(lease, deadline)
        return events.Extended(self.number, now, [lease.offset], lease.message.publish_at, deadline)

    def ack(self, leases: list[Lease], now: int) -> events.Acked:
        """Settle live leases for good."""
        ordered, size = self.policy.ordered, 0
        for lease in leases:
            self._leases.end(lease)
            message = lease.message
            size += message.size
            if self._traces:
                self._traces.pop(lease.offset, None)
            if self._mortal:
                self._mortal.pop(lease.offset, None)
            if ordered and message.key:
                self._waiting.settle(message.key, lease.offset)
        self.backlog -= len(leases)
        self.size -= size
        offsets = [lease.offset for lease in leases]
        published = column([lease.message.publish_at for lease in leases])
        return self._noted(events.Acked(self.number, now, offsets, published, column([lease.attempt for lease in leases])))

    def nack(self, leases: list[Lease], now: int, *, requeue: bool = True, error: str | None = None) -> Outcome:
        """End live leases without success: back to the queue, or dead."""
        outcome = Outcome()
        for lease in leases:
            self._fail(lease, now, now, "nacked", requeue=requeue, error=error, outcome=outcome)
        return outcome

    def release(self, consumer: str, now: int) -> events.Returned | None:
        """Give back everything a consumer holds, without counting the attempts, and forget the consumer."""
        holder = self._consumers.pop(consumer)
        leases = sorted(lease for lease in self._leases.live() if lease.consumer is holder) if holder.in_flight else []
        if not leases:
            return None
        # The next delivery has the same attempt number; the epoch keeps the old ack ids from fitting it.
        self.epoch += 1
        for lease in leases:
            self._leases.end(lease)
            self._return(lease, lease.attempt - 1, "released", None, None)
        attempts = [lease.attempt - 1 for lease in leases]
        offsets, published = [lease.offset for lease in leases], column([lease.message.publish_at for lease in leases])
        return events.Returned(self.number, now, offsets, published, "released", column(attempts), now)

    def tick(self, now: int) -> Outcome:
        """Do everything that has become due: leases, delays, times to live, retention."""
        outcome = Outcome()
        self.absent = None
        for lease in self._leases.due(now):
            self._fail(lease, lease.deadline, now, "expired", requeue=True, error=None, outcome=outcome)
        self._waiting.wake(now)
        while self._mortal_heap and self._mortal_heap[0][0] <= now:
            expires_at, offset = self._mortal_heap[0]
            # A leased message outlives its time; that is settled when the lease ends.
            if self._mortal.get(offset) == expires_at and self._leases.get(offset) is None:
                message = self._pages.get(offset)
                if message is None:
                    self.absent = offset
                    return outcome
                trace = self._traces.get(offset) or Trace()
                self._remove(offset, message)
                self._die(offset, message, TTL_EXPIRED, "ttl", trace.attempts, trace.error, now, outcome)
            heappop(self._mortal_heap)
        if now >= self._retire_at:
            self._retire(now, outcome)
        return outcome

    def next_due(self) -> int:
        """The next instant at which `tick` has something to do."""
        due = min(self._retire_at, self._waiting.next_due())
        deadline = self._leases.next_deadline()
        if deadline is not None and deadline < due:
            due = deadline
        while self._mortal_heap and self._mortal_heap[0][0] < due:
            expires_at, offset = self._mortal_heap[0]
            if self._mortal.get(offset) == expires_at and self._leases.get(offset) is None:
                return expires_at
            heappop(self._mortal_heap)
        return due

    def purge(self, now: int) -> events.Dropped | None:
        """Remove everything that waits; leases go on."""
        ranges = self._waiting.ranges()
        if not ranges:
            return None
        event = events.Dropped(self.number, now, "purge", ranges)
        self._empty()
        return self._noted(event)

    def detach(self) -> None:
        """The topic is gone: nothing waits, nothing is leased, nothing comes."""
        self.detached = True
        self._leases = Leases()
        self._empty()
        for consumer in self._consumers.values():
            consumer.in_flight = 0

    def pause(self, paused: bool, now: int) -> events.Paused:
        """Stop or resume handing out; everything else goes on."""
        self.paused = paused
        return events.Paused(self.number, now, paused)

    def purge_dead(self, now: int) -> events.DeadRemoved | None:
        """Empty the list of dead letters; they stay in the log."""
        letters = list(self.dead.values())
        if not letters:
            return None
        self.dead.clear()
        offsets, published = [letter.offset for letter in letters], column([letter.publish_at for letter in letters])
        return events.DeadRemoved(self.number, now, offsets, published, "purged")

    @property
    def in_flight(self) -> int:
        return len(self._leases)

    @property
    def in_flight_bytes(self) -> int:
        return self._leases.size

    @property
    def delayed(self) -> int:
        return self._waiting.delayed

    @property
    def ready(self) -> int:
        """Waiting and not delayed: deliverable, or behind the head of their key."""
        return self.backlog - len(self._leases) - self._waiting.delayed

    def position(self, priority: int) -> int:
        """The place among the ready of a message of this priority that has just come."""
        return self._waiting.ahead(priority)

    def consumers(self) -> list[str]:
        """Who has consumed and was not released."""
        return list(self._consumers)

    def waiting(self) -> Ranges:
        """Every unsettled offset that is not leased."""
        return self._waiting.ranges()

    def unsettled(self) -> Ranges:
        """Every unsettled offset."""
        return merge([*self._waiting.ranges(), *((lease.offset, lease.offset + 1) for lease in self._leases.live())])

    def oldest(self) -> int | None:
        """The oldest unsettled offset."""
        ranges = self.unsettled()
        return ranges[0][0] if ranges else None

    def oldest_waiting(self) -> int | None:
        """The oldest offset that is still to be delivered."""
        return self._waiting.oldest()

    def is_waiting(self, offset: int) -> bool:
        """Whether a message whose lease has just ended came back."""
        return offset in self._traces

    def is_unsettled(self, offset: int) -> bool:
        """Whether a message is still to be delivered or settled here."""
        return holds(self.unsettled(), offset)

    def attempts(self, offset: int) -> int:
        """How often a waiting message was delivered so far."""
        trace = self._traces.get(offset)
        return trace.attempts if trace is not None else 0

    def upcoming(self, most: int) -> list[int]:
        """The offsets that would be delivered next, in order."""
        return self._waiting.upcoming(most)

    def explain(self, offset: int, message: StoredMessage) -> Why | None:
        """Why an unsettled message is not deliverable now; None when it is."""
        lease = self._leases.get(offset)
        if lease is not None:
            return Why("leased", until=lease.deadline)
        key = self._key(message)
        if key and (head := self._waiting.head(key)) != offset:
            return Why("key_blocked", by=head)
        due = self._waiting.due(offset)
        if due is not None:
            return Why("delayed", until=due)
        if self.paused:
            return Why("paused")
        policy, leases = self.policy, self._leases
        if (policy.flow_messages is not None and len(leases) >= policy.flow_messages) or (
            policy.flow_bytes is not None and leases.size >= policy.flow_bytes
        ):
            return Why("flow_limit")
        return None

    def image(self) -> QueueImage:
        """The state as plain data."""
        traces = {offset: msgspec.structs.replace(trace, due=self._waiting.due(offset)) for offset, trace in self._traces.items()}
        for lease in self._leases.live():
            trace = traces.setdefault(lease.offset, Trace())
            trace.attempts, trace.deadline, trace.epoch = lease.attempt, lease.deadline, lease.epoch
            trace.consumer = lease.consumer.consumer_id if lease.consumer else None
        return QueueImage(
            self.number,
            self.name,
            self.stream,
            self.created_at,
            self.policy,
            self.spec,
            self.high,
            self.unsettled(),
            traces,
            dict(self.dead),
            msgspec.structs.replace(self.counters),
            list(self._consumers),
            self.epoch,
            self.paused,
            self.detached,
        )

    def restore(self, image: QueueImage, pieces: Iterable[Piece], now: int) -> None:
        """Take over the state of an image; `pieces` cover its unsettled offsets in order, each touched one with its message."""
        self.counters: Counters = image.counters
        self.dead: dict[int, DeadLetterEntry] = dict(image.dead)
        self.epoch = image.epoch
        self.paused = image.paused
        self.high = image.high
        self.backlog = 0
        """Every unsettled message: ready, delayed, waiting for its key, leased."""
        self.size = 0
        """Bytes of the backlog."""
        self._waiting = Waiting()
        self._leases = Leases()
        self._mortal: dict[int, int] = {}
        self._mortal_heap: list[tuple[int, int]] = []
        self._traces: dict[int, Trace] = {}
        self._consumers = {name: Consumer(name) for name in image.consumers}
        for piece in pieces:
            if piece.messages is None:
                self._waiting.add_run(piece.priority, piece.first, piece.first + piece.count)
                self.backlog += piece.count
                self.size += piece.size
                continue
            for offset, message in enumerate(piece.messages, piece.first):
                self._revive(offset, message, image, now)
        self._retire_at = 0 if self.backlog and self.policy.retention is not None else FOREVER

    def _revive(self, offset: int, message: StoredMessage, image: QueueImage, now: int) -> None:
        trace = image.traces.get(offset)
        if trace is None:
            if offset < image.high or self._filter is None or self._filter.matches(message.attributes or {}):
                self._admit(offset, message, _later(message.deliver_at, now), mortal=True)
            return
        if trace.deadline is None:
            self._traces[offset] = Trace(trace.attempts, trace.error, trace.cause, trace.immortal)
            self._admit(offset, message, _later(trace.due, now), mortal=not trace.immortal)
            return
        if trace.attempts > 1 or trace.immortal:
            self._traces[offset] = Trace(trace.attempts - 1, trace.error, trace.cause, trace.immortal)
        self.backlog += 1
        self.size += message.size
        self._waiting.hold(self._key(message), offset, message.priority)
        if not trace.immortal:
            self._mortalize(offset, message)
        holder = None
        if trace.consumer is not None:
            holder = self._consumer(trace.consumer)
            holder.in_flight += 1
        lease = Lease(trace.deadline, offset, trace.attempts, trace.epoch, message, holder)
        self._leases.grant([lease], trace.deadline, message.size)

    def _admit(self, offset: int, message: StoredMessage, due: int | None, *, mortal: bool) -> None:
        self.backlog += 1
        self.size += message.size
        if mortal:
            self._mortalize(offset, message)
        self._waiting.add(offset, message.priority, self._key(message), due)

    def _mortalize(self, offset: int, message: StoredMessage) -> None:
        if message.expires_at is not None:
            self._mortal[offset] = message.expires_at
            heappush(self._mortal_heap, (message.expires_at, offset))

    def _deliveries(self, run: range, messages: list[StoredMessage], deadline: int, holder: Consumer | None) -> list[Lease]:
        epoch, traces = self.epoch, self._traces
        pairs = zip(run, messages, strict=False)
        if not traces:
            return [Lease(deadline, offset, 1, epoch, message, holder) for offset, message in pairs]
        return [
            Lease(deadline, offset, traces[offset].attempts + 1 if offset in traces else 1, epoch, message, holder)
            for offset, message in pairs
        ]

    def _fail(self, lease: Lease, at: int, now: int, cause: str, *, requeue: bool, error: str | None, outcome: Outcome) -> None:
        """End a lease without success at the instant `at`, noticed `now`."""
        self._leases.end(lease)
        offset, message, attempt = lease.offset, lease.message, lease.attempt
        target = self.policy.dead_letter_topic
        reason = self._reason_to_die(lease, at, requeue)
        if reason is not None and target is not None and not self.dead_letter_open:
            stranded = events.Stranded(self.number, now, [offset], message.publish_at, attempt, target)
            outcome.events.append(self._noted(stranded))
            reason = None
        if reason is not None:
            self._end(offset, message)
            if self._key(message):
                self._waiting.settle(message.key, offset)
            self._die(offset, message, reason, cause, attempt, error, now, outcome)
            return
        due = at + self.policy.delay(attempt)
        self._return(lease, attempt, cause, error, _later(due, now))
        returned = events.Returned(self.number, now, [offset], message.publish_at, cause, attempt, due, error)
        outcome.events.append(self._noted(returned))

    def _reason_to_die(self, lease: Lease, at: int, requeue: bool) -> str | None:
        if not requeue:
            return EXPLICIT_NACK
        limit = lease.message.max_attempts or self.policy.max_attempts
        if limit is not None and lease.attempt >= limit:
            return MAX_ATTEMPTS
        expires_at = self._mortal.get(lease.offset)
        return TTL_EXPIRED if expires_at is not None and expires_at <= at else None

    def _return(self, lease: Lease, attempts: int, cause: str, error: str | None, due: int | None) -> None:
        """Put a message whose lease has ended back to where it waits."""
        offset, message = lease.offset, lease.message
        trace = self._traces.setdefault(offset, Trace())
        trace.attempts, trace.cause, trace.error = attempts, cause, error or trace.error
        self._waiting.come_back(offset, message.priority, self._key(message), due)
        if self.policy.retention is not None:
            self._retire_at = min(self._retire_at, message.publish_at + self.policy.retention)
        if offset in self._mortal:
            heappush(self._mortal_heap, (self._mortal[offset], offset))

    def _die(
        self,
        offset: int,
        message: StoredMessage,
        reason: str,
        cause: str,
        attempts: int,
        error: str | None,
        now: int,
        outcome: Outcome,
    ) -> None:
        """Bury a message that has left the queue, or drop it where there is no place for dead letters."""
        target = self.policy.dead_letter_topic
        if not self.dead_letter_open if target is not None else self.policy.dead_letter_size is None:
            outcome.events.append(self._noted(events.Dropped(self.number, now, "ttl", [(offset, offset + 1)])))
            return
        buried = events.Buried(self.number, now, [offset], message.publish_at, reason, cause, attempts, target, error)
        outcome.events.append(self._noted(buried))
        if target is not None:
            outcome.burials.append(Burial(offset, message, reason, attempts, error))
            return
        for entry in entries(buried):
            self.dead[entry.offset] = entry
        while len(self.dead) > (self.policy.dead_letter_size or 0):
            oldest = self.dead.pop(next(iter(self.dead)))
            evicted = events.DeadRemoved(self.number, now, [oldest.offset], oldest.publish_at, "evicted")
            outcome.events.append(self._noted(evicted))

    def _retire(self, now: int, outcome: Outcome) -> None:
        """Let go of waiting messages that are older than the retention, oldest first."""
        retention = self.policy.retention
        self._retire_at = FOREVER
        if retention is None or self.backlog == len(self._leases):
            return
        retired: Ranges = []
        for offset in (offset for start, stop in self._waiting.ranges() for offset in range(start, stop)):
            message = self._pages.get(offset)
            if message is None:
                self.absent, self._retire_at = offset, now
                break
            if message.publish_at + retention > now:
                self._retire_at = message.publish_at + retention
                break
            self._remove(offset, message)
            retired.append((offset, offset + 1))
        if retired:
            outcome.events.append(self._noted(events.Dropped(self.number, now, "retention", merge(retired))))

    def _remove(self, offset: int, message: StoredMessage) -> None:
        """Take a waiting message out, wherever it waits."""
        self._waiting.remove(offset, message.priority, self._key(message))
        self._end(offset, message)

    def _end(self, offset: int, message: StoredMessage) -> None:
        """Forget a message that neither waits nor is leased any more."""
        self._traces.pop(offset, None)
        self._mortal.pop(offset, None)
        self.backlog -= 1
        self.size -= message.size

    def _empty(self) -> None:
        """Keep only what is leased."""
        leased = {lease.offset: lease.message for lease in self._leases.live()}
        self._waiting = Waiting()
        for offset, message in leased.items():
            self._waiting.hold(self._key(message), offset, message.priority)
        self._traces = {offset: trace for offset, trace in self._traces.items() if offset in leased}
        self._mortal = {offset: expires_at for offset, expires_at in self._mortal.items() if offset in leased}
        self.backlog, self.size = len(leased), self._leases.size

    def _key(self, message: StoredMessage) -> str:
        return message.key if self.policy.ordered else ""

    def _consumer(self, consumer_id: str) -> Consumer:
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            if len(self._consumers) >= MAX_IDLE_CONSUMERS:
                self._consumers = {name: known for name, known in self._consumers.items() if known.in_flight}
            consumer = self._consumers[consumer_id] = Consumer(consumer_id)
        return consumer

    def _is_full(self, count: int, size: int) -> bool:
        return self.backlog + count >= self.policy.capacity_messages or self.size + size >= self.policy.capacity_bytes

    def _noted(self, event: E) -> E:
        self.counters.note(event)
        return event


def _later(instant: int | None, now: int) -> int | None:
    """The instant, when it is still to come."""
    return instant if instant is not None and instant > now else None
