"""A publish over a connection whose commit has an unknown outcome: the client repeats it, and it is stored once."""

from __future__ import annotations

import pytest

from penstock import sync
from penstock.testing.server import ServerProcess
from tests.integration.test_postgres_journal import WAITING, in_a_thread, pair, wait_for, without_standby
from tests.ports import free_port
from tests.postgres_server import PostgresServer, needs_postgres

pytestmark = [needs_postgres, pytest.mark.long]
__all__ = ["pair"]


def test_a_client_repeats_a_publish_with_an_unknown_outcome_and_it_is_stored_once(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, _ = pair
    address = primary.new_database()
    name = address.rpartition("/")[2]
    node = ServerProcess(journal=address, port=free_port(), native_port=0, grpc_port=0).start()
    try:
        with sync.PubSub(node.url) as pubsub:
            topic = pubsub.topic("orders").create()
            billing = topic.subscription("billing").create()
            with primary.connect(address) as blocker:
                # The commit waits for this row, so that the standby can go away while it is under way.
                blocker.execute("BEGIN")
                columns = "1, max(first + count), 1, 1, 1, -1, 0, ''"
                blocker.execute(f"INSERT INTO penstock.events SELECT {columns} FROM penstock.events".encode())
                with in_a_thread(lambda: topic.publish_message(b"once")) as outcome:
                    wait_for(lambda: primary.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"))
                    with without_standby(pair):
                        blocker.execute("ROLLBACK")
                        wait_for(lambda: primary.execute(WAITING))
                        [(pid,)] = primary.execute(WAITING)
                        primary.execute(f"SET synchronous_commit = local; ALTER DATABASE {name} ALLOW_CONNECTIONS false")
                        primary.execute(f"SELECT pg_terminate_backend({pid})")
                        wait_for(lambda: not primary.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
                        assert outcome == []
                        primary.execute(f"SET synchronous_commit = local; ALTER DATABASE {name} ALLOW_CONNECTIONS true")
            assert isinstance(outcome[0], str), outcome
            topic.publish_message(b"next")
            found: list[bytes] = []
            while len(found) < 2:
                found += [message.data for message in billing.pull(9)]
            assert found == [b"once", b"next"]
            assert primary.execute("SELECT sum(count)::int FROM penstock.chunks", address) == [(2,)]
    finally:
        node.stop()
