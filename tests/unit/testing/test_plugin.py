"""The fixtures, as a user's own test run sees them: installed, and not configured."""

import subprocess
import sys
from pathlib import Path

TESTS = """
import asyncio
from datetime import timedelta

import penstock
from penstock import RetryPolicy, SubscriptionOptions


def test_a_retry_after_three_days(pubsub, clock):
    topic = pubsub.topic("payments")
    topic.create()
    three_days = 3 * 86_400
    options = SubscriptionOptions(retry_policy=RetryPolicy(three_days, three_days))
    subscription = topic.subscription("collector")
    subscription.create(options)
    topic.publish_message(b"invoice 7")
    [message] = subscription.pull()
    assert message.nack_with_response() == 0
    assert subscription.pull() == []
    clock.advance(timedelta(days=3))
    [again] = subscription.pull()
    assert (again.data, again.delivery_attempt) == (b"invoice 7", 2)


def test_each_test_has_a_broker_of_its_own(pubsub):
    assert pubsub.topics() == []


def test_asynchronous_code_uses_the_broker(broker, clock):
    async def main():
        async with penstock.PubSub(broker=broker) as pubsub:
            topic = await pubsub.topic("t").create()
            subscription = await topic.subscription("s", ack_deadline=10).create()
            await topic.publish_message(b"x")
            attempts = []
            async for message in subscription:
                attempts.append(message.delivery_attempt)
                if len(attempts) == 2:
                    message.ack()
                    break
                clock.advance(11)
            await subscription.close()
            return attempts

    assert asyncio.run(main()) == [1, 2]
"""


def test_the_fixtures_are_there_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )

    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr
