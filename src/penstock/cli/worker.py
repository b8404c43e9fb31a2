"""`penstock worker MODULE:NAME`: run the tasks of a worker until it is stopped."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.output import complain
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.server.logging import set_up_logs

if TYPE_CHECKING:
    from penstock.worker import Worker

LEVELS = ("debug", "info", "warning", "error")
FORM = "MODULE:NAME, as in app:worker for the worker of app.py"


def configure(parser: Parser) -> None:
    """Add the worker and its options."""
    parser.add_argument("app", metavar="MODULE:NAME", help="the worker: a module of the current directory, and a name in it")
    parser.add_argument("--server", metavar="URL", help="the server's address (default: the worker's own, or PENSTOCK_SERVER)")
    parser.add_argument(
        "--token", help="the caller's token, if the server requires one; other users see flags, so prefer PENSTOCK_TOKEN"
    )
    parser.add_argument(
        "--concurrency",
        metavar="N",
        type=whole(1, 10_000),
        help="the number of tasks that run at a time (default: the worker's own)",
    )
    parser.add_argument("--queues", metavar="QUEUE,…", help="consume only these queues (default: those of all tasks)")
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="the lowest level that is logged (default: info)")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="the format of a log line (default: text)")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Run the worker; returns once it was stopped cleanly."""
    set_up_logs(found.log_level, found.log_format)
    worker = load(found.app, Path.cwd())
    worker.configure(server=found.server, token=found.token, concurrency=found.concurrency)
    queues = None if found.queues is None else [name for word in found.queues.split(",") if (name := word.strip())]
    if queues == []:
        raise InvalidArgument.of("--queues", found.queues, "names of queues, with commas in between")
    worker.run(queues)
    return 0


def load(app: str, folder: Path) -> Worker:
    """The worker MODULE:NAME, seen from a folder."""
    from penstock.worker import Worker  # noqa: PLC0415  # `--help` needs no client

    module_name, _, name = app.partition(":")
    is_spelled = all(map(str.isidentifier, module_name.split("."))) and name.isidentifier()
    if not is_spelled or module_name.endswith(".py"):
        raise InvalidArgument.of("the worker", app, FORM, hint=_respelled(module_name, name))
    module = _imported(module_name, folder)
    found = getattr(module, name, None)
    if isinstance(found, Worker):
        return found
    names = [key for key in vars(module) if not key.startswith("_")]
    near = [key for key in names if isinstance(getattr(module, key), Worker)] or get_close_matches(name, names, 1)
    hint = (
        f"did you mean {module_name}:{near[0]}?" if near and near[0] != name else "create one there: worker = penstock.Worker()"
    )
    if name not in names:
        raise InvalidArgument(f"the module {module_name!r} has no {name!r}", hint=hint)
    raise InvalidArgument(f"{app} is of type {type(found).__name__}, expected a penstock.Worker", hint=hint)


def _imported(name: str, folder: Path) -> ModuleType:
    sys.path.insert(0, os.fspath(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from None  # it exists, and an import of it fails
        near = get_close_matches(name, [path.stem for path in folder.glob("*.py")], 1)
        hint = f"did you mean {near[0]}?" if near else "modules are searched in the current directory and on Python's path"
        raise InvalidArgument(f"there is no module {name!r}", hint=hint) from None
    except Exception as error:  # noqa: BLE001  # a user's module: whatever it raises, a person gets to see where
        raise _broken(name, error) from None


def _broken(name: str, error: Exception) -> FailedPrecondition:
    """Show where a module failed, without frames that are not the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
    own = [frame for frame in own if frame.filename != importlib.__file__]
    complain("".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip())
    return FailedPrecondition(f"the module {name!r} cannot be imported: {type(error).__name__}: {error}")


def _respelled(module: str, name: str) -> str | None:
    """A suggestion for a path in place of a module, or a missing name."""
    dotted = module.removesuffix(".py").strip("./").replace("/", ".").replace("\\", ".")
    return f"did you mean {dotted}:{name or 'worker'}?" if dotted and all(map(str.isidentifier, dotted.split("."))) else None
