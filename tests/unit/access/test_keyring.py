"""The life of a token, the file it is kept in, and what a file that cannot be trusted means."""

import hashlib
import json
import logging
import os
import stat
import string
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.access import Action, Keyring, Right, Verb
from penstock.access.core.token import Secret
from penstock.access.keyring import UNKNOWN_INTERVAL
from penstock.durations import DAY, SECOND
from penstock.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PenstockError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

NOW = 1_700_000_000 * SECOND


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tokens.json"


def refusal(keyring: Keyring, secret: str | None, now: int = NOW) -> str:
    with pytest.raises(Unauthenticated) as caught:
        keyring.authenticate(secret, now)
    return caught.value.problem


def id_of(secret: str) -> str:
    return secret.split("_")[1]


def test_a_secret_tells_who_calls(path: Path) -> None:
    keyring = Keyring(path)
    secret = keyring.create("ci", NOW, project="acme", verbs=[Verb.PUBLISH], patterns=["orders-*"])

    principal = keyring.authenticate(secret, NOW)
    assert (principal.token_id, principal.project) == (id_of(secret), "acme")
    assert principal.may(Verb.PUBLISH, "acme", "orders-eu")
    assert not principal.may(Verb.CONSUME, "acme", "orders-eu")


def test_a_token_may_do_everything_unless_it_is_told_less(path: Path) -> None:
    keyring = Keyring(path)
    principal = keyring.authenticate(keyring.create("admin", NOW), NOW)

    assert all(principal.may(verb, "any", "thing") for verb in Verb)


def as_made_before(path: Path, *token_ids: str) -> None:
    """Write tokens as they were written when there was no verb `metrics`."""
    content = json.loads(path.read_bytes())
    for token in content["tokens"]:
        if token["id"] in token_ids:
            del token["rules"]
    path.write_text(json.dumps(content))


def test_a_token_made_before_keeps_what_its_verbs_included_with_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    rows: list[tuple[set[Verb], set[Action]]] = [
        ({Verb.READ}, {Right.SEE, Right.HOLD, Right.HOLD_EVENTS}),
        ({Verb.MANAGE}, {Right.PUSH}),
        ({Verb.PUBLISH}, set()),
        ({Verb.READ, Verb.CONSUME}, set()),
    ]
    for verbs, kept in rows:
        with subtests.test(verbs=verbs):
            caplog.clear()
            maker = Keyring(path)
            old, new = (maker.create("prometheus", NOW, verbs=verbs) for _ in range(2))
            as_made_before(path, id_of(old))
            keyring = Keyring(path)

            today = keyring.authenticate(new, NOW).verbs
            assert caplog.text == ""
            assert keyring.authenticate(old, NOW).verbs == today | kept
            maker.create("other", NOW + SECOND)  # the file is read and written again, and the old token stays an old one
            assert keyring.authenticate(old, NOW + 5 * SECOND).verbs == today | kept
            assert caplog.text.count(id_of(old)) == (2 if kept else 0), "once in one warning, which names it twice"
            assert caplog.text.count("--verbs metrics for Prometheus") == bool(kept)
            assert old not in caplog.text


def test_a_token_ends_at_its_instant(path: Path) -> None:
    keyring = Keyring(path)
    secret = keyring.create("short", NOW, expires=NOW + DAY)

    keyring.authenticate(secret, NOW + DAY - 1)
    assert refusal(keyring, secret, NOW + DAY) == "the token has expired"


def test_an_expired_token_with_a_wrong_secret_is_not_said_to_have_expired(path: Path) -> None:
    keyring = Keyring(path)
    secret = keyring.create("short", NOW, expires=NOW + DAY)
    guess = f"pk_{id_of(secret)}_{'A' * 43}"

    assert refusal(keyring, guess, NOW + 2 * DAY) == "the token is unknown or was revoked"


def test_another_keyring_sees_a_new_token_almost_at_once_and_a_revocation_within_a_second(path: Path) -> None:
    server, command = Keyring(path), Keyring(path)
    assert refusal(server, None, NOW) == "no token was sent"
    secret = command.create("ci", NOW)

    assert refusal(server, secret, NOW + UNKNOWN_INTERVAL - 1) == "the token is unknown or was revoked"
    seen = NOW + UNKNOWN_INTERVAL
    server.authenticate(secret, seen)
    command.revoke(id_of(secret))
    server.authenticate(secret, seen + SECOND - 1)
    assert refusal(server, secret, seen + SECOND) == "the token is unknown or was revoked"


def test_a_clock_that_is_set_back_does_not_keep_a_revoked_token_alive(path: Path) -> None:
    server, command = Keyring(path), Keyring(path)
    secret = command.create("ci", NOW)
    server.authenticate(secret, NOW + DAY)
    command.revoke(id_of(secret))

    assert refusal(server, secret, NOW)


