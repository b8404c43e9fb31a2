"""A part of a write as an Arrow file: checked when it is staged, and read again when it is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.broker.topic_rules import TopicRules, has_rules
from penstock.errors import CorruptLog, InvalidArgument
from penstock.log import arrow_rows
from penstock.log.arrow_rows import Target
from penstock.log.arrow_sizes import check_unpacked
from penstock.values.message import Batch, StoredMessage, joined

Turn = tuple[Target, Batch]
"""Messages for one stream, published together."""

SLICE_ROWS = 8_192
SLICE_BYTES = 8 * 1024 * 1024
"""The approximate size of one publish: large enough for efficient disk writes, small enough for readers of a chunk."""


def check_part(
    path: Path,
    find: Callable[[str], Target],
    now: int,
    *,
    stream: str | None,
    rules: TopicRules,
    limit: int,
) -> tuple[int, dict[str, int]]:
    """Check that all rows of a part may be published; returns (rows, rows by stream). Rules may change the rows in the file.

    `limit`: the maximum number of bytes of the decompressed rows.
    """
    known: dict[str, Target] = {}
    counts: dict[str, int] = {}
    rows, is_inspected = 0, False
    check_unpacked(path, limit)
    for batch in _batches(path):
        columns = arrow_rows.plain(batch)
        for name, own, places in arrow_rows.grouped(columns, stream, rows):
            if name not in known:
                known[name] = find(name)
                is_inspected = is_inspected or has_rules(known[name].stream)

            def row(place: int, first: int = rows, places: pa.Array | None = places) -> int:
                return first + (place if places is None else places[place].as_py())

            arrow_rows.check(own, known[name], row)
            counts[name] = counts.get(name, 0) + len(own["value"])
        rows += batch.num_rows
    if not is_inspected:
        return rows, counts
    return _rewritten(path, known, now, stream, rules)


def _rewritten(
    path: Path, known: dict[str, Target], now: int, stream: str | None, rules: TopicRules
) -> tuple[int, dict[str, int]]:
    """Replace a part by the result of the rules of its topics."""
    counts = dict.fromkeys(known, 0)
    made = path.with_name(f"{path.name}.rules.part")
    try:
        with pa.OSFile(str(made), "wb") as sink:
            writer = None
            for batch in _pieces(_batches(path)):
                kept: list[tuple[str, list[StoredMessage]]] = []
                for name, own, _ in arrow_rows.grouped(arrow_rows.plain(batch), stream, 0):
                    messages = arrow_rows.messages(own, known[name], now).messages
                    if has_rules(known[name].stream):
                        messages = [one for one in rules.passed(known[name].stream, messages) if one is not None]
                    kept.append((name, messages))
                    counts[name] += len(messages)
                rows = arrow_rows.rows_of(kept, now)
                writer = writer or pa.ipc.new_stream(sink, rows.schema)
                writer.write_batch(rows)
            if writer is not None:
                writer.close()
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return sum(counts.values()), {name: count for name, count in counts.items() if count}


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are small enough to be converted to Python objects."""
    for batch in batches:
        done = 0
        while done < batch.num_rows:
            piece = _piece(batch.slice(done), SLICE_ROWS, is_fixed=False)
            yield piece
            done += piece.num_rows


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The batches of a file from a client."""
    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            arrow_rows.check_schema(reader.schema)
            for batch in reader:
                batch.validate(full=True)
                yield batch
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk
        raise InvalidArgument(f"the body is not a valid Arrow IPC stream: {error}") from None


def slices(
    parts: list[tuple[Path, int, str | None]], targets: dict[str, Target | None], done: int, until: int, now: Callable[[], int]
) -> Iterator[tuple[int, list[Turn | None]]]:
    """(end, messages for each stream) for one slice of rows after the other, from row `done` on.

    `parts` are files with their number of rows and the stream of rows without one. The first slice ends at `until` if that is
    after `done`. A stream without a target was deleted, and its rows are left out.
    """
    gathered: dict[str, list[Batch]] = {}
    first = done
    for rows, stream in _rest(parts, done):
        start = 0
        while start < rows.num_rows:
            is_fixed = until > first
            most = until - done if is_fixed else SLICE_ROWS - (done - first)
            piece = _piece(rows.slice(start), most, is_fixed=is_fixed)
            for name, own, _ in arrow_rows.grouped(arrow_rows.plain(piece), stream, done):
                target = targets[name]
                gathered.setdefault(name, [])
                if target is not None:
                    gathered[name].append(arrow_rows.messages(own, target, now()))
            start += piece.num_rows
            done += piece.num_rows
            size = sum(batch.size for batches in gathered.values() for batch in batches)
            if done == until or (not is_fixed and (done - first >= SLICE_ROWS or size >= SLICE_BYTES)):
                yield done, _turns(gathered, targets)
                gathered, first = {}, done
    if done > first:
        yield done, _turns(gathered, targets)


def _rest(parts: list[tuple[Path, int, str | None]], done: int) -> Iterator[tuple[pa.RecordBatch, str | None]]:
    """The rows after the first `done` ones. CorruptLog for a file that is not the one that was checked."""
    at = 0
    for path, count, stream in parts:
        end = at + count
        if end <= done:
            at = end
            continue
        try:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
                for batch in reader:
                    if at + batch.num_rows > done:
                        yield batch.slice(max(done - at, 0)), stream
                    at += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise CorruptLog(str(path.parent), path.name, str(error)) from error
        if at != end:
            raise CorruptLog(str(path.parent), path.name, f"it holds {count - (end - at)} rows, and had {count}")


def _piece(rows: pa.RecordBatch, most: int, *, is_fixed: bool) -> pa.RecordBatch:
    """The first rows: at most `most` and, unless `is_fixed`, of limited size in bytes."""
    rows = rows.slice(0, most)
    while not is_fixed and rows.num_rows > 1 and rows.nbytes > SLICE_BYTES:
        rows = rows.slice(0, rows.num_rows // 2)
    return rows


def _turns(gathered: dict[str, list[Batch]], targets: dict[str, Target | None]) -> list[Turn | None]:
    """The messages for each stream, in the order of first rows; None for a deleted stream, so that others keep their number."""
    turns: list[Turn | None] = []
    for name, batches in gathered.items():
        target = targets[name]
        turns.append(None if target is None else (target, joined(batches)))
    return turns
