"""The entry point: find the command, run it, and turn errors into a line or two and an exit code.

Exit codes are the same for every command: see `EXIT_CODES`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.cli.command import TERMINATED, USAGE, Command, Parser, add_commands
from penstock.cli.output import complain
from penstock.errors import InvalidArgument, NotFound, PenstockError, Unavailable

COMMANDS = (
    Command("serve", "run the server", "penstock.cli.serve"),
    Command("config", "show every setting and where it comes from", "penstock.cli.config"),
    Command("context", "name servers, and choose the one to talk to", "penstock.cli.context"),
    Command(
        "nodes", "show the nodes of a cluster: who owns the log since when, and how far replicas are behind", "penstock.cli.nodes"
    ),
    Command("status", "show on one screen what runs, what waits and what needs attention", "penstock.cli.status"),
    Command("token", "create, list and revoke the tokens of a server", "penstock.cli.token"),
    Command("backup", "copy a data directory, also while a server has it open", "penstock.cli.backup"),
    Command("restore", "create a data directory from a backup", "penstock.cli.restore"),
    Command("journal", "copy a log between a data directory and PostgreSQL", "penstock.cli.journal"),
    Command("verify", "check every checksum in a data directory or backup", "penstock.cli.verify"),
    Command("topic", "create, list, show and delete topics", "penstock.cli.topic"),
    Command("subscription", "create, list, move, pause and delete subscriptions", "penstock.cli.subscription"),
    Command("snapshot", "save, list and delete positions of subscriptions", "penstock.cli.snapshot"),
    Command("publish", "publish messages to a topic", "penstock.cli.publish"),
    Command("pull", "receive messages from a subscription, once or as they come", "penstock.cli.pull"),
    Command("queue", "create, fill, empty and inspect work queues", "penstock.cli.queue"),
    Command("dlq", "list, show, retry and remove the dead letters of a work queue", "penstock.cli.dlq"),
    Command("hub", "listen and publish in real time, and see who is there", "penstock.cli.hub"),
    Command("worker", "run the tasks of a worker", "penstock.cli.worker"),
    Command("router", "run the router: from queues to HTTP targets", "penstock.cli.router"),
    Command("pipeline", "run the Spark jobs: lake, metrics, replay", "penstock.cli.pipeline"),
    Command("trace", "show everything that happened to a message", "penstock.cli.trace"),
    Command("explain", "show why messages of a subscription or work queue are not delivered", "penstock.cli.explain"),
    Command("top", "show the traffic of a server, live", "penstock.cli.top"),
    Command("demo", "run the demo of a checkout: a shop, a kill -9, a failing mail, Spark", "penstock.cli.demo"),
    Command("bench", "measure how fast messages are published and consumed", "penstock.cli.bench"),
    Command("doctor", "check the installation, with the fix for each problem", "penstock.cli.doctor"),
    Command("completion", "print a script that completes commands and names in a shell", "penstock.cli.completion"),
)

FAILED = 1
MISSING = 3
UNREACHABLE = 4
INTERRUPTED = 130
EXIT_CODES = {
    0: "done",
    FAILED: "it failed",
    USAGE: "invalid arguments, or a refused value; changes reported before the error stay",
    MISSING: "something that it names does not exist",
    UNREACHABLE: "the server is unreachable or temporarily unable: a retry may help",
    INTERRUPTED: "interrupted by Ctrl-C",
    TERMINATED: "ended by SIGTERM",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does. Python flushes again at exit, and needs a place to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except PenstockError as error:
        complain(f"penstock: {error}" + (f"\n{error.hint}" if error.hint else ""))
        return exit_code(error)
    except Exception as error:  # the top of the program: users get a sentence, not a traceback
        if sys.flags.dev_mode:
            raise
        complain(f"penstock: unexpected error: {type(error).__name__}: {error}\nto see where: python -X dev -m penstock …")
        return FAILED


def exit_code(error: PenstockError) -> int:
    """The exit code for an error."""
    match error:
        case InvalidArgument():
            return USAGE
        case NotFound():
            return MISSING
        case Unavailable():
            return UNREACHABLE
        case _:
            return FAILED


def parser_of(called: Sequence[str]) -> Parser:
    """The parser of the whole command line, with the arguments of the called commands."""
    parser = Parser(
        prog="penstock", description="A durable message broker: topics, work queues, workers, WebSockets, webhooks and Spark."
    )
    parser.add_argument("-V", "--version", action="version", version=f"penstock {__version__}", help="show the version and exit")
    add_commands(parser, COMMANDS, called)
    return parser


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    parser = parser_of([word for word in words if not word.startswith("-")][:1])
    if not words:
        complain(parser.format_help().rstrip())
        return USAGE
    found = parser.parse_args(words)
    code: int = found.run(found)
    return code
