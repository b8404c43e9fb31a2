"""A token that is revoked or has expired ends what its holder waits for; and how long one may wait at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.access import Keyring
from penstock.durations import SECOND
from tests.conformance.consumers.driver import PATIENCE, Driver, Streamer
from tests.conformance.consumers.suite import promise

WAIT = 60
SOON = 8.0
"""Seconds: a server looks at the tokens of those who stay once a second."""
SOON_IF_EVER = 2.5
"""The same for what is known to fail."""
VALID_SECONDS = 600


async def _ends(driver: Driver, keyring: Keyring, *, is_revoked: bool) -> None:
    """Assert that a consumer is sent away soon after its token is not good any more, and that nothing is leased to it."""
    clock = driver.scene.clock
    secret = keyring.create("consumer", clock.now(), expires=clock.now() + VALID_SECONDS * SECOND)
    clock.advance(2)  # a server reads its tokens again
    driver.scene.token = secret
    consumer: Any = await driver.consumer()
    wait = None if isinstance(consumer, Streamer) else asyncio.ensure_future(consumer.take(wait=WAIT))
    await driver.settled()
    if is_revoked:
        keyring.revoke(secret.split("_")[1])
    clock.advance(2 if is_revoked else VALID_SECONDS)
    limit = SOON if driver.patience == PATIENCE else SOON_IF_EVER
    if wait is None:
        consumer.patience = limit
        await consumer.until(lambda: consumer.end is not None, "the stream has not ended")
        assert any(word in consumer.end for word in ("unauthenticated", "4401", "unauthorized")), consumer.end
    else:
        await asyncio.wait([wait], timeout=limit)
        is_over, problem = wait.done(), repr(wait.exception()) if wait.done() else ""
        wait.cancel()
        await asyncio.wait([wait])
        assert is_over, f"it still waits after {limit} s"
        assert "authenticated" in problem.lower()
    await driver.place.publish(b"secret")
    await driver.settled()
    assert (await driver.place.counts()).in_flight == 0


@promise("tokens", with_tokens=True)
async def test_a_revoked_token_ends_waits_and_streams_at_once(driver: Driver, keyring: Keyring) -> None:
    await _ends(driver, keyring, is_revoked=True)


@promise("tokens", "expiring tokens", with_tokens=True)
async def test_an_expired_token_ends_waits_and_streams_at_once(driver: Driver, keyring: Keyring) -> None:
    await _ends(driver, keyring, is_revoked=False)


@promise("longest wait")
async def test_a_wait_longer_than_documented_is_refused(driver: Driver) -> None:
    consumer: Any = await driver.consumer()
    with pytest.raises(Exception, match=r"(?i)invalid.?argument|wait|timeout"):  # each API has errors of its own
        await asyncio.wait_for(consumer.take(wait=driver.longest_wait + 1), driver.patience)
