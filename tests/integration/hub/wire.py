"""Two clients of the hub for tests: one that says what it is told and shows what comes, and one that sends any bytes at all.

    async with connected(server.url) as wire:                         # hub:connect is done
    async with member(server.url, "@(browser/ui)") as wire:           # and hub:register
        reply = await wire.ask("hub:subscribe", {"topic": "orders/#"})  # the reply to this very request, an error included
        message = await wire.expect("order:created")                  # the next frame of a type; others are kept
        frame = await wire.next()                                     # the next frame, whatever it is
        code, reason = await wire.closed()                            # how the server closed it

    async with raw(server.url) as socket:                             # a WebSocket after its handshake
        await socket.send(frame(TEXT, b"{}", fin=False), b"anything")
        opcode, payload = await socket.read()

Every wait ends after `SECONDS`, with what came instead.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

SECONDS = 60.0
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MASK = b"\x01\x02\x03\x04"

Json = dict[str, Any]


class Wire:
    """One connection. Frames are JSON objects."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.kept: deque[Json] = deque()
        """What came and was not asked for yet."""
        self._numbers = itertools.count(1)

    async def say(self, kind: str, payload: object = None, **envelope: object) -> None:
        """Send a message, and wait for nothing."""
        await self.send(json.dumps({"type": kind, "payload": payload, **envelope}))

    async def send(self, text: str) -> None:
        """Send a text frame as it is."""
        await self.socket.send_str(text)

    async def ask(self, kind: str, payload: object = None, **envelope: object) -> Json:
        """Send a request; returns the reply to it, which may be hub:error."""
        request_id = f"request-{next(self._numbers)}"
        await self.say(kind, payload, **{"id": request_id, "pattern": "ask", **envelope})
        wanted = envelope.get("id", request_id)
        return await self._first(lambda frame: frame.get("correlationId") == wanted, f"a reply to {kind}")

    async def expect(self, kind: str, seconds: float = SECONDS) -> Json:
        """The first frame of a type, of those that came and those that come; others are kept."""
        return await self._first(lambda frame: frame["type"] == kind, kind, seconds)

    async def next(self, seconds: float = SECONDS) -> Json:
        """The next frame."""
        return self.kept.popleft() if self.kept else await self._receive("a frame", seconds)

    async def nothing_more(self) -> None:
        """Make sure that nothing else has come: a heartbeat's answer is next."""
        reply = await self.ask("hub:heartbeat", {"timestamp": 1})
        assert reply["type"] == "hub:heartbeat_ack", reply
        assert not self.kept, [*self.kept]

    async def closed(self, seconds: float = SECONDS) -> tuple[int | None, str]:
        """The close code and reason of the server; frames before it are kept. The code is None when it just ended."""
        async with asyncio.timeout(seconds):
            while True:
                message = await self.socket.receive()
                match message.type:
                    case aiohttp.WSMsgType.TEXT:
                        self.kept.append(json.loads(message.data))
                    case aiohttp.WSMsgType.CLOSE:
                        return message.data, message.extra or ""
                    case aiohttp.WSMsgType.CLOSED | aiohttp.WSMsgType.ERROR:
                        code = self.socket.close_code
                        return (None if code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE else code), ""

    async def close(self) -> None:
        """Say goodbye as WebSocket does, without a word to the hub."""
        await self.socket.close()

    async def _first(self, is_wanted: Any, what: str, seconds: float = SECONDS) -> Json:
        for frame in self.kept:
            if is_wanted(frame):
                self.kept.remove(frame)
                return frame
        async with asyncio.timeout(seconds):
            while True:
                frame = await self._receive(what, seconds)
                if is_wanted(frame):
                    return frame
                self.kept.append(frame)

    async def _receive(self, what: str, seconds: float) -> Json:
        try:
            async with asyncio.timeout(seconds):
                message = await self.socket.receive()
        except TimeoutError:
            raise AssertionError(f"{what} did not come within {seconds} s; kept: {[*self.kept]}") from None
        assert message.type is aiohttp.WSMsgType.TEXT, f"expected {what}, got {message}; kept: {[*self.kept]}"
        frame: Json = json.loads(message.data)
        return frame


