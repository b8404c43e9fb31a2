"""A full subscription is warned of at once, and then once a second, whatever is published."""

import pytest

from penstock import Message, MessageQueue, SubscriptionOptions


def test_a_flood_of_discarded_messages_is_no_flood_of_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with MessageQueue() as queue:
        queue.register_topic("t")
        queue.register_subscription("s", "t", SubscriptionOptions(max_messages=1))
        for _ in range(1_000):
            queue.publish("t", [Message(b"x"), Message(b"y")])

        said = [record.getMessage() for record in caplog.records]
        assert said[0] == "'s' is full: 1 new messages were discarded for it"
        assert len(said) < 10
        assert queue.stats("s").discarded_total == 1_999
