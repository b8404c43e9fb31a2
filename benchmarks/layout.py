"""Which binding and which layout for the durable log: the figures behind decisions 0001 and 0002.

Run ``python -m benchmarks.layout [--quick] [--only write,read,...]`` on the disk to be judged: the temporary directory is made
inside the current one. Every table interleaves its variants within each round and prints medians over the rounds, so that a noisy
machine disturbs all variants alike; compare columns of one run, never two runs.

Layouts: ``rows`` keeps one row per message; ``chunks`` one row per commit and stream, whose body packs the messages by columns;
``files`` the same bodies in an append-only file, with only their index in SQLite.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sqlite3
import statistics
import struct
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self
from zlib import crc32

import apsw
import msgspec
import pyarrow as pa

SIZES = (1, 10, 100, 1000)
PAYLOAD = 100
BATCH_ROWS = 8192
PRAGMAS = ("page_size=4096", "journal_mode=WAL", "synchronous=FULL")


# ---------------------------------------------------------------------------------------------------------------- bindings


class Db(Protocol):
    """The little of a binding that the layouts use."""

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None: ...
    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...
    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]: ...
    def close(self) -> None: ...


class Apsw:
    """``apsw``, which carries its own SQLite."""

    def __init__(self, path: Path) -> None:
        self.connection = apsw.Connection(str(path))
        self.connection.set_busy_timeout(10_000)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.connection.execute(sql, parameters)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(sql, rows)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        return self.connection.execute(sql, parameters)

    def close(self) -> None:
        self.connection.close()


class Stdlib:
    """``sqlite3`` over whatever SQLite the system has."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self.connection.execute(sql, parameters)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.connection.executemany(sql, rows)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        return self.connection.execute(sql, parameters)

    def close(self) -> None:
        self.connection.close()


BINDINGS: dict[str, Callable[[Path], Db]] = {"apsw": Apsw, "sqlite3": Stdlib}


def open_db(binding: str, path: Path, pragmas: Sequence[str] = PRAGMAS) -> Db:
    db = BINDINGS[binding](path)
    for pragma in pragmas:
        for _ in db.rows(f"PRAGMA {pragma}"):
            pass
    return db


# ----------------------------------------------------------------------------------------------------------------- layouts


class Body(msgspec.Struct, array_like=True, frozen=True):
    """What a chunk packs: columns, not messages. ``ends`` are native 32-bit; the views alias the row's blob."""

    ends: memoryview | bytes
    data: memoryview | bytes
    attributes: list[dict[str, str] | None] | None
    keys: list[bytes | None] | None
    priorities: bytes | None


ENCODE = msgspec.msgpack.Encoder().encode


class PlainBody(msgspec.Struct, array_like=True, frozen=True):
    """A ``Body`` decoded without copies."""

    ends: memoryview
    data: memoryview
    attributes: list[dict[str, str] | None] | None
    keys: list[bytes | None] | None
    priorities: bytes | None


DECODE = msgspec.msgpack.Decoder(PlainBody).decode
Attributes = list[dict[str, str] | None] | None
Keys = list[bytes | None] | None


def pack(payloads: Sequence[bytes], attributes: Attributes, keys: Keys) -> bytes:
    ends = array("I")
    total = 0
    for payload in payloads:
        total += len(payload)
        ends.append(total)
    return ENCODE(Body(ends.tobytes(), b"".join(payloads), attributes, keys, None))


def place(stream: int, offset: int) -> int:
    return stream << 40 | offset


class Layout(Protocol):
    """One way of keeping the log."""

    def create(self) -> None: ...
    def append(
        self, stream: int, first: int, payloads: Sequence[bytes], attributes: Attributes = None, keys: Keys = None
    ) -> None: ...
    def event(self, first: int, records: Sequence[tuple[int, int, int, int]]) -> None: ...
    def get(self, stream: int, offset: int) -> bytes: ...
    def flush(self) -> None: ...


class InSqlite:
    """What lies in the database is flushed by its commit."""

    def flush(self) -> None:
        return


