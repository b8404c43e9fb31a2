"""Redrives by programs outside of the broker: each dead letter at most once for each redrive, also after crashes.

A redrive processes the dead letters of a queue in the order of their offsets. For each queue it has a ledger like a query that
writes: the number of the last batch is the offset that the redrive has reached, and is stored in one commit with the letters.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker import redrives
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.documents import Documents
from penstock.broker.redrives import Letter
from penstock.errors import PermissionDenied, ResourceExhausted
from penstock.log import write_ledger
from penstock.log.leased_batches import Source
from penstock.log.log import QUEUE
from penstock.log.write_ledger import Ledger, Verdict, verdict
from penstock.log.writes import ANY_WRITER, Writer

PREFIX = "redrives/"
"""The prefix of the names of the documents."""
MAX_LEDGERS = 100_000
_LOCKS = 64


class Redriven(NamedTuple):
    """The progress of a redrive in a queue."""

    redriven: int
    """The number of letters that it has requeued there, in all calls."""
    is_repeat: bool
    """Whether all letters of the call were processed by an earlier call."""


class Redrives:
    """All redrives of a broker. Every method may wait for the disk. Thread-safe."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ledgers = Documents(broker, PREFIX)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def begin(self, name: str, note: str, caller: Writer = ANY_WRITER) -> str:
        """Store a note about a redrive; returns the note of the first call with this name."""
        with self._lock_of(name):
            known = self._checked(name, caller)
            if known is None:
                self._make_room()
                self._ledgers.keep(name, write_ledger.encode(self._ledger(0, 0, (), caller, note)))
            return note if known is None else known.note

    def move(self, name: str, source: Source, letters: Sequence[Letter], caller: Writer = ANY_WRITER) -> Redriven:
        """Requeue dead letters of a queue or subscription, in the order of their offsets, unless this redrive already has."""
        find = Catalog.work_queue if source.kind == QUEUE else Catalog.subscription
        number, stream = redrives.number_of(self._broker, find, source.name)
        key = f"{name}#{number}"
        with self._lock_of(key):
            known = self._checked(key, caller)
            done = 0 if known is None else known.done
            left = [place for place in redrives.places(letters, stream) if verdict(known, place.offset) is Verdict.PUBLISH]
            if not left:
                return Redriven(done, is_repeat=bool(letters))

            def note(count: int) -> tuple[str, bytes]:
                ledger = self._ledger(left[-1].offset, done + count, (source.name,), caller)
                return PREFIX + key, write_ledger.encode(ledger)

            return Redriven(done + redrives.redrive(self._broker, number, left, note), is_repeat=False)

    def _ledger(self, batch: int, done: int, streams: tuple[str, ...], caller: Writer, note: str = "") -> Ledger:
        now = self._broker.clock.now()
        return Ledger(
            write_ledger.VERSION, batch, now, "", rows=done, done=done, owner=caller.token_id, streams=streams, note=note
        )

    def _checked(self, key: str, caller: Writer) -> Ledger | None:
        """The ledger with this name, if the caller may continue it."""
        body = self._ledgers.get(key)
        known = None if body is None else write_ledger.decode(PREFIX + key, body)
        if known is not None and not write_ledger.may_continue(known, caller.token_id, caller.may_publish):
            raise PermissionDenied("manage", f"the redrive {key.partition('#')[0].rpartition('/')[2]}")
        return known

    def _make_room(self) -> None:
        """If there are too many redrives, remove those that have been unused for very long."""
        known = self._ledgers.all()
        if len(known) < MAX_LEDGERS:
            return
        now = self._broker.clock.now()
        silent = [
            name for name, body in known.items() if write_ledger.is_forgotten(name, write_ledger.decode(PREFIX + name, body), now)
        ]
        for name in silent:
            self._ledgers.drop(name)
        if not silent:
            raise ResourceExhausted(
                f"{len(known)} redrives are known, which is the maximum", hint="use the names of earlier ones again"
            )

    def _lock_of(self, name: str) -> threading.Lock:
        return self._locks[hash(name) % _LOCKS]
