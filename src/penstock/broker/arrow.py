"""The documented import path of the log as Arrow tables. The code is in `penstock.log.arrow`."""

from penstock.log.arrow import read_events, read_stream

__all__ = ["read_events", "read_stream"]
