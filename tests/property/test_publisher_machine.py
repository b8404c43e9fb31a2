"""The rules of a publisher: whatever is published and whatever becomes of it, nothing is lost, doubled, late or overtaken."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.client.core.batching import UNKEYED_IN_FLIGHT, Batch, Batching, BatchLimits
from penstock.errors import PublishingPaused, ResourceExhausted
from tests.property.strategies import effort, patience

KEYS = ["", "", "k", "l", "m"]
keys = st.sampled_from(KEYS)
sizes = st.sampled_from([1, 1, 1, 2, 3, 12])
rarely = st.sampled_from([False] * 7 + [True])
picks = st.integers(0, 1 << 16)


@dataclass(frozen=True)
class Entry:
    """A message, as the model knows it."""

    number: int
    key: str
    size: int
    is_marked: bool
    added_at: int


Sent = Batch[Entry, int]


class PublisherMachine(RuleBasedStateMachine):
    """One topic. Messages are numbered in the order in which they are published."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.count = 0
        self.waiting: dict[int, Entry] = {}
        self.in_flight: list[Sent] = []
        self.settled: set[int] = set()
        self.is_turn_wanted = False
        self.is_pushed = False
        """Whether a flush ended the gathering of what is not sent yet."""
        self.paused: set[str] = set()
        self.last: dict[str, int] = {}
        """The newest message of each key that was ever sent."""

    @initialize(
        max_messages=st.integers(1, 5),
        max_bytes=st.integers(1, 30),
        most=st.none() | st.integers(1, 12),
        most_bytes=st.none() | st.integers(1, 60),
        is_refusing=st.booleans(),
    )
    def begin(self, max_messages: int, max_bytes: int, most: int | None, most_bytes: int | None, is_refusing: bool) -> None:
        self.limits = BatchLimits(max_messages, max_bytes, 10, most, most_bytes, is_refusing)
        self.batching: Batching[Entry, int] = Batching(self.limits)

    # ── what may happen ──────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(key=keys, each=st.lists(sizes, min_size=1, max_size=8), is_marked=rarely)
    def publish(self, key: str, each: list[int], is_marked: bool) -> None:
        for size in each:
            self.publish_one(key, size, is_marked)

    def publish_one(self, key: str, size: int, is_marked: bool) -> None:
        entry = self.entry(key, size, is_marked)
        has_room = self.has_room(1, size)
        try:
            wants_turn = self.batching.add(key, entry, entry.number, size=size, now=self.now, is_marked=is_marked)
        except PublishingPaused:
            assert key in self.paused
        except ResourceExhausted:
            assert not has_room
        else:
            assert key not in self.paused
            assert has_room
            self.waiting[entry.number] = entry
            self.is_turn_wanted |= wants_turn

    @rule(drafts=st.lists(st.tuples(keys, sizes), min_size=1, max_size=6))
    def publish_many(self, drafts: list[tuple[str, int]]) -> None:
        entries = [self.entry(key, size, is_marked=False) for key, size in drafts]
        named, size = {entry.key for entry in entries}, sum(entry.size for entry in entries)
        has_room = self.has_room(len(entries), size)
        try:
            self.batching.check_batch(named, messages=len(entries), size=size)
        except PublishingPaused:
            assert named & self.paused
        except ResourceExhausted:
            assert not has_room
        else:
            assert not named & self.paused
            assert has_room
            self.batching.add_batch(named, entries, entries[0].number, size=size)
            self.waiting |= {entry.number: entry for entry in entries}
            self.is_turn_wanted = True

    @rule()
    def end_turn(self) -> None:
        """As a publisher does: it asks where it was told to, and nothing may be forgotten where it was not."""
        if self.is_turn_wanted:
            self.pump()
        self.check_nothing_is_late()

    def pump(self) -> None:
        self.is_turn_wanted = False
        while (batch := self.batching.take(self.now)) is not None:
            self.check_sent(batch)
            for entry in batch.messages:
                del self.waiting[entry.number]
            self.in_flight.append(batch)
        self.is_pushed &= bool(self.waiting)

    @rule(span=st.integers(1, 12))
    def pass_time(self, span: int) -> None:
        self.end_turn()
        due = self.batching.next_due()
        self.now += span
        if due is not None and due <= self.now:
            self.pump()
        self.check_nothing_is_late()

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks)
    def succeed(self, pick: int) -> None:
        self.settle(self.in_flight[pick % len(self.in_flight)])

    @precondition(lambda self: self.in_flight)
    @rule(pick=picks, is_unlucky=rarely)
    def fail(self, pick: int, is_unlucky: bool) -> None:
        if not is_unlucky:
            return
        failed = self.in_flight[pick % len(self.in_flight)]
        unsettled = set(self.batching.unsettled)
        stopped = self.batching.pause(failed.keys)
        self.paused |= set(failed.keys)
        for batch, key in stopped:
            assert key in self.paused
            self.paused |= set(batch.keys)
            assert batch in unsettled
            for entry in batch.messages:
                del self.waiting[entry.number]
                self.done(entry)
        assert not [entry for entry in self.waiting.values() if entry.key in self.paused]
        self.settle(failed)

    @rule(key=st.sampled_from(KEYS[2:]))
    def resume(self, key: str) -> None:
        self.batching.resume(key)
        self.paused.discard(key)

    @rule()
    def flush(self) -> None:
        self.batching.flush()
        self.is_pushed = True
        self.pump()

    @rule(is_over=rarely)
    def finish(self, is_over: bool) -> None:
        """Whatever has happened, a flush and answers are enough to be rid of everything."""
        if not is_over:
            return
        self.batching.flush()
        self.is_pushed = True
        while self.waiting or self.in_flight:
            self.pump()
            assert self.in_flight, "something waits, and nothing would ever wake it"
            self.settle(self.in_flight[0])
        assert (self.batching.messages, self.batching.bytes) == (0, 0)

    @rule(is_over=rarely)
    def abandon(self, is_over: bool) -> None:
        if not is_over:
            return
        for batch in self.batching.abandon():
            for entry in batch.messages:
                del self.waiting[entry.number]
                self.done(entry)
        assert not self.waiting

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def everything_is_somewhere(self) -> None:
        if not self.count or not hasattr(self, "batching"):
            return
        in_flight = [entry for batch in self.in_flight for entry in batch.messages]
        outstanding = [*self.waiting.values(), *in_flight]
        assert self.batching.messages == len(outstanding)
        assert self.batching.bytes == sum(entry.size for entry in outstanding)
        held = [entry.number for batch in self.batching.unsettled for entry in batch.messages]
        assert sorted(held) == sorted(entry.number for entry in outstanding)

    @invariant()
    def no_key_is_in_flight_twice(self) -> None:
        flying = [key for batch in self.in_flight for key in batch.keys]
        assert len(flying) == len(set(flying))
        assert sum(not batch.keys for batch in self.in_flight) <= UNKEYED_IN_FLIGHT

    def check_sent(self, batch: Sent) -> None:
        limits = self.limits
        assert batch.messages
        assert batch.size == sum(entry.size for entry in batch.messages)
        if not batch.is_explicit:
            is_full = len(batch.messages) >= limits.max_messages or batch.size >= limits.max_bytes
            assert is_full or self.may_go(batch), "it could have gathered"
            assert len(batch.messages) <= limits.max_messages
            assert batch.size <= limits.max_bytes or len(batch.messages) == 1
            assert len({entry.is_marked for entry in batch.messages}) == 1
            assert len({entry.key for entry in batch.messages}) == 1
        for entry in batch.messages:
            if entry.key:
                assert entry.number > self.last.get(entry.key, -1), "a message was overtaken"
                self.last[entry.key] = entry.number
        if self.in_flight and not limits.is_refusing:
            flying = [entry for one in [*self.in_flight, batch] for entry in one.messages]
            assert limits.max_outstanding_messages is None or len(flying) <= limits.max_outstanding_messages
            assert limits.max_outstanding_bytes is None or sum(entry.size for entry in flying) <= limits.max_outstanding_bytes

    def may_go(self, batch: Sent) -> bool:
        """Whether a batch that is not full has a reason to go: nothing is ahead, its time has come, or something pushed it."""
        key = batch.messages[0].key
        is_free = not any(key in (one.keys or [""]) for one in self.in_flight)
        return (
            is_free
            or self.is_pushed
            or batch.messages[0].added_at + self.limits.max_wait <= self.now
            or bool([one for one in self.waiting.values() if one.key == key and one.number > batch.messages[-1].number])
        )

    def check_nothing_is_late(self) -> None:
        """What waits has a reason to: its lane is busy, it is young, or flow control holds it until something comes back."""
        if not self.waiting:
            return
        assert self.in_flight, "nothing is in flight, so nothing would ever wake what waits"
        is_limited = self.limits.max_outstanding_messages is not None or self.limits.max_outstanding_bytes is not None
        if is_limited and not self.limits.is_refusing:
            return
        flying = {key for batch in self.in_flight for key in batch.keys}
        unkeyed = sum(not batch.keys for batch in self.in_flight)
        has_crossings = any(len(batch.keys) > 1 for batch in self.batching.unsettled)
        for entry in self.waiting.values():
            if entry.key or self.is_among_keyed(entry):
                # One of several keys waits for the last of them, and whoever is behind it does as well.
                assert flying if has_crossings else entry.key in flying or not entry.key, "its lane is free"
            elif unkeyed < UNKEYED_IN_FLIGHT:
                assert unkeyed, "nothing without a key is in flight"
                due = self.batching.next_due()
                assert entry.added_at + self.limits.max_wait > self.now, "it gathers for too long"
                assert due is not None
                assert due <= entry.added_at + self.limits.max_wait, "no timer wakes it in time"

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def is_among_keyed(self, entry: Entry) -> bool:
        """Whether it goes together with messages that have a key, and therefore waits with them."""
        return any(entry in batch.messages and batch.keys for batch in self.batching.unsettled)

    def entry(self, key: str, size: int, is_marked: bool) -> Entry:
        self.count += 1
        return Entry(self.count, key, size, is_marked, self.now)

    def has_room(self, messages: int, size: int) -> bool:
        limits = self.limits
        if not limits.is_refusing or not (self.waiting or self.in_flight):
            return True
        outstanding = [*self.waiting.values(), *(entry for batch in self.in_flight for entry in batch.messages)]
        most, most_bytes = limits.max_outstanding_messages, limits.max_outstanding_bytes
        return (most is None or len(outstanding) + messages <= most) and (
            most_bytes is None or sum(entry.size for entry in outstanding) + size <= most_bytes
        )

    def settle(self, batch: Sent) -> None:
        self.in_flight.remove(batch)
        self.batching.settle(batch)
        self.is_turn_wanted = True
        for entry in batch.messages:
            self.done(entry)

    def done(self, entry: Entry) -> None:
        assert entry.number not in self.settled, "it was done before"
        self.settled.add(entry.number)


TestPublisher = patience(PublisherMachine.TestCase)
TestPublisher.settings = effort(4)