class Rows(InSqlite):
    """Layout A: one row per message, one per event."""

    def __init__(self, db: Db, path: Path, tail: str = "") -> None:
        self.db = db
        self.tail = tail

    def create(self) -> None:
        self.db.run(
            "CREATE TABLE message (id INTEGER PRIMARY KEY, published_at INTEGER NOT NULL, key BLOB, priority INTEGER NOT NULL,"
            f" attributes BLOB, data BLOB NOT NULL, crc INTEGER NOT NULL) {self.tail}"
        )
        self.db.run(
            "CREATE TABLE event (id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, subscription INTEGER NOT NULL,"
            f" offset INTEGER NOT NULL, until INTEGER NOT NULL) {self.tail}"
        )

    def append(
        self, stream: int, first: int, payloads: Sequence[bytes], attributes: Attributes = None, keys: Keys = None
    ) -> None:
        now = time.time_ns() // 1000
        start = place(stream, first)
        packed = [None if each is None else ENCODE(each) for each in attributes] if attributes else [None] * len(payloads)
        found = keys or [None] * len(payloads)
        self.db.many(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(start + i, now, found[i], 0, packed[i], payload, crc32(payload)) for i, payload in enumerate(payloads)],
        )

    def event(self, first: int, records: Sequence[tuple[int, int, int, int]]) -> None:
        self.db.many("INSERT INTO event VALUES (?, ?, ?, ?, ?)", [(first + i, *record) for i, record in enumerate(records)])

    def get(self, stream: int, offset: int) -> bytes:
        for data, crc in self.db.rows("SELECT data, crc FROM message WHERE id = ?", (place(stream, offset),)):
            if crc32(data) == crc:
                return bytes(data)
        raise LookupError(offset)


class Chunks(InSqlite):
    """Layout B: one row per commit and stream, one per commit's events."""

    def __init__(self, db: Db, path: Path, tail: str = "") -> None:
        self.db = db
        self.tail = tail

    def create(self) -> None:
        for table in ("chunk", "event"):
            self.db.run(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, count INTEGER NOT NULL, published_at INTEGER NOT NULL,"
                f" bytes INTEGER NOT NULL, flags INTEGER NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL) {self.tail}"
            )

    def append(
        self, stream: int, first: int, payloads: Sequence[bytes], attributes: Attributes = None, keys: Keys = None
    ) -> None:
        body = pack(payloads, attributes, keys)
        self.db.run(
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)",
            (place(stream, first), len(payloads), time.time_ns() // 1000, len(body), 0, crc32(body), body),
        )

    def event(self, first: int, records: Sequence[tuple[int, int, int, int]]) -> None:
        body = ENCODE(records)
        self.db.run(
            "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?)",
            (first, len(records), time.time_ns() // 1000, len(body), 0, crc32(body), body),
        )

    def get(self, stream: int, offset: int) -> bytes:
        for key, crc, blob in self.db.rows(
            "SELECT id, crc, body FROM chunk WHERE id <= ? ORDER BY id DESC LIMIT 1", (place(stream, offset),)
        ):
            if crc32(blob) == crc:
                return cut(blob, place(stream, offset) - key)
        raise LookupError(offset)


def cut(blob: bytes, at: int) -> bytes:
    """Message ``at`` of a chunk."""
    body = DECODE(blob)
    ends = body.ends.cast("I")
    return bytes(body.data[ends[at - 1] if at else 0 : ends[at]])


class Files:
    """Layout C: bodies in an append-only file, fdatasync a commit; the index can be rebuilt, hence synchronous=NORMAL."""

    HEADER = struct.Struct("<QQIIII")

    def __init__(self, db: Db, path: Path, tail: str = "") -> None:
        self.db = db
        self.file = os.open(path.with_suffix(".segment"), os.O_RDWR | os.O_CREAT, 0o600)
        self.end = os.fstat(self.file).st_size

    def create(self) -> None:
        self.db.run("PRAGMA synchronous=NORMAL")
        self.db.run(
            "CREATE TABLE chunk (id INTEGER PRIMARY KEY, count INTEGER NOT NULL, published_at INTEGER NOT NULL,"
            " bytes INTEGER NOT NULL, flags INTEGER NOT NULL, crc INTEGER NOT NULL, position INTEGER NOT NULL)"
        )

    def flush(self) -> None:
        os.fdatasync(self.file)

    def write(self, key: int, count: int, body: bytes) -> None:
        now = time.time_ns() // 1000
        crc = crc32(body)
        head = self.HEADER.pack(key, now, count, len(body), 0, crc)
        os.pwritev(self.file, [head, body], self.end)
        at = self.end + len(head)
        self.end = at + len(body)
        self.db.run("INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?)", (key, count, now, len(body), 0, crc, at))

    def append(
        self, stream: int, first: int, payloads: Sequence[bytes], attributes: Attributes = None, keys: Keys = None
    ) -> None:
        self.write(place(stream, first), len(payloads), pack(payloads, attributes, keys))

    def event(self, first: int, records: Sequence[tuple[int, int, int, int]]) -> None:
        self.write(place(1 << 20, first), len(records), ENCODE(records))

    def get(self, stream: int, offset: int) -> bytes:
        for key, crc, position, size in self.db.rows(
            "SELECT id, crc, position, bytes FROM chunk WHERE id <= ? ORDER BY id DESC LIMIT 1", (place(stream, offset),)
        ):
            blob = os.pread(self.file, size, position)
            if crc32(blob) == crc:
                return cut(blob, place(stream, offset) - key)
        raise LookupError(offset)


LAYOUTS: dict[str, Callable[[Db, Path, str], Layout]] = {"rows": Rows, "chunks": Chunks, "files": Files}


# ------------------------------------------------------------------------------------------------------------- Arrow reads

MAP = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("attributes", MAP),
        ("priority", pa.int8()),
        ("publish_time", TIME),
    ]
)
MASK = (1 << 40) - 1
DECODE_ATTRIBUTES = msgspec.msgpack.Decoder(dict[str, str]).decode
Chunk = tuple[int, int, int, PlainBody]


