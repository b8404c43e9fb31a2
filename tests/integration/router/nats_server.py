"""A real nats-server with JetStream that can be killed and started again, and the driver that the conformance suite asks for."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import nats
from nats.aio.client import Client
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from penstock.clock import SystemClock
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source
from penstock.router.sources.nats import NatsSource
from tests.conformance.sources.driver import Abilities
from tests.ports import free_port

SERVER = shutil.which("nats-server") or "/usr/sbin/nats-server"
START_SECONDS = 15.0


class NatsServer:
    """On a free loopback port, its data in a folder. `kill` is SIGKILL; `start` goes on with the same port and data."""

    def __init__(self, folder: Path, *options: str, has_jetstream: bool = True) -> None:
        self.port = free_port()
        self._folder = folder
        storage = ["-js", "-sd", str(folder / "data")] if has_jetstream else []
        self._command = [SERVER, "-a", "127.0.0.1", "-p", str(self.port), *storage, *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        if self._process:
            return
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"nats-server ended:\n{(self._folder / 'log').read_text()}"
            assert time.monotonic() < until, "nats-server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """It keeps its connections, and answers nothing."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(with_signal)
            self._process.wait(10)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as link:
                return link.recv(4).startswith(b"INFO")
        except OSError:
            return False


async def crash(source: Source) -> None:
    """End a source as the death of its process would."""
    assert isinstance(source, NatsSource)
    assert source._life
    source._life.cancel()
    source._life = None
    for timer in source._timers.values():
        timer.cancel()
    if link := source._link:
        link.on_lost = lambda: None
        link.abort()
        await link.ended.wait()
    source._link = None


class NatsDriver:
    """The server's side for the conformance suite, over nats-py."""

    can = Abilities()
    _numbers = count(1)

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._stream = ""
        self._client: Client

    async def begin(self) -> None:
        self._stream = f"SUITE{next(self._numbers)}"
        await self._connect()
        await self._client.jetstream().add_stream(
            StreamConfig(
                name=self._stream,
                subjects=[f"{self._stream}.>"],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
            )
        )

    async def end(self) -> None:
        self._server.start()
        await self._client.close()

    def open(self, lease_seconds: int) -> Source:
        uri = f"nats://{self._server.place}/{self._stream}/router?subject={self._stream}.>"
        return NatsSource(QueueConfig("q", uri, visibility_timeout=lease_seconds), SystemClock())

    def open_elsewhere(self) -> Source:
        return NatsSource(QueueConfig("q", f"nats://127.0.0.1:{free_port()}/Q/router"), SystemClock())

    async def crash(self, source: Source) -> None:
        await crash(source)

    async def send(self, bodies: Sequence[bytes]) -> None:
        stream = self._client.jetstream()
        for body in bodies:
            await stream.publish(f"{self._stream}.message", body)

    async def left(self) -> int:
        # The consumer's count: a server that was killed may have forgotten that it removed acked messages from the stream.
        found = await self._client.jetstream().consumer_info(self._stream, "router")
        return (found.num_pending or 0) + (found.num_ack_pending or 0)

    async def stop_server(self) -> None:
        await self._client.close()
        self._server.kill()

    async def start_server(self) -> None:
        await asyncio.to_thread(self._server.start)
        await self._connect()

    async def _connect(self) -> None:
        self._client = await nats.connect(f"nats://{self._server.place}")
