"""Gold: rates, percentiles and ratios in windows, computed again with every run, so that they are always complete."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs import metrics as job
from penstock.pipeline.project import setting

spark = SparkSession.active()


@dp.materialized_view(comment="One row for each window, stream, subscription and consumer")
def metrics() -> DataFrame:
    """Computed from the lives that ended and from the events."""
    window = setting(spark, "window")
    return job.transform(spark.read.table("lifecycle"), spark.read.table("events"), window=window, is_streaming=False)
