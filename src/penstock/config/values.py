"""The types of settings: how each is parsed from text, what it accepts, and how it is described.

A flag or an environment variable is text; a TOML file and a caller in Python pass typed values. So every type has two steps:
`parse` makes a value from text, `check` takes a value of any source and returns the one to use, or raises ValueError. In a file
`port = "8085"` is an error, because a file can contain a number; on a command line everything is text.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from penstock.durations import duration_seconds, scaled
from penstock.errors import InvalidArgument

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """One kind of value."""

    wanted: str
    check: Callable[[object], T]
    parse: Callable[[str], object] = str
    metavar: str = "TEXT"
    is_hidden: bool = False
    """Whether errors must not repeat a wrong value, because it may contain a secret."""

    def read(self, value: object, label: str, *, is_text: bool = False) -> T:
        """The value to use; InvalidArgument, with `label` as its name, if it is not of this type."""
        try:
            return self.check(self.parse(value) if is_text and isinstance(value, str) else value)
        except ValueError as error:
            if self.is_hidden:
                raise InvalidArgument(f"{label} is not {self.wanted}", hint=str(error) or None) from None
            raise InvalidArgument.of(label, value, self.wanted) from None


def whole(minimum: int, maximum: int, metavar: str = "N") -> ValueType[int]:
    """A whole number within bounds."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError
        return int(value)

    return ValueType(f"a whole number from {minimum} to {maximum}", check, _digits, metavar)


def number(minimum: float, maximum: float) -> ValueType[float]:
    """A number within bounds, with or without a fraction."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
            raise ValueError
        return value

    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,6})?", text.strip(), re.ASCII):
            raise ValueError
        return float(text)

    return ValueType(f"a number from {minimum:g} to {maximum:g}", check, parse, "N")


def choice(*words: str) -> ValueType[str]:
    """One of a few words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError
        return value

    return ValueType(" or ".join(f"'{word}'" for word in words), check, metavar="|".join(words))


def duration(minimum: float, maximum: float) -> ValueType[float]:
    """Seconds as a number, or text with a unit."""

    def check(value: object) -> float:
        seconds = duration_seconds(value)
        if not minimum <= seconds <= maximum:
            raise ValueError
        return seconds

    wanted = f"a duration from {minimum:g} to {maximum:g} s: seconds, or with a unit as in 500ms, 30s, 5m, 2h, 30d"
    return ValueType(wanted, check, metavar="DURATION")


def size(minimum: int, maximum: int) -> ValueType[int]:
    """Bytes as a number, or text with a unit."""

    def check(value: object) -> int:
        octets = size_bytes(value)
        if not minimum <= octets <= maximum:
            raise ValueError
        return octets

    return ValueType(
        f"a size from {minimum} to {maximum} bytes: a number, or with a unit as in 10MB, 64KiB", check, metavar="SIZE"
    )


def several(kind: ValueType[T]) -> ValueType[tuple[T, ...]]:
    """A list of values of one type; in text, commas separate them."""

    def check(value: object) -> tuple[T, ...]:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise ValueError  # every type refuses with a ValueError
        return tuple(kind.check(item) for item in value)

    def parse(text: str) -> list[object]:
        return [kind.parse(item.strip()) for item in text.split(",") if item.strip()]

    return ValueType(f"a list, each {kind.wanted}", check, parse, f"{kind.metavar},…")


_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def size_bytes(value: object) -> int:
    """Bytes of 65536, "65536", "10MB" or "64KiB"; ValueError for anything else."""
    octets = scaled(value.lower(), _BYTES) if isinstance(value, str) else value
    if isinstance(octets, bool) or not isinstance(octets, int | float) or (isinstance(octets, float) and not octets.is_integer()):
        raise ValueError
    return int(octets)


def _digits(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,15}", text.strip(), re.ASCII):
        raise ValueError
    return int(text)


def _check_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _parse_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"1", "true", "yes", "on", "0", "false", "no", "off"}:
        raise ValueError
    return word in {"1", "true", "yes", "on"}


def _check_path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ValueError
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError
    return Path(text).expanduser()


def _matching(pattern: str) -> Callable[[object], str]:
    compiled = re.compile(pattern, re.ASCII | re.IGNORECASE)

    def check(value: object) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError
        return value

    return check


_check_name = _matching(r"[0-9a-z]([0-9a-z._-]{0,252}[0-9a-z])?")


