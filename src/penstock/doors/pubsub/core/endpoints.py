"""Which endpoints the operator lets push send to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument

ANY = "*"

_HOST = re.compile(r"[0-9a-z._-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS = {"http": 80, "https": 443}


class Endpoints:
    """Hosts as patterns, `*` for any text: `*.example.com` on any port, `127.0.0.1:9000` on that one, `*` for every host."""

    def __init__(self, patterns: Iterable[str] = (ANY,)) -> None:
        self._patterns = tuple(patterns)
        self._hosts = [_expression(pattern) for pattern in self._patterns if not _has_port(pattern)]
        self._places = [_expression(pattern) for pattern in self._patterns if _has_port(pattern)]

    def allow(self, url: str) -> bool:
        """Whether messages may be pushed there."""
        if ANY in self._patterns:
            return True
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        host = f"[{host}]" if ":" in host else host
        # What is not plainly a host could be read as one host here and as another by who connects to it.
        if not _HOST.fullmatch(host):
            return False
        place = f"{host}:{parts.port or _PORTS.get(parts.scheme, 0)}"
        return any(one.fullmatch(host) for one in self._hosts) or any(one.fullmatch(place) for one in self._places)

    def check(self, subscription: Any) -> None:
        """Refuse a subscription that pushes to where it may not."""
        url = subscription.push_config.push_endpoint
        if url and not self.allow(url):
            raise InvalidArgument.of(
                "push_config.push_endpoint",
                url,
                f"a host that this server may push to: {', '.join(self._patterns) or 'none'}",
                hint="the operator opens others with the setting push_allow",
            )


def _has_port(pattern: str) -> bool:
    return ":" in pattern.rpartition("]")[2]


def _expression(pattern: str) -> re.Pattern[str]:
    first, *rest = (re.escape(piece) for piece in pattern.lower().split("*"))
    if not rest:
        return re.compile(first)
    *middle, last = rest
    # Each piece takes the first place that fits and looks for no other: a pattern full of stars stays cheap.
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}")
