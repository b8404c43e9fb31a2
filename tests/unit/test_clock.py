"""The clocks: which one measures what."""

from __future__ import annotations

from penstock.clock import SystemClock, monotonic, steady
from penstock.testing import ManualClock


def test_spans_are_measured_by_what_never_steps_unless_it_is_a_test_that_says_when() -> None:
    assert steady(SystemClock()) is monotonic
    clock = ManualClock()
    now = steady(clock)
    before = now()
    clock.advance(3)
    assert now() - before == 3_000_000
