"""Bronze: the unchanged contents of the log. Every row is read once; a run continues where the last one ended."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.project import stream

spark = SparkSession.active()


@dp.table(comment="Every message of every stream")
def messages() -> DataFrame:
    return stream(spark, "messages")


@dp.table(comment="All that happened to them: published, leased, acked, …")
def events() -> DataFrame:
    return stream(spark, "events")
