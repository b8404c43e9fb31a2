"""A request as a handler gets it, and the answers it may give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from penstock.access import ANYONE, Principal
from penstock.http.authentication import Admission, Gate, secret_of
from penstock.http.bodies import FREE_BYTES, STEP_BYTES, BodyBudget, BodyShare, Unpacker
from penstock.http.refusal import Refusal, too_large

HEARTBEAT_SECONDS = 30.0


class House(Protocol):
    """What a request knows of the server it came to."""

    gate: Gate | None
    stopping: asyncio.Event
    websockets: set[web.WebSocketResponse]
    bodies: BodyBudget
    unpacking: asyncio.Lock
    """Held for one step of unpacking, so that all compressed bodies together take one step in each turn of the loop."""


class Request(web.BaseRequest):
    """aiohttp's request, and what the shell found out about it.

    `match_info` are the path's parameters, decoded; `principal` is who calls (without a gate anyone, who may do everything; on
    an open route nobody, who may do nothing); `request_id` names it in the log and in the answer.
    """

    route: Any = None  # the Route, which is made of handlers of this very type
    match_info: dict[str, str]
    principal: Principal = ANYONE
    request_id: str = ""
    websocket: web.WebSocketResponse | None = None
    house: House
    share: BodyShare | None = None
    """What the body takes of the memory for all bodies, until the request has its answer."""

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the server stops: a handler that waits (a long poll) should wait for this too, and answer."""
        return self.house.stopping

    @property
    def address(self) -> str:
        """Where the client is, without its port."""
        return self.remote or "unknown"

    def admission(self) -> Admission:
        """For a handler that stays: asks again and again whether the caller still may."""
        return Admission(self.house.gate, secret_of(self.headers))

    def limit_body(self, limit: int) -> None:
        """Give this request a limit of its own."""
        self._client_max_size = limit

    async def read(self) -> bytes:
        """The whole body, unpacked. 413 when it is too large, also when its length was not announced; 503 without room for it."""
        length = self.content_length
        if self._read_bytes is None and (length is None or length > FREE_BYTES or "Content-Encoding" in self.headers):
            self._read_bytes = await self._read_all()
        return await super().read()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives, unpacked in small steps. The caller counts what it takes; 413 for too much before unpacking."""
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
                async with self.house.unpacking:
                    piece = next(steps, None)
                    await asyncio.sleep(0)
                if piece is None:
                    break
                yield piece
        unpacker.finish()

    async def _read_all(self) -> bytes:
        # In blocks: bodies that grow side by side, each in one piece, would leave holes in the heap as large as themselves.
        blocks, size, limit, share = [bytearray()], 0, self.client_max_size, self.share
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise too_large(limit)
            if size > FREE_BYTES:
                if share is None:
                    share = self.share = BodyShare(self.house.bodies, asyncio.get_running_loop().time())
                await share.grow_to(size)
            if len(blocks[-1]) + len(piece) > STEP_BYTES:
                blocks.append(bytearray())
            blocks[-1] += piece
        return b"".join(blocks)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A value that msgspec can encode, as JSON."""
    return web.Response(status=status, headers=headers, body=msgspec.json.encode(value), content_type="application/json")


async def open_websocket(
    request: Request,
    *,
    protocols: Iterable[str] = (),
    max_message_bytes: int | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    is_minded: bool = False,
) -> web.WebSocketResponse:
    """Upgrade a request. The socket is the server's too: it is closed with 1001 when the server stops.

    Messages above `max_message_bytes` (the limit of request bodies, if not given) end it with 1009; a client that does not
    answer pings is cut. With `is_minded` the caller does the rest: answers pings and closes, and cuts clients that do not read or
    are not heard of any more.
    """
    if request.headers.get("Upgrade", "").lower() != "websocket":
        hint = "connect with a WebSocket client: ws://… or wss://…"
        raise Refusal(426, "this path speaks WebSocket", reason="upgrade_required", hint=hint, headers={"Upgrade": "websocket"})
    socket = web.WebSocketResponse(
        protocols=protocols,
        heartbeat=None if is_minded else heartbeat_seconds,
        autoping=not is_minded,
        autoclose=not is_minded,
        max_msg_size=max_message_bytes or request.client_max_size,
        compress=False,  # its memory for each connection costs more than the bytes saved on a server's network
        timeout=2.0,
    )
    socket.headers["X-Request-Id"] = request.request_id
    await socket.prepare(request)
    request.websocket = socket
    request.house.websockets.add(socket)
    return socket
