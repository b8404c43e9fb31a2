"""The broker that a command talks to: a server, or a data directory that no server has open.

What the flags and the environment say becomes a `Target`; `run` opens it, gives the client to the command's work, and closes it
whatever happens. Errors that only a command line can have are worded here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.cli import contexts
from penstock.cli.command import TERMINATED, nearest
from penstock.cli.contexts import CONTEXT_VARIABLE, Context
from penstock.cli.output import facts, say, say_json
from penstock.errors import (
    AlreadyExists,
    DataDirectoryInUse,
    InvalidArgument,
    NotFound,
    PenstockError,
    QueueNotFound,
    ServerUnreachable,
    SnapshotNotFound,
    SubscriptionNotFound,
    TopicNotFound,
    Unauthenticated,
)
from penstock.wire.address import Address

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

SERVER_VARIABLE = "PENSTOCK_SERVER"
TOKEN_VARIABLE = "PENSTOCK_TOKEN"
DATA_DIR_VARIABLE = "PENSTOCK_DATA_DIR"
PROJECT_VARIABLE = "PENSTOCK_PROJECT"
CA_VARIABLE = "PENSTOCK_CA"

TOKEN_HELP = f"the caller's token, if the server asks for one; other users see flags, so prefer {TOKEN_VARIABLE}"

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8085
DEFAULT_SERVER = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_DATA_DIR = "penstock-data"
PROBE_SECONDS = 1.0
SHOWN_NAMES = 5

T = TypeVar("T")
Work = Callable[["PubSub"], Awaitable[int]]
"""What a command does with an open client; returns the exit code."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the broker is: `server` or `data_dir`, never both."""

    server: str | None = None
    data_dir: str | None = None
    token: str | None = None
    project: str | None = None
    ca: str | None = None
    """A file with certificates that are trusted beside those of the system."""

    def client(self) -> PubSub:
        """A client of it, not yet open."""
        from penstock.client.pubsub import PubSub  # noqa: PLC0415  # `--help` and a wrong call need no client

        self.check_directory()
        return PubSub(self.server, token=self.token, project=self.project, data_dir=self.data_dir, tls=self.tls())

    def tls(self) -> ssl.SSLContext | None:
        """What a client trusts; None for what the system does."""
        return None if self.ca is None else trusting(self.ca)

    def check_directory(self) -> None:
        """Raise if a data directory is meant that is not there."""
        if self.data_dir is not None and not Path(self.data_dir).is_dir():
            raise InvalidArgument.of(
                "the data directory",
                self.data_dir,
                "a directory that exists",
                hint="make it, or let a server do it: penstock serve --data-dir DIR",
            )


def add_target(
    parser: argparse.ArgumentParser, *aliases: str, data_dir: str = "a data directory that no server has open"
) -> None:
    """Add the flags that say which broker is meant, and `--json`. `aliases` are other names for `--server`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    group = parser.add_argument_group("where the messages are")
    place = group.add_mutually_exclusive_group()
    add_server(place, *aliases)
    place.add_argument(
        "--data-dir",
        metavar="DIR",
        help=f"{data_dir} (default: {DATA_DIR_VARIABLE}, or {DEFAULT_DATA_DIR} if no server runs)",
    )
    group.add_argument("--token", help=TOKEN_HELP)
    group.add_argument("--project", metavar="NAME", help=f"the project (default: {PROJECT_VARIABLE}, or the server's)")
    add_ca(group)


def add_server(place: argparse.ArgumentParser | argparse._ArgumentGroup, *aliases: str) -> None:
    """Add the two ways to name a server, one of which can be given. `aliases` are other names for `--server`."""
    place.add_argument(
        "--server",
        *aliases,
        metavar="URL",
        help=f"the server's address, or all nodes' with commas between them (default: {SERVER_VARIABLE}, or {DEFAULT_SERVER})",
    )
    place.add_argument(
        "--context",
        metavar="CONTEXT",
        help=f"a server that `penstock context add` named (default: {CONTEXT_VARIABLE}, or the one in use)",
    )


def add_ca(group: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag for a private CA."""
    group.add_argument(
        "--ca", metavar="FILE", help=f"certificates (PEM) to trust beside those of the system (default: {CA_VARIABLE})"
    )


