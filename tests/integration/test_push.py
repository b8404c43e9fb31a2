"""Push from a whole server to real endpoints, driven by Google's client."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import jwt
import msgspec
import pytest
from google.api_core import exceptions

from penstock.broker.core.queue import Queue
from penstock.google import push
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.google.real_client import Google, connected, eventually, unique
from tests.integration.push_endpoint import Endpoint, Post, RawEndpoint, floods, is_silent, says

MS = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def google(server: LocalServer) -> Iterator[Google]:
    yield from connected(server.grpc)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        yield endpoint


@contextmanager
def clients(host: str) -> Iterator[Google]:
    google = Google(host)
    try:
        yield google
    finally:
        google.close()


def pushed(google: Google, url: str, **fields: Any) -> tuple[str, str]:
    """A topic and a subscription that pushes to a URL."""
    config = {"push_endpoint": url, **fields.pop("push_config", {})}
    return google.pair(push_config=config, **fields)


def queue_of(server: LocalServer, subscription: str) -> Queue:
    _, project, _, name = subscription.split("/")
    return server.broker.catalog.subscriptions[f"{project}/{name}"]


def backlog(server: LocalServer, subscription: str) -> int:
    with server.broker.lock:
        return queue_of(server, subscription).backlog


def set_deadline(server: LocalServer, subscription: str, micros: int) -> None:
    """A shorter ack deadline than the API allows, so that a test need not wait ten seconds for it."""
    queue = queue_of(server, subscription)
    policy = msgspec.structs.replace(queue.policy, ack_deadline=micros)
    server.broker.change(lambda catalog, now: catalog.update_queue(queue, policy, queue.spec, now))


def metric(server: LocalServer, subscription: str, name: str) -> float:
    _, project, _, plain = subscription.split("/")
    with urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    head = f'penstock_subscription_pushes_{name}{{project="{project}",subscription="{plain}"}} '
    return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0.0)


def first_then(status: int, then: int = 200) -> Any:
    """Answer every message's first POST with one status, later ones with another."""
    seen: Counter[str] = Counter()

    def react(post: Post) -> int:
        message = post.json["message"]["messageId"]
        seen[message] += 1
        return status if seen[message] == 1 else then

    return react


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wrapped(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    topic, subscription = pushed(google, f"{endpoint.url}/in?x=1", enable_message_ordering=True)
    (message_id,) = google.publish(topic, {"data": b"\x00hello", "attributes": {"a": "ä"}, "ordering_key": "k"})

    (post,) = endpoint.posts.wait(1)
    body = post.json
    published = body["message"].pop("publishTime")
    assert post.path == "/in?x=1"
    assert post.headers["content-type"] == "application/json"
    assert "authorization" not in post.headers
    assert body == {
        "message": {
            "data": b64encode(b"\x00hello").decode(),
            "attributes": {"a": "ä"},
            "messageId": message_id,
            "message_id": message_id,
            "publish_time": published,
            "orderingKey": "k",
        },
        "subscription": subscription,
    }
    assert published.endswith("Z")
    eventually(lambda: backlog(server, subscription) == 0)
    assert len(endpoint.posts.items) == 1


def test_unwrapped_with_and_without_metadata(google: Google, endpoint: Endpoint) -> None:
    topic = google.topic()
    plain = {"push_endpoint": f"{endpoint.url}/plain", "no_wrapper": {}}
    full = {"push_endpoint": f"{endpoint.url}/full", "no_wrapper": {"write_metadata": True}}
    google.subscription(topic, push_config=plain)
    subscription = google.subscription(topic, push_config=full)
    (message_id,) = google.publish(topic, {"data": b"raw \xff", "attributes": {"color": "red", "Authorization": "stolen"}})

    posts = {post.path: post for post in endpoint.posts.wait(2)}
    assert posts["/plain"].body == posts["/full"].body == b"raw \xff"
    assert not [name for name in posts["/plain"].headers if name.startswith("x-goog") or name == "color"]
    headers = posts["/full"].headers
    assert headers["color"] == "red"
    assert "authorization" not in headers
    assert headers["x-goog-pubsub-message-id"] == message_id
    assert headers["x-goog-pubsub-subscription-name"] == subscription


def test_a_transform_of_the_subscription_is_applied(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    code = "function f(m) { if (m.data === 'drop') return null; m.data = m.data.toUpperCase(); return m; }"
    transforms = [{"javascript_udf": {"code": code, "function_name": "f"}}]
    topic, subscription = pushed(google, endpoint.url, message_transforms=transforms)
    google.publish(topic, b"drop", b"keep")

    (post,) = endpoint.posts.wait(1)
    assert post.data == b"KEEP"
    eventually(lambda: backlog(server, subscription) == 0)
    assert len(endpoint.posts.items) == 1


def test_a_large_message(google: Google, endpoint: Endpoint) -> None:
    topic, _ = pushed(google, endpoint.url, push_config={"no_wrapper": {}})
    data = bytes(range(256)) * (9 * 4096)
    google.publish(topic, data)

    (post,) = endpoint.posts.wait(1)
    assert post.body == data


# ── what the answer means ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_four_statuses_acknowledge_and_all_others_give_back(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    posts = dict.fromkeys([200, 201, 202, 204], 1) | dict.fromkeys([203, 301, 307, 400, 404, 429, 500, 503], 2)
    seen: Counter[str] = Counter()

    def react(post: Post) -> int:
        seen[post.path] += 1
        return int(post.path[1:]) if seen[post.path] == 1 else 200

    endpoint.react = react
    topic = google.topic()
    subscriptions = [google.subscription(topic, push_config={"push_endpoint": f"{endpoint.url}/{status}"}) for status in posts]
    (message_id,) = google.publish(topic, b"x")

    eventually(lambda: not any(backlog(server, subscription) for subscription in subscriptions))
    assert seen == {f"/{status}": count for status, count in posts.items()}
    assert {post.json["message"]["messageId"] for post in endpoint.posts.items} == {message_id}


def test_102_acknowledges(google: Google, server: LocalServer) -> None:
    with RawEndpoint(says(b"HTTP/1.1 102 Processing\r\n\r\n")) as endpoint:
        topic, subscription = pushed(google, endpoint.url)
        google.publish(topic, b"x")
        eventually(lambda: backlog(server, subscription) == 0)
        assert len(endpoint.calls.items) == 1


def test_without_a_retry_policy_an_endpoint_is_left_alone_longer_and_longer(google: Google, endpoint: Endpoint) -> None:
    endpoint.react = lambda _: 500
    topic, _ = pushed(google, endpoint.url)
    google.publish(topic, *[b"x"] * 100)

    posts = endpoint.posts.wait(5)
    gaps = [later.at - earlier.at for earlier, later in pairwise(posts)]
    # The answer travels too, so a gap is never shorter than the rest; with a hundred messages waiting nothing else makes one.
    assert [gap > rest * MS for gap, rest in zip(gaps, (95, 195, 395, 795), strict=False)] == [True] * 4


def test_with_a_retry_policy_a_bad_message_waits_and_the_good_ones_go_on(google: Google, endpoint: Endpoint) -> None:
    bad: list[int] = []

    def react(post: Post) -> int:
        if post.data != b"bad":
            return 200
        bad.append(post.at)
        return 500 if len(bad) < 3 else 200

    endpoint.react = react
    retry = {"minimum_backoff": {"nanos": 400_000_000}, "maximum_backoff": {"seconds": 10}}
    topic, _ = pushed(google, endpoint.url, retry_policy=retry)
    google.publish(topic, b"bad", *[b"good"] * 50)

    posts = endpoint.posts.until(lambda posts: sum(post.data == b"bad" for post in posts) == 3)
    order = [post.data for post in posts]
    assert order.index(b"bad") < 50
    second = [index for index, data in enumerate(order) if data == b"bad"][1]
    assert order[:second].count(b"good") == 50
    assert bad[1] - bad[0] >= 400 * MS
    assert bad[2] - bad[1] >= 800 * MS


def test_dead_letters_after_the_last_attempt_with_the_reason(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    endpoint.react = lambda _: 418
    letters, kept = google.pair()
    retry = {"minimum_backoff": {"nanos": 10_000_000}, "maximum_backoff": {"nanos": 10_000_000}}
    policy = {"dead_letter_topic": letters, "max_delivery_attempts": 5}
    topic, subscription = pushed(google, endpoint.url, retry_policy=retry, dead_letter_policy=policy)
    google.publish(topic, b"poison")

    (letter,) = google.pull(kept, 1)
    assert letter.message.data == b"poison"
    assert letter.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert "the endpoint answered with status 418" in letter.message.attributes.values()
    assert [post.json["deliveryAttempt"] for post in endpoint.posts.items] == [1, 2, 3, 4, 5]
    assert backlog(server, subscription) == 0
    assert metric(server, subscription, "refused_total") == 5


def test_order_of_a_key_holds_through_failures(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    accepted: dict[str, list[bytes]] = defaultdict(list)
    seen: Counter[str] = Counter()

    def react(post: Post) -> int:
        message = post.json["message"]
        seen[message["messageId"]] += 1
        if seen[message["messageId"]] == 1 and int(post.data) % 7 == 3:
            return 503
        accepted[message["orderingKey"]].append(post.data)
        return 200

    endpoint.react = react
    retry = {"minimum_backoff": {"nanos": 1_000_000}, "maximum_backoff": {"nanos": 1_000_000}}
    topic, subscription = pushed(google, endpoint.url, enable_message_ordering=True, retry_policy=retry)
    bodies = [b"%d" % number for number in range(20)]
    for key in ("a", "b", "c"):
        google.publish(topic, *[{"data": body, "ordering_key": key} for body in bodies])

    eventually(lambda: backlog(server, subscription) == 0)
    assert dict(accepted) == dict.fromkeys("abc", bodies)


# ── slow, absent and hostile endpoints ───────────────────────────────────────────────────────────────────────────────────────


def test_down_then_up(google: Google, server: LocalServer) -> None:
    with Endpoint() as endpoint:
        port = endpoint.port
    topic, subscription = pushed(google, endpoint.url)
    sent = google.publish(topic, *[b"x"] * 20)
    eventually(lambda: metric(server, subscription, "unreachable_total") >= 2)
    assert backlog(server, subscription) == 20

    with Endpoint(port=port) as endpoint:
        eventually(lambda: backlog(server, subscription) == 0)
        assert Counter(post.json["message"]["messageId"] for post in endpoint.posts.items) == Counter(sent)


def test_an_answer_beyond_the_deadline_is_a_failure_and_no_second_delivery_overlaps(google: Google, server: LocalServer) -> None:
    with Endpoint() as endpoint:
        topic, subscription = pushed(google, endpoint.url)
        set_deadline(server, subscription, 1_500 * MS)
        first = threading.Event()

        def react(post: Post) -> Any:
            if first.is_set():
                return 200
            first.set()
            return endpoint.hold(post)

        endpoint.react = react
        google.publish(topic, b"x")
        posts = endpoint.posts.wait(2)
        eventually(lambda: backlog(server, subscription) == 0)

        assert posts[1].at - posts[0].at >= 1_500 * MS
        assert endpoint.posts.items == posts
        assert metric(server, subscription, "timed_out_total") == 1
        assert metric(server, subscription, "acked_total") == 1


def test_a_slow_answer_within_the_deadline_is_one_delivery(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    endpoint.react = endpoint.hold
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, b"x")
    endpoint.posts.wait(1)
    assert metric(server, subscription, "running") == 1
    with server.broker.lock:
        (lease,) = queue_of(server, subscription)._leases.live()
        # The lease outlasts the longest POST, so it cannot run out under one.
        assert lease.deadline - server.broker.clock.now() > queue_of(server, subscription).policy.ack_deadline + 20_000 * MS
    endpoint.let_go()

    eventually(lambda: backlog(server, subscription) == 0)
    assert len(endpoint.posts.items) == 1


def test_a_new_endpoint_gets_one_post_at_a_time_until_it_has_answered(
    google: Google, server: LocalServer, endpoint: Endpoint
) -> None:
    endpoint.react = lambda post: 200 if len(endpoint.posts.items) == 1 else endpoint.hold(post)
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, *[b"x"] * 100)
    endpoint.posts.wait(3)  # the first alone, then two at once, and no third before one of them is answered
    assert len(endpoint.posts.stay(0.1)) == 3
    assert endpoint.most_running == 2
    endpoint.let_go()

    eventually(lambda: backlog(server, subscription) == 0)
    assert len(endpoint.posts.items) == 100


@pytest.mark.parametrize(
    "talk",
    [
        floods,
        is_silent,
        says(b""),
        says(b"garbage" * 10_000),
        says(b"HTTP/1.1 302 Go\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    ],
    ids=["floods", "silent", "hangs up", "garbage", "redirects"],
)
def test_a_hostile_endpoint_does_no_harm_to_others(google: Google, server: LocalServer, endpoint: Endpoint, talk: Any) -> None:
    with RawEndpoint(talk) as hostile:
        topic, bad = pushed(google, hostile.url)
        good = google.subscription(topic, push_config={"push_endpoint": endpoint.url})
        set_deadline(server, bad, 200 * MS)
        google.publish(topic, *[b"x"] * 30)
        hostile.calls.wait(1)
        endpoint.posts.wait(30)
        eventually(lambda: backlog(server, good) == 0)
        google.call(google.subscriber.delete_subscription, {"subscription": bad})


# ── changes while it runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def modify(google: Google, subscription: str, **config: Any) -> None:
    google.call(google.subscriber.modify_push_config, {"subscription": subscription, "push_config": config})


def test_from_push_to_pull_and_back_nothing_is_lost(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    endpoint.react = endpoint.hold
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, b"first", b"second", b"third")
    endpoint.posts.wait(1)
    with pytest.raises(exceptions.FailedPrecondition):
        google.pull_once(subscription)

    modify(google, subscription)
    pulled = google.pull(subscription, 2)
    assert sorted(one.message.data for one in pulled) == [b"second", b"third"]
    google.ack(subscription, pulled)
    endpoint.let_go()
    eventually(lambda: backlog(server, subscription) == 0)
    assert [post.data for post in endpoint.posts.items] == [b"first"]

    google.publish(topic, b"fourth")
    modify(google, subscription, push_endpoint=endpoint.url)
    assert [post.data for post in endpoint.posts.wait(2)] == [b"first", b"fourth"]
    eventually(lambda: backlog(server, subscription) == 0)


def test_back_to_push_while_a_post_is_under_way_does_not_send_it_twice(
    google: Google, server: LocalServer, endpoint: Endpoint
) -> None:
    endpoint.react = endpoint.hold
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, b"first", b"second")
    endpoint.posts.wait(1)
    modify(google, subscription)
    modify(google, subscription, push_endpoint=endpoint.url)
    endpoint.let_go()

    eventually(lambda: backlog(server, subscription) == 0)
    assert [post.data for post in endpoint.posts.items] == [b"first", b"second"]


def test_another_endpoint_counts_from_the_next_message_on(google: Google, endpoint: Endpoint) -> None:
    topic, subscription = pushed(google, f"{endpoint.url}/old")
    google.publish(topic, b"1")
    endpoint.posts.wait(1)
    google.update(subscription, "push_config", push_config={"push_endpoint": f"{endpoint.url}/new"})
    google.publish(topic, b"2")

    assert [(post.path, post.data) for post in endpoint.posts.wait(2)] == [("/old", b"1"), ("/new", b"2")]


def test_another_endpoint_need_not_wait_for_the_rest_of_the_old_one(google: Google, endpoint: Endpoint) -> None:
    endpoint.react = lambda post: 500 if post.path == "/bad" else 200
    topic, subscription = pushed(google, f"{endpoint.url}/bad")
    google.publish(topic, b"x")
    endpoint.posts.wait(6)  # the old endpoint rests for 3.2 seconds, and the message that failed waits as long
    modify(google, subscription, push_endpoint=f"{endpoint.url}/good")
    google.publish(topic, b"y")
    posts = endpoint.posts.until(lambda posts: posts[-1].path == "/good")

    assert next(post for post in posts if post.path == "/good").data == b"y"


def test_pull_and_streaming_pull_are_refused(google: Google, endpoint: Endpoint) -> None:
    _, subscription = pushed(google, endpoint.url)
    with pytest.raises(exceptions.FailedPrecondition, match="push"):
        google.pull_once(subscription)
    with google.stream(subscription) as stream:
        assert stream.end() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_deleted_subscription_pushes_no_more_and_a_new_one_of_its_name_does(google: Google, endpoint: Endpoint) -> None:
    endpoint.react = endpoint.hold
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, *[b"old"] * 10)
    endpoint.posts.wait(1)
    google.call(google.subscriber.delete_subscription, {"subscription": subscription})
    google.subscription(topic, name=subscription, push_config={"push_endpoint": endpoint.url})
    endpoint.let_go()
    google.publish(topic, b"new")

    endpoint.posts.until(lambda posts: posts[-1].data == b"new")
    assert [post.data for post in endpoint.posts.items] == [b"old", b"new"]


@pytest.mark.parametrize("how", ["detach", pytest.param("delete the topic", marks=pytest.mark.long)])
def test_a_detached_subscription_pushes_no_more(google: Google, server: LocalServer, endpoint: Endpoint, how: str) -> None:
    endpoint.react = endpoint.hold
    topic, subscription = pushed(google, endpoint.url)
    google.publish(topic, *[b"x"] * 10)
    endpoint.posts.wait(1)
    if how == "detach":
        google.call(google.plain.detach_subscription, {"subscription": subscription})
    else:
        google.call(google.plain.delete_topic, {"topic": topic})
    eventually(lambda: endpoint.running == 0)  # what was under way is broken off
    endpoint.let_go()

    assert len(endpoint.posts.stay(0.1)) == 1


def test_a_seek_back_pushes_again(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    topic, subscription = pushed(google, endpoint.url, retain_acked_messages=True)
    google.publish(topic, b"x")
    eventually(lambda: endpoint.posts.items and backlog(server, subscription) == 0)
    google.call(google.subscriber.seek, {"subscription": subscription, "time": {"seconds": 1}})

    assert [post.data for post in endpoint.posts.wait(2)] == [b"x", b"x"]


# ── the server's own life ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_waits_for_posts_and_the_next_run_goes_on(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.react = endpoint.hold
    server = LocalServer(data_dir=tmp_path, shutdown_seconds=100).start()
    with clients(server.grpc) as google:
        topic, _ = pushed(google, endpoint.url)
        google.publish(topic, b"first", b"second")
        endpoint.posts.wait(1)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert len(endpoint.posts.stay(0.2)) == 1
    assert stopping.is_alive()
    endpoint.let_go()
    stopping.join(60)
    assert [post.data for post in endpoint.posts.items] == [b"first"]

    with LocalServer(data_dir=tmp_path):
        assert [post.data for post in endpoint.posts.wait(2)] == [b"first", b"second"]


def test_a_post_that_outlasts_the_grace_is_given_back_without_counting(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        endpoint.react = endpoint.hold
        with LocalServer(data_dir=tmp_path, shutdown_seconds=0.2) as server, clients(server.grpc) as google:
            letters = google.topic()
            google.subscription(letters)
            topic, _ = pushed(google, endpoint.url, dead_letter_policy={"dead_letter_topic": letters})
            google.publish(topic, b"x")
            endpoint.posts.wait(1)
        endpoint.react = lambda _: 200
        with LocalServer(data_dir=tmp_path):
            assert [post.json["deliveryAttempt"] for post in endpoint.posts.wait(2)] == [1, 1]


def test_what_a_killed_server_was_pushing_is_pushed_again_at_once(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        endpoint.react = endpoint.hold
        with ServerProcess(tmp_path) as process, clients(process.grpc) as google:
            topic, _ = pushed(google, endpoint.url, ack_deadline_seconds=600)
            google.publish(topic, b"first", b"second")
            endpoint.posts.wait(1)
            # Leases are written within a moment; this publish is confirmed after everything before it is on disk.
            google.publish(google.topic(), b"elsewhere")
            process.kill()
        endpoint.react = lambda _: 200
        with ServerProcess(tmp_path):
            posts = endpoint.posts.wait(3)

    assert sorted(post.data for post in posts) == [b"first", b"first", b"second"]


# ── who is told, and who may be reached ──────────────────────────────────────────────────────────────────────────────────────


def checked(server_url: str, token: str, audience: str) -> dict[str, Any]:
    """What a token says, checked as an endpoint would: from the issuer to its keys."""
    issuer = jwt.decode(token, options={"verify_signature": False})["iss"]
    assert issuer == server_url
    with urlopen(f"{issuer}/.well-known/openid-configuration") as answer:
        discovery = json.load(answer)
    assert discovery["issuer"] == issuer
    key = jwt.PyJWKClient(discovery["jwks_uri"]).get_signing_key_from_jwt(token)
    return jwt.decode(token, key, algorithms=["RS256"], audience=audience, issuer=issuer)


def test_tokens_are_signed_by_a_key_that_survives_a_restart(tmp_path: Path, endpoint: Endpoint) -> None:
    port = 0
    tokens = []
    account = {"service_account_email": "robot@example.com"}
    for run in range(2):
        with LocalServer(data_dir=tmp_path, port=port) as server, clients(server.grpc) as google:
            port = server.server.port
            if not run:
                topic = google.topic(name=google.name("topics", "signed"))
                google.subscription(topic, push_config={"push_endpoint": f"{endpoint.url}/own", "oidc_token": account})
                given = {"push_endpoint": f"{endpoint.url}/given", "oidc_token": {**account, "audience": "me"}}
                google.subscription(topic, push_config=given)
            google.publish(google.name("topics", "signed"), b"x")
            posts = {post.path: post for post in endpoint.posts.wait(2 * run + 2)[2 * run :]}
            for path, audience in (("/own", f"{endpoint.url}/own"), ("/given", "me")):
                scheme, _, token = posts[path].headers["authorization"].partition(" ")
                claims = checked(server.url, token, audience)
                tokens.append(token)
                assert scheme == "Bearer"
                assert (claims["email"], claims["email_verified"]) == ("robot@example.com", True)
                assert claims["exp"] - claims["iat"] == 3_600
                assert claims["sub"].isdigit()
            for token in tokens:
                checked(server.url, token, jwt.decode(token, options={"verify_signature": False})["aud"])


def test_a_token_is_used_again_and_a_forged_one_is_noticed(google: Google, server: LocalServer, endpoint: Endpoint) -> None:
    account = {"oidc_token": {"service_account_email": "robot@example.com", "audience": unique("aud")}}
    topic, _ = pushed(google, endpoint.url, push_config=account)
    google.publish(topic, b"1", b"2", b"3")

    (token,) = {post.headers["authorization"].removeprefix("Bearer ") for post in endpoint.posts.wait(3)}
    head, body, _ = token.split(".")
    _, _, signature = jwt.encode({"a": 1}, "k" * 32, "HS256").split(".")
    with pytest.raises(jwt.InvalidSignatureError):
        checked(server.url, f"{head}.{body}.{signature}", account["oidc_token"]["audience"])


def test_where_push_may_go(tmp_path: Path, endpoint: Endpoint) -> None:
    with LocalServer(data_dir=tmp_path, push_allow=("127.0.0.1",)) as server, clients(server.grpc) as google:
        topic, subscription = pushed(google, endpoint.url)
        for call in (
            lambda: pushed(google, "http://elsewhere.example/"),
            lambda: modify(google, subscription, push_endpoint="http://elsewhere.example/"),
            lambda: google.update(subscription, "push_config", push_config={"push_endpoint": "http://[::1]/"}),
        ):
            with pytest.raises(exceptions.InvalidArgument, match="push_allow"):
                call()
        google.publish(topic, b"x")
        endpoint.posts.wait(1)

    with LocalServer(data_dir=tmp_path, push_allow=("other.example",)) as server, clients(server.grpc) as google:
        google.publish(topic, b"y")
        assert len(endpoint.posts.stay(0.2)) == 1
        assert backlog(server, subscription) == 1
        assert metric(server, subscription, "unreachable_total") == 0

    with LocalServer(data_dir=tmp_path):
        assert [post.data for post in endpoint.posts.wait(2)] == [b"x", b"y"]


def test_neither_bodies_nor_tokens_are_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    endpoint.react = first_then(500)
    account = {"oidc_token": {"service_account_email": "robot@example.com"}}
    with LocalServer() as server, clients(server.grpc) as google:
        topic, subscription = pushed(google, endpoint.url, push_config=account)
        google.publish(topic, b"s3cret")
        posts = endpoint.posts.wait(2)
        eventually(lambda: backlog(server, subscription) == 0)

    token = posts[0].headers["authorization"].removeprefix("Bearer ")
    assert token not in caplog.text
    assert "s3cret" not in caplog.text
    assert b64encode(b"s3cret").decode() not in caplog.text


@pytest.mark.parametrize("broken", ["push_request", "_Worker.deliver", "_Worker._turn_to"])
def test_an_unknown_error_is_logged_without_its_text_and_push_goes_on(
    broken: str, endpoint: Endpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = attrgetter(broken)(push)
    failures = iter([RuntimeError("s3cret")])

    def fails_once(*args: Any) -> Any:
        for error in failures:
            raise error
        return whole(*args)

    with LocalServer() as server, clients(server.grpc) as google:
        monkeypatch.setattr(f"penstock.google.push.{broken}", fails_once)
        topic, _ = pushed(google, endpoint.url)
        google.publish(topic, b"x")
        endpoint.posts.wait(1)

    assert "with RuntimeError" in caplog.text
    assert "in fails_once" in caplog.text
    assert "s3cret" not in caplog.text
