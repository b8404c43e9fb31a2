"""The numbers of the log door, for `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.broker import Broker
from penstock.durations import SECOND
from penstock.http.monitoring.samples import Metric, Sample
from penstock.log.server.reading import Reads
from penstock.log.server.writing import WriteDoor
from penstock.log.writes import Writes

_READS = Metric("penstock_log_reads", "gauge", "Reads of the log door that run.")
_REFUSED = Metric("penstock_log_reads_refused_total", "counter", "Reads that were refused because too many ran.")
_ROWS = Metric("penstock_log_read_rows_total", "counter", "Rows that the log door has sent.")
_BYTES = Metric("penstock_log_read_bytes_total", "counter", "Bytes of Arrow that the log door has sent.")
_STAGED = Metric("penstock_log_staged_bytes", "gauge", "Bytes that are staged and wait for their commit.")
_STAGED_ROWS = Metric("penstock_log_staged_rows_total", "counter", "Rows that were staged.")
_COMMITTED_ROWS = Metric("penstock_log_committed_rows_total", "counter", "Staged rows that were published.")
_HOLDING = Metric("penstock_log_holding_cursors", "gauge", "Cursors for which retention waits.")
_SILENT = Metric("penstock_log_holding_silent_seconds", "gauge", "Since when the most silent one of them was not set.")


def samples(reads: Reads, door: WriteDoor, writes: Writes, broker: Broker) -> Iterator[Sample]:
    """What is true now."""
    yield Sample(_READS, (), reads.running)
    yield Sample(_REFUSED, (), reads.refused)
    yield Sample(_ROWS, (), reads.rows)
    yield Sample(_BYTES, (), reads.bytes)
    yield Sample(_STAGED, (), writes.staging.bytes)
    yield Sample(_STAGED_ROWS, (), door.staged_rows)
    yield Sample(_COMMITTED_ROWS, (), door.committed_rows)
    holding = broker.cursors.holding().values()
    yield Sample(_HOLDING, (), len(holding))
    yield Sample(_SILENT, (), max(broker.clock.now() - min(holding), 0) / SECOND if holding else 0)
