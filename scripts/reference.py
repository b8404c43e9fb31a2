"""The reference pages of the site, made from the code: commands, settings, errors, metrics, HTTP operations, the Python API.

python scripts/reference.py DIRECTORY    write the pages into a directory

`make docs` adds them to the site under reference/. They are not committed, so they cannot be out of date.
"""

from __future__ import annotations

import argparse
import enum
import html
import inspect
import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import Broker, MessageQueue, QueueManager, errors, sync
from penstock.cli.main import COMMANDS, EXIT_CODES, parser_of
from penstock.config import OPTIONS
from penstock.errors import PenstockError
from penstock.testing.server import LocalServer

COLUMNS = 100
"""The width of help texts: a page has no terminal."""

OF_THE_BROKER = {"close", "health", "history", "sync"}
"""The methods of `Broker` for programs. The others are for the packages around it."""

NOT_FOR_PROGRAMS = {"console"}
"""Tags of operations that belong to a page of the server and change with it."""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    metrics, operations = _served()
    return {
        "cli.md": command_line(),
        "settings.md": settings(),
        "errors.md": error_tree(),
        "metrics.md": metrics_page(metrics),
        "http.md": http_page(operations),
        "python.md": python_page(),
    }


def command_line() -> str:
    """The help of every command."""
    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(COLUMNS)
    try:
        parts = [f"## {prog}\n\n```text\n{text.rstrip()}\n```\n" for prog, text in helps()]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    return (
        "# Commands\n\nThe `--help` of every command. [The command line](../cli.md) explains them, with examples.\n\n"
        f"{''.join(parts)}\n## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}"
    )


def helps() -> Iterator[tuple[str, str]]:
    """Yield every command as it is called, with its help."""

    def walk(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
        yield parser.prog, parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    yield from walk(child)

    return walk(parser_of([command.name for command in COMMANDS]))


def settings() -> str:
    """One row for each setting of the server."""
    rows = "".join(
        f"| `{option.name}` | `{option.flag}` | `{option.variable}` | `{option.key}` "
        f"| {_cell(option.shown_default)} | {_cell(option.help)} |\n"
        for option in OPTIONS
    )
    return (
        "# Settings\n\nEvery setting of `penstock serve`: its flag, its environment variable and its key in the TOML file. "
        "[Configuration](../configuration.md) explains how they are combined.\n\n"
        f"| setting | flag | variable | key | default | meaning |\n|---|---|---|---|---|---|\n{rows}"
    )


def error_tree() -> str:
    """One section for each error."""
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PenstockError)]
    parts = [
        f"## {error.__name__}\n\n"
        f"code {error.code} · reason `{error.reason}` · {'transient' if error.transient else 'not transient'} · "
        f"base {', '.join(f'`{base.__name__}`' for base in error.__bases__)}\n\n{_prose(error)}\n"
        for error in found
    ]
    return (
        "# Error classes\n\nAll are in `penstock.errors`. A transient error may pass: the same call may succeed later. "
        f"[Errors](../errors.md) says what to do about each.\n\n{''.join(parts)}"
    )


