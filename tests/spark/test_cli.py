"""`penstock pipeline` with Spark behind it, against a real server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from penstock import Message, MessageQueue
from penstock.pipeline.priority import NICENESS, spare_cores
from penstock.pipeline.progress import FETCHED
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock
from tests.spark.copying import descendants
from tests.spark.settings import PYTHONPATH, QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    """On this machine, with a directory that can be opened: commands read the rows there."""
    with LocalServer(data_dir=tmp_path / "data") as started:
        topics = MessageQueue(broker=started.broker)
        topics.register_topic("orders")
        topics.register_topic("copy")
        topics.register_subscription("billing", "orders")
        topics.publish("orders", [Message(f"order {n}".encode(), ordering_key=f"k{n % 3}") for n in range(30)])
        for message in topics.pull("billing", 20):
            topics.ack(message.ack_id)
        yield started


@pytest.fixture
def penstock(tmp_path: Path, server: LocalServer) -> Penstock:
    return Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PYTHONPATH": PYTHONPATH})


def rows(folder: Path) -> int:
    return int(DeltaTable(str(folder)).count())


@pytest.mark.timeout(300)
def test_a_run_once_fills_the_lake_and_a_second_one_adds_nothing(spark: SparkSession, penstock: Penstock) -> None:
    first = penstock("pipeline", "run", "--once", "--streams", "orders", "--hold")
    assert first.code == 0, first.err
    said = dict(text.split(": ", 1) for text in first.out.splitlines())
    assert said["archive-messages"].startswith("30 rows in 1 batch")
    assert {"archive-messages", "archive-events", "lifecycle", "metrics"} <= said.keys()
    assert rows(penstock.folder / "lake" / "messages") == 30

    FETCHED["archive-messages"] = dict.fromkeys(range(10), 6)  # as an archive of another lake in this process left it
    second = penstock("pipeline", "archive", "--once", "--streams", "orders", "--json")
    assert second.code == 0
    assert second.json_lines[-1]["done"]["archive-messages"]["rows"] == 0, second.out
    assert rows(penstock.folder / "lake" / "messages") == 30

    compacted = penstock("pipeline", "compact", "--json")
    assert compacted.code == 0
    assert compacted.json["files_after"] <= compacted.json["files_before"]
    assert rows(penstock.folder / "lake" / "messages") == 30

    replayed = penstock("pipeline", "replay", "orders", "--to", "copy", "--to-offset", "10", "--replay-id", "r1", "--json")
    assert replayed.code == 0
    assert (replayed.json["messages"], replayed.json["replay_id"], replayed.json["last_offset"]) == (10, "r1", 9)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_replay_is_counted_then_done_once(spark: SparkSession, penstock: Penstock, server: LocalServer) -> None:
    MessageQueue(broker=server.broker).register_subscription("reader", "copy")
    words = ("pipeline", "replay", "orders", "--to", "copy", "--where", "key = 'k1'", "--replay-id", "mine")

    counted = penstock(*words, "--dry-run", "--speed", "original")
    assert counted.code == 0
    assert counted.out.startswith("would replay 10 messages of orders to copy\n")
    assert MessageQueue(broker=server.broker).pull("reader", 100) == []

    done = penstock(*words)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("replayed 10 messages of orders to copy\n")
    assert done.out.endswith("replay id  mine\n")
    again = penstock(*words)
    assert (again.code, again.err) == (0, "")
    assert again.out == "nothing was added: a replay with the id mine was published before\n"
    assert len(MessageQueue(broker=server.broker).pull("reader", 100)) == 10

    wrong = penstock("pipeline", "replay", "orders", "--to", "copy", "--where", "kee = 'k1'")
    assert (wrong.code, wrong.out) == (2, "")
    assert "`kee`" in wrong.err
    assert len(wrong.err.splitlines()) == 2


@pytest.mark.timeout(300)
def test_an_archive_that_goes_on_ends_in_good_order_when_told_to(penstock: Penstock) -> None:
    conf = [word for name, value in QUICK.items() for word in ("--conf", f"{name}={value}")]
    words = ("pipeline", "archive", "--json", "--foreground", "--master", "local[1]", "--driver-memory", "512m", *conf)
    with penstock.start(*words) as process:
        assert process.stdout is not None
        for text in process.stdout:
            found = json.loads(text)
            if found["query"] == "archive-messages" and found["rows"] == 30:
                break
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)

    # A thread of Spark's that is interrupted may overflow its stack in a regular expression of its own, and Java says so.
    said = [
        line
        for line in err.splitlines()
        if not line.startswith(('Exception in thread "stream execution', "\tat java.base/java."))
    ]
    assert (process.returncode, said) == (0, [])
    assert json.loads(out.splitlines()[-1])["done"]["archive-messages"]["rows"] == 30
    assert rows(penstock.folder / "lake" / "messages") == 30


@pytest.mark.long
@pytest.mark.timeout(300)
def test_beside_the_server_the_command_and_its_spark_stand_back(penstock: Penstock) -> None:
    with penstock.start("pipeline", "archive", "--driver-memory", "512m", "--conf", "spark.ui.enabled=true") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Spark is at ")
        (java,) = (pid for pid in descendants(process.pid) if Path(f"/proc/{pid}/comm").read_text() == "java\n")
        lowered = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (process.pid, java)]
        cores = Path(f"/proc/{java}/cmdline").read_bytes()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)

    assert lowered == [NICENESS, NICENESS]
    assert f"spark.master=local[{spare_cores()}]".encode() in cores
