"""What is known of a query that writes: which batch was decided last, and how far publishing it has got.

    staged ──commit──> decided ──> slice by slice ──> finished
       │                  └── a crash goes on from `done`: each slice and the mark that it is done are one commit
       └──abort, or a day without a touch──> forgotten

Batch numbers of a query only go up. A batch that was decided is never published again, whatever is staged for it later.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.durations import DAY
from penstock.errors import CorruptLog

VERSION = 1
STAGED_FOR = DAY
"""How long what is staged waits for its commit after it was touched last."""
REMEMBERED_FOR = 90 * DAY
"""How long the last batch of a query is known."""
PREFIX = "writes/"
"""What the names of ledgers among the documents begin with."""


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

    @property
    def is_finished(self) -> bool:
        """Whether all rows are published."""
        return self.done == self.rows

    def passed(self, until: int, turns: int, now: int) -> Ledger:
        """The ledger when the slice that ends at `until` has gone to so many of its streams; no turns: to all."""
        if not turns:
            return msgspec.structs.replace(self, at=now, done=until, until=0, turns=0)
        return msgspec.structs.replace(self, at=now, until=until, turns=turns)


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


def is_forgotten(ledger: Ledger, now: int) -> bool:
    """Whether a query has been silent for so long that its last batch need not be known."""
    return ledger.is_finished and now - ledger.at >= REMEMBERED_FOR


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Ledger)


def decode(name: str, body: bytes) -> Ledger:
    """A stored ledger."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptLog("the catalogue", f"document {name!r}", str(error)) from error
