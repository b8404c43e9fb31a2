"""The lake on S3, as moto's server speaks it: commits are conditional puts, so writers at once and killed ones do no harm."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from deltalake import DeltaTable

from penstock import Message, MessageQueue
from penstock.log.log import StreamSpan
from penstock.pipeline.core.options import source_options
from penstock.pipeline.lake.reading import LakeLog
from penstock.pipeline.lake.table import Lake
from penstock.testing.server import LocalServer
from tests.unit.pipeline.lake_victim import NO_SPARK, archiver, plan_batch
from tests.unit.pipeline.lakes import messages, offsets, store, write

pytestmark = [pytest.mark.alone, pytest.mark.server, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 in a process of its own, named in the environment as delta-rs and boto3 look for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=quiet, stderr=quiet
    )
    try:
        deadline = time.monotonic() + 100
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            assert time.monotonic() < deadline, "moto does not come up"
            threading.Event().wait(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ALLOW_HTTP", "true")
            yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def lake(s3: str, request: pytest.FixtureRequest) -> str:
    """A lake in a bucket of its own."""
    bucket = request.node.name.replace("_", "-")[:60].rstrip("-")
    client = boto3.client("s3", endpoint_url=s3)
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="there", Body=b"", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):  # else nothing here would prove anything
        client.put_object(Bucket=bucket, Key="there", Body=b"", IfNoneMatch="*")
    client.close()
    return f"s3://{bucket}/lake"


def test_every_reader_finds_the_rows(lake: str) -> None:
    import duckdb  # other tests of this process do without these engines
    import polars as pl

    store(lake, "orders", 0, 5)
    store(lake, "a/b", 0, 3)
    store(lake, "orders", 5, 9)

    for merged in (2, 0):
        log = LakeLog(source_options({"storage": "lake", "lake": lake, "subscribe": "orders"}), None)
        found = [row for batch in log.messages(StreamSpan("orders", 7, 0, 9, 0), 2, 8) for row in batch.to_pylist()]
        assert sorted(row["offset"] for row in found) == [2, 3, 4, 5, 6, 7]
        assert log.offsets_for({"orders": 0}, 1) == {"orders": 1}

        table = DeltaTable(f"{lake}/messages")
        assert sorted(pl.read_delta(f"{lake}/messages").filter(pl.col("stream") == "a/b")["offset"]) == [0, 1, 2]
        assert sorted(table.to_pandas().query("stream == 'orders'")["offset"]) == list(range(9))
        connection = duckdb.connect()
        connection.register("messages", table.to_pyarrow_dataset())
        assert connection.sql("select count(*), max(\"offset\") from messages where stream = 'orders'").fetchall() == [(9, 8)]
        assert offsets(lake) == list(range(9))
        assert Lake(lake).table("messages").compact(1 << 20).files_before == merged


def test_a_version_is_committed_once(lake: str) -> None:
    first, again = (write(lake, "messages", messages("orders", range(5))) for _ in range(2))

    assert Lake(lake).table("messages").commit(first, "app", 1)
    assert not Lake(lake).table("messages").commit(again, "app", 1)
    assert offsets(lake) == [0, 1, 2, 3, 4]


def test_two_archives_at_once_of_which_one_is_killed(lake: str, tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as server:
        shop = MessageQueue(broker=server.broker)
        shop.register_topic("orders")
        shop.publish("orders", [Message(b"x")] * 2_000)
        server.broker.sync()
        data, table = str(tmp_path / "data"), Lake(lake).table("messages")
        command = [sys.executable, "-m", "tests.unit.pipeline.lake_victim", data, lake]
        victims = [subprocess.Popen([*command, str(tmp_path / name)], stdout=subprocess.DEVNULL) for name in ("one", "two")]
        try:
            for commits, number in ((5, 0), (12, 1)):
                deadline = time.monotonic() + 200
                while table.watermark().commits < commits:
                    assert time.monotonic() < deadline, "no writer gets anywhere"
                    threading.Event().wait(0.02)
                victims[number].kill()
                victims[number].wait()
        finally:
            for victim in victims:
                victim.kill()
                victim.wait()
        end = table.watermark().streams["orders"].offset
        assert offsets(lake) == list(range(end))

        plan_batch(tmp_path / "three", 0, {"orders": (1, end + 7)})
        archiver(data, lake, tmp_path / "three").catch_up(NO_SPARK)
        archiver(data, lake, tmp_path / "three").catch_up(NO_SPARK)
    assert offsets(lake) == list(range(end + 7))
