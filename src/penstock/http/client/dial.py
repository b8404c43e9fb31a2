"""Opens connections: resolves a name, checks whether each address may be called, and connects to exactly this address.

The name is not resolved again between the check and the connection, so it cannot lead to another address.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from penstock.http.client.allowed_addresses import parsed
from penstock.http.client.transport import Failure, FailureKind

DNS_TTL_SECONDS: Final = 5.0
"""Seconds that addresses are cached."""
DNS_FAILURE_SECONDS: Final = 1.0
"""Seconds that a failed lookup is cached."""


class AddressPolicy(Protocol):
    """Decides which addresses may be called."""

    def may_connect(self, host: str, address: str, port: int) -> bool:
        """Whether a connection to this address may be opened for this host."""


class OpeningConnection(asyncio.Protocol, ABC):
    """The protocol of a connection that is being opened."""

    __slots__ = ()

    @abstractmethod
    async def ready(self) -> None:
        """Return when calls can be sent; ConnectionResetError if it is closed before."""

    @abstractmethod
    def discard(self) -> None:
        """Close it. It must have no call."""


class ConnectFailed(Exception):
    """No connection could be opened; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Dialer:
    """Opens connections to one host and port."""

    def __init__(self, host: str, port: int, *, reach: AddressPolicy, timeout: float, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._reach = reach
        self._timeout = timeout
        self._tls = tls
        self._lookup: asyncio.Task[list[str]] | None = None
        self._found: list[str] = []
        self._until = 0.0

    async def connect(self, protocol: Callable[[], OpeningConnection]) -> None:
        """Open a connection for a protocol; ConnectFailed if this fails or takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        try:
            async with asyncio.timeout_at(deadline):
                addresses = await self._addresses()
        except TimeoutError:
            raise self._none(FailureKind.UNRESOLVED, "the name service does not answer") from None
        if not addresses:
            raise self._none(FailureKind.UNRESOLVED, "the name has no address")
        allowed = [address for address in addresses if self._reach.may_connect(self._host, address, self._port)]
        if not allowed:
            raise self._none(FailureKind.NOT_ALLOWED, "its address is not public, and the operator's allow list does not name it")
        failure = None
        for number, address in enumerate(allowed):
            # One address that never answers must leave time for the others.
            share = (deadline - loop.time()) / (len(allowed) - number)
            try:
                await self._connect(address, share, protocol)
            except ConnectFailed as error:
                failure = error
            else:
                return
        assert failure is not None, "there was at least one address"
        self._until = 0.0  # they may have changed
        raise failure

    async def close(self) -> None:
        """Cancel a running name lookup."""
        if self._lookup is not None:
            self._lookup.cancel()
            await asyncio.gather(self._lookup, return_exceptions=True)

    async def _connect(self, address: str, seconds: float, protocol: Callable[[], OpeningConnection]) -> None:
        loop = asyncio.get_running_loop()
        name = self._host if self._tls else None
        try:
            async with asyncio.timeout(seconds):
                _, made = await loop.create_connection(protocol, address, self._port, ssl=self._tls, server_hostname=name)
                try:
                    await made.ready()
                except BaseException:
                    made.discard()
                    raise
        except TimeoutError:
            raise self._none(FailureKind.CONNECT_TIMEOUT, f"no connection within {self._timeout:g} s") from None
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise self._none(FailureKind.BROKEN, f"TLS failed: {getattr(error, 'verify_message', '') or error.reason}") from None
        except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError):
            raise self._none(FailureKind.BROKEN, "the connection was closed before it was established") from None
        except OSError as error:
            raise self._none(FailureKind.UNREACHABLE, f"no connection: {error.strerror or error}") from None

    async def _addresses(self) -> list[str]:
        if parsed(self._host) is not None:
            return [self._host]
        if self._lookup is None:
            if asyncio.get_running_loop().time() < self._until:
                return self._found
            self._lookup = asyncio.create_task(self._look_up())
        # All connection attempts wait for the same lookup; one that gives up must not cancel it for the others.
        return await asyncio.shield(self._lookup)

    async def _look_up(self) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            self._found = await look_up(self._host, self._port)
        finally:
            self._lookup = None
        self._until = loop.time() + (DNS_TTL_SECONDS if self._found else DNS_FAILURE_SECONDS)
        return self._found

    def _none(self, kind: FailureKind, why: str) -> ConnectFailed:
        return ConnectFailed(Failure(kind, f"{self._host} port {self._port}: {why}"))


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a name, in the order in which the system would try them."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(place[0]) for *_, place in found))
