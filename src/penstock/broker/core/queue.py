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
in the lane of its key (see `ordering`), or delayed until an instant. Every command takes `now`, changes the state and returns
the events that record the changes; an instant is over when `now >= instant`.

The messages themselves are in the stream's `pages`. If one is needed and not resident, the command stops before it and sets its
offset in `absent`: the shell reads it from the log and calls again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from heapq import heappop
from types import MappingProxyType

from penstock.broker.core.leases import Consumer, Lease, Leases
from penstock.broker.core.outcome import Outcome, PendingDeadLetter
from penstock.broker.core.ready import Ready
from penstock.broker.core.state import QueueState, later
from penstock.broker.core.waiting import Waiting
from penstock.durations import FOREVER
from penstock.journal.core import events
from penstock.journal.core.checkpoint import Trace, entries
from penstock.journal.core.events import column
from penstock.journal.core.ranges import Ranges, merge
from penstock.values.message import Batch, StoredMessage
from penstock.values.policy import MAX_COUNT, Overflow, Policy
from penstock.values.queue import EXPLICIT_NACK, MAX_RETRIES_EXCEEDED, TTL_EXPIRED

_NOTHING: Mapping[int, int] = MappingProxyType({})
_DISCARD, _REJECT, _SPILL = Overflow.DISCARD.value, Overflow.REJECT.value, Overflow.SPILL.value


