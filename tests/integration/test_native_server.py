"""The native port on real sockets: who may come in and what they may do, what one client may cost, TLS, schemas, and the end."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock import Broker, Message, SubscriptionOptions
from penstock.access import ANYONE, ClientRates, Keyring, Verb
from penstock.api import feed
from penstock.api.operations import Operations
from penstock.api.service import embedded_service
from penstock.client import PubSub
from penstock.errors import InvalidArgument, PermissionDenied, SchemaNotFound, ServerUnreachable, Unauthenticated
from penstock.http.authentication import Gate, TokenGate
from penstock.native import NativeLimits, NativeServer
from penstock.rate_limit import RateLimit
from penstock.testing.server import LocalServer
from penstock.values.policy import QueueConfig
from tests.integration.raw_native import (
    CALL,
    CLOSE,
    DELIVERED,
    DONE,
    ENDED,
    ENQUEUE,
    HELLO,
    LEAVING,
    OPEN,
    PATIENCE,
    PING,
    PUBLISH,
    REFUSED,
    SETTLE,
    RawClient,
    frame,
)

MIB = 1024 * 1024
LIMITS = [100, MIB, 30.0]
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'


class Place:
    """An API with limits of a test's own, in front of a broker in memory."""

    def __init__(self, server: NativeServer, port: int, operations: Operations) -> None:
        self.server = server
        self.port = port
        self.operations = operations
        self.loop = asyncio.get_running_loop()

    def do(self, work: Any) -> Any:
        """Have something done on the API's loop, from the test's thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def see(self, question: Callable[[], Any]) -> Any:
        """Ask something on the API's loop."""

        async def ask() -> Any:
            return question()

        return self.do(ask())

    def until(self, question: Callable[[], bool]) -> None:
        """Return when it is true."""
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.02)):
            if self.see(question):
                return
            pause.wait(0.02)
        raise AssertionError("it never came true")


@asynccontextmanager
async def serving(gate: Gate | None = None, **limits: Any) -> AsyncIterator[Place]:
    broker = Broker()
    service = embedded_service(broker)
    server = NativeServer(service, gate=gate, limits=NativeLimits(**limits))
    try:
        yield Place(server, await server.start("127.0.0.1", 0), Operations(service, ANYONE, "penstock"))
    finally:
        await server.stop(1.0)
        service.close()
        service.aio.close()
        broker.close()


def scenario(play: Callable[[Place], None], gate: Gate | None = None, **limits: Any) -> None:
    """Run a blocking test beside an API."""

    async def run() -> None:
        async with asyncio.timeout(100), serving(gate, **limits) as place:
            await asyncio.to_thread(play, place)

    uvloop.run(run())


async def furnish(operations: Operations) -> None:
    await operations.create_topic("topic")
    await operations.create_subscription("sub", "topic", SubscriptionOptions())
    await operations.create_queue("work", QueueConfig())


# ── what one client may cost ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_that_never_reads_costs_little_is_cut_off_and_what_it_held_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "GRACE_SECONDS", 0.1)

    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        place.do(place.operations.publish("topic", [Message(b"x" * 100_000)] * 400))
        stuck = RawClient(place.port)
        stuck.greet()
        stuck.send(OPEN, 2, 1, 0, "sub", "stuck", [10_000, 1_000 * MIB, 600.0])
        place.until(lambda: place.operations._topics.stats("sub").in_flight > 0)
        with RawClient(place.port) as other:
            other.greet()
            assert other.is_answered()
        held = place.see(lambda: place.operations._topics.stats("sub").in_flight_bytes)
        assert held < 12 * MIB, "a batch, and what the sockets of the system take"
        place.until(lambda: not place.server.connections)
        with RawClient(place.port) as other:
            other.greet()
            other.send(OPEN, 2, 1, 0, "sub", "other", [10_000, 1_000 * MIB, 600.0])
            seen = 0
            while seen < 400:
                other.send(PING, 3)  # or it would be cut off for its silence, too
                seen += len(other.read_until(DELIVERED)[2])
        stuck.socket.close()

    scenario(play, idle_seconds=2.0)


