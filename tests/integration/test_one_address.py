"""REST and gRPC at one address: connections of the HTTP port that speak HTTP/2 reach the gRPC server."""

import asyncio
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc
import pytest
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports.grpc import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport

from penstock.http.http2_relay import PREFACE, Http2Relay
from penstock.http.limits import HttpLimits
from penstock.testing.server import LocalServer
from tests.integration.http_client import PATIENCE, connected, eventually, scenario, serving

LIST_TOPICS = "/google.pubsub.v1.Publisher/ListTopics"


class Place(NamedTuple):
    """A server, and how clients trust it."""

    server: LocalServer
    address: str
    certificate: Path | None

    def channel(self) -> grpc.Channel:
        if self.certificate is None:
            return grpc.insecure_channel(self.address)
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(self.certificate.read_bytes()))

    def rest(self, path: str, body: object = None) -> Any:
        context = None if self.certificate is None else ssl.create_default_context(cafile=self.certificate)
        scheme = "http" if self.certificate is None else "https"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(f"{scheme}://{self.address}{path}", data, context=context, timeout=PATIENCE) as answer:
            return json.loads(answer.read())


@pytest.fixture(params=["plain", "tls"])
def place(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Iterator[Place]:
    settings: dict[str, Any] = {} if request.param == "plain" else {"tls_cert": certificate[0], "tls_key": certificate[1]}
    with LocalServer(**settings) as server:
        yield Place(server, f"127.0.0.1:{server.server.port}", settings.get("tls_cert"))


def test_googles_client_and_rest_share_the_http_port(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if place.certificate is None:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", place.address)
        publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    else:
        monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
        publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=place.channel()))
        subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=place.channel()))
    topic, billing = publisher.topic_path("shop", "orders"), subscriber.subscription_path("shop", "billing")
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=billing, topic=topic)
    assert place.rest(f"/v1/{topic}")["name"] == topic

    received: list[bytes] = []
    is_done = threading.Event()

    def handle(message: Any) -> None:
        received.append(message.data)
        message.ack()
        if len(received) == 21:
            is_done.set()

    stream = subscriber.subscribe(billing, callback=handle)
    for future in [publisher.publish(topic, b"%d" % number * 10_000) for number in range(20)]:
        future.result(timeout=PATIENCE)
    place.rest(f"/v1/{topic}:publish", {"messages": [{"data": "cmVzdA=="}]})
    assert is_done.wait(PATIENCE)
    stream.cancel()
    stream.result(timeout=PATIENCE)
    publisher.stop()
    subscriber.close()
    assert sorted(received) == sorted([b"%d" % number * 10_000 for number in range(20)] + [b"rest"])


def test_tls_clients_that_know_http1_get_it_and_only_those_of_grpc_get_http2(certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=certificate[0])

    def chosen(port: int, *protocols: str) -> str | None:
        context.set_alpn_protocols(protocols)
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            return tls.selected_alpn_protocol()

    with LocalServer(tls_cert=certificate[0], tls_key=certificate[1]) as server:
        assert chosen(server.server.port, "h2", "http/1.1") == "http/1.1"
        assert chosen(server.server.port, "http/1.1") == "http/1.1"
        assert chosen(server.server.port, "h2") == "h2"


def test_a_client_has_one_rate_limit_for_rest_and_grpc() -> None:
    with LocalServer(rate_limit=0.001, rate_burst=3) as server:
        place = Place(server, f"127.0.0.1:{server.server.port}", None)
        with place.channel() as channel:
            ask = channel.unary_unary(LIST_TOPICS)
            for _ in range(2):
                ask(b"\x0a\x0dprojects/shop", timeout=PATIENCE)
            place.rest("/v1/projects/shop/topics")
            with pytest.raises(grpc.RpcError) as refused:
                ask(b"\x0a\x0dprojects/shop", timeout=PATIENCE)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(urllib.error.HTTPError, match="429"):
                place.rest("/v1/projects/shop/topics")


