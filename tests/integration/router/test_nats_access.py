"""Who may connect to a NATS server, and what is said of addresses and answers that are wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.sources.nats import NatsSource
from penstock.router.sources.nats_connection import NatsAddress, parse_address
from penstock.router.sources.nats_keys import USER, encoded, signed
from tests.integration.router.certificate import CertificateFiles
from tests.integration.router.nats_server import NatsServer
from tests.ports import free_port
from tests.together import play_together


def connects(uri: str, *, runs: Callable[[Coroutine[None, None, bool]], bool] = asyncio.run) -> bool:
    async def run() -> bool:
        source = NatsSource(QueueConfig("q", uri), SystemClock())
        await source.start()
        try:
            return source.is_healthy
        finally:
            await source.stop()

    return runs(run())


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_is_read(subtests: pytest.Subtests) -> None:
    for uri, found in [
        ("nats://h/S/C", NatsAddress((("h", 4222),), "S", "C")),
        ("nats://h:1/S/C?subject=orders.*.>", NatsAddress((("h", 1),), "S", "C", "orders.*.>")),
        ("nats://h:1,g,[::1]:3/S/C/", NatsAddress((("h", 1), ("g", 4222), ("::1", 3)), "S", "C")),
        ("nats://u:p%40w:x@h/S/C", NatsAddress((("h", 4222),), "S", "C", user="u", password="p@w:x")),
        ("nats://t%2Fk@h/S/C", NatsAddress((("h", 4222),), "S", "C", token="t/k")),
        ("nats://h/S/C?nkey=seed", NatsAddress((("h", 4222),), "S", "C", nkey="seed")),
        ("nats://h/S/C?creds=a.creds", NatsAddress((("h", 4222),), "S", "C", creds="a.creds")),
        ("tls://h/S/C?ca=some.pem", NatsAddress((("h", 4222),), "S", "C", is_tls=True, ca="some.pem")),
    ]:
        with subtests.test(uri=uri):
            assert parse_address(uri) == found


def test_a_wrong_address_is_refused_and_shows_no_secret(subtests: pytest.Subtests) -> None:
    for uri in [
        "",
        "nats:",
        "nats://",
        "nats:///S/C",
        "nats://hidden@/S/C",
        "nats://h",
        "nats://h/",
        "nats://h/S",
        "nats://h/S/",
        "nats://h//C",
        "nats://h/S/C/D",
        "nats://h/S.T/C",
        "nats://h/S/C*",
        "nats://h/S%2FT/C",
        "nats://h/S%20T/C",
        "nats://h/S%0D%0APING/C",
        "nats://h/S/C%00",
        "nats://h/S/>",
        "nats://h/S/" + "C" * 256,
        "nats://u:hidden@h:x/S/C",
        "nats://u:hidden@h:0/S/C",
        "nats://u:hidden@h:70000/S/C",
        "nats://u:hidden@h,,g/S/C",
        "nats://u:hidden@[::1/S/C",
        "nats://u:hidden@h/S/C?subject=",
        "nats://u:hidden@h/S/C?nkey=file",
        "nats://h/S/C?nkey=hidden&creds=hidden",
        "nats://u:hidden@h/S/C?subject=a..b",
        "nats://u:hidden@h/S/C?subject=a.>.b",
        "nats://u:hidden@h/S/C?subject=a%20b",
        "nats://u:hidden@h/S/C?subject=a%0D%0Ab",
        "nats://u:hidden@h/S/C?durable=x",
        "nats://u:hidden@h/S/C#x",
        "http://u:hidden@h/S/C",
    ]:
        with subtests.test(uri=uri):
            with pytest.raises(InvalidArgument) as refused:
                NatsSource(QueueConfig("q", uri), SystemClock())
            assert "hidden" not in f"{refused.value} {refused.value.hint}"


def test_an_address_shows_no_secret() -> None:
    assert repr(parse_address("nats://u:hidden@h:1,[::1]/S/C")) == "nats://h:1,[::1]:4222/S/C"
    assert repr(parse_address("nats://hidden@h/S/C")) == "nats://h:4222/S/C"


# ── who may connect ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_user_and_password(tmp_path: Path) -> None:
    with NatsServer(tmp_path, "--user", "u", "--pass", "p@w:x") as server:
        assert connects(f"nats://u:p%40w:x@{server.place}/S/C?subject=s")
        for who in ("", "u:hidden@", "x:p%40w:x@", "hidden@"):
            with pytest.raises(FailedPrecondition, match="refuses these credentials") as refused:
                connects(f"nats://{who}{server.place}/S/C?subject=s")
            assert "hidden" not in f"{refused.value} {refused.value.hint}"


def test_a_token(tmp_path: Path) -> None:
    with NatsServer(tmp_path, "--auth", "t/k") as server:
        assert connects(f"nats://t%2Fk@{server.place}/S/C?subject=s")
        for who in ("", "wrong@"):
            with pytest.raises(FailedPrecondition, match="refuses these credentials"):
                connects(f"nats://{who}{server.place}/S/C?subject=s")


class Key:
    """A key pair as NATS writes it: `public` (U…, A…, O…) and `seed` (SU…)."""

    def __init__(self, kind: int) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.public = encoded(bytes([kind]) + self._key.public_key().public_bytes_raw())
        self.seed = encoded(bytes([18 << 3 | kind >> 5, (kind & 31) << 3]) + self._key.private_bytes_raw())

    def jwt(self, subject: str, name: str, **nats: object) -> str:
        """A JWT about `subject`, signed by this key."""
        claims = {"jti": "x", "iat": 1_700_000_000, "iss": self.public, "sub": subject, "name": name, "nats": nats}
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
        return f"{text}.{base64.urlsafe_b64encode(self._key.sign(text.encode())).rstrip(b'=').decode()}"


def test_a_user_with_a_key(tmp_path: Path) -> None:
    user, other = Key(USER), Key(USER)
    settings, seed, wrong = tmp_path / "settings", tmp_path / "seed", tmp_path / "wrong"
    settings.write_text(f"authorization {{ users = [ {{nkey: {user.public}}} ] }}")
    seed.write_text(f"{user.seed}\n")
    wrong.write_text(other.seed)
    with NatsServer(tmp_path, "-c", str(settings)) as server:
        assert connects(f"nats://{server.place}/S/C?subject=s&nkey={seed}")
        with pytest.raises(FailedPrecondition, match="refuses these credentials"):
            connects(f"nats://{server.place}/S/C?subject=s&nkey={wrong}")


def test_a_user_with_a_file_of_credentials(tmp_path: Path) -> None:
    operator, account, user, system = Key(14 << 3), Key(0), Key(USER), Key(0)
    plain = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    limits = plain | dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    about_account = operator.jwt(account.public, "shop", type="account", version=2, limits=limits)
    about_system = operator.jwt(system.public, "SYS", type="account", version=2, limits=plain)
    about_operator = operator.jwt(operator.public, "us", type="operator", version=2)
    about_user = account.jwt(user.public, "router", type="user", version=2, subs=-1, data=-1, payload=-1, pub={}, sub={})
    settings, creds = tmp_path / "settings", tmp_path / "router.creds"
    settings.write_text(
        f"operator: {about_operator}\nsystem_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public}: {about_account}, {system.public}: {about_system} }}"
    )
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{about_user}\n------END NATS USER JWT------\n\n"
        f"************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    with NatsServer(tmp_path, "-c", str(settings)) as server:
        assert connects(f"nats://{server.place}/S/C?subject=s&creds={creds}")
        with pytest.raises(FailedPrecondition, match="refuses these credentials"):
            connects(f"nats://{server.place}/S/C?subject=s")


def test_a_key_file_that_cannot_be_used_is_named_and_its_content_is_not(tmp_path: Path, subtests: pytest.Subtests) -> None:
    user, file = Key(USER), tmp_path / "file"
    for option, content, why in [
        ("nkey", "", "damaged"),
        ("nkey", "hidden!", "not base32"),
        ("nkey", user.seed[:20] + ("B" if user.seed[20] == "A" else "A") + user.seed[21:], "damaged"),
        ("nkey", Key(0).seed, "not that of a user"),
        ("creds", user.seed, "it has no NATS USER JWT"),
        ("creds", "-----BEGIN NATS USER JWT-----\nhidden\n------END NATS USER JWT------", "it has no USER NKEY SEED"),
        ("creds", "\xff", "not text"),
    ]:
        with subtests.test(option=option, why=why):
            file.write_text(content, "latin-1")
            with pytest.raises(FailedPrecondition, match=why) as refused:
                signed("nonce", **{option: str(file)})
            assert str(file) in str(refused.value)
            assert "hidden" not in str(refused.value)
            assert user.seed not in str(refused.value)
    with pytest.raises(FailedPrecondition, match="No such file"):
        signed("nonce", nkey=str(tmp_path / "nowhere"))


def test_a_user_who_may_not_ask(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text('authorization { users = [ {user: u, password: p, permissions: { publish: ["elsewhere"] } } ] }')
    refusal = pytest.raises(FailedPrecondition, match="does not let this user ask")
    with NatsServer(tmp_path, "-c", str(settings)) as server, refusal:
        connects(f"nats://u:p@{server.place}/S/C?subject=s")


def test_a_server_without_jetstream(tmp_path: Path) -> None:
    with NatsServer(tmp_path, has_jetstream=False) as server, pytest.raises(FailedPrecondition, match="has no JetStream"):
        connects(f"nats://{server.place}/S/C?subject=s")


def test_an_account_without_jetstream(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text("accounts { A: { users: [ {user: u, password: p} ] } }")
    with NatsServer(tmp_path, "-c", str(settings)) as server, pytest.raises(FailedPrecondition, match="has no JetStream"):
        connects(f"nats://u:p@{server.place}/S/C?subject=s")


def test_nobody_there() -> None:
    with pytest.raises(Unavailable, match="no connection to NATS"):
        connects(f"nats://u:hidden@127.0.0.1:{free_port()}/S/C")
    with pytest.raises(Unavailable, match="no connection to NATS"):
        connects("nats://no-such-host.invalid/S/C")


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tls(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    with NatsServer(tmp_path, "--tls", "--tlscert", str(files.certificate), "--tlskey", str(files.key)) as server:
        for scheme in ("tls", "nats"):  # the server asks for it
            for runs in (asyncio.run, uvloop.run):
                assert connects(f"{scheme}://{server.place}/S/C?subject=s&ca={files.certificate}", runs=runs)
        with pytest.raises(Unavailable, match=r"(?i)certificate"):
            connects(f"tls://{server.place}/S/C?subject=s")
        with pytest.raises(FailedPrecondition, match="file of certificates"):
            connects(f"tls://{server.place}/S/C?subject=s&ca=no-such-file")


def test_tls_where_the_server_has_none(shared_nats: NatsServer) -> None:
    shared_nats.start()
    with pytest.raises(FailedPrecondition, match="does not speak TLS"):
        connects(f"tls://{shared_nats.place}/S/C?subject=s")


# ── what is no NATS server ───────────────────────────────────────────────────────────────────────────────────────────────────


NO_NATS = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"220 mail ready\r\n",
    b"INFO not JSON\r\n",
    b'INFO {"tls_required": "maybe"}\r\n',
    b"INFO {}\r\nMSG a 1 -5\r\n\r\n",
    b"INFO {}\r\nMSG a 1 99999999999\r\n\r\n",
    b"INFO {}\r\nMSG a 1 x\r\n\r\n",
    b"INFO {}\r\nMSG 5\r\nhello\r\n",
    b"INFO {}\r\nHMSG a 1 9 5\r\nhello\r\n",
    b"INFO {}\r\nHMSG a 1 -9 5\r\nhello\r\n",
    b"INFO {}\r\n\xff\xfe\r\n",
    b"INFO {}\r\n-ERR 'maximum connections exceeded'\r\n",
    b"x" * 3_000_000,
    b"",
]


def test_what_does_not_speak_nats_is_unavailable_and_soon(subtests: pytest.Subtests) -> None:
    async def scene(said: bytes) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            if said and b"-ERR" not in said:
                with contextlib.suppress(OSError):
                    await reader.read()  # until the other side gives up
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unavailable, match="no connection to NATS"):
                await NatsSource(QueueConfig("q", f"nats://127.0.0.1:{port}/S/C"), SystemClock()).start()

    play_together({repr(said[:40]): partial(scene, said) for said in NO_NATS}, subtests)