def test_who_asks_for_much_and_reads_nothing_is_answered_only_so_far() -> None:
    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        place.do(place.operations.publish("topic", [Message(b"x" * MIB)]))
        with RawClient(place.port) as flood:
            flood.greet()
            flood.socket.sendall(frame(CALL, 7, "peek", {"subscription": "sub"}) * 2_000)
            with RawClient(place.port) as other:
                other.greet()
                assert other.is_answered()
            waiting = place.see(lambda: [one._transport.get_write_buffer_size() for one in place.server.connections])
            assert max(waiting) <= 20 * MIB, "two thousand answers of a MiB each must not lie in memory"
            assert [flood.read()[1] for _ in range(40)] == [7] * 40

    scenario(play)


def test_who_asks_without_end_and_reads_nothing_is_not_read_from() -> None:
    def play(place: Place) -> None:
        with RawClient(place.port) as flood:
            flood.greet()
            flood.socket.settimeout(0.3)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 100 * MIB:
                    sent += flood.socket.send((frame(PING, 7) + frame(CALL, 7, "x" * 80, {})) * 100)
            assert sent < 100 * MIB, "the server took everything, and must have kept the answers somewhere"
            with RawClient(place.port) as other:
                other.greet()
                assert other.is_answered()

    scenario(play)


def test_who_does_not_say_who_they_are_is_cut_off_however_slowly_they_speak() -> None:
    def play(place: Place) -> None:
        for said in (b"", b"\x08", frame(HELLO, 1, 1)[:-1]):
            with RawClient(place.port) as loris:
                for byte in said:
                    with contextlib.suppress(ConnectionError):  # on a slow machine it may be cut off already
                        loris.socket.sendall(bytes([byte]))
                assert loris.read() is None
        place.until(lambda: not place.server.connections)

    scenario(play, hello_seconds=0.1)


def test_who_is_silent_is_cut_off_and_who_pings_is_not() -> None:
    def play(place: Place) -> None:
        with RawClient(place.port) as silent, RawClient(place.port) as alive:
            silent.greet()
            alive.greet()
            silent.socket.settimeout(0.05)
            while True:
                try:
                    assert silent.read() is None
                    break
                except TimeoutError:
                    assert alive.is_answered()
            assert alive.is_answered()

    scenario(play, idle_seconds=1.5)


def test_connections_beyond_the_limit_are_closed_and_there_is_room_again_when_others_leave() -> None:
    def play(place: Place) -> None:
        clients = [RawClient(place.port) for _ in range(3)]
        for client in clients:
            assert client.greet()[0] == DONE
        with RawClient(place.port) as beyond:
            assert beyond.read() is None
        clients.pop().socket.close()
        place.until(lambda: len(place.server.connections) == 2)
        with RawClient(place.port) as again:
            assert again.greet()[0] == DONE
        for client in clients:
            client.socket.close()

    scenario(play, max_connections=3)


def test_requests_beyond_what_may_run_wait_their_turn_and_are_all_answered() -> None:
    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        with RawClient(place.port) as client:
            client.greet()
            for start in range(0, 2_000, 100):
                client.socket.sendall(b"".join(frame(PUBLISH, call, "topic", [[b"x"]]) for call in range(start, start + 100)))
            assert sorted(client.read()[1] for _ in range(2_000)) == list(range(2_000))
            assert client.is_answered()

    scenario(play, max_running=2)


def test_requests_that_wait_for_messages_do_not_keep_others_from_being_answered() -> None:
    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        with RawClient(place.port) as client:
            client.greet()
            for call in range(6):
                client.send(CALL, 100 + call, "pull", {"subscription": "sub", "wait": 30})
            kind, call, reason, *_ = client.read()
            assert (kind, call, reason) == (REFUSED, 105, "resource_exhausted")
            assert client.is_answered()
            client.send(PUBLISH, 7, "topic", [[b"x"]] * 5)
            assert {client.read()[1] for _ in range(6)} == {7, 100, 101, 102, 103, 104}

    scenario(play, max_running=2, max_waits=5)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_stops_says_so_answers_what_runs_and_still_takes_acks() -> None:
    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        with RawClient(place.port) as client, RawClient(place.port) as stuck:
            client.greet()
            stuck.greet()
            client.send(OPEN, 2, 1, 0, "sub", "me", LIMITS)
            client.send(PUBLISH, 3, "topic", [[b"x"]])
            offset, attempt, epoch, _ = client.read_until(DELIVERED)[2][0]
            place.see(lambda: [connection.leave() for connection in place.server.connections])
            assert client.read_until(LEAVING) == [LEAVING]
            assert client.ask(OPEN, 4, 2, 0, "sub", "me", LIMITS)[2] == "unavailable"
            assert client.ask(SETTLE, 5, 1, [(epoch << 12 | attempt) << 40 | offset]) == [DONE, 5, [[]]]
            place.do(place.server.stop(1.0))
            assert [client.read(), client.read()] == [[LEAVING], None]

    scenario(play)