def read_rows(db: Db, stream: int) -> Iterator[Any]:
    """Layout A to Arrow: every value is a Python object on its way."""
    after = place(stream, 0) - 1
    while True:
        found = list(
            db.rows(
                "SELECT id, published_at, key, priority, attributes, data, crc FROM message"
                " WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
                (after, place(stream + 1, 0), BATCH_ROWS),
            )
        )
        if not found:
            return
        ids, times, keys, priorities, attributes, values, sums = zip(*found, strict=True)
        if tuple(map(crc32, values)) != sums:
            raise ValueError("a message does not match its checksum")
        after = ids[-1]
        base = place(stream, 0)
        if any(attributes):
            maps = pa.array([None if each is None else list(DECODE_ATTRIBUTES(each).items()) for each in attributes], MAP)
        else:
            maps = pa.nulls(len(ids), MAP)
        yield pa.record_batch(
            [
                pa.repeat("stream", len(ids)),
                pa.array([each - base for each in ids], pa.int64()),
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                maps,
                pa.array(priorities, pa.int8()),
                pa.array(times, TIME),
            ],
            schema=SCHEMA,
        )


def chunks_of(db: Db, stream: int) -> Iterator[Chunk]:
    for key, count, at, crc, blob in db.rows(
        "SELECT id, count, published_at, crc, body FROM chunk WHERE id >= ? AND id < ? ORDER BY id",
        (place(stream, 0), place(stream + 1, 0)),
    ):
        if crc32(blob) != crc:
            raise ValueError("a chunk does not match its checksum")
        yield key & MASK, count, at, DECODE(blob)


