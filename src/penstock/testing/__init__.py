"""A kit for testing code that uses Penstock, and for testing Penstock itself."""

from penstock.testing.clock import ManualClock
from penstock.testing.conformance import check_journal
from penstock.testing.faults import FaultyDisk
from penstock.testing.simulator import Report, Simulation, SimulationFailed

__all__ = ["FaultyDisk", "ManualClock", "Report", "Simulation", "SimulationFailed", "check_journal"]