def test_a_door_may_be_stopped_before_it_was_started_and_twice() -> None:
    async def play() -> None:
        async with serving() as place:
            await place.server.stop(0)
            await place.server.stop(0)
            await NativeServer(place.server.service).stop(0)

    asyncio.run(play())


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyring") / "tokens"


@pytest.fixture(scope="module")
def keyring(token_file: Path) -> Keyring:
    return Keyring(token_file)


@pytest.fixture(scope="module")
def tokens(keyring: Keyring) -> dict[str, str]:
    """Made before the server starts, which looks for others once in a while only."""
    made = {verb.value: keyring.create(verb.value, 1, verbs=[verb]) for verb in Verb}
    made |= {project: keyring.create(project, 1, project=project) for project in ("red", "blue")}
    made |= {"admin": keyring.create("admin", 1), "revoked": keyring.create("revoked", 1)}
    return made | {"narrow": keyring.create("narrow", 1, patterns=["open-*"])}


@pytest.fixture(scope="module")
def server(tokens: dict[str, str], token_file: Path) -> Iterator[LocalServer]:
    assert tokens
    with LocalServer(auth="token", token_file=token_file) as server:
        yield server


def port_of(server: LocalServer) -> int:
    return server.server.native_port or 0


def test_without_a_good_token_nobody_comes_in(server: LocalServer, subtests: pytest.Subtests) -> None:
    async def knock(token: str | None) -> None:
        with pytest.raises(Unauthenticated):
            async with PubSub(server.url, token=token):
                pass

    for token in (None, "", "x", "penstock_000000000000_" + "x" * 43, "\ud7ff", "t" * 3_000):
        with subtests.test(token=token), RawClient(port_of(server)) as client:
            kind, _, reason, *_, text = client.greet(token)
            assert (kind, reason) == (REFUSED, "unauthenticated")
            assert not token or token not in text
            assert client.read() is None
            if token != "":
                asyncio.run(knock(token))


@pytest.mark.parametrize("verb", Verb)
def test_a_token_may_do_what_its_verb_says_and_nothing_else(server: LocalServer, tokens: dict[str, str], verb: Verb) -> None:
    with RawClient(port_of(server)) as admin:
        admin.greet(tokens["admin"])
        admin.call("create_topic", topic="topic")
        admin.call("create_subscription", subscription="sub", topic="topic", options={})
        admin.call("create_queue", queue="work", config={})
    wanted: dict[bytes, Verb] = {
        frame(PUBLISH, 5, "topic", [[b"x"]]): Verb.PUBLISH,
        frame(ENQUEUE, 5, "work", [["x"]]): Verb.PUBLISH,
        frame(OPEN, 5, 1, 0, "sub", "me", LIMITS): Verb.CONSUME,
        frame(OPEN, 5, 2, 1, "work", "me", LIMITS): Verb.CONSUME,
        frame(CALL, 5, "pull", {"subscription": "sub"}): Verb.CONSUME,
        frame(CALL, 5, "list_topics", {}): Verb.READ,
        frame(CALL, 5, "list_schemas", {}): Verb.READ,
        frame(CALL, 5, "create_topic", {"topic": f"topic-{verb}"}): Verb.MANAGE,
        frame(CALL, 5, "create_schema", {"schema": "order", "kind": "AVRO", "definition": AVRO}): Verb.MANAGE,
    }
    with RawClient(port_of(server)) as client:
        client.greet(tokens[verb])
        for request, needed in wanted.items():
            client.socket.sendall(request)
            answer = client.read()
            while answer[0] == DELIVERED:
                answer = client.read()
            assert answer[0] == (DONE if needed == verb else REFUSED), (needed, answer)
            assert needed == verb or answer[2] == "permission_denied"


