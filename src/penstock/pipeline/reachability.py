"""Whether a log can be reached: asked before Spark is started, which takes seconds and would say it in many more words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.log.http import HttpLog
from penstock.log.open import open_log

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.pipeline.job import Target

PATIENCE_SECONDS = 3.0
"""Somebody waits for the answer: less than a reader has, which may sit out a restart of the server."""


def check_log(target: Target, streams: str | None = None, names: Sequence[str] | None = None) -> None:
    """Ask it for what it has; whatever is wrong with the address, the token, the pattern or the names is raised."""
    with closing(_log(target)) as log:
        log.spans(names, pattern=streams)


def _log(target: Target) -> Log:
    if target.endpoint is not None:
        return HttpLog(target.endpoint, token=target.token, project=target.project, timeout=PATIENCE_SECONDS)
    return open_log(path=target.path, project=target.project)
