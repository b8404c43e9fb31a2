"""A real redis-server on a free loopback port, without persistence, that can be killed, hung and started again."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
import redis

from tests.ports import free_port

PROGRAM = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")


class RedisServer:
    """One server, always on the same port; what it held is gone when it is started again."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.port = free_port()
        self._folder = folder
        self._password = password
        self._databases = count(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        user = f":{self._password}@" if self._password else ""
        return f"redis://{user}127.0.0.1:{self.port}/0"

    def url_of_next_database(self) -> str:
        """The address of a database that no other test uses."""
        return self.url.removesuffix("0") + str(next(self._databases))

    def start(self) -> None:
        assert PROGRAM is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder), "--daemonize", "no"]
        if self._password:
            options += ["--requirepass", self._password]
        self._process = subprocess.Popen([PROGRAM, *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            with suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < deadline, "redis-server does not answer"
            assert self._process.poll() is None, "redis-server ended"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once, as a power loss would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def hang(self) -> None:
        """From now on it takes connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> "redis.Redis":
        """A client beside those under test."""
        return redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=5)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def redis_server(folder: Path, password: str = "") -> Iterator[RedisServer]:
    server = RedisServer(folder, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()
