"""A server under systemd says when it serves, that it is alive, and when it stops."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.notify import Supervisor
from penstock.testing.server import ServerProcess

SECONDS = 60


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(SECONDS)
        yield bound


def heard(listener: socket.socket) -> dict[str, str]:
    lines = listener.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_server_reports_ready_alive_and_stopping(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listener.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with ServerProcess() as server:
        assert heard(listener) == {"READY": "1", "STATUS": f"serving {server.url}"}
        for _ in range(3):
            assert heard(listener) == {"WATCHDOG": "1"}
        assert server.stop() == 0
    messages = [heard(listener)]
    while "STOPPING" not in messages[-1]:
        messages.append(heard(listener))
    assert messages[-1] == {"STOPPING": "1", "STATUS": "finishing what runs"}


def test_a_server_that_cannot_start_is_never_ready(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listener.getsockname())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server = ServerProcess(port=taken.getsockname()[1])
        with pytest.raises(RuntimeError, match="cannot listen"):
            server.start()
        assert server.stop() == 1
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(1)


def test_without_systemd_nothing_is_sent() -> None:
    for environment in ({}, {"WATCHDOG_USEC": "1"}):
        supervisor = Supervisor(environment)
        supervisor.ready("well")
        supervisor.stopping("soon")
        supervisor.close()


def test_an_abstract_socket_is_found_and_children_do_not_answer() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0penstock-test-{os.getpid()}")
        bound.settimeout(SECONDS)
        environment = {"NOTIFY_SOCKET": f"@penstock-test-{os.getpid()}", "HOME": "kept"}
        supervisor = Supervisor(environment)
        supervisor.ready("well")
        assert heard(bound) == {"READY": "1", "STATUS": "well"}
        assert environment == {"HOME": "kept"}


@pytest.mark.parametrize("variables", [{"WATCHDOG_USEC": "100", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "never"}, {}])
def test_the_watchdog_of_another_process_is_not_fed(listener: socket.socket, variables: dict[str, str]) -> None:
    async def serve() -> None:
        supervisor = Supervisor({"NOTIFY_SOCKET": listener.getsockname(), **variables})
        supervisor.ready("well")
        supervisor.stopping("soon")
        supervisor.close()

    asyncio.run(serve())
    assert [heard(listener), heard(listener)] == [
        {"READY": "1", "STATUS": "well"},
        {"STOPPING": "1", "STATUS": "soon"},
    ]


def test_a_socket_that_is_gone_is_logged_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("well")
    assert "cannot notify systemd" in caplog.text
