"""Servers of tests that stop while somebody connects."""

from __future__ import annotations

import asyncio

TURNS = 6
"""What asyncio's loop needs from accepting a connection until whoever serves it runs, and some."""


async def stop_listening(server: asyncio.Server) -> None:
    """Close a listener of asyncio's own loop; every connection that it has accepted is then known to whoever serves it.

    Closed at once, it would forget the connections that it has accepted in the same moment: they stay open until the garbage
    collector finds them, and fails whichever test then runs.
    """
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    server.close()
