"""The tokens, in a file or in a database. `penstock token` changes them while the server runs, which checks them at every call.

A writer of a file takes a lock, writes a new one beside the old one, syncs it and renames it: a reader sees all the old tokens or
all the new ones. A reader checks once a second whether the file has changed. A damaged or unsafe file lets no caller in: it is an
error at the start, and later every call is refused until the file is valid again.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from penstock.access.core.principal import Principal, Verb
from penstock.access.core.token import MAX_TOKENS, RULES, Secret, Token, decode, encode
from penstock.durations import SECOND
from penstock.errors import DataLoss, FailedPrecondition, ResourceExhausted, TokenNotFound, Unauthenticated, Unavailable

log = logging.getLogger("penstock.access")

_MAX_FILE_BYTES = 64 * 2**20
UNKNOWN_INTERVAL = 20_000
"""How soon an unknown token makes the server read the file again: scripts use tokens right after creating them."""
_NOBODY = "0" * 64
"""Unknown tokens are compared with this, so that they take as long as known ones."""


class TokenStore(Protocol):
    """Where tokens are kept, as a whole. Safe for several threads and processes."""

    name: str
    """What errors call it."""

    def signature(self) -> object:
        """A value that changes with the content; None if there is no content. It returns at once."""

    def read(self) -> tuple[bytes | None, object]:
        """The content, and its signature. FailedPrecondition if it cannot be read."""

    def update(self, change: Callable[[bytes | None], bytes]) -> None:
        """Replace the content by what `change` makes of it; on disk when it returns. One writer at a time."""


class Keyring:
    """The tokens of one file or store. One without content has none. Safe for several threads and processes."""

    def __init__(self, place: Path | TokenStore) -> None:
        self._store = TokenFile(place) if isinstance(place, Path) else place
        self._known: dict[str, tuple[Token, Principal]] = {}
        self._seen: object = None
        self._checked: int | None = None
        self._problem: str | None = None
        self._unwarned: dict[str, str] = {}
        """Warnings about tokens made under older rules, by token; each is logged at its first use."""
        self._warned: set[str] = set()
        self._read()

    def __repr__(self) -> str:
        return f"<keyring {self._store.name}, {len(self._known)} tokens>"

    def authenticate(self, secret: str | None, now: int) -> Principal:
        """The principal of this secret.

        Raises:
            Unauthenticated: the secret is missing, malformed, unknown, revoked or expired.
            Unavailable: the file is damaged or unsafe at the moment.
        """
        self._look_again(now, SECOND)
        self._check_file()
        if secret is None or secret == "":
            raise Unauthenticated
        parts = Secret.parse(secret)
        if parts is None:
            raise Unauthenticated("this is not a Penstock token")
        if parts.token_id not in self._known:
            self._look_again(now, UNKNOWN_INTERVAL)  # it may be new
        known = self._known.get(parts.token_id)
        is_right = hmac.compare_digest(parts.digest, known[0].digest if known is not None else _NOBODY)
        if known is None or not is_right:
            raise Unauthenticated("the token is unknown or was revoked")
        token, principal = known
        if token.has_expired(now):
            raise Unauthenticated("the token has expired")
        if self._unwarned and (advice := self._unwarned.pop(token.id, None)) is not None:
            self._warned.add(token.id)
            log.warning("%s", advice)
        return principal

    def check(self, principal: Principal, now: int) -> None:
        """Return if the token of an authenticated caller still exists. Callers watch its expiry themselves: `expires_at`.

        Raises:
            Unauthenticated: it was revoked.
            Unavailable: the file is damaged or unsafe at the moment.
        """
        self._look_again(now, SECOND)
        self._check_file()
        if principal.token_id not in self._known:
            raise Unauthenticated("the token was revoked")

    def expires_at(self, principal: Principal) -> int | None:
        """When a caller's token expires; None if it does not expire, or is unknown."""
        known = self._known.get(principal.token_id)
        return known[0].expires if known is not None else None

    def _check_file(self) -> None:
        if self._problem is not None:
            raise Unavailable(
                "the server cannot read its tokens", hint="see its log; no token is accepted until the file is repaired"
            )

    def _look_again(self, now: int, interval: int) -> None:
        """Read the file again if it has changed, at most once per interval. A clock that was set back must not stop this."""
        if self._checked is None or not 0 <= now - self._checked < interval:
            self._refresh()
            self._checked = now

    def create(
        self,
        name: str,
        now: int,
        *,
        project: str | None = None,
        verbs: Iterable[Verb] = tuple(Verb),
        patterns: Iterable[str] = ("*",),
        expires: int | None = None,
    ) -> str:
        """Make a token that is valid until `expires`; returns its secret, which cannot be shown again."""
        secret = Secret(secrets.token_hex(6), secrets.token_urlsafe(32))
        token = Token(
            id=secret.token_id,
            name=name,
            digest=secret.digest,
            project=project,
            verbs=tuple(sorted(set(verbs))),
            patterns=tuple(patterns),
            created=now,
            expires=expires,
            rules=RULES,
        )

        def add(tokens: dict[str, Token]) -> None:
            if len(tokens) >= MAX_TOKENS:
                raise ResourceExhausted(f"there are {MAX_TOKENS} tokens already", hint="revoke unused ones")
            tokens[token.id] = token

        self._change(add)
        return secret.text

    def list(self) -> list[Token]:
        """Every token, oldest first, also those that have expired."""
        self._read()
        return sorted((token for token, _ in self._known.values()), key=lambda token: (token.created, token.id))

    def revoke(self, token_id: str) -> None:
        """Delete a token; servers stop accepting it within a second."""

        def remove(tokens: dict[str, Token]) -> None:
            if tokens.pop(token_id, None) is None:
                raise TokenNotFound(token_id)

        self._change(remove)

    def _refresh(self) -> None:
        if self._store.signature() == self._seen and self._problem is None:
            return
        try:
            self._read()
        except (DataLoss, FailedPrecondition) as error:
            if self._problem != str(error):  # log it once, not every second
                log.error("%s; every call is refused", error)
            self._problem = str(error)
        else:
            self._problem = None

    def _read(self) -> None:
        content, seen = self._store.read()
        tokens = self._decoded(content)
        self._known = {token_id: (token, token.principal) for token_id, token in tokens.items()}
        self._unwarned = {
            token.id: token.advice
            for token in tokens.values()
            if token.rules < RULES and token.id not in self._warned and token.advice is not None
        }
        self._seen = seen

    def _decoded(self, content: bytes | None) -> dict[str, Token]:
        if content is None:
            return {}
        try:
            return decode(content)
        except ValueError as error:
            raise DataLoss(
                f"{self._store.name} is damaged: {error}",
                hint="restore it from a backup, or move it away and create new tokens; until then no token is accepted",
            ) from None

    def _change(self, change: Callable[[dict[str, Token]], None]) -> None:
        def changed(content: bytes | None) -> bytes:
            tokens = self._decoded(content)
            change(tokens)
            return encode(tokens)

        self._store.update(changed)
        self._read()


class TokenFile:
    """Tokens in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"the token file {str(path)!r}"

    def signature(self) -> object:
        try:
            return _signature(self._path.stat())
        except OSError:
            return None  # reading reports the problem, or that there is no file

    def read(self) -> tuple[bytes | None, object]:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                content = file.read(_MAX_FILE_BYTES)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            raise FailedPrecondition(f"cannot read {self.name}: {error.strerror}") from error
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FailedPrecondition(f"{self.name} can be written by other users", hint="let only its owner: chmod 600")
        return content, _signature(found)

    def update(self, change: Callable[[bytes | None], bytes]) -> None:
        path = Path(os.path.realpath(self._path))  # a link stays a link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_name(f"{path.name}.lock")):
                _replace(path, change(self.read()[0]))
        except OSError as error:
            raise FailedPrecondition(f"cannot write the token file {str(path)!r}: {error.strerror}") from error


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock out other writers on this machine. The lock ends with the process, however that ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically and durably, readable only by its owner."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)  # left by a writer that was killed; this one holds the lock
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
