"""The method of the services that serves a call: it has the name of the call, in lower case."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.access import Principal

Call = Callable[[Any, Principal], Awaitable[Any]]
"""From a raw protobuf request and its caller to a raw protobuf answer."""

DOMAIN = "penstock"
"""The domain in the details of an error."""

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def find_call(services: Iterable[object], path: str) -> Call:
    """The method for a gRPC path: `create_topic` of a service for `/google.pubsub.v1.Publisher/CreateTopic`."""
    name = _WORD.sub("_", path.rpartition("/")[2]).lower()
    for service in services:
        if hasattr(service, name):
            found: Call = getattr(service, name)
            return found
    raise AssertionError(f"no service has {name}")