def trusting(ca: str) -> ssl.SSLContext:
    """What a client trusts that trusts the certificates in a file, too."""
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        problem = "no certificate in PEM is in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidArgument.of("the CA", ca, f"a file with certificates in PEM ({problem})") from None
    return context


def server_of(found: argparse.Namespace, environ: Mapping[str, str]) -> Target | None:
    """The server that is meant; None if none is named. A flag wins, then PENSTOCK_SERVER, then the context in use.

    The token of a context is for its server: it wins over PENSTOCK_TOKEN, which may be for another one.
    """
    context = None
    server = found.server
    if found.context is not None:
        context = contexts.load(environ).named(found.context)
    elif server is None:
        server = environ.get(SERVER_VARIABLE) or None
        context = contexts.current(environ) if server is None else None
    if context is None:
        if server is None:
            return None
        context = Context(server)
    Address.parse_all(context.server)
    return Target(
        server=context.server,
        token=found.token or context.token or environ.get(TOKEN_VARIABLE) or None,
        project=getattr(found, "project", None) or context.project or environ.get(PROJECT_VARIABLE) or None,
        ca=found.ca or context.ca or environ.get(CA_VARIABLE) or None,
    )


def target_of(found: argparse.Namespace, environ: Mapping[str, str]) -> Target:
    """The broker that is meant. A flag wins; then PENSTOCK_SERVER; PENSTOCK_DATA_DIR; the context in use; whatever is here."""
    data_dir = found.data_dir
    if data_dir is None and found.server is None and found.context is None and not environ.get(SERVER_VARIABLE):
        data_dir = environ.get(DATA_DIR_VARIABLE) or None
    server = None if data_dir is not None else server_of(found, environ)
    if server is None and data_dir is None:
        url, data_dir = _here()
        if url is not None:
            server = server_of(argparse.Namespace(**{**vars(found), "server": url}), environ)
    if server is not None:
        return server
    if found.token is not None:
        raise InvalidArgument("--token is for a server, and none is meant here", hint="leave it out, or name a --server")
    return Target(data_dir=data_dir, project=found.project or environ.get(PROJECT_VARIABLE) or None)


def run(found: argparse.Namespace, work: Work, *, is_heavy: bool = False, target: Target | None = None) -> int:
    """Do a command's work with an open client; returns the exit code. Ctrl-C and SIGTERM end it cleanly.

    `is_heavy`: much may go through it, so that a faster event loop is worth the time it takes to load. `target` is the broker, if
    the caller knows it already.
    """
    target = target or target_of(found, os.environ)
    with asyncio.Runner(loop_factory=_faster_loop() if is_heavy else None) as runner:
        return runner.run(within(target.client, lambda pubsub: _suggesting(pubsub, work)))


async def _suggesting(pubsub: PubSub, work: Work) -> int:
    """Do a command's work; an error about a name that does not exist suggests one that does."""
    try:
        return await work(pubsub)
    except (TopicNotFound, SubscriptionNotFound, QueueNotFound, SnapshotNotFound) as error:
        with suppress(PenstockError):  # a token may not be allowed to list names, and the first error is the one that counts
            error.hint = await _names_nearby(pubsub, error) or error.hint
        raise


