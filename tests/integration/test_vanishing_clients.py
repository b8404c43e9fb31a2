"""Clients that do not read, do not finish, do not say goodbye: others feel nothing, and memory stays bounded."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.google import messages
from penstock.google.grpc_port import GrpcLimits
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.raw_pubsub import RawClient, resident_megabytes
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
MEGABYTE = 1_000_000
PORTS = ["http", "grpc", "resp", "rpc"]
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HALF_REQUESTS = {
    "http": [
        b"",
        b"P",
        b'POST /v1/projects/test/topics/half:publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"mess',
    ],
    "grpc": [b"", HTTP2_PREFACE[:10], HTTP2_PREFACE, HTTP2_PREFACE + bytes(9), HTTP2_PREFACE + b"\xff" * 50],
    "resp": [b"", b"*2\r\n$5\r\nHEL", b"*1000\r\n$4\r\nPING\r\n", b"$100000000\r\nx"],
    "rpc": [b"", b"\x00", struct.pack("<I", 100_000) + b"x", b"\xff\xff\xff\xff"],
}
"""What a client sends before it falls silent or vanishes."""


class House:
    """A server with all its ports open, and a neighbour on it."""

    def __init__(self, server: ServerProcess, ports: dict[str, int]) -> None:
        self.server = server
        self.ports = ports
        self.client = RawClient(server.grpc)
        self.topic, self.subscription = self.client.pair("neighbour")

    @property
    def megabytes(self) -> float:
        return resident_megabytes(self.server.process.pid)

    def connect(self, api: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[api]), PATIENCE)

    def get(self, path: str) -> int:
        with urllib.request.urlopen(self.server.url + path, timeout=PATIENCE) as answer:
            status: int = answer.status
            return status

    def command(self, command: str, **payload: Any) -> Any:
        """A command of the queue API."""
        body = json.dumps({"command": command, "request_id": "1", "payload": payload}).encode()
        request = urllib.request.Request(
            self.server.url + "/api/v1/command", body, {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def check_neighbour(self) -> None:
        """Every API serves somebody else."""
        assert self.get("/health/ready") == 200
        self.client.publish(self.topic, b"hello")
        (found,) = self.client.pull(self.subscription)
        assert found.message.data == b"hello"
        self.client.call("Acknowledge", messages.AcknowledgeRequest(subscription=self.subscription, ack_ids=[found.ack_id]))
        with self.connect("resp") as resp:
            resp.sendall(b"*1\r\n$4\r\nPING\r\n")
            assert b"PONG" in resp.recv(100)
        with self.connect("rpc"):
            pass


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    ports = {"resp": free_port(), "rpc": free_port()}
    with ServerProcess(resp_port=ports["resp"], rpc_port=ports["rpc"], shutdown_seconds=3) as server:
        house = House(server, {"http": server.port, "grpc": server.grpc_port, **ports})
        yield house
        house.client.channel.close()
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    """Connections that a test leaves open; they vanish at its end."""
    connections: list[socket.socket] = []
    yield connections
    for connection in connections:
        reset(connection)


def reset(connection: socket.socket) -> None:
    """Close without a goodbye: the other side gets a reset, or nothing."""
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


def publish_backlog(house: House, topic: str, megabytes: int) -> None:
    body = os.urandom(MEGABYTE)
    for _ in range(megabytes):
        house.client.publish(topic, body)


def test_streams_that_never_read_cost_little_and_delay_nobody(house: House) -> None:
    topic, subscription = house.client.pair("unread", ack_deadline_seconds=600)
    publish_backlog(house, topic, 200)
    before = house.megabytes
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(stack.enter_context(RawClient(house.server.grpc)).stream(subscription))
        reader = stack.enter_context(stack.enter_context(RawClient(house.server.grpc)).stream(subscription))
        assert len(reader.take(100)) >= 100
        assert house.megabytes < before + 100
        house.check_neighbour()
    house.client.call("DeleteSubscription", messages.DeleteSubscriptionRequest(subscription=subscription))


@pytest.mark.parametrize(
    ("count", "size"), [(5_000, 50), pytest.param(40, 20_000, marks=pytest.mark.long)], ids=["many", "large"]
)
def test_a_stream_that_acks_and_never_reads_fills_no_memory(house: House, count: int, size: int) -> None:
    """Each request of it asks for a confirmation that repeats what it sent."""
    topic, subscription = house.client.pair(f"flood-{count}", enable_exactly_once_delivery=True)
    publish_backlog(house, topic, 10)
    before = house.megabytes
    acks = [messages.StreamingPullRequest(ack_ids=["x" * 200] * size)] * count
    with RawClient(house.server.grpc) as client, client.stream(subscription, *acks):
        for _ in range(10):
            house.check_neighbour()
            threading.Event().wait(0.1)  # the client sends as fast as it is let
        assert house.megabytes < before + 40
    house.client.call("DeleteSubscription", messages.DeleteSubscriptionRequest(subscription=subscription))


@pytest.mark.parametrize("api", PORTS)
def test_half_a_request_and_silence_harms_nobody(house: House, api: str, held: list[socket.socket]) -> None:
    before = house.megabytes
    for half in HALF_REQUESTS[api] * 50:
        connection = house.connect(api)
        connection.sendall(half)
        held.append(connection)
    house.check_neighbour()
    for connection in held[::2]:
        connection.close()
    for connection in held[1::2]:
        reset(connection)
    house.check_neighbour()
    assert house.megabytes < before + 50


def test_grpc_ends_connections_that_do_not_begin_or_do_not_answer_and_limits_their_number(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    limits = functools.partial(GrpcLimits, handshake_seconds=0.5, ping_seconds=1, answer_seconds=1)
    monkeypatch.setattr("penstock.server.server.GrpcLimits", limits)
    with LocalServer(max_connections=20) as server:
        address = ("127.0.0.1", int(server.grpc.rpartition(":")[2]))
        begun = HTTP2_PREFACE + b"\0\0\0\x04\0\0\0\0\0"  # an empty SETTINGS frame
        half_call = begun + b"\0\0\x40\x01\x04\0\0\0\x01\x82"  # 1 of 64 bytes of HEADERS
        for sent in (*HALF_REQUESTS["grpc"], begun, half_call):
            with subtests.test(sent=sent), socket.create_connection(address, PATIENCE) as half:
                half.sendall(sent)
                said_until_the_end(half)
        with RawClient(server.grpc) as client, contextlib.ExitStack() as crowd:
            topic, _ = client.pair("crowded")
            others = [crowd.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(200)]
            assert b"" in {said_until_the_end(other) for other in others}, "those beyond the limit are closed without a word"
            client.publish(topic, b"still served")


def said_until_the_end(connection: socket.socket) -> bytes:
    """What the server sends until it ends a connection, which must be within the patience of a test."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            said += piece
    return said