@asynccontextmanager
async def opened(url: str, *, path: str = "/ws", **options: Any) -> AsyncIterator[Wire]:
    """A connection after its handshake, before hub:connect. `options` are those of aiohttp's `ws_connect`."""
    options = {"max_msg_size": 0, **options}
    async with aiohttp.ClientSession() as session, session.ws_connect(url + path, **options) as socket:
        yield Wire(socket)


@asynccontextmanager
async def connected(url: str, *, token: str | None = None, **options: Any) -> AsyncIterator[Wire]:
    """A connection after hub:connect."""
    async with opened(url, **options) as wire:
        payload = {"version": "1.0"} if token is None else {"version": "1.0", "jwt": token}
        reply = await wire.ask("hub:connect", payload)
        assert reply["type"] == "hub:connected", reply
        yield wire


@asynccontextmanager
async def member(url: str, address: str, *, ttl: int | None = None, **options: Any) -> AsyncIterator[Wire]:
    """A connection that is registered as an actor."""
    async with connected(url, **options) as wire:
        payload = {"actorAddress": address, "capabilities": ["test"], **({} if ttl is None else {"ttl": ttl})}
        reply = await wire.ask("hub:register", payload)
        assert reply["type"] == "hub:registered", reply
        yield wire


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, mask: bytes | None = b"\x01\x02\x03\x04"
) -> bytes:
    """A frame as a client sends it, or should not: without a mask, with reserved bits, of an unknown kind."""
    size = len(payload)
    bit = 0 if mask is None else 0x80
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    if size < 126:
        head = struct.pack("!BB", first, bit | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    if mask is None:
        return head + payload
    masks = (mask * (size // 4 + 1))[:size]
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes(masks, "big")).to_bytes(size, "big")


class RawSocket:
    """A TCP connection on which a WebSocket handshake was done. Sends any bytes; reads a server's frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(b"".join(parts))
        async with asyncio.timeout(SECONDS):
            await self.writer.drain()

    async def say(self, kind: str, payload: object = None, **envelope: object) -> None:
        """Send a message of the hub in a proper frame."""
        await self.send(frame(TEXT, json.dumps({"type": kind, "payload": payload, **envelope}).encode()))

    async def read(self, seconds: float = SECONDS) -> tuple[int, bytes]:
        """Opcode and payload of the next frame; IncompleteReadError at the end, ConnectionError when it was cut."""
        async with asyncio.timeout(seconds):
            first, second = await self.reader.readexactly(2)
            assert first & 0x80, "servers send no fragments"
            assert not second & 0x80, "servers do not mask"
            size = second
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(size)

    async def next(self) -> Json:
        """The next text frame, as JSON."""
        while True:
            opcode, payload = await self.read()
            if opcode == TEXT:
                found: Json = json.loads(payload)
                return found
            assert opcode in {PING, PONG}, (opcode, payload)

    async def closed(self, seconds: float = SECONDS) -> tuple[int | None, str]:
        """The close code and reason of the server, past everything before; the code is None when the connection just ended."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    opcode, payload = await self.read(seconds)
                    if opcode == CLOSE:
                        code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                        return code, payload[2:].decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None, ""

    async def connect(self) -> Json:
        """hub:connect; returns the reply."""
        await self.say("hub:connect", {"version": "1.0"})
        return await self.next()

    async def register(self, address: str) -> Json:
        """hub:connect and hub:register; returns the last reply."""
        await self.connect()
        await self.say("hub:register", {"actorAddress": address, "capabilities": ["test"]})
        return await self.next()


@asynccontextmanager
async def raw(url: str, *, receive_buffer: int | None = None, headers: dict[str, str] | None = None) -> AsyncIterator[RawSocket]:
    """A raw connection after its handshake. A small `receive_buffer` makes a slow reader of one that does not read."""
    parts = urlsplit(url)
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.setblocking(False)
    async with asyncio.timeout(SECONDS):
        await asyncio.get_running_loop().sock_connect(plain, (parts.hostname, parts.port))
    # The limit is where the reader stops taking from the system: small, so that who does not read really does not.
    reader, writer = await asyncio.open_connection(sock=plain, limit=2048 if receive_buffer is not None else 2**16)
    fields = {
        "Host": parts.netloc,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **(headers or {}),
    }
    writer.write(b"GET /ws HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode() + b"\r\n")
    try:
        async with asyncio.timeout(SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()
