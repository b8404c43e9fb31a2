"""Queue URLs of SQS, and signatures: compared with what Amazon's own library makes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from botocore import auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials as TheirCredentials  # type: ignore[import-untyped]

from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.config import QueueConfig
from penstock.router.source import SourceContext, open_source
from penstock.router.sources.sqs_api import address_of
from penstock.router.sources.sqs_credentials import Credentials, Signer
from tests.integration.router.sqs_server import source_of

MOMENT = 1_790_000_000


def test_where_the_calls_of_a_queue_go(subtests: pytest.Subtests) -> None:
    for uri, environment, wanted in [
        ("https://sqs.eu-west-1.amazonaws.com/1/q", {}, ("sqs.eu-west-1.amazonaws.com", "eu-west-1", "/")),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", {}, ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1", "/")),
        ("https://sqs-fips.us-east-1.amazonaws.com/1/q", {}, ("sqs-fips.us-east-1.amazonaws.com", "us-east-1", "/")),
        ("https://sqs.us-west-2.api.aws/1/q", {"AWS_REGION": "x"}, ("sqs.us-west-2.api.aws", "us-west-2", "/")),
        (
            "https://vpce-0a-b.sqs.us-east-2.vpce.amazonaws.com/1/q",
            {},
            ("vpce-0a-b.sqs.us-east-2.vpce.amazonaws.com", "us-east-2", "/"),
        ),
        ("https://eu-west-3.queue.amazonaws.com/1/q", {}, ("sqs.eu-west-3.amazonaws.com", "eu-west-3", "/")),
        ("https://queue.amazonaws.com/1/q", {}, ("sqs.us-east-1.amazonaws.com", "us-east-1", "/")),
        ("http://localhost:9324/000000000000/q", {}, ("localhost:9324", "us-east-1", "/")),
        ("http://localhost:9324/q", {"AWS_DEFAULT_REGION": "b"}, ("localhost:9324", "b", "/")),
        ("http://[::1]:9324/q", {"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, ("[::1]:9324", "a", "/")),
        ("https://sqs.eu-west-1.amazonaws.com:443/1/q", {}, ("sqs.eu-west-1.amazonaws.com", "eu-west-1", "/")),
        (
            "https://sqs.eu-west-1.amazonaws.com/1/q",
            {"SQS_ENDPOINT_OVERRIDE": "http://localhost:4566"},
            ("localhost:4566", "eu-west-1", "/"),
        ),
        (
            "https://sqs.eu-west-1.amazonaws.com/1/q",
            {"SQS_ENDPOINT_OVERRIDE": "https://proxy.example/aws/"},
            ("proxy.example", "eu-west-1", "/aws/"),
        ),
    ]:
        with subtests.test(uri=uri, environment=environment):
            address = address_of(uri, environment)
            assert (address.authority, address.region, address.path) == wanted
            assert address.queue_url == uri
            assert not address.is_fifo
            assert address_of(f"{uri}.fifo", environment).is_fifo


def test_malformed_queue_urls_are_refused_and_passwords_not_shown(subtests: pytest.Subtests) -> None:
    for uri in [
        "https://",
        "https:///1/q",
        "https://sqs.eu-west-1.amazonaws.com",
        "https://sqs.eu-west-1.amazonaws.com/",
        "https://sqs.eu-west-1.amazonaws.com/1/",
        "https://sqs.eu-west-1.amazonaws.com/1/two words",
        "https://sqs.eu-west-1.amazonaws.com/1/q.",
        "https://sqs.eu-west-1.amazonaws.com/1/.fifo",
        "https://sqs.eu-west-1.amazonaws.com/1/q.FIFO",
        "https://sqs.eu-west-1.amazonaws.com/1/" + "q" * 81,
        "https://sqs.eu-west-1.amazonaws.com/1/" + "q" * 76 + ".fifo",
        "https://sqs.eu-west-1.amazonaws.com/1/q?a=b",
        "https://sqs.eu-west-1.amazonaws.com/1/q#a",
        "https://sqs.eu-west-1.amazonaws.com/1/grüße",
        "https://sqs.eu-west-1.amazonaws.com/1//q",
        "https://sqs.eu-west-1.amazonaws.com/%31/q",
        "https://sqs.eu-west-1.amazonaws.com/1/q\r\nX: y",
        "https://sqs.eu-west-1.amazonaws.com/1/q\n",
        "https://sqs.eu-west-1.amazonaws.com/1\t/q",
        "https://a b/1/q",
        "https://a\0b/1/q",
        "https://.amazonaws.com/1/q",
        f"https://{'a' * 64}.com/1/q",
        "https://host:99999/1/q",
        "https://host:0/1/q",
        "https://host:port/1/q",
        "https://[::1/1/q",
        "https://user:hunter2@host/1/q",
        "https://hunter2@host/1/q",
    ]:
        with subtests.test(ascii(uri)):
            context = SourceContext(environment={}, clock=SystemClock())
            with pytest.raises(InvalidArgument) as caught:
                open_source(QueueConfig("orders", uri), context)
            assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_a_malformed_override_is_named(subtests: pytest.Subtests) -> None:
    for endpoint in ["localhost:4566", "ftp://localhost", "http://", "http://u:hunter2@h", "http://h/?a", "http://h:x"]:
        with subtests.test(endpoint=endpoint):
            with pytest.raises(InvalidArgument, match="SQS_ENDPOINT_OVERRIDE") as caught:
                source_of("https://sqs.eu-west-1.amazonaws.com/1/q", endpoint)
            assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("seconds", [-1, 0, 43_201])
def test_a_lease_that_sqs_does_not_give_is_refused(seconds: int) -> None:
    with pytest.raises(InvalidArgument, match="visibilityTimeout"):
        source_of("https://sqs.eu-west-1.amazonaws.com/1/q", "", lease=seconds)


def test_the_lease_is_the_configured_visibility_timeout() -> None:
    async def leases() -> list[float | None]:
        return [source_of("https://sqs.eu-west-1.amazonaws.com/1/q", "", lease=seconds).lease_seconds for seconds in (1, 43_200)]

    assert asyncio.run(leases()) == [1, 43_200]


@pytest.fixture
def _their_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore sign for the moment of ours."""
    moment = datetime.fromtimestamp(MOMENT, UTC)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: moment.replace(tzinfo=None))


