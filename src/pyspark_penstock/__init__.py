"""The name under which Spark finds Penstock: `spark.read.format("penstock")` looks for `DefaultSource` here, and nothing else."""

from penstock.pipeline.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