def groups_of(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Neighbouring chunks, together no more than a batch."""
    group: list[Chunk] = []
    total = 0
    for chunk in chunks:
        if group and total + chunk[1] > BATCH_ROWS:
            yield group
            group, total = [], 0
        group.append(chunk)
        total += chunk[1]
    if group:
        yield group


def values_from_buffers(count: int, body: PlainBody) -> Any:
    """Arrow's binary array over the chunk's own bytes: the ends, behind a zero, are its offsets."""
    offsets = pa.py_buffer(b"\0\0\0\0" + body.ends)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(body.data)])


def values_by_concat(group: list[Chunk]) -> Any:
    arrays = [values_from_buffers(count, body) for _, count, _, body in group]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def values_by_lists(group: list[Chunk]) -> Any:
    values: list[memoryview] = []
    for _, _, _, body in group:
        start = 0
        data = body.data
        for end in body.ends.cast("I"):
            values.append(data[start:end])
            start = end
    return pa.array(values, pa.binary())


def values_by_shift(group: list[Chunk]) -> Any:
    """One buffer of joined data; the ends shifted in Python, an integer per row but no object kept."""
    ends = array("i", [0])
    base = 0
    for _, _, _, body in group:
        if base:
            ends.extend([base + end for end in body.ends.cast("I")])
        else:
            ends.frombytes(body.ends)
        base = ends[-1]
    data = b"".join([body.data for _, _, _, body in group])
    return pa.BinaryArray.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def values_hybrid(group: list[Chunk]) -> Any:
    """Shift where chunks are small on average, concat where they are large."""
    return values_by_shift(group) if sum(chunk[1] for chunk in group) < 64 * len(group) else values_by_concat(group)


def batch_of(group: list[Chunk], values: Any) -> Any:
    """The other columns: constants are repeated by Arrow, times by bytes; only keys and attributes present cost objects."""
    total = sum([chunk[1] for chunk in group])
    first = group[0][0]
    last, count = group[-1][:2]
    if last + count - first == total:
        offsets = pa.arange(first, first + total)
    else:
        offsets = pa.array([offset for start, count, _, _ in group for offset in range(start, start + count)], pa.int64())
    times = b"".join([at.to_bytes(8, sys.byteorder) * count for _, count, at, _ in group])
    if any(body.keys is not None for _, _, _, body in group):
        keys = pa.array([key for _, n, _, body in group for key in body.keys or [None] * n], pa.binary())
    else:
        keys = pa.nulls(total, pa.binary())
    if any(body.attributes is not None for _, _, _, body in group):
        found = [each for _, n, _, body in group for each in body.attributes or [None] * n]
        attributes = pa.array([None if each is None else list(each.items()) for each in found], MAP)
    else:
        attributes = pa.nulls(total, MAP)
    return pa.record_batch(
        [
            pa.repeat("stream", total),
            offsets,
            keys,
            values,
            attributes,
            pa.repeat(pa.scalar(0, pa.int8()), total),
            pa.Array.from_buffers(TIME, total, [None, pa.py_buffer(times)]),
        ],
        schema=SCHEMA,
    )


def merged(values: Callable[[list[Chunk]], Any]) -> Callable[[Db, int], Iterator[Any]]:
    def read(db: Db, stream: int) -> Iterator[Any]:
        for group in groups_of(chunks_of(db, stream)):
            yield batch_of(group, values(group))

    return read


def read_unmerged(db: Db, stream: int) -> Iterator[Any]:
    for chunk in chunks_of(db, stream):
        yield batch_of([chunk], values_from_buffers(chunk[1], chunk[3]))


READERS: dict[str, tuple[str, Callable[[Db, int], Iterator[Any]]]] = {
    "rows": ("rows", read_rows),
    "chunks, a batch each": ("chunks", read_unmerged),
    "chunks, lists": ("chunks", merged(values_by_lists)),
    "chunks, shifted ends": ("chunks", merged(values_by_shift)),
    "chunks, concat": ("chunks", merged(values_by_concat)),
    "chunks, shift or concat": ("chunks", merged(values_hybrid)),
}
SLOWEST = ("chunks, a batch each", "1")


# ---------------------------------------------------------------------------------------------------------------- measures


class Scale:
    """How long to measure."""

    def __init__(self, quick: bool) -> None:
        self.rounds = 3 if quick else 7
        self.seconds = 0.15 if quick else 0.5
        self.read = 60_000 if quick else 300_000
        self.lookups = 2_000 if quick else 10_000
        self.commits = 300 if quick else 1_500


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    cells = [list(head), *[[f"{each:,.0f}" if isinstance(each, int | float) else str(each) for each in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    print(f"\n{title}")
    for row in cells:
        print("  " + "  ".join(cell.ljust(widths[0]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(row)))
    sys.stdout.flush()


class Log:
    """A log being written, and how far."""

    def __init__(
        self,
        where: Path,
        name: str,
        layout: str,
        binding: str = "apsw",
        pragmas: Sequence[str] = PRAGMAS,
        tail: str = "",
        streams: int = 1,
    ) -> None:
        self.path = where / f"{name}.db"
        self.db = open_db(binding, self.path, pragmas)
        self.layout = LAYOUTS[layout](self.db, self.path, tail)
        self.layout.create()
        self.next = 0
        self.streams = streams
        self.pool = [os.urandom(PAYLOAD) for _ in range(1000)]

    def commit(self, size: int, attributes: Attributes = None, keys: Keys = None) -> None:
        each = size // self.streams
        payloads = self.pool[:each]
        self.db.run("BEGIN IMMEDIATE")
        for stream in range(1, self.streams + 1):
            self.layout.append(stream, self.next, payloads, attributes, keys)
        self.layout.flush()
        self.db.run("COMMIT")
        self.next += each

    def commit_events(self, size: int) -> None:
        records = [(1, 7, self.next + i, 1_700_000_000_000_000) for i in range(size)]
        self.db.run("BEGIN IMMEDIATE")
        self.layout.event(self.next, records)
        self.layout.flush()
        self.db.run("COMMIT")
        self.next += size

    def checkpoint(self) -> int:
        """Bytes on disk once the write-ahead log is folded in."""
        for _ in self.db.rows("PRAGMA wal_checkpoint(TRUNCATE)"):
            pass
        return sum(each.stat().st_size for each in self.path.parent.glob(self.path.stem + ".*") if not each.name.endswith("-shm"))


def rate(write: Callable[[int], None], size: int, seconds: float) -> float:
    commits = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or commits < 3:
        write(size)
        commits += 1
    return commits * size / spent


WRITERS = (("rows", "apsw"), ("chunks", "apsw"), ("files", "apsw"), ("rows", "sqlite3"), ("chunks", "sqlite3"))


def measure_writes(where: Path, scale: Scale) -> None:
    for what in ("messages", "messages over 10 streams", "events"):
        streams = 10 if what.endswith("streams") else 1
        sizes = (100, 1000) if streams > 1 else SIZES
        cells = {
            (layout, binding, size): Log(
                where, f"{what.replace(' ', '-')}-{layout}-{binding}-{size}", layout, binding, streams=streams
            )
            for layout, binding in WRITERS
            if streams == 1 or binding == "apsw"
            for size in sizes
        }
        rates: dict[tuple[str, str, int], list[float]] = {cell: [] for cell in cells}
        for _ in range(scale.rounds):
            for cell, log in cells.items():
                rates[cell].append(rate(log.commit_events if what == "events" else log.commit, cell[2], scale.seconds))
        variants = dict.fromkeys((layout, binding) for layout, binding, _ in cells)
        table(
            f"{what} written per second, by messages per commit (the first round dropped)",
            ["layout", "binding", *map(str, sizes)],
            [[*variant, *[statistics.median(rates[*variant, size][1:]) for size in sizes]] for variant in variants],
        )
        table(
            f"bytes on disk per {'event' if what == 'events' else 'message'}, by messages per commit",
            ["layout", "binding", *map(str, sizes)],
            [
                [
                    *variant,
                    *[f"{cells[*variant, size].checkpoint() / cells[*variant, size].next / streams:.1f}" for size in sizes],
                ]
                for variant in variants
            ],
        )
        for log in cells.values():
            log.db.close()


def filled(where: Path, name: str, layout: str, size: int, total: int, described: bool = False) -> Log:
    """A log of ``total`` messages at ``size`` a commit; small commits are grouped, which leaves the same rows."""
    log = Log(where, name, layout, pragmas=("page_size=4096", "journal_mode=WAL", "synchronous=OFF"))
    attributes: Attributes = [{"kind": "order"}] * size if described else None
    keys: Keys = [b"customer-17"] * size if described else None
    for start in range(0, total, 10_000):
        log.db.run("BEGIN IMMEDIATE")
        for first in range(start, min(start + 10_000, total), size):
            log.layout.append(1, first, log.pool[:size], attributes, keys)
        log.db.run("COMMIT")
    log.next = total
    log.checkpoint()
    return log


def measure_reads(where: Path, scale: Scale) -> None:
    datasets: dict[str, tuple[int, bool]] = {**{str(size): (size, False) for size in SIZES}, "100 described": (100, True)}
    logs = {
        (layout, name): filled(where, f"read-{layout}-{name.replace(' ', '-')}", layout, size, scale.read, described)
        for layout in ("rows", "chunks")
        for name, (size, described) in datasets.items()
        if layout == "chunks" or size == 100
    }
    cells = [
        (reader, name)
        for reader, (layout, _) in READERS.items()
        for name in datasets
        if (layout, name) in logs and (reader, name) != SLOWEST
    ]
    rates: dict[tuple[str, str, bool], list[float]] = {(*cell, cyclic): [] for cell in cells for cyclic in (True, False)}
    for _ in range(3):
        for (reader, name, cyclic), found in rates.items():
            layout, read = READERS[reader]
            (gc.enable if cyclic else gc.disable)()
            start = time.perf_counter()
            total = sum(batch.num_rows for batch in read(logs[layout, name].db, 1))
            found.append(total / (time.perf_counter() - start))
            gc.enable()
            if total != scale.read:
                raise ValueError(f"{reader} over {name} read {total} of {scale.read}")
    for cyclic in (True, False):
        table(
            f"rows per second read into Arrow batches ({scale.read:,} messages; checksums verified;"
            f" cyclic garbage collector {'on' if cyclic else 'off'}), by messages per chunk",
            ["reader", *datasets],
            [
                [
                    reader,
                    *[statistics.median(rates[reader, n, cyclic]) if (reader, n, cyclic) in rates else "-" for n in datasets],
                ]
                for reader in READERS
            ],
        )
    logs["files", "100"] = filled(where, "read-files-100", "files", 100, scale.read)
    picks = {cell: logs[cell] for cell in logs if cell[1] != "100 described"}
    lookups: dict[tuple[str, str], list[float]] = {cell: [] for cell in picks}
    dice = random.Random(7)
    for _ in range(scale.rounds):
        for cell, log in picks.items():
            offsets = [dice.randrange(log.next) for _ in range(scale.lookups // scale.rounds)]
            start = time.perf_counter()
            for offset in offsets:
                log.layout.get(1, offset)
            lookups[cell].append(len(offsets) / (time.perf_counter() - start))
    table(
        "random single messages read per second",
        ["layout", "messages per commit", "reads/s"],
        [[*cell, statistics.median(speeds)] for cell, speeds in lookups.items()],
    )
    for log in logs.values():
        log.db.close()


class Spinner:
    """A thread of pure Python, counting its turns."""

    def __init__(self) -> None:
        self.turns = 0
        self.stopped = False
        self.thread = threading.Thread(target=self.spin, daemon=True)

    def spin(self) -> None:
        while not self.stopped:
            for _ in range(1000):
                pass
            self.turns += 1

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True
        self.thread.join()


def latencies(write: Callable[[], None], seconds: float) -> list[float]:
    found: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        write()
        found.append(time.perf_counter() - start)
    return found


def percentile(found: Sequence[float], part: float) -> float:
    """Microseconds."""
    return sorted(found)[min(len(found) - 1, int(len(found) * part))] * 1e6


def measure_bindings(where: Path, scale: Scale) -> None:
    def explicit(log: Log) -> Callable[[], None]:
        return lambda: log.commit(1)

    def implicit(log: Log) -> Callable[[], None]:
        def write() -> None:
            log.layout.append(1, log.next, log.pool[:1])
            log.next += 1

        return write

    shapes = {"begin, insert, commit": explicit, "one statement": implicit}
    logs = {(b, s): Log(where, f"binding-{b}-{i}", "chunks", b) for b in BINDINGS for i, s in enumerate(shapes)}
    usual = sys.getswitchinterval()
    found: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    for _ in range(scale.rounds):
        for (binding, shape), log in logs.items():
            write = shapes[shape](log)
            with Spinner() as spinner:
                start, turns = time.perf_counter(), spinner.turns
                time.sleep(scale.seconds)
                alone = (spinner.turns - turns) / (time.perf_counter() - start)
            for mode in ("idle", "spinning", "spinning, switch 0.5 ms"):
                cell = (binding, shape, mode)
                if mode == "idle":
                    times, share = latencies(write, scale.seconds), 0.0
                else:
                    sys.setswitchinterval(usual if mode == "spinning" else usual / 10)
                    with Spinner() as spinner:
                        start, turns = time.perf_counter(), spinner.turns
                        times = latencies(write, scale.seconds)
                        share = (spinner.turns - turns) / (time.perf_counter() - start) / alone
                    sys.setswitchinterval(usual)
                found.setdefault(cell, []).append((percentile(times, 0.5), percentile(times, 0.99), share))
    table(
        "one message per commit (chunks): microseconds, and how fast a pure-Python thread runs beside it (100 = as if alone)",
        ["binding", "shape", "other thread", "p50", "p99", "its speed %"],
        [
            [
                *cell,
                statistics.median(each[0] for each in rounds),
                statistics.median(each[1] for each in rounds),
                f"{statistics.median(each[2] for each in rounds) * 100:.0f}" if cell[2] != "idle" else "-",
            ]
            for cell, rounds in found.items()
        ],
    )
    for log in logs.values():
        log.db.close()


def persist(log: Log) -> None:
    """Keep the write-ahead log's file at close."""
    if isinstance(log.db, Apsw):
        flag = ctypes.c_int(1)
        log.db.connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(flag))


