"""The triage job: groups dead letters by cause. See `core/triage.py` for the rules.

Tasks compute the traits of each letter, Spark counts equal ones, and the driver merges groups with irrelevant differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.pipeline.core.dead_letters import VERSIONS
from penstock.pipeline.core.triage import Group, Report, report
from penstock.pipeline.jobs import dead_letters
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.lake.writing import append_rows
from penstock.pipeline.own_topics import log_with_topic, publish_document
from penstock.pipeline.schemas import TRIAGE_STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Target

NAME = "triage"
MOST = 50_000
"""How many groups, the largest, the driver reads; a cause with more different texts has words that no rule masks."""
MAX_EXAMPLE = 300
PUBLISHED = 200
"""How many groups are published for the console."""
_BY = ("stream", "subscription", "reason", "error_pattern", "target", "status", "shape", "version")


@dataclass(frozen=True, slots=True)
class Triage:
    """The selection of letters. Times are in microseconds; the range includes `since` but not `until`."""

    streams: tuple[str, ...] = ()
    """Only letters of these streams: a topic, or `queue:NAME`."""
    since: int | None = None
    until: int | None = None
    version_attributes: tuple[str, ...] = VERSIONS

    def __post_init__(self) -> None:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidArgument("the range is empty: since is not before until", hint="until does not belong to the range")


def run(spark: SparkSession, target: Target, triage: Triage, now: int) -> Report:
    """The groups of the current dead letters."""
    letters = dead_letters.read(spark, target, triage.streams, dead_letters.end_of_events(target)).where("NOT is_gone")
    return report(groups(between(letters, triage), triage.version_attributes), to_datetime(now))


def between(letters: DataFrame, triage: Triage) -> DataFrame:
    """The letters that died within the range."""
    if triage.since is not None:
        letters = letters.where(F.col("at") >= F.timestamp_micros(F.lit(triage.since)))
    if triage.until is not None:
        letters = letters.where(F.col("at") < F.timestamp_micros(F.lit(triage.until)))
    return letters


def groups(letters: DataFrame, version_attributes: Sequence[str] = VERSIONS) -> list[Group]:
    """Count letters with equal traits; returns the largest groups."""
    traits = dead_letters.with_traits(letters, version_attributes, keeps_payload=False)
    counted = traits.groupBy(*_BY).agg(
        F.count(F.lit(1)).alias("count"),
        F.unix_micros(F.min("at")).alias("first_at"),
        F.unix_micros(F.max("at")).alias("last_at"),
        F.array_distinct(
            F.array(
                F.min_by("message_id", "offset"),
                F.max_by("message_id", "offset"),
                F.min_by("message_id", F.xxhash64("message_id")),
            )
        ).alias("samples"),
        F.substring(F.coalesce(F.max_by("error", "offset"), F.lit("")), 1, MAX_EXAMPLE).alias("example"),
    )
    found = []
    for row in counted.orderBy(F.desc("count")).limit(MOST).collect():
        fields = row.asDict()
        fields["error"] = fields.pop("error_pattern")
        fields |= {name: to_datetime(fields[name]) for name in ("first_at", "last_at")}
        fields["samples"] = sorted(filter(None, fields["samples"]))
        found.append(Group(**fields))
    return found


def add_to_lake(lake: str, found: Report) -> int:
    """Add a row for each group to the table `triage`; returns their number."""
    table, shape = Lake(lake).table(NAME), SHAPES[NAME]
    rows = [
        {**msgspec.structs.asdict(group), "at": found.at.astimezone(UTC), "samples": " ".join(group.samples)}
        for group in found.groups
    ]
    return append_rows(rows, table, shape, day="at")


def publish(target: Target, found: Report) -> None:
    """Publish the report to the topic `_penstock.triage`, whose newest message the console shows."""
    shown = msgspec.structs.replace(found, groups=found.groups[:PUBLISHED])
    with log_with_topic(target, TRIAGE_STREAM) as log:
        publish_document(log, TRIAGE_STREAM, msgspec.json.encode(shown))
