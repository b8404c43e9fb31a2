"""A journal behind a real PgBouncer: with a backend for each transaction it is refused, with one for each session it works."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import FailedPrecondition
from penstock.journal.postgres import PostgresJournal
from tests.ports import free_port
from tests.postgres_server import USER, PostgresServer, needs_postgres

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [needs_postgres, pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")]


@contextmanager
def pooled(postgres: PostgresServer, mode: str, folder: Path) -> Iterator[str]:
    """The address of a new database behind a pooler."""
    name, port = postgres.new_database().rpartition("/")[2], free_port()
    settings = {"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "any", "pool_mode": mode}
    lines = [f"{key} = {value}" for key, value in settings.items()]
    database = f"{name} = host=127.0.0.1 port={postgres.port} user={USER}"
    (folder / "pgbouncer.ini").write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))
    assert PROGRAM is not None
    # It refuses root, too, and needs nothing of its own beside this file.
    folder.chmod(0o755)
    as_user = [] if os.geteuid() else ["-u", USER]
    process = subprocess.Popen([PROGRAM, "-q", *as_user, str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "pgbouncer ended"
                assert time.monotonic() < deadline, "pgbouncer does not answer"
                time.sleep(0.02)
        yield f"postgresql://{USER}@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait()


def test_a_pooler_that_gives_each_transaction_a_backend_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    with (
        pooled(postgres, "transaction", tmp_path) as address,
        pytest.raises(FailedPrecondition, match="a pooler in transaction mode"),
    ):
        PostgresJournal(address)


def test_a_pooler_that_gives_each_session_a_backend_works(postgres: PostgresServer, tmp_path: Path) -> None:
    with pooled(postgres, "session", tmp_path) as address:
        journal = PostgresJournal(address)
        assert journal.epoch == 1
        journal.close()
