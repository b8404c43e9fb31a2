"""Listeners of tests close no eye to who has just connected."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from tests.listening import TURNS, stop_listening


@pytest.mark.parametrize("turns", range(TURNS + 2))
def test_who_connects_while_a_listener_stops_is_served_or_refused(turns: int) -> None:
    async def scenario(clients: list[socket.socket]) -> int:
        writers: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        clients += [socket.create_connection(server.sockets[0].getsockname()) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop_listening(server)
        for writer in writers:
            writer.transport.abort()
        return len(writers)

    clients: list[socket.socket] = []
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        served = asyncio.run(scenario(clients))
        gc.collect()
    for client in clients:
        client.close()
    assert served == (3 if turns > 1 else 0)
    assert [str(warning.message) for warning in left_open] == []
