"""The router's HTTP client against every hostile target of `penstock.testing.hostile_http2`, all of them at the same time.

As with those of HTTP/1.1 (`test_hostile_targets`); here a flood of small frames is what costs most.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.router.core.outcome import Answer, Trouble
from penstock.testing.hostile_http2 import HOSTILE_HTTP2
from tests.integration.router.hostile_server import HostileServer
from tests.integration.router.hostile_storm import BODY_LIMIT, LOOPS, End, Storm, weather

ENDS: dict[str, End | set[End]] = {
    "silence instead of settings": Trouble.CONNECT_TIMEOUT,
    "HTTP/1.1 where HTTP/2 was agreed on": Trouble.CONNECT_TIMEOUT,  # as a frame it is a very long one, still to come
    "garbage": Trouble.CONNECT_TIMEOUT,
    "takes no streams": Trouble.TIMEOUT,
    "takes no body": Trouble.TIMEOUT,
    "never answers": Trouble.TIMEOUT,
    "stalls in the headers": Trouble.TIMEOUT,
    "stalls in the body": Trouble.TIMEOUT,
    "stalls in a frame": Trouble.TIMEOUT,
    "endless body": Answer(200, bytes(BODY_LIMIT)),
    "body of small frames": Answer(200, b" " * BODY_LIMIT),
}
"""What a call comes to; BROKEN where nothing is said."""


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with HostileServer("HTTP_2") as server:
        yield server


@pytest.fixture(scope="module", params=LOOPS, ids=["asyncio", "uvloop"])
def after_storm(request: pytest.FixtureRequest, server: HostileServer) -> Storm:
    return weather("HTTP_2", server, request.param, calls=1, timeout=6)


@pytest.mark.parametrize("name", HOSTILE_HTTP2)
def test_a_hostile_target_ends_a_call_in_a_defined_way_and_once(after_storm: Storm, name: str) -> None:
    after_storm.check_ends(name, ENDS.get(name.removeprefix("HTTP/2: "), Trouble.BROKEN))


def test_memory_stays_bounded(after_storm: Storm) -> None:
    after_storm.check_memory()


def test_a_healthy_target_is_answered_all_the_while(after_storm: Storm) -> None:
    after_storm.check_healthy()


def test_nothing_is_left_open(after_storm: Storm) -> None:
    after_storm.check_closed()
