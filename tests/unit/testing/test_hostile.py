"""Hostile targets do what their names say: seen by a client that reads bytes and believes nothing."""

import asyncio
import gzip
import json
import re
import ssl

import pytest

from penstock.testing.hostile import BOMB, HOSTILE, authority, gzip_bomb
from penstock.testing.target import Behaviour, Target

ENOUGH = 150_000
"""Who has sent so much has shown what it does."""

OPEN = """never answers|accepts and says nothing|slow headers|slow body|drips for ever|drips headers for ever
stalls in the headers|stalls in the body|switching protocols|length too short|content without being allowed one|gzip bomb
TLS where plain text is spoken|plain text where TLS is spoken|silence where TLS is spoken|answers before it was asked
redirect loop|redirect to metadata|a second answer|a second answer later|deeply nested JSON|deeply nested answer
deeply nested where nobody looks|huge delaySeconds|negative delaySeconds|JSON that is not UTF-8|huge Retry-After
Retry-After in the far future|Retry-After that is nonsense"""
RESET = "resets at once|resets instead of answering|reset in the headers|reset in the body|answers and resets"
ENDLESS = """endless chunked body|endless small chunks|endless body of a huge length|endless body without a length|endless headers
endless trailers|endless chunk extension|endless reason|endless empty lines|endless 100 Continue|one enormous header|100 MB
garbage for ever"""
SILENT = """never answers|accepts and says nothing|closes at once|resets at once|closes instead of answering
resets instead of answering|silence where TLS is spoken"""
NO_HTTP = """endless empty lines|bad status line|HTTP/0.9|HTTP/3.0|HTTP/2 to who speaks HTTP/1.1|garbage|garbage for ever
TLS where plain text is spoken"""


def names(text: str) -> set[str]:
    return {name for line in text.splitlines() for name in line.split("|")}


async def end_of(port: int, path: str) -> tuple[str, bytes]:
    """How a call ends, and what came."""
    got, writer = bytearray(), None
    try:
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" % path.encode())
            while len(got) < ENOUGH:
                data = await reader.read(ENOUGH)
                if not data:
                    return "closed", bytes(got)
                got += data
            return "endless", bytes(got)
    except TimeoutError:
        return "open", bytes(got)
    except ConnectionResetError:
        return "reset", bytes(got)
    finally:
        if writer is not None:
            writer.transport.abort()


async def all_ends() -> dict[str, tuple[str, bytes]]:
    """One target for those that answer requests, and one for each that does not wait for any."""
    shared = {name: one for name, one in HOSTILE.items() if one.greet is None and one.tls is None}
    paths = {name: f"/{number}" for number, name in enumerate(shared)}
    alone = {name: Target(one) for name, one in HOSTILE.items() if one.greet is not None}
    with Target({paths[name]: one for name, one in shared.items()}) as target:
        for other in alone.values():
            other.start()
        calls = {name: end_of(target.port, path) for name, path in paths.items()}
        calls |= {name: end_of(other.port, "/") for name, other in alone.items()}
        ends = await asyncio.gather(*calls.values())
        for other in alone.values():
            other.stop()
    return dict(zip(calls, ends, strict=True))


Seen = dict[str, tuple[str, bytes]]


@pytest.fixture(scope="module")
def seen() -> Seen:
    return asyncio.run(all_ends())


def test_each_does_what_its_name_says(seen: Seen) -> None:
    ends = {name: end for name, (end, _) in seen.items()}
    assert ends.pop("closes at once") in {"closed", "reset"}  # what was sent into it is lost: the system may say so
    wanted = dict.fromkeys(ends, "closed")
    for kind, text in (("open", OPEN), ("reset", RESET), ("endless", ENDLESS)):
        wanted.update(dict.fromkeys(names(text), kind))
    assert ends == wanted
    starts = {name: got[:7] for name, (_, got) in seen.items()}
    assert {name for name, start in starts.items() if not start} == names(SILENT)
    others = starts.keys() - names(SILENT) - names(NO_HTTP)
    assert {name for name in others if not b"HTTP/1.".startswith(starts[name])} == set()


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 28
    assert names(OPEN) | names(RESET) | names(ENDLESS) | names(SILENT) | names(NO_HTTP) <= HOSTILE.keys()


def test_the_bomb_is_small_and_becomes_large() -> None:
    assert len(gzip_bomb()) < 64 * 1024
    assert gzip.decompress(gzip_bomb()) == bytes(BOMB)


def test_the_certificates_fail_for_the_reason_that_they_name() -> None:
    reasons = {
        "certificate signed by itself": "self-signed certificate",
        "certificate that has run out": "certificate has expired",
        "certificate of another host": "certificate is not valid for '127.0.0.1'",
    }
    assert reasons.keys() == {name for name, one in HOSTILE.items() if one.tls is not None}

    async def refusal(behaviour: Behaviour) -> str:
        with Target(behaviour) as target:
            try:
                await asyncio.open_connection("127.0.0.1", target.port, ssl=authority().client())
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            return "none"

    for name, reason in reasons.items():
        assert reason in asyncio.run(refusal(HOSTILE[name])).replace("self signed", "self-signed").replace(
            "IP address mismatch, ", ""
        )


def test_what_they_say_is_bad_in_the_way_that_is_named(seen: Seen) -> None:
    head, _, _ = seen["redirect loop"][1].partition(b"\r\n\r\n")
    assert re.search(rb"^HTTP/1.1 302 (?s:.*)\r\nLocation: http://127\.0\.0\.1:\d+/\d+\r\n", head)
    assert json.loads(seen["huge delaySeconds"][1].partition(b"\r\n\r\n")[2]) == {"ack": False, "delaySeconds": 10**400}
    assert seen["deeply nested JSON"][1].partition(b"\r\n\r\n")[2] == b"[" * 60_000
