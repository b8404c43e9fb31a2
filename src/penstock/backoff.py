"""Exponential backoff."""

from __future__ import annotations


def exponential(attempt: int, minimum: int, maximum: int) -> int:
    """min(minimum * 2^(attempt - 1), maximum): the delay after the first failure is the minimum."""
    # The shift is bounded so that attempt 1,000,000 does not build a number of 1,000,000 bits.
    return min(minimum << min(attempt - 1, 64), maximum)
