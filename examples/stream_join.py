"""Two topics joined as they flow: orders, and the payments that come for them within an hour.

    python examples/stream_join.py           # with a server of its own
    python examples/stream_join.py URL       # with the server at that address

Spark remembers an order until the watermark says that no payment for it can come any more, so its memory stays bounded however
long it runs. Needs the extras `server` and `spark`, and Java 17.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.session import session
from penstock.sync import PubSub
from penstock.testing.server import LocalServer

ORDERS = [{"order": 1, "book": "Dune"}, {"order": 2, "book": "Emma"}, {"order": 3, "book": "Ulysses"}]
PAYMENTS = [{"order": 3, "cents": 2300}, {"order": 1, "cents": 1200}, {"order": 9, "cents": 1}]


def stream(spark: SparkSession, url: str, topic: str, schema: str) -> DataFrame:
    """The JSON messages of a topic as rows, each with the time of its publishing, `<topic>_at`."""
    source = spark.readStream.format("penstock").option("endpoint", url).option("subscribe", topic)
    messages = source.option("startingOffsets", "earliest").load()
    body = F.from_json(messages["value"].cast("string"), schema)
    return messages.select(body.alias("body"), F.col("publish_time").alias(f"{topic}_at")).select("body.*", f"{topic}_at")


def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders with their payments."""
    return (
        orders.withWatermark("orders_at", "10 minutes")
        .join(
            payments.withColumnRenamed("order", "for_order").withWatermark("payments_at", "10 minutes"),
            F.expr("order = for_order AND payments_at BETWEEN orders_at AND orders_at + INTERVAL 1 HOUR"),
        )
        .select("order", "book", "cents")
    )


def main(spark: SparkSession, url: str) -> None:
    """Publish orders, then payments, and show which belong together."""
    with PubSub(url) as pubsub:
        for name in ("orders", "payments"):
            pubsub.topic(name).create(exist_ok=True)
        orders = stream(spark, url, "orders", "order int, book string")
        payments = stream(spark, url, "payments", "order int, cents int")
        query = paid(orders, payments).writeStream.format("memory").queryName("paid").start()
        for name, rows in (("orders", ORDERS), ("payments", PAYMENTS)):
            for row in rows:
                pubsub.topic(name).publish_json(row)
            query.processAllAvailable()
        for found in spark.table("paid").orderBy("order").collect():
            print(f"order {found['order']}, {found['book']}: paid {found['cents']} cents")
        query.stop()


@contextmanager
def server(arguments: list[str]) -> Iterator[str]:
    """The address of the server: the one that is named, or one for as long as this runs."""
    if arguments:
        yield arguments[0]
    else:
        with LocalServer() as started:
            yield started.url


if __name__ == "__main__":
    started = session("stream join", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    with server(sys.argv[1:]) as address:
        main(started, address)
    started.stop()
