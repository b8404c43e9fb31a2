"""Health, readiness and Prometheus metrics on the HTTP port."""

from penstock.http.monitoring.routes import Readiness, monitoring_routes
from penstock.http.monitoring.samples import Collector, Histogram, Metric, Sample, exposition

__all__ = ["Collector", "Histogram", "Metric", "Readiness", "Sample", "exposition", "monitoring_routes"]
