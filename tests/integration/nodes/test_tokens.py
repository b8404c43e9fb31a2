"""The tokens of nodes that share a log lie beside it: every node and `penstock token` see the same."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import DataLoss, Unauthenticated
from penstock.journal.postgres_tokens import PostgresTokens
from penstock.testing.server import ServerProcess
from tests.acceptance.command import Penstock
from tests.integration.log.log_server import ask
from tests.ports import free_port
from tests.postgres_server import PostgresServer, needs_postgres

pytestmark = needs_postgres
NOW = SystemClock().now()


def test_tokens_in_a_database_are_seen_by_all_and_none_is_lost(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    assert Keyring(PostgresTokens(address)).list() == []
    first, watching = Keyring(PostgresTokens(address)), Keyring(PostgresTokens(address, watch=True))
    with ThreadPoolExecutor(4) as pool:
        secrets = list(pool.map(lambda number: Keyring(PostgresTokens(address)).create(str(number), NOW), range(8)))
    assert {token.name for token in first.list()} == {str(number) for number in range(8)}
    later = NOW
    for _ in range(600):
        later += 2 * SECOND
        try:
            assert watching.authenticate(secrets[0], later).token_id
            break
        except Unauthenticated:
            threading.Event().wait(0.05)
    else:
        pytest.fail("a new token was not seen within half a minute")
    postgres.execute("UPDATE penstock.files SET body = 'x' WHERE name = 'tokens.json'", address)
    with pytest.raises(DataLoss, match="the tokens in postgresql"):
        Keyring(PostgresTokens(address))


def test_a_token_of_the_command_is_good_at_a_node(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.new_database()
    penstock = Penstock(tmp_path, {"PENSTOCK_JOURNAL": address})
    made = penstock("token", "create", "--name", "ci")
    assert made.code == 0, made.err
    node = ServerProcess(journal=address, auth="token", port=free_port(), native_port=0, grpc_port=0).start()
    try:
        path = "/log/streams"
        assert ask(node.url, "GET", path).status == 401
        secret = made.out.strip()
        assert ask(node.url, "GET", path, Authorization=f"Bearer {secret}").status == 200
        assert penstock("token", "revoke", secret).code == 0
        for _ in range(600):
            if ask(node.url, "GET", path, Authorization=f"Bearer {secret}").status == 401:
                break
            threading.Event().wait(0.05)
        else:
            pytest.fail("a revoked token was accepted for half a minute")
    finally:
        node.stop()
