"""WebSocket servers that do nothing but pass on, on bare libraries: whatever one connection says goes to all that said `sub`.

`python -m benchmarks.hub_bare aiohttp|picows` prints its port and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

SUBSCRIBE = "sub"
SUBSCRIBED = "subscribed"


async def aiohttp_server() -> None:
    subscribers: list[web.WebSocketResponse] = []

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for message in socket:
            if message.data == SUBSCRIBE:
                subscribers.append(socket)
                await socket.send_str(SUBSCRIBED)
            else:
                for subscriber in subscribers:
                    await subscriber.send_str(message.data)
        return socket

    listener = await asyncio.get_running_loop().create_server(web.Server(serve), "127.0.0.1", 0, backlog=1024)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def picows_server() -> None:
    from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

    subscribers: list[WSTransport] = []

    class Listener(WSListener):
        def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
            data = frame.get_payload_as_bytes()
            if data == SUBSCRIBE.encode():
                subscribers.append(transport)
                transport.send(WSMsgType.TEXT, SUBSCRIBED.encode())
            else:
                for subscriber in subscribers:
                    subscriber.send(WSMsgType.TEXT, data)

    server = await ws_create_server(lambda _: Listener(), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    uvloop.run({"aiohttp": aiohttp_server, "picows": picows_server}[sys.argv[1]]())


if __name__ == "__main__":
    main()
