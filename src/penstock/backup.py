"""Backups of a data directory: copied while a broker has it open, checked, and restored.

A backup is a data directory itself: a broker can open it, and `verify` checks it. What is in it is as of one moment; cursors and
tokens are copied before the log, so that no cursor is ahead of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from penstock.access import Keyring
from penstock.broker import cursors
from penstock.errors import (
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    ServerUnreachable,
    short_repr,
)
from penstock.journal.directory import (
    DATABASE,
    FORMAT_FILE,
    MARK,
    PRIVATE,
    confirm,
    make_directory,
    replace_file,
    write_mark,
)
from penstock.journal.journal import is_database
from penstock.journal.readonly import CHANCES, ReadOnlyJournal
from penstock.journal.sql_reader import Verified
from penstock.wire.address import text_of
from penstock.wire.http import answer

if TYPE_CHECKING:
    from penstock.journal.postgres_reader import ReadOnlyPostgres

TOKENS = "tokens.json"
FILES = (cursors.FILE, TOKENS, "router-config.json")
"""What lies beside the log in a data directory: cursors, tokens, and the last configuration that a router fetched."""
MANIFEST = "backup.json"
"""The SHA-256 of those `FILES` that a backup has. It counts until a broker opens the backup, which may change them."""

ANSWER_SECONDS = 3_600.0
"""How long a server may take to copy its database before it sends."""
STEP_BYTES = 256 * 1024
PRIVATE_DIRECTORY = 0o700

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


def _unseen(*_: int) -> None:
    """Progress that nobody looks at."""


class Report(NamedTuple):
    """What a data directory holds, and what is wrong with it."""

    streams: int
    messages: int
    events: int
    bytes: int
    """Of the messages."""
    cursors: int
    tokens: int
    problems: list[str]
    """What is damaged; the numbers do not count it."""


def back_up(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    token_file: str | os.PathLike[str] | None = None,
    progress: Progress = _unseen,
) -> None:
    """Copy a data directory to `target`, which must not exist or be empty; on disk when it returns.

    A broker may have the source open: it is not delayed. `token_file` is copied in place of `tokens.json` of the source. The copy
    is its owner's alone. An error leaves nothing at `target`.

    Raises:
        InvalidArgument: the source is no data directory, or there is something at the target.
        CorruptLog: the source is damaged.
        FailedPrecondition: the target cannot be written.
    """
    with _copied(source, target, token_file, progress) as copy:
        _write_manifest(copy)


@contextmanager
def _copied(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    token_file: str | os.PathLike[str] | None,
    progress: Progress,
) -> Iterator[Path]:
    """A copy of a data directory, which is complete at the end of the block."""
    journal = ReadOnlyJournal(source)
    try:
        with _new_directory(target) as copy:
            for name in FILES:
                if (content := _content(Path(source) / name)) is not None:
                    replace_file(copy / name, content)
            if token_file is not None:
                if (content := _content(Path(token_file))) is None:
                    raise InvalidArgument.of("token_file", str(token_file), "a file that exists")
                replace_file(copy / TOKENS, content)
            with _created(copy / DATABASE):
                events = journal.copy(copy / DATABASE, progress)
            write_mark(copy, events)
            yield copy
            confirm(copy)
    finally:
        journal.close()


def download(
    server: str,
    target: str | os.PathLike[str],
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    progress: Progress = _unseen,
) -> None:
    """Let a server make a backup of itself, and write it to `target`, as `back_up` does.

    The server needs room for a copy on its disk. `token` must have every verb for every name of every project.
    """
    sent = answer(server, "/backup", token=token, tls=tls, seconds=ANSWER_SECONDS)
    with _new_directory(target) as copy, sent as response:
        try:
            _unpack(response, copy, progress)
        except (ConnectionError, TimeoutError, ssl.SSLError, HTTPException, tarfile.TarError) as error:
            raise ServerUnreachable(server, f"the backup was cut off: {text_of(error)}") from error


def _unpack(response: HTTPResponse, copy: Path, progress: Progress) -> None:
    """Write the files of an archive, `FORMAT` last; an archive that ends too early is refused."""
    done, total, names, form = 0, response.length or 0, set(), b""
    with tarfile.open(fileobj=response, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or member.name not in {DATABASE, MARK, FORMAT_FILE, *FILES}:
                raise FailedPrecondition(f"the server sent {short_repr(member.name)}, which is no part of a backup")
            names.add(member.name)
            if member.name == FORMAT_FILE:
                form = content.read(STEP_BYTES)
                continue
            with _created(copy / member.name) as file:
                while piece := content.read(STEP_BYTES):
                    file.write(piece)
                    done += len(piece)
                    progress(done, total)
        while response.read(STEP_BYTES):
            pass  # what fills the last block
    if response.length:
        raise ConnectionError(f"{response.length} bytes are missing")
    if not names >= {DATABASE, MARK, FORMAT_FILE}:
        raise FailedPrecondition("the backup that the server sent is not complete", hint="try again")
    _write_manifest(copy)
    replace_file(copy / FORMAT_FILE, form)


def _write_manifest(copy: Path) -> None:
    replace_file(copy / MANIFEST, msgspec.json.encode(_digests(copy)))


def _check_manifest(path: Path) -> Iterator[CorruptLog]:
    """What differs from the manifest of a backup, if there is one that counts."""
    content = _content(path / MANIFEST)
    if content is None or (path / "LOCK").exists():
        return
    try:
        listed = msgspec.json.decode(content, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        yield CorruptLog(str(path), MANIFEST, str(error))
        return
    found = _digests(path)
    for name in FILES:
        if listed.get(name) != found.get(name):
            problem = "the file is missing" if name not in found else "this is not the file that was backed up"
            yield CorruptLog(str(path), name, problem)


def _digests(path: Path) -> dict[str, str]:
    """The SHA-256 of each of the `FILES` that are there."""
    contents = {name: _content(path / name) for name in FILES}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content is not None}


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """A new file for its owner only; on disk when it is closed."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE), "wb") as file:
        yield file
        file.flush()
        os.fsync(file)


