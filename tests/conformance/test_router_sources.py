"""Every source of the router keeps the same contract, over a real server of its kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

import pytest

from penstock.testing.source_conformance import SOURCE_CHECKS, missing, run_check
from penstock.testing.sources.driver import SourceCheck, SourceDriver

DRIVERS = {
    "penstock-memory": "tests.conformance.source_drivers:MemoryDriver",
    "penstock-durable": "tests.conformance.source_drivers:DurableDriver",
    "penstock-subscription": "tests.conformance.source_drivers:SubscriptionDriver",
    "penstock-remote": "tests.conformance.source_drivers:RemoteDriver",
    "nats": "tests.integration.router.nats_server:NatsDriver",
    "sqs": "tests.integration.router.sqs_server:SqsDriver",
    "activemq": "tests.integration.router.activemq_server:ActiveMqDriver",
}


def _found(place: str) -> bool:
    module, _, name = place.partition(":")
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


@pytest.fixture(scope="module", params=[name for name, place in DRIVERS.items() if _found(place)])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceDriver]:
    module, _, name = DRIVERS[request.param].partition(":")
    kind = cast(type[SourceDriver], getattr(importlib.import_module(module), name))
    with kind.serving(tmp_path_factory.mktemp(request.param)) as serving:
        yield serving


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_a_source_keeps_the_contract(check: SourceCheck, driver: SourceDriver) -> None:
    if reason := missing(check, driver):
        pytest.skip(reason)
    run_check(check, driver)
