"""The process `penstock serve`: how it stops, what it keeps, what it refuses, and what never gets into its log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.access import Keyring, Verb
from penstock.clock import SystemClock, monotonic
from penstock.durations import SECOND
from penstock.google import messages
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.raw_pubsub import RawClient

PATIENCE = 60.0
SHUTDOWN_SECONDS = 100
"""What the servers here are given to stop: longer than tests wait, who so notice one that waits for nothing."""
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run a server that must end by itself."""
    command = [sys.executable, "-m", "penstock", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def ask(
    url: str, body: Any = None, *, token: str | None = None, project: str = "", context: ssl.SSLContext | None = None
) -> tuple[int, Any]:
    """One HTTP request; returns its status and its JSON, or its text."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    if project:
        headers["X-Penstock-Project"] = project
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except json.JSONDecodeError:
        return status, text


def command(url: str, command: str, *, token: str | None = None, **payload: Any) -> tuple[int, Any]:
    """A command of the queue API."""
    return ask(url + "/api/v1/command", {"command": command, "request_id": "1", "payload": payload}, token=token)


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stop_ends_what_waits_finishes_what_runs_and_keeps_what_was_leased(tmp_path: Path, number: signal.Signals) -> None:
    outcomes: dict[str, Any] = {}
    with ServerProcess(tmp_path, shutdown_seconds=SHUTDOWN_SECONDS) as server, RawClient(server.grpc) as client:
        topic, subscription = client.pair("orders", ack_deadline_seconds=600)
        _, idle = client.pair("idle")
        command(server.url, "queue.create", name="jobs", config={})
        client.publish(topic, b"leased by a stream", b"leased too")
        stream = client.stream(subscription, max_outstanding_messages=2)
        held = [one.ack_id for one in stream.take(2)]
        assert len(held) == 2

        def pull() -> None:
            try:
                outcomes["pull"] = client.call("Pull", messages.PullRequest(subscription=idle, max_messages=1)).received_messages
            except grpc.RpcError as error:
                outcomes["pull"] = error.code()

        def poll() -> None:
            try:
                outcomes["poll"] = command(server.url, "queue.consume", queue="jobs", consumer_id="c", timeout=30)[0]
            except OSError as error:
                outcomes["poll"] = error

        waiting = [threading.Thread(target=pull), threading.Thread(target=poll)]
        for thread in waiting:
            thread.start()
        publishing = threading.Event()

        def publish() -> None:
            sent = 0
            with contextlib.suppress(grpc.RpcError):
                while True:
                    client.publish(topic, b"%d" % sent)
                    sent += 1
                    publishing.set()
            outcomes["published"] = sent

        publisher = threading.Thread(target=publish)
        publisher.start()
        assert publishing.wait(PATIENCE)
        server.process.send_signal(number)
        assert stream.end() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(PATIENCE) == 0
        server.stop()
        for thread in (*waiting, publisher):
            thread.join(PATIENCE)
    assert "Traceback" not in server.log, server.log
    assert outcomes["pull"] in ([], grpc.StatusCode.UNAVAILABLE)
    assert outcomes["poll"] in (200, 503), outcomes["poll"]
    with LocalServer(data_dir=tmp_path) as again, RawClient(again.grpc) as client:
        found: set[bytes] = set()
        client.call("Acknowledge", messages.AcknowledgeRequest(subscription=subscription, ack_ids=held[:1]))
        deadline = messages.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=held[1:], ack_deadline_seconds=0)
        client.call("ModifyAckDeadline", deadline)
        wanted = {b"leased too", *(b"%d" % number for number in range(outcomes["published"]))}
        with client.stream(subscription) as stream:
            for answer in stream:
                found |= {one.message.data for one in answer.received_messages}
                if wanted <= found:
                    break
        assert b"leased by a stream" not in found


def test_a_reader_that_does_not_read_does_not_delay_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer(shutdown_seconds=2 * SHUTDOWN_SECONDS) as server, RawClient(server.grpc) as client:
        topic, subscription = client.pair("big")
        for _ in range(10):
            client.publish(topic, bytes(2_000_000))
        with RawClient(server.grpc) as reader, reader.stream(subscription):
            leased = re.compile(r'penstock_subscription_in_flight\{.*"big"\} [1-9]')
            while not leased.search(ask(server.url + "/metrics")[1]):
                threading.Event().wait(0.01)
            server.stop()
    assert "Traceback" not in caplog.text


def test_a_stop_keeps_to_its_limit_whatever_a_client_does(caplog: pytest.LogCaptureFixture) -> None:
    with LocalServer(shutdown_seconds=1) as server, contextlib.ExitStack() as stack:
        for port in (server.server.port, server.server.grpc_port):
            for head in (
                b"",
                b"POST /api/v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",
                b"PRI * HTTP/2.0\r\n\r\n",
            ):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)).sendall(head)
        started = monotonic()
        server.stop()
        assert monotonic() - started < 15 * SECOND, "far more than the one second, and what a busy machine adds"
    assert "Traceback" not in caplog.text


def test_a_second_signal_hurries() -> None:
    with (
        ServerProcess(shutdown_seconds=SHUTDOWN_SECONDS) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client,
    ):
        client.sendall(
            b"POST /api/v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )  # a call that never ends
        ask(server.url + "/health/live")
        server.process.send_signal(signal.SIGTERM)
        while "stopping: finishing what runs" not in server.log:
            threading.Event().wait(0.01)
        server.stop()
        assert "stopping at once" in server.log
    assert "Traceback" not in server.log, server.log


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path) as server, RawClient(server.grpc) as client:
        topic, subscription = client.pair("orders", labels={"team": "blue"}, enable_exactly_once_delivery=True)
        client.publish(topic, b"one", b"two")
        done = client.pull(subscription, 1)
        client.call("Acknowledge", messages.AcknowledgeRequest(subscription=subscription, ack_ids=[one.ack_id for one in done]))
        snapshot = client.call(
            "CreateSnapshot", messages.CreateSnapshotRequest(name="projects/test/snapshots/before", subscription=subscription)
        )
        schema = client.call(
            "CreateSchema",
            messages.CreateSchemaRequest(parent="projects/test", schema_id="order", schema={"type": 2, "definition": AVRO}),
        )
        policy = client.call(
            "SetIamPolicy",
            messages.SetIamPolicyRequest(resource=topic, policy={"bindings": [{"role": "r", "members": ["user:a"]}]}),
        )
        command(server.url, "queue.create", name="jobs", config={})
        command(server.url, "queue.publish", queue="jobs", payload=[1, 2, 3])
        before = describe(client)
    with LocalServer(data_dir=tmp_path) as server, RawClient(server.grpc) as client:
        assert describe(client) == before
        left = {b"one", b"two"} - {one.message.data for one in done}
        assert {one.message.data for one in client.pull(subscription)} == left
        found = client.call("GetSnapshot", messages.GetSnapshotRequest(snapshot=snapshot.name))
        assert found == snapshot
        assert client.call("GetSchema", messages.GetSchemaRequest(name=schema.name, view=2)) == schema
        assert client.call("GetIamPolicy", messages.GetIamPolicyRequest(resource=topic)) == policy
        status, answer = command(server.url, "queue.consume", queue="jobs", consumer_id="c")
        assert status == 200
        assert "[1, 2, 3]" in json.dumps(answer), answer


def describe(client: RawClient) -> list[Any]:
    return [
        client.call("ListTopics", messages.ListTopicsRequest(project="projects/test")),
        client.call("ListSubscriptions", messages.ListSubscriptionsRequest(project="projects/test")),
        client.call("ListSnapshots", messages.ListSnapshotsRequest(project="projects/test")),
        client.call("ListSchemas", messages.ListSchemasRequest(parent="projects/test", view=2)),
    ]


# ── refusing to start ────────────────────────────────────────────────────────────────────────────────────────────────────────


LESS_USED = ("--native-port", "--resp-port", "--rpc-port")


@pytest.mark.parametrize("flag", ["--port", "--grpc-port", *(pytest.param(flag, marks=pytest.mark.long) for flag in LESS_USED)])
def test_a_port_in_use_is_a_clear_error(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        others = [other for name in ("--port", "--grpc-port", "--native-port") if name != flag for other in (name, "0")]
        ended = serve("--memory", flag, str(port), *others)
    setting = flag.removeprefix("--").replace("-", "_")
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        f"penstock: cannot listen on 127.0.0.1, {setting} {port}: Address already in use",
        f"choose another port with {flag}, 0 for a free one, or stop the program that uses this one",
    ]


def test_a_data_directory_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path) as server:
        ended = serve("--data-dir", str(tmp_path), "--port", "0", "--grpc-port", "0")
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr, ended.stderr
        assert str(os.getpid()) in ended.stderr
        with RawClient(server.grpc) as client:
            client.pair("unharmed")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", *(pytest.param(host, marks=pytest.mark.long) for host in ("::", "192.0.2.1", "example.com"))]
)
def test_listening_beyond_this_machine_without_tokens_is_refused(host: str) -> None:
    ended = serve("--memory", "--host", host, "--port", "0", "--grpc-port", "0")
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr, ended.stderr
    assert "--insecure" in ended.stderr
    assert "ready" not in ended.stderr


@pytest.mark.parametrize("name", ["garbage", pytest.param("missing", marks=pytest.mark.long)])
def test_a_certificate_that_cannot_be_used_is_a_clear_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "garbage").write_text("nonsense")
    flags = ["--tls-cert", str(tmp_path / name), "--tls-key", str(tmp_path / name)]
    ended = serve("--memory", "--port", "0", "--grpc-port", "0", *flags)
    assert ended.returncode in {1, 2}
    assert "Traceback" not in ended.stderr, ended.stderr
    assert name in ended.stderr


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_both_ports_speak_tls_and_nothing_else(certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    cert, key = certificate
    with LocalServer(tls_cert=cert, tls_key=key) as server:
        context = ssl.create_default_context(cafile=str(cert))
        assert ask(f"https://127.0.0.1:{server.server.port}/health/ready", context=context)[0] == 200
        with RawClient(server.grpc, certificate=cert.read_bytes()) as client:
            topic, subscription = client.pair("secret")
            client.publish(topic, b"over TLS")
            assert [one.message.data for one in client.pull(subscription)] == [b"over TLS"]
        with RawClient(server.grpc) as plain, pytest.raises(grpc.RpcError) as caught:
            plain.call("GetTopic", messages.GetTopicRequest(topic=topic), timeout=5)
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        with pytest.raises(OSError, match=r"."):
            ask(f"http://127.0.0.1:{server.server.port}/health/ready")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(f"https://127.0.0.1:{server.server.port}/health/ready", context=ssl.create_default_context())
    assert "Traceback" not in caplog.text


def test_googles_client_works_over_tls_with_a_token(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import pubsub_v1
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    cert, key = certificate
    token = Keyring(tmp_path / "tokens.json").create("google", SystemClock().now())
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json", tls_cert=cert, tls_key=key) as server:
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(cert.read_bytes()), grpc.access_token_call_credentials(token)
        )
        channel = grpc.secure_channel(server.grpc, credentials)
        anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]  # the library ships no types
        transport = PublisherGrpcTransport(channel=channel, credentials=anonymous)
        publisher = pubsub_v1.PublisherClient(transport=transport)
        topic = publisher.create_topic(name="projects/test/topics/secure").name
        assert publisher.publish(topic, b"hello").result(PATIENCE)
        publisher.stop()
        channel.close()


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Tokens:
    """A server that asks for tokens, with two projects in it. Tokens are made before it starts: it looks once a second."""

    def __init__(self, path: Path) -> None:
        keyring, now = Keyring(path), SystemClock().now()
        self.all = keyring.create("all", now)
        self.of_a = keyring.create("a", now, project="aaa")
        self.by_verb = {verb: keyring.create(verb, now, verbs=[verb]) for verb in Verb}
        self.server = LocalServer(auth="token", token_file=path)

    def fill(self) -> None:
        """Something of each kind in both projects."""
        with self.client(self.all) as client:
            for project in ("aaa", "bbb"):
                _, subscription = client.pair("thing", project=project)
                client.call(
                    "CreateSnapshot",
                    messages.CreateSnapshotRequest(name=f"projects/{project}/snapshots/thing", subscription=subscription),
                )
                client.call(
                    "CreateSchema",
                    messages.CreateSchemaRequest(
                        parent=f"projects/{project}", schema_id="thing", schema={"type": 2, "definition": AVRO}
                    ),
                )
                status, answer = self.command(project, "queue.create", self.all, name="thing", config={})
                assert status == 200, answer

    def client(self, token: str | None) -> RawClient:
        return RawClient(self.server.grpc, token=token)

    def command(self, project: str, command: str, token: str | None, **payload: Any) -> tuple[int, Any]:
        """A command of the queue API in a project."""
        body = {"command": command, "request_id": "1", "payload": payload}
        return ask(f"{self.server.url}/api/v1/command", body, token=token, project=project)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokens]:
    tokens = Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")
    with tokens.server:
        tokens.fill()
        yield tokens


def things(project: str) -> list[tuple[str, Any]]:
    """A call of each kind on what a project holds."""
    topic, subscription = f"projects/{project}/topics/thing", f"projects/{project}/subscriptions/thing"
    snapshot, schema = f"projects/{project}/snapshots/thing", f"projects/{project}/schemas/thing"
    return [
        ("GetTopic", messages.GetTopicRequest(topic=topic)),
        ("UpdateTopic", messages.UpdateTopicRequest(topic={"name": topic, "labels": {}}, update_mask={"paths": ["labels"]})),
        ("Publish", messages.PublishRequest(topic=topic, messages=[{"data": b"x"}])),
        ("ListTopics", messages.ListTopicsRequest(project=f"projects/{project}")),
        ("ListTopicSubscriptions", messages.ListTopicSubscriptionsRequest(topic=topic)),
        ("ListTopicSnapshots", messages.ListTopicSnapshotsRequest(topic=topic)),
        ("CreateTopic", messages.Topic(name=topic + "-new")),
        ("CreateSubscription", messages.Subscription(name=subscription + "-new", topic=topic)),
        ("GetSubscription", messages.GetSubscriptionRequest(subscription=subscription)),
        (
            "UpdateSubscription",
            messages.UpdateSubscriptionRequest(
                subscription={"name": subscription, "labels": {}}, update_mask={"paths": ["labels"]}
            ),
        ),
        ("ListSubscriptions", messages.ListSubscriptionsRequest(project=f"projects/{project}")),
        ("Pull", messages.PullRequest(subscription=subscription, max_messages=1)),
        ("Acknowledge", messages.AcknowledgeRequest(subscription=subscription, ack_ids=["AAAA"])),
        (
            "ModifyAckDeadline",
            messages.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=["AAAA"], ack_deadline_seconds=10),
        ),
        ("ModifyPushConfig", messages.ModifyPushConfigRequest(subscription=subscription)),
        ("GetSnapshot", messages.GetSnapshotRequest(snapshot=snapshot)),
        ("ListSnapshots", messages.ListSnapshotsRequest(project=f"projects/{project}")),
        ("CreateSnapshot", messages.CreateSnapshotRequest(name=snapshot + "-new", subscription=subscription)),
        (
            "UpdateSnapshot",
            messages.UpdateSnapshotRequest(snapshot={"name": snapshot, "labels": {}}, update_mask={"paths": ["labels"]}),
        ),
        ("Seek", messages.SeekRequest(subscription=subscription, snapshot=snapshot)),
        ("GetSchema", messages.GetSchemaRequest(name=schema)),
        ("ListSchemas", messages.ListSchemasRequest(parent=f"projects/{project}")),
        ("ListSchemaRevisions", messages.ListSchemaRevisionsRequest(name=schema)),
        ("CommitSchema", messages.CommitSchemaRequest(name=schema, schema={"name": schema, "type": 2, "definition": AVRO})),
        ("RollbackSchema", messages.RollbackSchemaRequest(name=schema, revision_id="00000000")),
        ("DeleteSchemaRevision", messages.DeleteSchemaRevisionRequest(name=f"{schema}@00000000")),
        (
            "CreateSchema",
            messages.CreateSchemaRequest(
                parent=f"projects/{project}", schema_id="thing-new", schema={"type": 2, "definition": AVRO}
            ),
        ),
        (
            "ValidateMessage",
            messages.ValidateMessageRequest(parent=f"projects/{project}", name=schema, message=b"{}", encoding=1),
        ),
        ("ValidateSchema", messages.ValidateSchemaRequest(parent=f"projects/{project}", schema={"type": 2, "definition": AVRO})),
        ("SetIamPolicy", messages.SetIamPolicyRequest(resource=topic, policy={})),
        ("GetIamPolicy", messages.GetIamPolicyRequest(resource=subscription)),
        ("TestIamPermissions", messages.TestIamPermissionsRequest(resource=schema, permissions=["pubsub.topics.get"])),
        ("DetachSubscription", messages.DetachSubscriptionRequest(subscription=subscription)),
        ("DeleteSnapshot", messages.DeleteSnapshotRequest(snapshot=snapshot)),
        ("DeleteSubscription", messages.DeleteSubscriptionRequest(subscription=subscription)),
        ("DeleteTopic", messages.DeleteTopicRequest(topic=topic)),
        ("DeleteSchema", messages.DeleteSchemaRequest(name=schema)),
    ]


def test_every_unary_call_is_in_the_table() -> None:
    assert {name for name, _ in things("aaa")} == {path.rpartition("/")[2] for path in messages.METHODS} - {"StreamingPull"}


@pytest.mark.parametrize("token", [None, "nonsense", "penstock_000000000000_" + "x" * 43])
def test_without_a_good_token_no_call_gets_through(tokens: Tokens, token: str | None) -> None:
    with tokens.client(token) as client:
        for name, request in things("aaa"):
            assert client.code(name, request) is grpc.StatusCode.UNAUTHENTICATED, name
        assert client.stream("projects/aaa/subscriptions/thing").end() is grpc.StatusCode.UNAUTHENTICATED
    assert ask(tokens.server.url + "/v1/projects/aaa/topics", token=token)[0] == 401
    assert command(tokens.server.url, "queue.list", token=token)[0] == 401


def test_a_token_of_one_project_cannot_touch_another(tokens: Tokens) -> None:
    with tokens.client(tokens.of_a) as client:
        for name, request in things("bbb"):
            assert client.code(name, request) is grpc.StatusCode.PERMISSION_DENIED, name
        assert client.stream("projects/bbb/subscriptions/thing").end() is grpc.StatusCode.PERMISSION_DENIED
        # What does not exist is refused alike: the answer tells nothing.
        for name, request in things("ccc"):
            assert client.code(name, request) is grpc.StatusCode.PERMISSION_DENIED, name
    for path in ("topics", "topics/thing", "subscriptions", "subscriptions/thing", "snapshots", "snapshots/thing", "schemas"):
        assert ask(tokens.server.url + f"/v1/projects/bbb/{path}", token=tokens.of_a)[0] == 403, path
    with tokens.client(tokens.all) as client:
        assert client.code("GetTopic", messages.GetTopicRequest(topic="projects/bbb/topics/thing")) is grpc.StatusCode.OK
        (topic,) = client.call("ListTopics", messages.ListTopicsRequest(project="projects/bbb")).topics
        assert topic.name == "projects/bbb/topics/thing"


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        (
            "CreateSubscription",
            messages.Subscription(name="projects/aaa/subscriptions/crossing", topic="projects/bbb/topics/thing"),
        ),
        (
            "CreateSubscription",
            messages.Subscription(
                name="projects/aaa/subscriptions/crossing",
                topic="projects/aaa/topics/thing",
                dead_letter_policy={"dead_letter_topic": "projects/bbb/topics/thing"},
            ),
        ),
        (
            "UpdateSubscription",
            messages.UpdateSubscriptionRequest(
                subscription={
                    "name": "projects/aaa/subscriptions/thing",
                    "dead_letter_policy": {"dead_letter_topic": "projects/bbb/topics/thing"},
                },
                update_mask={"paths": ["dead_letter_policy"]},
            ),
        ),
        (
            "CreateTopic",
            messages.Topic(
                name="projects/aaa/topics/crossing", schema_settings={"schema": "projects/bbb/schemas/thing", "encoding": 1}
            ),
        ),
        (
            "UpdateTopic",
            messages.UpdateTopicRequest(
                topic={
                    "name": "projects/aaa/topics/thing",
                    "schema_settings": {"schema": "projects/bbb/schemas/thing", "encoding": 1},
                },
                update_mask={"paths": ["schema_settings"]},
            ),
        ),
        (
            "CreateSnapshot",
            messages.CreateSnapshotRequest(
                name="projects/aaa/snapshots/crossing", subscription="projects/bbb/subscriptions/thing"
            ),
        ),
        (
            "Seek",
            messages.SeekRequest(subscription="projects/aaa/subscriptions/thing", snapshot="projects/bbb/snapshots/thing"),
        ),
        (
            "ValidateMessage",
            messages.ValidateMessageRequest(
                parent="projects/aaa", name="projects/bbb/schemas/thing", message=b'{"a": "x"}', encoding=1
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_token_of_one_project_cannot_reach_across_by_a_field(tokens: Tokens, name: str, request_: Any) -> None:
    with tokens.client(tokens.of_a) as client:
        assert client.code(name, request_) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        ("queue.list", {}),
        ("queue.create", {"name": "other", "config": {}}),
        ("queue.stats", {"queue": "thing"}),
        ("queue.publish", {"queue": "thing", "payload": [1]}),
        ("queue.consume", {"queue": "thing", "consumer_id": "c"}),
        ("queue.ack", {"queue": "thing", "message_id": "m"}),
        ("queue.nack", {"queue": "thing", "message_id": "m"}),
        ("queue.purge", {"queue": "thing"}),
        ("queue.delete", {"queue": "thing"}),
    ],
)
def test_a_token_of_one_project_cannot_reach_anothers_queues(tokens: Tokens, command: str, payload: dict[str, Any]) -> None:
    for project in ("bbb", "ccc"):  # there, and not there: the answer tells nothing
        status, answer = tokens.command(project, command, tokens.of_a, **payload)
        assert status == 403, answer
    status, answer = tokens.command("bbb", "queue.stats", tokens.all, queue="thing")
    assert status == 200, answer


@pytest.mark.parametrize("verb", list(Verb))
def test_a_token_does_what_its_verbs_say_and_no_more(tokens: Tokens, verb: Verb) -> None:
    needs = {
        Verb.READ: ("GetTopic", messages.GetTopicRequest(topic="projects/aaa/topics/thing")),
        Verb.PUBLISH: ("Publish", messages.PublishRequest(topic="projects/aaa/topics/thing", messages=[{"data": b"x"}])),
        Verb.CONSUME: (
            "Pull",
            messages.PullRequest(subscription="projects/aaa/subscriptions/thing", max_messages=1, return_immediately=True),
        ),
        Verb.MANAGE: (
            "UpdateTopic",
            messages.UpdateTopicRequest(
                topic={"name": "projects/aaa/topics/thing", "labels": {"by": verb}}, update_mask={"paths": ["labels"]}
            ),
        ),
    }
    token = tokens.by_verb[verb]
    with tokens.client(token) as client:
        for needed, (name, request) in needs.items():
            wanted = grpc.StatusCode.OK if needed is verb else grpc.StatusCode.PERMISSION_DENIED
            assert client.code(name, request) is wanted, (verb, needed)
    status, _ = ask(tokens.server.url + "/v1/projects/aaa/topics/thing", token=token)
    assert status == (200 if verb is Verb.READ else 403)


def test_too_many_calls_are_refused_and_others_are_not() -> None:
    with LocalServer(rate_limit=1, rate_burst=5) as server, RawClient(server.grpc) as client:
        request = messages.ListTopicsRequest(project="projects/test")
        codes = [client.code("ListTopics", request) for _ in range(10)]
        assert codes[:5] == [grpc.StatusCode.OK] * 5
        assert codes[5:].count(grpc.StatusCode.RESOURCE_EXHAUSTED) >= 4
        assert ask(server.url + "/v1/projects/test/topics")[0] == 429
        assert ask(server.url + "/health/live")[0] == 200


# ── what is never logged ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_neither_a_token_nor_a_payload_reaches_the_log(tmp_path: Path) -> None:
    token = Keyring(tmp_path / "tokens.json").create("test", SystemClock().now())
    wrong = token[:-5] + "AAAAA"
    marker = "PAYLOAD-MARKER"
    with ServerProcess(tmp_path, auth="token", log_level="debug") as server:
        with RawClient(server.grpc, token=token) as client:
            topic, subscription = client.pair("logged")
            client.publish(topic, marker.encode())
            client.call(
                "Publish",
                messages.PublishRequest(topic=topic, messages=[{"attributes": {marker: marker}, "ordering_key": marker}]),
            )
            assert client.pull(subscription)
            client.code("Publish", messages.PublishRequest(topic=topic, messages=[{"attributes": {"goog" + marker: marker}}]))
            client.code("Acknowledge", messages.AcknowledgeRequest(subscription=subscription, ack_ids=[marker]))
        with RawClient(server.grpc, token=wrong) as client:
            client.code("Publish", messages.PublishRequest(topic=topic, messages=[{"data": marker.encode()}]))
        for secret in (token, wrong):
            command(server.url, "queue.create", token=secret, name="logged", config={})
            command(server.url, "queue.publish", token=secret, queue="logged", payload=list(marker.encode()))
            command(server.url, "queue.publish", token=secret, queue="logged", payload=marker)
            ask(server.url + f"/v1/{topic}:publish", {"messages": [{"data": marker}]}, token=secret)
            ask(server.url + f"/v1/{topic}:publish?access_token={secret}&key={secret}", {"messages": marker}, token=secret)
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client_socket:
            client_socket.sendall(f"{token} {marker}\r\n\r\n".encode())
            client_socket.recv(1000)
        server.stop()
    log = server.log
    assert "POST" in log, "it does log at this level"
    for secret in (token, wrong, token.rpartition("_")[2], marker, ", ".join(map(str, marker.encode()))):
        assert secret not in log
