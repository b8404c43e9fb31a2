"""The log door: how other processes read the log, keep positions in it and write to it in one piece."""

from penstock.doors.log.door import LogDoor
from penstock.doors.log.writing import ThreadRules

__all__ = ["LogDoor", "ThreadRules"]
