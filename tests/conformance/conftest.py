"""Where the brokers of the suites are: in this process, on disk, on a server whose clock tests control."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.journal.journal import Journal
from penstock.journal.sqlite import SqliteJournal
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.conformance.stream_drivers import Durable, Memory, OnPostgres, Place, Remote
from tests.postgres_server import PostgresServer, needs_postgres


@pytest.fixture(scope="session")
def manual_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def manual_server(tmp_path_factory: pytest.TempPathFactory, manual_clock: ManualClock) -> Iterator[LocalServer]:
    """A server whose time tests move."""
    with LocalServer(data_dir=tmp_path_factory.mktemp("manual-server"), clock=manual_clock) as server:
        yield server


@pytest.fixture(scope="session")
def database(postgres: PostgresServer) -> str:
    """A PostgreSQL database for the logs of this process."""
    return postgres.new_database()


_logs = itertools.count(1)


def journal_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Journal | None:
    """A new journal, by where it keeps a log: `memory`, `durable` (a directory) or `postgres`."""
    if kind == "postgres":
        from penstock.journal.postgres import PostgresJournal  # psycopg may be missing

        return PostgresJournal(request.getfixturevalue("database"), number=next(_logs))
    return SqliteJournal(tmp_path / "data") if kind == "durable" else None


ON_POSTGRES = pytest.param("postgres", marks=needs_postgres)
LONG_ON_POSTGRES = pytest.param("postgres", marks=[needs_postgres, pytest.mark.long])


@pytest.fixture(
    params=[
        "memory",
        pytest.param("durable", marks=pytest.mark.long),
        LONG_ON_POSTGRES,
        pytest.param("server", marks=pytest.mark.server),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, project: str, manual_clock: ManualClock) -> Place:
    """Where a broker is."""
    if request.param == "server":
        return Remote(project, manual_clock, request.getfixturevalue)
    if request.param == "postgres":
        return OnPostgres(lambda: journal_of("postgres", request, tmp_path))
    return Memory() if request.param == "memory" else Durable(tmp_path / "data")
