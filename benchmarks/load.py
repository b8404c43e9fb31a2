"""What the loads of the client's rows and of their peers have in common: the same sizes on both sides."""

from __future__ import annotations

from benchmarks.row import PAYLOAD

DATA = b"x" * PAYLOAD
STREAM = "rows"
AWAITS = 100
IN_FLIGHT = 1_000
BATCH = 100
BATCHES_IN_FLIGHT = 8
DEADLINE = 120
"""Seconds after which a load has failed."""


def warm_up(number: int) -> int:
    """Which part of a load runs before the clock does, so that connections are made and both sides are warm: about a tenth."""
    return max(number // 10 // IN_FLIGHT, 1) * IN_FLIGHT
