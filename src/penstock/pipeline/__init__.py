"""The data pipeline: the log as a Spark data source and sink, the lake, and the jobs between them. Nothing else has pyspark."""

from penstock.pipeline.relation import messages

__all__ = ["messages"]
