"""An error of another process, as it was raised there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from penstock.errors import PenstockError


def rebuilt(reason: str, fields: Sequence[object], text: str, hint: str | None) -> PenstockError:
    """An error of another process: its type by its `reason` and its fields, or, where that is not known here, its text."""
    try:
        error = _kinds()[reason](*fields)
    except (KeyError, TypeError):
        error = PenstockError(text)
    if hint and hint != error.hint:
        error.hint = hint
        error.add_note(hint)
    return error


@cache
def _kinds() -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {}
    rest: list[type[PenstockError]] = [PenstockError]
    while rest:
        kind = rest.pop()
        found.setdefault(kind.reason, kind)
        rest += kind.__subclasses__()
    return found
