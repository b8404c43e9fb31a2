"""The pipeline's own topics, such as `_penstock.triage`: created if missing, and written to without Spark."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.log.http import HttpLog

if TYPE_CHECKING:
    from penstock.pipeline.job import Target


@contextmanager
def log_with_topic(target: Target, topic: str) -> Iterator[HttpLog]:
    """The log of a server with a topic, which is created if missing. If it exists, the token need not allow creating topics."""
    assert target.endpoint is not None, "a data directory can be read only"
    with HttpLog(target.endpoint, token=target.token, project=target.project) as log:
        if not log.spans(pattern=re.escape(topic)).streams:
            log.create_topic(topic)
        yield log


def publish_document(log: HttpLog, topic: str, body: bytes) -> None:
    """Publish one message."""
    write = secrets.token_hex(16)
    log.stage(write, "0", [pa.record_batch({"value": pa.array([body], pa.binary())})], stream=topic)
    log.commit(write, ["0"])
