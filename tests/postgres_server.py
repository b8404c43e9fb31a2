"""A real PostgreSQL on a free loopback port, in a temporary directory, that can be stopped, killed and given a standby."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.ports import free_port

_DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
PROGRAMS = Path(found).resolve().parent if (found := shutil.which("initdb")) else _DEBIAN[-1] if _DEBIAN else None
needs_postgres = pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed")
USER = "postgres"
QUICK = {"fsync": "off", "full_page_writes": "off"}
"""The tests kill processes, not machines: what the system has written survives."""


def _as_owner() -> dict[str, Any]:
    """How a program of PostgreSQL is run: not as root, which it refuses."""
    if os.geteuid():
        return {}
    entry = pwd.getpwnam(USER)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


class PostgresServer:
    """One server. Its directory goes with it."""

    def __init__(self, settings: dict[str, str] | None = None, *, primary: PostgresServer | None = None, slot: str = "") -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        if not os.geteuid():
            shutil.chown(self._folder, USER)
        self.data = self._folder / "data"
        self._databases = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        if primary is None:
            self._run("initdb", "-D", self.data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        else:
            source = f"host=127.0.0.1 port={primary.port} user={USER} application_name={slot or 'standby'}"
            self._run("pg_basebackup", "-D", self.data, "-d", source, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        found = {
            "port": str(self.port),
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self._folder}'",
            "max_connections": "200",
            "hot_standby": "on",
            **(QUICK if settings is None else settings),
        }
        with (self.data / "postgresql.auto.conf" if primary else self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in found.items())
        self.start()

    def url(self, database: str = USER) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of a database that no other test uses."""
        name = f"test_{os.getpid()}_{next(self._databases)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def connect(self, address: str | None = None) -> psycopg.Connection[Any]:
        """A connection beside those under test."""
        return psycopg.connect(address or self.url(), autocommit=True)

    def execute(self, query: str, address: str | None = None) -> list[tuple[Any, ...]]:
        with self.connect(address) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        assert PROGRAMS is not None
        with (self._folder / "log").open("ab") as file:
            command = [str(PROGRAMS / "postgres"), "-D", str(self.data)]
            self._process = subprocess.Popen(command, stdout=file, stderr=file, **_as_owner())
        deadline = time.monotonic() + 60
        while True:
            with suppress(psycopg.Error):
                self.execute("SELECT 1")
                return
            assert self._process is not None
            assert self._process.poll() is None, (self._folder / "log").read_text()[-3_000:]
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it in order: sessions are ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, as a power loss would."""
        assert self._process is not None
        for child in self.processes():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def processes(self) -> list[int]:
        """The processes under the first one."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(child) for child in children.read_text().split()] if children.exists() else []

    def configure(self, **settings: str) -> None:
        for name, value in settings.items():
            self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        self.execute("SELECT pg_promote()")

    def remove(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)

    def _run(self, program: str, *arguments: object) -> None:
        assert PROGRAMS is not None
        command = [str(PROGRAMS / program), *map(str, arguments)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=self._folder, **_as_owner())
        assert done.returncode == 0, done.stderr


@contextmanager
def postgres_server(settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    server = PostgresServer(settings)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def standby_of(primary: PostgresServer, settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """A hot standby, which commits on the primary wait for."""
    standby = PostgresServer(settings, primary=primary, slot="standby")
    try:
        primary.configure(synchronous_standby_names="standby")
        yield standby
    finally:
        standby.remove()
