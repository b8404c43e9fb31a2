"""Requests that were recorded with an earlier version get equivalent replies today: the same types, fields and values.

Ids, instants and versions may differ, and so may the texts of errors.
"""

import pytest

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.compatibility.conversation import Replay, Talk, load

PROTOCOLS = ("native", "resp3", "synap_rpc", "grpc", "hub", "http")
HISTORY = ("chat",)

pytestmark = pytest.mark.server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_recorded_requests_get_equivalent_replies(protocol: str, subtests: pytest.Subtests) -> None:
    steps = load(protocol)
    with LocalServer(clock=ManualClock(), resp_port=0, rpc_port=0, hub_history=HISTORY) as server, Talk(server.server) as talk:
        replay = Replay(talk)
        for number, step in enumerate(steps):
            with subtests.test(step=number, request=step.request):
                assert replay.differences(step) == []
    assert len(steps) > 20
