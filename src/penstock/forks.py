"""Protection against use after a fork: a broker, a journal or a client belongs to the process that opened it.

A child process gets copies of them: without their threads, with locks that are never released, and with files and sockets that it
shares with its parent. So each of these objects is registered when it is opened, and right after a fork the child turns its
copies into objects whose every attribute raises OpenedBeforeFork. This costs nothing at each call.

The copies are never freed, not even when the child ends: closing a database connection writes to files that are the parent's.
"""

from __future__ import annotations

import inspect
import os
import weakref
from typing import Any

from penstock.errors import OpenedBeforeFork

HARMLESS = frozenset({"close", "is_alive"})
"""Attributes that a child may use, to leave a `with` block: there `close` does nothing, and `is_alive` is False."""

_process = os.getpid()
_owned: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_connections: weakref.WeakSet[Any] = weakref.WeakSet()
_left_behind: dict[str, int] = {}
"""Data directories that were open when this process was forked, with the process that had opened them."""


def own(thing: Any, name: str) -> None:
    """Make an object unusable in forked children; errors there name it "this `name`".

    Its method `after_fork`, if it has one, is called in the child first.
    """
    _owned[thing] = name


def disown(thing: Any) -> None:
    """Unregister an object that is closed: its copy in a child is harmless."""
    _owned.pop(thing, None)


def keep_open(connection: Any) -> None:
    """Register a connection whose copy in a forked child must never be closed."""
    _connections.add(connection)


def leave_behind(directory: str) -> None:
    """Note, in a child, that its parent has a data directory open."""
    _left_behind[os.path.realpath(directory)] = _process


def check_directory(directory: str) -> None:
    """Refuse a data directory that was open at the fork: SQLite would treat the parent's locks as its own."""
    if _left_behind:
        owner = _left_behind.get(os.path.realpath(directory))
        if owner is not None:
            raise OpenedBeforeFork(f"data directory {directory!r}", owner)


def _after_fork() -> None:
    global _process  # noqa: PLW0603  # there is one process
    things, connections = dict(_owned), [*_connections]
    for thing, name in things.items():
        if hasattr(thing, "after_fork"):
            thing.after_fork()
        thing.__class__ = _foreign(type(thing), f"this {name}", _process)
    _process = os.getpid()
    _owned.clear()
    _connections.clear()
    if things or connections:
        import ctypes  # noqa: PLC0415  # only needed here

        for one in [*things, *connections]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def _foreign(kind: type, what: str, owner: int) -> type:
    """A class of the same name whose objects cannot be used."""

    def refuse(self: object, name: str) -> Any:
        if name in HARMLESS or name.startswith("__"):
            return object.__getattribute__(self, name)
        raise OpenedBeforeFork(what, owner)

    async def close_later(*_: object, **__: object) -> None:
        """Do nothing: files and sockets belong to the parent."""

    def close(*_: object, **__: object) -> None:
        """Do nothing: files and sockets belong to the parent."""

    is_async = inspect.iscoroutinefunction(getattr(kind, "close", None))
    members = {"__getattribute__": refuse, "close": close_later if is_async else close, "is_alive": False}
    return type(kind)(kind.__name__, (kind,), members)


os.register_at_fork(after_in_child=_after_fork)
