"""What a queue should do, written to be believed rather than to be fast: dicts, lists, and a full scan for every question.

The machines beside this file drive Penstock and this model with the same commands and compare them after every step. Nothing
here is shared with `penstock.broker.core`; where the model and the broker disagree, one of them is wrong about the
specification. Instants and durations are microseconds. `Log` is a topic's or a work queue's stream, `ModelQueue` a
subscription or a work queue that is fed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from hypothesis.vendor.pretty import RepresentationPrinter

NEVER_FULL = 1 << 60


class Terse:
    """Shows only what is set: a failing example is read by a person."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]

    def __repr__(self) -> str:
        shown = [one.name for one in fields(self) if one.repr and getattr(self, one.name) not in (one.default, {}, "")]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True, repr=False)
class Rules(Terse):
    """The settings of a queue."""

    ack_deadline: int
    ordered: bool = False
    backoff: tuple[int, int] | None = None
    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_room: int | None = None
    """Room in the queue's own list of dead letters; None: it has no list."""
    flow_messages: int | None = None
    flow_bytes: int | None = None
    max_messages: int = NEVER_FULL
    max_bytes: int = NEVER_FULL
    overflow: str = "spill"
    wanted_kind: str | None = None
    """The filter: only messages whose attribute `kind` has this value."""
    retention: int | None = None
    retain_acked: bool = True
    prefetch: int | None = None


@dataclass(repr=False)
class Draft(Terse):
    """A message to be published."""

    data: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    key: str = ""
    priority: int = 5
    ttl: int | None = None
    deliver_at: int | None = None
    max_attempts: int | None = None
    producer: tuple[str, int] | None = None

    @property
    def size(self) -> int:
        texts = [self.key, *self.attributes, *self.attributes.values()]
        return len(self.data) + sum(len(text.encode()) for text in texts)


@dataclass
class Item:
    """A message in a log, for good."""

    offset: int
    at: int
    draft: Draft
    origin_at: int

    @property
    def size(self) -> int:
        return self.draft.size


@dataclass
class Entry:
    """An unsettled message of a queue."""

    item: Item
    expires_at: int | None
    due: int | None = None
    attempts: int = 0
    deadline: int | None = None
    """Set while it is leased."""
    delivery: int = 0
    """Which of all deliveries of the queue holds it."""
    consumer: str | None = None
    cause: str | None = None
    error: str | None = None


@dataclass
class Dead:
    """A dead letter in a queue's own list."""

    item: Item
    reason: str
    cause: str
    at: int
    attempts: int
    error: str | None


@dataclass
class Delivery:
    """One message handed out once."""

    number: int
    item: Item
    attempt: int


class Full(Exception):
    """A queue that rejects has no room; nothing was published."""


