"""The documented import path of the journal port. The code is in `penstock.journal.journal`."""

from penstock.journal.journal import Journal, ReadableJournal

__all__ = ["Journal", "ReadableJournal"]
