"""The client's part of the demo: Penstock's own client and a worker on a server that is killed under them and started again."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import IncomingMessage, PubSub, Worker
from penstock.clock import monotonic
from penstock.demo_screen import ClaimFailed, Screen
from penstock.demo_server import missing_extras, serving
from penstock.durations import SECOND

if TYPE_CHECKING:
    from penstock.testing.server import ServerProcess

CUSTOMERS = 50
EACH = 100  # events of each customer
KILLS = (1_500, 3_500)  # confirmed events after which the server is killed
TIMES = {2: "twice"}  # how often that is, in words
PATIENCE = 20.0  # seconds that a step waits at most for what must come sooner


class ClientDemo:
    """The steps, over one server that dies and comes back, and its data directory."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory

    def run(self) -> None:
        """All steps, in order; none where the server is not installed, which its own part of the demo has said."""
        if not missing_extras():
            with _patience(), _silent_logs():
                asyncio.run(self._run())

    async def _run(self) -> None:
        with serving(self.directory) as first:
            # Where a server comes back is where it was.
            ports = {"port": first.port, "grpc_port": first.grpc_port, "native_port": first.native_port}
            async with PubSub(first.url) as pubsub:
                with await self.stream(pubsub, [first, *_servers(self.directory, ports)]):
                    await self.work(pubsub)
