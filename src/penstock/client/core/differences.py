"""Compares existing options with the requested ones: only options that were given count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

from penstock.errors import InvalidArgument
from penstock.values.policy import QueueConfig, SubscriptionOptions, by_name


def given_options(options: object, name: str, kind: type[QueueConfig | SubscriptionOptions]) -> dict[str, Any]:
    """The fields of an options object that differ from their defaults: whether others were given is unknown."""
    if not isinstance(options, kind):
        raise InvalidArgument.of(name, options, f"a {kind.__name__}")
    return {one.name: value for one in fields(kind) if (value := getattr(options, one.name)) != one.default}


def difference(found: Mapping[str, object], given: Mapping[str, object]) -> str | None:
    """The first difference, as a text for an error; None if there is none."""
    others = [
        f"{name} is {found.get(name)!r}, not {value!r}"
        for name, value in given.items()
        if not _is_same(name, found.get(name), value)
    ]
    return "; ".join(others) or None


def _is_same(name: str, found: object, given: object) -> bool:
    if is_dataclass(found):
        if isinstance(given, Mapping):
            return difference(by_name(found), given) is None
        if type(found) is type(given):
            return difference(by_name(found), by_name(given)) is None
    if name in {"topic", "schema", "dead_letter_topic"} and isinstance(given, str) and given.startswith("projects/"):
        _, project, _, short = given.split("/")
        return found in {short, given, f"{project}/{short}"}
    return _plain(found) == _plain(given)


def _plain(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value
