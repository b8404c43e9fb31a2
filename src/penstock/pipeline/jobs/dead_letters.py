"""Dead letters as frames, without those that were redriven or removed since, with their causes. For `triage` and `redrive`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.log.log import EVENTS
from penstock.log.open import open_log
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.core.dead_letters import Traits, traits_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Target

TRAITS = "error_pattern string, target string, status int, shape string, version string"
"""The columns of `Traits`, which are computed for each letter."""
_REMOVED = ("redriven", "evicted", "purged")
_PLACE = ("stream", "subscription", "message_offset")
_SCHEMA = arrow_schema(TRAITS)

Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def end_of_events(target: Target) -> int:
    """The current end of the event log."""
    with closing(open_log(endpoint=target.endpoint, path=target.path, token=target.token, project=target.project)) as log:
        return log.spans([]).events.latest


def read(spark: SparkSession, target: Target, streams: Sequence[str], stop: int) -> DataFrame:
    """The dead letters of some streams (empty: all) that existed when the event log ended at the offset `stop`.

    With the columns of DEAD_LETTERS, except that `target` is named `dead_letter_topic`, and `is_gone`: whether a letter was
    redriven or removed since then. A letter that died, was redriven and died again is included once.
    """
    reader = spark.read.format("penstock").options(**target.options()).option("failOnDataLoss", False)
    if streams:
        reader = reader.option("subscribe", ",".join(streams))
    events = reader.option("view", "events").load()
    letters = reader.option("view", "deadletters").option("endingOffsets", json.dumps({EVENTS: stop})).load()
    return listed(letters, events, stop).withColumnRenamed("target", "dead_letter_topic")


def listed(letters: DataFrame, events: DataFrame, stop: int) -> DataFrame:
    """Letters that were not redriven or removed between their death and an offset of the event log."""
    removed = events.where(F.col("kind").isin(*_REMOVED)).groupBy(*_PLACE)
    before = F.max(F.when(F.col("offset") < stop, F.col("offset")))
    last = removed.agg(F.max("offset").alias("removed_at"), before.alias("removed_before"))
    left = letters.where(F.col("stream").isNotNull() & F.col("subscription").isNotNull()).join(last, [*_PLACE], "left")
    there = left.where(F.col("removed_before").isNull() | (F.col("removed_before") < F.col("offset")))
    return there.select(*letters.columns, F.coalesce(F.col("removed_at") >= stop, F.lit(False)).alias("is_gone"))


def with_traits(letters: DataFrame, version_attributes: Sequence[str], *, keeps_payload: bool) -> DataFrame:
    """Letters with the columns of TRAITS. With `keeps_payload`, also with payload, attributes and key, which are large."""
    large = set() if keeps_payload else {"value", "attributes", "key"}
    kept = [field for field in letters.schema.fields if field.name not in large]
    columns = ", ".join([*(f"`{field.name}` {field.dataType.simpleString()}" for field in kept), TRAITS])
    names = [field.name for field in kept]
    return letters.mapInArrow(_finder(names, tuple(version_attributes)), columns)


def _finder(names: list[str], version_attributes: tuple[str, ...]) -> Batches:
    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = [
                traits_of(value, dict(attributes or ()), error, version_attributes=version_attributes)
                for value, attributes, error in zip(
                    batch.column("value").to_pylist(),
                    batch.column("attributes").to_pylist(),
                    batch.column("error").to_pylist(),
                    strict=True,
                )
            ]
            columns = [batch.column(name) for name in names]
            columns += [
                pa.array([getattr(one, name) for one in found], field.type)
                for name, field in zip(Traits._fields, _SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=[*names, *_SCHEMA.names])

    return find