def _check_host(value: object) -> str:
    if isinstance(value, str) and ":" in value:
        ipaddress.IPv6Address(value)  # an AddressValueError is a ValueError
        return value
    return _check_name(value)


def _http_address(value: object, why_bare: str) -> SplitResult:
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{1,2000}", value, re.ASCII):
        raise ValueError
    parts = urlsplit(value)
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"take the user and the password out: {why_bare}")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.fragment or parts.port == 0:
        raise ValueError
    return parts


def _check_url(value: object) -> str:
    parts = _http_address(value, "this address is shown to others")
    if parts.query:
        raise ValueError
    return str(value).rstrip("/")


def _check_jwks(value: object) -> str:
    _http_address(value, "these keys are public")
    return str(value)


def _check_redis(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]{1,2000}", value, re.ASCII):
        raise ValueError
    parts = urlsplit(value)
    if parts.scheme not in {"redis", "rediss", "unix"} or not (parts.hostname or parts.path):
        raise ValueError
    return value


def _check_postgres(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"postgres(ql)?://[!-~]{1,2000}", value, re.ASCII):
        raise ValueError
    return value


def _check_places(value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError
    return value.strip()


FLAG = ValueType("true or false", _check_flag, _parse_flag, "BOOL")
PORT = whole(0, 65_535, "PORT")
PATH = ValueType("a path", _check_path, metavar="PATH")
HOST = ValueType("a host name or an address", _check_host, metavar="HOST")
PROJECT = ValueType(
    "a project: up to 100 letters, digits, '-', '_', '.', ':'", _matching(r"[a-z0-9][a-z0-9._:-]{0,99}"), metavar="NAME"
)
URL = ValueType("an address such as https://penstock.example:8085", _check_url, metavar="URL", is_hidden=True)
ORIGIN = ValueType(
    "'*' or an origin such as https://app.example", _matching(r"\*|https?://[0-9a-z._-]{1,253}(:[0-9]{1,5})?"), metavar="ORIGIN"
)
HOST_PATTERN = ValueType(
    "a host, '*' standing for any text, such as *.example.com or 127.0.0.1:9000",
    _matching(r"[0-9a-z*._-]{1,253}(:[0-9*]{1,5})?|\[[0-9a-f:.]{2,45}\](:[0-9*]{1,5})?"),
    metavar="HOST",
)
TARGET_PATTERN = ValueType(
    "a host, an address or a network, perhaps with a port, such as *.internal.example, 10.0.0.0/8 or 127.0.0.1:9000",
    _matching(r"[0-9a-z*._-]{1,253}(/[0-9]{1,2})?(:[0-9*]{1,5})?|\[?[0-9a-f:.]{2,45}(/[0-9]{1,3})?\]?(:[0-9*]{1,5})?"),
    metavar="HOST",
)
REDIS = ValueType("a Redis such as redis://127.0.0.1:6379/0", _check_redis, metavar="URL", is_hidden=True)
JOURNAL = ValueType(
    "the address of a PostgreSQL database, postgresql://USER@HOST:PORT/DATABASE", _check_postgres, metavar="URL", is_hidden=True
)
PLACES = ValueType("a file, or addresses with commas between them", _check_places, metavar="FILE|URL", is_hidden=True)
JWKS = ValueType("an address such as https://login.example/.well-known/jwks.json", _check_jwks, metavar="URL", is_hidden=True)
WORD = ValueType("1 to 512 letters, digits and signs without spaces", _matching(r"[!-~]{1,512}"), metavar="TEXT")
_LEVEL = r"[0-9a-z_-]*|\+"
BINDING = ValueType(
    "PATTERN=TOPIC such as orders/#=orders: a pattern of hub topics, and a topic of 3 to 255 letters, digits and -_.~+%, which"
    " starts with a letter and is none of the hub's own (hub, hub.…)",
    _matching(rf"(?=[^=]{{1,256}}=)(({_LEVEL})/)*({_LEVEL}|#)=(?!goog|hub(\.|$))[a-z][0-9a-z._~+%-]{{2,254}}"),
    metavar="PATTERN=TOPIC",
)
TOPIC_PREFIX = ValueType(
    "the beginning of hub topics, such as chat or chat/eu: up to 200 letters, digits, _ - and /",
    _matching(r"(?=.{1,200}$)[0-9a-z_-]+(/[0-9a-z_-]+)*"),
    metavar="PREFIX",
)
