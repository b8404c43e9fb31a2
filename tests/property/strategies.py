"""What the machines draw: settings, messages and steps of time, each in the words of Penstock and of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from penstock import DeadLetterPolicy, FlowControl, QueueConfig, RetryPolicy, SubscriptionOptions
from tests.property.model import Draft, Rules, Terse

SECOND = 1_000_000

_EXAMPLES, _STEPS = settings().max_examples, settings().stateful_step_count
_QUICKER = 3 if settings().derandomize else 1  # the same examples each time: more of them would find a fault once


def effort(share: float) -> settings:
    """The settings of the profile with a share of its examples: cheap lives are tried more often than dear ones."""
    # Explaining a failure traces every line of every try; the shrunk example explains enough.
    phases = [phase for phase in Phase if phase is not Phase.explain]
    return settings(max_examples=max(int(_EXAMPLES * share) // _QUICKER, 1), stateful_step_count=max(_STEPS, 50), phases=phases)


patience = pytest.mark.timeout(120 * max(_EXAMPLES // 25, 1))
"""The time limit of a machine: two minutes where a default run takes seconds, hours where a thorough one takes many."""


@dataclass(frozen=True, repr=False)
class Setting(Terse):
    """The same settings in the words of Penstock and of the model. The dead-letter topic is that of the subscription."""

    options: SubscriptionOptions = field(repr=False)
    rules: Rules


@st.composite
def settings_of_a_subscription(draw: st.DrawFn) -> Setting:
    ack_deadline = draw(st.sampled_from([10, 20, 60]))
    ordered = draw(st.booleans())
    backoff = draw(st.sampled_from([None, (5, 20), (0, 0), (60, 600)]))
    attempts = draw(st.sampled_from([None, 1, 2, 3]))
    flow = draw(st.sampled_from([(None, None), (1, None), (3, None), (None, 25), (3, 40)]))
    wanted = draw(st.sampled_from([None, None, "a"]))
    retention = draw(st.sampled_from([7 * 86_400, 7 * 86_400, 90]))
    overflow = draw(st.sampled_from(["discard", "reject", "spill"]))
    room = draw(st.sampled_from([(10_000, 1 << 30)] * 4 + [(4, 1 << 30), (10_000, 60)]))
    retain = draw(st.sampled_from([True, True, False]))
    options = SubscriptionOptions(
        ack_deadline_seconds=ack_deadline,
        message_ordering=ordered,
        retry_policy=RetryPolicy(*backoff) if backoff else None,
        dead_letter_policy=DeadLetterPolicy("dead", attempts) if attempts else None,
        flow_control=FlowControl(*flow),
        filter=f'attributes.kind = "{wanted}"' if wanted else "",
        message_retention_duration=retention,
        overflow=overflow,
        max_messages=room[0],
        max_bytes=room[1],
        retain_acked_messages=retain,
    )
    rules = Rules(
        ack_deadline=ack_deadline * SECOND,
        ordered=ordered,
        backoff=(backoff[0] * SECOND, backoff[1] * SECOND) if backoff else None,
        max_attempts=attempts,
        dead_letter_topic="dead" if attempts else None,
        flow_messages=flow[0],
        flow_bytes=flow[1],
        max_messages=room[0],
        max_bytes=room[1],
        overflow=overflow,
        wanted_kind=wanted,
        retention=retention * SECOND,
        retain_acked=retain,
    )
    return Setting(options, rules)


GRAVE_SETTINGS = [
    Setting(
        SubscriptionOptions(overflow=overflow, max_messages=room),
        Rules(10 * SECOND, overflow=overflow, max_messages=room, max_bytes=100 << 20, retention=7 * 86_400 * SECOND),
    )
    for overflow, room in (("spill", 10_000), ("discard", 10_000), ("reject", 2))
]


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A message; its delay, if any, counts from the moment it is published and stands in `deliver_at`."""
    if draw(st.integers(0, 2)) == 0:  # plain ones go other ways: as runs, and unread at a restart
        return Draft(b"x", draw(st.sampled_from([{}, {"kind": "a"}, {"kind": "b"}])))
    return Draft(
        data=b"x" * draw(st.integers(1, 20)),
        attributes=draw(st.sampled_from([{}, {"kind": "a"}, {"kind": "b"}, {"kind": "a", "größe": "ü"}])),
        key=draw(st.sampled_from(["", "k", "k", "ключ"])),
        priority=draw(st.sampled_from([5, 5, 5, 0, 9])),
        ttl=draw(st.sampled_from([None, None, None, 5 * SECOND, 15 * SECOND, 100 * SECOND])),
        deliver_at=draw(st.sampled_from([None, None, None, -SECOND, 0, 5 * SECOND, 30 * SECOND])),
        producer=draw(st.sampled_from([None, None, ("p", 1), ("p", 2), ("q", 1)])),
    )


@dataclass(frozen=True, repr=False)
class QueueSetting(Terse):
    """The settings of a work queue in the words of Penstock and of the model, which keeps the time to live apart."""

    config: QueueConfig = field(repr=False)
    rules: Rules
    ttl: int | None


@st.composite
def settings_of_a_queue(draw: st.DrawFn) -> QueueSetting:
    ack_deadline = draw(st.sampled_from([10, 30]))
    retries = draw(st.sampled_from([0, 1, 3]))
    ttl = draw(st.sampled_from([None, None, 60]))
    depth = draw(st.sampled_from([100_000, 100_000, 4]))
    overflow = draw(st.sampled_from(["reject", "reject", "discard", "spill"]))
    prefetch = draw(st.sampled_from([10, 10, 2]))
    backoff = draw(st.sampled_from([None, (5, 20), (60, 600)]))
    has_list = draw(st.sampled_from([True, True, True, False]))
    room = draw(st.sampled_from([10_000, 2]))
    config = QueueConfig(
        max_depth=depth,
        ack_deadline_secs=ack_deadline,
        max_retries=retries,
        default_prefetch=prefetch,
        message_ttl=ttl,
        dead_letter_enabled=has_list,
        dead_letter_max_size=room,
        retry_policy=RetryPolicy(*backoff) if backoff else None,
        overflow=overflow,
    )
    rules = Rules(
        ack_deadline=ack_deadline * SECOND,
        backoff=(backoff[0] * SECOND, backoff[1] * SECOND) if backoff else None,
        max_attempts=retries + 1,
        dead_letter_room=room if has_list else 0,
        max_messages=depth,
        overflow=overflow,
        prefetch=prefetch,
    )
    return QueueSetting(config, rules, None if ttl is None else ttl * SECOND)


@st.composite
def work(draw: st.DrawFn) -> Draft:
    """A message for a work queue; as in `drafts`, a delay stands in `deliver_at`."""
    return Draft(
        data=b"x" * draw(st.integers(0, 20)),
        attributes=draw(st.sampled_from([{}, {}, {"source": "web"}, {"größe": "ü"}])),
        priority=draw(st.sampled_from([5, 5, 5, 0, 9])),
        ttl=draw(st.sampled_from([None, None, None, 5 * SECOND, 15 * SECOND, 100 * SECOND])),
        deliver_at=draw(st.sampled_from([None, None, None, -SECOND, 0, 5 * SECOND, 30 * SECOND])),
        max_attempts=draw(st.sampled_from([None, None, 1, 3])),
        producer=draw(st.sampled_from([None, None, None, ("p", 1), ("p", 2)])),
    )


STEPS = [0.000001, 1, 5, 9.999999, 10, 20, 60, 600]


def instant(at: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
