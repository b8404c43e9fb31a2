"""Connections to a node that does not own the log: it relays their bytes to the owner, which serves them like its own clients.

    client ── a port of node B ── Relay ── a line, then the bytes ──> HTTP port of node A ── RelayEntry ── the server of that port

The line contains the client's port and address, for limits and logs; a code, computed with the key that the nodes share, proves
that a node wrote it. It grants nothing else: the owner checks tokens.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.errors import PenstockError
from penstock.http.splice import FarEnd, NearEnd, begins_with
from penstock.wire.address import Address, text_of

log = logging.getLogger("penstock.server")

PREFACE = b"PENSTOCK-RELAY 1 "
MAX_LINE = 512
LINE_SECONDS = 10.0
"""How long a node may take to send its line."""
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that owns the log."""

    epoch: int
    address: str
    """The epoch of its ownership."""
    key: bytes
    """The key that the nodes share."""


# ── at the standby ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Relay:
    """Relays connections to the owner of the log. Belongs to one event loop."""

    def __init__(self, owner: Callable[[], Owner | None], tls: Callable[[], ssl.SSLContext]) -> None:
        self._owner = owner
        self._tls = tls
        self._open: dict[NearEnd, Owner] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """The number of connections that are relayed now."""
        return len(self._open)

    def take(
        self, transport: asyncio.Transport, port: str, data: bytes = b"", *, refusal: bytes = b"", on_end: Callable[[], None]
    ) -> None:
        """Relay a connection to `port` of the owner. If no owner answers, the client gets `refusal`, and is disconnected."""
        near = NearEnd(transport, on_end)
        transport.set_protocol(near)
        owner = self._owner()
        if owner is None:
            transport.write(refusal)
            transport.close()
            return
        transport.pause_reading()
        self._open[near] = owner
        near.on_gone = partial(self._forget, near)
        connecting = asyncio.get_running_loop().create_task(self._connect(near, owner, port, data, refusal))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._connecting.discard)

    def cut(self, *, before: int | None = None) -> None:
        """End connections to owners of an epoch below `before`, or all."""
        for near, owner in [*self._open.items()]:
            if before is None or owner.epoch < before:
                near.transport.abort()

    def _forget(self, near: NearEnd) -> None:
        self._open.pop(near, None)

    async def _connect(self, near: NearEnd, owner: Owner, port: str, data: bytes, refusal: bytes) -> None:
        try:
            place = Address.parse(owner.address)
            async with asyncio.timeout(CONNECT_SECONDS):
                far, _ = await asyncio.get_running_loop().create_connection(
                    lambda: FarEnd(near), place.host, place.port, ssl=self._tls() if place.has_tls else None
                )
        except (OSError, UnicodeError, PenstockError) as error:
            log.debug("a connection could not be relayed to %s: %s", owner.address, text_of(error))
            near.transport.write(refusal)
            near.transport.close()
            return
        peer = near.transport.get_extra_info("peername")
        host, number = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("unknown", 0)
        far.write(_line(owner.key, port, host, number) + data)
        near.begin(far)


def _line(key: bytes, port: str, host: str, number: int) -> bytes:
    said = f"{port} {host} {number} {secrets.token_hex(16)}"
    return PREFACE + said.encode() + b" " + _code(key, said).encode() + b"\n"


def _code(key: bytes, said: str) -> str:
    return hmac.digest(key, said.encode(), "sha256").hex()


# ── at the owner ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class RelayEntry:
    """Accepts connections to the HTTP port that another node relays. `protocols` create the protocol of each port."""

    is_lasting = False

    def __init__(self, key: bytes, protocols: Mapping[str, Callable[[], asyncio.Protocol]]) -> None:
        self.key = key
        self.protocols = protocols

    def wants(self, data: bytes) -> bool | None:
        return begins_with(PREFACE, data)

    def read(self, line: bytes) -> tuple[Callable[[], asyncio.Protocol], tuple[str, int]] | None:
        """The protocol of the port in a line, and the client; None if the line was not written by a node."""
        try:
            said, _, code = line.removeprefix(PREFACE).decode().rpartition(" ")
            port, host, number, _ = said.split(" ")
            found = self.protocols[port], (host, int(number))
        except (ValueError, KeyError):
            return None
        return found if hmac.compare_digest(code.encode(), _code(self.key, said).encode()) else None

    def take(self, transport: asyncio.Transport, data: bytes, on_end: Callable[[], None]) -> None:
        arrival = _Arrival(self, transport, on_end)
        transport.set_protocol(arrival)
        arrival.data_received(data)


class _Arrival(asyncio.Protocol):
    """A relayed connection until its line is read."""

    def __init__(self, entry: RelayEntry, transport: asyncio.Transport, on_end: Callable[[], None]) -> None:
        self._entry = entry
        self._transport = transport
        self._on_end = on_end
        self._data = b""
        self._limit = asyncio.get_running_loop().call_later(LINE_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._data += data
        line, end, rest = self._data.partition(b"\n")
        if not end and len(line) <= MAX_LINE:
            return
        self._limit.cancel()
        found = self._entry.read(line)
        if found is None:
            log.warning("a connection claims that a node relays it, and no node has signed that: it was closed")
            self._transport.abort()
            return
        make, peer = found
        protocol = make()
        self._transport.set_protocol(protocol)
        self._on_end()  # the protocol that serves it counts it from now on
        protocol.connection_made(_RelayedTransport(self._transport, peer))  # type: ignore[arg-type]  # it has the methods that are used
        if rest and not self._transport.is_closing():
            protocol.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._limit.cancel()
        self._on_end()


class _RelayedTransport:
    """A transport whose peer is the client of another node."""

    def __init__(self, transport: asyncio.Transport, peer: tuple[str, int]) -> None:
        self._transport = transport
        self._peer = peer
        self.write = transport.write

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
