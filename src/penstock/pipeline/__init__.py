"""The data pipeline: the log as a Spark source and sink, the lake, and the jobs. Only this package uses pyspark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument
from penstock.pipeline.progress import Lag, lags_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["Lag", "lag", "messages", "publish_batches"]


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
    """The messages of a stream, or of several separated by commas, each row once.

    `storage` is the source: `auto` reads archived messages from `lake`, and the rest from the log at `endpoint` or `path`, split
    at the exact watermark; `lake` reads only archived messages, and needs no log; `log` reads only what the log still has.
    Other options are those of `format("penstock")`.
    """
    given = {"lake": lake, "endpoint": endpoint, "path": path, "token": token, "project": project, **options}
    reader = spark.read.format("penstock").option("subscribe", stream).option("storage", storage)
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value).lower() if isinstance(value, bool) else str(value))
    return reader.load()


def lag(progress: StreamingQueryProgress) -> dict[str, Lag]:
    """How many rows and bytes a query is behind in each stream. Pass `query.lastProgress`, or the progress of a listener."""
    return lags_of(json.loads(progress.json))


def publish_batches(**options: object) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that publishes each batch once, in every output mode, even if Spark repeats the batch.

    Options are those of writing with `format("penstock")`. The option `query` defaults to the id of the streaming query. With
    Spark Connect it is required, and must not change while the checkpoint exists.
    """
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if "batch" in given:
        raise InvalidArgument.of("batch", given["batch"], "none: Spark numbers the batches")

    def publish(batch: DataFrame, number: int) -> None:
        query = given.get("query") or _query_of(batch)
        batch.write.format("penstock").mode("append").options(**given | {"query": query, "batch": str(number)}).save()

    return publish


def _query_of(batch: DataFrame) -> str:
    """The id of the query of a batch, which is stored in its checkpoint."""
    context = getattr(batch.sparkSession, "_sc", None)  # a session of Spark Connect has none
    query: str | None = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise InvalidArgument("query is missing, and Spark does not name it here", hint="publish_batches(query=NAME, …)")
    return query
