"""A table of the lake: a Delta table, with commits that happen once or not at all.

    LAKE/messages/_delta_log/00000000000000000007.json            commit 7: added and removed files, and its application
    LAKE/messages/stream=orders/date=2026-01-31/….zstd.parquet    the files

Files are written at their final place; files that no commit names are ignored, and `vacuum` removes them. A commit has an
application transaction, (application, version), which Delta stores with the table: the version is read before each commit, so
that a repeated batch adds nothing. If two writers of the same application commit at once, one is refused and checks again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from penstock.clock import SystemClock
from penstock.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument
from penstock.pipeline import schemas
from penstock.pipeline.arrow_types import arrow_schema

KEPT_DAYS = 7
"""How long a removed file is kept, for readers that have planned with it."""
CONFIGURATION = {"delta.checkpointInterval": "100", "delta.deletedFileRetentionDuration": f"interval {KEPT_DAYS} days"}
ARCHIVE = "penstock-archive"
"""The application of the archive's commits; its version is their number."""
ARCHIVED = "penstock.archived"
"""The key in a commit's metadata with the archived position of each stream."""
TRIES = 100
GROUP_BYTES = 16 << 20
"""The compressed size of a row group in compacted files, which is the unit that a reader loads or skips."""
BATCH_ROWS = 16_384
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,63}(?:/[^/]+)?")
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


class Shape(NamedTuple):
    """The structure of a table: its columns, its partition columns, and the columns with bounds for each file."""

    schema: pa.Schema
    divided_by: tuple[str, ...]
    bounds: tuple[str, ...]


SHAPES = {
    "messages": Shape(
        arrow_schema(f"{schemas.MESSAGES}, stream_number bigint not null, date date"),
        ("stream", "date"),
        ("stream_number", "offset", "publish_time"),
    ),
    "events": Shape(arrow_schema(f"{schemas.EVENTS}, date date"), ("date",), ("offset", "at")),
    "lifecycle": Shape(arrow_schema(f"{schemas.LIFECYCLE}, date date"), ("date",), ("updated_at", "event_offset")),
    "metrics": Shape(arrow_schema(f"{schemas.METRICS}, date date"), ("date",), ("window_start", "window_end")),
    "levels": Shape(arrow_schema(f"{schemas.LEVELS}, date date"), ("date",), ("window_start", "window_end")),
    "triage": Shape(arrow_schema(f"{schemas.TRIAGE}, date date"), ("date",), ("at", "last_at")),
}


class NewFile(msgspec.Struct, frozen=True):
    """A written file that is not committed yet. Bounds that are times are ISO 8601."""

    path: str
    bytes: int
    rows: int
    values: dict[str, str]
    """The values of the partition columns."""
    lows: dict[str, Any]
    highs: dict[str, Any]

    def action(self, now: int) -> AddAction:
        """The `add` action for Delta."""
        stats = {
            "numRecords": self.rows,
            "minValues": self.lows,
            "maxValues": self.highs,
            "nullCount": dict.fromkeys(self.lows, 0),
        }
        return AddAction(self.path, self.bytes, self.values, now, True, msgspec.json.encode(stats).decode())


class ArchivedSpan(NamedTuple):
    """The archived part of the stream with this number: every offset from `first` up to, not including, `offset`."""

    number: int
    first: int
    offset: int


class Watermark(NamedTuple):
    """The position of the archive: its number of commits, and its position in each stream."""

    commits: int
    streams: dict[str, ArchivedSpan]


class _Metadata(msgspec.Struct, frozen=True):
    """A watermark in the metadata of a commit."""

    commits: int
    streams: dict[str, ArchivedSpan]


class _FileCount(msgspec.Struct):
    """The report of delta-rs about a compaction."""

    totalFiles: int  # noqa: N815  # the name in delta-rs
    totalSize: int  # noqa: N815


class CompactReport(NamedTuple):
    """The result of a compaction."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    files_removed: int = 0
    """Old files that were not needed any more and were removed from the storage."""

    def plus(self, other: CompactReport) -> CompactReport:
        """The sum of both reports."""
        return CompactReport(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def lake_address(lake: str | os.PathLike[str]) -> str:
    """The full address of a lake: an absolute path, or the URL of an object store."""
    text = os.fspath(lake) if isinstance(lake, str | os.PathLike) else lake
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text) if isinstance(text, str) else None
    if scheme is not None and scheme[1] in _OBJECT_STORES and urlsplit(text).netloc:
        return text.rstrip("/")
    return str(local_path(lake, "lake"))


def local_path(place: object, name: str) -> Path:
    """A directory on a file system, from a path or a `file:` URL."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else place
    wanted = "the path of a directory, or a file: URL" + (" or s3://…, gs://… or az://…" if name == "lake" else "")
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument.of(name, place, wanted)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) is None:
        return Path(os.path.abspath(text))  # noqa: PTH100  # resolve() would follow links
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise InvalidArgument.of(name, text, wanted)
    return Path(os.path.abspath(unquote(parts.path)))  # noqa: PTH100


