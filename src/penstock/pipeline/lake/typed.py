"""Typed tables: for each stream whose messages have a schema, a table with the schema's fields as columns.

A typed table is derived from the table `messages`, each row once: it has its own watermark, which follows that of `messages`
after each of its commits. Columns are added when the schema gets new fields. Values that do not fit are in `_rescued`, as JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError
from penstock.log.http import HttpLog
from penstock.log.log import StreamSpan
from penstock.pipeline.arrow_types import TYPES, arrow_schema
from penstock.pipeline.core.options import source_options
from penstock.pipeline.job import Target
from penstock.pipeline.lake.reading import LakeLog
from penstock.pipeline.lake.table import ARCHIVE, Lake, Shape, Table
from penstock.pipeline.lake.writing import write_files
from penstock.schemas import Encoding, SchemaKind, compile_schema
from penstock.schemas.decoding import Decode, fields_of

RESCUED = "_rescued"
FIXED = arrow_schema(
    "stream_number bigint not null, offset bigint not null, message_id string not null, key string, "
    f"publish_time timestamp not null, date date, {RESCUED} string"
)
"""The columns of every typed table; a field with one of these names gets the column `field_NAME`."""
NAME, REVISION, ENCODING = "googclient_schemaname", "googclient_schemarevisionid", "googclient_schemaencoding"
FOLDER = "typed"


class _Revision(NamedTuple):
    """A revision of a schema: its fields with their columns and types, and its decoder."""

    columns: dict[str, tuple[str, str]]
    decode: Decode


class TypedTables:
    """The typed tables of a lake. The definitions of schemas are read from the server."""

    def __init__(self, lake: str, target: Target) -> None:
        if target.endpoint is None:
            raise InvalidArgument("typed tables need a server, which has the schemas", hint="name one with --server URL")
        self._lake = lake
        self._server = partial(HttpLog, target.endpoint, token=target.token, project=target.project)
        self._revisions: dict[tuple[str, str], _Revision | None] = {}

    def follow(self, stream: str) -> None:
        """Bring the table of a stream up to the table `messages`. A missing table is created if messages have a schema."""
        table = Lake(self._lake).table(table_name(stream))
        target = Lake(self._lake).table("messages").watermark().streams[stream]
        commits, streams = table.watermark()
        before = streams.get(stream)
        start = before.offset if before is not None and before.number == target.number else target.first
        if start >= target.offset:
            return
        options = source_options({"storage": "lake", "lake": self._lake, "subscribe": stream, "failOnDataLoss": "false"})
        span = StreamSpan(stream, target.number, start, target.offset, 0)
        log, shape = LakeLog(options, None), Shape(FIXED, ("date",), ("stream_number", "offset", "publish_time"))
        if table.refresh() is None:
            newest = log.messages(span, target.offset - 1, target.offset, columns=["attributes"])
            if not any(REVISION in dict(attributes or ()) for batch in newest for attributes in batch.column(0).to_pylist()):
                return
        table.create(shape)
        rows = (self._decoded(batch, table) for batch in log.messages(span, start, target.offset))
        files = list(write_files(rows, table, shape))
        # Refused if another archive was faster, which has then added these rows.
        table.commit(files, ARCHIVE, commits + 1, archived=streams | {stream: target})

    def _decoded(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        """Messages as rows of the table. Missing columns are added to the table."""
        rows = [self._row(row) for row in batch.select(["value", "attributes"]).to_pylist()]
        names = {column: kind for revision, _, _ in rows if revision for column, kind in revision.columns.values()}
        known = table.schema()
        lower = {name.lower() for name in known.names}
        added = [pa.field(name, TYPES[kind]) for name, kind in names.items() if name.lower() not in lower]
        if added:
            table.add_columns(added)
            known = table.schema()
        cells: dict[str, list[Any]] = {name: [] for name in known.names if name not in FIXED.names}
        rescued: list[str | None] = []
        for revision, values, problem in rows:
            left: dict[str, Any] = dict(problem)
            fields = {} if revision is None else revision.columns
            found = {fields[name][0]: value for name, value in values.items() if name in fields}
            for name, column in cells.items():
                value = found.pop(name, None)
                is_fit = value is None or _fits(value, known.field(name).type)
                column.append(value if is_fit else None)
                if not is_fit:
                    left[name] = value
            left |= {name: value for name, value in found.items() if value is not None}
            rescued.append(json.dumps(left, default=_encoded, ensure_ascii=False) if left else None)
        columns = {name: batch.column(name) for name in FIXED.names if name != RESCUED}
        columns |= {name: pa.array(values, known.field(name).type) for name, values in cells.items()}
        return pa.record_batch(columns | {RESCUED: pa.array(rescued, pa.string())})

    def _row(self, row: Mapping[str, Any]) -> tuple[_Revision | None, Mapping[str, Any], dict[str, Any]]:
        """The fields of a message, or the reason why it has none."""
        attributes = dict(row["attributes"] or ())
        whole = {"value": row["value"]}
        if REVISION not in attributes or NAME not in attributes:
            return None, {}, whole | {"error": "the message has no schema"}
        revision = self._revision(attributes[NAME], attributes[REVISION])
        if revision is None:
            return None, {}, whole | {"error": f"schema {attributes[NAME]}@{attributes[REVISION]} is not there any more"}
        try:
            return revision, revision.decode(row["value"], Encoding(attributes.get(ENCODING, "JSON"))), {}
        except Exception as error:  # noqa: BLE001  # a decoder may raise any error for bytes that do not match its schema
            return None, {}, whole | {"error": f"{type(error).__name__}: {error}"}

    def _revision(self, name: str, revision: str) -> _Revision | None:
        if (name, revision) not in self._revisions:
            try:
                with self._server() as log:
                    kind, definition = log.schema(name, revision)
            except PenstockError as error:
                if error.transient:
                    raise
                self._revisions[name, revision] = None
            else:
                fields, decode = fields_of(compile_schema(SchemaKind(kind), definition))
                taken = {column.lower() for column in FIXED.names}
                columns = {field: (f"field_{field}" if field.lower() in taken else field, kind) for field, kind in fields.items()}
                self._revisions[name, revision] = _Revision(columns, decode)
        return self._revisions[name, revision]


def table_name(stream: str) -> str:
    """The table of a stream."""
    return f"{FOLDER}/" + re.sub(r"[^A-Za-z0-9_.-]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), stream)


def _fits(value: object, kind: pa.DataType) -> bool:
    """Whether a value fits the type of a column. An integer fits a float column too."""
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    if pa.types.is_floating(kind):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    return isinstance(value, bytes if pa.types.is_binary(kind) else str)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
