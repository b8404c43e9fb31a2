"""Jobs with an id, which run once: an id belongs to the arguments that it was first used with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import InvalidArgument

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def check_id(kind: str, name: str) -> None:
    """Raise InvalidArgument unless `name` is a valid id for a `kind` of job."""
    if not _ID.fullmatch(name):
        raise InvalidArgument.of(f"the {kind} id", name, "1 to 100 letters, digits, dots, dashes and underscores")


def texts(given: Mapping[str, object]) -> dict[str, str]:
    """Arguments as text, without those that are None."""
    return {name: str(value) for name, value in given.items() if value is not None}


def check_same(kind: str, name: str, now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Raise InvalidArgument with the differences if this id was used before with other arguments."""
    changed = [
        f"{key} is {now.get(key, 'missing')!r} and was {before.get(key, 'missing')!r}"
        for key in dict.fromkeys([*now, *before])
        if now.get(key) != before.get(key)
    ]
    if changed:
        raise InvalidArgument(
            f"the {kind} id {name!r} was used before with other arguments: {', '.join(changed)}",
            hint=f"a {kind} id names one {kind}: use another, or repeat the command with the arguments that it had",
        )
