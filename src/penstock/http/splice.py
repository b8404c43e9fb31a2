"""Joins two connections: data from one is written to the other, no faster than it is read there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNREAD_SECONDS = 10.0
"""After the server has closed a connection, how long the client may take to read the last data."""


def begins_with(preface: bytes, data: bytes) -> bool | None:
    """Whether a stream that starts with `data` begins with the preface; None if there is too little data to know."""
    return True if data.startswith(preface) else None if preface.startswith(data) else False


class NearEnd(asyncio.Protocol):
    """The connection to the client. It is not read until `begin`."""

    def __init__(self, transport: asyncio.Transport, on_end: Callable[[], None]) -> None:
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address: str = peer[0] if isinstance(peer, tuple) else str(peer)
        self.on_gone: Callable[[], None] | None = None
        self.is_gone = False
        self._on_end = on_end
        self._far: asyncio.Transport | None = None

    def begin(self, far: asyncio.Transport) -> None:
        """Start to relay data between the client and the server."""
        self._far = far
        if not self.transport.is_closing():
            self.transport.resume_reading()
            return
        far.close()
        if self.on_gone is not None:  # lost while the other end was being connected
            self.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._far is not None:
            self._far.write(data)

    def pause_writing(self) -> None:
        """The client reads too slowly: read no more from the server."""
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: close the connection to the server."""
        self.is_gone = True
        if self._far is not None:
            self._far.close()
        if self.on_gone is not None:
            self.on_gone()
        self._on_end()


class FarEnd(asyncio.Protocol):
    """The connection to the server."""

    def __init__(self, near: NearEnd) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        if not self._near.transport.is_closing():
            self._near.transport.write(data)

    def pause_writing(self) -> None:
        """The server reads too slowly: read no more from the client."""
        self._near.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._near.transport.is_closing():
            self._near.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The server has closed it: the client gets the data written before, if it reads it within `UNREAD_SECONDS`."""
        if self._near.is_gone:
            return
        transport = self._near.transport
        is_unread = transport.get_write_buffer_size() > 0
        transport.close()
        if is_unread:
            asyncio.get_running_loop().call_later(UNREAD_SECONDS, transport.abort)