def test_names_and_projects_are_kept_apart(server: LocalServer, tokens: dict[str, str]) -> None:
    red, blue, narrow = tokens["red"], tokens["blue"], tokens["narrow"]

    async def play() -> None:
        async with PubSub(server.url, token=red) as one, PubSub(server.url, token=blue) as two:
            await one.topic("orders").create()
            assert [topic.name for topic in await one.topics()] == ["orders"]
            assert await two.topics() == []
            with pytest.raises(PermissionDenied):
                await two.topic("projects/red/topics/orders").metadata()
        async with PubSub(server.url, token=blue, project="red") as stranger:
            with pytest.raises(PermissionDenied):
                await stranger.topics()
        async with PubSub(server.url, token=narrow, project="red") as some:
            await some.topic("open-orders").create()
            assert [topic.name for topic in await some.topics()] == ["open-orders"]
            with pytest.raises(PermissionDenied):
                await some.topic("orders").metadata()

    asyncio.run(play())


def test_a_revoked_token_ends_streams_and_the_connection_within_moments(
    server: LocalServer, tokens: dict[str, str], keyring: Keyring
) -> None:
    with RawClient(port_of(server)) as client, RawClient(port_of(server)) as other:
        client.greet(tokens["revoked"])
        other.greet(tokens["read"])
        client.call("create_topic", topic="quiet")
        client.call("create_subscription", subscription="quiet", topic="quiet", options={})
        client.ask(OPEN, 2, 1, 0, "quiet", "me", LIMITS)
        keyring.revoke(tokens["revoked"].split("_")[1])
        ended = client.read()  # nothing is published and nothing asked: it comes by itself
        assert (ended[:3]) == [ENDED, 1, "unauthenticated"]
        assert client.read()[:3] == [REFUSED, 0, "unauthenticated"]
        assert client.read() is None
        assert other.is_answered()


def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    gate = TokenGate(None, ClientRates(RateLimit(1, 3)))

    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        with RawClient(place.port) as client:
            client.greet()
            answers = [client.call("info") for _ in range(5)]
            assert [answer[0] for answer in answers] == [DONE, DONE, DONE, REFUSED, REFUSED]
            assert answers[-1][2] == "rate_limited"
            assert 0 < answers[-1][3][0] <= 2
            assert client.is_answered(), "a sign of life is not a request"

    scenario(play, gate)


def test_who_guesses_tokens_is_slowed_down(keyring: Keyring, tokens: dict[str, str]) -> None:
    assert tokens
    gate = TokenGate(keyring, ClientRates(RateLimit(1, 2)))

    def play(place: Place) -> None:
        reasons = []
        for _ in range(4):
            with RawClient(place.port) as client:
                reasons.append(client.greet("penstock_000000000000_guess")[2])
        assert reasons == ["unauthenticated", "unauthenticated", "rate_limited", "rate_limited"]

    scenario(play, gate)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_client_speaks_tls_from_end_to_end(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    with LocalServer(tls_cert=cert, tls_key=key) as server:
        port = port_of(server)
        for address in (f"https://localhost:{server.server.port}", f"penstocks://localhost:{port}"):

            async def play(address: str = address) -> None:
                async with PubSub(address, tls=trusting) as pubsub:
                    topic = await pubsub.topic("topic").create(exist_ok=True)
                    await topic.subscription("sub").create(exist_ok=True)
                    await topic.publish_message(b"x" * 100_000)
                    [message] = await topic.subscription("sub").pull()
                    assert len(message.data) == 100_000
                    message.ack()

            asyncio.run(play())
        with RawClient(port, trusting) as client:
            assert client.greet()[0] == DONE
        with RawClient(port) as plain:
            plain.send(HELLO, 1, 1)
            assert plain.socket.recv(100)[:1] in {b"", b"\x15"}, "nothing, or an alert of TLS"

        async def distrust() -> None:
            with pytest.raises(ServerUnreachable, match="certificate"):
                async with PubSub(f"https://localhost:{server.server.port}"):
                    pass

        asyncio.run(distrust())
        with RawClient(port, trusting) as client:
            assert client.greet()[0] == DONE


def test_tls_without_a_server_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="without a server"):
        PubSub(tls=ssl.create_default_context())


