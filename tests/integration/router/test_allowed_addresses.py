"""The address that a name leads to is checked at the moment of connecting, whatever the target's URL looks like."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from penstock.http.client.allowed_addresses import AllowedAddresses
from penstock.http.client.client import HttpTransport
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.options import RouterOptions
from penstock.testing.target import Target

PATIENCE = 30.0


async def call(url: str, allow: tuple[str, ...], leads_to: list[str] | None = None) -> Answer | Failure:
    """What comes of a call; `leads_to` are the addresses that the name service gives for any name."""
    loop = asyncio.get_running_loop()
    if leads_to is not None:
        looked_up = loop.getaddrinfo

        async def getaddrinfo(host: Any, port: Any, **options: Any) -> list[Any]:
            if host in leads_to:  # it is asked for an address already
                return await looked_up(host, port, **options)
            return [found for address in leads_to for found in await looked_up(address, port, type=socket.SOCK_STREAM)]

        loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]  # no name service on loopback gives such answers
    transport = HttpTransport(RouterOptions(connect_timeout=1), AllowedAddresses(allow))
    told: asyncio.Future[Answer | Failure] = loop.create_future()
    transport.post(url, b"", b"{}", 5, told.set_result)
    async with asyncio.timeout(PATIENCE):
        found = await told
    await transport.close()
    return found


def trouble(found: Answer | Failure) -> FailureKind | int:
    return found.kind if isinstance(found, Failure) else found.status


def test_no_connection_is_opened_to_what_is_inside() -> None:
    """One host for each way to write one; every address and every spelling is in tests/unit/router."""
    with Target() as target:
        for host, expected in (
            ("127.0.0.1", FailureKind.NOT_ALLOWED),
            ("LOCALHOST.", FailureKind.NOT_ALLOWED),
            ("[::ffff:127.0.0.1]", FailureKind.NOT_ALLOWED),
            ("169.254.169.254", FailureKind.NOT_ALLOWED),
            ("127.1", FailureKind.MALFORMED),  # what systems read differently is no target at all
        ):
            assert trouble(asyncio.run(call(f"http://{host}:{target.port}/", ()))) is expected, host
        assert target.accepted == 0


def test_a_name_that_leads_inside_is_called_if_the_operator_says_so() -> None:
    with Target() as target:
        url = f"http://hooks.example:{target.port}/"
        for allow, expected in (("other.example", FailureKind.NOT_ALLOWED), ("*.example", 200), ("127.0.0.0/8", 200)):
            assert trouble(asyncio.run(call(url, (allow,), ["127.0.0.1"]))) == expected, allow
        assert target.accepted == 2


def test_of_several_addresses_only_those_that_are_allowed_are_tried() -> None:
    with Target() as target:
        url = f"http://hooks.example:{target.port}/"
        assert trouble(asyncio.run(call(url, ("127.0.0.2",), ["127.0.0.1", "127.0.0.2"]))) is FailureKind.UNREACHABLE
        assert target.accepted == 0
        assert trouble(asyncio.run(call(url, ("127.0.0.1",), ["127.0.0.2", "169.254.169.254", "127.0.0.1"]))) == 200


def test_the_refusal_does_not_tell_what_is_inside() -> None:
    found = asyncio.run(call("http://hooks.example:9/", (), ["10.1.2.3"]))
    assert isinstance(found, Failure)
    assert "10.1.2.3" not in found.text
    assert "hooks.example" in found.text
