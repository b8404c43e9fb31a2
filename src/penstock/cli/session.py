"""The broker of a command: a server, or a data directory that no server has open.

Flags and environment become a `Target`; `run` opens it, passes the client to the command's work, and closes it in any case.
Errors that are specific to the command line are worded here.
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

TOKEN_HELP = f"the caller's token, if the server requires one; other users see flags, so prefer {TOKEN_VARIABLE}"

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8085
DEFAULT_SERVER = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
DEFAULT_DATA_DIR = "penstock-data"
PROBE_SECONDS = 1.0
SHOWN_NAMES = 5

T = TypeVar("T")
Work = Callable[["PubSub"], Awaitable[int]]
"""The work of a command with an open client; returns the exit code."""


@dataclass(frozen=True, slots=True)
class Target:
    """The place of the broker: either `server` or `data_dir`."""

    server: str | None = None
    data_dir: str | None = None
    token: str | None = None
    project: str | None = None
    ca: str | None = None
    """A file with certificates to trust beside those of the system."""

    def client(self) -> PubSub:
        """A client of it, not open yet."""
        from penstock.client.pubsub import PubSub  # noqa: PLC0415  # `--help` and a wrong call need no client

        self.check_directory()
        return PubSub(self.server, token=self.token, project=self.project, data_dir=self.data_dir, tls=self.tls())

    def tls(self) -> ssl.SSLContext | None:
        """The certificates to trust; None for those of the system."""
        return None if self.ca is None else trusting(self.ca)

    def check_directory(self) -> None:
        """Raise if the data directory does not exist."""
        if self.data_dir is not None and not Path(self.data_dir).is_dir():
            raise InvalidArgument.of(
                "the data directory",
                self.data_dir,
                "a directory that exists",
                hint="create it, or let a server create it: penstock serve --data-dir DIR",
            )


def add_target(
    parser: argparse.ArgumentParser, *aliases: str, data_dir: str = "a data directory that no server has open"
) -> None:
    """Add the flags that choose the broker, and `--json`. `aliases` are other names for `--server`."""
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
    """Add the two ways to name a server, of which one may be given. `aliases` are other names for `--server`."""
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
    """An SSL context that also trusts the certificates in a file."""
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:  # ssl.SSLError is one
        problem = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidArgument.of("the CA", ca, f"a file with certificates in PEM ({problem})") from None
    return context


def server_of(found: argparse.Namespace, environ: Mapping[str, str]) -> Target | None:
    """The chosen server; None if none is named. A flag has precedence, then PENSTOCK_SERVER, then the context in use.

    The token of a context belongs to its server: it has precedence over PENSTOCK_TOKEN, which may be for another one.
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
    """The chosen broker: by flag, PENSTOCK_SERVER, PENSTOCK_DATA_DIR, the context in use, or what is here, in this order."""
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
        raise InvalidArgument("--token is for a server, and this is a data directory", hint="leave it out, or name a --server")
    return Target(data_dir=data_dir, project=found.project or environ.get(PROJECT_VARIABLE) or None)


def run(found: argparse.Namespace, work: Work, *, is_heavy: bool = False, target: Target | None = None) -> int:
    """Run a command's work with an open client; returns the exit code. Ctrl-C and SIGTERM end it cleanly.

    `is_heavy`: it may process many messages, so a faster event loop is worth its loading time. `target` is the broker, if the
    caller knows it.
    """
    target = target or target_of(found, os.environ)
    with asyncio.Runner(loop_factory=_faster_loop() if is_heavy else None) as runner:
        return runner.run(within(target.client, lambda pubsub: _suggesting(pubsub, work)))


async def _suggesting(pubsub: PubSub, work: Work) -> int:
    """Run a command's work; errors about unknown names suggest a known one."""
    try:
        return await work(pubsub)
    except (TopicNotFound, SubscriptionNotFound, QueueNotFound, SnapshotNotFound) as error:
        with suppress(PenstockError):  # a token may not be allowed to list names, and the first error is the relevant one
            error.hint = await _names_nearby(pubsub, error) or error.hint
        raise


async def _names_nearby(pubsub: PubSub, error: NotFound) -> str | None:
    """Suggestions for a name that does not exist."""
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
    """Create something; False if it exists, which is an error unless it is allowed and the settings are equal."""
    try:
        await create()
    except AlreadyExists as error:
        if not exist_ok:
            error.hint = "choose another name, or use --exist-ok to keep it as it is"
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
    """Add `--exist-ok` to a command that creates something."""
    parser.add_argument("--exist-ok", action="store_true", help=f"no error if the {noun} exists with the given settings")


async def on_each(found: argparse.Namespace, done: str, act: Callable[[str], Awaitable[object]]) -> int:
    """Do something to each of the names, and print it: `done` is as in 'deleted topic'. An error ends it."""
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
    """Show one resource: as JSON for programs, or as lines of values."""
    if found.json:
        say_json(document)
    else:
        say(facts(values))
    return 0


async def within(make: Callable[[], AbstractAsyncContextManager[T]], work: Callable[[T], Awaitable[int]]) -> int:
    """Run something with a client that is created and opened for it, until it ends or SIGTERM arrives."""
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
    """The same error, with a hint for the command line."""
    match error:
        case DataDirectoryInUse():
            error.hint = f"a server runs on it: name that server with --server URL, or set {SERVER_VARIABLE}"
        case Unauthenticated():
            error.hint = f"give a token with --token, or set {TOKEN_VARIABLE}; `penstock token create` makes one"
        case _:
            pass
    return error


def _here() -> tuple[str | None, str | None]:
    """(server, data directory) of a call that names neither: the default server if one runs, or the default directory."""
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
    """A faster event loop, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop
