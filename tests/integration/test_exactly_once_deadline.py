"""Exactly once at the instant a lease ends: an ack that comes too late is never confirmed."""

from __future__ import annotations

import grpc
import pytest

from penstock.testing import ManualClock
from tests.conformance.topic_drivers import Given, Grpc, Refused

FAILED_PRECONDITION = 9


def test_an_ack_after_the_deadline_is_refused_also_when_nobody_has_looked_since() -> None:
    google = Grpc(ManualClock(), None)
    try:
        google.create_topic("orders")
        google.subscribe("once", "orders", exactly_once=True)
        google.publish("orders", Given(b"a"))
        [late] = google.pull("once")
        google.clock.advance(10)
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                google.ack("once", late.ack_id)
            assert refused.value.code == FAILED_PRECONDITION == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        google.clock.advance(1)
        [again] = google.pull("once")
        google.ack("once", again.ack_id)
        google.ack("once", again.ack_id)
    finally:
        google.close()
