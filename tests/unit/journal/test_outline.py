"""A checkpoint read in outline tells of names and offsets what the whole of it tells."""

from __future__ import annotations

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.journal.core.checkpoint import State, encode
from penstock.journal.core.outline import Outline, decode
from penstock.testing import ManualClock


def used() -> Broker:
    """A broker with something of every kind, and something of every kind deleted."""
    broker = Broker(clock=ManualClock())
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    for name in ("orders", "users", "gone"):
        queue.register_topic(name)
        queue.register_subscription(f"of {name}", name)
        queue.publish(name, [Message(b"x", producer_id="p", sequence=1), Message(b"y")])
    queue.pull("of orders")
    queue.create_snapshot("here", "of orders")
    queues.create("tasks")
    queues.create("lost")
    queues.publish("tasks", "x")
    queues.delete("lost")
    queue.unregister_topic("gone")
    queue.unregister_subscription("of gone")
    queue.unregister_subscription("of users")
    return broker


def same(outline: Outline, state: State) -> bool:
    streams = {n: (s.number, s.kind, s.name, s.next_offset, s.published_at) for n, s in state.streams.items()}
    queues = {n: (q.number, q.name, q.stream) for n, q in state.queues.items()}
    assert {n: (s.number, s.kind, s.name, s.next_offset, s.published_at) for n, s in outline.streams.items()} == streams
    assert {n: (q.number, q.name, q.stream) for n, q in outline.queues.items()} == queues
    assert outline.deleted_resources == state.deleted_resources
    return True


def test_an_outline_is_the_state_without_the_insides() -> None:
    with used() as broker:
        state = broker.catalog.state()
        assert same(decode(encode(state)), state)
        assert {gone.name for gone in state.deleted_resources.values()} == {"gone", "of gone", "of users", "lost"}


def test_an_outline_follows_the_events_as_the_state_does() -> None:
    with used() as broker:
        happened = [event for _, event in broker.journal.read_events(0, broker.journal.event_range()[1])]
        for cut in range(len(happened) + 1):
            state = State()
            state.replay(happened[:cut])
            outline = decode(encode(state))
            outline.follow(happened[cut:])
            assert same(outline, broker.catalog.state())


def test_an_outline_says_whether_names_have_changed() -> None:
    with used() as broker:
        happened = [event for _, event in broker.journal.read_events(0, broker.journal.event_range()[1])]
        outline = Outline()
        changed = [type(event).__name__ for event in happened if outline.follow([event])]
        assert set(changed) == {"TopicCreated", "TopicDeleted", "QueueCreated", "QueueDeleted"}


def test_a_checkpoint_of_before_the_departed_were_kept_is_read() -> None:
    with used() as broker:
        state = broker.catalog.state()
        state.deleted_resources = {}
        old = encode(state)
        assert old[0] == 0x96, "a short array of six fields"
        assert old.endswith(b"\x80"), "the last of them an empty map"
        before = b"\x95" + old[1:-1]
        assert same(decode(before), state)
