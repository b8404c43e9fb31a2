"""Which drivers a promise is tested with, and the servers that they share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.access import Keyring
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.conformance.consumers.driver import GRACE_SECONDS, PATIENCE, WINDOW_BYTES, Driver, Scene
from tests.conformance.consumers.hub_drivers import HISTORY
from tests.conformance.consumers.suite import DRIVERS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Test a promise with every driver that can do what it needs."""
    needs: tuple[str, ...] | None = getattr(metafunc.function, "needs", None)
    if needs is not None:
        rows = [_row(driver) for driver in DRIVERS if driver.cannot.keys().isdisjoint(needs)]
        metafunc.parametrize("driver", rows, indirect=True)


def _row(driver: type[Driver]) -> Any:
    marks: list[pytest.MarkDecorator] = [pytest.mark.server] if driver.is_remote else []
    return pytest.param(driver, id=driver.name.replace(" ", "-"), marks=marks)


@pytest.fixture(scope="session")
def consumer_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def consumer_server(tmp_path_factory: pytest.TempPathFactory, consumer_clock: ManualClock) -> Iterator[LocalServer]:
    """A durable server with little memory whose time tests move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.server.server.Broker", partial(Broker, window_bytes=WINDOW_BYTES))
        server = LocalServer(data_dir=tmp_path_factory.mktemp("consumers"), clock=consumer_clock, hub_history=(HISTORY,))
        server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consumer-tokens") / "tokens"


@pytest.fixture(scope="session")
def keyring(token_file: Path) -> Keyring:
    return Keyring(token_file)


@pytest.fixture(scope="session")
def admin(keyring: Keyring, consumer_clock: ManualClock) -> str:
    """A token that may do everything."""
    return keyring.create("admin", consumer_clock.now())


@pytest.fixture(scope="session")
def token_server(token_file: Path, consumer_clock: ManualClock) -> Iterator[LocalServer]:
    """A server that asks for tokens. Whether they have expired, and when it reads their file again, is told by the same clock."""
    with LocalServer(auth="token", token_file=token_file, clock=consumer_clock, hub_history=(HISTORY,)) as server:
        yield server


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path, project: str) -> Driver:
    """A driver that is not open yet."""
    function: Any = request.function
    kind: type[Driver] = request.param
    server = "token_server" if function.with_tokens else "consumer_server"
    scene = Scene(
        project,
        request.getfixturevalue("consumer_clock"),
        tmp_path / "data",
        lambda: request.getfixturevalue(server),
        function.options,
        patience=PATIENCE,
    )
    if function.with_tokens:
        scene.token = request.getfixturevalue("admin")
    if kind.is_remote:
        request.getfixturevalue(server)  # outside the loop
    return kind(scene)


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have servers keep what a lost consumer holds for a moment only, where they keep it for a time of their own."""
    monkeypatch.setattr("penstock.api.feed.GRACE_SECONDS", GRACE_SECONDS)
