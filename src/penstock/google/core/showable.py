"""Whether a resource can be shown later, over REST too: a value that JSON cannot carry is refused while somebody still cares."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from penstock.errors import InvalidArgument


def check_showable(resource: Any) -> None:
    """Refuse instants out of range, numbers that are none, and what else has no form in JSON."""
    try:
        json_format.MessageToDict(resource)
    except (json_format.Error, ValueError) as error:
        raise InvalidArgument(f"the {resource.DESCRIPTOR.name} has a value that JSON cannot show: {error}") from None
