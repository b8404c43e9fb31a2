"""The source under Spark Connect, in a process of its own: a classic session and a connected one cannot share a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Message, MessageQueue
from penstock.testing.server import LocalServer

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(240)]

PROGRAM = """
import sys
from penstock.pipeline.session import session

endpoint, checkpoint = sys.argv[1:]
spark = session("connected", remote="local[2]")
options = {"endpoint": endpoint, "subscribe": "orders"}
frame = spark.read.format("penstock").options(**options).load()
print("type", type(frame).__module__)
print("rows", [(row.offset, bytes(row.value)) for row in frame.orderBy("offset").collect()])
query = (
    spark.readStream.format("penstock").options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="2").load()
    .writeStream.format("parquet").option("checkpointLocation", checkpoint).trigger(availableNow=True).start(checkpoint + "-out")
)
query.awaitTermination()
print("copied", spark.read.parquet(checkpoint + "-out").count())
spark.stop()
"""


def test_batch_and_stream_through_spark_connect(tmp_path: Path) -> None:
    with LocalServer() as server:
        queue = MessageQueue(broker=server.broker)
        queue.register_topic("orders")
        queue.publish("orders", [Message(data=b"a"), Message(data=b"\xff"), Message(data=b"c")])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url, str(tmp_path / "checkpoint")],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert said[-3:] == [
        "type pyspark.sql.connect.dataframe",
        "rows [(0, b'a'), (1, b'\\xff'), (2, b'c')]",
        "copied 3",
    ]