def test_a_revoked_token_is_gone_and_the_others_are_not(path: Path) -> None:
    keyring = Keyring(path)
    first, second = keyring.create("first", NOW), keyring.create("second", NOW + 1)
    keyring.revoke(id_of(first))

    assert [token.name for token in keyring.list()] == ["second"]
    keyring.authenticate(second, NOW)
    with pytest.raises(NotFound):
        keyring.revoke(id_of(first))


def test_what_is_no_token_is_refused_and_not_repeated(path: Path, subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "",
        "Bearer x",
        "pk_",
        "pk__",
        "pk_a0b61e67b45f_",
        f"pk_a0b61e67b45f_{'é' * 43}",
        "pk_" + "a" * 1_000_000,
        "\0",
        "pk_a0b61e67b45f_" + "A" * 44,
        "pk_A0B61E67B45F_" + "A" * 43,
    ]
    for secret in rows:
        with subtests.test(secret=secret[:60]):
            assert len(refusal(Keyring(path), secret)) < 60


def test_no_two_secrets_are_alike_and_only_a_hash_is_kept(path: Path) -> None:
    keyring = Keyring(path)
    secrets = {keyring.create(f"number {number}", NOW) for number in range(20)}
    assert len({id_of(secret) for secret in secrets}) == 20

    stored = path.read_text()
    for secret in secrets:
        random = secret.split("_", 2)[2]
        assert len(random) == 43
        assert random not in stored
        assert hashlib.sha256(random.encode()).hexdigest() in stored
        assert random not in f"{Secret.parse(secret)!r} {keyring!r} {keyring.list()!r} {keyring.authenticate(secret, NOW)!r}"
    assert json.loads(stored)["version"] == 1


