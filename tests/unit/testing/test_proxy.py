"""The proxy that fails does what it is told, and nothing else. Real sockets on loopback; an echo stands behind it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.testing.proxy import Direction, FaultyProxy

PATIENCE = 30.0


class Echo:
    """Sends back what it gets, and notes it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.got = b""
        self.ends: list[str] = []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        end = "closed"
        with connection:
            try:
                while data := connection.recv(65536):
                    with self._changed:
                        self.got += data
                        self._changed.notify_all()
                    connection.sendall(data)
            except OSError:
                end = "reset"
        with self._changed:
            self.ends.append(end)
            self._changed.notify_all()

    def wait_for(self, size: int) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= size, PATIENCE), f"got {self.got!r}"
            return self.got

    def wait_for_end(self) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ends, PATIENCE), "the connection did not end"
            return self.ends[0]

    def stop(self) -> None:
        # A listener that is closed under an accept goes on waiting; one that is shut down does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.stop()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultyProxy]:
    with FaultyProxy("127.0.0.1", echo.port) as proxy:
        yield proxy


@contextlib.contextmanager
def client(proxy: FaultyProxy, timeout: float = PATIENCE) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), PATIENCE) as connection:
        connection.settimeout(timeout)
        yield connection


def read(connection: socket.socket, size: int) -> bytes:
    """As many bytes as come, up to so many; `RESET` at the end for a reset."""
    data = b""
    try:
        while len(data) < size and (chunk := connection.recv(size - len(data))):
            data += chunk
    except ConnectionResetError:
        data += b"RESET"
    return data


def test_bytes_pass_as_they_are_and_a_closed_side_is_a_closed_side(echo: Echo, proxy: FaultyProxy) -> None:
    data = bytes(range(256)) * 4_000
    with client(proxy) as connection:

        def send() -> None:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read(connection, len(data) + 1) == data  # and then the end, which is not a reset
        sender.join()
    assert echo.wait_for_end() == "closed"
    assert proxy.carried == 2 * len(data)
    assert proxy.accepted == 1


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_both_sides(echo: Echo, proxy: FaultyProxy, reset: bool) -> None:
    with client(proxy) as connection:
        connection.sendall(b"hello")
        assert read(connection, 5) == b"hello"
        assert proxy.cut(reset=reset) == 1
        assert read(connection, 1) == (b"RESET" if reset else b"")
        assert echo.wait_for_end() == ("reset" if reset else "closed")
    with client(proxy) as another:
        another.sendall(b"again")
        assert read(another, 5) == b"again"


def test_refused_connections_meet_nobody_and_open_ones_go_on(proxy: FaultyProxy) -> None:
    port = proxy.port
    with client(proxy) as connection:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError), client(proxy):
            pass
        connection.sendall(b"hello")
        assert read(connection, 5) == b"hello"
        proxy.accept()
        assert proxy.port == port
        with client(proxy) as another:
            another.sendall(b"again")
            assert read(another, 5) == b"again"


@pytest.mark.parametrize(("direction", "least"), [(Direction.UP, 0.1), (Direction.DOWN, 0.1), (Direction.BOTH, 0.2)])
def test_a_delay_is_a_latency_not_a_rate(proxy: FaultyProxy, direction: Direction, least: float) -> None:
    proxy.delay(0.1, direction=direction)
    with client(proxy) as connection:
        began = monotonic()
        for number in range(20):
            connection.sendall(b"%02d" % number)
        assert read(connection, 40) == b"".join(b"%02d" % number for number in range(20))
        assert least <= (monotonic() - began) / SECOND < 20 * least


def test_jitter_never_changes_the_order(proxy: FaultyProxy) -> None:
    proxy.delay(0.01, jitter=0.01)
    with client(proxy) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(50):
            connection.sendall(b"%02d" % number)
        assert read(connection, 100) == b"".join(b"%02d" % number for number in range(50))


def test_a_throttled_connection_takes_its_time(proxy: FaultyProxy) -> None:
    proxy.throttle(10_000, Direction.UP)
    with client(proxy) as connection:
        began = monotonic()
        connection.sendall(b"x" * 3_000)
        assert read(connection, 3_000) == b"x" * 3_000
        assert (monotonic() - began) / SECOND >= 0.25


