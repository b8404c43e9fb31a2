"""`penstock router …` as its user sees it: what it says, what it does, and how it ends. Wrong calls: test_cli_wrong_calls.py."""

import json
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock, Run

PATIENCE = 60 * SECOND
CONFIG = {
    "queues": [{"queueName": "orders", "queueUri": "penstock:///queues/orders"}],
    "processingPools": [{"code": "HOOKS", "concurrency": 10}],
}


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    write(tmp_path, CONFIG)
    return Penstock(tmp_path)


def write(folder: Path, config: object) -> None:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")


@contextmanager
def running(penstock: Penstock, *, development: bool = True) -> Iterator[str]:
    """A router that has its queue: its address, which the commands know."""
    config = str(penstock.folder / "config.json")
    with LocalServer(router=config, router_development=development, router_allow=("127.0.0.1",)) as server:
        penstock.environment |= {"PENSTOCK_ROUTER": server.url, "PENSTOCK_SERVER": server.url}
        until(lambda: penstock("router", "status", "--json"), lambda found: "orders" in found["queues"])
        yield server.url


def until(look: Callable[[], Run], is_so: Callable[[Any], bool]) -> Any:
    """What a command prints as JSON, as soon as it is so."""
    deadline = monotonic() + PATIENCE
    while not is_so(found := look().json):
        assert monotonic() < deadline, found
    return found


def test_a_router_that_is_disabled_takes_nothing_and_says_so(penstock: Penstock) -> None:
    with LocalServer(router=str(penstock.folder / "config.json"), router_enabled=False) as server:
        with urlopen(f"{server.url}/health") as answer:
            assert json.load(answer)["message"] == "Message router is disabled"
        with urlopen(f"{server.url}/health/startup") as answer:
            assert json.load(answer)["status"] == "READY"
        penstock.environment |= {"PENSTOCK_ROUTER": server.url}
        assert penstock("router", "status", "--json").json["queues"] == {}


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_shows_what_a_configuration_holds(penstock: Penstock) -> None:
    done = penstock.good("router check --config config.json")

    assert done.err == ""
    assert done.out.splitlines() == [
        "POOL   CONCURRENCY  A MINUTE  ENGINE",
        "HOOKS           10         -  local",
        "",
        "QUEUE   URI                        CONNECTIONS  VISIBILITY  ENGINE",
        "orders  penstock:///queues/orders            1  120 s       local",
        "",
        "the configuration is valid; no router has run in penstock-router, so all of it would be new",
    ]


def test_check_names_a_key_that_means_nothing(penstock: Penstock) -> None:
    write(penstock.folder, {"queues": [{"queueUri": "penstock:///queues/orders", "conections": 4}]})

    assert penstock.good("router check --config config.json").err == "queues[0].conections is unknown and ignored\n"


def test_a_wrong_configuration_is_refused_with_the_place_that_is_wrong(penstock: Penstock, subtests: pytest.Subtests) -> None:
    for config, said in (
        ({"queues": [{"queueUri": 5}]}, "config.json: queues[0].queueUri is 5, expected 1 to 2,048 characters"),
        (
            {"processingPools": [{"code": "A", "concurrency": -1}]},
            "processingPools[0].concurrency is -1, expected a whole number",
        ),
        ({"processingPools": [{"concurrency": 1}]}, "processingPools[0].code is None, expected the name of a pool"),
        ('{"queues": [', "config.json: the configuration is not JSON"),
        ({}, "neither queues nor processingPools"),
        ({"queues": [{"queueUri": "kafka://ann:hunter2@host/orders"}]}, "expected one that begins with activemq:"),
        ({"queues": [{"queueUri": "nats://host/orders"}]}, "expected nats://"),
        ({"queues": [{"queueUri": "penstock:///orders"}]}, "expected penstock:///queues/NAME"),
    ):
        with subtests.test(config=config):
            write(penstock.folder, config)
            done = penstock("router", "check", "--config", "config.json")

            assert (done.code, done.out) == (2, "")
            assert said in done.err
            assert "Traceback" not in done.err
            assert "hunter2" not in done.err


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_help_of_run_shows_the_defaults_of_a_router(penstock: Penstock) -> None:
    text = " ".join(penstock.good("router run --help").out.split())

    assert "where messages are kept (default: ./penstock-router)" in text
    assert "takes a free one (default: 8095)" in text
    assert "--fifo strict|batch" in text
    assert "(default: HTTP_2)" in text
    assert "--grpc-port" not in text


def test_a_router_greets_ends_well_on_ctrl_c_and_its_changes_can_be_checked(penstock: Penstock) -> None:
    said: list[str] = []
    with penstock.start("router", "run", "--config", "config.json", "--port", "0") as process:
        assert process.stderr is not None, "it is piped"
        while not (said and " is added: 1 connection" in said[-1]):
            said.append(process.stderr.readline())
            assert said[-1], said
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)

    greeting = "".join(said)
    found = re.search(r"HTTP and WebSocket  (\S+)", greeting)
    assert found is not None, said
    assert f"router              {found[1]}/monitoring/dashboard" in greeting
    assert f"(try penstock router status --server {found[1]})" in greeting
    assert "gRPC" not in greeting
    assert any(line.endswith("in penstock-router\n") for line in said)
    assert process.returncode == 0
    assert rest.splitlines()[-1].endswith("stopped")
    assert "Traceback" not in rest

    assert "nothing would change" in penstock.good("router check --config config.json").out
    write(penstock.folder, CONFIG | {"processingPools": [{"code": "HOOKS", "concurrency": 3, "rateLimitPerMinute": 60}]})
    changed = penstock.good("router check --config config.json")
    assert "it would change:\n  pool HOOKS" in changed.out
    assert penstock.good("router check --config config.json --json").json["changes"] == [
        line.strip() for line in changed.out.partition("it would change:\n")[2].splitlines()
    ]