def test_a_right_and_a_wrong_secret_are_compared_in_constant_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring(path)
    secret = keyring.create("ci", NOW)
    compared: list[tuple[str, str]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("hmac.compare_digest", compare)
    keyring.authenticate(secret, NOW)
    refusal(keyring, secret[:-1] + ("A" if secret[-1] != "A" else "B"))
    refusal(keyring, f"pk_000000000000_{'A' * 43}")

    assert [(len(left), len(right)) for left, right in compared] == [(64, 64)] * 3  # also for a token that nobody knows


def test_the_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for umask in (0o000, 0o022, 0o777):
        with subtests.test(umask=umask):
            path = tmp_path / oct(umask) / "tokens.json"
            path.parent.mkdir()
            before = os.umask(umask & 0o077)  # an owner who cannot read their own files is not served
            try:
                keyring = Keyring(path)
                keyring.create("ci", NOW)
                keyring.create("another", NOW)
            finally:
                os.umask(before)

            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert sorted(entry.name for entry in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_a_file_that_others_may_write_is_not_trusted(path: Path) -> None:
    keyring = Keyring(path)
    secret = keyring.create("ci", NOW)
    path.chmod(0o620)

    with pytest.raises(FailedPrecondition, match="can be written by other users"):
        Keyring(path)
    path.chmod(0o640)
    Keyring(path).authenticate(secret, NOW)


def test_a_link_to_the_file_stays_a_link(path: Path, tmp_path: Path) -> None:
    Keyring(path).create("ci", NOW)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    Keyring(link).create("another", NOW)

    assert link.is_symlink()
    assert len(Keyring(path).list()) == 2


def test_what_a_writer_that_died_left_behind_is_no_obstacle(path: Path) -> None:
    path.parent.mkdir()
    path.with_name("tokens.json.new").write_text("half a f")
    keyring = Keyring(path)

    keyring.authenticate(keyring.create("ci", NOW), NOW)


def test_no_file_means_that_nobody_may(path: Path) -> None:
    keyring = Keyring(path)
    secret = keyring.create("ci", NOW)
    path.unlink()

    assert refusal(Keyring(path), secret)
    assert refusal(keyring, secret, NOW + SECOND)
    assert keyring.list() == []


GOOD = {
    "id": "a0b61e67b45f",
    "name": "ci",
    "digest": "0" * 64,
    "project": None,
    "verbs": ["read"],
    "patterns": ["*"],
    "created": NOW,
    "expires": None,
}
DAMAGED: dict[str, object] = {
    "empty": "",
    "half": '{"version": 1, "tok',
    "null": "null",
    "a list": [],
    "an empty object": {},
    "no tokens": {"version": 1},
    "an unknown version": {"version": 2, "tokens": []},
    "an unknown field": {"version": 1, "tokens": [], "everybody": True},
    "an unknown field of a token": {"version": 1, "tokens": [{**GOOD, "admin": True}]},
    "twice the same": {"version": 1, "tokens": [GOOD, GOOD]},
    "nested beyond reason": "[" * 100_000,
    **{
        f"{field} is {value!r}"[:40]: {"version": 1, "tokens": [{**GOOD, field: value}]}
        for field, value in [
            ("id", "x"),
            ("id", 1),
            ("name", ""),
            ("name", "\x1b[31m"),
            ("digest", ""),
            ("digest", "0" * 63),
            ("digest", None),
            ("project", ""),
            ("project", "a/b"),
            ("verbs", []),
            ("verbs", ["everything"]),
            ("verbs", "read"),
            ("patterns", []),
            ("patterns", [""]),
            ("patterns", "*"),
            ("created", -1),
            ("created", 1 << 80),
            ("expires", 0),
            ("expires", "never"),
            ("expires", 1.5),
        ]
    },
}


def spoil(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)


def test_a_damaged_file_is_an_error_at_the_start_and_is_never_written_over(path: Path, subtests: pytest.Subtests) -> None:
    keyring = Keyring(path)
    for title, content in DAMAGED.items():
        with subtests.test(title):
            spoil(path, content)
            before = path.read_bytes()

            with pytest.raises(DataLoss, match="is damaged") as caught:
                Keyring(path)
            assert "no token is accepted" in str(caught.value.hint)
            for change in (lambda: keyring.create("ci", NOW), lambda: keyring.revoke("a0b61e67b45f"), keyring.list):
                with pytest.raises(DataLoss):
                    change()
            assert path.read_bytes() == before


def test_a_file_that_is_damaged_under_a_running_server_lets_nobody_in_until_it_is_whole(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyring = Keyring(path)
    secret = keyring.create("ci", NOW)
    keyring.authenticate(secret, NOW)
    good = path.read_text()
    spoil(path, good[:-5])

    with caplog.at_level(logging.ERROR, "penstock.access"):
        for seconds in range(1, 5):
            for offered in (secret, None, "pk_"):
                with pytest.raises(Unavailable) as caught:
                    keyring.authenticate(offered, NOW + seconds * SECOND)
                assert str(path) not in f"{caught.value} {caught.value.hint}"  # callers learn nothing about the machine
    assert len(caplog.records) == 1

    spoil(path, good)
    keyring.authenticate(secret, NOW + 5 * SECOND)


WHOLE = json.dumps({"version": 1, "tokens": [GOOD]}, indent=2).encode()
URL_SAFE = string.ascii_letters + string.digits + "_-"


@given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
    length=st.just(len(WHOLE)) | st.integers(0, len(WHOLE)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # each example writes the whole file anew
def test_a_file_with_changed_bytes_is_refused_or_lets_in_no_stranger(
    path: Path, changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(WHOLE)
    for at, byte in changes:
        content[at] = byte
    spoil(path, "")
    path.write_bytes(content[:length])
    try:
        keyring = Keyring(path)
    except DataLoss:
        return
    for offered in (f"pk_{GOOD['id']}_{'A' * 43}", None, ""):
        assert refusal(keyring, offered)


@given(
    offered=st.text(max_size=80)
    | st.builds("pk_{}_{}".format, st.sampled_from([GOOD["id"], "0" * 12]), st.text(URL_SAFE, min_size=43, max_size=43))
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the file is only read
def test_no_made_up_text_gets_in(path: Path, offered: str) -> None:
    spoil(path, WHOLE.decode())

    assert refusal(Keyring(path), offered)


def test_a_token_that_makes_no_sense_is_not_made(path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, object]]] = [
        ("", {}),
        ("x" * 101, {}),
        ("two\nlines", {}),
        ("ci", {"project": "a/b"}),
        ("ci", {"verbs": []}),
        ("ci", {"patterns": []}),
        ("ci", {"patterns": ["a b"]}),
        ("ci", {"patterns": ["x" * 256]}),
        ("ci", {"expires": NOW}),
        ("ci", {"expires": 1 << 80}),
    ]
    for name, options in rows:
        with subtests.test(name=name, options=options):
            keyring = Keyring(path)
            with pytest.raises(InvalidArgument):
                keyring.create(name, NOW, **options)  # type: ignore[arg-type]  # what a caller without a type checker may pass
            assert not path.exists()


def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    start = threading.Barrier(4)

    def make_some() -> None:
        start.wait(30)
        for number in range(10):
            Keyring(path).create(f"token {number}", NOW)  # a keyring of its own, as another process has

    with ThreadPoolExecutor(4) as pool:
        for writer in [pool.submit(make_some) for _ in range(4)]:
            writer.result(60)

    assert len(Keyring(path).list()) == 40


def test_there_is_a_limit_and_a_full_file_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.access.keyring.MAX_TOKENS", 2)
    keyring = Keyring(path)
    keyring.create("one", NOW)
    keyring.create("two", NOW)

    with pytest.raises(ResourceExhausted, match="2 tokens already"):
        keyring.create("three", NOW)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    keyring = Keyring(folder / "tokens.json")
    folder.touch()

    with pytest.raises(FailedPrecondition, match="cannot write the token file"):
        keyring.create("ci", NOW)


def test_a_folder_in_the_place_of_the_file_is_told(path: Path) -> None:
    path.mkdir(parents=True)

    with pytest.raises(PenstockError, match="cannot read the token file"):
        Keyring(path)