async def _names_nearby(pubsub: PubSub, error: NotFound) -> str | None:
    """What to type instead of a name that does not exist."""
    name = str(error.name)
    topics, subscriptions, queues, snapshots = await asyncio.gather(
        pubsub.topics(), pubsub.subscriptions(), pubsub.queues(), pubsub.snapshots()
    )
    listed = {
        "topic": [one.name for one in topics],
        "subscription": [one.name for one in subscriptions],
        "queue": queues,
        "snapshot": [one.name for one in snapshots],
    }
    wanted = error.kind.lower()
    if near := nearest(name, listed.pop(wanted)):
        return f"did you mean {near}?"
    if wanted == "subscription" and (below := [one.name for one in subscriptions if one.topic == name]):
        return f"{name} is a topic; its subscriptions: {', '.join(below[:SHOWN_NAMES])}"
    for kind, names in listed.items():
        if name in names:
            return f"{name} is a {kind}: see penstock {kind} --help"
    for kind, names in listed.items():
        if near := nearest(name, names):
            return f"did you mean the {kind} {near}?"
    return None


async def made(create: Callable[..., Awaitable[object]], *, exist_ok: bool) -> bool:
    """Create something; False when it exists already, which is an error unless that is allowed and it has these settings."""
    try:
        await create()
    except AlreadyExists as error:
        if not exist_ok:
            error.hint = "choose another name, or say --exist-ok to leave it as it is"
            raise
    else:
        return True
    try:
        await create(exist_ok=True)
    except AlreadyExists as error:
        error.hint = "change it with the command update, or leave these options out"
        raise
    return False


def add_exist_ok(parser: argparse.ArgumentParser, noun: str) -> None:
    """`--exist-ok` of a command that creates something."""
    parser.add_argument(
        "--exist-ok", action="store_true", help=f"no error for a {noun} that exists already with the settings that are given"
    )


async def on_each(found: argparse.Namespace, done: str, act: Callable[[str], Awaitable[object]]) -> int:
    """Do something to each of the names, and say so: `done` is as in 'deleted topic'. An error stops it there."""
    names: list[str] = []
    try:
        for name in found.names:
            await act(name)
            names.append(name)
            if not found.json:
                say(f"{done} {name}")
    finally:
        if found.json and names:
            say_json({done.partition(" ")[0]: names})
    return 0


def describe(found: argparse.Namespace, document: object, values: Mapping[str, object]) -> int:
    """Show one thing: its document to programs, its values to people."""
    if found.json:
        say_json(document)
    else:
        say(facts(values))
    return 0


async def within(make: Callable[[], AbstractAsyncContextManager[T]], work: Callable[[T], Awaitable[int]]) -> int:
    """Do some work with a client that is made and opened for it, until the work is done or SIGTERM ends it."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    is_told_to_end = False

    def end() -> None:
        nonlocal is_told_to_end
        is_told_to_end = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    try:
        async with make() as client:
            return await work(client)
    except asyncio.CancelledError:
        if not is_told_to_end:
            raise
        return TERMINATED
    except PenstockError as error:
        raise with_cli_hint(error) from None


def with_cli_hint(error: PenstockError) -> PenstockError:
    """The same error, with what to do about it on a command line."""
    match error:
        case DataDirectoryInUse():
            error.hint = f"a server runs on it: name that server with --server URL, or set {SERVER_VARIABLE}"
        case Unauthenticated():
            error.hint = f"give a token with --token, or set {TOKEN_VARIABLE}; `penstock token create` makes one"
        case _:
            pass
    return error


def _here() -> tuple[str | None, str | None]:
    """(server, data directory) of a call that names neither: the usual server if one runs, or the usual directory."""
    try:
        socket.create_connection((DEFAULT_HOST, DEFAULT_PORT), PROBE_SECONDS).close()
    except OSError as error:
        if Path(DEFAULT_DATA_DIR).is_dir():
            return None, DEFAULT_DATA_DIR
        raise ServerUnreachable(
            DEFAULT_SERVER,
            f"{error.strerror or error}, and there is no data directory {DEFAULT_DATA_DIR} here",
        ) from None
    return DEFAULT_SERVER, None


def _faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes one, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
