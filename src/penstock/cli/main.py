"""The entry point: find the command, run it, turn errors into a line or two and an exit code.

Exit codes: 0 done; 1 it failed; 2 it was called wrongly, or a setting is wrong; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.cli.command import USAGE, Command, Parser, add_commands
from penstock.cli.output import complain
from penstock.errors import InvalidArgument, PenstockError

COMMANDS = (
    Command("serve", "run the server", "penstock.cli.serve"),
    Command("config", "show every setting and where it comes from", "penstock.cli.config"),
    Command("token", "make, list and revoke the tokens of a server", "penstock.cli.token"),
)

FAILED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does. Python flushes once more at exit, and must find somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except PenstockError as error:
        complain(f"penstock: {error}" + (f"\n{error.hint}" if error.hint else ""))
        return USAGE if isinstance(error, InvalidArgument) else FAILED
    except Exception as error:  # the top of the program: a person gets a sentence, not a traceback
        if sys.flags.dev_mode:
            raise
        complain(f"penstock: this should not happen: {type(error).__name__}: {error}\nto see where: python -X dev -m penstock …")
        return FAILED


def _run(words: list[str]) -> int:
    parser = Parser(
        prog="penstock", description="Messages: published once, safe on disk, then pulled, queued, pushed and replayed."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}", help="show the version and exit")
    add_commands(parser, COMMANDS, words[:1])
    if not words:
        complain(parser.format_help().rstrip())
        return USAGE
    found = parser.parse_args(words)
    code: int = found.run(found)
    return code