# ── status and seed ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_seeded_is_delivered_and_status_shows_it(penstock: Penstock) -> None:
    with running(penstock) as url:
        assert penstock.good("router seed --count 7 --endpoint success --groups 1of8").out == "sent 7 of 7 messages\n"
        status = until(
            lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 7
        )
        shown = penstock.good("router status").out

    assert status["pools"]["HOOKS"]["totalSucceeded"] == 7
    assert (status["health"]["status"], status["warnings"], status["standby"]) == ("HEALTHY", [], {"standbyEnabled": False})
    assert re.match(r"healthy, up \d+ s\n", shown)
    assert re.search(r"^orders +7 +7 +0 +\d+$", shown, re.MULTILINE)
    assert re.search(r"^HOOKS +0/10 +0/200 +7 +0 +0 +\d+ ms$", shown, re.MULTILINE)
    assert re.search(rf"^{url} +CLOSED +7 +0 +0$", shown, re.MULTILINE)


def test_attempts_that_are_repeated_have_a_column_of_their_own(penstock: Penstock) -> None:
    with running(penstock):
        penstock.good("router seed --count 2 --endpoint pending --groups 1of8")
        until(lambda: penstock("router", "status", "--json"), lambda found: found["pools"]["HOOKS"]["totalTransient"] == 2)
        shown = penstock("router", "status").out

    assert re.search(r"^POOL +WORKING +WAITING +SUCCEEDED +REPEATED +FAILED +AVERAGE$", shown, re.MULTILINE)
    assert re.search(r"^HOOKS +0/10 +\d/200 +0 +2 +0 +\d+ ms$", shown, re.MULTILINE)


def test_a_message_that_is_published_to_the_queue_is_delivered_and_traced_by_the_id_it_gives_itself(penstock: Penstock) -> None:
    with running(penstock) as url:
        body = json.dumps({"id": "order-1", "poolCode": "HOOKS", "mediationTarget": f"{url}/api/test/success"})
        assert penstock("queue", "publish", "orders", body).code == 0
        until(lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 1)
        told = until(lambda: penstock("trace", "order-1", "--json"), lambda found: len(found["events"]) == 4)
        shown = penstock.good("trace order-1").out

    assert [event["event"] for event in told["events"]] == ["published", "leased", "attempted", "acked"]
    assert shown.startswith("message order-1 of queue orders, as the router knows it\n")
    assert "outcome: SUCCESS" in shown
    assert "by a seek or a purge" not in shown


def test_a_target_that_refuses_makes_dead_letters_and_an_exit_code_of_1(penstock: Penstock) -> None:
    with running(penstock) as url:
        penstock.good("router seed --count 3 --queue orders --endpoint client-error")
        until(lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 3)
        ill = penstock("router", "status")
        letters = penstock.good("dlq list orders --json").json

    assert ill.code == 1
    assert ill.out.startswith("degraded, up ")
    assert f"ERROR CONFIGURATION: {url}/api/test/client-error: the target answered with status 400" in ill.out
    assert {(letter["reason"], letter["last_error"]) for letter in letters} == {
        ("undeliverable", "the target answered with status 400")
    }
    assert len(letters) == 3


def test_seeds_for_a_queue_that_is_not_there_are_refused_by_its_name(penstock: Penstock) -> None:
    with running(penstock):
        done = penstock("router", "seed", "--queue", "nosuch")

    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines() == [
        "penstock: Resource not found: queue nosuch",
        "`penstock router status` shows what there is",
    ]


def test_a_router_that_is_not_in_development_takes_no_seeds_and_says_so(penstock: Penstock) -> None:
    with running(penstock, development=False):
        done = penstock("router", "seed")

    assert done.code == 3
    assert "start the router with --development" in done.err


def test_something_else_that_listens_is_not_taken_for_a_router(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        done = penstock("router", "status", "--server", f"http://127.0.0.1:{stranger.getsockname()[1]}")
        thread.join()

    assert done.code == 1
    assert "Traceback" not in done.err
    assert "is not a router" in done.err


@pytest.mark.parametrize("server", ["http://u:hush@127.0.0.1:1", "ftp://u:hush@x"])
def test_a_password_in_the_address_of_a_router_is_not_shown(penstock: Penstock, server: str) -> None:
    failed = penstock("router", "status", "--server", server)

    assert failed.code != 0
    assert "hush" not in failed.out + failed.err


def test_seed_right_after_run_waits_for_the_router(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--config", "config.json", "--development", "--allow", "127.0.0.1", "--memory", "--port", str(port))
    with penstock.start("router", "run", *flags) as process:
        try:
            seeded = penstock("router", "seed", "--endpoint", "success", "--server", f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert (seeded.code, seeded.out) == (0, "sent 10 of 10 messages\n")


def test_check_refuses_queues_that_the_engine_spark_cannot_take_from(penstock: Penstock) -> None:
    config = {
        "queues": [{"queueName": "far", "queueUri": "nats://host:4222/S/C"}, {"queueUri": "penstock:///queues/near"}],
        "processingPools": [{"code": "P", "engine": "spark"}],
    }
    (penstock.folder / "spark.json").write_text(json.dumps(config))
    done = penstock("router", "check", "--config", "spark.json")
    assert done.code != 0
    assert "queue far has the engine spark, which takes from queues of Penstock alone" in done.err
    assert "near" not in done.err
