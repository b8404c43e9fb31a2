"""Who is let in with which token: signatures, algorithms, files of keys. What is asked of claims is in test_claims.py."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Settings
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.refusal import Refusal
from penstock.hub.keys import header_of, public_key, secret_key
from penstock.hub.tokens import MAX_TOKEN, JwtVerifier, OpenVerifier, jwt_verifier
from penstock.testing import ManualClock
from tests.unit.hub.issuers import NOW, SECRET, claims, ec_key, encoded, forged, private_pem, public_pem, rsa_key, signed

RIGHT = {"alg": "HS256", "typ": "JWT"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return written(tmp_path / "secret", SECRET)


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return written(tmp_path / "key.pem", public_pem(rsa_key()))


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def verifier(clock: ManualClock, **settings: Any) -> JwtVerifier:
    found = jwt_verifier(Settings(**settings), clock)
    assert found is not None
    return found


def identity(verifier: JwtVerifier, token: str | None) -> Identity:
    return asyncio.run(verifier.verify(token, None))


def refusal(verifier: JwtVerifier, token: str | None) -> Refusal:
    with pytest.raises(Refusal) as caught:
        identity(verifier, token)
    said = f"{caught.value} {caught.value.resolution} {caught.value.details} {caught.value.__cause__}"
    assert caught.value.code == "unauthorized"
    assert caught.value.resolution
    for part in (token or "").split("."):
        assert len(part) < 10 or part not in said
    return caught.value


def test_where_nobody_is_asked_everybody_may_be_whoever_they_register_as(subtests: pytest.Subtests) -> None:
    for token in (None, "", "anything", "Bearer x"):
        for claimed in (None, "@(browser/ui)", "nonsense"):
            with subtests.test(token=token, claimed=claimed):
                assert asyncio.run(OpenVerifier().verify(token, claimed)) is ANONYMOUS


def test_without_a_key_there_is_no_verifier_of_tokens(clock: ManualClock) -> None:
    assert jwt_verifier(Settings(), clock) is None


def test_a_hub_may_take_keys_from_everywhere_at_once(clock: ManualClock, secret: Path, pem: Path) -> None:
    url = "http://127.0.0.1:1/keys"
    checker = verifier(clock, hub_jwt_secret_file=secret, hub_jwt_key_file=pem, hub_jwks_url=url)

    assert identity(checker, signed()).address == "@(browser/ui)"
    assert identity(checker, signed(rsa_key(), "RS256")).address == "@(browser/ui)"  # the file is asked before the network
    assert refusal(checker, signed(rsa_key("second"), "RS256")).reason == "keys_unavailable"
    asyncio.run(checker.close())


@pytest.mark.server  # a second process
def test_a_hub_without_tokens_does_without_cryptography() -> None:
    program = "import sys, penstock.hub.tokens; sys.exit('jwt' in sys.modules or 'cryptography' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_token_signed_with_the_secret_lets_its_actor_in(clock: ManualClock, secret: Path) -> None:
    found = identity(verifier(clock, hub_jwt_secret_file=secret), signed(publish=["orders/#"]))

    assert (found.address, found.publish) == ("@(browser/ui)", ("orders/#",))
    assert found.expires_at == (NOW + 3_600) * SECOND


def test_a_token_signed_with_the_private_key_lets_its_actor_in(clock: ManualClock, pem: Path) -> None:
    for kid in (None, "whatever"):
        assert identity(verifier(clock, hub_jwt_key_file=pem), signed(rsa_key(), "RS256", kid)).address == "@(browser/ui)"


def test_either_of_two_keys_lets_in(clock: ManualClock, secret: Path, pem: Path) -> None:
    both = verifier(clock, hub_jwt_secret_file=secret, hub_jwt_key_file=pem)

    assert identity(both, signed()).address == identity(both, signed(rsa_key(), "RS256")).address == "@(browser/ui)"


def test_the_word_of_http_may_stand_before_a_token(clock: ManualClock, secret: Path, subtests: pytest.Subtests) -> None:
    for word in ("Bearer ", "bearer ", "BEARER ", " bearer   ", "", "  "):
        with subtests.test(word=word):
            assert identity(verifier(clock, hub_jwt_secret_file=secret), f"{word}{signed()} ").address == "@(browser/ui)"


def test_the_claim_of_a_client_does_not_count_beside_its_token(clock: ManualClock, secret: Path) -> None:
    found = asyncio.run(verifier(clock, hub_jwt_secret_file=secret).verify(signed(), "@(service/billing)"))

    assert found.address == "@(browser/ui)"


def test_claims_are_checked_by_the_settings(clock: ManualClock, secret: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"hub_jwt_issuer": "https://login.example"}, {}, "wrong_issuer"),
        ({"hub_jwt_audience": "hub"}, {"aud": "other"}, "wrong_audience"),
        ({"hub_jwt_max_age": 60}, {"iat": NOW - 90}, "token_too_old"),
        ({}, {"exp": NOW - 31}, "expired_token"),
        ({}, {"actorId": "nobody"}, "wrong_actor"),
    ]
    for settings, changes, reason in rows:
        with subtests.test(settings=settings, changes=changes):
            assert refusal(verifier(clock, hub_jwt_secret_file=secret, **settings), signed(**changes)).reason == reason


def test_a_token_ends_when_its_time_is_over(clock: ManualClock, secret: Path) -> None:
    checker, token = verifier(clock, hub_jwt_secret_file=secret), signed(exp=NOW + 60)
    clock.advance(89)
    assert identity(checker, token).address == "@(browser/ui)"
    clock.advance(1)
    assert refusal(checker, token).reason == "expired_token"


HEAD, BODY, SIGN = signed().split(".")
OTHER_BODY = signed(actorId="service/admin").split(".")[1]
OTHER_SIGN = signed(b"another secret that nobody has told the hub").split(".")[2]

# What each is, the token, and the reason of its refusal by a hub that knows a secret and a public key.
BAD: dict[str, tuple[Callable[[], str | None], str]] = {
    "none": (lambda: None, "missing_token"),
    "empty": (lambda: "", "missing_token"),
    "spaces": (lambda: " \t\n", "missing_token"),
    "the word alone": (lambda: "Bearer", "missing_token"),
    "the word and spaces": (lambda: "Bearer   ", "missing_token"),
    "a word": (lambda: "hello", "malformed_token"),
    "a token of penstock": (lambda: "penstock_0123456789ab_abcdefghijkl", "malformed_token"),
    "dots": (lambda: "..", "malformed_token"),
    "two parts": (lambda: f"{HEAD}.{BODY}", "malformed_token"),
    "four parts": (lambda: f"{HEAD}.{BODY}.{SIGN}.{SIGN}", "malformed_token"),
    "another scheme": (lambda: f"Basic {HEAD}.{BODY}.{SIGN}", "malformed_token"),
    "spaces inside": (lambda: f"{HEAD}. {BODY}.{SIGN}", "malformed_token"),
    "no base64": (lambda: f"{HEAD}.!!!.{SIGN}", "malformed_token"),
    "a NUL": (lambda: f"{HEAD}\0.{BODY}.{SIGN}", "malformed_token"),
    "a lone surrogate": (lambda: f"{HEAD}\ud800.{BODY}.{SIGN}", "malformed_token"),
    "other letters": (lambda: f"\u00fc.{BODY}.{SIGN}", "malformed_token"),
    "too long": (lambda: f"{HEAD}.{'A' * MAX_TOKEN}.{SIGN}", "malformed_token"),
    "a header that is no JSON": (lambda: f"{encoded(b'{')}.{BODY}.{SIGN}", "malformed_token"),
    "a header that is no object": (lambda: forged([1], claims(), SECRET), "malformed_token"),
    "a header that is deep": (lambda: forged(b"[" * 9_000, b"{}", SECRET), "malformed_token"),
    "no algorithm": (lambda: forged({}, claims(), SECRET), "malformed_token"),
    "an algorithm that is no text": (lambda: forged({"alg": ["HS256"]}, claims(), SECRET), "malformed_token"),
    "a key id that is no text": (lambda: forged({**RIGHT, "kid": 1}, claims(), SECRET), "malformed_token"),
    "something critical": (lambda: forged({**RIGHT, "crit": ["exp"], "exp": 1}, claims(), SECRET), "malformed_token"),
    "unsigned": (lambda: forged({"alg": "none"}, claims()), "wrong_algorithm"),
    "unsigned, in capitals": (lambda: forged({"alg": "NONE"}, claims()), "wrong_algorithm"),
    "said to be unsigned": (lambda: forged({"alg": "none"}, claims(), SECRET), "wrong_algorithm"),
    "an empty algorithm": (lambda: forged({"alg": ""}, claims(), SECRET), "wrong_algorithm"),
    "a small letter": (lambda: forged({"alg": "hs256"}, claims(), SECRET), "wrong_algorithm"),
    "a longer digest": (lambda: signed(SECRET * 2, "HS512"), "wrong_algorithm"),
    "other padding": (lambda: signed(rsa_key(), "PS256"), "wrong_algorithm"),
    "a key of another kind": (lambda: signed(ec_key(), "ES256"), "wrong_algorithm"),
    "no signature": (lambda: f"{HEAD}.{BODY}.", "bad_signature"),
    "another signature": (lambda: f"{HEAD}.{BODY}.{OTHER_SIGN}", "bad_signature"),
    "a cut signature": (lambda: f"{HEAD}.{BODY}.{SIGN[:40]}", "bad_signature"),
    "another body": (lambda: f"{HEAD}.{OTHER_BODY}.{SIGN}", "bad_signature"),
    "another secret": (lambda: signed(b"another secret that nobody has told the hub"), "bad_signature"),
    "another key": (lambda: signed(rsa_key("second"), "RS256"), "bad_signature"),
    "the public key as a secret": (lambda: forged(RIGHT, claims(), public_pem(rsa_key())), "bad_signature"),
    "the public key as a secret, stripped": (lambda: forged(RIGHT, claims(), public_pem(rsa_key()).strip()), "bad_signature"),
    "the secret where a key belongs": (lambda: forged({"alg": "RS256"}, claims(), SECRET), "bad_signature"),
    "a key of its own": (
        lambda: forged({**RIGHT, "jwk": {"kty": "oct", "k": encoded(b"mine" * 8)}}, claims(), b"mine" * 8),
        "bad_signature",
    ),
    "a detached body": (lambda: forged({**RIGHT, "b64": False, "crit": ["b64"]}, b"", SECRET), "bad_signature"),
    "no claims": (lambda: forged(RIGHT, b"", SECRET), "malformed_claims"),
    "claims that are a list": (lambda: forged(RIGHT, [claims()], SECRET), "malformed_claims"),
}


def test_a_bad_token_lets_nobody_in(clock: ManualClock, secret: Path, pem: Path, subtests: pytest.Subtests) -> None:
    for what, (token, reason) in BAD.items():
        with subtests.test(what=what):
            found = refusal(verifier(clock, hub_jwt_secret_file=secret, hub_jwt_key_file=pem), token())

            assert (found.reason, found.retryable) == (reason, False)


def test_the_table_forges_well(clock: ManualClock, secret: Path) -> None:
    token = forged({**RIGHT, "kid": "any"}, claims(), SECRET)

    assert identity(verifier(clock, hub_jwt_secret_file=secret), token).address == "@(browser/ui)"
    assert header_of(token) is not None


def test_a_key_opens_nothing_of_another_algorithm_than_its_own() -> None:
    pem = public_pem(rsa_key())

    assert public_key(pem).opened(signed(rsa_key(), "RS256")) is not None
    assert public_key(pem).opened(forged(RIGHT, claims(), pem)) is None
    assert public_key(pem).opened(signed(rsa_key(), "RS512")) is None
    assert public_key(pem).opened(forged({"alg": "none"}, claims())) is None
    assert secret_key(SECRET).opened(signed(SECRET * 2, "HS512")) is None
    assert secret_key(SECRET).opened(forged({"alg": "RS256"}, claims(), SECRET)) is None


def test_a_hub_says_which_algorithms_it_takes(clock: ManualClock, pem: Path) -> None:
    found = refusal(verifier(clock, hub_jwt_key_file=pem), signed())

    assert found.message == "the token is not signed by RS256"
    assert found.details["algorithms"] == ["RS256"]


# The option, what its file holds, and what the start is told.
BAD_FILES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "an empty secret": ("hub_jwt_secret_file", lambda: b"", "it holds 0 bytes, and a secret needs 32 at least"),
    "a short secret": ("hub_jwt_secret_file", lambda: b"\n" + b"x" * 31 + b"\n\n", "it holds 31 bytes"),
    "a public key for a secret": ("hub_jwt_secret_file", lambda: public_pem(rsa_key()), "which is no secret"),
    "an empty key": ("hub_jwt_key_file", lambda: b"", "no RSA public key in PEM"),
    "a secret for a key": ("hub_jwt_key_file", lambda: SECRET, "no RSA public key in PEM"),
    "a private key": ("hub_jwt_key_file", lambda: private_pem(rsa_key()), "a hub needs the public one"),
    "an elliptic key": ("hub_jwt_key_file", lambda: public_pem(ec_key()), "no RSA public key in PEM"),
    "a short key": ("hub_jwt_key_file", lambda: public_pem(rsa_key("short", 1024)), "its key has 1024 bits, expected 2048"),
    "a broken key": ("hub_jwt_key_file", lambda: public_pem(rsa_key())[:-60], "no RSA public key in PEM"),
}


def test_a_hub_with_a_file_of_no_use_does_not_start(clock: ManualClock, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for what, (option, content, said) in BAD_FILES.items():
        with subtests.test(what=what):
            path = written(tmp_path / "file", content())

            with pytest.raises(FailedPrecondition, match=said) as caught:
                verifier(clock, **{option: path})
            assert str(path) in str(caught.value)
            assert not any(len(line) > 20 and line.decode() in str(caught.value) for line in content().splitlines())


def test_a_file_that_is_missing_or_that_others_can_write_is_told_at_the_start(clock: ManualClock, secret: Path) -> None:
    secret.chmod(0o620)
    with pytest.raises(FailedPrecondition, match="can be written by other users") as caught:
        verifier(clock, hub_jwt_secret_file=secret)
    assert caught.value.hint == "let only its owner: chmod 600"
    secret.unlink()
    with pytest.raises(FailedPrecondition, match="No such file"):
        verifier(clock, hub_jwt_secret_file=secret)


def test_space_around_a_secret_is_no_part_of_it(clock: ManualClock, tmp_path: Path) -> None:
    path = written(tmp_path / "secret", b" \n" + SECRET + b"\r\n")

    assert identity(verifier(clock, hub_jwt_secret_file=path), signed()).address == "@(browser/ui)"


def test_a_new_secret_counts_within_a_second_and_the_old_one_no_more(clock: ManualClock, secret: Path) -> None:
    checker = verifier(clock, hub_jwt_secret_file=secret)
    new = b"the second secret, for the first was told to somebody"
    written(secret.with_name("new"), new).replace(secret)

    assert identity(checker, signed()).address == "@(browser/ui)"  # nobody has looked yet
    clock.advance(1)
    assert refusal(checker, signed()).reason == "bad_signature"
    assert identity(checker, signed(new)).address == "@(browser/ui)"


def test_a_file_that_goes_wrong_lets_nobody_in_until_it_is_right(
    clock: ManualClock, secret: Path, pem: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checker = verifier(clock, hub_jwt_secret_file=secret, hub_jwt_key_file=pem)
    secret.write_bytes(b"short")
    with caplog.at_level(logging.INFO, "penstock.hub"):
        for _ in range(3):
            clock.advance(1)
            found = refusal(checker, signed())
            assert (found.reason, found.retryable) == ("keys_unavailable", True)
            assert str(secret) not in f"{found.message}{found.resolution}{found.details}"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert identity(checker, signed(rsa_key(), "RS256")).address == "@(browser/ui)"

    written(secret, SECRET)
    clock.advance(1)
    assert identity(checker, signed()).address == "@(browser/ui)"
    secret.unlink()
    clock.advance(1)
    assert refusal(checker, signed()).reason == "keys_unavailable"


def test_a_file_that_did_not_change_is_not_read_again(clock: ManualClock, secret: Path) -> None:
    checker = verifier(clock, hub_jwt_secret_file=secret)
    before = secret.stat()
    secret.write_bytes(SECRET[:-1] + b"!")
    os.utime(secret, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.advance(1)

    assert identity(checker, signed()).address == "@(browser/ui)"


def test_secrets_are_not_in_what_is_shown_of_a_key(clock: ManualClock, secret: Path) -> None:
    async def shown() -> str:
        (source,) = verifier(clock, hub_jwt_secret_file=secret)._sources
        return repr(await source.find("HS256", None))

    assert asyncio.run(shown()) == "Key(algorithm='HS256')"
