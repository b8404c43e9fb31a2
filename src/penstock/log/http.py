"""The log of a server, through its log API, for Spark drivers and executors. Blocking; uses only the standard library.

call ──> connection (kept alive) ──> answer, or an error of the server, which is final
│ cut, refused, or "not now"
└──> wait, longer each time, and continue where it stopped; give up after `timeout` without progress
"""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from ipaddress import ip_address
from typing import IO, Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import pyarrow as pa

from penstock.backoff import exponential
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import (
    InvalidArgument,
    NotFound,
    PenstockError,
    ResourceExhausted,
    ServerUnreachable,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    from_wire,
)
from penstock.log.log import Committed, Cursor, Leases, RedriveProgress, SettledBatch, Spans, Staged, StreamSpan
from penstock.log.place import Place, place_of
from penstock.wire.address import Servers, split_servers

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds without progress after which a call fails."""
SOCKET_SECONDS = 30.0
MIN_PAUSE, MAX_PAUSE = 50_000, 2 * SECOND
ARROW = "application/vnd.apache.arrow.stream"
NEXT = b"next"
SPOOLED_BYTES = 64 * 1024 * 1024
"""A part of a write up to this size is kept in memory until the server has it; a larger one in a temporary file."""
BLOCK = 1024 * 1024
BATCH_BYTES = 32 * 1024 * 1024
"""The approximate maximum size of a batch that is sent."""
_LATER = frozenset({429, 502, 503, 504})
_IN_PROGRESS = "write_in_progress"
"""The reason of the answer that a commit is still running, and the call should be repeated."""


class _Held(msgspec.Struct):
    held: int


class _Note(msgspec.Struct):
    note: str


class _Detail(msgspec.Struct):
    message: str = ""
    reason: str = ""
    hint: str | None = None
    fields: list[Any] = []


class _Envelope(msgspec.Struct):
    error: _Detail


class _Offsets(msgspec.Struct):
    offsets: dict[str, int]


class _Sizes(msgspec.Struct):
    sizes: dict[str, int]


class _Schema(msgspec.Struct):
    """A schema in the format of the Google Pub/Sub API."""

    type: str
    definition: str


class _Created(msgspec.Struct):
    created: bool


class HttpLog:
    """A `WritableLog` of a server. Thread-safe; can be pickled, without its connections.

    `endpoint` may have the nodes of a cluster, as a list or separated by commas: a failed call is sent to the next node.
    `compression` is used for record batches: `none`, `lz4`, `zstd`, or `auto` (`none` for a server on this machine, else `lz4`).
    `timeout` is the number of seconds without progress after which a call fails.
    """

    def __init__(
        self,
        endpoint: Servers,
        *,
        token: str | None = None,
        project: str | None = None,
        compression: str = "auto",
        timeout: float = TIMEOUT,
    ) -> None:
        self._options = {"token": token, "project": project, "compression": compression, "timeout": timeout}
        self._places = _places(endpoint)
        self._place = self._places[0]
        """The node that calls are sent to now."""
        self._endpoint = endpoint if isinstance(endpoint, str) else ",".join(endpoint)
        if compression not in {"auto", "none", "lz4", "zstd"}:
            raise InvalidArgument.of("compression", compression, "auto, none, lz4 or zstd")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidArgument.of("timeout", timeout, "a number of seconds above 0")
        if token is not None and (not token or not token.isascii() or not token.isprintable()):
            raise InvalidArgument("token is not a token, expected what `penstock token create` prints")
        self._compression = compression if compression != "auto" else "none" if _is_here(self._place.host) else "lz4"
        self._timeout = timeout
        self._headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self._project = f"?{urlencode({'project': project})}" if project is not None else ""
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<log at {self._endpoint}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._endpoint, self._options)

    def reach(self, seconds: float) -> None:
        """Return when a server listens at the address; ServerUnreachable if none does in time."""
        patience = _Patience(self._endpoint, min(seconds, self._timeout))
        while True:
            place = self._place
            try:
                socket.create_connection((place.host, place.port), max(seconds, MIN_PAUSE / SECOND)).close()
            except OSError as error:
                self._leave(place)
                patience.wait(error)
            else:
                return

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def spans(self, names: Sequence[str] | None = None, pattern: str | None = None) -> Spans:
        """The ranges that can be read: of the named streams, of those whose full name matches a pattern (RE2), or of all."""
        if names is not None and not names:
            return Spans([], self.spans().events)
        return self._ask("POST", "/log/streams", {"names": list(names or ()), "pattern": pattern}, Spans)

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset published at or after a time (microseconds); its end if there is none."""
        return self._ask("POST", "/log/offsets", {"times": dict(times)}, _Offsets).offsets

    def offsets_for(self, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """How far a reader gets from `starts` within `max_bytes`, which are shared fairly between the streams."""
        return self._ask("POST", "/log/limits", {"starts": dict(starts), "max_bytes": max_bytes}, _Offsets).offsets

    def sizes_after(self, starts: Mapping[str, int]) -> dict[str, int]:
        """The approximate number of bytes of each stream from an offset to its end."""
        return self._ask("POST", "/log/sizes", {"starts": dict(starts)}, _Sizes).sizes

    def messages(
        self, span: StreamSpan, start: int, stop: int, *, columns: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in order. After a lost connection, the read continues after the last row."""
        fields: dict[str, Any] = {"stream": span.stream, "number": span.number}
        if columns is not None:
            fields["columns"] = list(columns)
        if keys is not None:
            fields["keys"] = list(keys)
        return self._read("/log/messages", fields, start, stop)

    def events(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The events of a range, or those of some streams."""
        return self._read("/log/events", {"streams": list(streams or ())}, start, stop)

    def dead_letters(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The dead letters of a range of the event log, with their payloads."""
        return self._read("/log/deadletters", {"streams": list(streams or ())}, start, stop)

    def close(self) -> None:
        """Close the connections. Safe to call twice."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def create_topic(self, name: str) -> bool:
        """Create a topic; False if it exists. The token needs the verb `manage` for it."""
        return self._ask("PUT", f"/log/streams/{_segment(name)}", None, _Created).created

    def schema(self, name: str, revision: str) -> tuple[str, str]:
        """The type (AVRO, PROTOCOL_BUFFER) and the definition of a revision of a schema, given by its full name."""
        found = self._ask("GET", f"/v1/{name}@{revision}", None, _Schema)
        return found.type, found.definition

    def place(self) -> Place:
        """The server's data directory; empty unless it has one and the token may read everything."""
        return self._ask("GET", "/log/place", None, Place)

    def directory(self) -> str | None:
        """The server's data directory, if it is on this machine, this process can read it, and the token may read everything."""
        from penstock.log.directory import DirectoryLog  # noqa: PLC0415  # most clients are on other machines

        found = self.place()
        if found.path is None or place_of(found.path) != found:
            return None
        try:
            DirectoryLog(found.path).close()
        except PenstockError:
            return None
        return found.path

    # ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cursors(self) -> list[Cursor]:
        """All cursors with their lag."""
        return self._ask("GET", "/log/cursors", None, list[Cursor])

    def advance(self, cursor: str, offsets: Mapping[str, int], *, holds: bool | None = None) -> None:
        self._ask("PUT", f"/log/cursors/{_segment(cursor)}", {"offsets": dict(offsets), "holds": holds}, Any)

    def delete_cursor(self, cursor: str) -> None:
        self._delete(f"/log/cursors/{_segment(cursor)}")

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stage(self, write: str, part: str, batches: Iterable[pa.RecordBatch], *, stream: str | None = None) -> Staged:
        """Store rows that are to be published. They are kept here until the server has them, so that they can be sent again."""
        query = urlencode({"stream": stream}) if stream is not None else ""
        joint = "&" if self._project and query else "?" if query else ""
        path = f"/log/writes/{_segment(write)}/parts/{_segment(part)}{self._project}{joint}{query}"
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as spool:
            self._spool(spool, batches)
            size = spool.tell()
            headers = {"Content-Type": ARROW, "Content-Length": str(size)}
            answer = self._answer("PUT", path, spool, headers)
        return _decoded(answer, Staged)

    def commit(self, write: str, parts: Sequence[str], *, query: str | None = None, batch: int = 0, note: str = "") -> Committed:
        """Publish the parts, in this order, all or nothing, once for each (query, batch); without a query, once for the write."""
        fields = {"parts": list(parts), "query": query, "batch": batch, "note": note}
        return self._ask("POST", f"/log/writes/{_segment(write)}/commit", fields, Committed)

    def abort(self, write: str) -> None:
        """Remove the staged parts of a write that has not been committed. Safe to call twice."""
        self._delete(f"/log/writes/{_segment(write)}")

    # ── planned batches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def leases(
        self,
        query: str,
        source: str,
        *,
        rows: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        seconds: float = 600,
        parts: int = 1,
        batch: int | None = None,
    ) -> Leases:
        """The unsettled batch of a query, or a new one: at most `rows` new messages, leased for `seconds`.

        `source`: `queue:NAME` or `subscription:NAME`. `batch`: the expected number; FailedPrecondition if it is another.
        """
        fields = {"source": source, "rows": rows, "max_bytes": max_bytes, "seconds": seconds, "parts": parts, "batch": batch}
        return self._ask("POST", f"/log/leases/{_segment(query)}", fields, Leases)

    def leased(self, query: str, batch: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The unsettled messages of a batch between two offsets (schema `LEASED` of `penstock.log.arrow`)."""
        return self._read(f"/log/leases/{_segment(query)}/messages", {"batch": batch}, start, stop)

    def extend(self, query: str, batch: int, seconds: float) -> int:
        """Extend the leases of a batch to `seconds` from now; returns the number of leased messages."""
        return self._ask("POST", f"/log/leases/{_segment(query)}/extend", {"batch": batch, "seconds": seconds}, _Held).held

    def settle(self, query: str, batch: int, endings: Mapping[str, Any]) -> SettledBatch:
        """Settle a batch, once. `endings` has the fields `ack`, `dead`, `nack`, `release`, `keep` and `attempts` of the log API.

        Other messages stay leased by the query, and are the first of the next batch.
        """
        return self._ask("POST", f"/log/leases/{_segment(query)}/settle", {"batch": batch, **endings}, SettledBatch)

    def release(self, query: str) -> int:
        """Requeue all messages that a query has leased, without counting an attempt; returns how many."""
        return self._ask("POST", f"/log/leases/{_segment(query)}/release", {}, _Held).held

    # ── redrives ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_redrive(self, redrive: str, note: str) -> str:
        """Store a note about a redrive; returns the note of the first call for it."""
        return self._ask("PUT", f"/log/redrives/{_segment(redrive)}", {"note": note}, _Note).note

    def redrive(self, redrive: str, source: str, letters: Sequence[tuple[str, int]]) -> RedriveProgress:
        """Requeue dead letters, at most 1,000, in the order of publishing; those of earlier calls are skipped.

        `source`: `queue:NAME` or `subscription:NAME`. `letters`: message ids, each with when it was dead-lettered (microseconds).
        """
        fields = {"source": source, "letters": [*map(list, letters)]}
        return self._ask("POST", f"/log/redrives/{_segment(redrive)}", fields, RedriveProgress)

    # ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def levels(self, kind: type[T]) -> T:
        """The current fill level of queues and load of pools, from the API of the console."""
        return self._ask("GET", "/console/api/levels", None, kind)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, method: str, path: str, fields: object, kind: type[T]) -> T:
        body = None if fields is None else msgspec.json.encode(fields)
        return _decoded(self._answer(method, path + self._project, body, {"Content-Type": "application/json"}), kind)

    def _delete(self, path: str) -> None:
        with suppress(NotFound):  # perhaps deleted by the first attempt of this call, whose answer was lost
            self._answer("DELETE", path + self._project, None, {})

    def _answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """The body of a successful answer. Temporary failures are retried until the timeout."""
        patience = _Patience(self._endpoint, self._timeout)
        while True:
            place, connection = self._connection()
            try:
                response = self._send(connection, method, place.prefix + path, body, headers)
                answer = response.read()
            except _Refused as refused:
                self._give_back(place, connection)
                if not refused.is_progress:
                    self._leave(place)
                patience.wait(refused)
            except (OSError, HTTPException) as error:
                connection.close()
                self._leave(place)
                patience.wait(error)
            except BaseException:
                connection.close()
                raise
            else:
                self._give_back(place, connection)
                return answer

    def _read(self, path: str, fields: dict[str, Any], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Record batches as they arrive. Batches that were received are never requested again."""
        patience = _Patience(self._endpoint, self._timeout)
        headers = {"Content-Type": "application/json"}
        while True:
            body = msgspec.json.encode({**fields, "start": start, "stop": stop, "compression": self._compression})
            (place, connection), is_whole = self._connection(), False
            try:
                response = self._send(connection, "POST", f"{place.prefix}{path}{self._project}", body, headers)
                reader = pa.ipc.open_stream(pa.PythonFile(_Body(response), "r"))
                for batch, metadata in reader.iter_batches_with_custom_metadata():
                    start = int(metadata[NEXT])
                    patience.renew()
                    if batch.num_rows:
                        yield batch
                        # The time of the caller does not count; the server may have cut the connection meanwhile.
                        patience.renew()
                # The rest of the body is only its end marker; a body that was cut has none.
                response.read()
                is_whole = True
            except _Refused as refused:
                is_whole = True
                self._leave(place)
                patience.wait(refused)
            except (OSError, HTTPException) as error:
                if start == stop:
                    return  # everything that was requested has arrived
                self._leave(place)
                patience.wait(error)
            else:
                return
            finally:
                if is_whole:
                    self._give_back(place, connection)
                else:
                    connection.close()

    def _send(self, connection: HTTPConnection, method: str, path: str, body: Any, headers: Mapping[str, str]) -> HTTPResponse:
        """Send a request; returns a successful answer, or raises."""
        if hasattr(body, "seek"):
            body.seek(0)
        connection.request(method, path, body, {**self._headers, **headers})
        response = connection.getresponse()
        if not response.chunked and response.length is None:
            raise IncompleteRead(b"")  # the head was cut: the length of the body was in the rest of it
        if response.status < 300:
            return response
        raise _failure(response)

    def _connection(self) -> tuple[_Place, HTTPConnection]:
        with self._lock:
            place = self._place
            if self._idle:
                return place, self._idle.pop()
        if place.is_secure:
            context = ssl.create_default_context()
            return place, HTTPSConnection(place.host, place.port, timeout=SOCKET_SECONDS, blocksize=BLOCK, context=context)
        return place, _PlainConnection(place.host, place.port, timeout=SOCKET_SECONDS, blocksize=BLOCK)

    def _give_back(self, place: _Place, connection: HTTPConnection) -> None:
        with self._lock:
            if place is self._place:
                self._idle.append(connection)
                return
        connection.close()

    def _leave(self, place: _Place) -> None:
        """Change to the next node after a failure, unless another thread has done so."""
        with self._lock:
            if place is not self._place or len(self._places) == 1:
                return
            self._place = self._places[(self._places.index(place) + 1) % len(self._places)]
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _spool(self, spool: IO[bytes], batches: Iterable[pa.RecordBatch]) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if self._compression == "none" else self._compression)
        writer = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(spool, batch.schema, options=options)
            for piece in _pieces(batch):
                writer.write_batch(piece)
        if writer is None:
            writer = pa.ipc.new_stream(spool, pa.schema([pa.field("value", pa.binary())]), options=options)
        writer.close()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a size that a server accepts; one for a batch of a usual size."""
    count = batch.num_rows
    step = max(count * BATCH_BYTES // max(batch.nbytes, 1), 1)
    if step >= count:
        yield batch
        return
    for first in range(0, count, step):
        rows = batch.slice(first, step)
        if rows.num_rows > 1 and rows.nbytes > 2 * BATCH_BYTES:
            yield from _pieces(rows)
        else:
            yield rows


class _PlainConnection(HTTPConnection):
    """A connection that sends small requests at once."""

    def connect(self) -> None:
        """Connect without Nagle's algorithm."""
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Body:
    """The body of an answer as a file for Arrow. Each read fills a new buffer, which becomes the data of columns."""

    closed = False

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response

    def read(self, size: int) -> pa.Buffer:
        """Read exactly `size` bytes. Arrow never requests more than the body has, so fewer mean that it was cut."""
        buffer = pa.allocate_buffer(size)
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < size:
            count = self._response.readinto(view[filled:])
            if not count:
                raise IncompleteRead(b"", size - filled)
            filled += count
        return buffer

    def close(self) -> None:
        """Do nothing: the connection is not closed by Arrow."""


class _Refused(Exception):
    """A temporary refusal of the server."""

    def __init__(self, error: PenstockError, retry_after: float, *, is_progress: bool) -> None:
        super().__init__(error)
        self.error = error
        self.retry_after = retry_after
        self.is_progress = is_progress


class _Patience:
    """The waits between retries, and the limit: `timeout` seconds without progress."""

    def __init__(self, endpoint: str, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = int(timeout * SECOND)
        self.renew()

    def renew(self) -> None:
        self._tries = 0
        self._until = monotonic() + self._timeout

    def wait(self, problem: _Refused | OSError | HTTPException) -> None:
        """Return when it is time to retry, or raise the error of the last attempt."""
        pause, error = 0, None
        if isinstance(problem, _Refused):
            pause, error = int(problem.retry_after * SECOND), problem.error
            if problem.is_progress:
                self.renew()
        self._tries += 1
        pause = max(pause, exponential(self._tries, MIN_PAUSE, MAX_PAUSE))
        if monotonic() + pause > self._until:
            raise error or ServerUnreachable(self._endpoint, str(problem) or type(problem).__name__) from problem
        threading.Event().wait(pause / SECOND)


def _failure(response: HTTPResponse) -> Exception:
    """The exception for an answer that is not successful."""
    status, body = response.status, response.read()
    try:
        detail = msgspec.json.decode(body, type=_Envelope).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        detail = _Detail(f"the server answered {status} {response.reason}, which is not an answer of Penstock")
    error = from_wire(detail.reason, detail.fields, detail.message, detail.hint) if detail.fields else _by_status(status, detail)
    if status not in _LATER:
        return error
    wait = response.headers.get("Retry-After", "")
    return _Refused(error, min(float(wait), 60.0) if wait.isdigit() else 0.0, is_progress=detail.reason == _IN_PROGRESS)


def _by_status(status: int, detail: _Detail) -> PenstockError:
    """The error for an answer that comes from a layer before the API, or not from Penstock."""
    text, hint = detail.message, detail.hint
    match status:
        case 401:
            return Unauthenticated(text.removeprefix("not authenticated: "))
        case 404 | 405:
            return Unimplemented(f"{text}: this server has no log API", hint="expected a Penstock server with /log/streams")
        case 429:
            return ResourceExhausted(text, hint=hint)
        case 502 | 503 | 504:
            return Unavailable(text, hint=hint)
        case 400 | 413 | 414 | 415 | 431:
            return InvalidArgument(text, hint=hint)
    return PenstockError(text, hint=hint)


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer or b"null", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PenstockError(
            f"the server's answer cannot be read: {error}", hint="check that the client and the server have the same version"
        ) from error


@dataclass(frozen=True, slots=True)
class _Place:
    """The address of a server."""

    is_secure: bool
    host: str
    port: int | None
    prefix: str
    """The prefix of every path."""


def _places(endpoint: Servers) -> list[_Place]:
    try:
        return [_address(one) for one in split_servers(endpoint)]
    except InvalidArgument as error:
        if error.args[0].startswith("server "):
            raise InvalidArgument.of("endpoint", endpoint, "the address of a server, such as http://127.0.0.1:8080") from None
        raise


def _address(endpoint: str) -> _Place:
    wanted = "the address of a server, such as http://127.0.0.1:8080"
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgument.of("endpoint", endpoint, wanted) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgument.of("endpoint", endpoint, wanted)
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("endpoint holds a user or password, expected none", hint="give the token as `token`")
    return _Place(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"))


def _is_here(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _segment(name: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgument.of("name", name, "a non-empty string")
    return quote(name, safe="")


def _reopened(endpoint: str, options: dict[str, Any]) -> HttpLog:
    return HttpLog(endpoint, **options)
