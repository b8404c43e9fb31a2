"""Keys of an identity provider, from a real server on this machine: rotated, slow, broken, huge, down."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.hub.core.identity import Identity, TokenRequirements
from penstock.hub.core.refusal import Refusal
from penstock.hub.jwks import MAX_BYTES, Jwks
from penstock.hub.keys import MAX_KEYS, key_set
from penstock.hub.tokens import JwtVerifier
from penstock.testing import ManualClock
from tests.unit.hub.issuers import SECRET, claims, ec_key, encoded, forged, jwk, public_pem, rsa_key, signed

pytestmark = pytest.mark.server

DEADLINE = 60


class Provider:
    """An identity provider whose answer a test chooses. `asked` counts how often it was asked."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.body = described(*keys)
        self.status = 200
        self.asked = 0
        self.url = ""
        self.asking = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.asking.set()
        await self.may_answer.wait()
        headers = {"Location": f"{self.url}&again=1"} if self.status == 302 else {}
        return web.Response(body=self.body, status=self.status, headers=headers)


def described(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


class Hub:
    """A hub's verifier that takes keys from a provider, on a clock of its own."""

    def __init__(self, provider: Provider, timeout: float = DEADLINE) -> None:
        self.clock = ManualClock()
        self.jwks = Jwks(provider.url, self.clock.now, timeout=timeout)
        self.verifier = JwtVerifier([self.jwks], TokenRequirements(issuer="signal-hub"), self.clock)

    async def enter(self, token: str) -> Identity:
        return await asyncio.wait_for(self.verifier.verify(token, None), DEADLINE)

    async def reason(self, token: str) -> str:
        """Why a token is refused."""
        with pytest.raises(Refusal) as caught:
            await self.enter(token)
        assert caught.value.retryable == (caught.value.reason == "keys_unavailable")
        return caught.value.reason


@asynccontextmanager
async def serving(*keys: dict[str, Any]) -> AsyncIterator[Provider]:
    provider, app = Provider(*keys), web.Application()
    app.router.add_get("/keys", provider.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys?secret=hidden"
    try:
        yield provider
    finally:
        provider.may_answer.set()
        await runner.cleanup()


def run(talk: Callable[[Provider, Hub], Awaitable[None]], *keys: dict[str, Any], timeout: float = DEADLINE) -> None:
    async def main() -> None:
        async with serving(*keys or (jwk(rsa_key()),)) as provider:
            hub = Hub(provider, timeout)
            await talk(provider, hub)
            await hub.verifier.close()
            await hub.verifier.close()

    asyncio.run(main())


def by(name: str = "first", kid: str | None = "one", **changes: Any) -> str:
    return signed(rsa_key(name), "RS256", kid, **changes)


def test_keys_are_found_by_their_name_and_fetched_once() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        for _ in range(3):
            assert (await hub.enter(by())).address == "@(browser/ui)"
            assert (await hub.enter(signed(ec_key(), "ES256", "two"))).address == "@(browser/ui)"
        assert await hub.reason(by("second")) == "bad_signature"
        assert await hub.reason(signed(ec_key("second"), "ES256", "two")) == "bad_signature"
        assert provider.asked == 1

    run(talk, jwk(rsa_key()), jwk(ec_key(), "two"))


def test_a_token_that_names_no_key_is_checked_with_the_only_one_of_its_algorithm() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        assert (await hub.enter(by(kid=None))).address == "@(browser/ui)"
        assert await hub.reason(signed(ec_key(), "ES256")) == "unknown_key"

    run(talk, jwk(rsa_key()), jwk(ec_key(), "two"), jwk(ec_key("second"), "three"))


def test_a_key_without_a_name_serves_tokens_that_name_none() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        assert (await hub.enter(by(kid=None))).address == "@(browser/ui)"
        assert await hub.reason(by(kid="one")) == "unknown_key"

    run(talk, jwk(rsa_key(), None))


def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        await hub.enter(by())
        provider.body = described(jwk(rsa_key()), jwk(rsa_key("second"), "two"))
        hub.clock.advance(30)

        assert (await hub.enter(by("second", "two"))).address == "@(browser/ui)"
        assert (await hub.enter(by())).address == "@(browser/ui)"
        assert provider.asked == 2

    run(talk)


def test_unknown_names_make_nobody_ask_more_often_than_every_thirty_seconds() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        for second in range(60):
            assert await hub.reason(by(kid=f"unknown {second}")) == "unknown_key"
            hub.clock.advance(1)
        assert provider.asked == 2

    run(talk)


def test_a_key_that_was_withdrawn_counts_for_five_minutes_at_most() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        await hub.enter(by())
        provider.body = described(jwk(rsa_key("second"), "two"))
        hub.clock.advance(299)
        assert (await hub.enter(by())).address == "@(browser/ui)"
        hub.clock.advance(1)
        assert await hub.reason(by()) == "unknown_key"
        assert provider.asked == 2

    run(talk)


def test_however_many_come_at_once_there_is_one_fetch() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        provider.may_answer.clear()
        coming = [asyncio.ensure_future(hub.enter(by())) for _ in range(50)]
        await asyncio.wait_for(provider.asking.wait(), DEADLINE)
        provider.may_answer.set()
        assert {found.address for found in await asyncio.gather(*coming)} == {"@(browser/ui)"}
        assert provider.asked == 1

    run(talk)


def test_one_who_leaves_does_not_end_the_fetch_of_the_others() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        provider.may_answer.clear()
        impatient, patient = (asyncio.ensure_future(hub.enter(by())) for _ in range(2))
        await asyncio.wait_for(provider.asking.wait(), DEADLINE)
        impatient.cancel()
        await asyncio.wait([impatient])
        provider.may_answer.set()
        assert (await patient).address == "@(browser/ui)"
        assert provider.asked == 1

    run(talk)


def test_a_provider_that_takes_too_long_is_not_waited_for() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        provider.may_answer.clear()
        assert await hub.reason(by()) == "keys_unavailable"
        assert await hub.reason(by()) == "keys_unavailable"
        assert provider.asked == 1

        provider.may_answer.set()
        hub.clock.advance(30)
        assert (await hub.enter(by())).address == "@(browser/ui)"

    run(talk, timeout=0.05)


def test_a_stop_ends_a_fetch_that_is_under_way() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        provider.may_answer.clear()
        waiting = asyncio.ensure_future(hub.verifier.verify(by(), None))
        await asyncio.wait_for(provider.asking.wait(), DEADLINE)
        await asyncio.wait_for(hub.verifier.close(), DEADLINE)
        await asyncio.wait([waiting], timeout=DEADLINE)
        assert waiting.cancelled()

    run(talk)


BROKEN: dict[str, Callable[[Provider], None]] = {
    "an error": lambda provider: setattr(provider, "status", 500),
    "nothing there": lambda provider: setattr(provider, "status", 404),
    "no content": lambda provider: setattr(provider, "status", 204),
    "another place": lambda provider: setattr(provider, "status", 302),
    "an empty body": lambda provider: setattr(provider, "body", b""),
    "a page": lambda provider: setattr(provider, "body", b"<html>log in</html>"),
    "no text": lambda provider: setattr(provider, "body", b'{"keys": "\xff"}'),
    "no set": lambda provider: setattr(provider, "body", json.dumps(jwk(rsa_key())).encode()),
    "no keys": lambda provider: setattr(provider, "body", described()),
    "keys of other kinds alone": lambda provider: setattr(provider, "body", described({"kty": "oct", "k": "c2VjcmV0"})),
    "deep": lambda provider: setattr(provider, "body", b'{"keys":' + b"[" * 100_000),
    "huge": lambda provider: setattr(provider, "body", described(jwk(rsa_key(), pad="x" * MAX_BYTES))),
    "too many": lambda provider: setattr(provider, "body", described(*[jwk(rsa_key())] * (MAX_KEYS + 1))),
}


def test_a_broken_provider_lets_nobody_new_in_and_locks_nobody_out(
    caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    async def talk(spoil: Callable[[Provider], None], provider: Provider, hub: Hub) -> None:
        right, before = provider.body, provider.status
        spoil(provider)
        assert await hub.reason(by()) == "keys_unavailable"
        provider.body, provider.status = right, before
        hub.clock.advance(30)
        assert (await hub.enter(by())).address == "@(browser/ui)"

        spoil(provider)
        for _ in range(3):
            hub.clock.advance(300)
            assert (await hub.enter(by())).address == "@(browser/ui)"
            assert await hub.reason(by(kid="unknown")) == "unknown_key"
        assert provider.asked == 5

    for how, spoil in BROKEN.items():
        with subtests.test(how=how), caplog.at_level(logging.INFO, "penstock.hub"):
            caplog.clear()
            run(partial(talk, spoil))
            lines = [record.getMessage() for record in caplog.records if record.name == "penstock.hub"]
            assert ["cannot be fetched" in line for line in lines] == [True, False, True]
            assert lines[0].endswith("tokens that they would check are refused")
            assert lines[2].endswith("the last ones are still used")
            assert "hidden" not in caplog.text


def test_a_provider_that_is_down_locks_nobody_out() -> None:
    async def main() -> None:
        async with serving(jwk(rsa_key())) as provider:
            hub = Hub(provider)
            await hub.enter(by())
        hub.clock.advance(300)
        assert (await hub.enter(by())).address == "@(browser/ui)"
        assert await Hub(provider).reason(by()) == "keys_unavailable"  # one that never had its keys

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/keys", "http://127.0.0.1:99999/keys"])
def test_an_address_that_leads_nowhere_is_a_provider_that_is_down(url: str) -> None:
    async def main() -> None:
        provider = Provider()
        provider.url = url
        assert await Hub(provider).reason(by()) == "keys_unavailable"

    asyncio.run(main())


# Keys of a set that are passed over, each beside one that is right.
USELESS: dict[str, Callable[[], object]] = {
    "a secret": lambda: {"kty": "oct", "kid": "bad", "k": encoded(SECRET), "alg": "HS256"},
    "a secret that is called RSA": lambda: {"kty": "RSA", "kid": "bad", "k": encoded(SECRET)},
    "for encryption": lambda: jwk(rsa_key("second"), "bad", use="enc"),
    "for signing only": lambda: jwk(rsa_key("second"), "bad", key_ops=["sign"]),
    "for other padding": lambda: jwk(rsa_key("second"), "bad", alg="PS256"),
    "for another digest": lambda: jwk(rsa_key("second"), "bad", alg="RS512"),
    "for a secret's algorithm": lambda: jwk(rsa_key("second"), "bad", alg="HS256"),
    "too short": lambda: jwk(rsa_key("short", 1024), "bad"),
    "far too long": lambda: {**jwk(rsa_key("second"), "bad"), "n": "_" * 100_000},
    "a number that is no base64": lambda: {**jwk(rsa_key("second"), "bad"), "n": "!"},
    "a number that is none": lambda: {**jwk(rsa_key("second"), "bad"), "n": 5},
    "an even exponent": lambda: {**jwk(rsa_key("second"), "bad"), "e": "AA"},
    "without an exponent": lambda: {**jwk(rsa_key("second"), "bad"), "e": None},
    "another curve": lambda: {**jwk(ec_key(), "bad"), "crv": "P-384"},
    "a point that is not on the curve": lambda: {**jwk(ec_key(), "bad"), "x": encoded(b"\x01" * 32)},
    "a short point": lambda: {**jwk(ec_key(), "bad"), "x": "AAAA"},
    "an elliptic key for another algorithm": lambda: jwk(ec_key(), "bad", alg="RS256"),
    "a kind nobody knows": lambda: {"kty": "OKP", "kid": "bad", "crv": "Ed25519", "x": encoded(b"x" * 32)},
    "a name that is no text": lambda: {**jwk(rsa_key("second")), "kid": 1},
    "no object": lambda: "bad",
    "null": lambda: None,
}


def test_a_key_of_no_use_is_passed_over(subtests: pytest.Subtests) -> None:
    for what, make in USELESS.items():
        with subtests.test(what=what):
            found = key_set(json.dumps({"keys": [make(), jwk(rsa_key())]}).encode())

            assert list(found) == [("RS256", "one")]


def test_the_first_of_two_keys_of_a_name_counts_and_private_parts_are_not_read() -> None:
    private = {**jwk(rsa_key()), "d": "AQ", "p": "AQ"}
    found = key_set(described(private, jwk(rsa_key("second")), jwk(ec_key())))

    assert list(found) == [("RS256", "one"), ("ES256", "one")]
    assert found["RS256", "one"].opened(by()) is not None
    assert found["RS256", "one"].opened(by("second")) is None
    assert not hasattr(found["RS256", "one"].material, "sign")
    assert isinstance(found["ES256", "one"].material, ec.EllipticCurvePublicKey)


def test_a_published_key_never_serves_as_a_secret() -> None:
    async def talk(provider: Provider, hub: Hub) -> None:
        for secret in (public_pem(rsa_key()), provider.body, jwk(rsa_key())["n"].encode()):
            for algorithm in ("HS256", "none", "RS256", "ES256"):
                token = forged({"alg": algorithm, "kid": "one"}, claims(), secret)
                assert await hub.reason(token) in {"wrong_algorithm", "bad_signature", "unknown_key"}

    run(talk)
