"""A kit for testing code that uses Penstock, and for testing Penstock itself."""

from penstock.testing.clock import ManualClock

__all__ = ["ManualClock"]
