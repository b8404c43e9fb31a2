"""The programs in `examples/` run, in memory, with a data directory or against a server, and print what they should."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT

FAILED = [f"billing: delivery {attempt} failed: invalid literal for int() with base 10: b'twelve'" for attempt in (1, 2, 3)]
ORDERS = [
    "billing: charged 1200 cents",
    *FAILED,
    "shipping: ann 1200, bob twelve",
    "shipping: ann 0",
    "triage: b'twelve' from billing: max_retries_exceeded after 3 attempts",
]
WORKER = [
    "done: title.png",
    "done: cat.png",
    "failed: cannot read large.png; requeued",
    "failed: cannot read broken.png; requeued",
    "done: large.png",
    "failed: cannot read broken.png; requeued",
    "failed: cannot read broken.png; dead_lettered",
    "dead: broken.png: max_retries_exceeded after 3 attempts, cannot read broken.png",
    "acked: 3",
]
PROCESSING = [
    "ann: placed 1, paid 1, shipped 1",
    "bob: placed 2, paid 2, shipped 2",
    "invoices:",
    "  ann: order 1, 12.00",
    "mails:",
    "  ann: order 1 is on its way",
    "  bob: order 2 is on its way",
    'unreadable: "not an event at all" (max_retries_exceeded; 2 tries)',
    "dead: order 2 has a price of -5 cents",
    "repaired: bob: order 2, 0.05",
]
OF_THE_SERVER = {
    "order_processing.py": PROCESSING,
    "google_orders.py": [
        "billing: ann pays 1200",
        "billing: ann pays 300",
        "triage: b'twelve' of bob: max_retries_exceeded after 5 attempts",
        "billing: bob pays 500",
    ],
    "synap_worker.py": [
        "done: title.png",
        "done: cat.png",
        "failed: cannot read large.png",
        "done: large.png",
        "failed: cannot read broken.png",
        "failed: cannot read broken.png",
        "acked: 3, dead letters: 1",
    ],
    "rest.py": ["pulled: hello", "taken: {'to': 'ann@example.org'} priority 9", "left: 0"],
}

OF_SPARK = {"word_count.py", "stream_join.py"}  # run in tests/spark/test_examples.py


def run(example: str, *arguments: str, **environment: str) -> list[str]:
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("example", "wanted", "is_durable"),
    [
        ("orders.py", ORDERS, True),
        ("worker.py", WORKER, False),
        pytest.param("orders.py", ORDERS, False, marks=pytest.mark.long),
        pytest.param("worker.py", WORKER, True, marks=pytest.mark.long),
        ("order_processing.py", PROCESSING, False),
    ],
)
def test_an_example_prints_what_it_shows(example: str, wanted: list[str], is_durable: bool, tmp_path: Path) -> None:
    assert sorted(run(example, *([str(tmp_path / "data")] if is_durable else []))) == sorted(wanted)


@pytest.mark.long
def test_an_example_runs_again_on_the_same_directory(tmp_path: Path) -> None:
    assert sorted(run("orders.py", str(tmp_path))) == sorted(run("orders.py", str(tmp_path)))


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.mark.parametrize("example", OF_THE_SERVER)
def test_an_example_of_the_server_prints_what_it_shows(example: str, server: LocalServer) -> None:
    assert sorted(run(example, server.url, PUBSUB_EMULATOR_HOST=server.grpc)) == sorted(OF_THE_SERVER[example])


@pytest.mark.long
def test_an_example_of_the_server_runs_again_on_the_same_server(server: LocalServer) -> None:
    for example in ("google_orders.py", "rest.py"):
        first = run(example, server.url, PUBSUB_EMULATOR_HOST=server.grpc)
        assert sorted(run(example, server.url, PUBSUB_EMULATOR_HOST=server.grpc)) == sorted(first)


def test_the_example_of_the_router_prints_what_it_shows() -> None:
    config = str(ROOT / "examples" / "router" / "config.json")
    with LocalServer(router=config, router_allow=("127.0.0.1",)) as server:
        assert run("router/orders.py", server.url) == [
            "ann: ann-1 200, ann-2 200, ann-3 200",
            "bob: bob-1 400, bob-2 200",
            "dead: bob-1: undeliverable, the target answered with status 400",
        ]


def test_every_example_is_run_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {"orders.py", "worker.py", *OF_THE_SERVER, *OF_SPARK}