class Log:
    """Everything that was published to one topic or work queue, and who is fed by it."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.queues: list[ModelQueue] = []
        self.producers: dict[tuple[str, int], Item] = {}
        self.stream: int | None = None
        """The number by which message ids name it, when the machine has seen one."""

    def publish(self, drafts: list[Draft], now: int) -> list[Item]:
        """Append what is new, for everybody or for nobody; returns the item of every draft, the first one for a repeat."""
        fresh: list[Draft] = []
        for draft in drafts:
            is_repeat = draft.producer is not None and (
                draft.producer in self.producers or draft.producer in [other.producer for other in fresh]
            )
            if not is_repeat:
                fresh.append(draft)
        for queue in self.queues:
            queue.check_room(fresh)
        items = {id(draft): self._append(draft, now) for draft in fresh}
        for item in items.values():
            for queue in self.queues:
                queue.offer(item, now)
        return [items[id(draft)] if id(draft) in items else self._first(draft) for draft in drafts]

    def receive(self, item: Item, letter: Draft, now: int) -> None:
        """Append a dead letter that comes from another topic."""
        copy = self._append(letter, now)
        copy.origin_at = item.origin_at
        for queue in self.queues:
            queue.offer(copy, now)

    def room(self) -> int:
        """How many more messages somebody would take."""
        return max((queue.room() for queue in self.queues), default=0)

    def _append(self, draft: Draft, now: int) -> Item:
        item = Item(len(self.items), now, draft, now)
        self.items.append(item)
        if draft.producer is not None:
            self.producers[draft.producer] = item
        return item

    def _first(self, draft: Draft) -> Item:
        assert draft.producer is not None, "only a named message is a repeat"
        return self.producers[draft.producer]


class ModelQueue:
    """One subscription or work queue. Every method but `tick` expects that `tick(now)` came first."""

    def __init__(self, name: str, rules: Rules, log: Log, outlet: Callable[[], Log | None] = lambda: None) -> None:
        self.name = name
        self.rules = rules
        self.log = log
        self.outlet = outlet
        """Finds the dead-letter topic, None when it is missing."""
        self.entries: dict[int, Entry] = {}
        self.dead: list[Dead] = []
        self.unlisted: dict[int, Item] = {}
        """Dead letters that left the list but may still be redriven."""
        self.consumers: list[str] = []
        self.paused = False
        self.detached = False
        self.deliveries = 0
        self.delivered = self.acked = self.nacked = self.expired = self.dead_lettered = self.discarded = 0
        self.dead_letter_failures = self.evicted = self.ttl_expired = self.retired = 0
        self.waits: list[int] = []
        self._letters: list[Dead] = []
        self._outlet_room = 0
        log.queues.append(self)

    # ── arrival ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def wants(self, draft: Draft) -> bool:
        return self.rules.wanted_kind is None or draft.attributes.get("kind") == self.rules.wanted_kind

    def is_full(self, coming: list[Draft]) -> bool:
        """Whether there is no room left when these have come in."""
        count = len(self.entries) + len(coming)
        size = self.size + sum(draft.size for draft in coming)
        return count >= self.rules.max_messages or size >= self.rules.max_bytes

    def room(self) -> int:
        """How many more messages would be taken, as far as their number says."""
        if self.rules.overflow == "spill":
            return NEVER_FULL
        return 0 if self.is_full([]) else self.rules.max_messages - len(self.entries)

    def check_room(self, drafts: list[Draft]) -> None:
        wanted = [draft for draft in drafts if self.wants(draft)]
        if self.rules.overflow == "reject" and any(self.is_full(wanted[:index]) for index in range(len(wanted))):
            raise Full(self.name)

    def offer(self, item: Item, now: int) -> None:
        if not self.wants(item.draft):
            return
        if self.rules.overflow == "discard" and self.is_full([]):
            self.discarded += 1
        else:
            self._admit(item, now)

    def _admit(self, item: Item, now: int) -> None:
        draft = item.draft
        expires_at = item.at + draft.ttl if draft.ttl is not None else None
        due = draft.deliver_at if draft.deliver_at is not None and draft.deliver_at > now else None
        self.entries[item.offset] = Entry(item, expires_at, due)

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def upcoming(self, now: int, consumer: str | None = None, key_window: int = 1) -> list[Entry]:
        """What is deliverable to a consumer by age, priority, delay and key, in the order of delivery."""
        able = [
            entry for entry in self.waiting() if not self.is_delayed(entry, now) and self.is_its_turn(entry, consumer, key_window)
        ]
        return sorted(able, key=lambda entry: (-entry.item.draft.priority, entry.item.offset))

    def is_its_turn(self, entry: Entry, consumer: str | None, key_window: int) -> bool:
        """Whether a consumer holds everything of the key that is older, and may have one more of it."""
        older = [other for other in self.of_key(entry) if other.item.offset < entry.item.offset]
        mine = [other for other in older if other.deadline is not None and other.consumer == consumer is not None]
        return not older or (mine == older and len(older) < key_window)

    def lease(
        self,
        now: int,
        want: int,
        *,
        ack_deadline: int | None = None,
        consumer: str | None = None,
        prefetch: int | None = None,
        key_window: int = 1,
    ) -> list[Delivery]:
        """Hand out up to `want`, as far as flow control and prefetch allow."""
        if self.paused:
            return []
        rules = self.rules
        limit = prefetch if prefetch is not None else rules.prefetch
        granted: list[Delivery] = []
        while upcoming := self.upcoming(now, consumer, key_window):
            entry = upcoming[0]
            held = sum(other.consumer == consumer for other in self.leased())
            if (
                len(granted) >= want
                or (rules.flow_messages is not None and len(self.leased()) >= rules.flow_messages)
                or (rules.flow_bytes is not None and self.in_flight_bytes >= rules.flow_bytes)
                or (consumer is not None and limit is not None and held >= limit)
            ):
                break
            self.deliveries += 1
            self.delivered += 1
            entry.attempts += 1
            entry.delivery = self.deliveries
            entry.deadline = now + (rules.ack_deadline if ack_deadline is None else ack_deadline)
            entry.consumer = consumer
            if consumer is not None and consumer not in self.consumers:
                self.consumers.append(consumer)
            if entry.attempts == 1:
                self.waits.append(now - entry.item.at)
            granted.append(Delivery(entry.delivery, entry.item, entry.attempts))
        return granted

    def holding(self, delivery: int) -> Entry | None:
        """The message that is held by exactly this delivery."""
        return next((entry for entry in self.leased() if entry.delivery == delivery), None)

    def ack(self, entry: Entry) -> None:
        self.acked += 1
        del self.entries[entry.item.offset]

    def nack(self, entries: list[Entry], now: int, *, requeue: bool = True, error: str | None = None) -> None:
        self._open_outlet()
        for entry in entries:
            self._fail(entry, now, now, "nacked", requeue=requeue, error=error)
        self._recall(entries)
        self._send(now)

    def give_back(self, entry: Entry) -> None:
        """Undo a delivery."""
        self._give_back(entry)
        self._recall([entry])

    def extend(self, entry: Entry, deadline: int) -> None:
        entry.deadline = deadline

    def release(self, consumer: str) -> int:
        """Give back all that a consumer holds, uncounted, and forget the consumer."""
        self.consumers.remove(consumer)
        held = [entry for entry in self.leased() if entry.consumer == consumer]
        for entry in held:
            self._give_back(entry)
        return len(held)

    def _give_back(self, entry: Entry) -> None:
        """End a lease as if it had not been granted."""
        entry.attempts -= 1
        entry.deadline = entry.consumer = None
        entry.cause = "released"

    def _recall(self, failed: list[Entry]) -> None:
        """What was delivered after a message of its key that is redelivered goes back, too; what was acked stays acked."""
        for entry in failed:
            if entry.item.offset in self.entries:
                for other in self.of_key(entry):
                    if other.deadline is not None and other.item.offset > entry.item.offset:
                        self._give_back(other)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: int) -> None:
        """Leases run out, then times to live, then the retention."""
        self._open_outlet()
        over = sorted((entry.deadline, offset) for offset, entry in self.entries.items() if entry.deadline is not None)
        failed = [self.entries[offset] for at, offset in over if at <= now]
        for entry in failed:
            assert entry.deadline is not None
            self._fail(entry, entry.deadline, now, "expired")
        self._recall(failed)
        mortal = sorted((entry.expires_at, entry.item.offset) for entry in self.waiting() if entry.expires_at is not None)
        for at, offset in mortal:
            if at <= now:
                self._die(self.entries[offset], "ttl_expired", "ttl", now)
        for entry in self.waiting():
            if self.rules.retention is not None and entry.item.at + self.rules.retention <= now:
                del self.entries[entry.item.offset]
                self.retired += 1
        self._send(now)

    def _fail(self, entry: Entry, at: int, now: int, cause: str, *, requeue: bool = True, error: str | None = None) -> None:
        """End a lease without success at the instant `at`, noticed `now`."""
        entry.deadline = entry.consumer = None
        entry.cause, entry.error = cause, error or entry.error
        self.nacked += cause == "nacked"
        self.expired += cause == "expired"
        limit = entry.item.draft.max_attempts or self.rules.max_attempts
        reason = None
        if not requeue:
            reason = "explicit_nack"
        elif limit is not None and entry.attempts >= limit:
            reason = "max_retries_exceeded"
        elif entry.expires_at is not None and entry.expires_at <= at:
            reason = "ttl_expired"
        if reason is not None and self.rules.dead_letter_topic is not None and self._outlet_room <= 0:
            self.dead_letter_failures += 1
            reason = None
        if reason is not None:
            self._die(entry, reason, cause, now)
            return
        low, high = self.rules.backoff or (0, 0)
        entry.due = at + min(low * 2 ** (entry.attempts - 1), high)

    def _die(self, entry: Entry, reason: str, cause: str, now: int) -> None:
        """Take a message out and bury it where there is a place; only a time to live ends a message that has none."""
        del self.entries[entry.item.offset]
        self.ttl_expired += reason == "ttl_expired"
        letter = Dead(entry.item, reason, cause, now, entry.attempts, entry.error)
        if self.rules.dead_letter_topic is not None:
            if self._outlet_room > 0:
                self._outlet_room -= 1
                self.dead_lettered += 1
                self._letters.append(letter)
        elif self.rules.dead_letter_room is not None:
            self.dead_lettered += 1
            self.dead.append(letter)
            if len(self.dead) > self.rules.dead_letter_room:
                oldest = self.dead.pop(0)
                self.unlisted[oldest.item.offset] = oldest.item
                self.evicted += 1

    def _open_outlet(self) -> None:
        target = self.outlet()
        self._outlet_room = target.room() if target is not None else 0

    def _send(self, now: int) -> None:
        """What died in this command goes to the dead-letter topic at its end."""
        letters, self._letters = self._letters, []
        target = self.outlet()
        for letter in letters:
            assert target is not None, "a letter is only written when somebody would receive it"
            target.receive(letter.item, self._letter(letter), now)

    def _letter(self, letter: Dead) -> Draft:
        """A dead letter as its topic gets it; the offset stands where the id of the source message belongs."""
        draft = letter.item.draft
        published = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=letter.item.origin_at)
        attributes = draft.attributes | {
            "penstock.reason": letter.reason,
            "penstock.attempts": str(letter.attempts),
            "penstock.source": self.name,
            "penstock.source_message_id": f"{letter.item.offset:030d}",
            "penstock.publish_time": published.isoformat(),
        }
        return Draft(draft.data, attributes, draft.key, draft.priority)

    # ── moving ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def seek(self, available: Callable[[Item], bool], now: int, *, by_snapshot: bool = False) -> None:
        """Everything of the log is available as `available` says, the rest settled; every lease ends and no backoff is left.

        What was settled comes back where that is kept, and by a snapshot always.
        """
        old = self.entries
        self.entries = {}
        for item in self.log.items:
            if self.wants(item.draft) and available(item) and (by_snapshot or self.rules.retain_acked or item.offset in old):
                if item.offset not in old:
                    self._admit(item, now)
                    continue
                entry = self.entries[item.offset] = old[item.offset]
                was_touched = entry.attempts > 0
                entry.deadline = entry.consumer = None
                entry.due = None if was_touched else entry.due

    def purge(self) -> int:
        """Remove what waits."""
        waiting = self.waiting()
        for entry in waiting:
            del self.entries[entry.item.offset]
        return len(waiting)

    def redrive(self, item: Item) -> None:
        """Put a dead letter back as new, with no time to live."""
        self.dead = [letter for letter in self.dead if letter.item is not item]
        self.unlisted.pop(item.offset, None)
        self.entries[item.offset] = Entry(item, None)

    def purge_dead(self) -> int:
        letters, self.dead = self.dead, []
        self.unlisted |= {letter.item.offset: letter.item for letter in letters}
        return len(letters)

    def detach(self) -> None:
        self.detached = True
        self.entries = {}
        self.log.queues.remove(self)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def leased(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.deadline is not None]

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.deadline is None]

    def is_delayed(self, entry: Entry, now: int) -> bool:
        return entry.deadline is None and entry.due is not None and entry.due > now

    def delayed(self, now: int) -> int:
        return sum(self.is_delayed(entry, now) for entry in self.entries.values())

    def ready(self, now: int) -> int:
        return len(self.waiting()) - self.delayed(now)

    @property
    def size(self) -> int:
        return sum(entry.item.size for entry in self.entries.values())

    @property
    def in_flight_bytes(self) -> int:
        return sum(entry.item.size for entry in self.leased())

    def oldest_age(self, now: int) -> float:
        """Seconds since the oldest unsettled message was published."""
        return max((now - entry.item.at for entry in self.entries.values()), default=0) / 1_000_000

    def head(self, entry: Entry) -> Entry:
        """The message that this one must wait for: the oldest unsettled one of its key, or itself."""
        return min(self.of_key(entry), key=lambda other: other.item.offset)

    def of_key(self, entry: Entry) -> list[Entry]:
        """All unsettled messages that its key puts in order with this one, itself among them."""
        key = entry.item.draft.key
        if not self.rules.ordered or not key:
            return [entry]
        return [other for other in self.entries.values() if other.item.draft.key == key]

    def explain(self, offset: int, now: int) -> tuple[str | None, int | None, int | None] | None:
        """(reason, until, the offset that blocks it); None when it is not here."""
        entry = self.entries.get(offset)
        if entry is None:
            return None
        if entry.deadline is not None:
            return "leased", entry.deadline, None
        if self.head(entry) is not entry:
            return "key_blocked", None, self.head(entry).item.offset
        if self.is_delayed(entry, now):
            return "delayed", entry.due, None
        if self.paused:
            return "paused", None, None
        rules = self.rules
        if (rules.flow_messages is not None and len(self.leased()) >= rules.flow_messages) or (
            rules.flow_bytes is not None and self.in_flight_bytes >= rules.flow_bytes
        ):
            return "flow_limit", None, None
        return None, None, None