# ── schemas, through every API ──────────────────────────────────────────────────────────────────────────────────────────


def test_schemas_are_the_same_whichever_way_one_comes() -> None:
    import grpc
    from google.api_core.exceptions import InvalidArgument as GoogleInvalidArgument
    from google.cloud import pubsub_v1
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
    from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
    from google.pubsub_v1.types import Encoding, Schema, SchemaSettings

    with LocalServer() as server, grpc.insecure_channel(server.grpc) as channel:
        schemas = pubsub_v1.SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))
        topics = pubsub_v1.publisher.client.publisher_client.PublisherClient(transport=PublisherGrpcTransport(channel=channel))

        async def ours() -> None:
            async with PubSub(server.url) as pubsub:
                schema = pubsub.schema("order")
                assert schema is pubsub.schema("order")
                assert not await schema.exists()
                assert await schema.create("AVRO", AVRO) is schema
                await schema.create("AVRO", AVRO, exist_ok=True)
                assert await schema.exists()
                assert [one.name for one in await pubsub.schemas()] == ["order"]
                await schema.validate_message(b'{"id": "x"}')
                with pytest.raises(InvalidArgument, match="id"):
                    await schema.validate_message(b"{}")
                with pytest.raises(InvalidArgument, match="bytes"):
                    await schema.validate_message("{}")  # type: ignore[arg-type]  # what a test of types is for
                await pubsub.validate_schema("AVRO", AVRO)
                with pytest.raises(InvalidArgument):
                    await pubsub.validate_schema("AVRO", "{")
                await pubsub.topic("orders").create(schema="order", encoding="JSON")
                with pytest.raises(InvalidArgument, match="schema"):
                    await pubsub.topic("orders").publish_message(b"{}")
                await pubsub.topic("orders").publish_message(b'{"id": "x"}')

        asyncio.run(ours())
        found = schemas.get_schema(name="projects/penstock/schemas/order")
        assert (found.type_, found.definition) == (Schema.Type.AVRO, AVRO)
        shown = topics.get_topic(topic="projects/penstock/topics/orders")
        assert shown.schema_settings.schema == "projects/penstock/schemas/order"
        with pytest.raises(GoogleInvalidArgument):
            topics.publish(topic="projects/penstock/topics/orders", messages=[{"data": b"{}"}])
        schemas.create_schema(
            parent="projects/penstock",
            schema={"type_": Schema.Type.PROTOCOL_BUFFER, "definition": 'syntax = "proto3"; message M { string a = 1; }'},
            schema_id="their-own",
        )
        settings = SchemaSettings(schema="projects/penstock/schemas/their-own", encoding=Encoding.JSON)
        topics.create_topic(request={"name": "projects/penstock/topics/theirs", "schema_settings": settings})

        async def theirs() -> None:
            async with PubSub(server.url) as pubsub:
                theirs = await pubsub.schema("their-own").get()
                assert (theirs.kind, theirs.name) == ("PROTOCOL_BUFFER", "their-own")
                with pytest.raises(InvalidArgument, match="schema"):
                    await pubsub.topic("theirs").publish_message(b'{"b": 1}')
                await pubsub.topic("theirs").publish_message(b'{"a": "x"}')
                wider = AVRO.replace("]}", ', {"name": "n", "type": "int", "default": 0}]}')
                newer = await pubsub.schema("order").commit(wider)
                assert (await pubsub.schema("order").revisions())[0] == newer
                assert (await pubsub.schema("order").get(newer.revision)).definition == wider
                await pubsub.schema("order").delete()
                with pytest.raises(SchemaNotFound):
                    await pubsub.schema("order").get()

        asyncio.run(theirs())
        schemas.transport.close()


def test_streams_are_closed_by_name_and_closing_what_is_not_open_is_nothing() -> None:
    def play(place: Place) -> None:
        place.do(furnish(place.operations))
        with RawClient(place.port) as client:
            client.greet()
            client.ask(OPEN, 2, 1, 1, "work", "me", LIMITS)
            client.send(CLOSE, 99)
            assert client.ask(CLOSE, 1) == [ENDED, 1, None, [], None, ""]
            client.send(CLOSE, 1)
            assert client.is_answered()

    scenario(play)
