"""A kit for testing code that uses Penstock, and for testing Penstock itself."""

from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk

__all__ = ["FaultyDisk", "ManualClock"]
