"""The request that a handler gets, and helpers for its answers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from penstock.access import ANYONE, Principal
from penstock.http.authentication import Admission, Gate, secret_of
from penstock.http.bodies import FREE_BYTES, STEP_BYTES, BodyBudget, BodyShare, Unpacker
from penstock.http.refusal import Refusal, too_large

HEARTBEAT_SECONDS = 30.0
SERVER_NAME = "penstock"
"""The Server header of every answer."""
WEBSOCKET_VERSION = "13"
_WEBSOCKET = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The constant that RFC 6455 appends to the key of a handshake."""


class ServerContext(Protocol):
    """The part of the server that a request uses."""

    gate: Gate | None
    stopping: asyncio.Event
    websockets: set[web.WebSocketResponse]
    bodies: BodyBudget
    unpacking: asyncio.Lock
    """Held for one step of decompression, so that all compressed bodies together take one step in each turn of the loop."""


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """The host and the port at the other end of a connection."""
    found = transport.get_extra_info("peername") if transport is not None else None
    if not isinstance(found, tuple):
        return "unknown"
    host, port = found[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Request(web.BaseRequest):
    """aiohttp's request, with what the shell found out about it.

    `match_info` has the decoded parameters of the path. `principal` is the caller: without a gate `ANYONE`, with all permissions;
    on an open route `NO_PRINCIPAL`, with none. `request_id` identifies the request in the log and in the answer.
    """

    route: Any = None  # the Route; its type refers to this class
    match_info: dict[str, str]
    principal: Principal = ANYONE
    request_id: str = ""
    websocket: web.WebSocketResponse | None = None
    server_context: ServerContext
    share: BodyShare | None = None
    """The body's share of the memory for all bodies, until the request has its answer."""

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the server stops. A handler that waits (a long poll) should also wait for this, and then answer."""
        return self.server_context.stopping

    @property
    def address(self) -> str:
        """The address of the client, without its port."""
        return self.remote or "unknown"

    @property
    def peer(self) -> str:
        return peer_of(self.transport)

    def admission(self) -> Admission:
        """For a long-lived handler: checks repeatedly whether the caller's token is still valid."""
        return Admission(self.server_context.gate, secret_of(self.headers))

    def limit_body(self, limit: int) -> None:
        """Set the limit of this request's body."""
        self._client_max_size = limit

    async def read(self) -> bytes:
        """The whole body, decompressed. 413 if it is too large, announced or not; 503 if there is no room for it."""
        length = self.content_length
        if self._read_bytes is None and (length is None or length > FREE_BYTES or "Content-Encoding" in self.headers):
            self._read_bytes = await self._read_all()
        return await super().read()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, decompressed in small steps. 413 if the compressed data is too large.

        The caller limits the decompressed data.
        """
        coding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if coding in {"identity", ""}:
            async for data in self.content.iter_any():
                yield data
            return
        unpacker, packed = Unpacker(coding.removeprefix("x-")), 0
        async for data in self.content.iter_any():
            packed += len(data)
            if packed > self.client_max_size:
                raise too_large(self.client_max_size)
            steps = unpacker.steps(data)
            while True:
                async with self.server_context.unpacking:
                    piece = next(steps, None)
                    await asyncio.sleep(0)
                if piece is None:
                    break
                yield piece
        unpacker.finish()

    async def _read_all(self) -> bytes:
        # In blocks: bodies that grow at the same time, each in one piece, would leave holes of their own size in the heap.
        blocks, size, limit, share = [bytearray()], 0, self.client_max_size, self.share
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise too_large(limit)
            if size > FREE_BYTES:
                if share is None:
                    share = self.share = BodyShare(self.server_context.bodies, asyncio.get_running_loop().time())
                await share.grow_to(size)
            if len(blocks[-1]) + len(piece) > STEP_BYTES:
                blocks.append(bytearray())
            blocks[-1] += piece
        return b"".join(blocks)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, headers=headers, body=msgspec.json.encode(value), content_type="application/json")


def _check_upgrade(request: Request) -> None:
    if request.headers.get("Upgrade", "").strip().lower() != "websocket":
        hint = "connect with a WebSocket client: ws://… or wss://…"
        raise Refusal(426, "this path speaks WebSocket", reason="upgrade_required", hint=hint, headers={"Upgrade": "websocket"})


async def open_websocket(request: Request, *, max_message_bytes: int) -> web.WebSocketResponse:
    """Upgrade a request. The server knows the socket, and closes it with 1001 when it stops.

    Messages above `max_message_bytes` end it with 1009; a client that does not answer pings is cut.
    """
    _check_upgrade(request)
    socket = web.WebSocketResponse(
        heartbeat=HEARTBEAT_SECONDS,
        max_msg_size=max_message_bytes,
        compress=False,  # its memory for each connection costs more than the bytes that it saves
        timeout=2.0,
    )
    socket.headers.update(_names(request))
    await socket.prepare(request)
    request.websocket = socket
    request.server_context.websockets.add(socket)
    return socket


async def accept_websocket(request: Request) -> web.StreamResponse:
    """Only upgrade a request: the caller reads and writes frames, closes, and cuts clients that do not answer."""
    _check_upgrade(request)
    headers = request.headers
    if "upgrade" not in {word.strip().lower() for word in headers.get("Connection", "").split(",")}:
        raise _no_handshake("the Connection header does not contain Upgrade")
    if headers.get("Sec-WebSocket-Version", "").strip() != WEBSOCKET_VERSION:
        raise Refusal(
            426,
            "this path speaks version 13 of WebSocket",
            reason="upgrade_required",
            hint=f"send Sec-WebSocket-Version: {WEBSOCKET_VERSION}",
            headers={"Upgrade": "websocket", "Sec-WebSocket-Version": WEBSOCKET_VERSION},
        )
    key = headers.get("Sec-WebSocket-Key", "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        is_key = False
    if not is_key:
        raise _no_handshake("the header Sec-WebSocket-Key is not 16 bytes in base64")
    response = web.StreamResponse(status=101, headers={"Upgrade": "websocket", "Connection": "Upgrade", **_names(request)})
    digest = hashlib.sha1(key.encode() + _WEBSOCKET, usedforsecurity=False).digest()
    response.headers["Sec-WebSocket-Accept"] = base64.b64encode(digest).decode()
    response.force_close()
    await response.prepare(request)
    return response


def _no_handshake(message: str) -> Refusal:
    return Refusal(400, message, reason="bad_handshake", hint="connect with a WebSocket client: ws://… or wss://…")


def _names(request: Request) -> dict[str, str]:
    """The headers of every answer. The shell adds them to answers that have not started."""
    return {"X-Request-Id": request.request_id, "Server": SERVER_NAME}
