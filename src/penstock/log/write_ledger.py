"""What is known of a query that writes: which batch was decided last, and how far publishing it has got.

    staged ──commit──> decided ──> slice by slice ──> finished
       │                  └── a crash continues from `done`: each slice and the mark that it is done are one commit
       └──abort, or a day without a touch──> forgotten

Batch numbers of a query only go up. A batch that was decided is never published again, whatever is staged for it later.
A write that names no query has a ledger of its own, only until it is published.
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
"""How long what is staged waits for its commit after it was touched last."""
REMEMBERED_FOR = 90 * DAY
"""How long the last batch of a query is known."""
MAX_STREAMS = 100
PREFIX = "writes/"
"""What the names of ledgers among the documents begin with."""
_UNNAMED = "~"
"""What the key of a write without a query begins with, and no name of a query."""
_DRAWN = re.compile(r"(?:.*/)?[0-9a-f]{32}", re.ASCII)
"""What Spark's sink once drew as the query of a write that had none."""


class Ledger(msgspec.Struct, array_like=True, frozen=True):
    """The last batch of a query. Stored as a document: fields are only ever added at the end, with a default."""

    version: int
    batch: int
    at: int
    """When it was decided, or got on."""
    directory: str
    """Where its rows are, under the directory of what is staged."""
    rows: int
    done: int = 0
    """How many rows are published: always the first ones."""
    until: int = 0
    """Where the slice ends that is being published, when it goes to several streams."""
    turns: int = 0
    """To how many of them it has gone."""
    owner: str = ""
    """The id of the token that committed it; empty: no tokens are asked for, or it was committed before this was kept."""
    streams: tuple[str, ...] = ()
    """Where its rows go, as the committer calls it: the first `MAX_STREAMS` names."""
    note: str = ""
    """What the committer said of the batch, for those who repeat it."""

    @property
    def is_finished(self) -> bool:
        return self.done == self.rows

    def passed(self, until: int, turns: int, now: int) -> Ledger:
        """The ledger when the slice that ends at `until` has gone to this many of its streams; no turns: to all."""
        if not turns:
            return msgspec.structs.replace(self, at=now, done=until, until=0, turns=0)
        return msgspec.structs.replace(self, at=now, until=until, turns=turns)


def may_continue(ledger: Ledger, owner: str, may_publish: Callable[[str], bool]) -> bool:
    """Whether a caller may commit for a query: it committed the last batch, or may publish to the streams of that batch.

    Somebody else could otherwise use up the batch numbers of a query, whose own commits would then be taken for repeats.
    """
    if not owner or ledger.owner in {"", owner}:
        return True
    return bool(ledger.streams) and all(map(may_publish, ledger.streams))


class Verdict(Enum):
    """What to do about a commit."""

    PUBLISH = "publish"
    REPEAT = "repeat"
    """It was published before: nothing is added."""
    FINISH_FIRST = "finish_first"
    """A batch of this query, perhaps this one, is under way: finish that, and ask again."""


def verdict(ledger: Ledger | None, batch: int) -> Verdict:
    """What to do about the commit of a batch."""
    if ledger is None:
        return Verdict.PUBLISH
    if not ledger.is_finished:
        return Verdict.FINISH_FIRST
    return Verdict.REPEAT if batch <= ledger.batch else Verdict.PUBLISH


def verdict_of_write(ledger: Ledger | None, *, is_staged: bool, is_published: bool) -> Verdict:
    """What to do about the commit of a write that names no query. It is a repeat if nothing was staged since it was published."""
    if ledger is not None and not ledger.is_finished:
        return Verdict.FINISH_FIRST
    return Verdict.REPEAT if is_published and not is_staged else Verdict.PUBLISH


def key_of(query: str | None, write: str) -> str:
    """What a ledger is known by: the query, or the write if it names none."""
    return _UNNAMED + write if query is None else query


def is_unnamed(key: str) -> bool:
    """Whether this is the key of a write without a query."""
    return key.startswith(_UNNAMED)


def is_forgotten(key: str, ledger: Ledger, now: int) -> bool:
    """Whether the last batch of a query may be forgotten: it has been silent for long, or the write named no query."""
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
