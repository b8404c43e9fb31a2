"""HTTP/2 on one connection: many concurrent requests, each on its own stream.

The library `h2` implements the protocol without I/O; this module turns its events into answers. Its output is collected during
one turn of the loop and written in one piece, so that TLS needs few records.

The library takes tens of microseconds for a frame of nine bytes, so a target could keep it busy with useless frames. `_noise`
counts the bytes that are not of bodies since the last answer ended; above the limit, the connection is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install
from penstock.http.client.call import HttpCall
from penstock.http.client.dial import OpeningConnection
from penstock.http.client.origin import Origin
from penstock.http.client.target import USER_AGENT, Target
from penstock.http.client.transport import Answer, Failure, FailureKind

try:
    from h2 import events
    from h2.config import DummyLogger, H2Configuration
    from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
    from h2.errors import ErrorCodes
    from h2.exceptions import H2Error
    from h2.settings import SettingCodes, Settings
except ModuleNotFoundError as error:
    raise FailedPrecondition("the router's HTTP client needs the library h2", hint=how_to_install("router")) from error

LAST_STREAM: Final = 2**31 - 1
WRITE_LIMIT: Final = 1 << 20
"""Bytes that may wait to be written. Requests stop long before; more are answers to a flood of PING and SETTINGS."""
NOISE_LIMIT: Final = 16 * 1024
"""Bytes that are not of a body, since the last answer ended: enough for the headers of one answer."""
NOISE_OF_CALL: Final = 4 * 1024
"""Additional bytes for each call under way."""
FAIR_PACKING: Final = 2
"""Bytes for each byte of a body that are not counted as noise: those of frames of nine bytes or more."""
SLICE: Final = 2 * 1024
"""Bytes that are read in one turn of the loop."""
KEPT_BLOCKS: Final = 256
"""The number of encoded headers in the cache of a connection."""
KEPT_BLOCK: Final = 4 * 1024
"""The longest encoded headers in it, in bytes."""
WINDOW: Final = 65_535
"""Bytes of bodies that the target may send before we acknowledge them."""
_SETTINGS: Final = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE}
_CONFIGURATION: Final = H2Configuration(
    client_side=True,
    header_encoding=None,
    # The headers are made by this module and need no check; and the library would log 20 lines for each call.
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
    logger=DummyLogger(),
)
_NAMES: Final = {
    b":authority": 1,
    b":path": 4,
    b"accept": 19,
    b"authorization": 23,
    b"content-length": 28,
    b"content-type": 31,
    b"user-agent": 58,
}
"""The indexes of these names in HPACK's static table (RFC 7541, appendix A)."""
_INDEXED: Final = {(b":method", b"POST"): b"\x83", (b":scheme", b"https"): b"\x87"}
_NO_TABLE: Final = b"\x20"
"""Sets the size of the target's decoder table to 0."""
_SECRET: Final = {b"authorization"}
"""Headers that no proxy may put into its own table."""


class _Stream(msgspec.Struct, gc=False, eq=False):
    """A call on its stream."""

    call: HttpCall
    unsent: memoryview
    """The part of the request's body that is not yet sent."""
    body: bytearray
    status: int = 0
    retry_after: str | None = None


class HeaderEncoder:
    """Encodes headers (HPACK) without the target's dynamic table: equal headers give equal bytes and are encoded once."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[tuple[bytes, bytes], ...], bytes] = {}
        self._has_told = True

    @property
    def header_table_size(self) -> int:
        """0: the dynamic table is not used."""
        return 0

    @header_table_size.setter
    def header_table_size(self, _: int) -> None:
        """The target has changed the limit, so the next headers must announce the size in use (RFC 7541, 4.2)."""
        self._has_told = False

    def encode(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encode the headers of a request."""
        key = tuple(headers)
        block = self._blocks.get(key)
        if block is None:
            block = b"".join([_INDEXED.get(header) or _literal(*header) for header in key])
            if len(self._blocks) >= KEPT_BLOCKS:
                self._blocks.clear()
            if len(block) <= KEPT_BLOCK:
                self._blocks[key] = block
        if not self._has_told:
            self._has_told = True
            return _NO_TABLE + block
        return block


def _literal(name: bytes, value: bytes) -> bytes:
    start = 0x10 if name in _SECRET else 0x00
    index = _NAMES.get(name, 0)
    return _integer(index, 4, start) + (b"" if index else _text(name)) + _text(value)


def _text(text: bytes) -> bytes:
    return _integer(len(text), 7) + text


def _integer(value: int, bits: int, start: int = 0) -> bytes:
    """Encode a number in the lower `bits` of a byte that begins with `start`, and in further bytes if necessary."""
    most = (1 << bits) - 1
    if value < most:
        return bytes((start | value,))
    found = bytearray((start | most,))
    value -= most
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


class _StateMachine(H2ConnectionStateMachine):
    """The library's state machine, except that answers under way are still received after a GOAWAY."""

    _transitions = {  # noqa: RUF012  # as in the library
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.CLIENT_OPEN),
    }


