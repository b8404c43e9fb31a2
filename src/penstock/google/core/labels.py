"""Labels of topics, subscriptions and snapshots."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from penstock.errors import InvalidArgument

MAX_LABELS = 64
MAX_CHARACTERS = 63
MAX_BYTES = 128


def check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    """At most 64 labels of lower-case letters of any script, digits, - and _; a key starts with a letter."""
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"{field} has {len(labels)} entries, wanted at most {MAX_LABELS}")
    for key, value in labels.items():
        if not key or not _is_letter(key[0]) or not _is_short_and_plain(key):
            raise InvalidArgument.of(
                f"a key of {field}", key, f"1 to {MAX_CHARACTERS} lower-case letters, digits, - and _, and a letter first"
            )
        if not _is_short_and_plain(value):
            raise InvalidArgument.of(f"{field}[{key!r}]", value, f"at most {MAX_CHARACTERS} lower-case letters, digits, - and _")


def _is_short_and_plain(text: str) -> bool:
    return (
        len(text) <= MAX_CHARACTERS
        and len(text.encode()) <= MAX_BYTES
        and all(character in "-_" or _is_letter(character) or unicodedata.category(character)[0] in "NM" for character in text)
    )


def _is_letter(character: str) -> bool:
    return character.isalpha() and not character.isupper() and not character.istitle()
