"""What is written down comes back the same: chunks, events, and the state folded from them."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import get_args, get_origin, get_type_hints

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from penstock import Broker, MessageQueue, QueueManager
from penstock.journal.core import checkpoint as image
from penstock.journal.core import chunk, events
from penstock.journal.core.checkpoint import State, Trace
from penstock.journal.core.chunk import pack, size_of
from penstock.journal.core.events import Event
from penstock.journal.journal import Commit, Journal
from penstock.values.message import StoredMessage
from tests.property.model import ModelQueue
from tests.property.strategies import effort, patience
from tests.property.test_message_queue_machine import SubscriptionMachine
from tests.property.test_queue_manager_machine import QueueMachine

pytestmark = patience

numbers = st.integers(0, (1 << 63) - 1)
instants = st.integers(0, 1 << 52)


@st.composite
def stored_messages(draw: st.DrawFn) -> list[StoredMessage]:
    """Messages of one chunk, as the broker stores them: published in order, sizes true, no empty attributes."""
    is_plain = draw(st.booleans())  # plain chunks leave most columns out
    messages = []
    for publish_at in sorted(draw(st.lists(instants, min_size=1, max_size=6))):
        message = StoredMessage(
            publish_at,
            draw(st.binary(max_size=20)),
            draw(st.none() | st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), min_size=1, max_size=3)),
            draw(st.just("") | st.text(max_size=5)),
            5 if is_plain else draw(st.integers(0, 9)),
            0,
        )
        if not is_plain:
            message.expires_at = draw(st.none() | instants)
            message.deliver_at = draw(st.none() | instants)
            message.max_attempts = draw(st.none() | st.integers(1, 1_000_001))
            message.content = draw(st.integers(0, 2))
            message.origin_at = draw(st.none() | instants)
        message.size = size_of(message)
        messages.append(message)
    return messages


@effort(3)
@given(messages=stored_messages())
def test_a_chunk_gives_back_the_messages_that_were_packed(messages: list[StoredMessage]) -> None:
    packed = pack(messages)
    assert packed.count == len(messages)
    assert chunk.decode(chunk.encode(packed)).messages(messages[-1].publish_at) == messages


PLAIN: dict[object, st.SearchStrategy[object]] = {
    int: numbers,
    str: st.text(max_size=5),
    bool: st.booleans(),
    bytes: st.binary(max_size=5),
    NoneType: st.none(),
}


def any_value(hint: object) -> st.SearchStrategy[object]:
    """A value of a field, whatever fields may come: `st.from_type` would draw numbers that MessagePack cannot hold."""
    parts = [any_value(part) for part in get_args(hint)]
    if get_origin(hint) is list:
        return st.lists(parts[0], max_size=4)
    if get_origin(hint) is tuple:
        return st.tuples(*parts)
    return st.one_of(parts) if parts else PLAIN[hint]


def any_event() -> st.SearchStrategy[Event]:
    kinds = [
        st.builds(kind, **{name: any_value(hint) for name, hint in get_type_hints(kind).items()}) for kind in get_args(Event)
    ]
    return st.one_of(kinds)


@effort(8)
@given(happened=st.lists(any_event(), max_size=5))
def test_events_come_back_as_they_were_written(happened: list[Event]) -> None:
    assert events.decode(events.encode(happened)) == happened


def test_no_two_kinds_of_event_share_a_tag() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(Event)]
    assert len(set(tags)) == len(tags)


# ── the state folded from the events is the state of the live queue ──────────────────────────────────────────────────────


def assert_folds_to_the_present(broker: Broker, models: list[ModelQueue], now: int) -> None:
    live = broker.catalog.state()
    assert image.decode(image.encode(live)) == live, "a checkpoint comes back as it was written"
    folded = State()
    folded.replay(event for _, event in broker.journal.read_events(0, broker.journal.event_range()[1]))
    assert folded.last_number == live.last_number
    assert folded.streams == live.streams
    assert folded.snapshots == live.snapshots
    assert folded.deleted_resources == live.deleted_resources
    assert folded.queues.keys() == live.queues.keys()
    wanted = {model.name: {item.offset for item in model.log.items if model.wants(item.draft)} for model in models}
    for number, queue in live.queues.items():
        other = folded.queues[number]
        is_matched = wanted[queue.name] | set(range(other.high))  # what came after `high` is still to be matched with the filter
        assert offsets_of(queue.unsettled) == offsets_of(other.unsettled) & is_matched
        assert {o: observable(trace, now) for o, trace in queue.traces.items()} == {
            o: observable(trace, now) for o, trace in other.traces.items() if queue.unsettled
        }
        for name in ("name", "stream", "created_at", "policy", "spec", "dead", "counters", "epoch", "paused", "detached"):
            assert getattr(queue, name) == getattr(other, name), name
        assert sorted(queue.consumers) == sorted(other.consumers)
        assert list(queue.dead) == list(other.dead), "dead letters are in the order they died"


def observable(trace: Trace, now: int) -> Trace:
    """A trace without what nothing asks for: a delay that is over, the epoch of a lease that is over."""
    due = trace.due if trace.due is not None and trace.due > now else None
    return msgspec.structs.replace(trace, due=due, epoch=trace.epoch if trace.deadline is not None else 0)


def offsets_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for start, stop in ranges for offset in range(start, stop)}


class Replayed:
    """The journal of a live broker, for a second one that starts from its events alone and writes nothing down."""

    is_durable = False

    def __init__(self, origin: Journal) -> None:
        self._origin = origin
        self.read, self.summaries, self.streams = origin.read, origin.summaries, origin.streams
        self.read_events, self.event_range, self.earliest = origin.read_events, origin.event_range, origin.earliest

    def load(self) -> tuple[State, Iterable[Event]]:
        return State(), [event for _, event in self._origin.read_events(0, self._origin.event_range()[1])]

    def append(self, commit: Commit) -> None: ...
    def checkpoint(self, state: State) -> None: ...
    def trim(self, stream: int, chunks: list[int]) -> None: ...
    def trim_events(self, before: int) -> None: ...
    def hold_events(self, start: int | None) -> None: ...
    def close(self) -> None: ...


class FoldedSubscriptionMachine(SubscriptionMachine):
    """Subscriptions whose event log is replayed after every step, and must tell the same."""

    @invariant()
    def folds_to_the_present(self) -> None:
        if self.was_looking and self.models:
            live = self.queue
            assert_folds_to_the_present(live.broker, [*self.models.values()], self.clock.now())
            self.queue = MessageQueue(broker=Broker(clock=self.clock, journal=Replayed(live.broker.journal)))
            try:
                self.compare(self.clock.now())
            finally:
                self.queue.broker.close()
                self.queue = live


class FoldedQueueMachine(QueueMachine):
    """A work queue whose event log is replayed after every step, and must tell the same."""

    @invariant()
    def folds_to_the_present(self) -> None:
        if self.was_looking and self.manager.exists(self.model.name):
            live = self.manager
            assert_folds_to_the_present(live.broker, [self.model], self.clock.now())
            self.manager = QueueManager(broker=Broker(clock=self.clock, journal=Replayed(live.broker.journal)))
            try:
                self.compare(self.clock.now())
            finally:
                self.manager.broker.close()
                self.manager = live


TestSubscriptionsFolded = FoldedSubscriptionMachine.TestCase
TestSubscriptionsFolded.settings = effort(1.5)
TestQueuesFolded = FoldedQueueMachine.TestCase
TestQueuesFolded.settings = effort(2)
