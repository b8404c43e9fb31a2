"""The lifecycle job: from events to one row for each life of a message in a subscription. See `core/lifecycle.py` for the rules.

Neighbouring messages of a stream are a bucket, which is folded in one call of Python: a call for every message would cost more
than the fold itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from penstock.pipeline.core.lifecycle import BUCKET, KINDS, Lives, Row, mark
from penstock.pipeline.jobs.wiring import add, begin, event_stream
from penstock.pipeline.schemas import LEVELS_STREAM, LIFECYCLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.job import Plan

NAME = "lifecycle"
"""Of the query, its cursor at the server, and its table."""

_COLUMNS = (
    "offset",
    "at_us",
    "kind",
    "subscription",
    "message_offset",
    "message_id",
    "attempt",
    "consumer",
    "until",
    "cause",
)
_FOLDED = LIFECYCLE.replace(" not null", "").replace("timestamp", "bigint")
"""The columns of LIFECYCLE as Python returns them: times are numbers, which need no conversion."""
_NUMBERS = dict.fromkeys(("published_at", "first_delivered_at", "settled_at"), "Int64")
_INSTANTS = frozenset(_NUMBERS) | {"updated_at"}
_STATE = "lives binary"


def transform(events: DataFrame, *, watermark: str = "10 minutes", is_streaming: bool | None = None) -> DataFrame:
    """Rows with the columns of LIFECYCLE from rows with those of EVENTS, for finite and streaming frames.

    In a finite frame, lives that are unsettled at the end are `open`. In a stream, they are `open` when the watermark has passed
    both their last event and the next due one (the end of a lease or a delay). Set `is_streaming` in a declarative pipeline,
    where the frame cannot be asked.
    """
    endless = events.isStreaming if is_streaming is None else is_streaming
    detail = F.col("detail")
    chosen = events.where(
        F.col("kind").isin(*KINDS)
        & F.col("stream").isNotNull()
        & F.col("message_offset").isNotNull()
        & (F.col("subscription").isNotNull() | (F.col("kind") == "published"))
    )
    if endless:
        chosen = chosen.withWatermark("at", watermark)
    flat = chosen.select(
        "stream",
        F.floor(F.col("message_offset") / BUCKET).alias("bucket"),
        "at",
        "offset",
        F.unix_micros("at").alias("at_us"),
        "kind",
        "subscription",
        "message_offset",
        "message_id",
        # No nulls in integer columns: pandas would convert them to floats.
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        "consumer",
        F.coalesce(detail["deadline"], detail["due"], F.lit("0")).cast("bigint").alias("until"),
        F.coalesce(detail["cause"], F.lit("")).alias("cause"),
    )
    if endless:
        folded = flat.groupBy("stream", "bucket").applyInPandasWithState(
            _fold_batch, _FOLDED, _STATE, "append", GroupStateTimeout.EventTimeTimeout
        )
    else:
        folded = flat.drop("at").groupBy("stream", "bucket").applyInPandas(_fold_all, _FOLDED)
    return folded.select(*(_typed(name) for name in _names(LIFECYCLE)))


def start(spark: SparkSession, plan: Plan) -> list[StreamingQuery]:
    """Fold the event log of a server or a data directory into the table `lifecycle` of the lake, and count late rows."""
    rows = transform(event_stream(spark, plan, NAME), watermark=plan.watermark)
    # Reported in the progress of the query, as `observedMetrics`.
    rows = rows.observe(NAME, F.count(F.lit(1)).alias("rows"), F.count_if("is_late").alias("late"))
    return [begin(rows, plan, NAME, lambda batch, query, number: _write(batch, plan, query, number))]


def _write(batch: DataFrame, plan: Plan, query: str, number: int) -> None:
    add(batch, plan, NAME, "updated_at", query=query, batch=number)


def _names(schema: str) -> list[str]:
    return [field.split()[0] for field in schema.split(", ")]


def _typed(name: str) -> Column:
    return F.timestamp_micros(name).alias(name) if name in _INSTANTS else F.col(name)


def _fold_all(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    lives = Lives()
    rows = lives.fold(_events([frame])) + lives.finish()
    return _frame(str(key[0]), rows)


def _fold_batch(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Fold the events of a bucket in a micro-batch, or handle its timeout."""
    _hush()
    lives = Lives.load(bytes(state.get[0])) if state.exists else Lives()
    watermark = state.getCurrentWatermarkMs()
    news = [] if state.hasTimedOut else [*_events(list(frames))]
    rows = lives.fold(news)
    if news and key[0] == LEVELS_STREAM:
        rows.append(mark(*news[-1][:2]))
    # Fold new events first: they may settle or extend lives that would expire.
    rows += lives.expire(watermark * 1000)
    expiry = lives.next_expiry()
    if expiry is None:
        if state.exists:
            state.remove()
    else:
        state.update((lives.dump(),))
        # Spark requires a time after the watermark, and calls again when the watermark has passed it.
        state.setTimeoutTimestamp(max(-(-expiry // 1000), watermark + 1))
    if rows:
        yield _frame(str(key[0]), rows)


@cache
def _hush() -> None:
    """Suppress a warning of pandas, once in each worker: Spark pads results with empty rows."""
    warnings.filterwarnings("ignore", "The behavior of DataFrame concatenation", FutureWarning, r"pyspark\.worker")


def _events(frames: list[pd.DataFrame]) -> Iterator[tuple[Any, ...]]:
    """The events of some frames, in the order of their offsets."""
    together = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    ordered = together.sort_values("offset", kind="stable") if not together["offset"].is_monotonic_increasing else together
    return zip(*(ordered[name].tolist() for name in _COLUMNS), strict=True)


def _frame(stream: str, rows: list[Row]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(Row._fields)).astype(_NUMBERS)
    frame.insert(0, "stream", stream)
    return frame
