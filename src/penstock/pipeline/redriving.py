"""The server side of a redrive, without Spark: it starts once, and moves dead letters in slices, each once for a redrive id.

A slice and the note that it was moved are one commit of the server, so a crash of either side does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.log.http import HttpLog
from penstock.pipeline.core.redrive import Letter, Redrive, slices

if TYPE_CHECKING:
    from penstock.pipeline.job import Target


class Note(msgspec.Struct, frozen=True):
    """What the server stores about a redrive."""

    arguments: dict[str, str]
    stop: int
    """The end of the event log at the start: letters that died later are not part of the redrive."""


def begin(target: Target, redrive: Redrive, note: Note) -> Note:
    """Store the note of a redrive; returns the note of the first command with its id. Other arguments are an error."""
    with log_of_server(target) as log:
        kept = msgspec.json.decode(log.begin_redrive(redrive.redrive_id, msgspec.json.encode(note).decode()), type=Note)
    redrive.check_arguments(kept.arguments)
    return kept


def log_of_server(target: Target) -> HttpLog:
    if target.endpoint is None:
        raise InvalidArgument(
            "a redrive writes, and a data directory can be read only", hint="name the server that has it open: --server URL"
        )
    return HttpLog(target.endpoint, token=target.token, project=target.project)


def move(
    log: HttpLog,
    redrive: Redrive,
    letters: Sequence[Letter],
    clock: Clock,
    wait: Callable[[float], bool],
    *,
    moved: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Requeue letters in order, at the rate; returns how many each queue or subscription got for this id, including earlier runs.

    `wait` sleeps for seconds and returns whether to stop. `moved` is called with the number of letters of each slice.
    """
    done: dict[str, int] = {}
    due = clock.now()
    for source, part, pause in slices(letters, redrive.rate):
        if wait(max(due - clock.now(), 0) / SECOND):
            break
        done[source] = log.redrive(redrive.redrive_id, source, [(one.message_id, one.died_at) for one in part]).redriven
        moved(len(part))
        due = max(due, clock.now()) + pause
    return done
