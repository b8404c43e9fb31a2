"""A declarative pipeline from nothing: a server with some traffic, a project written by `init`, one run, and what it made.

    python examples/declarative/run.py shop-pipeline

Needs `penstock[server,spark]` and Java 17. The project stays in the directory for you to look at and to change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from penstock import DeadLetterPolicy, Message, MessageQueue, SubscriptionOptions
from penstock.pipeline.project import SINK, write_project
from penstock.testing.server import LocalServer


def traffic(shop: MessageQueue) -> None:
    """Ten orders: nine are billed, one is refused until it is a dead letter."""
    for topic in ("orders", "dead-orders", SINK):
        shop.register_topic(topic)
    shop.register_subscription("triage", "dead-orders")
    shop.register_subscription("billing", "orders", SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("dead-orders", 5)))
    shop.register_subscription("alarms", SINK)
    shop.publish("orders", [Message(data=f"order {number}".encode()) for number in range(10)])
    while received := shop.pull("billing", 10):
        for message in received:
            if message.data == b"order 3":
                shop.nack(message.ack_id)
            else:
                shop.ack(message.ack_id)
    shop.broker.sync()


def run_pipeline(project: Path) -> None:
    """What you would type: `spark-pipelines run` in the directory of the project."""
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", "")])
    # Spark's workers must be this Python. On a busy machine they may come up too late for Spark, which then tries again.
    settings = {"PATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_AUTH_SOCKET_TIMEOUT": "120"}
    command = [str(Path(here, "spark-pipelines")), "run", "--conf", "spark.sql.catalogImplementation=hive"]
    command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.pipelines.maxFlowRetryAttempts=10"]
    done = subprocess.run(command, cwd=project, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the pipeline failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def show(project: Path, shop: MessageQueue) -> None:
    """What the run made: the tables, and the message that came back."""
    warehouse = project / "spark-warehouse"
    for table in ("messages", "events", "lifecycle", "metrics"):
        print(f"{table}: {'some' if pq.read_table(warehouse / table).num_rows else 'no'} rows")
    for row in sorted(pq.read_table(warehouse / "outcomes").to_pylist(), key=lambda row: (row["stream"], row["outcome"])):
        print(f"{row['stream']}/{row['subscription']}: {row['lives']} {row['outcome']}, {row['attempts']} attempts")
    for message in shop.pull("alarms", 10):
        print(f"back in topic {SINK!r}: key {message.ordering_key!r}")
        shop.ack(message.ack_id)


def main() -> None:
    """Everything, in the directory that is named."""
    project = Path(sys.argv[1] if len(sys.argv) > 1 else "shop-pipeline").absolute()
    with LocalServer() as server:
        shop = MessageQueue(broker=server.broker)
        traffic(shop)
        for path in write_project(project, endpoint=server.url, name="shop"):
            print(path.relative_to(project))
        run_pipeline(project)
        show(project, shop)


if __name__ == "__main__":
    main()
