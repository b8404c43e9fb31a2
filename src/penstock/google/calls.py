"""Which method of the services makes a call: the one that is named as the call is, in lower case."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.access import Principal

Call = Callable[[Any, Principal], Awaitable[Any]]
"""A raw protobuf request and its caller, to a raw protobuf answer."""

DOMAIN = "penstock"
"""Who speaks, in the details of an error."""

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def find_call(services: Iterable[object], path: str) -> Call:
    """The method for a gRPC path: `create_topic` of one of the services for `/google.pubsub.v1.Publisher/CreateTopic`."""
    name = _WORD.sub("_", path.rpartition("/")[2]).lower()
    for service in services:
        if hasattr(service, name):
            found: Call = getattr(service, name)
            return found
    raise AssertionError(f"no service has {name}")