def test_half_a_publish_publishes_nothing(house: House) -> None:
    topic, subscription = house.client.pair("half")
    for connection in (house.connect("http"), house.connect("http")):
        connection.sendall(HALF_REQUESTS["http"][-1])
        reset(connection)
    house.client.publish(topic, b"whole")
    assert [one.message.data for one in house.client.pull(subscription)] == [b"whole"]


@pytest.mark.long
@pytest.mark.parametrize("api", PORTS)
def test_ten_thousand_connects_harm_nobody(house: House, api: str) -> None:
    before = house.megabytes
    for number in range(10_000):
        connection = house.connect(api)
        if number % 3 == 0:
            connection.sendall(HALF_REQUESTS[api][1])
        reset(connection)  # not closed: that would keep the port of this side waiting for a minute
        if number % 2_500 == 0:
            house.check_neighbour()
    house.check_neighbour()
    assert house.megabytes < before + 80


@pytest.mark.long
@pytest.mark.parametrize("api", PORTS)
def test_two_thousand_open_connections_harm_nobody(house: House, api: str, held: list[socket.socket]) -> None:
    before = house.megabytes
    held += [house.connect(api) for _ in range(2_000)]
    house.check_neighbour()
    assert house.megabytes < before + 150
    for connection in held:
        reset(connection)
    house.check_neighbour()


CONSUMER = """
import sys
from tests.integration.raw_pubsub import RawClient
with RawClient(sys.argv[1]) as client, client.stream(sys.argv[2]) as stream:
    print(len(stream.take(1)), flush=True)
    sys.stdin.read()
"""


def consumer(house: House, subscription: str) -> subprocess.Popen[str]:
    """A process that takes a message, holds it, and has 600 seconds for it."""
    command = [sys.executable, "-c", CONSUMER, house.server.grpc, subscription]
    started = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "1\n"
    return started


def test_a_client_that_stands_still_keeps_nothing_from_others(house: House) -> None:
    topic, subscription = house.client.pair("paused", ack_deadline_seconds=600)
    house.client.publish(topic, b"first")
    with consumer(house, subscription) as victim:
        victim.send_signal(signal.SIGSTOP)
        try:
            # Streams share: what the one that stands still gets is bounded by the network's windows, the rest comes here.
            with RawClient(house.server.grpc) as other, other.stream(subscription) as stream:
                publish_backlog(house, topic, 30)
                assert len(stream.take(12)) >= 12
            house.check_neighbour()
        finally:
            victim.kill()


def test_who_asks_for_metrics_and_never_reads_fills_no_memory(house: House, held: list[socket.socket]) -> None:
    before = house.megabytes
    for _ in range(20):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", house.ports["http"]))
        connection.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
        held.append(connection)
    house.check_neighbour()
    assert house.megabytes < before + 50
    for connection in held:
        reset(connection)
    house.check_neighbour()


def test_a_websocket_consumer_that_never_reads_fills_no_memory(house: House, held: list[socket.socket]) -> None:
    house.command("queue.create", name="unread", config={})
    for _ in range(100):
        house.command("queue.publish", queue="unread", message="x" * 200_000)  # four bytes for each on the socket
    before = house.megabytes
    for number in range(5):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", house.ports["http"]))
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            f"GET /queue/unread/ws/c{number}?prefetch=100 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        assert connection.recv(12) == b"HTTP/1.1 101"
        held.append(connection)
    for _ in range(5):
        house.check_neighbour()
        threading.Event().wait(0.1)
    assert house.megabytes < before + 50
    for connection in held:
        reset(connection)
    house.check_neighbour()
