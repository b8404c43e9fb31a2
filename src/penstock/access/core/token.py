"""Tokens: their fields, which part of the secret is stored, and the format of the token file.

A secret is `pk_<id>_<random>`. The id is not secret: it names the token in listings and logs. Of the random part only the SHA-256
is stored. A slow password hash would protect nothing here: 32 random bytes cannot be guessed, and it would make every call slow.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec

from penstock.access.core.principal import Principal, Verb, once_included
from penstock.durations import DAY
from penstock.errors import InvalidArgument

VERSION = 1
RULES = 2
"""The rules for new tokens. With rules 1, `read` includes payloads and holding retention, `manage` push endpoints."""
MAX_TOKENS = 10_000

_SECRET = re.compile(r"pk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}", re.ASCII)
_PATTERN = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")
_LAST = 7030 * 365 * DAY  # representable as a datetime


class Secret(NamedTuple):
    """The two parts of a secret. Its repr shows only the id, so that it may appear in a traceback."""

    token_id: str
    random: str

    def __repr__(self) -> str:
        return f"<secret of token {self.token_id}>"

    @property
    def text(self) -> str:
        return f"pk_{self.token_id}_{self.random}"

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.random.encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Secret | None:
        """The parts of a secret; None if the text is not a secret."""
        found = _SECRET.fullmatch(text)
        return cls(found[1], found[2]) if found else None


def is_token_id(text: str) -> bool:
    """Whether a text has the form of a token id."""
    return re.fullmatch(r"[0-9a-f]{12}", text, re.ASCII) is not None


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored token. Times are microseconds since 1970; `expires` is None for tokens that do not expire."""

    id: str
    name: str
    digest: str
    project: str | None
    verbs: tuple[Verb, ...]
    patterns: tuple[str, ...]
    created: int
    expires: int | None
    rules: int = 1

    def __post_init__(self) -> None:
        if not is_token_id(self.id) or not re.fullmatch(r"[0-9a-f]{64}", self.digest):
            raise InvalidArgument("a token's id and digest are 12 and 64 hexadecimal digits")
        if not 1 <= len(self.name) <= 100 or not self.name.isprintable():
            raise InvalidArgument.of("name", self.name, "1 to 100 printable characters")
        if self.project is not None and not _PROJECT.fullmatch(self.project):
            raise InvalidArgument.of("project", self.project, "up to 100 letters, digits, '-', '_', '.', ':'")
        if not self.verbs:
            raise InvalidArgument.of("verbs", "", f"one or more of {', '.join(Verb)}")
        if not 1 <= len(self.patterns) <= 100:
            raise InvalidArgument.of("names", list(self.patterns), "1 to 100 patterns")
        for pattern in self.patterns:
            if not _PATTERN.fullmatch(pattern):
                raise InvalidArgument.of("names", pattern, "patterns such as orders-*, up to 255 characters, without spaces")
        if not 0 <= self.created <= _LAST or (self.expires is not None and not self.created < self.expires <= _LAST):
            raise InvalidArgument.of("expires", self.expires, "a time after the token's creation and before the year 9000")

    def __repr__(self) -> str:
        return f"<token {self.id} {self.name!r}>"

    @property
    def principal(self) -> Principal:
        kept = once_included(self.verbs) if self.rules < RULES else frozenset()
        return Principal(self.id, self.project, frozenset(self.verbs) | kept, self.patterns)

    @property
    def advice(self) -> str | None:
        """What to change about a token of older rules that may allow more than its verbs do now; None if nothing."""
        today = Principal(self.id, self.project, frozenset(self.verbs), self.patterns)
        if self.principal == today:
            return None
        given = ",".join(self.verbs)
        return (
            f"token {self.id} ({self.name}) was made before `read` and `manage` stopped including payloads, push endpoints and"
            f" retention, and keeps them: make another with the verbs it needs (--verbs metrics for Prometheus,"
            f" {given} to keep only those, {given},consume to keep all), then `penstock token revoke {self.id}`"
        )

    def has_expired(self, now: int) -> bool:
        """Whether it has expired. At the exact instant it has, as everywhere."""
        return self.expires is not None and now >= self.expires


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    tokens: tuple[Token, ...]


def encode(tokens: dict[str, Token]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_File(VERSION, tuple(tokens.values()))), indent=2) + b"\n"


def decode(content: bytes) -> dict[str, Token]:
    """The tokens by id; ValueError unless the data is exactly what `encode` writes."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, InvalidArgument, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if file.version != VERSION:
        raise ValueError(f"its version is {file.version}, this server reads {VERSION}")
    tokens = {token.id: token for token in file.tokens}
    if len(tokens) != len(file.tokens):
        raise ValueError("two tokens have the same id")
    return tokens
