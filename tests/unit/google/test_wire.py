"""What is written directly is what protobuf itself writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.google import messages, wire
from penstock.ids import ack_id, message_id
from penstock.values.lease import Lease
from penstock.values.message import StoredMessage

texts = st.text(st.characters(codec="utf-8"), max_size=300)
stored = st.builds(
    StoredMessage,
    publish_at=st.integers(0, 1 << 52),
    data=st.one_of(st.binary(max_size=300), st.integers(0, 40_000).map(bytes)),
    attributes=st.none() | st.dictionaries(texts, texts, max_size=4),
    key=texts,
    priority=st.just(5),
    size=st.just(0),
    origin_at=st.none() | st.integers(1, 1 << 52),
)
leases = st.lists(
    st.builds(
        Lease,
        deadline=st.just(0),
        offset=st.integers(0, (1 << 40) - 1),
        attempt=st.integers(1, 1 << 30),
        epoch=st.integers(0, (1 << 32) - 1),
        message=stored,
    ),
    max_size=5,
)


@given(leases, st.integers(1, (1 << 23) - 1), st.integers(1, (1 << 23) - 1), st.booleans())
def test_deliveries_are_the_bytes_of_the_same_messages_made_by_protobuf(
    given_leases: list[Lease], queue: int, stream: int, with_attempt: bool
) -> None:
    expected = messages.PullResponse()
    for lease in given_leases:
        message = lease.message
        received = expected.received_messages.add(ack_id=ack_id(queue, lease.offset, lease.attempt, lease.epoch))
        received.message.data = message.data
        received.message.attributes.update(message.attributes or {})
        received.message.message_id = message_id(message.publish_at, stream, lease.offset)
        received.message.publish_time.FromMicroseconds(message.origin_at or message.publish_at)
        received.message.ordering_key = message.key
        if with_attempt:
            received.delivery_attempt = lease.attempt

    written = b"".join(wire.received(queue, stream, given_leases, with_attempt=with_attempt))
    assert messages.PullResponse.FromString(written) == expected
    assert messages.StreamingPullResponse.FromString(written).received_messages == expected.received_messages


@given(st.lists(st.integers(0, (1 << 40) - 1).map(lambda offset: message_id(7, 1, offset)), max_size=20))
def test_a_publish_answer_is_the_same(ids: list[str]) -> None:
    assert wire.published(ids) == messages.PublishResponse(message_ids=ids).SerializeToString()


@given(st.integers(0, 1 << 60))
def test_varints_are_those_of_protobuf(number: int) -> None:
    assert messages.Duration.FromString(b"\x08" + wire.varint(number)).seconds == number