def lengthen(log: Log) -> None:
    """Write the write-ahead log to its full length once, so that later commits overwrite in place."""
    log.db.run("CREATE TABLE filler (body BLOB)")
    log.db.run("INSERT INTO filler VALUES (zeroblob(4200000))")
    log.db.run("DROP TABLE filler")
    for _ in log.db.rows("PRAGMA wal_checkpoint(RESTART)"):
        pass


def measure_pragmas(where: Path, scale: Scale) -> None:
    """Each against the base: p50 and p99 of a lone commit, and messages per second at 100 a commit."""
    variants: dict[str, tuple[tuple[str, ...], str]] = {
        "base: 4096, FULL, checkpoint at 1000": (PRAGMAS, ""),
        "page_size 8192": (("page_size=8192", *PRAGMAS[1:]), ""),
        "page_size 16384": (("page_size=16384", *PRAGMAS[1:]), ""),
        "wal_autocheckpoint 250": ((*PRAGMAS, "wal_autocheckpoint=250"), ""),
        "wal_autocheckpoint 4000": ((*PRAGMAS, "wal_autocheckpoint=4000"), ""),
        "wal_autocheckpoint 16000": ((*PRAGMAS, "wal_autocheckpoint=16000"), ""),
        "journal_size_limit 0": ((*PRAGMAS, "journal_size_limit=0"), ""),
        "WITHOUT ROWID": (PRAGMAS, "WITHOUT ROWID"),
        "synchronous EXTRA": ((*PRAGMAS[:2], "synchronous=EXTRA"), ""),
        "synchronous NORMAL (not durable)": ((*PRAGMAS[:2], "synchronous=NORMAL"), ""),
        "synchronous OFF (not durable)": ((*PRAGMAS[:2], "synchronous=OFF"), ""),
        "locking_mode EXCLUSIVE (no readers)": (("locking_mode=EXCLUSIVE", *PRAGMAS), ""),
        "mmap_size 256 MiB": ((*PRAGMAS, "mmap_size=268435456"), ""),
        "cache_size 64 MiB": ((*PRAGMAS, "cache_size=-65536"), ""),
    }
    logs = {
        (name, size): Log(where, f"pragma-{i}-{size}", "chunks", "apsw", pragmas, tail)
        for size in (1, 100)
        for i, (name, (pragmas, tail)) in enumerate(variants.items())
    }
    lone: dict[str, list[list[float]]] = {name: [] for name in variants}
    many: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(scale.rounds):
        for name in variants:
            alone, grouped = logs[name, 1], logs[name, 100]
            times = latencies(partial(alone.commit, 1), scale.seconds)
            speed = rate(grouped.commit, 100, scale.seconds)
            if turn:
                lone[name].append(times)
                many[name].append(speed)
    table(
        "chunks through apsw: microseconds of a lone commit; messages per second at 100 per commit; bytes a message then",
        ["setting", "p50", "p99", "mean", "msgs/s at 100", "bytes/message at 1", "at 100"],
        [
            [
                name,
                *[statistics.median(percentile(times, part) for times in lone[name]) for part in (0.5, 0.99)],
                statistics.median(statistics.fmean(times) * 1e6 for times in lone[name]),
                statistics.median(many[name]),
                *[f"{logs[name, size].checkpoint() / logs[name, size].next:.1f}" for size in (1, 100)],
            ]
            for name in variants
        ],
    )
    for log in logs.values():
        log.db.close()


