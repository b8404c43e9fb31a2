"""Gold: rates, percentiles and ratios in windows, computed again with every run, so that they are always complete."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs import metrics as job
from penstock.pipeline.project import setting

spark = SparkSession.active()


@dp.materialized_view(comment="One row for each window, stream, subscription and consumer")
def metrics() -> DataFrame:
    """From the lives that ended and from what happened in between."""
    window = setting(spark, "window")
    return job.transform(spark.read.table("lifecycle"), spark.read.table("events"), window=window, is_streaming=False)
