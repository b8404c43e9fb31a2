"""Ordering keys against the model: streams with a window, which hold several messages of a key, beside pulls of one at a time.

The machine is that of all subscriptions, with fewer commands and with messages that mostly share a key, so that its short lives
meet what is rare there: a key of which three are out and the second fails. The model proves that nothing is lost, and that a nack
or an expiry brings a message and all later ones of its key again, in order; `check_reasons` proves of the broker alone that no
message overtakes an older one of its key, and that a key is out at one consumer at a time.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock import DeadLetterPolicy, FlowControl, RetryPolicy, SubscriptionOptions
from tests.property.model import Draft, Rules
from tests.property.strategies import SECOND, Setting, effort, patience
from tests.property.test_message_queue_machine import CONSUMERS, SubscriptionMachine, picks
from tests.property.test_restart import DurableSubscriptionMachine

NAME = "s0"
DEADLINE = 10


@st.composite
def ordered_subscriptions(draw: st.DrawFn) -> Setting:
    backoff = draw(st.sampled_from([None, None, (5, 20)]))
    attempts = draw(st.sampled_from([None, None, 2, 3]))
    flow = draw(st.sampled_from([(None, None), (None, None), (4, None), (None, 25)]))
    options = SubscriptionOptions(
        ack_deadline_seconds=DEADLINE,
        message_ordering=True,
        retry_policy=RetryPolicy(*backoff) if backoff else None,
        dead_letter_policy=DeadLetterPolicy("dead", attempts) if attempts else None,
        flow_control=FlowControl(*flow),
        overflow="spill",
    )
    rules = Rules(
        ack_deadline=DEADLINE * SECOND,
        ordered=True,
        backoff=(backoff[0] * SECOND, backoff[1] * SECOND) if backoff else None,
        max_attempts=attempts,
        dead_letter_topic="dead" if attempts else None,
        flow_messages=flow[0],
        flow_bytes=flow[1],
        retention=7 * 86_400 * SECOND,
    )
    return Setting(options, rules)


keyed = st.builds(
    Draft,
    data=st.sampled_from([b"x", b"xxxxxxxx"]),
    key=st.sampled_from(["k", "k", "k", "l", ""]),
    priority=st.sampled_from([5, 5, 5, 9]),
    ttl=st.sampled_from([None, None, None, None, 15 * SECOND]),
    deliver_at=st.sampled_from([None, None, None, None, 5 * SECOND]),
)


class OrderingMachine(SubscriptionMachine):
    """One subscription with ordering keys, two streams and a puller."""

    take_snapshot = seek_to_snapshot = subscribe_anew = change_outlet = replace_topic = work = change_deadline = None  # type: ignore[assignment]  # not here

    @initialize(setting=ordered_subscriptions(), has_grave=st.booleans(), batch=st.lists(keyed, min_size=4, max_size=8))
    def create(self, setting: Setting, has_grave: bool, batch: list[Draft]) -> None:
        super().create(setting, setting, has_grave, [batch])

    @rule(batch=st.lists(keyed, min_size=1, max_size=3))
    def publish(self, batch: list[Draft]) -> None:
        super().publish(batch)

    @rule(want=st.integers(1, 6), consumer=st.sampled_from(CONSUMERS), key_window=st.sampled_from([1, 2, 3, 1_000, 1_000]))
    def stream(self, want: int, consumer: str, key_window: int) -> None:
        super().stream(NAME, want, consumer, key_window)

    @rule(want=st.integers(1, 6))
    def pull(self, want: int) -> None:
        super().pull(NAME, want)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def release(self, consumer: str) -> None:
        super().release(NAME, consumer)

    @rule(pick=picks)
    def seek(self, pick: int) -> None:
        super().seek(NAME, pick, None)

    @rule(paused=st.sampled_from([False, False, True]))
    def pause(self, paused: bool) -> None:
        super().pause(NAME, paused)

    @rule(pick=picks, seconds=st.sampled_from([1, 30]))
    def extend(self, pick: int, seconds: int) -> None:
        """Leases that were granted together end apart."""
        if self.tokens:
            super().change_deadline(pick, seconds, False)

    @rule(seconds=st.sampled_from([1, 5, DEADLINE]), is_looking=st.booleans())
    def advance(self, seconds: float, is_looking: bool) -> None:
        super().advance(seconds, is_looking)


class DurableOrderingMachine(OrderingMachine, DurableSubscriptionMachine):
    """The same on disk: leases, and which of a key are out at whom, outlive a restart and a crash."""


TestKeysInMemory = patience(OrderingMachine.TestCase)
TestKeysInMemory.settings = effort(6)
TestKeysAcrossRestarts = patience(DurableOrderingMachine.TestCase)
TestKeysAcrossRestarts.settings = effort(1)
