"""Every source of the router keeps the same contract, over a real server of its kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.source_conformance import SOURCE_CHECKS, missing, run_check
from penstock.testing.sources.driver import SourceCheck, SourceDriver
from tests.conformance.source_drivers import DurableDriver, MemoryDriver, RemoteDriver, SubscriptionDriver
from tests.integration.router.activemq_server import ActiveMqDriver
from tests.integration.router.nats_server import NatsDriver
from tests.integration.router.sqs_server import SqsDriver

DRIVERS: dict[str, type[SourceDriver]] = {
    "penstock-memory": MemoryDriver,
    "penstock-durable": DurableDriver,
    "penstock-subscription": SubscriptionDriver,
    "penstock-remote": RemoteDriver,
    "nats": NatsDriver,
    "sqs": SqsDriver,
    "activemq": ActiveMqDriver,
}


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceDriver]:
    with DRIVERS[request.param].serving(tmp_path_factory.mktemp(request.param)) as serving:
        yield serving


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
def test_a_source_keeps_the_contract(check: SourceCheck, driver: SourceDriver) -> None:
    if reason := missing(check, driver):
        pytest.skip(reason)
    run_check(check, driver)
