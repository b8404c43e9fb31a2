"""What operators and their tools ask: is it alive, is it ready, and its numbers in Prometheus' text format."""

from penstock.doors.monitoring.broker import broker_collector
from penstock.doors.monitoring.process import LoopLag, process_collector
from penstock.doors.monitoring.routes import Readiness, monitoring_routes
from penstock.doors.monitoring.samples import Collector, Histogram, Metric, Sample, exposition
from penstock.doors.monitoring.traffic import traffic_collector

__all__ = [
    "Collector",
    "Histogram",
    "LoopLag",
    "Metric",
    "Readiness",
    "Sample",
    "broker_collector",
    "exposition",
    "monitoring_routes",
    "process_collector",
    "traffic_collector",
]
