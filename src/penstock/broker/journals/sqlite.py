"""The documented import path of the durable journal. The code is in `penstock.journal.sqlite`."""

from penstock.journal.sqlite import SqliteJournal

__all__ = ["SqliteJournal"]
