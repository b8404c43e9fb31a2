"""Servers that do nothing but answer, on the libraries that Penstock's APIs use: the limit that an API cannot pass.

`python -m benchmarks.bare_server grpc|http` prints its port and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import uvloop
from aiohttp import web

PUBLISHED = b"\x0a\x1e" + b"0" * 30
DONE = b'{"success":true,"request_id":"1","payload":{"message_id":"000000000000000000000000000000"},"error":null}'


async def _publish(_: bytes, __: Any) -> bytes:
    return PUBLISHED


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library ships no types
    _handler = grpc.unary_unary_rpc_method_handler(_publish)

    def service(self, _: Any) -> Any:
        return self._handler


async def grpc_server() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handlers(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def http_server() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.Response(body=DONE, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def bare_server(kind: str, module: str = "benchmarks.bare_server") -> Iterator[tuple[int, int]]:
    """Such a server in a process of its own: its port and its process id."""
    with subprocess.Popen([sys.executable, "-m", module, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is piped"
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()


def main() -> None:
    uvloop.run({"grpc": grpc_server, "http": http_server}[sys.argv[1]]())


if __name__ == "__main__":
    main()
