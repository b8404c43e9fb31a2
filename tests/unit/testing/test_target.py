"""The target for HTTP deliveries does what it is told, and says what came."""

import asyncio
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request

import pytest

from penstock.errors import InvalidArgument
from penstock.testing.certificates import Authority, self_signed
from penstock.testing.target import Behaviour, Connection, Request, Target, in_turn, respond


def post(url: str, body: bytes = b"{}", context: ssl.SSLContext | None = None) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, data=body, headers={"X-Word": "a", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def test_a_request_is_recorded_and_answered() -> None:
    with Target() as target:
        assert post(f"{target.url}/orders?x=1", b'{"messageId":"order-7"}')[:2] == (200, b"")
        [request] = target.wait_for(1)

    assert (request.number, request.method, request.path, request.status) == (1, "POST", "/orders?x=1", 200)
    assert (request.json, request.message_id) == ({"messageId": "order-7"}, "order-7")
    assert (request.headers["x-word"], request.headers["content-type"]) == ("a", "application/json")
    assert 0 < request.started_at <= request.ended_at
    assert (target.accepted, target.connections, target.peak) == (1, 0, 1)


@pytest.mark.parametrize("body", [b"", b"text", b"[]", b"1", b'"messageId"', b'{"messageId": 7}', b'{"id": "a"}', b"\xff"])
def test_a_body_that_names_no_message_has_none(body: bytes) -> None:
    assert Request(1, "POST", "/", {}, body, 0).message_id == ""


def test_a_message_is_found_among_those_that_came() -> None:
    with Target() as target:
        for name in ("a", "b", "a"):
            post(target.url, b'{"messageId":"%s"}' % name.encode())
        assert [request.number for request in target.received("a")] == [1, 3]
        post(target.url, b'{"messageId":"a"}')
        assert [request.number for request in target.received("a")] == [1, 3, 4]
        assert target.received("c") == []


@pytest.mark.parametrize(
    ("behaviour", "wanted"),
    [
        (respond(204), (204, b"", {"Content-Length": "0"})),
        (respond(503, b"later"), (503, b"later", {"Content-Length": "5"})),
        (respond(200, "né"), (200, "né".encode(), {"Content-Length": "3"})),
        (respond(200, {"ack": False}), (200, b'{"ack": false}', {"Content-Length": "14", "Content-Type": "application/json"})),
        (respond(429, headers={"Retry-After": "7"}), (429, b"", {"Retry-After": "7", "Content-Length": "0"})),
        (respond(799), (799, b"", {"Content-Length": "0"})),
    ],
)
def test_the_ready_answers(behaviour: Behaviour, wanted: tuple[int, bytes, dict[str, str]]) -> None:
    with Target(behaviour) as target:
        assert post(target.url) == wanted
        assert target.requests[0].status == wanted[0]


def test_an_answer_may_come_later() -> None:
    with Target(respond(after=0.1)) as target:
        post(target.url)
        [request] = target.requests
    assert request.ended_at - request.started_at >= 100_000


@pytest.mark.parametrize("after", [-1, float("nan"), "soon"])
def test_a_delay_that_is_none_is_refused(after: float) -> None:
    with pytest.raises(InvalidArgument, match="after is"):
        respond(after=after)


def test_paths_have_behaviours_of_their_own() -> None:
    with Target({"/a": respond(201), "*": respond(202)}) as target:
        assert [post(target.url + path)[0] for path in ("/a", "/a?b", "/a/", "/c")] == [201, 201, 202, 202]
    with Target({"/a": respond(201)}) as target:
        assert post(f"{target.url}/c")[0] == 404


def test_a_function_chooses_by_the_request() -> None:
    with Target(lambda request: respond(500 if request.number < 2 else int(request.path[1:]))) as target:
        assert [post(target.url + path)[0] for path in ("/200", "/201", "/202")] == [500, 201, 202]


def test_behaviours_take_turns_and_the_last_stays() -> None:
    with Target(in_turn(respond(500), respond(429), respond(200))) as target:
        assert [post(target.url)[0] for _ in range(5)] == [500, 429, 200, 200, 200]
    with pytest.raises(InvalidArgument, match="behaviours is"):
        in_turn()


def test_the_behaviour_can_be_changed_while_it_runs() -> None:
    with Target(respond(503)) as target:
        before = post(target.url)[0]
        target.behaviour = respond(200)
        assert (before, post(target.url)[0]) == (503, 200)


def test_a_behaviour_of_ones_own_writes_what_it_likes() -> None:
    async def answer(request: Request, connection: Connection) -> None:
        await connection.give(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
        await connection.give(request.body)
        connection.close()

    with Target(Behaviour(answer)) as target:
        assert post(target.url, b"as it is")[1] == b"as it is"
        assert target.requests[0].status == 0


def test_a_connection_serves_one_request_after_the_other() -> None:
    with Target() as target:
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
        for number in range(3):
            connection.request("POST", f"/{number}", body=b"x" * number)
            assert connection.getresponse().read() == b""
        assert (target.accepted, target.connections) == (1, 1)
        connection.close()
        assert [request.body for request in target.requests] == [b"", b"x", b"xx"]


def test_requests_in_one_packet_or_in_many_are_the_same() -> None:
    one = b"POST /%d HTTP/1.1\r\nHost: a\r\nX-Two: 1\r\nX-Two: 2\r\nContent-Length: 2\r\n\r\nhi"
    data = b"".join(one % number for number in range(3))
    for step in (1, 7, len(data)):
        with Target(in_turn(respond(after=0.01), respond(), respond(after=0.01))) as target:
            with socket.create_connection(("127.0.0.1", target.port), timeout=10) as raw:
                for at in range(0, len(data), step):
                    raw.sendall(data[at : at + step])
                target.wait_for(3)
            assert [request.path for request in target.requests] == ["/0", "/1", "/2"]
            assert {request.headers["x-two"] for request in target.requests} == {"1, 2"}
            assert target.peak == 1


def test_overlaps_can_be_told() -> None:
    both = threading.Barrier(2, timeout=10)

    def answer(request: Request) -> Behaviour:
        return respond(after=0.2 if request.path == "/slow" else 0)

    with Target(answer) as target:
        slow = threading.Thread(target=lambda: (both.wait(), post(f"{target.url}/slow")))
        slow.start()
        both.wait()
        target.wait_for(1)
        post(f"{target.url}/quick")
        assert target.requests[0].overlaps(target.requests[1])  # it is not over yet
        slow.join()
        post(f"{target.url}/quick")
        first, second, third = target.requests

    assert first.overlaps(second)
    assert second.overlaps(first)
    assert not first.overlaps(third)
    assert not third.overlaps(first)
    assert target.peak == 2


def test_a_client_that_goes_away_ends_its_request() -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with Target(Behaviour(never)) as target, socket.create_connection(("127.0.0.1", target.port)) as raw:
        raw.sendall(b"POST / HTTP/1.1\r\n\r\n")
        [request] = target.wait_for(1)
        assert request.ended_at == 0
    assert (request.ended_at > 0, request.status, target.connections) == (True, 0, 0)


def test_waiting_has_an_end() -> None:
    with Target() as target, pytest.raises(TimeoutError, match=r"0 requests came within 0\.01 s, wanted 1"):
        target.wait_for(1, 0.01)


def test_what_a_behaviour_raises_is_raised_at_the_end() -> None:
    def choose(request: Request) -> Behaviour:
        raise AssertionError(f"no request to {request.path} was expected")

    async def answer(request: Request, connection: Connection) -> None:
        raise ValueError("in a coroutine")

    for behaviour, problem in ((choose, "no request to /x was expected"), (Behaviour(answer), "in a coroutine")):
        target = Target(behaviour).start()
        with pytest.raises(OSError):  # noqa: PT011  # reset or closed, as the system likes
            post(f"{target.url}/x")
        with pytest.raises((AssertionError, ValueError), match=problem):
            target.stop()
        target.stop()


def test_what_failed_first_is_what_is_raised() -> None:
    def choose(_: Request) -> Behaviour:
        raise AssertionError("not expected")

    with pytest.raises(OSError), Target(choose) as target:  # noqa: PT011
        post(target.url)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: two\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_request_with_a_length_is_refused_and_told(data: bytes) -> None:
    target = Target().start()
    with socket.create_connection(("127.0.0.1", target.port), timeout=10) as raw:
        raw.sendall(data)
        with pytest.raises(ConnectionResetError):
            raw.recv(1)
    with pytest.raises(InvalidArgument, match=r"request is .*, wanted HTTP/1\.1 with a Content-Length"):
        target.stop()
    assert target.requests == []


def test_it_can_be_stopped_twice_before_a_start_and_started_again_on_the_same_port() -> None:
    target = Target(respond(after=3600))
    target.stop()
    with target.start().start():
        port = target.port
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"POST / HTTP/1.1\r\n\r\n")
            target.wait_for(1)
            target.stop()
            target.stop()
            with pytest.raises(ConnectionResetError):
                raw.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        target.behaviour = respond()
        target.start()
        assert post(f"http://127.0.0.1:{port}")[0] == 200
        assert len(target.requests) == 2


def test_a_port_that_is_taken_is_told_at_the_start() -> None:
    with Target() as first:
        second = Target()
        second.port = first.port
        with pytest.raises(OSError, match="in use"):
            second.start()


def test_tls_is_spoken_with_who_trusts_the_authority() -> None:
    authority = Authority()
    with Target(tls=authority.server()) as target:
        assert target.url.startswith("https://")
        assert post(target.url, context=authority.client())[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            post(target.url)
        assert len(target.requests) == 1


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (lambda authority: authority.server(days=-1), "certificate has expired"),
        (lambda authority: authority.server("other.example"), "certificate is not valid for '127.0.0.1'"),
        (lambda authority: Authority().server(), "certificate"),
        (lambda authority: self_signed(), "self.signed certificate"),
    ],
)
def test_certificates_are_bad_in_the_way_that_was_asked_for(server: object, problem: str) -> None:
    authority = Authority()
    assert callable(server)
    with Target(tls=server(authority)) as target, pytest.raises(urllib.error.URLError, match=problem):
        post(target.url, context=authority.client())
