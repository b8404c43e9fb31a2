"""`penstock completion bash|zsh|fish`: a script that lets a shell complete commands, flags and the names of what exists."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.command import Parser
from penstock.cli.grammar import KINDS, entries
from penstock.cli.main import COMMANDS, parser_of
from penstock.cli.output import say
from penstock.cli.session import run as run_with_client
from penstock.cli.shells import SCRIPTS, TARGET
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """The shell; and, for the scripts themselves, what they ask while somebody types."""
    parser.add_argument("shell", metavar="SHELL", choices=[*SCRIPTS], nargs="?", help=f"one of {', '.join(SCRIPTS)}")
    parser.add_argument("--names", metavar="KIND", choices=KINDS, help=argparse.SUPPRESS)
    for flag in TARGET:
        parser.add_argument(flag, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print the script, or the names."""
    if found.names is not None:
        return run_with_client(found, lambda pubsub: _say_names(pubsub, found.names))
    if found.shell is None:
        raise InvalidArgument("no shell is named", hint=f"penstock completion {'|'.join(SCRIPTS)}")
    say(SCRIPTS[found.shell](entries(parser_of([command.name for command in COMMANDS]))).rstrip())
    return 0


async def _say_names(pubsub: PubSub, kind: str) -> int:
    match kind:
        case "topics":
            names = [one.name for one in await pubsub.topics()]
        case "subscriptions":
            names = [one.name for one in await pubsub.subscriptions()]
        case "snapshots":
            names = [one.name for one in await pubsub.snapshots()]
        case _:
            names = await pubsub.queues()
    if names:
        say("\n".join(sorted(names)))
    return 0
