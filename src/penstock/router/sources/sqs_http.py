"""POST requests to one server over kept connections: as much of HTTP/1.1 as a service of Amazon speaks.

One request at a time on a connection, as many connections as there are requests under way. A cancelled request closes its
connection. No redirect is followed, no proxy is used.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter

from penstock.errors import FailedPrecondition, Unavailable

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes of an answer: ten messages of 1 MiB, and how much longer JSON may write them."""


class _Stale(Exception):
    """The server had closed a kept connection before it saw the request, as far as HTTP can tell."""


class HttpConnections:
    """The connections to one server. Belongs to one event loop."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._idle: list[tuple[StreamReader, StreamWriter]] = []
        self.is_kept = True
        """Whether a connection is kept after a request for the next."""

    async def post(self, path: str, head: bytes, body: bytes) -> tuple[int, bytes]:
        """The answer's status and body. `head` are whole header lines; Content-Length is added.

        Unavailable when there is no answer, or none that can be understood.
        """
        request = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (path.encode(), head, len(body), body)
        try:
            while self._idle:
                reader, writer = self._idle.pop()
                if reader.at_eof() or writer.transport.is_closing():
                    writer.transport.abort()
                    continue
                try:
                    return await self._exchange(reader, writer, request)
                except _Stale:
                    continue
            return await self._exchange(*await self._connect(), request)
        except ssl.SSLCertVerificationError as error:
            raise FailedPrecondition(
                f"the certificate of {self._host} is not trusted: {error.verify_message}",
                hint="correct the host name, or name the authority's file in AWS_CA_BUNDLE",
            ) from None
        except (OSError, IncompleteReadError, LimitOverrunError, _Stale) as error:
            raise Unavailable(f"no connection to {self._host}:{self._port}: {str(error) or type(error).__name__}") from None
        except ValueError:
            raise Unavailable(f"what {self._host}:{self._port} answers is not HTTP") from None

    def drop_idle(self) -> None:
        """Close what is not in use: what happened to one connection may have happened to all."""
        while self._idle:
            _, writer = self._idle.pop()
            writer.transport.abort()

    def close(self) -> None:
        """Close what is not in use, now and when it no longer is."""
        self.is_kept = False
        self.drop_idle()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        server_name = self._host if self._tls else None
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, server_hostname=server_name)

    async def _exchange(self, reader: StreamReader, writer: StreamWriter, request: bytes) -> tuple[int, bytes]:
        is_kept = False
        try:
            writer.write(request)
            status, fields = await self._head(reader)
            while status < 200:
                status, fields = await self._head(reader)
            body = await self._body(reader, fields)
            is_kept = fields.get(b"connection", b"") != b"close" and fields[b""] == b"http/1.1" and self.is_kept
        finally:
            if is_kept:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()
        return status, body

    @staticmethod
    async def _head(reader: StreamReader) -> tuple[int, dict[bytes, bytes]]:
        """The status, and the header fields in lower case; the version of HTTP has no name."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except IncompleteReadError as error:
            if error.partial:
                raise
            raise _Stale("the server closed the connection") from None
        except (ConnectionResetError, BrokenPipeError):
            raise _Stale("the server reset the connection") from None
        first, *lines = head[:-4].lower().split(b"\r\n")
        version, status, *_ = first.split(b" ", 2)
        fields = {b"": version}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name] = value.strip()
        return int(status), fields

    @staticmethod
    async def _body(reader: StreamReader, fields: dict[bytes, bytes]) -> bytes:
        if b"chunked" not in fields.get(b"transfer-encoding", b""):
            if b"content-length" not in fields:
                raise ValueError("no length")
            return await reader.readexactly(_bounded(int(fields[b"content-length"])))
        body = bytearray()
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            _bounded(len(body) + size)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # fields after the body say nothing that is needed
        return bytes(body)


def _bounded(size: int) -> int:
    if not 0 <= size <= BODY_LIMIT:
        raise ValueError("a body of an impossible length")
    return size
