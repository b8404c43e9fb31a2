"""Contexts, a private CA, and `penstock status`, as a person or a script meets them."""

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from penstock import PubSub
from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock
from tests.integration.router.certificate import CertificateFiles

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def anywhere(tmp_path: Path) -> Penstock:
    """A folder with nothing in it, and no server named."""
    return Penstock(tmp_path)


def stored(penstock: Penstock) -> tuple[Path, Any]:
    file = penstock.folder / ".config" / "penstock" / "contexts.json"
    return file, json.loads(file.read_text(encoding="utf-8"))


def test_contexts_are_added_used_listed_and_removed(anywhere: Penstock) -> None:
    assert anywhere.good("context list").err == "no contexts; `penstock context add NAME --server URL` adds one\n"
    assert anywhere.good("context add dev --server http://127.0.0.1:8085").out == "added context dev; it is in use\n"
    done = anywhere.good("context add prod --server https://example.com --project shop --token-file -", stdin="pk_secret\n")
    assert done.out == "added context prod\n"
    assert anywhere.good("context use prod").out == "using context prod\n"

    listed = anywhere.good("context list").out
    assert [line.split() for line in listed.splitlines()] == [
        ["NAME", "SERVER", "PROJECT", "TOKEN", "CA"],
        ["dev", "http://127.0.0.1:8085", "-", "no", "-"],
        ["prod", "https://example.com", "shop", "yes", "-", "in", "use"],
    ]
    assert "pk_secret" not in listed + anywhere.good("context list --json").out
    assert anywhere.good("context list --json").json[1] == {
        "name": "prod",
        "used": True,
        "server": "https://example.com",
        "project": "shop",
        "has_token": True,
    }
    assert anywhere.good("context remove prod").out == "removed context prod\n"
    assert stored(anywhere)[1] == {"contexts": {"dev": {"server": "http://127.0.0.1:8085"}}}


def test_the_file_of_contexts_is_its_owners_alone(anywhere: Penstock) -> None:
    anywhere.good(f"context add dev --server {NOWHERE} --token pk_secret")
    file, content = stored(anywhere)
    assert content["contexts"]["dev"]["token"] == "pk_secret"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)

    file.chmod(0o644)
    refused = anywhere("topic", "list")
    assert refused.code == 1
    assert "contains tokens and can be read by other users" in refused.err
    assert "chmod 600" in refused.err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"contexts": {"a": {}}}',
        b'{"contexts": {"a": {"server": 1}}}',
        b'{"kontexts": {}}',
        b'{"contexts": {"\xff": 1}}',
    ],
)
def test_a_damaged_file_is_named(anywhere: Penstock, content: bytes) -> None:
    anywhere.good(f"context add dev --server {NOWHERE}")
    file, _ = stored(anywhere)
    file.write_bytes(content)
    refused = anywhere("topic", "list")
    assert refused.code == 1
    assert "contexts.json' is damaged" in refused.err


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("context add dev --server http://other", 1, "already exists"),
        ("context add x --server ftp://other", 2, "expected the address of a server"),
        ("context add x --server http://other --ca nosuch.pem", 2, "--ca is 'nosuch.pem', expected a file that exists"),
        ("context add x --server http://other --token-file nosuch", 2, "expected a file that can be read"),
        ("context add x --server http://other --token=", 2, "--token is '', expected a token"),
        ("context use prodd", 3, "did you mean prod?"),
        ("context remove dev nosuch", 3, "Context not found: nosuch"),
        ("topic list --context nosuch", 3, "`penstock context list` shows them"),
        ("topic list --context dev --server http://other", 2, "not allowed with argument"),
    ],
)
def test_a_wrong_call_changes_nothing(anywhere: Penstock, line: str, code: int, text: str) -> None:
    anywhere.good(f"context add dev --server {NOWHERE}")
    anywhere.good(f"context add prod --server {NOWHERE}")
    before = stored(anywhere)[1]
    done = anywhere(*line.split())
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert stored(anywhere)[1] == before


def test_commands_talk_to_the_server_of_the_context(anywhere: Penstock, server: LocalServer) -> None:
    anywhere.good(f"context add here --server {server.url} --project of-contexts")
    anywhere.good(f"context add gone --server {NOWHERE}")
    anywhere.good("topic create orders")
    assert anywhere.good("topic list --json").json[0]["name"] == "orders"
    assert anywhere("hub", "topics").code == 0
    assert anywhere("topic", "list", "--context", "gone").code == 4
    assert anywhere("doctor", "--context", "gone").code == 1

    anywhere.environment["PENSTOCK_CONTEXT"] = "gone"
    assert anywhere("topic", "list").code == 4
    assert anywhere("topic", "list", "--context", "here").code == 0
    assert anywhere.good("context use here").err == "PENSTOCK_CONTEXT is set and wins: gone\n"
    anywhere.environment["PENSTOCK_SERVER"] = server.url
    assert anywhere("topic", "list").code == 0
    del anywhere.environment["PENSTOCK_SERVER"]
    (anywhere.folder / "data").mkdir()
    assert anywhere("topic", "list", "--data-dir", "data").code == 0


