"""HubClient and its token: one that runs out, one that allows less."""

from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from penstock.client import ConnectionNews, HubClient
from penstock.durations import SECOND
from penstock.errors import PermissionDenied, Unauthenticated
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.hub.feed_desk import in_loop

SECONDS = 30.0
SECRET = "a secret of the tests, long enough to sign with: 0123456789"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(tmp_path: Path, clock: ManualClock) -> Iterator[LocalServer]:
    place = tmp_path / "hub.secret"
    place.write_text(SECRET)
    place.chmod(0o600)
    with LocalServer(hub_jwt_secret_file=place, insecure=True, clock=clock) as server:
        yield server


def token(clock: ManualClock, **claims: object) -> str:
    now = clock.now() // SECOND
    whole = {"iss": "signal-hub", "iat": now, "exp": now + 100, "actorId": "browser/ann", **claims}
    return jwt.encode(whole, SECRET, algorithm="HS256")


def test_who_has_a_function_for_tokens_goes_on_with_another_and_no_call_fails(server: LocalServer, clock: ManualClock) -> None:
    async def scenario() -> None:
        news: list[ConnectionNews] = []
        async with (
            HubClient(server.url, token=lambda: token(clock), ttl=3600, on_connection=news.append) as hub,
            hub.direct() as direct,
        ):
            clock.advance(105)
            await hub.send(hub.address, "to myself")
            clock.advance(105)
            await hub.publish("news")
            assert (await direct.get(SECONDS)).data == "to myself"
        assert [one.problem for one in news] == ["", "the token ran out", "", "the token ran out", ""]

    in_loop(scenario())


def test_a_token_that_ran_out_is_what_a_call_says_and_not_that_it_may_not(server: LocalServer, clock: ManualClock) -> None:
    async def scenario() -> None:
        async with HubClient(server.url, token=token(clock), ttl=3600) as hub:
            clock.advance(105)
            for call in (lambda: hub.publish("news"), hub.topics):
                with pytest.raises(Unauthenticated, match="expired") as refused:
                    await call()
                assert "hub:refresh_token" in (refused.value.hint or "")
            await hub.refresh_token(token(clock))
            await hub.publish("news")

    in_loop(scenario())


def test_a_subscription_that_a_new_token_does_not_allow_says_so_to_its_reader(server: LocalServer, clock: ManualClock) -> None:
    async def scenario() -> None:
        async with HubClient(server.url, token=token(clock)) as hub, hub.subscribe("a") as lost, hub.subscribe("b") as kept:
            await hub.refresh_token(token(clock, subscribe=["b"]))
            with pytest.raises(PermissionDenied, match="subscribe to a"):
                await lost.get(SECONDS)
            await hub.publish("b", 1)
            assert (await kept.get(SECONDS)).data == 1

    in_loop(scenario())
