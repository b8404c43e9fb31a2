"""The HTTP client of push: one POST, one answer, and no trust in the endpoint.

It follows no redirect, takes no proxy from the environment, keeps no cookie and unpacks nothing; of an answer's body it reads
only as much as it takes to reuse the connection. Bodies and tokens are never logged.

Each address is checked at the moment of connecting, so that a name that resolves differently than before gains nothing. The log
has the reason of a refused address; the caller learns only that the push failed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.connector import AddrInfoType, Connection

from penstock.google.core.push import PushRequest, is_acknowledged
from penstock.google.core.push_endpoints import Endpoints

log = logging.getLogger("penstock.pubsub.push")

USER_AGENT = "Penstock-PubSub-Push"
NOT_ALLOWED = "the endpoint is not allowed"
DRAIN_BYTES = 64 * 1024
DRAIN_SECONDS = 1.0
PLAIN_BYTES = 512 * 1024
"""Larger bodies are written in pieces, so that they do not block the loop."""
PROCESSING = 102
MAX_TOLD = 1_000
"""Refused addresses that are remembered: each is logged once, not at every attempt."""


class Outcome(StrEnum):
    """The outcome of a push."""

    ACKED = "acked"
    REFUSED = "refused"
    """The endpoint answered with a status that is not an ack."""
    TIMED_OUT = "timed_out"
    """The endpoint did not answer within the ack deadline."""
    UNREACHABLE = "unreachable"
    """No connection, no allowed address, or an answer that is not HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a push, and the reason as text."""

    outcome: Outcome
    reason: str = ""


class PushClient:
    """Connections to all endpoints. Create it inside the running loop; its users limit the number of connections."""

    def __init__(self, endpoints: Endpoints | None = None) -> None:
        self._endpoints = endpoints or Endpoints()
        # Two, so that a connection for a trusted name never serves another one.
        self._trusted = _session(aiohttp.TCPConnector(limit=0))
        self._guarded = _session(aiohttp.TCPConnector(limit=0, socket_factory=self._socket))
        self._told: set[tuple[str, str]] = set()

    async def close(self) -> None:
        await self._trusted.close()
        await self._guarded.close()

    async def post(self, endpoint: str, request: PushRequest, token: str | None, seconds: float) -> Answer:
        """Send one request; the result comes within this many seconds, whatever the endpoint does."""
        headers = request.headers if token is None else {**request.headers, "Authorization": f"Bearer {token}"}
        body: Any = request.body if len(request.body) <= PLAIN_BYTES else io.BytesIO(request.body)
        session = self._trusted if self._endpoints.trusts(endpoint) else self._guarded
        try:
            async with asyncio.timeout(seconds):
                response = await session.post(endpoint, data=body, headers=headers, allow_redirects=False)
        except TimeoutError:
            return Answer(Outcome.TIMED_OUT, f"the endpoint did not answer within {seconds:g} s")
        except _Processing:
            return Answer(Outcome.ACKED)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = getattr(error, "os_error", None)
            if isinstance(cause, _NotAllowed):
                self._tell(endpoint, cause.address)
                return Answer(Outcome.UNREACHABLE, NOT_ALLOWED)
            # Only the type: the text of some of these errors repeats data of the endpoint.
            return Answer(Outcome.UNREACHABLE, f"the endpoint was not reached or did not speak HTTP ({type(error).__name__})")
        try:
            await _drain(response)
        finally:
            response.close()  # releases a connection whose answer is read, and closes any other
        if is_acknowledged(response.status):
            return Answer(Outcome.ACKED)
        return Answer(Outcome.REFUSED, f"the endpoint answered with status {response.status}")

    def _socket(self, info: AddrInfoType) -> socket.socket:
        """A socket for a new connection to this address only."""
        family, kind, protocol, _, place = info
        address, port = str(place[0]), int(place[1])
        if not self._endpoints.may_connect(address, port):
            raise _NotAllowed(address)
        return socket.socket(family, kind, protocol)

    def _tell(self, endpoint: str, address: str) -> None:
        host = urlsplit(endpoint).hostname or ""
        if (host, address) in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            self._told.clear()
        self._told.add((host, address))
        log.warning("push to %r is not allowed: it leads to %s, not a public address; push_allow can name it", host, address)


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_Response,
        auto_decompress=False,
        trust_env=False,
        headers={"User-Agent": USER_AGENT},
        skip_auto_headers=("Accept-Encoding",),
    )


class _NotAllowed(OSError):
    """Push may not connect to this address. The text is always the same: only then several failures count as this one."""

    def __init__(self, address: str) -> None:
        super().__init__(NOT_ALLOWED)
        self.address = address


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read an answer to its end if that is near: then its connection can be reused. Its content is ignored."""
    left = DRAIN_BYTES
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and not response.content.at_eof():
                left -= len(await response.content.readany())


class _Processing(Exception):
    """The endpoint sent 102, which acknowledges the message; its final answer is not awaited."""


class _Response(aiohttp.ClientResponse):
    """An answer for which 102 is not skipped, unlike other provisional answers."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        assert protocol is not None, "the connection is open"
        read = protocol.read

        async def watched() -> Any:
            message, payload = await read()
            if message.code == PROCESSING:
                raise _Processing
            return message, payload

        protocol.read = watched  # type: ignore[method-assign]  # the one place where provisional answers can be seen
        try:
            return await super().start(connection)
        finally:
            del protocol.read
