"""Many clients of the hub in one process: each frame costs them as little as a proof can do with.

    client = await joined(port, "@(crowd/one)", heard)          # hub:connect and hub:register are done
    reply = await client.ask("hub:subscribe", topic="a/b")      # the payload of the reply; Refused when it is hub:error
    client.publish("a/b", {"n": 1})                             # `confirmed` is called with the payload of hub:delivery_ack
    client.hold() … client.go_on()                              # read nothing, as a client that is busy
    code = await client.over                                    # the close code; None when the connection just ended
    client.drop()                                               # gone without a word

`heard` is called with each message that was published by others. Frames are masked with zeros, which is a legal key.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgspec

SECONDS = 60.0
"""How long any one thing may take on a machine that does many others."""
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA

Json = dict[str, Any]


class Metadata(msgspec.Struct, rename="camel"):
    """What the hub says about a message."""

    topic: str = ""
    epoch: str = ""
    offset: int = -1
    message_id: str = ""
    ack_id: str = ""


class Heard(msgspec.Struct, rename="camel"):
    """A frame of the hub."""

    type: str
    payload: Any
    metadata: Metadata | None = None
    correlation_id: str | None = None

    @property
    def position(self) -> Json:
        """What `since` takes."""
        assert self.metadata is not None
        return {"epoch": self.metadata.epoch, "offset": self.metadata.offset}


class Refused(Exception):
    """The hub answered hub:error."""


_decode = msgspec.json.Decoder(Heard).decode


def ignore(_: Any) -> None:
    """What comes is of no interest."""


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, heard: Callable[[Heard], None]) -> None:
        self.heard = heard
        self.confirmed: Callable[[Json], None] = ignore
        self.told: Callable[[Heard], None] = ignore
        """Called with each frame of the hub's own, in its place among the messages."""
        self.errors: list[Json] = []
        """What the hub refused, other than what `ask` asked for."""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[int | None] = self._loop.create_future()
        self._upgraded: asyncio.Future[None] = self._loop.create_future()
        self._asked: dict[str, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)
        self._rest = b""
        self._transport: asyncio.Transport

    # --- what is sent ---------------------------------------------------------------------------------------------------------

    async def ask(self, kind: str, **payload: object) -> Json:
        """The payload of the reply; Refused when it is an error, ConnectionError when the connection ends before."""
        number = f"ask-{next(self._numbers)}"
        reply = self._asked[number] = self._loop.create_future()
        self.send({"type": kind, "id": number, "payload": payload})
        either: list[asyncio.Future[Any]] = [reply, self.over]
        async with asyncio.timeout(SECONDS):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ConnectionResetError(f"the connection ended before {kind} was answered")
        answer: Json = reply.result()
        return answer

    def publish(self, topic: str, data: object, **envelope: object) -> None:
        """Publish, and wait for nothing."""
        self.send({"type": "hub:publish", "payload": {"topic": topic, "type": "note", "data": data}, **envelope})

    def send(self, message: Json) -> None:
        """Send any message."""
        data = json.dumps(message, separators=(",", ":")).encode()
        size = len(data)
        self._write(_TEXT, struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0xFE, size), data)

    def hold(self) -> None:
        """Read nothing more."""
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self) -> None:
        """Be gone, without a word to anybody."""
        self._transport.abort()

    def _write(self, opcode: int, size: bytes, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(bytes((0x80 | opcode,)) + size + b"\0\0\0\0" + data)

    # --- what comes -----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is one in all but name
        self._transport.write(UPGRADE)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._upgraded.done():
            at = data.find(b"\r\n\r\n") + 4
            if at < 4:
                self._rest = data
                return
            assert data.startswith(b"HTTP/1.1 101 "), data
            self._upgraded.set_result(None)
        while end - at >= 2:
            size, begin = data[at + 1], at + 2
            if size == 126:
                size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, begin = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if begin + size > end:
                break
            self._frame(data[at] & 0x0F, data[begin : begin + size])
            at = begin + size
        self._rest = data[at:]

    def _frame(self, opcode: int, data: bytes) -> None:
        if opcode == _TEXT:
            frame = _decode(data)
            if not frame.type.startswith("hub:"):
                self.heard(frame)
                return
            self.told(frame)
            if frame.correlation_id in self._asked:
                self._answer(self._asked.pop(frame.correlation_id), frame)
            elif frame.type == "hub:delivery_ack":
                self.confirmed(frame.payload)
            elif frame.type == "hub:error":
                self.errors.append(frame.payload)
        elif opcode == _PING:
            self._write(_PONG, bytes((0x80 | len(data),)), data)
        elif opcode == _CLOSE:
            if not self.over.done():
                self.over.set_result(int.from_bytes(data[:2], "big"))
            self._write(_CLOSE, bytes((0x80 | len(data),)), data)

    def _answer(self, reply: asyncio.Future[Json], frame: Heard) -> None:
        if reply.done():
            return
        if frame.type == "hub:error":
            reply.set_exception(Refused(frame.payload))
        else:
            reply.set_result(frame.payload)

    async def upgraded(self) -> None:
        """Return after the handshake."""
        either: list[asyncio.Future[Any]] = [self._upgraded, self.over]
        async with asyncio.timeout(SECONDS):
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._upgraded.done():
            raise ConnectionResetError("the connection ended before its handshake")


async def joined(port: int, address: str, heard: Callable[[Heard], None] = ignore, *, buffer: int | None = None) -> Client:
    """A client that is registered. A small `buffer` is all that the system takes in for one that does not read."""
    loop = asyncio.get_running_loop()
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        async with asyncio.timeout(SECONDS):
            await loop.sock_connect(plain, ("127.0.0.1", port))
        _, client = await loop.create_connection(lambda: Client(heard), sock=plain)
    except BaseException:
        plain.close()
        raise
    try:
        await client.upgraded()
        await client.ask("hub:connect", version="1.0")
        await client.ask("hub:register", actorAddress=address, capabilities=["test"], ttl=3_600_000)
    except BaseException:
        client.drop()
        raise
    return client
