"""`penstock hub token`: what it prints is what a hub with the same settings lets in."""

import asyncio
from pathlib import Path

import pytest

from penstock.cli import hub
from penstock.cli.command import Parser
from penstock.clock import SystemClock
from penstock.config import Settings
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.hub.core.identity import Identity
from penstock.hub.tokens import jwt_verifier


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hub.secret"
    path.write_text("0123456789abcdef" * 4 + "\n")
    path.chmod(0o600)
    return path


def run(*words: str) -> None:
    parser = Parser()
    hub.configure(parser)
    found = parser.parse_args(["token", *words])
    assert found.run(found) == 0


def let_in(token: str, settings: Settings) -> Identity:
    verifier = jwt_verifier(settings, SystemClock())
    assert verifier is not None
    return asyncio.run(verifier.verify(token, None))


def test_the_token_says_what_the_flags_said(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--actor browser/ui --publish orders/+ --publish chat --subscribe # --ttl 5m --audience hub"
    run("--secret-file", str(secret), *words.split())
    out, err = capsys.readouterr()

    found = let_in(out.strip(), Settings(hub_jwt_secret_file=secret, hub_jwt_audience="hub"))
    assert found.address == "@(browser/ui)"
    assert (found.publish, found.subscribe) == (("orders/+", "chat"), ("#",))
    assert found.expires_at is not None
    assert 270 < found.expires_at / SECOND - SystemClock().now() / SECOND <= 300
    assert out.count("\n") == 1
    assert "as @(browser/ui); send it" in err
    assert secret.read_text().strip() not in out + err


def test_without_flags_the_settings_count_and_all_is_allowed_for_an_hour(
    secret: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("penstock.toml").write_text('[hub]\njwt_secret_file = "hub.secret"\njwt_issuer = "me"\n')
    before = SystemClock().now()
    run("--actor", "@(browser/ui)")
    after = SystemClock().now()

    found = let_in(capsys.readouterr().out.strip(), Settings(hub_jwt_secret_file=secret, hub_jwt_issuer="me"))
    assert (found.address, found.publish, found.subscribe) == ("@(browser/ui)", None, None)
    assert found.expires_at is not None
    assert before + 3_599 * SECOND <= found.expires_at <= after + 3_630 * SECOND


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--actor Browser", "a hub would refuse this token: the token names 'Browser', expected an actor"),
        ("--actor a/b --publish #/x", "a hub would refuse this token: publish of the token has '#/x'"),
        ("--actor a/b --ttl 2d", "--ttl is '172800 s', expected 1 s or more, and no more than hub_jwt_max_age (86400 s)"),
        ("--actor a/b --ttl 0", "--ttl is '0 s'"),
    ],
)
def test_a_token_that_no_hub_would_take_is_not_made(
    words: str, said: str, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        run("--secret-file", str(secret), *words.split())
    assert said in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_missing_secret_is_told(secret: Path) -> None:
    with pytest.raises(InvalidArgument, match="no secret to sign with"):
        run("--actor", "a/b")
    secret.write_text("short")
    with pytest.raises(FailedPrecondition, match="it holds 5 bytes"):
        run("--actor", "a/b", "--secret-file", str(secret))
