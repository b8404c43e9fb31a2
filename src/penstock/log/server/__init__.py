"""The log door: how other processes read the log, keep positions in it and write to it in one piece."""

from penstock.log.server.api import LogDoor
from penstock.log.server.reading import has_arrow

__all__ = ["LogDoor", "has_arrow"]
