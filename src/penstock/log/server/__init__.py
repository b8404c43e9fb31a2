"""The log door: how other processes read the log, keep positions in it and write to it in one piece."""

from penstock.log.server.api import LogDoor
from penstock.log.server.reading import has_arrow
from penstock.log.server.writing import ThreadRules

__all__ = ["LogDoor", "ThreadRules", "has_arrow"]
