"""A target that speaks HTTP/2 over TLS, in the test's own loop; the test decides when each stream is answered, and how."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Self, cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from tests.listening import stop_listening


class Stream:
    """A request, and the way to answer it."""

    def __init__(self, wire: H2Wire, number: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.wire = wire
        self.number = number
        self.headers = dict(headers)
        self.body = bytearray()
        self.is_reset = False

    def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        fields = [(":status", str(status)), *((name.replace("_", "-"), value) for name, value in headers.items())]
        self.wire.h2.send_headers(self.number, fields, end_stream=not body)
        if body:
            self.wire.h2.send_data(self.number, body, end_stream=True)
        self.wire.flush()

    def reset(self, code: int) -> None:
        self.wire.h2.reset_stream(self.number, code)
        self.wire.flush()


React = Callable[[Stream], None]


class H2Wire(asyncio.Protocol):
    """A connection, from the target's side."""

    def __init__(self, target: H2Target) -> None:
        self._target = target
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.streams: dict[int, Stream] = {}
        self.events: list[events.Event] = []
        self.reads = True
        """Whether what comes is taken note of; a peer that does not is as good as dead."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own class has the same methods
        self._target.wires.append(self)
        self._target.open += 1
        self.h2.local_settings = Settings(client=False, initial_values=self._target.settings)
        self.h2.decoder.max_allowed_table_size = self.h2.local_settings.header_table_size
        self.h2.initiate_connection()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._target.open -= 1

    def data_received(self, data: bytes) -> None:
        if not self.reads:
            return
        try:
            for event in self.h2.receive_data(data):
                self.events.append(event)
                self._take(event)
        except H2Error:
            self.transport.abort()
            return
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.h2.data_to_send())

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived(stream_id=number, headers=headers):
                self.streams[number] = Stream(self, number, list(headers))
                self._target.streams.append(self.streams[number])
                running = sum(not stream.is_reset for stream in self.streams.values())
                self._target.most_running = max(self._target.most_running, running)
            case events.DataReceived(stream_id=number, data=data, flow_controlled_length=length):
                self.streams[number].body += data
                if self._target.reads_bodies:
                    self.h2.acknowledge_received_data(length, number)
            case events.StreamEnded(stream_id=number):
                self._target.whole += 1
                self._target.react(self.streams[number])
            case events.StreamReset(stream_id=number):
                self.streams[number].is_reset = True


class H2Target:
    """Reacts to each request when it is whole."""

    def __init__(self, react: React, tls: ssl.SSLContext, settings: dict[SettingCodes, int] | None = None) -> None:
        self.react = react
        self.settings = settings or {}
        self.reads_bodies = True
        self.wires: list[H2Wire] = []
        self.streams: list[Stream] = []
        self.open = self.most_running = 0
        self.whole = 0
        """Requests that came whole; only then may they be answered from outside."""
        self._tls = tls
        self._tls.set_alpn_protocols(["h2", "http/1.1"])

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: H2Wire(self), "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}/orders"
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_listening(self._server)
        for wire in self.wires:
            wire.transport.abort()
        await asyncio.sleep(0)
