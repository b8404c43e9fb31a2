"""The log API: how other processes read the log, keep positions in it and write to it in one piece."""

from penstock.log.server.api import LogApi
from penstock.log.server.reading import has_arrow

__all__ = ["LogApi", "has_arrow"]
