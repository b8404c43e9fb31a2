"""Reads the rows of ranges in a task of Spark. It keeps no state between tasks, and processes no single row in Python."""

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
"""Larger batches are split: Java holds two or three of them at once for each task."""

CONTACT_SECONDS = 5.0
CURSOR_SECONDS = 2.0

Read = Callable[[int, int], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Part(InputPartition):
    """The ranges of streams that one task reads."""

    pieces: tuple[OffsetRange, ...]


def open_source(options: SourceOptions) -> Log:
    """The log to plan with on the driver: the log of the options, the lake, or both combined. It prefers the server."""
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
    """The log that a task reads from: as in `open_source`, but it prefers the directory if there is also a server."""
    if options.storage == LAKE:
        return _with_lake(options, None)
    return _with_lake(options, _directory(options) if options.path is not None else _server(options))


def _check_directory(server: Log, path: str) -> None:
    """Refuse a path that is not a data directory, or that of another server, as far as the token allows the check."""
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
    from penstock.pipeline.lake.reading import LakeLog  # noqa: PLC0415  # most reads do not use a lake

    return LakeLog(options, log)


def check_reach(log: Log) -> None:
    """Check on the driver, before anything else, so that a missing server is reported within seconds, not when a task fails."""
    from penstock.log.http import HttpLog  # noqa: PLC0415  # a data directory needs none

    if isinstance(log, HttpLog):
        log.reach(CONTACT_SECONDS)


def open_cursors(options: SourceOptions) -> WritableLog:
    """The server that stores the cursor, with a short timeout: a missed update is included in the next one."""
    from penstock.log.http import HttpLog  # noqa: PLC0415  # few queries have a cursor, and tasks never do

    assert options.endpoint is not None, "checked with the options"
    return HttpLog(options.endpoint, token=options.token, project=options.project, timeout=CURSOR_SECONDS)


def find(log: Log, options: SourceOptions) -> dict[str, StreamSpan]:
    """The streams that the options select. Raises NotFound for a named stream that does not exist."""
    if options.is_messages:
        return by_name(log.spans(options.streams, options.pattern), is_messages=True)
    return by_name(log.spans([]), is_messages=False)


def find_present(log: Log, options: SourceOptions) -> dict[str, StreamSpan]:
    """Like `find`, but missing streams are left out."""
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
    """The Arrow schema for Spark's schema, which is that of the source, or some of its columns if the user sets one."""
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
    """The remaining rows of a range. Lost rows are an error (`is_strict`), or are logged and skipped."""
    start, stop = piece.start, piece.stop
    while start < stop:
        try:
            yield from read(start, stop)
            return
        except OutOfRange as error:
            if error.earliest > start:
                # All rows before this error are before `earliest`: nothing is read twice.
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
    """Batches as Spark expects them: the columns and types of the schema in its order, and at most BATCH_ROWS rows."""
    for batch in batches:
        columns = [batch.column(field.name) for field in schema]
        fitting = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        whole = pa.RecordBatch.from_arrays(fitting, schema=schema)
        for first in range(0, whole.num_rows, BATCH_ROWS):
            yield whole.slice(first, BATCH_ROWS)
