"""The data pipeline: the log as a Spark data source and sink, the lake, and the jobs between them. Nothing else has pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["messages"]


def messages(
    spark: SparkSession,
    stream: str,
    *,
    lake: str | None = None,
    endpoint: str | None = None,
    path: str | None = None,
    token: str | None = None,
    project: str | None = None,
    storage: str = "auto",
    **options: object,
) -> DataFrame:
    """The messages of a stream, or of several with commas between them, each row once.

    `storage` says where from: `auto` takes what is archived from `lake`, and the rest from the log behind `endpoint` or `path`,
    split at the exact watermark; `lake` takes only what is archived, and needs no log; `log` takes only what the log still has.
    Other options are those of `format("penstock")`.
    """
    given = {"lake": lake, "endpoint": endpoint, "path": path, "token": token, "project": project, **options}
    reader = spark.read.format("penstock").option("subscribe", stream).option("storage", storage)
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()