@pytest.mark.usefixtures("_their_moment")
def test_our_signature_is_the_one_that_amazons_library_makes(subtests: pytest.Subtests) -> None:
    tokens = ("", "a/token+of=a session")
    places = (("sqs.eu-west-1.amazonaws.com", "/"), ("localhost:4566", "/aws/"))
    for token, (host, path), body in product(tokens, places, (b"{}", '{"a":"grüße"}'.encode(), b"x" * 100_000)):
        with subtests.test(token=token, host=host, body=body[:20]):
            signer = Signer(host, "eu-west-1")
            ours = signer.head(Credentials("key", "secret", token), path, "AmazonSQS.X", body, MOMENT * SECOND)
            fields = {name: value for name, _, value in (line.partition(": ") for line in ours.decode().split("\r\n"))}
            headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.X", "Host": host}
            theirs: Any = AWSRequest("POST", f"http://{host}{path}", headers=headers, data=body)
            auth.SigV4Auth(TheirCredentials("key", "secret", token or None), "sqs", "eu-west-1").add_auth(theirs)
            assert fields["authorization"] == theirs.headers["Authorization"]
            assert fields["x-amz-date"] == theirs.headers["X-Amz-Date"]
            assert fields.get("x-amz-security-token") == theirs.headers.get("X-Amz-Security-Token")


def test_a_signer_makes_a_new_key_for_a_new_day_and_a_new_secret() -> None:
    signer = Signer("host", "eu-west-1")
    days = [signer.head(Credentials("k", "one"), "/", "T", b"", day * 86_400 * SECOND) for day in (1, 2, 1)]
    assert days[0] == days[2] != days[1]
    assert signer.head(Credentials("k", "two"), "/", "T", b"", 86_400 * SECOND) != days[0]


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials("key", "secret", "token")) + str(Credentials("key", "secret", "token"))
