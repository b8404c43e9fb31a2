"""`penstock router …` as its user sees it: what it says, what it does, and how it ends."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from tests.acceptance.command import Penstock, Run

PATIENCE = 30 * SECOND
GONE = "http://127.0.0.1:1"
CONFIG = {
    "queues": [{"queueName": "orders", "queueUri": "penstock:///queues/orders"}],
    "processingPools": [{"code": "HOOKS", "concurrency": 10}],
}


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    write(tmp_path, CONFIG)
    return Penstock(tmp_path)


def write(folder: Path, config: object, name: str = "config.json") -> None:
    (folder / name).write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")


@contextmanager
def running(penstock: Penstock, *flags: str) -> Iterator[tuple[str, list[str], subprocess.Popen[str]]]:
    """A router that runs: its address, what it said until it was there, and its process."""
    process = penstock.start("router", "run", "--config", "config.json", "--port", "0", *flags)
    assert process.stderr is not None, "it is piped"
    try:
        said: list[str] = []
        while process.poll() is None and not (said and " is added: 1 connection" in said[-1]):
            said.append(process.stderr.readline())
        found = re.search(r"HTTP and WebSocket  (\S+)", "".join(said))
        assert found is not None, said
        yield found[1], said, process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(look: Callable[[], Run], is_so: Callable[[Any], bool]) -> Any:
    """What a command prints as JSON, as soon as it is so."""
    deadline = monotonic() + PATIENCE
    while not is_so(found := look().json):
        assert monotonic() < deadline, found
    return found


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_shows_what_a_configuration_holds(penstock: Penstock) -> None:
    done = penstock.good("router check --config config.json")

    assert done.err == ""
    assert done.out.splitlines() == [
        "POOL   CONCURRENCY  A MINUTE",
        "HOOKS           10         -",
        "",
        "QUEUE   URI                        CONNECTIONS  VISIBILITY",
        "orders  penstock:///queues/orders            1  120 s",
        "",
        "the configuration is right; no router has run in penstock-router, so all of it would be new",
    ]


def test_check_says_what_would_change_in_a_router_that_ran(penstock: Penstock) -> None:
    with running(penstock) as (_, _, process):
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "nothing would change" in penstock.good("router check --config config.json").out
    write(penstock.folder, CONFIG | {"processingPools": [{"code": "HOOKS", "concurrency": 3, "rateLimitPerMinute": 60}]})
    changed = penstock.good("router check --config config.json")

    assert "it would change:\n  pool HOOKS" in changed.out
    assert penstock.good("router check --config config.json --json").json["changes"] == [
        line.strip() for line in changed.out.partition("it would change:\n")[2].splitlines()
    ]


def test_check_names_a_key_that_means_nothing(penstock: Penstock) -> None:
    write(penstock.folder, {"queues": [{"queueUri": "penstock:///queues/orders", "conections": 4}]})

    assert penstock.good("router check --config config.json").err == "queues[0].conections is not known and is passed over\n"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"queues": [{"queueUri": 5}]}, "config.json: queues[0].queueUri is 5, wanted 1 to 2,048 characters"),
        ({"processingPools": [{"code": "A", "concurrency": -1}]}, "processingPools[0].concurrency is -1, wanted a whole number"),
        ({"processingPools": [{"concurrency": 1}]}, "processingPools[0].code is None, wanted the name of a pool"),
        ('{"queues": [', "config.json: the configuration is not JSON"),
        ({}, "neither queues nor processingPools"),
        ({"queues": [{"queueUri": "kafka://host/orders"}]}, "wanted one that begins with activemq:"),
        ({"queues": [{"queueUri": "nats://host/orders"}]}, "wanted nats://"),
        ({"queues": [{"queueUri": "penstock:///orders"}]}, "wanted penstock:///queues/NAME"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_place_that_is_wrong(config: object, said: str, penstock: Penstock) -> None:
    write(penstock.folder, config)
    done = penstock("router", "check", "--config", "config.json")

    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_password_in_a_wrong_uri_is_not_shown(penstock: Penstock) -> None:
    write(penstock.folder, {"queues": [{"queueUri": "kafka://ann:hunter2@host/orders"}]})
    done = penstock("router", "check", "--config", "config.json")

    assert done.code == 2
    assert "hunter2" not in done.out + done.err


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ("", 2, "there is no configuration\ngive --config FILE or --config-url URL, or set MESSAGE_ROUTER_CONFIG_URL"),
        ("--config nosuch.json", 2, "nosuch.json: it cannot be read: No such file or directory"),
        ("--config config.yaml", 2, "wanted a file of JSON or TOML"),
        ("--config config.json --config-url http://host/config", 2, "not allowed with argument"),
        ("--config-url nonsense", 2, "wanted a URL such as"),
        ("--confg config.json", 2, "did you mean --config"),
    ],
)
def test_a_configuration_that_cannot_be_had_is_told_at_once(
    verb: str, flags: str, code: int, said: str, penstock: Penstock
) -> None:
    done = penstock("router", verb, *flags.split())

    assert done.code == code
    assert said in done.err
    assert not (penstock.folder / "penstock-router").exists()


def test_check_of_an_endpoint_that_does_not_answer_may_help_later(penstock: Penstock) -> None:
    done = penstock("router", "check", "--config-url", f"{GONE}/config")

    assert done.code == 4
    assert f"{GONE}/config: it cannot be reached" in done.err


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--fifo sometimes", "--fifo is 'sometimes', wanted 'strict' or 'batch'"),
        ("--fifoo strict", "unknown flag --fifoo; did you mean --fifo?"),
        ("--allow 300.0.0.0/8 --memory --port 0", "'300.0.0.0/8', wanted a network"),
        ("--standby http://host", "--standby is not a Redis such as redis://"),
        ("--max-attempts 0", "--max-attempts is '0'"),
        ("--signing-secret-file nosuch --memory --port 0", "the file of the signing secret 'nosuch' cannot be read"),
        ("--host 0.0.0.0", "others could reach this server"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_name_of_its_flag(flags: str, said: str, penstock: Penstock) -> None:
    done = penstock.apart("router", "run", "--config", "config.json", *flags.split())

    assert done.code == 2 if "file" not in flags else done.code == 1
    assert said in done.err
    assert "Traceback" not in done.err


def test_the_help_of_run_shows_the_defaults_of_a_router(penstock: Penstock) -> None:
    text = " ".join(penstock.good("router run --help").out.split())

    assert "where messages are kept (default: ./penstock-router)" in text
    assert "takes a free one (default: 8095)" in text
    assert "--fifo strict|batch" in text
    assert "(default: HTTP_2)" in text
    assert "--grpc-port" not in text


def test_a_router_greets_with_its_dashboard_and_ends_well_on_ctrl_c(penstock: Penstock) -> None:
    with running(penstock) as (url, said, process):
        assert f"router              {url}/monitoring/dashboard" in "".join(said)
        assert f"(try penstock router status --server {url})" in "".join(said)
        assert "gRPC" not in "".join(said)
        assert any(line.endswith("in penstock-router\n") for line in said)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)

    assert process.returncode == 0
    assert rest.splitlines()[-1].endswith("stopped")
    assert "Traceback" not in rest


# ── status and seed ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_seeded_is_delivered_and_status_shows_it(penstock: Penstock) -> None:
    with running(penstock, "--development", "--allow", "127.0.0.1") as (url, _, _):
        penstock.environment["PENSTOCK_ROUTER"] = url
        assert penstock.good("router seed --count 7 --endpoint success --groups 1of8").out == "sent 7 of 7 messages\n"
        status = until(
            lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 7
        )
        shown = penstock.good("router status").out

    assert status["pools"]["HOOKS"]["totalSucceeded"] == 7
    assert (status["health"]["status"], status["warnings"], status["standby"]) == ("HEALTHY", [], {"standbyEnabled": False})
    assert re.match(r"healthy, up \d+ s\n", shown)
    assert re.search(r"^orders +7 +7 +0 +\d+$", shown, re.MULTILINE)
    assert re.search(r"^HOOKS +0/10 +0/200 +7 +0 +\d+ ms$", shown, re.MULTILINE)
    assert re.search(rf"^{url} +CLOSED +7 +0 +0$", shown, re.MULTILINE)


def test_a_message_that_is_published_to_the_queue_is_delivered_and_traced_by_the_id_it_gives_itself(penstock: Penstock) -> None:
    with running(penstock, "--development", "--allow", "127.0.0.1") as (url, _, _):
        body = json.dumps({"id": "order-1", "poolCode": "HOOKS", "mediationTarget": f"{url}/api/test/success"})
        penstock.environment |= {"PENSTOCK_SERVER": url, "PENSTOCK_ROUTER": url}
        assert penstock("queue", "publish", "orders", body).code == 0
        until(lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 1)
        told = until(lambda: penstock("trace", "order-1", "--json"), lambda found: len(found["events"]) == 4)
        shown = penstock.good("trace order-1").out

    assert [event["event"] for event in told["events"]] == ["published", "leased", "attempted", "acked"]
    assert shown.startswith("message order-1 of queue orders, as the router knows it\n")
    assert "outcome: SUCCESS" in shown
    assert "by a seek or a purge" not in shown


def test_a_target_that_refuses_makes_dead_letters_and_an_exit_code_of_1(penstock: Penstock) -> None:
    with running(penstock, "--development", "--allow", "127.0.0.1") as (url, _, _):
        penstock.environment["PENSTOCK_ROUTER"] = url
        penstock.good("router seed --count 3 --queue orders --endpoint client-error")
        until(lambda: penstock("router", "status", "--json"), lambda found: found["queues"]["orders"]["totalConsumed"] == 3)
        ill = penstock("router", "status")
        letters = penstock.good(f"dlq list orders --server {url} --json").json

    assert ill.code == 1
    assert ill.out.startswith("degraded, up ")
    assert f"ERROR CONFIGURATION: {url}/api/test/client-error: the target answered with status 400" in ill.out
    assert {(letter["reason"], letter["last_error"]) for letter in letters} == {
        ("undeliverable", "the target answered with status 400")
    }
    assert len(letters) == 3


def test_seeds_for_a_queue_that_is_not_there_are_refused_by_its_name(penstock: Penstock) -> None:
    with running(penstock, "--development") as (url, _, _):
        done = penstock("router", "seed", "--queue", "nosuch", "--server", url)

    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines() == [
        "penstock: Resource not found: queue nosuch",
        "`penstock router status` shows what there is",
    ]


def test_a_router_that_is_not_in_development_takes_no_seeds_and_says_so(penstock: Penstock) -> None:
    with running(penstock) as (url, _, _):
        done = penstock("router", "seed", "--server", url)

    assert done.code == 3
    assert "start the router with --development" in done.err


@pytest.mark.parametrize("verb", ["status", "seed"])
def test_a_router_that_is_not_reached_ends_with_4(verb: str, penstock: Penstock) -> None:
    done = penstock("router", verb, "--server", GONE)

    assert (done.code, done.out) == (4, "")
    assert "start it with `penstock router run`" in done.err


@pytest.mark.parametrize("address", ["ftp://host", "host:80", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused(address: str, penstock: Penstock) -> None:
    done = penstock("router", "status", "--server", address)

    assert done.code == 2
    assert "wanted an address such as http://127.0.0.1:8095" in done.err


def test_something_else_that_listens_is_not_taken_for_a_router(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = penstock.start("router", "status", "--server", url)
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        _, said = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "Traceback" not in said
    assert "is no router" in said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("seed --count 0", "'0' is not a whole number, 1 or more"),
        ("seed --groups many", "known: unique, 1of8, single"),
        ("seed --endpont fast", "did you mean --endpoint"),
        ("statsu", "did you mean status?"),
        ("", "required: COMMAND"),
    ],
)
def test_a_wrong_call_is_told_with_what_was_meant(flags: str, said: str, penstock: Penstock) -> None:
    done = penstock("router", *flags.split())

    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_password_in_any_of_several_addresses_is_not_shown_among_the_settings(
    penstock: Penstock, flags: tuple[str, ...]
) -> None:
    shown = penstock("config", "--router", "http://u:hush@a/x,http://u:hush@b/y", "--router-standby", "redis://:hush@c", *flags)

    assert "b/y" in shown.out
    assert "hush" not in shown.out


@pytest.mark.parametrize("server", ["http://u:hush@127.0.0.1:1", "ftp://u:hush@x"])
def test_a_password_in_the_address_of_a_router_is_not_shown(penstock: Penstock, server: str) -> None:
    failed = penstock("router", "status", "--server", server)

    assert failed.code != 0
    assert "hush" not in failed.out + failed.err