def test_a_stream_ends_with_unavailable_when_the_server_stops() -> None:
    server = LocalServer().start()
    place = Place(server, f"127.0.0.1:{server.server.port}", None)
    topic, billing = "projects/shop/topics/orders", "projects/shop/subscriptions/billing"
    with place.channel() as channel:
        pb = pubsub_v1.types
        make_topic = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic", pb.Topic.serialize)
        make_topic(pb.Topic(name=topic), timeout=PATIENCE)
        make_subscription = channel.unary_unary("/google.pubsub.v1.Subscriber/CreateSubscription", pb.Subscription.serialize)
        make_subscription(pb.Subscription(name=billing, topic=topic), timeout=PATIENCE)
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish", pb.PublishRequest.serialize)
        publish(pb.PublishRequest(topic=topic, messages=[pb.PubsubMessage(data=b"x")]), timeout=PATIENCE)
        requests: SimpleQueue[Any] = SimpleQueue()
        requests.put(pb.StreamingPullRequest(subscription=billing, stream_ack_deadline_seconds=60))
        pull = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull", pb.StreamingPullRequest.serialize)
        stream = pull(iter(requests.get, None), timeout=PATIENCE)
        assert next(stream)  # it is open
        server.stop()
        with pytest.raises(grpc.RpcError) as ended:
            for _ in stream:
                pass
        requests.put(None)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


# ── the relay alone, with something else in the place of gRPC ────────────────────────────────────────────────────────────


@asynccontextmanager
async def upstream(relay: Http2Relay, serve: Any) -> Any:
    address = relay.open().replace("unix-abstract:", "\0")
    server = await asyncio.start_unix_server(serve, address)
    try:
        yield
    finally:
        relay.close()
        server.close()


@scenario
async def test_a_preface_may_come_in_pieces_and_a_p_alone_is_no_preface() -> None:
    relay = Http2Relay()
    seen: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readexactly(len(PREFACE) + 4))
        seen.append(relay.address_of(f"unix-abstract:{writer.get_extra_info('peername')[1:].decode()}"))
        writer.write(b"settings")
        writer.close()

    async with upstream(relay, serve), serving(relay=relay) as (door, port):
        async with connected(port) as client:
            for byte in PREFACE + b"more":
                await client.send(bytes([byte]))
            assert await client.reader.read() == b"settings"
        assert seen == [PREFACE + b"more", "127.0.0.1"]
        await eventually(lambda: door.traffic.open == 0)
        async with connected(port) as client:
            await client.send(b"P")
            await client.send(b"OST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            assert (await client.answer()).body == b"hi"
            assert (await client.ask("POST", "/echo", b"PRI * HTTP/2.0")).body == b"PRI * HTTP/2.0"


@scenario
async def test_half_a_preface_is_cut_and_so_is_http2_without_a_grpc_server() -> None:
    async with serving(relay=Http2Relay(), limits=HttpLimits(head_seconds=0.2)) as (door, port):
        async with connected(port) as client:
            await client.send(PREFACE[:10])
            assert await client.is_cut()
        assert door.traffic.cut["head"] == 1
        async with connected(port) as client:
            await client.send(PREFACE)
            assert await client.is_cut()
        await eventually(lambda: door.traffic.open == 0)


@scenario
async def test_whoever_does_not_read_holds_back_the_other_side() -> None:
    relay, written = Http2Relay(), 0
    is_stuck = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while True:
                writer.write(bytes(65_536))
                written += 65_536
                async with asyncio.timeout(0.2):
                    await writer.drain()
        except TimeoutError:
            is_stuck.set()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with upstream(relay, serve), serving(relay=relay) as (door, port):
        async with connected(port) as client:
            await client.send(PREFACE)
            async with asyncio.timeout(PATIENCE):
                await is_stuck.wait()
            assert written < 32 * 1024 * 1024  # what the buffers of the sockets hold
        await eventually(lambda: door.traffic.open == 0)


@scenario
async def test_a_client_that_is_lost_before_it_is_relayed_leaves_nothing_behind() -> None:
    relay, ended = Http2Relay(), asyncio.Event()

    class Lost(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            relay.take(transport, PREFACE, ended.set)
            transport.abort()

    with socket.socket(socket.AF_UNIX) as upstream, socket.socket(socket.AF_UNIX) as first:
        path = relay.open().replace("unix-abstract:", "\0")
        upstream.bind(path)
        upstream.listen(0)
        first.connect(path)  # no room for another one
        listener = await asyncio.get_running_loop().create_server(Lost, "127.0.0.1", 0)
        async with connected(listener.sockets[0].getsockname()[1]), asyncio.timeout(PATIENCE):
            await ended.wait()
            upstream.accept()[0].close()
            relayed, _ = await asyncio.to_thread(upstream.accept)
            assert await asyncio.to_thread(relayed.makefile("rb").read) == PREFACE
        relayed.close()
        listener.close()
        async with asyncio.timeout(PATIENCE):
            await relay.stop(10 * PATIENCE)  # waits for connections that it still knows
