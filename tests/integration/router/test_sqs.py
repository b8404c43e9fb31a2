"""SQS as a source, over moto's server (specification 001, "SQS Consumer" and "Visibility Timeout Control").

What every source promises is in the conformance suite; here is what only SQS has.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.session import Session  # type: ignore[import-untyped]

from penstock.errors import FailedPrecondition, QueueNotFound
from penstock.router.core.message import SourceMessage
from penstock.router.source import QueueDepth
from penstock.router.sources.sqs import SqsSource
from tests.conformance.sources.driver import some, take
from tests.integration.router.sqs_server import KEYS, REGION, SqsServer, source_of


@pytest.fixture
def server(shared_sqs: SqsServer) -> SqsServer:
    return shared_sqs


def bodies(received: list[SourceMessage]) -> list[str]:
    return [each.body.decode() for each in received]


def test_a_group_of_a_fifo_queue_waits_for_what_is_handed_out_of_it_and_others_do_not(server: SqsServer) -> None:
    async def scenario() -> None:
        url = server.create_queue(is_fifo=True)
        server.send(url, ["a1", "a2", "b1"], ["a", "a", "b"])
        source = source_of(url, server.endpoint)
        await source.start()
        (head,) = await source.poll(1, 1)
        other = await take(source, 1)
        assert (head.body, bodies(other)) == (b"a1", ["b1"])
        assert list(await source.poll(1, 0)) == []
        source.ack(head)
        assert bodies(await take(source, 1)) == ["a2"]
        await source.stop()

    asyncio.run(scenario())


def test_what_is_nacked_in_a_fifo_queue_comes_before_its_successors(server: SqsServer) -> None:
    async def scenario() -> None:
        url = server.create_queue(is_fifo=True)
        server.send(url, [f"m{number}" for number in range(5)], ["g"] * 5)
        source = source_of(url, server.endpoint)
        await source.start()
        held = await take(source, 3)
        for received in (held[2], held[0], held[1]):
            source.nack(received, 0)
        await source.flush()
        assert bodies(await take(source, 5)) == ["m0", "m1", "m2", "m3", "m4"]
        await source.stop()

    asyncio.run(scenario())


def test_what_a_stopped_source_of_a_fifo_queue_held_comes_again_at_once_and_in_order(server: SqsServer) -> None:
    async def scenario() -> None:
        url = server.create_queue(is_fifo=True)
        sent = [f"m{number:02}" for number in range(25)]
        server.send(url, sent, [f"g{number}" for number in range(25)])
        first = source_of(url, server.endpoint)
        await first.start()
        held = await take(first, 20)
        first.ack(held[0])
        await first.stop()
        second = source_of(url, server.endpoint)
        await second.start()
        assert bodies(await take(second, 24)) == sent[1:]
        await second.stop()

    asyncio.run(scenario())


def test_what_is_sent_to_a_fifo_queue_is_kept_in_the_order_of_its_group(server: SqsServer) -> None:
    async def scenario() -> None:
        source = source_of(server.create_queue(is_fifo=True), server.endpoint)
        await source.start()
        ids = [await source.send(b'{"id":"%d"}' % number, group) for number, group in enumerate(["a", "a", "gr\u00fc\u00dfe, b"])]
        (first,) = await source.poll(1, 1)
        (other,) = await take(source, 1)
        assert [first.broker_id, other.broker_id] == [ids[0], ids[2]]
        source.ack(first)
        assert [received.broker_id for received in await take(source, 1)] == [ids[1]]
        await source.stop()

    asyncio.run(scenario())


def test_a_message_whose_lease_ran_out_is_acked_with_its_newest_receipt_handle(server: SqsServer) -> None:
    """Specification 001, "Receipt handle expiry"."""

    async def scenario() -> None:
        url = server.create_queue()
        server.send(url, ["slow"])
        source = source_of(url, server.endpoint, lease=1)
        await source.start()
        (first,) = await take(source, 1)
        (again,) = await take(source, 1)
        assert again.broker_id == first.broker_id
        assert again.receipt != first.receipt
        assert again.count == 2
        source.ack(first)
        await source.flush()
        assert server.left(url) == 0
        await source.stop()

    asyncio.run(scenario())


def test_a_message_whose_receipt_handle_is_not_good_is_deleted_when_it_comes_again(server: SqsServer) -> None:
    """Specification 001, "Deferred deletes"."""

    async def scenario() -> None:
        url = server.create_queue()
        server.send(url, ["done already", "next"])
        source = source_of(url, server.endpoint)
        await source.start()
        seen = server.sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"][0]
        source.ack(SourceMessage(seen["MessageId"], b"", "a receipt handle that SQS does not know"))
        await source.flush()
        assert server.left(url) == 2
        received = [each for _ in range(2) for each in await source.poll(10, 0)]
        assert bodies(received) == ["next"]
        await source.flush()
        assert server.left(url) == 1
        await source.stop()

    asyncio.run(scenario())


def test_a_poll_for_many_gets_the_ten_that_sqs_gives_at_a_time_and_all_can_be_settled_together(server: SqsServer) -> None:
    async def scenario() -> None:
        url = server.create_queue()
        server.send(url, [str(number) for number in range(35)])
        source = source_of(url, server.endpoint)
        await source.start()
        held = list(await source.poll(200, 1))
        assert len(held) == 10
        while len(held) < 35:
            held += await some(source, 200)
        assert await source.depth() == QueueDepth(0, 35)
        for number, received in enumerate(held):
            source.ack(received) if number < 20 else source.nack(received, 0)
        await source.flush()
        assert await source.depth() == QueueDepth(15, 0)
        await source.stop()

    asyncio.run(scenario())


def test_the_queue_is_reached_by_its_own_url_and_by_the_override(server: SqsServer) -> None:
    """Specification 001, configuration: SQS_ENDPOINT_OVERRIDE."""

    async def received(source: SqsSource) -> list[str]:
        await source.start()
        found = bodies(await take(source, 1))
        await source.stop()
        return found

    url = server.create_queue()
    server.send(url, ["here"])
    name = url.rpartition("/")[2]
    assert asyncio.run(received(source_of(url, ""))) == ["here"]
    amazon = f"https://sqs.{REGION}.amazonaws.com/123456789012/{name}"
    assert asyncio.run(received(source_of(amazon, server.endpoint, environment={"AWS_REGION": ""}))) == ["here"]


def test_a_queue_that_does_not_exist_is_not_found(server: SqsServer) -> None:
    async def scenario() -> None:
        for name in ("nowhere", "nowhere.fifo"):
            source = source_of(f"{server.endpoint}/123456789012/{name}", server.endpoint)
            with pytest.raises(QueueNotFound, match=name) as caught:
                await source.start()
            assert caught.value.hint is not None
            await source.stop()

    asyncio.run(scenario())


def test_a_queue_that_is_deleted_is_not_found_from_then_on(server: SqsServer) -> None:
    async def scenario() -> None:
        url = server.create_queue()
        source = source_of(url, server.endpoint)
        await source.start()
        server.sqs.delete_queue(QueueUrl=url)
        with pytest.raises(QueueNotFound):
            await source.poll(10, 0)
        assert not source.is_healthy
        await source.stop()

    asyncio.run(scenario())


@contextmanager
def checking_signatures(server: SqsServer) -> Iterator[None]:
    """From now on the server checks every signature, until the end."""
    for after in ("0", "inf"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/moto-api/reset-auth", after)
        assert connection.getresponse().read()
        connection.close()
        if after == "0":
            yield


def test_a_server_that_checks_signatures_takes_ours_and_wrong_credentials_are_named_and_not_shown(
    server: SqsServer, subtests: pytest.Subtests
) -> None:
    iam: Any = Session().create_client(
        "iam",
        region_name="us-east-1",
        endpoint_url=server.endpoint,
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )
    url = server.create_queue()
    server.send(url, ["for the right one"])
    keys: dict[str, dict[str, str]] = {}
    for user in ("friend", "stranger"):
        iam.create_user(UserName=user)
        made = iam.create_access_key(UserName=user)["AccessKey"]
        keys[user] = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="friend", PolicyName="sqs", PolicyDocument=json.dumps(policy))
    iam.close()

    async def take_as_friend() -> None:
        source = source_of(url, server.endpoint, environment=keys["friend"])
        await source.start()
        (received,) = await take(source, 1)
        assert received.body == b"for the right one"
        source.ack(received)
        await source.flush()
        assert await source.depth() == QueueDepth(0, 0)
        await source.stop()

    async def refused(changes: dict[str, str], problem: str) -> None:
        environment = keys["stranger"] | changes
        source = source_of(url, server.endpoint, environment=environment)
        with pytest.raises(FailedPrecondition, match=problem) as caught:
            await source.start()
        assert caught.value.hint is not None
        for secret in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            assert environment.get(secret, "none") not in f"{caught.value} {caught.value.hint}"
        assert not source.is_healthy
        await source.stop()

    wrong: list[tuple[dict[str, str], str]] = [
        ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, "InvalidClientTokenId"),
        ({"AWS_SECRET_ACCESS_KEY": "not the secret"}, "SignatureDoesNotMatch"),
        ({"AWS_SESSION_TOKEN": "no such session"}, "InvalidClientTokenId|SignatureDoesNotMatch"),
        ({}, "AccessDenied"),
    ]
    with checking_signatures(server):
        asyncio.run(take_as_friend())
        for changes, problem in wrong:
            with subtests.test(problem):
                asyncio.run(refused(changes, problem))
