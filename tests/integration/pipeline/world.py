"""A server on disk and the readers of the source, asked as Spark asks them, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from pyspark.sql import types

from penstock import Message, MessageQueue
from penstock.pipeline.core.options import schema_of, source_options
from penstock.pipeline.reader import BatchReader
from penstock.pipeline.source import PenstockDataSource
from penstock.pipeline.stream_reader import StreamReader
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer

DAYS = 86_400
KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "tinyint": types.ByteType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


class World:
    """A server on disk, and both ways to its log."""

    def __init__(self, server: LocalServer, clock: ManualClock, data: Path) -> None:
        self.server = server
        self.clock = clock
        self.queue = MessageQueue(broker=server.broker)
        self.ways = {"endpoint": server.url, "path": str(data)}
        self.way = "endpoint"

    def publish(self, stream: str, *payloads: bytes, key: str = "") -> list[str]:
        if not self.queue.topic_exists(stream):
            self.queue.register_topic(stream)
        return self.queue.publish(stream, [Message(data=payload, ordering_key=key) for payload in payloads])

    def count(self, stream: str, rows: int) -> None:
        """So many more messages, each with its offset as text."""
        first = self.server.broker.catalog.topic(stream).next_offset if self.queue.topic_exists(stream) else 0
        self.publish(stream, *(b"%d" % offset for offset in range(first, first + rows)))

    def retain(self) -> None:
        """Let retention remove all that was published until now; something new is what makes it look."""
        self.clock.advance(8 * DAYS)
        self.publish("other", b"x")
        self.server.broker.sync()

    def source(self, **options: str) -> PenstockDataSource:
        return PenstockDataSource({self.way: self.ways[self.way], **options})

    def batch(self, **options: str) -> BatchReader:
        source = self.source(**options)
        reader = source.reader(schema(source))
        assert isinstance(reader, BatchReader)
        return reader

    def stream(self, **options: str) -> StreamReader:
        begin = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
        source = self.source(**begin | options)
        reader = source.streamReader(schema(source))
        assert isinstance(reader, StreamReader)
        return reader


def schema(source: PenstockDataSource) -> types.StructType:
    """What Spark makes of the text: without Java, by hand."""
    fields = types.StructType()
    for column in schema_of(source_options(source.options)).split(", "):
        name, kind, *rest = column.split(" ")
        fields = fields.add(name, KINDS[kind], not rest)
    return fields


def rows(reader: BatchReader | StreamReader, parts: Any) -> list[dict[str, Any]]:
    """What the tasks of these partitions give, after the way there."""
    there: BatchReader | StreamReader = pickle.loads(pickle.dumps(reader)) if isinstance(reader, BatchReader) else reader
    return [row for part in parts for batch in there.read(pickle.loads(pickle.dumps(part))) for row in batch.to_pylist()]


def everything(reader: BatchReader) -> list[dict[str, Any]]:
    return rows(reader, reader.partitions())


def places(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["stream"], row["offset"]) for row in found]


def values(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in found]


class Query:
    """Asks a reader as a streaming query does, and remembers what a checkpoint would."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.at = reader.initialOffset()

    def batch(self, limit: Any = None) -> list[dict[str, Any]]:
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        found = rows(self.reader, self.reader.partitions(self.at, end))
        self.reader.commit(end)
        self.at = end
        return found

    def rest(self) -> list[list[dict[str, Any]]]:
        """Batches until there are no more."""
        batches: list[list[dict[str, Any]]] = []
        while True:
            before = self.at
            found = self.batch()
            if self.at == before:
                return batches
            batches.append(found)
