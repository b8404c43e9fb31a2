"""Backups of a data directory: copied while a broker has it open, verified, and restored.

A backup is a data directory itself: a broker can open it, and `verify` checks it. Its log is a snapshot of one moment; cursors
and tokens are copied before the log, so that no cursor is ahead of it.
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
"""Files beside the log in a data directory: cursors, tokens, and the last configuration that a router fetched."""
MANIFEST = "backup.json"
"""The SHA-256 of each of the `FILES` in a backup. It is ignored once a broker has opened the backup, which may change them."""

ANSWER_SECONDS = 3_600.0
"""How long a server may take to copy its database before it sends data."""
STEP_BYTES = 256 * 1024
PRIVATE_DIRECTORY = 0o700

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


def _unseen(*_: int) -> None:
    """The default progress: does nothing."""


class Report(NamedTuple):
    """The contents of a data directory, and its problems."""

    streams: int
    messages: int
    events: int
    bytes: int
    """The size of the messages."""
    cursors: int
    tokens: int
    problems: list[str]
    """The damage found; damaged parts are not included in the numbers."""


def back_up(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    token_file: str | os.PathLike[str] | None = None,
    progress: Progress = _unseen,
) -> None:
    """Copy a data directory to `target`, which must not exist or must be empty. The copy is on disk on return.

    A broker may have the source open, and is not delayed. `token_file` is copied in place of `tokens.json` of the source. Only
    the owner can read the copy. After an error, nothing is left at `target`.

    Raises:
        InvalidArgument: the source is not a data directory, or the target is not empty.
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
    """Copy a data directory; the copy is complete at the end of the block."""
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
    """Let a server make a backup of itself, and write it to `target` like `back_up`.

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
            pass  # the padding of the last block
    if response.length:
        raise ConnectionError(f"{response.length} bytes are missing")
    if not names >= {DATABASE, MARK, FORMAT_FILE}:
        raise FailedPrecondition("the backup that the server sent is not complete", hint="try again")
    _write_manifest(copy)
    replace_file(copy / FORMAT_FILE, form)


def _write_manifest(copy: Path) -> None:
    replace_file(copy / MANIFEST, msgspec.json.encode(_digests(copy)))


def _check_manifest(path: Path) -> Iterator[CorruptLog]:
    """The differences from the manifest of a backup, unless there is none or a broker has opened the backup."""
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
    """The SHA-256 of each of the `FILES` that exist."""
    contents = {name: _content(path / name) for name in FILES}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content is not None}


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """A new file that only its owner can read; on disk when it is closed."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE), "wb") as file:
        yield file
        file.flush()
        os.fsync(file)


def restore(backup: str | os.PathLike[str], target: str | os.PathLike[str], *, progress: Progress = _unseen) -> Report:
    """Verify a backup, and copy it to `target`, which must not exist or must be empty. CorruptLog if the backup is damaged."""
    report = verify(backup)
    if report.problems:
        raise CorruptLog(str(backup), "the backup", "; ".join(report.problems))
    with _copied(backup, target, None, progress):
        return report


def verify(path: str | os.PathLike[str], *, progress: Callable[[int], None] = _unseen) -> Report:
    """Read everything in a data directory, or in the database at an address, and check every checksum. A broker may have it open.

    `progress` is called with the number of messages and events read since its last call. InvalidArgument if it is not a data
    directory; damage is listed in the report.
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
    """A SHA-256 of the log in a data directory or in the database at an address: equal logs have equal fingerprints."""
    journal = _reader(path)
    try:
        return journal.fingerprint()
    finally:
        journal.close()


def _reader(path: str | os.PathLike[str]) -> ReadOnlyJournal | ReadOnlyPostgres:
    """Open the log at a path or an address for reading."""
    if isinstance(path, str) and is_database(path):
        from penstock.journal.postgres_reader import ReadOnlyPostgres  # noqa: PLC0415  # psycopg is an extra

        return ReadOnlyPostgres(path)
    return ReadOnlyJournal(path)


def _checked(check: Callable[[], Verified]) -> Verified:
    """Run a check. Retention of a running broker may remove what is being read: then the check is repeated."""
    for _ in range(CHANCES - 1):
        try:
            return check()
        except CorruptLog:
            continue
    return check()


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Note an error about stored data, and continue. A path or a format that cannot be read is not damage, and raises."""
    try:
        yield
    except (InvalidArgument, FailedPrecondition):
        raise
    except PenstockError as error:
        problems.append(str(error))


@contextmanager
def _new_directory(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory to write to, for its owner only. On an error, the written files are removed."""
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
    """Remove the files written to a directory that was empty and had this mode; without a mode, remove the directory itself."""
    if mode is None:
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        for file in path.iterdir():
            file.unlink()
        path.chmod(mode)


def _content(file: Path) -> bytes | None:
    """The content of a file; None if it does not exist."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedPrecondition(f"cannot read {str(file)!r}: {error.strerror}") from error
