"""Matches names with patterns, by RE2, which is part of Arrow: its time is linear in the text, whatever the pattern is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgument


def fitting(pattern: str, names: list[str]) -> set[str]:
    found = pa.array(names, pa.string())
    try:
        fits = pc.match_substring_regex(found, rf"\A(?:{pattern})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        problem = str(error).partition(": ")[2] or "it is not text"
        raise InvalidArgument.of(
            "pattern", pattern, f"a regular expression: {problem}", hint="RE2's: without look-around and back-references"
        ) from None
    return set(found.filter(fits).to_pylist())
