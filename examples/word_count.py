"""A streaming word count over a topic: sentences come in, and Spark keeps the counts up to date.

    python examples/word_count.py           # with a server of its own
    python examples/word_count.py URL       # with the server at that address

Needs the extras `server` and `spark`, and Java 17.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.pipeline.session import session
from penstock.sync import PubSub
from penstock.testing.server import LocalServer

TOPIC = "sentences"
FIRST = ("The gate opens, and the water runs.", "The water turns the wheel.")
THEN = ("The wheel turns, the gate closes.",)


def words(messages: DataFrame) -> DataFrame:
    """How often each word was said."""
    text = F.lower(messages["value"].cast("string"))
    return messages.select(F.explode(F.split(text, r"\W+")).alias("word")).where("word <> ''").groupBy("word").count()


def main(spark: SparkSession, url: str) -> None:
    """Count, hear more, count on."""
    with PubSub(url) as pubsub:
        topic = pubsub.topic(TOPIC)
        topic.create(exist_ok=True)
        source = spark.readStream.format("penstock").option("endpoint", url).option("subscribe", TOPIC)
        messages = source.option("startingOffsets", "earliest").load()
        query = words(messages).writeStream.outputMode("complete").format("memory").queryName("words").start()
        for sentences in (FIRST, THEN):
            for sentence in sentences:
                topic.publish_message(sentence.encode())
            query.processAllAvailable()
            show(spark, len(sentences))
        query.stop()


def show(spark: SparkSession, count: int) -> None:
    """The words that were said more than once."""
    rows = spark.table("words").where("count > 1").orderBy(F.desc("count"), "word").collect()
    print(f"after {count} more:", ", ".join(f"{row['word']} {row['count']}" for row in rows))


@contextmanager
def server(arguments: list[str]) -> Iterator[str]:
    """The address of the server: the one that is named, or one for as long as this runs."""
    if arguments:
        yield arguments[0]
    else:
        with LocalServer() as started:
            yield started.url


if __name__ == "__main__":
    started = session("word count", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    with server(sys.argv[1:]) as address:
        main(started, address)
    started.stop()
