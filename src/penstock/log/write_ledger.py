"""The ledger of a query that writes: the last decided batch, and how much of it is published.

    staged ──commit──> decided ──> slice by slice ──> finished
       │                  └── a crash continues from `done`: each slice and the mark that it is done are one commit
       └──abort, or a day without an upload──> removed

Batch numbers of a query only increase. A batch that was decided is never published again, whatever is staged for it later.
A write without a query has its own ledger, only until it is published.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import msgspec

from penstock.durations import DAY
from penstock.errors import CorruptLog

VERSION = 1
STAGED_FOR = DAY
"""How long staged parts wait for their commit after the last upload."""
REMEMBERED_FOR = 90 * DAY
"""How long the last batch of a query is remembered."""
MAX_STREAMS = 100
PREFIX = "writes/"
"""The prefix of the names of ledgers among the documents."""
_UNNAMED = "~"
"""The prefix of the keys of writes without a query. No name of a query begins with it."""
_DRAWN = re.compile(r"(?:.*/)?[0-9a-f]{32}", re.ASCII)
"""The random names that earlier versions of the Spark sink used as the query of writes without one."""


class Ledger(msgspec.Struct, array_like=True, frozen=True):
    """The last batch of a query. Stored as a document: fields are only ever added at the end, with a default."""

    version: int
    batch: int
    at: int
    """When it was decided, or last made progress."""
    directory: str
    """The directory of its rows, below the directory of staged writes."""
    rows: int
    done: int = 0
    """The number of published rows: always the first ones."""
    until: int = 0
    """The end of the slice that is being published, if it goes to several streams."""
    turns: int = 0
    """The number of streams that it was published to."""
    owner: str = ""
    """The id of the token that committed it; empty without authentication, or from a version without this field."""
    streams: tuple[str, ...] = ()
    """The streams of its rows, by the names that the committer uses: the first `MAX_STREAMS` names."""
    note: str = ""
    """The note of the committer, returned if the batch is committed again."""

    @property
    def is_finished(self) -> bool:
        return self.done == self.rows

    def passed(self, until: int, turns: int, now: int) -> Ledger:
        """The ledger after the slice that ends at `until` was published to `turns` of its streams; 0 means all."""
        if not turns:
            return msgspec.structs.replace(self, at=now, done=until, until=0, turns=0)
        return msgspec.structs.replace(self, at=now, until=until, turns=turns)


def may_continue(ledger: Ledger, owner: str, may_publish: Callable[[str], bool]) -> bool:
    """Whether a caller may commit for a query: it has committed the last batch, or may publish to the streams of that batch.

    Otherwise another caller could use up the batch numbers of a query, so that its own commits would be treated as repeats.
    """
    if not owner or ledger.owner in {"", owner}:
        return True
    return bool(ledger.streams) and all(map(may_publish, ledger.streams))


class Verdict(Enum):
    """What to do about a commit."""

    PUBLISH = "publish"
    REPEAT = "repeat"
    """It was published before, so nothing is added."""
    FINISH_FIRST = "finish_first"
    """A batch of this query, perhaps this one, is unfinished: finish it, then decide again."""


def verdict(ledger: Ledger | None, batch: int) -> Verdict:
    """What to do about the commit of a batch."""
    if ledger is None:
        return Verdict.PUBLISH
    if not ledger.is_finished:
        return Verdict.FINISH_FIRST
    return Verdict.REPEAT if batch <= ledger.batch else Verdict.PUBLISH


def verdict_of_write(ledger: Ledger | None, *, is_staged: bool, is_published: bool) -> Verdict:
    """What to do about the commit of a write without a query. It is a repeat if nothing was staged since it was published."""
    if ledger is not None and not ledger.is_finished:
        return Verdict.FINISH_FIRST
    return Verdict.REPEAT if is_published and not is_staged else Verdict.PUBLISH


def key_of(query: str | None, write: str) -> str:
    """The key of a ledger: the query, or for a write without a query the write."""
    return _UNNAMED + write if query is None else query


def is_unnamed(key: str) -> bool:
    """Whether this is the key of a write without a query."""
    return key.startswith(_UNNAMED)


def is_forgotten(key: str, ledger: Ledger, now: int) -> bool:
    """Whether the ledger may be removed: the query has been unused for long, or a write without a query is published."""
    if is_unnamed(key):
        return ledger.is_finished
    span = STAGED_FOR if ledger.directory == key and _DRAWN.fullmatch(key) else REMEMBERED_FOR
    return ledger.is_finished and now - ledger.at >= span


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Ledger)


def decode(name: str, body: bytes) -> Ledger:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptLog("the catalogue", f"document {name!r}", str(error)) from error
