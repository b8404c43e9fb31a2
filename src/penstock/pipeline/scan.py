"""The rows of ranges, as Spark wants them: what a task does. It keeps nothing for the next one, and touches no row in Python."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.errors import InvalidArgument, NotFound, OutOfRange, PenstockError, StreamReplaced
from penstock.log.directory import DirectoryLog
from penstock.log.log import Log, StreamSpan
from penstock.log.open import open_log
from penstock.log.place import place_of
from penstock.pipeline.arrow_types import TYPES
from penstock.pipeline.core.offsets import LostData, Position, beyond, by_name, check, deleted, overtaken, replaced
from penstock.pipeline.core.options import DEAD_LETTERS, LAKE, LOG, SourceOptions, column_names
from penstock.pipeline.core.planning import OffsetRange, plan

if TYPE_CHECKING:
    from penstock.log.log import WritableLog

logger = logging.getLogger("penstock.pipeline")

BATCH_ROWS = 16_384
"""Larger batches are cut: Java holds two or three of them at once for each task."""

CONTACT_SECONDS = 5.0
CURSOR_SECONDS = 2.0

Read = Callable[[int, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Part(InputPartition):
    """What one task reads: ranges of streams."""

    pieces: tuple[OffsetRange, ...]


def open_source(options: SourceOptions) -> Log:
    """What plans on the driver: the log that the options name, the lake, or both as one. With both, the server is asked."""
    if options.storage == LAKE:
        return _with_lake(options, None)
    log = _server(options) if options.endpoint is not None else _directory(options)
    try:
        check_reach(log)
        if options.endpoint is not None and options.path is not None:
            _check_directory(log, options.path)
    except PenstockError:
        log.close()
        raise
    return _with_lake(options, log)


def open_rows(options: SourceOptions) -> Log:
    """What a task reads from: the same. With both a server and its directory, the directory."""
    if options.storage == LAKE:
        return _with_lake(options, None)
    return _with_lake(options, _directory(options) if options.path is not None else _server(options))


def _check_directory(server: Log, path: str) -> None:
    """Refuse what is no data directory, or that of another server, as far as the token lets it be known."""
    from penstock.log.http import HttpLog  # noqa: PLC0415  # a data directory needs none

    DirectoryLog(path).close()
    assert isinstance(server, HttpLog), "that of an endpoint is"
    place = server.place()
    if place.mark is not None and place_of(path).mark != place.mark:
        raise InvalidArgument.of(
            "path", path, f"the data directory of {server!r}, {place.path}", hint="leave it out to read through the server"
        )


def _server(options: SourceOptions) -> Log:
    return open_log(endpoint=options.endpoint, token=options.token, project=options.project, timeout=options.timeout)


def _directory(options: SourceOptions) -> Log:
    return open_log(path=options.path, project=options.project)


def _with_lake(options: SourceOptions, log: Log | None) -> Log:
    if options.storage == LOG and log is not None:
        return log
    from penstock.pipeline.lake.reading import LakeLog  # noqa: PLC0415  # most reads have nothing to do with a lake

    return LakeLog(options, log)


def check_reach(log: Log) -> None:
    """On the driver, before anything else: a missing server is reported within seconds, not when a task gives up."""
    from penstock.log.http import HttpLog  # noqa: PLC0415  # a data directory needs none

    if isinstance(log, HttpLog):
        log.reach(CONTACT_SECONDS)


def open_cursors(options: SourceOptions) -> WritableLog:
    """The server that keeps the cursor. It is not waited for: what it misses, it gets the next time."""
    from penstock.log.http import HttpLog  # noqa: PLC0415  # few queries have a cursor, and no task

    assert options.endpoint is not None, "checked with the options"
    return HttpLog(options.endpoint, token=options.token, project=options.project, timeout=CURSOR_SECONDS)


def find(log: Log, options: SourceOptions) -> dict[str, StreamSpan]:
    """What there is of what the options ask for; NotFound for a stream that is named and missing."""
    if options.is_messages:
        return by_name(log.spans(options.streams, options.pattern), is_messages=True)
    return by_name(log.spans([]), is_messages=False)


def find_present(log: Log, options: SourceOptions) -> dict[str, StreamSpan]:
    """The same, but that streams that are missing are just not there."""
    try:
        return find(log, options)
    except NotFound:
        pattern = "|".join(re.escape(stream) for stream in options.streams or ())
        return by_name(log.spans(pattern=pattern), is_messages=True)


def parts(options: SourceOptions, pieces: Sequence[OffsetRange]) -> list[Part]:
    """The tasks that read some ranges."""
    cores = max(2, len(os.sched_getaffinity(0)))
    planned = plan(pieces, cores=cores, min_partitions=options.min_partitions, max_rows=options.max_partition_rows)
    return [Part(tuple(part)) for part in planned]


def arrow_schema(schema: StructType, options: SourceOptions) -> pa.Schema:
    """The Arrow schema of Spark's, which may be that of the source or, when a user gives one, some of its columns."""
    known = column_names(options.view)
    for field in schema.fields:
        if field.name not in known or field.dataType.simpleString() not in TYPES:
            raise InvalidArgument.of("schema", field.simpleString(), f"columns of {options.view}: {', '.join(known)}")
    return pa.schema([pa.field(field.name, TYPES[field.dataType.simpleString()], field.nullable) for field in schema.fields])


def scan(options: SourceOptions, schema: pa.Schema, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in order, in batches of the schema."""
    log = open_rows(options)
    try:
        for piece in part.pieces:
            read = _reader(log, options, piece, schema.names)
            yield from _fit(surviving(piece, read, is_strict=options.is_strict), schema)
    finally:
        log.close()


def _reader(log: Log, options: SourceOptions, piece: OffsetRange, columns: Sequence[str]) -> Read:
    if options.is_messages:
        span = StreamSpan(piece.stream, piece.number, piece.start, piece.stop, 0)
        return partial(log.messages, span, columns=columns, keys=options.keys)
    return partial(log.dead_letters if options.view == DEAD_LETTERS else log.events, streams=options.streams)


def surviving(piece: OffsetRange, read: Read, *, is_strict: bool) -> Iterator[pa.RecordBatch]:
    """What there still is of a piece. What is gone is an error (`is_strict`), or is reported and skipped."""
    start, stop = piece.start, piece.stop
    while start < stop:
        try:
            yield from read(start, stop)
            return
        except OutOfRange as error:
            if error.earliest > start:
                # Whatever came before this error lies before `earliest`: nothing is read twice.
                loss = overtaken(piece.stream, max(start, error.offset), min(error.earliest, stop))
                start = error.earliest
            elif error.latest < stop:
                loss, stop = beyond(piece.stream, stop, error.latest), error.latest
            else:
                raise
            _report(loss, error, is_strict=is_strict)
        except NotFound as error:
            _report(deleted(piece.stream, Position(piece.number, start)), error, is_strict=is_strict)
            return
        except StreamReplaced as error:
            _report(replaced(piece.stream, Position(piece.number, start), str(error)), error, is_strict=is_strict)
            return


def _report(loss: LostData, error: Exception, *, is_strict: bool) -> None:
    if is_strict:
        check([loss], error)
    logger.warning("skipped: %s", loss.text)


def _fit(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Batches exactly as Spark expects them: these columns in this order, these types, not too many rows."""
    for batch in batches:
        columns = [batch.column(field.name) for field in schema]
        fitting = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        whole = pa.RecordBatch.from_arrays(fitting, schema=schema)
        for first in range(0, whole.num_rows, BATCH_ROWS):
            yield whole.slice(first, BATCH_ROWS)