class Lake:
    """A location with tables: a path, a `file:` URL, or the URL of an object store with options from the environment."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.address = lake_address(place)
        if not is_remote(self.address) and any(Path(self.address).glob("_penstock/[a-z]*/" + "[0-9]" * 20 + "*.json")):
            raise FailedPrecondition(
                f"the lake {self.address} has the format of an older version (a manifest in _penstock), expected Delta tables",
                hint="archive into a new directory, with a new checkpoint: it gets what the log still has. "
                "The Parquet files of the old lake can be read as before",
            )

    def table(self, name: str) -> Table:
        """A table, which need not exist yet. Use the object in one thread only; get another one for another thread."""
        if not _TABLE.fullmatch(name):
            raise InvalidArgument.of("table", name, "up to 64 small letters, digits and _, the first a letter")
        return Table(self.address, name)

    def tables(self) -> list[str]:
        """The names of the existing tables."""
        found = storage_of(self.address).get_file_info(fs.FileSelector("typed", allow_not_found=True))
        names = [*SHAPES, *(info.path for info in found if info.type is fs.FileType.Directory)]
        return [name for name in names if self.table(name).refresh() is not None]


def is_too_long(stream: str) -> bool:
    """Whether the name of a stream is too long for the name of a directory."""
    return len(f"stream={quote(stream, safe='')}") > 255


def is_remote(address: str) -> bool:
    """Whether an address is that of an object store."""
    return "://" in address


def storage_of(address: str) -> fs.FileSystem:
    """The file system at an address, with paths relative to it."""
    if is_remote(address):
        return fs.PyFileSystem(DeltaStorageHandler(address))
    return fs.SubTreeFileSystem(address, fs.LocalFileSystem())


class Table:
    """One table. Results are as of the last call of `refresh`, which `watermark` and `commit` call."""

    def __init__(self, lake: str, name: str) -> None:
        self.name = name
        self.address = f"{lake}/{name}"
        self._delta: DeltaTable | None = None
        self._watermark = Watermark(0, {})

    # Reading

    def refresh(self) -> DeltaTable | None:
        """Load the current version of the table; None if it does not exist."""
        if self._delta is None:
            try:
                self._delta = DeltaTable(self.address)
            except TableNotFoundError:
                return None
        else:
            self._delta.update_incremental()
        return self._delta

    @property
    def delta(self) -> DeltaTable:
        """The table as of the last `refresh`. Raises FailedPrecondition if it does not exist."""
        found = self._delta or self.refresh()
        if found is None:
            raise FailedPrecondition(
                f"there is no table {self.address}", hint="`penstock pipeline run` makes the tables of a lake"
            )
        return found

    def watermark(self) -> Watermark:
        """The current position of the archive."""
        delta = self.refresh()
        commits = 0 if delta is None else delta.transaction_version(ARCHIVE) or 0
        if delta is not None and commits != self._watermark.commits:
            metadata = next(self._archived(delta, commits), None)
            if metadata is None:
                raise DataLoss(
                    f"commit {commits} of the archive has left the log of {self.address}, and with it how far the streams are",
                    hint="restore _delta_log from a backup",
                )
            self._watermark = Watermark(metadata.commits, metadata.streams)
        return self._watermark

    def files(self, stream: str | None = None) -> list[dict[str, Any]]:
        """The current files, all or those of a stream, as of the last `refresh`, in the order of their first offsets.

        Each has `path`, `size_bytes`, `num_records`, and `partition.…`, `min.…` and `max.…` of columns.
        """
        delta = self._delta or self.refresh()
        if delta is None:
            return []
        found = pa.table(delta.get_add_actions(flatten=True))
        if stream is not None:
            found = found.filter(pc.equal(found["partition.stream"], stream))
        files: list[dict[str, Any]] = found.to_pylist()
        return sorted(files, key=lambda file: (file.get("min.offset") or 0, file["path"]))

    def schema(self) -> pa.Schema:
        """The columns."""
        return pa.schema(self.delta.schema().to_arrow())

    def rows(
        self, file: Mapping[str, Any], *, columns: Sequence[str] | None = None, condition: ds.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one of `files`, in the order of the file."""
        schema = self.schema()
        values = {name.partition(".")[2]: value for name, value in file.items() if name.startswith("partition.")}
        known = [ds.field(name).is_null() if value is None else ds.field(name) == value for name, value in values.items()]
        fragment = ds.ParquetFileFormat().make_fragment(
            unquote(file["path"]), filesystem=self.storage(), partition_expression=reduce(and_, known) if known else None
        )
        names = schema.names if columns is None else [name for name in columns if name in schema.names]
        scanner = fragment.scanner(schema=schema, columns=names, filter=condition, batch_size=BATCH_ROWS, batch_readahead=1)
        return (batch for batch in scanner.to_batches() if batch.num_rows)

    def storage(self) -> fs.FileSystem:
        """The file system of the table, with paths relative to it."""
        return storage_of(self.address)

    # Writing

    def create(self, shape: Shape) -> DeltaTable:
        """Create the table unless it exists."""
        delta = self.refresh()
        if delta is None:
            # Bounds of the same columns for all files: pyarrow omits rows if only some files have them.
            configuration = CONFIGURATION | {"delta.dataSkippingStatsColumns": ",".join(shape.bounds)}
            try:
                self._delta = DeltaTable.create(
                    self.address,
                    Schema.from_arrow(shape.schema),
                    partition_by=list(shape.divided_by),
                    configuration=configuration,
                )
            except DeltaError:
                if self.refresh() is None:  # else another writer created it just now
                    raise
            delta = self.delta
        missing = set(shape.schema.names) - {field.name for field in delta.schema().fields}
        if missing or tuple(delta.metadata().partition_columns) != shape.divided_by:
            raise FailedPrecondition(
                f"{self.address} is a table with other columns: {', '.join(sorted(missing)) or 'its partition columns differ'}",
                hint="take another directory for the lake",
            )
        return delta

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, which are null in existing rows."""
        self.delta.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields)
        self.refresh()

    def commit(
        self, files: Sequence[NewFile], app: str, version: int, *, archived: Mapping[str, ArchivedSpan] | None = None
    ) -> bool:
        """Add all files or none. False, without a change, if the application has committed this version or a later one."""
        metadata = None
        if archived is not None:
            metadata = {ARCHIVED: msgspec.json.encode(_Metadata(version, dict(archived))).decode()}
        for _ in range(TRIES):
            self.refresh()
            delta = self.delta
            before, known = delta.version(), delta.transaction_version(app)
            if known is not None and known >= version:
                return False  # delta-rs itself would accept it again
            properties = CommitProperties(custom_metadata=metadata, app_transactions=[Transaction(app, version)])
            columns = delta.metadata().partition_columns
            actions: list[AddAction | RemoveAction] = [file.action(SystemClock().now() // 1_000) for file in files]
            self._sync(file.path.rpartition("/")[0] for file in files)
            try:
                delta.create_write_transaction(actions, "append", delta.schema(), columns, commit_properties=properties)
            except CommitFailedError:
                continue  # another writer was first: check again
            self.refresh()
            self._sync(["_delta_log", *(f"_delta_log/{number:020}.json" for number in range(before + 1, delta.version() + 1))])
            return True
        raise Aborted(f"{TRIES} times another writer committed to {self.address} first; nothing was changed")

    # Maintenance

    def compact(self, target_bytes: int, *, min_files: int = 2) -> CompactReport:
        """Merge small files of the same day (and stream), if any has at least `min_files`. Rows and watermark do not change."""
        small: dict[tuple[Any, ...], int] = {}
        too_long: set[str] = set()
        self.refresh()
        files = self.files()
        for file in files:
            values = tuple(value for name, value in file.items() if name.startswith("partition."))
            if file["size_bytes"] < target_bytes:
                small[values] = small.get(values, 0) + 1
            stream = file.get("partition.stream") or ""
            if is_too_long(stream):
                too_long.add(stream)  # delta-rs would create a directory with this name, which is too long
        if not any(count >= min_files for values, count in small.items() if too_long.isdisjoint(map(str, values))):
            return CompactReport()
        rows = sum(file["num_records"] or 0 for file in files)
        mean = max(sum(file["size_bytes"] for file in files) // max(rows, 1), 1)
        group = min(max(GROUP_BYTES // mean, 1_024), 1 << 20)
        done = self.delta.optimize.compact(
            partition_filters=[("stream", "not in", sorted(too_long))] if too_long else None,
            target_size=target_bytes,
            writer_properties=WriterProperties(compression="ZSTD", max_row_group_size=group),
        )
        removed, added = (msgspec.json.decode(done[name], type=_FileCount) for name in ("filesRemoved", "filesAdded"))
        return CompactReport(removed.totalFiles, added.totalFiles, removed.totalSize, added.totalSize)

    def vacuum(self, *, is_full: bool = False) -> int:
        """Remove files that no reader needs any more; with `is_full`, also those of killed writers. Returns their number."""
        delta = self.refresh()
        return 0 if delta is None else len(delta.vacuum(retention_hours=24 * KEPT_DAYS, dry_run=False, full=is_full))

    def _archived(self, delta: DeltaTable, commits: int) -> Iterator[_Metadata]:
        """The metadata of one of the archive's commits, searched from the newest."""
        limit = 1
        while True:
            history = delta.history(limit)
            for commit in history:
                if ARCHIVED in commit:
                    found = msgspec.json.decode(commit[ARCHIVED], type=_Metadata)
                    if found.commits == commits:
                        yield found
            if len(history) < limit:
                return
            limit *= 10

    def _sync(self, paths: Sequence[str] | Iterator[str]) -> None:
        """Sync files and directories to disk, which delta-rs does not do. An object store is durable when it confirms a write."""
        if is_remote(self.address):
            return
        for path in {"", *paths}:
            number = os.open(f"{self.address}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(number)
            finally:
                os.close(number)