class Queue(QueueState):
    """One subscription or work queue."""

    __slots__ = ()

    def offer(self, first: int, batch: Batch, now: int) -> events.Dropped | None:
        """Add new messages. Those that the filter refuses are settled; those without room are dropped if the policy says so."""
        policy, count, priority = self.policy, len(batch.messages), batch.priority
        self.high = high = first + count
        bounded = policy.overflow == _DISCARD
        if policy.retention is not None and self._retire_at == FOREVER:
            self._retire_from(batch.messages[0].publish_at + policy.retention)
        backlog, size = self.backlog + count, self.size + batch.size
        if (
            priority is not None
            and self._filter is None
            and not (batch.keyed and policy.ordered)
            and (not bounded or (backlog <= policy.capacity_messages and size <= policy.capacity_bytes))
        ):
            ready = self._waiting.ready
            level = ready.by_priority.get(priority)
            if level is not None:
                level.add(first, high)
            else:
                ready.add(priority, first, high)
            self.backlog, self.size = backlog, size
            return None
        dropped: Ranges = []
        for offset, message in enumerate(batch.messages, first):
            if self._filter is not None and not self._filter.matches(message.attributes or {}):
                continue
            if bounded and self._is_full(0, 0):
                dropped.append((offset, offset + 1))
            else:
                self._admit(offset, message, later(message.deliver_at, now), mortal=True)
        return self._noted(events.Dropped(self.number, now, "overflow", merge(dropped))) if dropped else None

    def has_room(self, batch: Batch, count: int, size: int) -> bool:
        """Whether all messages of a batch have room, given `count` staged messages of `size` bytes."""
        policy = self.policy
        if policy.overflow != _REJECT or self.detached:
            return True
        if (
            self.backlog + count + len(batch.messages) <= policy.capacity_messages
            and self.size + size + batch.size < policy.capacity_bytes
        ):
            return True  # no need to look at each
        for message in batch.messages:
            if self._filter is None or self._filter.matches(message.attributes or {}):
                if self._is_full(count, size):
                    return False
                count += 1
                size += message.size
        return True

    def room(self) -> int:
        """How many more messages have room, by their number alone."""
        if self.policy.overflow == _SPILL:
            return MAX_COUNT
        return 0 if self._is_full(0, 0) else self.policy.capacity_messages - self.backlog

    def redrive(self, letters: list[tuple[int, StoredMessage]], now: int) -> events.Redriven:
        """Requeue dead letters as new messages: no attempts, no TTL, at their place by age."""
        self.epoch += 1
        for offset, message in letters:
            self.dead.pop(offset, None)
            self._traces[offset] = Trace(immortal=True)
            self._admit(offset, message, None, mortal=False)
        offsets = [offset for offset, _ in letters]
        published = column([message.publish_at for _, message in letters])
        return events.Redriven(self.number, now, offsets, published, self.epoch)

    def lease(  # noqa: PLR0912, PLR0915, PLR0917  # the hottest loop, inlined on purpose; a keyword costs time here
        self,
        now: int,
        want: int,
        ack_deadline: int | None = None,
        consumer: str | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        max_bytes: int | None = None,
        key_window: int = 1,
    ) -> list[Lease]:
        """Deliver up to `want` messages, most urgent and oldest first, as far as flow control and prefetch allow.

        The flow control limits are reached by the message that exceeds them. `max_bytes` is never exceeded, except by a single
        first message, so that a large message is always delivered, alone. A consumer with a name may hold `key_window` messages
        of one ordering key, one without a name a single one.
        """
        self.absent = None
        policy, leases = self.policy, self._leases
        if self.paused or self.detached:
            return []
        if policy.flow_messages is not None:
            want = min(want, policy.flow_messages - len(leases))
        holder, is_new = None, False
        if consumer is not None:
            holder = self._consumers.get(consumer)
            if holder is None:
                holder, is_new = Consumer(consumer), True
            limit = holder.prefetch = prefetch if prefetch is not None else policy.prefetch
            if limit is not None and want > limit - len(holder.held):
                want = limit - len(holder.held)
            if holder.key_window != key_window:
                self._widen(holder, key_window)
        deadline = now + (policy.ack_deadline if ack_deadline is None else ack_deadline)
        budget = None if policy.flow_bytes is None else policy.flow_bytes - leases.size
        if prefetch_bytes is not None and holder is not None:
            budget = min(prefetch_bytes - holder.size, MAX_COUNT if budget is None else budget)
        granted: list[Lease] = []
        size, lowest, by_offset = 0, FOREVER, leases.by_offset
        epoch, traces, waiting = self.epoch, self._traces, self._waiting
        lanes = waiting.lanes if policy.ordered else None
        is_bounded = max_bytes is not None or budget is not None
        reserved = holder.reserved if holder is not None else None
        while want > 0 and self.absent is None and (budget is None or budget > 0):
            if reserved is not None:
                level = waiting.first(reserved)
                if level is None:
                    break
            else:
                for level in waiting.ready.levels:
                    if level.count:
                        break
                else:
                    break
            # With a window, lease one at a time: the next message of its key may be the next of all.
            start, stop = level.take(want if reserved is None else 1)
            if start < stop:
                messages = self._pages.span(start, stop)
                found = len(messages)
                if is_bounded or found < stop - start:
                    total = sum([message.size for message in messages])
                    if (max_bytes is None or total <= max_bytes) and (budget is None or total < budget):
                        max_bytes = None if max_bytes is None else max_bytes - total
                        budget = None if budget is None else budget - total
                    else:
                        messages, max_bytes, budget = _limited(messages, max_bytes, budget, not granted)
                    if len(messages) < found:
                        want = len(messages)
                    elif found < stop - start:
                        self.absent = start + found
                    if len(messages) < stop - start:
                        level.add(start + len(messages), stop)
            else:
                start = level.first()
                message = self._pages.get(start)
                if message is None:
                    self.absent = start
                    break
                if max_bytes is not None:
                    if message.size > max_bytes and granted:
                        break
                    max_bytes -= message.size
                level.pop()
                messages = [message]
                if budget is not None:
                    budget -= message.size
            want -= len(messages)
            if start < lowest and messages:
                lowest = start
            for offset, message in enumerate(messages, start):
                attempt = traces[offset].attempts + 1 if traces and offset in traces else 1
                by_offset[offset] = lease = Lease(deadline, offset, attempt, epoch, message, holder, now)
                granted.append(lease)
                size += message.size
                if lanes is not None and message.key:
                    lanes.lease(message.key, offset, holder)
        if granted:
            leases.added(granted, deadline, size, lowest)
            if holder is not None:
                holder.held.update([lease.offset for lease in granted])
                holder.size += size
                if is_new:
                    self._know(holder)
            if deadline < self.soonest:  # noqa: PLR1730  # a call of min() here is a tenth of a delivery
                self.soonest = deadline
        return granted

    def _widen(self, holder: Consumer, key_window: int) -> None:
        """Change how many messages of one ordering key a consumer may hold."""
        holder.key_window = key_window
        if key_window > 1 and holder.reserved is None and self.policy.ordered:
            holder.reserved = Ready()
        for offset in holder.held:
            if key := self._key(self._leases.by_offset[offset].message):
                self._waiting.lanes.widen(key)

    def leased(self, leases: list[Lease], now: int) -> events.Leased:
        first, counters = leases[0], self.counters
        holder = first.consumer.consumer_id if first.consumer is not None else None
        if len(leases) > 1:
            offsets = [lease.offset for lease in leases]
            published = column([lease.message.publish_at for lease in leases])
            attempts = column([lease.attempt for lease in leases])
            event = events.Leased(self.number, now, offsets, published, attempts, first.epoch, first.deadline, holder)
            counters.count_leased(event)
            return event
        published, attempt = first.message.publish_at, first.attempt
        counters.delivered += 1  # as `count_leased` does, without a call
        if attempt == 1:
            counters.waited += now - published
            counters.first_deliveries += 1
        return events.Leased(self.number, now, [first.offset], published, attempt, first.epoch, first.deadline, holder)

    def extend(self, leases: list[Lease], deadline: int, now: int) -> events.Extended:
        for lease in leases:
            self._leases.move(lease, deadline)
        self.soonest = min(self.soonest, deadline)
        offsets, published = [lease.offset for lease in leases], column([lease.message.publish_at for lease in leases])
        return events.Extended(self.number, now, offsets, published, deadline)

    def ack(self, leases: list[Lease], now: int) -> events.Acked:
        """Acknowledge live leases."""
        ordered, count = self.policy.ordered, len(leases)
        if ordered or self._traces or self._expires_at:
            for lease in leases:
                self._traces.pop(lease.offset, None)
                self._expires_at.pop(lease.offset, None)
                if ordered and lease.message.key:
                    self._waiting.lanes.settle(lease.message.key, lease.offset)
        self.size -= self._leases.end(leases)
        self.backlog -= count
        self.counters.acked += count  # as Counters.count_acked does, without a call
        if count == 1:
            only = leases[0]
            return events.Acked(self.number, now, [only.offset], only.message.publish_at, only.attempt)
        offsets, published = [lease.offset for lease in leases], column([lease.message.publish_at for lease in leases])
        return events.Acked(self.number, now, offsets, published, column([lease.attempt for lease in leases]))

    def ack_expired(self, offset: int, attempt: int, epoch: int, message: StoredMessage, now: int) -> events.Acked | None:
        """Acknowledge a delivery whose lease has expired; None if the message was redelivered or settled since."""
        trace = self._traces.get(offset)
        if trace is None or self._leases.get(offset) is not None:
            return None
        if (trace.cause, trace.attempts, trace.epoch) != ("expired", attempt, epoch):
            return None
        self._remove(offset, message)
        event = events.Acked(self.number, now, [offset], message.publish_at, attempt)
        self.counters.count_acked(event)
        return event

    def nack(
        self, leases: list[Lease], now: int, *, requeue: bool = True, error: str | None = None, delay: int | None = None
    ) -> Outcome:
        """Nack live leases: the messages are requeued or become dead letters. `delay` replaces the policy's backoff."""
        outcome, reason = Outcome(), None if requeue else EXPLICIT_NACK
        for lease in leases:
            self._fail(lease, now, now, "nacked", reason=reason, error=error, outcome=outcome, delay=delay)
        self._recall(leases, now, outcome)
        return outcome

    def dead_letter_leased(
        self, leases: list[Lease], now: int, *, reason: str, error: str | None, attempts: int | None = None
    ) -> Outcome:
        """Make dead letters of live leases without another attempt, for a reason that the consumer gives.

        `attempts`: how many times the consumer tried each message, if that is not the number of deliveries.
        """
        outcome = Outcome()
        for lease in leases:
            self._fail(lease, now, now, "nacked", reason=reason, error=error, outcome=outcome, attempts=attempts)
        self._recall(leases, now, outcome)
        return outcome

    def dead_letter_waiting(
        self, offset: int, message: StoredMessage, now: int, *, reason: str, attempts: int, error: str | None
    ) -> Outcome:
        """Move a waiting message to the dead letters without a delivery."""
        outcome = Outcome()
        self._remove(offset, message)
        self._die(offset, message, reason, "buried", attempts, error, now, outcome)
        return outcome

    def release(self, consumer: str, now: int) -> list[events.Returned | events.ConsumerReleased]:
        """Release all leases of a consumer, without counting the attempts, and forget the consumer."""
        holder = self._consumers.pop(consumer)
        leases = [self._leases.by_offset[offset] for offset in sorted(holder.held)]
        released = events.ConsumerReleased(self.number, now, consumer)
        return [self.give_back(leases, now), released] if leases else [released]

    def give_back(self, leases: list[Lease], now: int, *, delay: int = 0) -> events.Returned:
        """Undo deliveries that reached no consumer: the messages are requeued, and the attempts do not count.

        Later deliveries of their ordering keys are undone too. None is delivered again before `delay` is over.
        """
        if followers := self._followers(leases):
            leases = [*({lease.offset: lease for lease in leases} | followers).values()]
        # The next delivery has the same attempt number; the epoch makes the old ack ids invalid for it.
        self.epoch += 1
        self._leases.end(leases)
        due = now + delay
        for lease in leases:
            self._return(lease, lease.attempt - 1, "released", None, later(due, now))
        attempts = [lease.attempt - 1 for lease in leases]
        offsets, published = [lease.offset for lease in leases], column([lease.message.publish_at for lease in leases])
        return events.Returned(self.number, now, offsets, published, "released", column(attempts), due)

    def tick(self, now: int, published: Mapping[int, int] = _NOTHING, *, retires: bool = True) -> Outcome:
        """Do everything that is due: leases, delays, TTLs and, if `retires`, retention.

        `published` has publish times of messages that are not resident, so that young ones need not be read.
        """
        outcome = Outcome()
        self.absent = None
        expired = sorted(self._leases.due(now), key=lambda lease: (lease.deadline, lease.offset))
        for lease in expired:
            self._fail(lease, lease.deadline, now, "expired", reason=None, error=None, outcome=outcome)
        self._recall(expired, now, outcome)
        self._waiting.wake(now)
        while self._expiry_heap and self._expiry_heap[0][0] <= now:
            expires_at, offset = self._expiry_heap[0]
            # The TTL of a leased message is checked when its lease ends.
            if self._expires_at.get(offset) == expires_at and self._leases.get(offset) is None:
                message = self._pages.get(offset)
                if message is None:
                    self.absent = offset
                    return outcome
                trace = self._traces.get(offset) or Trace()
                self._remove(offset, message)
                self._die(offset, message, TTL_EXPIRED, "ttl", trace.attempts, trace.error, now, outcome)
            heappop(self._expiry_heap)
        if retires and now >= self._retire_at:
            self._retire(now, published, outcome)
        self.soonest = self._next_due(self._retire_at if retires else FOREVER)
        return outcome

    def _next_due(self, retire_at: int) -> int:
        """The next instant at which `tick` has something to do."""
        due = min(retire_at, self._waiting.next_due())
        deadline = self._leases.next_deadline()
        if deadline is not None and deadline < due:
            due = deadline
        while self._expiry_heap and self._expiry_heap[0][0] < due:
            expires_at, offset = self._expiry_heap[0]
            if self._expires_at.get(offset) == expires_at and self._leases.get(offset) is None:
                return expires_at
            heappop(self._expiry_heap)
        return due

    def purge(self, now: int) -> events.Dropped | None:
        """Remove all waiting messages; leases continue."""
        ranges = self._waiting.ranges()
        if not ranges:
            return None
        event = events.Dropped(self.number, now, "purge", ranges)
        self._empty()
        return self._noted(event)

    def detach(self) -> None:
        """Drop all messages and leases: the topic was deleted."""
        self.detached = True
        self.description = self._describe()
        self._leases = Leases()
        self._empty()
        for consumer in self._consumers.values():
            consumer.held.clear()
            consumer.size = 0

    def update(self, policy: Policy, spec: bytes, now: int) -> None:
        """Change the policy. Leases keep their deadlines, and waiting messages their delays."""
        assert (policy.ordered, policy.filter) == (self.policy.ordered, self.policy.filter), "ordering and filter are fixed"
        self.policy, self.spec = policy, spec
        self.description = self._describe()
        self._retire_at = FOREVER
        if self.backlog and policy.retention is not None:
            self._retire_from(now)

    def pause(self, paused: bool, now: int) -> events.Paused:
        """Stop or resume delivering; everything else continues."""
        self.paused = paused
        return events.Paused(self.number, now, paused)

    def purge_dead(self, now: int, only: Container[int] | None = None) -> events.DeadRemoved | None:
        """Empty the list of dead letters, or remove those at these offsets; the messages stay in the log."""
        letters = [letter for offset, letter in self.dead.items() if only is None or offset in only]
        if not letters:
            return None
        for letter in letters:
            del self.dead[letter.offset]
        offsets, published = [letter.offset for letter in letters], column([letter.publish_at for letter in letters])
        return events.DeadRemoved(self.number, now, offsets, published, "purged")

    def _fail(
        self,
        lease: Lease,
        at: int,
        now: int,
        cause: str,
        *,
        reason: str | None,
        error: str | None,
        outcome: Outcome,
        delay: int | None = None,
        attempts: int | None = None,
    ) -> None:
        """End a lease without an ack at the instant `at`, noticed `now`; with a reason the message becomes a dead letter."""
        self._leases.end([lease])
        offset, message, attempt = lease.offset, lease.message, lease.attempt
        target = self.policy.dead_letter_topic
        reason = reason or self._reason_to_die(lease, at)
        if reason is not None and target is not None and self.dead_letter_room <= 0:
            stranded = events.DeadLetterFailed(self.number, now, [offset], message.publish_at, attempt, target)
            outcome.events.append(self._noted(stranded))
            reason = None
        if reason is not None:
            trace = self._traces.get(offset)
            last_error = trace.error if trace is not None else None
            self._end(offset, message)
            if self._key(message):
                self._waiting.lanes.settle(message.key, offset)
            self._die(offset, message, reason, cause, attempts or attempt, error or last_error, now, outcome)
            return
        due = at + (self.policy.delay(attempt) if delay is None else delay)
        self._return(lease, attempt, cause, error, later(due, now))
        returned = events.Returned(self.number, now, [offset], message.publish_at, cause, attempt, due, error)
        outcome.events.append(self._noted(returned))

    def _recall(self, failed: list[Lease], now: int, outcome: Outcome) -> None:
        """Undo deliveries after messages that are redelivered, so that each key's order holds from there on.

        After a message that became a dead letter nothing is undone: it is not redelivered, so nothing has overtaken it.
        """
        if self.policy.ordered and (followers := self._followers([one for one in failed if one.offset in self._traces])):
            outcome.events.append(self._noted(self.give_back([*followers.values()], now)))

    def _followers(self, leases: list[Lease]) -> dict[int, Lease]:
        """Leased messages with the ordering keys of these messages that are younger than them."""
        if not self.policy.ordered:
            return {}
        live, after = self._leases.by_offset, self._waiting.lanes.leased_after
        keyed = [lease for lease in leases if lease.message.key]
        return {offset: live[offset] for lease in keyed for offset in after(lease.message.key, lease.offset)}

    def _reason_to_die(self, lease: Lease, at: int) -> str | None:
        limit = lease.message.max_attempts or self.policy.max_attempts
        if limit is not None and lease.attempt >= limit:
            return MAX_RETRIES_EXCEEDED
        expires_at = self._expires_at.get(lease.offset)
        return TTL_EXPIRED if expires_at is not None and expires_at <= at else None

    def _return(self, lease: Lease, attempts: int, cause: str, error: str | None, due: int | None) -> None:
        """Requeue a message whose lease has ended."""
        offset, message = lease.offset, lease.message
        trace = self._traces.setdefault(offset, Trace())
        trace.attempts, trace.cause, trace.error, trace.epoch = attempts, cause, error or trace.error, lease.epoch
        self._waiting.come_back(offset, message.priority, self._key(message), due)
        if due is not None:
            self.soonest = min(self.soonest, due)
        if self.policy.retention is not None:
            self._retire_from(message.publish_at + self.policy.retention)
        expires_at = self._expires_at.get(offset)
        if expires_at is not None:
            self._watch(offset, expires_at)

    def _die(  # noqa: PLR0917  # what a dead letter is made of
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
        """Dead-letter a message that has left the queue, or drop it if the queue keeps no dead letters."""
        target = self.policy.dead_letter_topic
        if self.dead_letter_room <= 0 if target is not None else self.policy.dead_letter_size is None:
            outcome.events.append(self._noted(events.Dropped(self.number, now, "ttl", [(offset, offset + 1)], cause)))
            return
        buried = events.DeadLettered(self.number, now, [offset], message.publish_at, reason, cause, attempts, target, error)
        outcome.events.append(self._noted(buried))
        if target is not None:
            self.dead_letter_room -= 1
            outcome.pending_dead_letters.append(PendingDeadLetter(offset, message, reason, attempts, error))
            return
        for entry in entries(buried):
            self.dead[entry.offset] = entry
        while len(self.dead) > (self.policy.dead_letter_size or 0):
            oldest = self.dead.pop(next(iter(self.dead)))
            evicted = events.DeadRemoved(self.number, now, [oldest.offset], oldest.publish_at, "evicted")
            outcome.events.append(self._noted(evicted))

    def _retire(self, now: int, published: Mapping[int, int], outcome: Outcome) -> None:
        """Remove waiting messages that are older than the retention, oldest first."""
        retention = self.policy.retention
        self._retire_at = FOREVER
        if retention is None or self.backlog == len(self._leases):
            return
        retired: Ranges = []
        for offset in (offset for start, stop in self._waiting.ranges() for offset in range(start, stop)):
            message = self._pages.get(offset)
            published_at = message.publish_at if message is not None else published.get(offset)
            if published_at is not None and published_at + retention > now:
                self._retire_at = published_at + retention
                break
            if message is None:
                self.absent, self._retire_at = offset, now
                break
            self._remove(offset, message)
            retired.append((offset, offset + 1))
        if retired:
            outcome.events.append(self._noted(events.Dropped(self.number, now, "retention", merge(retired))))

    def _retire_from(self, instant: int) -> None:
        if instant < self._retire_at:
            self._retire_at = instant
            self.soonest = min(self.soonest, instant)

    def _remove(self, offset: int, message: StoredMessage) -> None:
        """Remove a waiting message, wherever it waits."""
        self._waiting.remove(offset, message.priority, self._key(message))
        self._end(offset, message)

    def _end(self, offset: int, message: StoredMessage) -> None:
        """Forget a message that neither waits nor is leased any more."""
        self._traces.pop(offset, None)
        self._expires_at.pop(offset, None)
        self.backlog -= 1
        self.size -= message.size

    def _empty(self) -> None:
        """Keep only leased messages."""
        leased = self._leases.by_offset
        self._waiting = Waiting()
        for consumer in self._consumers.values():
            consumer.key_window, consumer.reserved = 1, None
        for offset, lease in sorted(leased.items()):
            if key := self._key(lease.message):
                holder = self._consumers[lease.consumer.consumer_id] if lease.consumer is not None else None
                self._waiting.lanes.restore(key, offset, holder)
        self._traces = {offset: trace for offset, trace in self._traces.items() if offset in leased}
        self._expires_at = {offset: expires_at for offset, expires_at in self._expires_at.items() if offset in leased}
        self.backlog, self.size = len(leased), self._leases.size


def _limited(
    messages: list[StoredMessage], room: int | None, budget: int | None, is_first: bool
) -> tuple[list[StoredMessage], int | None, int | None]:
    """Select the messages that there is room for, at least one, within a budget of bytes that the last one may exceed.

    Returns them, and the rest of the room and of the budget.
    """
    for index, message in enumerate(messages):
        if room is not None and message.size > room and not (is_first and index == 0):
            return messages[:index], room, budget
        if room is not None:
            room -= message.size
        if budget is not None:
            budget -= message.size
            if budget <= 0:
                return messages[: index + 1], room, budget
    return messages, room, budget
