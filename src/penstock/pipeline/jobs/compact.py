"""Compact: merges small files of the lake, and removes files that are not needed any more. It needs no Spark."""

from __future__ import annotations

from penstock.errors import InvalidArgument
from penstock.pipeline.lake.table import CompactReport, Lake

TARGET_BYTES = 128 << 20


def compact(lake: str, *, target_bytes: int = TARGET_BYTES) -> CompactReport:
    """Merge the small files of a lake, up to `target_bytes`, and remove files that have not been needed for a week."""
    report = CompactReport()
    names = Lake(lake).tables()
    if not names:
        raise InvalidArgument.of("lake", lake, "the place of an archive", hint="`penstock pipeline archive` makes one")
    for name in names:
        table = Lake(lake).table(name)
        report = report.plus(table.compact(target_bytes)).plus(CompactReport(files_removed=table.vacuum(is_full=True)))
    return report
