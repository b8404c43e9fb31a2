"""The log API: other processes read the log, store positions in it and write to it atomically."""

from penstock.log.server.api import LogApi
from penstock.log.server.reading import has_arrow

__all__ = ["LogApi", "has_arrow"]