def test_a_truncated_answer_ends_where_it_was_told_to(echo: Echo, proxy: FaultyProxy) -> None:
    proxy.truncate(7, Direction.DOWN)
    with client(proxy) as connection:
        connection.sendall(b"0123456789")
        assert read(connection, 10) in {b"0123456RESET", b"RESET"}  # a reset may overtake what was not read yet
    assert echo.wait_for(10) == b"0123456789"
    with client(proxy) as another:
        another.sendall(b"again")
        assert read(another, 5) == b"again", "it is done once"


def test_a_truncated_request_reaches_the_server_in_part(echo: Echo, proxy: FaultyProxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"0123")
        assert read(connection, 4) == b"0123"
        proxy.truncate(0, Direction.UP)
        connection.sendall(b"456")
        assert read(connection, 1) == b"RESET"
    assert echo.wait_for_end() == "reset"
    assert echo.got == b"0123"


def test_swallowed_bytes_vanish_and_what_lost_some_stays_lost(echo: Echo, proxy: FaultyProxy) -> None:
    with client(proxy, timeout=0.2) as connection:
        proxy.swallow(Direction.DOWN)
        connection.sendall(b"hello")
        assert echo.wait_for(5) == b"hello"
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.heal()
        connection.sendall(b"again")
        assert echo.wait_for(10) == b"helloagain"
        with pytest.raises(TimeoutError):
            connection.recv(1)
        with client(proxy) as another:
            another.sendall(b"fresh")
            assert read(another, 5) == b"fresh"


def test_the_end_of_a_swallowed_connection_is_not_told(echo: Echo, proxy: FaultyProxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"hello")
        assert read(connection, 5) == b"hello"
        proxy.swallow()
    assert proxy.connections == 1
    assert not echo.ends
    proxy.cut()
    assert echo.wait_for_end() == "reset"


def test_a_target_that_is_away_is_a_reset_and_one_that_moved_is_found(echo: Echo) -> None:
    with FaultyProxy("127.0.0.1", 1) as proxy:
        # The reset may come before connecting is over.
        with contextlib.suppress(ConnectionResetError), client(proxy) as connection:
            assert read(connection, 1) in {b"RESET", b""}
        proxy.target = ("127.0.0.1", echo.port)
        with client(proxy) as connection:
            connection.sendall(b"hello")
            assert read(connection, 5) == b"hello"


def test_the_same_seed_gives_the_same_faults(echo: Echo) -> None:
    told = []
    for _ in range(2):
        with FaultyProxy("127.0.0.1", echo.port) as proxy:
            proxy.misbehave(seed=7, every=0.002)
            pause = threading.Event()
            until = monotonic() + int(PATIENCE * SECOND)
            while len(proxy.faults) < 12:
                assert monotonic() < until
                pause.wait(0.001)
            proxy.heal()
            told.append([fault.split(" of ")[0] for fault in proxy.faults[:12]])
            with client(proxy) as connection:
                connection.sendall(b"hello")
                assert read(connection, 5) == b"hello", "it is healed"
    assert told[0] == told[1]
    assert len(set(told[0])) > 3


def test_stop_is_safe_at_any_time(echo: Echo) -> None:
    proxy = FaultyProxy("127.0.0.1", echo.port)
    proxy.stop()
    with pytest.raises(InvalidArgument, match="does not run"):
        proxy.cut()
    proxy.start()
    with client(proxy) as connection:
        proxy.swallow()
        connection.sendall(b"hello")
        proxy.stop()
        proxy.stop()
        assert read(connection, 1) in {b"RESET", b""}
    with pytest.raises(InvalidArgument, match="does not run"):
        proxy.heal()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda proxy: proxy.delay(-1),
        lambda proxy: proxy.delay(0, jitter=-1),
        lambda proxy: proxy.throttle(0),
        lambda proxy: proxy.throttle(float("nan")),
        lambda proxy: proxy.truncate(-1),
        lambda proxy: proxy.misbehave(1, every=0),
    ],
)
def test_what_makes_no_sense_is_refused(proxy: FaultyProxy, wrong: object) -> None:
    with pytest.raises(InvalidArgument):
        wrong(proxy)  # type: ignore[operator]  # a table of lambdas
