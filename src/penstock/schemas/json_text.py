"""Strict JSON: text that readers may understand differently, or that is too expensive to parse, is refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import NoReturn

from penstock.schemas.schema import SchemaMismatch, shortened


class _NotJson(ValueError):
    """Input that Python's decoder would accept: a member that appears twice, on which readers disagree, or NaN."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise _NotJson(f"the member {shortened(counts.most_common(1)[0][0])} is there twice in one object")
    return members


def _constant(name: str) -> NoReturn:
    raise _NotJson(f"{name} is no number of JSON")


_decode = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant).decode


def decoded_json(text: str | bytes) -> object:
    """The value of a JSON text; Problem if it is malformed, ambiguous, or nested too deeply."""
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise SchemaMismatch(f"byte {error.start} is not valid UTF-8") from None
    except RecursionError:
        raise SchemaMismatch("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise SchemaMismatch(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except _NotJson as error:
        raise SchemaMismatch(f"not valid JSON: {error}") from None
    except ValueError:
        raise SchemaMismatch("not valid JSON: a number has more than 4,300 digits") from None


def is_unicode(text: str) -> bool:
    r"""Whether the text has a UTF-8 form: half a surrogate pair, which JSON can write as \ud800, has none."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