def metrics_page(text: str) -> str:
    """One row for each metric that a server shows."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    rows = "".join(
        f"| `{name}` | {kinds[name]} | {_cell(meaning)} |\n"
        for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, flags=re.MULTILINE)
    )
    return (
        "# Metrics\n\nWhat `/metrics` shows, in the text format of Prometheus. "
        "[The server](../server.md#metrics) explains who may read them.\n\n"
        f"| metric | type | meaning |\n|---|---|---|\n{rows}"
    )


def http_page(document: dict[str, Any]) -> str:
    """One row for each operation of the HTTP port, by tag."""
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] in NOT_FOR_PROGRAMS:
                continue
            row = f"| `{method.upper()}` | `{path}` | {_cell(operation['summary'])} |\n"
            tags.setdefault(operation["tags"][0], []).append(row)
    parts = [f"## {tag}\n\n| method | path | what it does |\n|---|---|---|\n{''.join(rows)}\n" for tag, rows in tags.items()]
    return (
        "# HTTP\n\nEvery operation of the HTTP port. A running server describes them with their fields at `/docs`, "
        f"and as OpenAPI 3.1 at `/openapi.json`.\n\n{''.join(parts)}"
    )


def python_page() -> str:
    """The public names of `penstock`, with their signatures and docstrings."""
    names = [name for name in penstock.__all__ if name != "__version__"]
    things = {name: getattr(penstock, name) for name in names}
    classes = {name: thing for name, thing in things.items() if not issubclass(thing, PenstockError)}
    parts = [_class(name, thing) for name, thing in classes.items()]
    blocking = ", ".join(f"`{name}`" for name in sync.__all__)
    return (
        "# Python API\n\nThe public names of `penstock`, with their signatures. Errors are on [a page of their own](errors.md).\n"
        "`penstock.sync` has the blocking form of the client, with the same methods without `await`: "
        f"{blocking}.\n\n{''.join(parts)}"
    )


def _class(name: str, cls: type) -> str:
    if issubclass(cls, enum.Enum):
        return f"## {name}\n\n{_prose(cls)}\n{', '.join(f'`{member}`' for member in cls.__members__)}\n\n"
    head = f"## {name}\n\n```python\n{name}{_signature(cls)}\n```\n\n{_prose(cls)}\n"
    members = [
        (member, value)
        for member, value in inspect.getmembers_static(cls)
        if not member.startswith("_") and _is_own(cls, member) and _documented(value)
        if cls is not Broker or member in OF_THE_BROKER
    ]
    return head + "".join(_member(name, member, value) for member, value in members)


def _member(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"### {owner}.{name}\n\n{_prose(value)}\n"
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    prefix = "await " if inspect.iscoroutinefunction(function) else ""
    return f"### {owner}.{name}\n\n```python\n{prefix}{name}{_signature(function)}\n```\n\n{_prose(function)}\n"


def _is_own(cls: type, member: str) -> bool:
    """Whether Penstock defines a member of a class, and not a library that the class inherits from."""
    home = next(base for base in cls.__mro__ if member in vars(base))
    return home.__module__.startswith("penstock")


def _documented(value: object) -> bool:
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return (inspect.isfunction(function) or isinstance(value, property)) and bool(inspect.getdoc(function))


def _signature(thing: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # some built-in bases have none
        return "(…)"
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in {"self", "cls"}]
    text = str(signature.replace(parameters=parameters)).replace("'", "").replace("penstock.", "")
    text = re.sub(r"<(?:object|class|function)[^>]*>", "…", text)
    return text if len(text) < COLUMNS else "(\n    " + ",\n    ".join(_split(text)) + text[_end_of(text) :]


def _end_of(text: str) -> int:
    """The place of the bracket that closes the parameters."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return at
    return len(text)


def _split(text: str) -> Iterator[str]:
    """The parameters of a signature, one by one."""
    depth, start, end = 0, 1, _end_of(text)
    for at, sign in enumerate(text[:end]):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 1:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:end].strip() + ",\n"


def _prose(thing: object) -> str:
    """A docstring as Markdown: examples and drawings become blocks of code."""
    text = inspect.getdoc(thing) or ""
    parts = []
    for paragraph in re.split(r"\n{2,}", text):
        if paragraph.startswith((">>>", "    ")):
            parts.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
        else:
            parts.append(html.escape(paragraph, quote=False))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|")


def _served() -> tuple[str, dict[str, Any]]:
    """The metrics and the OpenAPI document of a server that has one of each thing."""
    with LocalServer() as server:
        topics, queues = MessageQueue(broker=server.broker), QueueManager(broker=server.broker)
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        queues.create("mail")
        texts = {}
        for path in ("/health/ready", "/metrics", "/openapi.json"):  # the first request is counted in what the second shows
            with urllib.request.urlopen(server.url + path, timeout=60) as answer:
                texts[path] = answer.read().decode()
    return texts["/metrics"], json.loads(texts["/openapi.json"])


def main(arguments: list[str]) -> int:
    """Write the pages."""
    if len(arguments) != 1:
        sys.stderr.write(f"expected one directory, got {len(arguments)} arguments\n")
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
