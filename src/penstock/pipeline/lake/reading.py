"""The archived part of the log, by offsets: what a task reads out of the lake's files instead of asking the log.

Offsets never change their rows, so a range below the watermark may be read with any state of the manifest that has it: a
compaction in between changes the files, not the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.durations import to_datetime
from penstock.errors import DataLoss, InvalidArgument, OutOfRange
from penstock.log.log import EVENTS, StreamSpan
from penstock.pipeline.core.manifest import File, runs
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.lake.table import Lake, Table

BATCH_ROWS = 16_384
TABLES = ("messages", "events")
"""The views that are archived, which have tables of the same names."""
TIMES = {"messages": "publish_time", "events": "at"}
PARQUET = ".parquet"


def archived(lake: str, view: str) -> list[StreamSpan]:
    """What can be read out of the lake: of every stream, as it is numbered now, the offsets up to the watermark."""
    table = _table(lake, view)
    state = table.state()
    files: dict[tuple[str, int], list[File]] = defaultdict(list)
    for file in state.files.values():
        files[file.stream or EVENTS, file.number].append(file)
    spans = []
    for stream, (number, stop) in sorted(state.watermark.items()):
        last = runs(files[stream, number])[-1:]
        start = last[0][0] if last and last[0][1] == stop else stop
        spans.append(StreamSpan(stream, number, start, stop, 0))
    return spans


def read(
    lake: str,
    view: str,
    piece: OffsetRange,
    *,
    columns: Sequence[str],
    keys: Sequence[str] | None = None,
    streams: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order. `keys`: only those with one of these ordering keys; `streams`: only events of these.

    OutOfRange when the lake does not have all of the range. Runs in tasks: it needs the lake's directory and nothing else.
    """
    table = _table(lake, view)
    files = [file for file in table.files(_kept(piece.stream)) if file.number == piece.number]
    if not any(start <= piece.start and piece.stop <= stop for start, stop in runs(files)) and piece.start < piece.stop:
        ends = [(file.first, file.last + 1) for file in files] or [(0, 0)]
        raise OutOfRange(piece.stream, piece.start, ends[0][0], ends[-1][1])
    wanted = {"key": keys, "stream": streams}
    for file in files:
        if file.first < piece.stop and piece.start <= file.last:
            yield from _rows(table, file, piece, columns, {name: values for name, values in wanted.items() if values is not None})


def offsets_at(lake: str, view: str, times: Mapping[str, int]) -> dict[str, int]:
    """For every stream the first archived offset at or after an instant (microseconds); the watermark when there is none."""
    table = _table(lake, view)
    watermark, column = table.watermark(), TIMES[view]
    found = {}
    for stream, time in times.items():
        number, stop = watermark.get(stream, (0, 0))
        day = to_datetime(time).date().isoformat()
        files = [file for file in table.files(_kept(stream)) if file.number == number and file.date >= day]
        hits = (hit for file in files if (hit := _first_at(table, file, column, time)) is not None)
        found[stream] = next(hits, stop)
    return found


def open_file(table: Table, file: File) -> pq.ParquetFile:
    """A file of the table, wherever it is at this moment. The caller closes it."""
    if file.suffix != PARQUET:
        raise InvalidArgument.of(
            "storage", file.path, "a lake of Parquet files", hint="read other formats with Spark's own readers"
        )
    for path in table.places(file):
        try:
            return pq.ParquetFile(path)
        except FileNotFoundError:
            continue
    raise DataLoss(f"{str(table.lake / file.path)!r} is in the manifest, and not there")


def _table(lake: str, view: str) -> Table:
    if view not in TABLES:
        raise InvalidArgument.of("view", view, f"one of {', '.join(TABLES)} when it is read out of a lake")
    return Lake(lake).table(view)


def _rows(
    table: Table, file: File, piece: OffsetRange, columns: Sequence[str], wanted: dict[str, Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    with open_file(table, file) as opened:
        stored = [name for name in {*columns, *wanted, "offset"} if name in opened.schema_arrow.names]
        for batch in opened.iter_batches(BATCH_ROWS, columns=stored, row_groups=_groups(opened.metadata, piece)):
            rows = _within(batch, piece)
            for name, values in wanted.items():
                rows = rows.filter(pc.is_in(rows.column(name), pa.array(values, pa.string())))
            if rows.num_rows:
                arrays = [_column(rows, name, file.stream) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _kept(stream: str) -> str:
    """What files say of their stream: those of the event log have none."""
    return "" if stream == EVENTS else stream


def _first_at(table: Table, file: File, column: str, time: int) -> int | None:
    """The first offset of a file at or after an instant. Times need not rise with the offsets: clocks are set back."""
    with open_file(table, file) as opened:
        for group in range(opened.metadata.num_row_groups):
            rows = opened.read_row_group(group, columns=["offset", column])
            late = pc.greater_equal(
                rows.column(column).cast(pa.timestamp("us", tz="UTC")), pa.scalar(time, pa.timestamp("us", tz="UTC"))
            )
            if (first := pc.index(late, True).as_py()) >= 0:
                return int(rows.column("offset")[first].as_py())
    return None


def _groups(metadata: pq.FileMetaData, piece: OffsetRange) -> list[int]:
    """The row groups that have some of the range."""
    place = next(index for index in range(metadata.num_columns) if metadata.schema.column(index).path == "offset")
    found = []
    for group in range(metadata.num_row_groups):
        bounds = metadata.row_group(group).column(place).statistics
        if bounds is None or (bounds.min < piece.stop and piece.start <= bounds.max):
            found.append(group)
    return found


def _within(batch: pa.RecordBatch, piece: OffsetRange) -> pa.RecordBatch:
    offsets = batch.column("offset")
    bounds = pc.min_max(offsets).as_py()
    if not batch.num_rows or (piece.start <= bounds["min"] and bounds["max"] < piece.stop):
        return batch
    return batch.filter(pc.and_(pc.greater_equal(offsets, piece.start), pc.less(offsets, piece.stop)))


def _column(rows: pa.RecordBatch, name: str, stream: str) -> pa.Array:
    """A column of the file; the stream of messages is in the name of their directory instead."""
    if name == "stream" and stream:
        return pa.repeat(pa.scalar(stream, pa.string()), rows.num_rows)
    return rows.column(name)
