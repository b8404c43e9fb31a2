"""The life of a message, by its id."""

from penstock import Broker, Message, MessageQueue
from penstock.testing import ManualClock


def test_the_id_of_another_broker_names_nothing_here() -> None:
    ours, theirs = ManualClock(), ManualClock()
    theirs.advance(1)
    with Broker(clock=ours) as broker, Broker(clock=theirs) as other:
        for one in (broker, other):
            MessageQueue(broker=one).register_topic("t")
        [mine] = MessageQueue(broker=broker).publish("t", [Message(b"x")])
        [stranger] = MessageQueue(broker=other).publish("t", [Message(b"x")])

        assert [row.kind for row in broker.history(mine)] == ["published"]
        assert broker.history(stranger) == []
