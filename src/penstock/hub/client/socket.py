"""The WebSocket to a hub. Only this module uses aiohttp's client."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import FailedPrecondition, PenstockError, ServerUnreachable, Unauthenticated, Unavailable
from penstock.extras import how_to_install
from penstock.wire.address import NOT_HTTP, text_of

if TYPE_CHECKING:
    import aiohttp

MAX_BYTES = 64 * 1024 * 1024
"""The maximum size of a message. A forwarded message is slightly larger than the hub's own limit, which its operator sets."""
CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Closed:
    """How a connection ended."""

    code: int | None
    reason: str


class HubSocket:
    """One connection. Create it with `connect`."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self._socket = socket
        # aiohttp drops its reference when it starts to close the connection.
        self._transport = None if socket._conn is None else socket._conn.transport

    @classmethod
    async def connect(cls, url: str, *, tls: ssl.SSLContext | None, seconds: float) -> HubSocket:
        """Connect. Raises PenstockError with the reason; its `transient` shows whether a retry may help."""
        try:
            import aiohttp  # noqa: PLC0415  # an extra, and slow to import
        except ModuleNotFoundError as error:
            raise FailedPrecondition("HubClient needs the library aiohttp", hint=how_to_install("hub")) from error

        session = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(seconds):
                socket = await session.ws_connect(
                    url,
                    ssl=True if tls is None else tls,
                    max_msg_size=MAX_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
        except aiohttp.WSServerHandshakeError as error:
            await session.close()
            raise _refused(url, error.status) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await session.close()
            raise ServerUnreachable(url, _reason(error)) from None
        except BaseException:
            await session.close()
            raise
        return cls(session, socket)

    async def send(self, text: str) -> None:
        """Send a message. Does nothing if the connection is lost; `receive` returns that."""
        with suppress(ConnectionError, RuntimeError):
            await self._socket.send_str(text)

    async def receive(self) -> str | Closed:
        """The next message, or how the connection ended."""
        import aiohttp  # noqa: PLC0415  # it is loaded: `connect` did it

        found = await self._socket.receive()
        match found.type:
            case aiohttp.WSMsgType.TEXT:
                text: str = found.data
                return text
            case aiohttp.WSMsgType.BINARY:
                return Closed(None, "the peer is not a hub: it sent a binary message")
            case aiohttp.WSMsgType.ERROR:
                return Closed(self._socket.close_code, text_of(found.data))
            case aiohttp.WSMsgType.CLOSE:
                return Closed(found.data, found.extra or "")
            case _:
                return Closed(self._socket.close_code, "it broke off")

    async def close(self) -> None:
        """Close it cleanly, or abort after a short timeout. Safe to call twice."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_SECONDS):
                await self._socket.close()
        if self._transport is not None:
            # The WebSocket has ended. aiohttp does not wait for the TLS shutdown, and the event loop may be closed before that.
            self._transport.abort()
        await self._session.close()


def _reason(error: Exception) -> str:
    import aiohttp  # noqa: PLC0415  # it is loaded: `connect` did it

    match error:
        case aiohttp.ClientResponseError():
            return NOT_HTTP
        case aiohttp.ClientConnectorError(os_error=ssl.SSLError(reason="WRONG_VERSION_NUMBER")):
            return "the server does not speak TLS; use http:// or ws:// if that is intended"
        case aiohttp.ClientConnectorError():
            return text_of(error.os_error)
        case _:
            return text_of(error)


def _refused(url: str, status: int) -> PenstockError:
    match status:
        case 401:
            refused = Unauthenticated("the server requires a token")
            refused.hint = "a hub requires it only later: check the proxy in front of it, and let /ws pass there"
            return refused
        case 403:
            return FailedPrecondition(
                f"the server at {url} refuses the connection", hint="allow this origin with --hub-origins, or use another token"
            )
        case 404:
            return FailedPrecondition(
                f"there is no hub at {url}", hint="start the server without --no-hub, and look at the address"
            )
        case 429 | 500 | 502 | 503 | 504:
            return Unavailable(
                f"the server at {url} cannot take a connection now: status {status}",
                hint="try again in a moment; the server's log, or that of a proxy in front of it, says why",
            )
        case _:
            return FailedPrecondition(
                f"the server at {url} is not a hub: status {status}", hint="name the address of a Penstock server"
            )
