"""Source, sink and jobs on a real Spark standalone cluster: a master, two workers, executors of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Message, MessageQueue
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer
from tests.cluster.cluster import SPARK_HOME, Cluster, python_without_us, zipped
from tests.spark import archiving
from tests.spark.copying import Driver, publishing, wait_for, wait_for_growth
from tests.spark.sink_place import rows

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("job.py")
ROWS = 5_000
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalServer(data_dir=tmp_path / "data") as running:
        queue = MessageQueue(broker=running.broker)
        queue.register_topic("source")
        queue.register_topic("target")
        yield running


def published(server: LocalServer) -> list[bytes]:
    """Some rows in the source."""
    values = [b"%d" % number for number in range(ROWS)]
    MessageQueue(broker=server.broker).publish("source", [Message(data=value, ordering_key="k") for value in values])
    return values


def flags_of(settings: dict[str, str]) -> list[str]:
    """Settings of Spark as its commands and ours take them."""
    return [flag for name, value in settings.items() for flag in ("--conf", f"{name}={value}")]


def submit(cluster: Cluster, given: dict[str, Any], python: str, *flags: str) -> dict[str, Any]:
    """What the job saw, run by spark-submit with a Python for the driver and the executors."""
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"),
        "--master",
        cluster.address,
        *flags_of(SETTINGS),
        *flags,
        str(JOB),
        json.dumps(given),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    environment |= {"PYSPARK_PYTHON": python, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    told = [line.removeprefix("RESULT ") for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, f"{ended.stdout}\n{ended.stderr[-6000:]}\n{cluster.logs()}"
    answer: dict[str, Any] = json.loads(told[0])
    return answer


def copies(server: LocalServer) -> list[bytes]:
    with closing(HttpLog(server.url)) as log:
        return [row["value"] for row in rows(log, "target")]


def given(server: LocalServer, **others: Any) -> dict[str, Any]:
    return {"endpoint": server.url, "source": "source", "target": "target", **others}


def test_executors_with_penstock_installed(cluster: Cluster, server: LocalServer) -> None:
    values = published(server)

    seen = submit(cluster, given(server), sys.executable)

    assert (seen["rows"], seen["master"]) == (ROWS, cluster.address)
    assert copies(server) == values * 2, "also by tasks that failed after they had staged"


def test_executors_that_get_penstock_by_py_files(cluster: Cluster, server: LocalServer, tmp_path: Path) -> None:
    values = published(server)
    python = str(python_without_us(tmp_path))

    seen = submit(cluster, given(server, is_sent=True), python, "--py-files", str(zipped(tmp_path)))

    assert seen["rows"] == ROWS
    assert copies(server) == values * 2
    assert {used for used, _ in seen["where"]} == {python}
    assert all("penstock.zip" in place for _, place in seen["where"]), seen["where"]


def test_the_archive(cluster: Cluster, server: LocalServer, tmp_path: Path) -> None:
    published(server)
    place = archiving.Place(server, tmp_path)
    command = [sys.executable, "-m", "penstock", "pipeline", "archive", "--once", "--driver-memory", "512m"]
    where = ["--server", server.url, "--lake", str(place.lake), "--master", cluster.address]

    ended = subprocess.run(
        [*command, *where, *flags_of(SETTINGS)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr[-6000:]}\n{cluster.logs()}"
    place.check()


def test_executors_that_die_in_the_middle_of_a_stream(cluster: Cluster, server: LocalServer, tmp_path: Path) -> None:
    queue = MessageQueue(broker=server.broker)
    told = given(server, master=cluster.address, checkpoint=str(tmp_path / "checkpoint"), conf=SETTINGS)
    driver = Driver("tests.spark.sink_driver", told, tmp_path / "driver.log")

    with closing(HttpLog(server.url)) as log:
        try:
            with publishing(queue, "source") as values:
                for _ in range(2):
                    wait_for_growth(log, "target", driver)
                    cluster.kill_executor()
                wait_for_growth(log, "target", driver)
            wait_for(log, "target", len(values), driver)
        finally:
            driver.kill()

    assert sorted(copies(server), key=int) == values, "each once"