def test_the_token_of_a_context_is_for_its_server_alone(anywhere: Penstock, server: LocalServer, tmp_path: Path) -> None:
    token = Keyring(tmp_path / "tokens.json").create("cli", SystemClock().now())
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as closed:
        anywhere.good(f"context add closed --server {closed.url} --token {token}")
        anywhere.environment["PENSTOCK_TOKEN"] = "of another server"
        assert anywhere("topic", "list").code == 0
        assert anywhere("topic", "list", "--token", "wrong").code == 1
        refused = anywhere("topic", "list", "--server", closed.url)
        assert refused.code == 1
        assert "--token" in refused.err


@pytest.fixture
def secure(tmp_path: Path) -> Any:
    """A server whose certificate nobody knows, and its files."""
    files = CertificateFiles(tmp_path)
    with LocalServer(tls_cert=files.certificate, tls_key=files.key, data_dir=tmp_path / "data") as server:
        yield server.url.replace("http", "https"), files.certificate


def test_a_private_ca_is_trusted_where_it_is_given(anywhere: Penstock, secure: tuple[str, Path]) -> None:
    url, ca = secure
    refused = anywhere("backup", "--server", url, "refused")
    assert refused.code == 4
    assert "certificate" in refused.err.lower()

    calls = ["topic list", "status", "doctor", "hub topics"]
    for call in calls:
        assert anywhere(*call.split(), "--server", url, "--ca", str(ca)).code == 0, call
    assert anywhere("backup", "--server", url, "sent", "--ca", str(ca)).code == 0
    anywhere.environment["PENSTOCK_CA"] = str(ca)
    assert anywhere("topic", "list", "--server", url).code == 0
    del anywhere.environment["PENSTOCK_CA"]
    anywhere.good(f"context add secure --server {url} --ca {ca}")
    for call in calls:
        assert anywhere(*call.split()).code == 0, call


def test_a_hub_client_over_tls_leaves_no_socket_open(anywhere: Penstock, secure: tuple[str, Path]) -> None:
    url, ca = secure
    for _ in range(12):
        anywhere.good(f"hub topics --server {url} --ca {ca}")
    gc.collect()  # what is left open is found here, and fails the test


def test_a_ca_that_is_none_is_refused(anywhere: Penstock) -> None:
    (anywhere.folder / "empty.pem").write_text("nothing")
    for name, text in (("nosuch.pem", "No such file"), ("empty.pem", "it has no certificate in PEM")):
        refused = anywhere("topic", "list", "--server", "https://127.0.0.1:1", "--ca", name)
        assert refused.code == 2
        assert f"the CA is '{name}', expected a file with certificates in PEM ({text}" in refused.err
    refused = anywhere(
        "pipeline", "replay", "a", "--to", "b", "--lake", "x", "--server", "https://127.0.0.1:1", "--ca", "empty.pem"
    )
    assert "SSL_CERT_FILE=empty.pem" in refused.err


def test_status_shows_what_runs_waits_and_needs_attention(penstock: Penstock) -> None:
    penstock.good("topic create orders")
    penstock.good("subscription create billing --topic orders")
    penstock.good("subscription pause billing")
    penstock.good("publish orders one two three")
    for name in ("a", "b", "mail"):
        penstock.good(f"queue create {name} --max-retries 0")
    penstock.good("queue publish mail letter parcel")

    async def bury() -> None:
        async with PubSub(penstock.environment["PENSTOCK_SERVER"], project=penstock.environment["PENSTOCK_PROJECT"]) as pubsub:
            [task] = await pubsub.queue("mail").consume(1)
            task.nack(requeue=False)

    asyncio.run(bury())

    lines = penstock.good("status").out.splitlines()
    assert lines[0].startswith("penstock ")
    assert "healthy" in lines[0]
    assert lines[1].startswith("Degraded: 1 subscription is paused, 1 dead letter")
    assert lines[3].startswith("messages  4 wait, 0 in flight, 0 delayed, 1 dead; the oldest waits for ")
    table = [line.split() for line in lines]
    assert ["QUEUE", "BACKLOG", "IN", "FLIGHT", "DEAD", "STATE"] in table
    assert ["mail", "1", "0", "1"] in table
    assert ["billing", "3", "0", "0", "paused"] in table
    assert ["dead", "mail", "1", "dead", "letter"] in table
    assert "and 2 more" in penstock.good("status --limit 1").out

    found = penstock.good("status --json").json
    assert (found["status"]["level"], found["totals"]["dead"]) == ("warn", 1)
    assert {one["queue"]: one["dead_letters"] for one in found["queues"]} == {"a": 0, "b": 0, "mail": 1}
    assert penstock("status", "--server", NOWHERE).code == 4


def test_status_of_a_server_that_fails_ends_with_1(anywhere: Penstock) -> None:
    clock = ManualClock()
    with LocalServer(clock=clock) as server:
        anywhere.environment["PENSTOCK_SERVER"] = server.url
        anywhere.good("queue create mail")
        anywhere.good("queue publish mail letter")
        assert anywhere("status").code == 0
        clock.advance(601)
        failing = anywhere("status")
    assert failing.code == 1
    assert "Failing: 1 queue has no consumer" in failing.out
    assert "no consumer: 1 message waits, the oldest for 10m 01s" in failing.out


def test_status_of_a_directory_shows_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    penstock = Penstock(tmp_path, {"PENSTOCK_DATA_DIR": "data"})
    penstock.good("queue create mail")
    penstock.good("queue publish mail letter")
    lines = [line.split() for line in penstock.good("status").out.splitlines()]
    assert ["mail", "1", "0", "0"] in lines
    assert penstock.good("status --json").json.keys() == {"info", "subscriptions", "queues"}
