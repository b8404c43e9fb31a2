"""The session that everything else runs in, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.progress import QueryProgress, watch
from penstock.pipeline.session import has_session, session, ui_address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.errors import PenstockError

pytestmark = pytest.mark.spark


def test_a_session_is_utc_and_on_this_machine_alone(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert ui_address(spark) is None


def test_a_second_call_gives_the_same_session_with_the_settings_that_may_change(spark: SparkSession) -> None:
    kept = spark.conf.get("spark.sql.shuffle.partitions")
    again = session("another", conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"})
    try:
        assert has_session()
        assert again.sparkContext is spark.sparkContext
        assert again.conf.get("spark.sql.shuffle.partitions") == "3"
        assert again.sparkContext.getConf().get("spark.driver.memory") == "1g"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(kept))


def test_streams_that_start_at_once_do_not_spoil_what_their_tasks_are_sent_with(spark: SparkSession) -> None:
    """They change one map; a HashMap may end with a size that is not that of its entries, and cannot be read then."""
    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("penstock")
    environment = source.dataSourceCls().envVars()

    assert environment.getClass().getSimpleName() == "ConcurrentHashMap"
    assert environment["PYTHONHASHSEED"] == spark.sparkContext.environment["PYTHONHASHSEED"]
    assert isinstance(spark.sparkContext.environment, dict)


def count(rows: DataFrame, batch: int) -> None:
    rows.count()


def started(spark: SparkSession, folder: Path, each: Callable[[DataFrame, int], None], name: str = "rates") -> StreamingQuery:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    return rows.writeStream.queryName(name).foreachBatch(each).option("checkpointLocation", str(folder / name)).start()


def test_watching_counts_rows_and_ends_when_told_to(spark: SparkSession, tmp_path: Path) -> None:
    stop, seen = threading.Event(), []

    def show(meters: Sequence[QueryProgress]) -> None:
        seen.append([(meter.query, meter.rows) for meter in meters])
        if all(meter.batches >= 2 for meter in meters):
            stop.set()

    query = started(spark, tmp_path, count)
    [meter] = watch([query], stop, show)

    assert not query.isActive
    assert meter.query == "rates"
    assert meter.rows >= 20
    assert meter.rows % 10 == 0
    assert seen[-1] == [("rates", meter.rows)]


def test_a_query_that_fails_ends_the_others_with_its_own_error(spark: SparkSession, tmp_path: Path) -> None:
    from penstock.errors import OutOfRange

    def fail(rows: DataFrame, batch: int) -> None:
        raise OutOfRange("orders", 3, 5, 9)

    good, bad = started(spark, tmp_path, count, "good"), started(spark, tmp_path, fail, "bad")
    with pytest.raises(OutOfRange) as caught:
        watch([good, bad], threading.Event(), lambda meters: None)

    error: PenstockError = caught.value
    assert str(error) == str(OutOfRange("orders", 3, 5, 9))
    assert error.hint == OutOfRange("orders", 3, 5, 9).hint
    assert not good.isActive


QUIET = """
from penstock.errors import PenstockError
from penstock.pipeline.session import session, ui_address
for master in ("nonsense", "local[x]"):
    try:
        session("wrong", master=master)
    except PenstockError as error:
        print(error)
spark = session("right", master="local[1]", driver_memory="512m")
print(ui_address(spark).startswith("http://127.0.0.1:"), spark.sparkContext.appName, spark.range(3).count())
try:
    spark.sql("SELECT nonsense")
except Exception as error:
    print(type(error).__name__)
spark.stop()
"""


@pytest.mark.long
def test_a_session_says_nothing_by_itself_also_when_something_is_wrong() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False, timeout=100)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "Spark's Java did not start: Master must either be yarn or start with spark, k8s, or local",
        "Spark failed: Could not parse Master URL: 'local[x]'",
        "True right 3",
        "AnalysisException",
    ]


SUBMITTED = """
from penstock.pipeline.session import session
spark = session("mine")
print(spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.sql.session.timeZone"))
spark.stop()
"""


@pytest.mark.long
def test_what_was_said_to_spark_submit_wins(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    said = ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=7", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("spark-submit")), *said, str(job)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )

    assert done.stdout.splitlines()[-1:] == ["local[1] 7 UTC"], done.stderr
