"""Fixtures for the tests of programs that use Penstock. Installing Penstock installs them; there is nothing to configure.

    def test_a_failed_payment_is_tried_again_after_three_days(pubsub, clock):
        ...
        clock.advance(timedelta(days=3))

`clock` moves only when the test advances it. `broker` is a broker in memory with this clock. `pubsub` is the blocking client
(`penstock.sync`) on that broker; asynchronous code under test takes `penstock.PubSub(broker=broker)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.testing.clock import ManualClock

# pytest loads this module in every run, also if no test uses it, so imports are inside the fixtures.


@pytest.fixture
def clock() -> ManualClock:
    """Time that stands still until `advance`."""
    from penstock.testing.clock import ManualClock  # noqa: PLC0415  # see above

    return ManualClock()


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[Broker]:
    """A broker in memory that uses `clock`."""
    from penstock.broker.broker import Broker  # noqa: PLC0415  # see above

    with Broker(clock=clock) as opened:
        yield opened


@pytest.fixture
def pubsub(broker: Broker) -> Iterator[Any]:
    """The blocking client on `broker`."""
    from penstock.sync import PubSub  # noqa: PLC0415  # see above

    with PubSub(broker=broker) as opened:
        yield opened
