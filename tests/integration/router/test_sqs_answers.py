"""SQS as a source: what its server may answer, odd HTTP, and where credentials come from."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, PenstockError, QueueNotFound, Unavailable
from penstock.extras import how_to_install
from penstock.router.core.config import QueueConfig
from penstock.router.sources.sqs import SqsSource
from penstock.router.sources.sqs_api import SqsApi, address_of
from tests.integration.router.sqs_script import URL, Answer, Call, always, error, http, scripted, settled, started
from tests.integration.router.sqs_server import KEYS, source_of
from tests.together import play_together

# ── errors and HTTP ──────────────────────────────────────────────────────────────────────────────────────────────────────────


ANSWERS: list[tuple[Answer, type[PenstockError], str]] = [
    (error(400, "QueueDoesNotExist"), QueueNotFound, "orders"),
    (error(400, "AWS.SimpleQueueService.NonExistentQueue"), QueueNotFound, "orders"),
    (error(403, "InvalidClientTokenId", "a-token"), FailedPrecondition, "credentials"),
    (error(403, "SignatureDoesNotMatch", "a-token"), FailedPrecondition, "credentials"),
    (error(400, "ExpiredToken", "a-token"), FailedPrecondition, "credentials"),
    (error(403, "AccessDeniedException", "a-token"), FailedPrecondition, "does not allow GetQueueAttributes"),
    (error(400, "InvalidAttributeName", "what is this"), FailedPrecondition, "InvalidAttributeName: what is this"),
    (error(400, "ThrottlingException"), Unavailable, "ThrottlingException"),
    (error(403, "OverLimit"), Unavailable, "OverLimit"),
    (error(503, "Whatever"), Unavailable, "503"),
    ((429, {}), Unavailable, "429"),
    ((404, {}), FailedPrecondition, "none of SQS's"),
    (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", FailedPrecondition, "none of SQS's"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", Unavailable, "cannot be understood"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", Unavailable, "cannot be understood"),
    (b"HTTP/1.1 200 OK\r\n\r\n{}", Unavailable, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", Unavailable, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{}", Unavailable, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFF\r\n", Unavailable, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n", Unavailable, "not HTTP"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", Unavailable, "not HTTP"),
    (b"x" * 200_000, Unavailable, "no connection"),
    (None, Unavailable, "closed the connection"),
]


def test_what_a_server_may_answer_and_what_the_router_is_told(subtests: pytest.Subtests) -> None:
    async def scenario(answer: Answer, wanted: type[PenstockError], text: str) -> None:
        async with scripted(always(answer)) as server:
            source = source_of(URL, server.endpoint, environment={"AWS_SESSION_TOKEN": "a-token"})
            with pytest.raises(wanted, match=text) as caught:
                await source.start()
            shown = f"{caught.value} {caught.value.hint}"
            assert not [secret for secret in ("a-secret", "a-token") if secret in shown]
            await source.stop()

    play_together({repr(row)[:60]: partial(scenario, *row) for row in ANSWERS}, subtests)


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (http(200, {}), True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + http(200, {}), True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n", True),
        (http(200, {}, "Connection: Close\r\n"), False),
        (http(200, {}).replace(b"HTTP/1.1", b"HTTP/1.0"), False),
    ],
)
def test_connections_are_kept_where_the_server_lets_them_be(answer: bytes, is_kept: bool) -> None:
    async def scenario() -> None:
        async with scripted(always(answer)) as server, started(server) as source:
            for _ in range(3):
                assert list(await source.poll(10, 0)) == []
            assert server.connections == (1 if is_kept else 4)

    asyncio.run(scenario())


def test_a_kept_connection_that_the_server_has_closed_is_replaced_silently() -> None:
    async def scenario() -> None:
        async def answer(call: Call) -> Answer:
            # Closed when the second request is on its way: the client cannot have known.
            return None if call.connection == 1 and len(server.calls) == 2 else settled(call)

        async with scripted() as server, started(server) as source:
            server.answer = answer
            assert list(await source.poll(10, 0)) == []
            assert [call.connection for call in server.calls] == [1, 1, 2]

    asyncio.run(scenario())


# ── credentials ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_credentials_that_have_expired_are_looked_for_again() -> None:
    async def scenario() -> None:
        environment = dict(KEYS)

        async def answer(call: Call) -> Answer:
            environment["AWS_ACCESS_KEY_ID"] = "newer"
            return settled(call) if "Credential=newer/" in call.head else error(400, "ExpiredToken")

        async with scripted(answer) as server:
            environment["SQS_ENDPOINT_OVERRIDE"] = server.endpoint
            source = SqsSource(
                SqsApi(address_of(URL, environment), environment, SystemClock()), QueueConfig("orders", URL), SystemClock()
            )
            await source.start()
            await source.stop()
            assert len(server.calls) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": ""}, "but AWS_SECRET_ACCESS_KEY is not"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "s3cret"},
            "AWS_SECRET_ACCESS_KEY is set, but AWS_ACCESS_KEY_ID is not",
        ),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "there are no AWS credentials"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "nobody"}, "nobody"),
    ],
)
def test_missing_credentials_are_named_before_any_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str], text: str
) -> None:
    # botocore reads the process's own environment; here it must find nothing, and ask no metadata service.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))

    async def scenario() -> None:
        async with scripted() as server:
            source = source_of(URL, server.endpoint, environment=environment)
            with pytest.raises(FailedPrecondition, match=text) as caught:
                await source.start()
            assert caught.value.hint is not None
            assert "s3cret" not in f"{caught.value} {caught.value.hint}"
            assert server.calls == []
            await source.stop()

    asyncio.run(scenario())


def test_credentials_of_a_profile_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = from-file\naws_secret_access_key = s\naws_session_token = t\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    async def scenario() -> None:
        async with scripted() as server:
            profile = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "work"}
            source = source_of(URL, server.endpoint, environment=profile)
            await source.start()
            await source.stop()
            assert "Credential=from-file/" in server.calls[0].head
            assert "x-amz-security-token: t\r\n" in server.calls[0].head

    asyncio.run(scenario())


def test_without_botocore_keys_in_the_environment_do_and_other_places_name_the_extra() -> None:
    program = (
        "import sys, asyncio\n"
        "sys.modules['botocore'] = None\n"
        "from penstock.router.sources.sqs_credentials import CredentialChain\n"
        "print(asyncio.run(CredentialChain({'AWS_ACCESS_KEY_ID': 'k', 'AWS_SECRET_ACCESS_KEY': 's'}).current()).access_key)\n"
        "try:\n"
        "    asyncio.run(CredentialChain({}).current())\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ))
    key, problem = done.stdout.splitlines()
    assert key == "k"
    assert problem.startswith(f"FailedPrecondition {how_to_install('router-sqs')}")