def restore(backup: str | os.PathLike[str], target: str | os.PathLike[str], *, progress: Progress = _unseen) -> Report:
    """Check a backup, and copy it to `target`, which must not exist or be empty. A damaged backup is refused with CorruptLog."""
    report = verify(backup)
    if report.problems:
        raise CorruptLog(str(backup), "the backup", "; ".join(report.problems))
    with _copied(backup, target, None, progress):
        return report


def verify(path: str | os.PathLike[str], *, progress: Callable[[int], None] = _unseen) -> Report:
    """Read everything in a data directory, or in the database at an address, and compare every checksum. A broker may own it.

    `progress` is called with the number of messages and events that were read since it was called last. InvalidArgument if it is
    no data directory; what is damaged is in the report.
    """
    found = Verified()
    problems: list[str] = []
    marks = tokens = 0
    with _noted(problems):
        journal = _reader(path)
        try:
            for check in journal.checks():
                with _noted(problems):
                    part = _checked(check)
                    found = Verified(*(a + b for a, b in zip(found, part, strict=True)))
                    progress(part.messages + part.events)
            with _noted(problems):
                marks = len(cursors.load(journal.path, journal.read_file(cursors.FILE)))
        finally:
            journal.close()
    if not is_database(path):
        with _noted(problems):
            tokens = len(Keyring(Path(path) / TOKENS).list())
        problems += map(str, _check_manifest(Path(path)))
    return Report(*found, marks, tokens, problems)


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A SHA-256 over the log in a data directory or in the database at an address: equal logs have the same."""
    journal = _reader(path)
    try:
        return journal.fingerprint()
    finally:
        journal.close()


def _reader(path: str | os.PathLike[str]) -> ReadOnlyJournal | ReadOnlyPostgres:
    """The log at a path or an address, to be read."""
    if isinstance(path, str) and is_database(path):
        from penstock.journal.postgres_reader import ReadOnlyPostgres  # noqa: PLC0415  # psycopg is an extra

        return ReadOnlyPostgres(path)
    return ReadOnlyJournal(path)


def _checked(check: Callable[[], Verified]) -> Verified:
    """What a check returns. Retention of a broker that runs may remove what is being read: then it is read again."""
    for _ in range(CHANCES - 1):
        try:
            return check()
        except CorruptLog:
            continue
    return check()


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Note an error about what is stored, and continue. What cannot be read here, or by this version, is no damage."""
    try:
        yield
    except (InvalidArgument, FailedPrecondition):
        raise
    except PenstockError as error:
        problems.append(str(error))


@contextmanager
def _new_directory(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory to write to, for its owner only; an error removes what was written."""
    if not isinstance(target, str | os.PathLike) or not os.fspath(target) or "\0" in str(target):
        raise InvalidArgument.of("target", target, "the path of a directory")
    path = Path(target)
    try:
        is_new = not path.exists()
        is_free = is_new or (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise FailedPrecondition(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not is_free:
        raise InvalidArgument.of("target", str(path), "a directory that does not exist or is empty")
    mode = None if is_new else path.stat().st_mode
    try:
        make_directory(path, PRIVATE_DIRECTORY)
        path.chmod(PRIVATE_DIRECTORY)
        yield path
    except OSError as error:
        _remove(path, mode)
        raise FailedPrecondition(f"cannot write {error.filename or str(path)!r}: {error.strerror}") from error
    except BaseException:
        _remove(path, mode)
        raise


def _remove(path: Path, mode: int | None) -> None:
    """Remove what was written to a directory that was empty and had this mode, or, if it was made, the directory."""
    if mode is None:
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        for file in path.iterdir():
            file.unlink()
        path.chmod(mode)


def _content(file: Path) -> bytes | None:
    """What is in a file; None if it does not exist."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedPrecondition(f"cannot read {str(file)!r}: {error.strerror}") from error
