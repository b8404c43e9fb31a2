"""What tests of staged writes share: a broker with its writes, and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock import Broker, MessageQueue
from penstock.broker.log_view import BrokerLog
from penstock.log import arrow
from penstock.log.staging import PartInfo
from penstock.log.writes import CommitResult, Writes
from penstock.values.descriptions import StreamDescription


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
    )


def body_of(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def finder(broker: Broker) -> Callable[[str], StreamDescription]:
    return BrokerLog(broker).stream


class Desk:
    """A broker and its writes, with short words for what tests do."""

    def __init__(self, broker: Broker, **options: Any) -> None:
        self.broker = broker
        self.writes = Writes(broker, **options)

    def stage(self, write: str, part: str, *batches: pa.RecordBatch, stream: str | None = "t") -> PartInfo:
        return self.send(write, part, body_of(*batches), stream=stream)

    def send(self, write: str, part: str, body: bytes, *, stream: str | None = "t") -> PartInfo:
        with self.writes.staging.upload(write, part) as upload:
            upload.write(body)
            return self.writes.settle(upload, finder(self.broker), stream=stream)

    def commit(self, write: str, *parts: str, query: str | None = "q", batch: int = 0, note: str = "") -> CommitResult:
        return self.writes.commit(write, parts, query=query, batch=batch, find=finder(self.broker), note=note)

    def values(self, stream: str = "t") -> list[bytes]:
        found = arrow.read_stream(self.broker, stream, columns=["value"])
        return [value for batch in found for value in batch.column(0).to_pylist()]

    def files(self) -> list[str]:
        root = self.writes.staging.root
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def opened(path: Path) -> Broker:
    broker = Broker(data_dir=path)
    for topic in ("t", "u"):
        if topic not in broker.catalog.topics:
            MessageQueue(broker=broker).register_topic(topic)
    return broker