def measure_wal(where: Path, scale: Scale) -> None:
    """The first commits after a start: a growing write-ahead log against one already at its length."""
    found: dict[str, list[float]] = {}
    for turn in range(scale.rounds):
        for name in ("growing", "reused: later commits", "lengthened at start", "kept by PERSIST_WAL from the last run"):
            log = Log(where, f"wal-{turn}-{name[:4]}", "chunks")
            if name.startswith("kept"):
                persist(log)
                for _ in range(scale.commits):
                    log.commit(1)
                following = log.next
                log.db.close()
                log.db = open_db("apsw", log.path)
                log.layout = Chunks(log.db, log.path)
                log.next = following
            elif name.startswith("lengthened"):
                lengthen(log)
            elif name.startswith("reused"):
                for _ in range(2_000):
                    log.commit(1)
            times = []
            for _ in range(300):
                start = time.perf_counter()
                log.commit(1)
                times.append(time.perf_counter() - start)
            found.setdefault(name, []).append(percentile(times, 0.5))
            log.db.close()
    table(
        "300 lone commits (chunks, apsw): microseconds p50, by the state of the write-ahead log's file",
        ["write-ahead log", "p50"],
        [[name, statistics.median(each)] for name, each in found.items()],
    )


SECTIONS = {
    "write": measure_writes,
    "read": measure_reads,
    "binding": measure_bindings,
    "pragma": measure_pragmas,
    "wal": measure_wal,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short rounds and fewer messages: ratios only roughly right")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections to run, by comma")
    options = parser.parse_args()
    scale = Scale(options.quick)
    print(
        f"Python {sys.version.split()[0]}; apsw {apsw.apsw_version()} with SQLite {apsw.sqlite_lib_version()};"
        f" sqlite3 with SQLite {sqlite3.sqlite_version}; pyarrow {pa.__version__}; {PAYLOAD}-byte payloads"
    )
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".layout-") as where:
            SECTIONS[name](Path(where), scale)


if __name__ == "__main__":
    main()
