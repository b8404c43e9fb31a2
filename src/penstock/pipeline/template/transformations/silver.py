"""Silver: the life of each message in each subscription; failed lives are published to a topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.jobs import lifecycle as job
from penstock.pipeline.jobs.wiring import as_messages
from penstock.pipeline.project import setting, sink_options, stream
from penstock.pipeline.schemas import LIFECYCLE

spark = SparkSession.active()

dp.create_sink("failures", "penstock", sink_options(spark))

# Created here, from the log itself: Spark has to analyse a stateful query when it is created. Inside the function of a table it
# cannot do that, and it does not know the bronze table yet.
lives = job.transform(stream(spark, "events"), watermark=setting(spark, "watermark"))


@dp.table(comment="One row for each life of a message in a subscription: waiting, attempts, processing, outcome")
def lifecycle() -> DataFrame:
    return lives


@dp.append_flow(target="failures")
def failed() -> DataFrame:
    """Every life that ended as a dead letter, or was dropped, as a message; exactly once."""
    bad = spark.readStream.table("lifecycle").where("outcome in ('dead_lettered', 'dropped')")
    return as_messages(bad, LIFECYCLE)
