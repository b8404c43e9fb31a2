"""FaultyProxy: what it does to bytes and connections. Real sockets on loopback; an echo server stands behind it."""

from __future__ import annotations

import queue
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.proxy import CHUNK, Direction, FaultyProxy

pytestmark = pytest.mark.server

PATIENCE = 30.0
DATA = b"".join(number.to_bytes(4) for number in range(16 * CHUNK))
"""No two parts are equal. It arrives in at least 64 pieces, because the proxy reads a chunk at a time."""


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it receives, and records how each connection ends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.ends: queue.Queue[str] = queue.Queue()

    def finish_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        end = "closed"
        try:
            while data := request.recv(CHUNK):
                request.sendall(data)
        except OSError:
            end = "reset"
        self.ends.put(end)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultyProxy]:
    with FaultyProxy("127.0.0.1", echo.server_address[1]) as proxy:
        yield proxy


def connect(proxy: FaultyProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)


def echoed(connection: socket.socket, data: bytes) -> bytes:
    """What comes back for these bytes, until the other side closes."""

    def send() -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    received = b"".join(iter(lambda: connection.recv(CHUNK), b""))
    sender.join()
    return received


def wait_until(condition: Callable[[], bool]) -> None:
    end = monotonic() + round(PATIENCE * SECOND)
    while not condition():
        assert monotonic() < end
        threading.Event().wait(0.001)


def test_bytes_pass_unchanged_and_are_counted_and_a_close_is_passed_on(echo: Echo, proxy: FaultyProxy) -> None:
    with connect(proxy) as connection:
        assert echoed(connection, DATA) == DATA

    assert echo.ends.get(timeout=PATIENCE) == "closed"
    assert (proxy.accepted, proxy.carried, proxy.swallowed) == (1, 2 * len(DATA), 0)


@pytest.mark.parametrize(("direction", "least"), [(Direction.UP, 0.25), (Direction.DOWN, 0.25), (Direction.BOTH, 0.5)])
def test_a_delay_adds_latency_and_does_not_limit_the_rate(proxy: FaultyProxy, direction: Direction, least: float) -> None:
    proxy.delay(0.25, direction=direction)
    with connect(proxy) as connection:
        started = monotonic()
        assert echoed(connection, DATA) == DATA
        # If each of the 64 pieces or more waited for the one before it, it would take 16 seconds.
        assert least <= (monotonic() - started) / SECOND < 12


def test_jitter_never_changes_the_order(proxy: FaultyProxy) -> None:
    proxy.delay(0.01, jitter=0.01)
    with connect(proxy) as connection:
        assert echoed(connection, DATA) == DATA


def test_the_end_of_a_swallowed_connection_is_not_passed_on(echo: Echo, proxy: FaultyProxy) -> None:
    with connect(proxy) as connection:
        proxy.swallow()
        connection.sendall(b"lost")
        wait_until(lambda: proxy.swallowed == len(b"lost"))
    proxy.heal()
    with connect(proxy) as another:
        another.sendall(b"hello")
        assert another.recv(5) == b"hello"
        assert proxy.connections == 2
        assert proxy.cut() == 2
        assert [echo.ends.get(timeout=PATIENCE) for _ in range(2)] == ["reset", "reset"]


def test_the_same_seed_gives_the_same_faults_until_it_is_healed(echo: Echo) -> None:
    def first_faults() -> list[str]:
        with FaultyProxy("127.0.0.1", echo.server_address[1]) as proxy:
            proxy.misbehave(seed=7, every=0.002)
            wait_until(lambda: len(proxy.faults) >= 12)
            proxy.heal()
            faults = [*proxy.faults]
            with connect(proxy) as connection:
                assert echoed(connection, DATA) == DATA
            assert proxy.faults == faults
        return faults[:12]

    first = first_faults()
    assert first == first_faults()
    assert len({fault.split()[0] for fault in first}) > 3
