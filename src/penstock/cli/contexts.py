"""Contexts: named servers, with a token, a project and a CA, in one file of the user. `penstock context` changes it.

The file contains tokens, so it is created for its owner only, and a file that others can read is refused, as SSH does with keys.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.cli.command import nearest
from penstock.errors import FailedPrecondition, InvalidArgument, NotFound

CONTEXT_VARIABLE = "PENSTOCK_CONTEXT"
FILE = Path("penstock") / "contexts.json"


class ContextNotFound(NotFound):
    """There is no context with this name."""

    kind = "Context"


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings of one server."""

    server: str
    token: str | None = None
    project: str | None = None
    ca: str | None = None


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """All contexts, and the name of the one in use."""

    contexts: dict[str, Context] = {}
    current: str | None = None

    def named(self, name: str) -> Context:
        """The context of that name; NotFound with a suggestion."""
        found = self.contexts.get(name)
        if found is None:
            near = nearest(name, [*self.contexts])
            error = ContextNotFound(name)
            error.hint = (
                f"did you mean {near}?" if near else "`penstock context list` shows them, `penstock context add` adds one"
            )
            raise error
        return found


def file_of(environ: Mapping[str, str]) -> Path | None:
    """The file of a user's contexts; None if the environment names no directory for it."""
    if base := environ.get("XDG_CONFIG_HOME"):
        return Path(base) / FILE
    return Path(home) / ".config" / FILE if (home := environ.get("HOME")) else None


def load(environ: Mapping[str, str]) -> Contexts:
    """Read the contexts of a user."""
    path = file_of(environ)
    if path is None:
        return Contexts()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise FailedPrecondition(f"cannot read {str(path)!r}: {error.strerror}") from None
    if mode & 0o077:
        raise FailedPrecondition(f"{str(path)!r} contains tokens and can be read by other users", hint=f"chmod 600 {path}")
    try:
        return msgspec.json.decode(content, type=Contexts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FailedPrecondition(
            f"{str(path)!r} is damaged: {error}", hint="correct it, or remove it and add the contexts again"
        ) from None


def save(contexts: Contexts, environ: Mapping[str, str]) -> Path:
    """Replace the file, readable by its owner only."""
    path = file_of(environ)
    if path is None:
        raise InvalidArgument("there is no directory for contexts", hint="set HOME or XDG_CONFIG_HOME")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise FailedPrecondition(f"cannot write {str(path)!r}: {error.strerror}") from None
    return path


def current(environ: Mapping[str, str]) -> Context | None:
    """The context of PENSTOCK_CONTEXT, or the one in use."""
    if name := environ.get(CONTEXT_VARIABLE):
        return load(environ).named(name)
    contexts = load(environ)
    return None if contexts.current is None else contexts.named(contexts.current)