class Http2Connection(OpeningConnection):
    """An HTTP/2 connection to an origin. It takes several calls at a time."""

    _transport: asyncio.Transport

    def __init__(self, origin: Origin, body_limit: int) -> None:
        self._origin = origin
        self._body_limit = body_limit
        self._loop = asyncio.get_running_loop()
        self._h2 = H2Connection(_CONFIGURATION)
        self._h2.state_machine = _StateMachine()
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._h2.encoder = HeaderEncoder()  # type: ignore[assignment]  # it has everything that the connection uses
        self._streams: dict[int, _Stream] = {}
        self._capacity = origin.shared_limit
        self._allowed: int | None = None
        """The target's limit of streams; None until its SETTINGS arrive."""
        self._noise = 0
        self._unread = bytearray()
        self._is_kept = False
        """Whether it has answered before: then the target may have closed it in the meantime."""
        self._is_retired = False
        self._is_paused = False
        self._is_silent = False
        """Whether nothing arrived since the last PING."""
        self._will_flush = False
        self._is_ready: asyncio.Future[bool] = self._loop.create_future()
        self.is_free = False
        self.idle_since = 0

    async def ready(self) -> None:
        """Return when the target has sent its limit of streams; ConnectionResetError if the connection is lost before."""
        if not await self._is_ready:
            raise ConnectionResetError

    @property
    def load(self) -> int:
        return len(self._streams)

    def start(self, call: HttpCall) -> bool:
        """Send a request. Returns whether the connection is full now."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, _headers(call), end_stream=not call.body)
        stream = self._streams[number] = _Stream(call, memoryview(call.body), bytearray())
        self._send_body(number, stream)
        self._flush_soon()
        self._is_retired |= number == LAST_STREAM
        return self._is_retired or len(self._streams) >= self._capacity

    def drop(self, call: HttpCall) -> None:
        """Drop a call; the other streams continue."""
        number = next(number for number, stream in self._streams.items() if stream.call is call)
        self._reset(number)
        self._leave(number)

    def discard(self) -> None:
        self._is_retired = True
        self._unread.clear()
        self._transport.abort()
        self._origin.lost(self, calls=0)

    def check(self) -> None:
        """Send a PING if there are calls; close the connection if nothing arrived since the last one."""
        if not self._streams:
            return
        if self._is_silent:
            self._break("the target does not answer a PING")
            return
        self._is_silent = True
        self._h2.ping(b"penstock")
        self._flush()

    # ── what the event loop calls ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of TLS it is one that writes
        self._transport = transport
        self._h2.initiate_connection()
        self._flush()
        self._origin.opened(self, is_shared=True)

    def data_received(self, data: bytes) -> None:
        self._is_silent = False
        if not self._unread:
            if len(data) <= SLICE:
                self._read(data)
                return
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)
        self._unread += data

    def _read_on(self) -> None:
        if self._unread:
            self._read_slice()
        if self._unread:
            self._loop.call_soon(self._read_on)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _read_slice(self) -> None:
        data = bytes(self._unread[:SLICE])
        del self._unread[:SLICE]
        self._read(data)

    def _read(self, data: bytes) -> None:
        self._flush()  # the library drops unsent data when a GOAWAY arrives
        self._noise += len(data)
        try:
            found = self._h2.receive_data(data)
            if self._allowed not in {self._h2.remote_settings.max_concurrent_streams, None}:
                self._resize()  # before an answer in the same data makes room for a call
            for event in found:
                self._take(event)
        except H2Error as error:
            self._break(f"the answer is not HTTP/2: {type(error).__name__}")
            return
        self._flush()
        if self._noise > NOISE_LIMIT + NOISE_OF_CALL * len(self._streams):
            self._break("the target sends too much data besides the answers")
        elif self._transport.get_write_buffer_size() > WRITE_LIMIT:
            self._break("the target asks for more than it reads")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_bodies()
        self._flush()

    def eof_received(self) -> None:
        """The target will send no more; the connection closes."""
        self._retire()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by the target or by us."""
        while self._unread:
            self._read_slice()
        streams, self._streams = self._streams, {}
        self._tell_ready(False)
        self._origin.lost(self, calls=len(streams))
        if streams and self._is_kept:
            self._origin.close_idle()  # connections that were idle as long are likely to be closed too
        for stream in reversed(streams.values()):  # each is put at the front of the queue
            self._send_again(stream, self._is_kept and not stream.status, "the connection broke before the answer was complete")

    # ── what the target sends ────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, event: events.Event) -> None:  # one branch for each kind of event
        match event:
            case events.ResponseReceived(stream_id=number, headers=headers):
                if stream := self._streams.get(number):
                    found = dict(headers)
                    stream.status = _status(found[b":status"])
                    stream.retry_after = value.decode("latin-1") if (value := found.get(b"retry-after")) is not None else None
            case events.DataReceived(stream_id=number, data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length, number)
                self._collect(number, data)
            case events.StreamEnded(stream_id=number):
                self._end(number)
            case events.StreamReset(stream_id=number, error_code=code):
                if stream := self._streams.get(number):
                    self._leave(number)
                    self._send_again(stream, code == ErrorCodes.REFUSED_STREAM, f"the target reset the stream ({_word(code)})")
            case events.RemoteSettingsChanged():
                self._resize()
                self._send_bodies()
            case events.WindowUpdated():
                self._send_bodies()
            case events.ConnectionTerminated(last_stream_id=last, error_code=code):
                self._go_away(last if last is not None else 0, code)

    def _collect(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.body += data
        self._noise = max(self._noise - len(data) * FAIR_PACKING, 0)
        if len(stream.body) > self._body_limit:
            del stream.body[self._body_limit :]
            self._end(number)
            self._noise = -WINDOW  # the rest of the body that is already under way

    def _end(self, number: int) -> None:
        """The answer is complete, or long enough."""
        stream = self._streams.get(number)
        if stream is None:
            return
        self._is_kept = True
        self._noise = 0
        self._reset(number)
        self._leave(number)
        if stream.status:
            stream.call.finish(Answer(stream.status, bytes(stream.body), stream.retry_after))
        else:
            stream.call.finish(Failure(FailureKind.BROKEN, f"{self._origin.name}: the answer has no status"))

    def _go_away(self, last: int, code: object) -> None:
        """The target takes no more calls on this connection, and has not processed those after `last`."""
        self._retire()
        unseen = {number: stream for number, stream in self._streams.items() if number > last}
        for number in unseen:
            self._leave(number)
        for stream in reversed(unseen.values()):  # each is put at the front of the queue
            self._send_again(stream, True, f"the target goes away ({_word(code)})")

    def _resize(self) -> None:
        """Apply the target's limit of streams, which may have changed."""
        self._allowed = self._h2.remote_settings.max_concurrent_streams
        self._capacity = min(self._allowed, self._origin.shared_limit)
        if len(self._streams) >= self._capacity:
            self._origin.retire(self)
        elif not self._is_retired and not self.is_free:
            self._origin.offer(self)
        self._tell_ready(True)

    # ── ends ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _leave(self, number: int) -> None:
        del self._streams[number]
        if self._is_retired:
            self._origin.left()
            if not self._streams:
                self.discard()
        elif len(self._streams) < self._capacity:
            self._origin.release(self)
        else:
            self._origin.left()

    def _reset(self, number: int) -> None:
        """Reset a stream unless both sides have closed it."""
        stream = self._h2.streams.get(number)
        if stream is not None and not stream.closed:
            self._h2.reset_stream(number, ErrorCodes.CANCEL)
            self._flush_soon()

    def _retire(self) -> None:
        self._is_retired = True
        self._origin.retire(self)
        if not self._streams:
            self.discard()

    def _break(self, why: str) -> None:
        """Close the connection, and end all its calls."""
        streams, self._streams = self._streams, {}
        self._unread.clear()
        self._is_retired = True
        self._flush()
        self._transport.abort()
        self._origin.lost(self, calls=len(streams))
        for stream in streams.values():
            self._send_again(stream, False, why)

    def _tell_ready(self, found: bool) -> None:
        if not self._is_ready.done():
            self._is_ready.set_result(found)

    def _send_again(self, stream: _Stream, is_unseen: bool, why: str) -> None:
        """Send a call again if the target has not processed it, but only once; otherwise end it."""
        if is_unseen and not stream.call.is_replaced:
            self._origin.again(stream.call)
        else:
            self._loop.call_soon(stream.call.finish, Failure(FailureKind.BROKEN, f"{self._origin.name}: {why}"))

    # ── what we send ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send_bodies(self) -> None:
        for number, stream in self._streams.items():
            if stream.unsent:
                self._send_body(number, stream)

    def _send_body(self, number: int, stream: _Stream) -> None:
        """Send as much of a body as flow control allows now."""
        while stream.unsent and not self._is_paused:
            size = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size, len(stream.unsent))
            if size <= 0:
                return
            part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            self._h2.send_data(number, bytes(part), end_stream=not stream.unsent)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if (data := self._h2.data_to_send()) and not self._transport.is_closing():
            self._transport.write(data)


def _headers(call: HttpCall) -> list[tuple[bytes, bytes]]:
    found = [*_head(call.target), (b"content-length", b"%d" % len(call.body))]
    for line in call.headers.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            found.append((name.lower(), value.strip()))
    return found


def _head(target: Target) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", target.scheme.encode()),
        (b":authority", target.authority.encode()),
        (b":path", target.path.encode()),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json"),
        (b"user-agent", USER_AGENT.encode()),
    ]


def _status(value: bytes) -> int:
    """The status of an answer; 0 if it is invalid."""
    return int(value) if len(value) == 3 and value.isdigit() and value >= b"200" else 0


def _word(code: object) -> str:
    return code.name if isinstance(code, ErrorCodes) else str(code)
