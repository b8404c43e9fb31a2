"""The hub that a `penstock hub` command talks to: which one, and as whom."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.session import DEFAULT_SERVER, SERVER_VARIABLE, TOKEN_VARIABLE, within
from penstock.errors import InvalidArgument, Unauthenticated

if TYPE_CHECKING:
    from penstock.hub.client.client import HubClient

MAKERS = "`penstock hub token` makes a JWT, `penstock token create` a token of the server"
"""Only whoever runs the server knows which of them it wants."""
Work = Callable[["HubClient"], Awaitable[int]]
"""What a command does with an open client; returns the exit code."""


def add_hub(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which hub is meant, and who calls."""
    group = parser.add_argument_group("which hub")
    group.add_argument("--server", metavar="URL", help=f"the server's address (default: {SERVER_VARIABLE}, or {DEFAULT_SERVER})")
    group.add_argument("--as", dest="address", metavar="ADDRESS", help="who to be, as in '@(browser/ui)' (default: made up)")
    token = group.add_mutually_exclusive_group()
    token.add_argument("--token", help=f"who calls, if the hub asks; others may see a flag, so rather set {TOKEN_VARIABLE}")
    token.add_argument("--token-file", metavar="FILE", help="a file that holds the token")


def run(found: argparse.Namespace, work: Work, **options: Any) -> int:
    """Do a command's work with a client that is connected; returns the exit code. `options` are the client's own."""
    server = found.server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    token = _token(found)

    def make() -> HubClient:
        from penstock.hub.client.client import HubClient  # noqa: PLC0415  # `--help` and a wrong call need no client

        return HubClient(server, address=found.address, token=token, capabilities=("penstock-cli",), **options)

    with _told_here():
        try:
            return asyncio.run(within(make, work))
        except Unauthenticated as error:
            error.hint = f"give one with --token-file, or set {TOKEN_VARIABLE}; {MAKERS}"
            raise


def _token(found: argparse.Namespace) -> str | None:
    if found.token_file is None:
        return found.token or os.environ.get(TOKEN_VARIABLE) or None
    try:
        text = Path(found.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument.of("--token-file", found.token_file, "a file that can be read") from None
    if not text or "\n" in text:
        raise InvalidArgument(f"--token-file {found.token_file} holds no token, wanted one line", hint=MAKERS)
    return text


@contextmanager
def _told_here() -> Iterator[None]:
    """What the client logs of its connection and of gaps, commands say in their own words."""
    log = logging.getLogger("penstock.client")

    def is_news(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)
