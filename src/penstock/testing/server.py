"""A complete server for a test: real ports on loopback, in this process or in one that can be killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import uvloop

from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.config import Settings
from penstock.server.server import Server

START_SECONDS = 120  # generous: the machine may be busy


class LocalServer:
    """A server in a thread of this process, on free ports, in memory unless `data_dir` is given. Use it as a context manager.

    Other keywords are settings: `LocalServer(auth="token", token_file=…)`. `clock` may be a `ManualClock`.
    """

    def __init__(self, *, clock: Clock | None = None, **settings: Any) -> None:
        if "data_dir" not in settings:
            settings.setdefault("memory", True)
        self._settings = Settings(**{"port": 0, "grpc_port": 0, "native_port": 0, "shutdown_seconds": 2, **settings})
        self._clock = clock
        self._server: Server | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-server", daemon=True)

    def start(self) -> Self:
        """Return once it serves."""
        self._thread.start()
        self._started.wait(START_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop cleanly; returns once it has ended. Can be called twice."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def server(self) -> Server:
        """The running server."""
        assert self._server is not None, "start it first"
        return self._server

    @property
    def broker(self) -> Broker:
        """The broker behind the APIs, to inspect it from inside."""
        return self.server.broker

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def grpc(self) -> str:
        """host:port of gRPC, as for PUBSUB_EMULATOR_HOST."""
        return f"127.0.0.1:{self.server.grpc_port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # the thread's top: `start` raises it where somebody sees it
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = Server(self._settings, self._clock)
        await server.start()
        self._server = server
        self._started.set()
        await self._stop.wait()
        await server.stop()


class ServerProcess:
    """`penstock serve` as a separate process on free ports, as users run it, which can be killed.

    `options` are flags without their dashes: `ServerProcess(data_dir, rate_limit=100)`. Use it as a context manager.
    """

    def __init__(self, data_dir: Path | None = None, **options: object) -> None:
        flags = ["--data-dir", str(data_dir)] if data_dir is not None else [] if "journal" in options else ["--memory"]
        for name, value in {"port": 0, "grpc_port": 0, "native_port": 0, **options}.items():
            flags += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        self._command = [sys.executable, "-m", "penstock", "serve", *flags]
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._reader: threading.Thread | None = None
        self.port = 0
        self.grpc_port = 0
        self.native_port = 0

    def start(self) -> Self:
        """Return once it serves."""
        # In a process group of its own: Ctrl-C is for the program that started it, which stops it.
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, env=os.environ.copy(), process_group=0)
        assert self._process.stderr is not None, "it is piped"
        for line in self._process.stderr:
            self._lines.append(line)
            if found := re.search(r"HTTP and WebSocket +https?://[^ ]*:(\d+)", line):
                self.port = int(found[1])
            if found := re.search(r"gRPC \(Pub/Sub\) +[^ ]*:(\d+)", line):
                self.grpc_port = int(found[1])
            if found := re.search(r"native \(client\) +[^ ]*:(\d+)", line):
                self.native_port = int(found[1])
            if "messages are kept" in line:
                break
        else:
            raise RuntimeError("the server did not start:\n" + "".join(self._lines))
        # The pipe must be drained, or a talkative server would block on it.
        self._reader = threading.Thread(target=lambda: self._lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()
        return self

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process."""
        assert self._process is not None, "start it first"
        return self._process

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc(self) -> str:
        """host:port of gRPC, as for PUBSUB_EMULATOR_HOST."""
        return f"127.0.0.1:{self.grpc_port}"

    def kill(self) -> None:
        """Kill -9, without a flush."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(START_SECONDS)
        if self._reader is not None:
            self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
