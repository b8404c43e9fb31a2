"""What the archive's tests share: a served broker, a lake beside it, and the two compared row by row."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from penstock import Message, MessageQueue
from penstock.log.http import HttpLog
from penstock.log.log import EVENTS
from penstock.pipeline.job import Plan, Target
from penstock.pipeline.jobs import archive
from penstock.pipeline.lake.table import Lake
from penstock.testing.server import LocalServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Place:
    """A broker and its lake."""

    def __init__(self, server: LocalServer, home: Path) -> None:
        self.server = server
        self.topics = MessageQueue(broker=server.broker)
        self.lake = home / "lake"
        self.plan = Plan(Target(endpoint=server.url), str(self.lake), str(home / "checkpoints"), is_once=True)

    def publish(self, stream: str, count: int, **fields: Any) -> None:
        """Publish some messages to a topic, made if it is new."""
        if not self.topics.topic_exists(stream):
            self.topics.register_topic(stream)
        self.topics.publish(stream, [Message(b"%s %d \xff" % (stream.encode(), index), **fields) for index in range(count)])

    def archive(self, spark: SparkSession, **changes: Any) -> None:
        """Archive what there is."""
        queries = archive.start(spark, replace(self.plan, **changes))
        try:
            for query in queries:
                query.awaitTermination()
        finally:
            for query in queries:
                query.stop()

    def check(self) -> None:
        """The lake has every message and event of the log, once."""
        with closing(HttpLog(self.server.url)) as log:
            spans = log.spans()
            for span in spans.streams:
                wanted = [row for batch in log.messages(span, span.earliest, span.latest) for row in batch.to_pylist()]
                assert self.rows("messages", span.stream, span.number) == wanted
            events = [row for batch in log.events(spans.events.earliest, spans.events.latest) for row in batch.to_pylist()]
        archived = self.rows("events", "")
        assert archived == events[: len(archived)]

    def rows(self, name: str, stream: str, number: int = 0) -> list[dict[str, Any]]:
        """The archived rows of a stream, as any reader of Delta tables finds them, in order."""
        import pyarrow.dataset as ds

        dataset = DeltaTable(str(self.lake / name)).to_pyarrow_dataset()
        is_mine = (ds.field("stream") == stream) & (ds.field("stream_number") == number) if stream else None
        found: list[dict[str, Any]] = dataset.to_table(filter=is_mine).sort_by("offset").to_pylist()
        for row in found:
            row.pop("date")
            assert row.pop("stream_number", number) == number
        return found

    def files(self, name: str = "messages") -> int:
        return len(DeltaTable(str(self.lake / name)).file_uris())

    def offset(self, stream: str) -> int:
        """How far a stream is archived."""
        return Lake(self.lake).table("events" if stream == EVENTS else "messages").watermark().streams[stream].offset


def checksum(df: DataFrame) -> tuple[int, int]:
    """How many rows, and a number that changes with any of them."""
    row = df.selectExpr(
        "count(*) rows",
        "sum(cast(xxhash64(stream, offset, message_id, key, value, to_json(attributes), priority, publish_time, expires_at)"
        " as decimal(38))) hash",
    ).first()
    assert row is not None
    return row["rows"], int(row["hash"] or 0)
