"""A configuration endpoint that answers as it is told: a real HTTP server on loopback, in the test's own loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec


def ok(config: object) -> bytes:
    """An answer with this configuration."""
    body = config if isinstance(config, bytes) else msgspec.json.encode(config)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def status(line: str, *headers: str, body: bytes = b"") -> bytes:
    """An answer with this status line."""
    head = "\r\n".join([f"HTTP/1.1 {line}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""])
    return head.encode() + body


class ConfigServer:
    """Answers the n-th request with the n-th of `answers`, later ones with the last; None: it never answers."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.port = 0
        self.answers = answers
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/config"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:
                await reader.read()  # until the client has had enough
            else:
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def config_server(*answers: bytes | None) -> AsyncIterator[ConfigServer]:
    found = ConfigServer(list(answers))
    async with await asyncio.start_server(found.serve, "127.0.0.1", 0) as server:
        found.port = server.sockets[0].getsockname()[1]
        yield found
