"""Imports point inward, and only the clock reads time. MAY_IMPORT is the whole rule; change it together with a decision."""

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from tests.architecture.source import MODULES, Module, made_up

# What computes and does nothing else. `datetime` is here as a type: the clock test below forbids asking it for the time.
PURE = frozenset(
    "__future__ abc array base64 binascii bisect collections copy dataclasses datetime decimal enum fractions functools "
    "graphlib hashlib heapq hmac ipaddress itertools json keyword math numbers operator re string struct sys.intern "
    "textwrap types typing unicodedata urllib.parse zlib msgspec".split()
)
ANY = frozenset(sys.stdlib_module_names) | {"msgspec"}  # the standard library and the one dependency that everyone may use

# The part of the kernel that a core may import, and which must therefore be as pure as a core.
PURE_KERNEL = frozenset(
    {
        "penstock.addresses",
        "penstock.backoff",
        "penstock.durations",
        "penstock.errors",
        "penstock.ids",
        "penstock.projects",
        "penstock.rate_limit",
        "penstock.retold",
        "penstock.shown",
    }
)
KERNEL = PURE_KERNEL | {"penstock.clock", "penstock.config", "penstock.wire"}
CAPABILITIES = frozenset({"penstock.broker", "penstock.hub", "penstock.router", "penstock.client", "penstock.api"})
FACES = frozenset(
    {"penstock", "penstock.face", "penstock.message_queue", "penstock.queue_manager", "penstock.subscription", "penstock.work"}
)

# Who may import what. The longest row that matches a module counts; the modules of one row may import each other.
# A module without a row is refused: where it belongs is to be decided, and written here.
MAY_IMPORT: dict[str, frozenset[str]] = {
    # the kernel
    **dict.fromkeys(PURE_KERNEL, PURE | PURE_KERNEL),
    "penstock.clock": ANY | PURE_KERNEL,
    "penstock.config": ANY | PURE_KERNEL,
    "penstock.wire": ANY | PURE_KERNEL,
    "penstock.runtime": ANY | KERNEL,
    # the capabilities: they know the kernel, the runtime and themselves, never each other
    "penstock.broker": ANY | KERNEL | {"penstock.runtime"},
    "penstock.broker.core": PURE | PURE_KERNEL,
    "penstock.broker.arrow*": ANY | KERNEL | {"penstock.broker", "pyarrow"},
    "penstock.broker.staged_part": ANY | KERNEL | {"penstock.broker", "pyarrow"},
    "penstock.broker.journals.sqlite*": ANY | KERNEL | {"penstock.runtime", "penstock.broker", "apsw"},
    "penstock.broker.journals.readonly": ANY | KERNEL | {"penstock.broker", "apsw"},
    "penstock.hub": ANY | KERNEL | {"penstock.runtime"},
    "penstock.hub.core": PURE | PURE_KERNEL,
    "penstock.hub.keys": ANY | KERNEL | {"penstock.hub", "jwt"},
    "penstock.hub.jwks": ANY | KERNEL | {"penstock.hub", "aiohttp"},
    "penstock.router": ANY | KERNEL | {"penstock.runtime"},
    "penstock.router.core": PURE | PURE_KERNEL,
    "penstock.router.sources.sqs_credentials": ANY | KERNEL | {"penstock.router", "botocore"},
    "penstock.router.transports.http1": ANY | KERNEL | {"penstock.router", "httptools"},
    "penstock.router.transports.http2": ANY | KERNEL | {"penstock.router", "h2"},
    "penstock.router.config_places": ANY | KERNEL | {"penstock.router", "aiohttp"},
    "penstock.router.standby": ANY | KERNEL | {"penstock.router", "redis"},
    # a router beside a broker: the one place that knows both
    "penstock.router_host": ANY | KERNEL | FACES | {"penstock.api", "penstock.broker", "penstock.client", "penstock.router"},
    # a hub beside a broker, likewise
    "penstock.hub_host": ANY | KERNEL | FACES | {"penstock.access", "penstock.api", "penstock.broker", "penstock.hub"},
    # what may be asked of a broker; the client asks it in its own process, or over the native door
    "penstock.api": ANY | KERNEL | FACES | {"penstock.broker", "penstock.access"},
    "penstock.client": ANY
    | KERNEL
    | FACES
    | {"penstock.broker", "penstock.access", "penstock.api", "penstock.embedded", "penstock.hub.core"},
    "penstock.client.core": PURE | PURE_KERNEL | {"penstock.hub.core"},
    "penstock.client.hub_socket": ANY | KERNEL | {"penstock.client", "aiohttp"},
    "penstock.sync": ANY | KERNEL | {"penstock", "penstock.client"},
    # a worker takes from queues through the client
    "penstock.worker": ANY | KERNEL | FACES | {"penstock.broker", "penstock.api", "penstock.client", "uvloop"},
    "penstock.worker.core": PURE | PURE_KERNEL,
    # the in-process APIs over a broker, and the public names
    "penstock.face": ANY | KERNEL | {"penstock.broker"},
    "penstock.subscription": ANY | KERNEL | {"penstock.broker"},
    "penstock.work": ANY | KERNEL | {"penstock.broker"},
    "penstock.message_queue": ANY | KERNEL | {"penstock.broker", "penstock.face", "penstock.subscription"},
    "penstock.queue_manager": ANY | KERNEL | {"penstock.broker", "penstock.face", "penstock.work"},
    "penstock": ANY
    | KERNEL
    | {
        "penstock.broker",
        "penstock.client",
        "penstock.message_queue",
        "penstock.queue_manager",
        "penstock.subscription",
        "penstock.work",
        "penstock.worker",
    },
    # the log as other processes reach it, and the pipeline, which runs in them; its route job runs the router's rules
    "penstock.log": ANY | KERNEL | {"penstock.broker", "pyarrow"},
    "penstock.log.log": PURE | PURE_KERNEL | {"penstock.broker.core", "pyarrow"},
    "penstock.pipeline": ANY | KERNEL | {"penstock.log", "penstock.router.core", "pyspark", "pyarrow", "pandas"},
    "penstock.pipeline.core": PURE | PURE_KERNEL | {"penstock.log.log", "penstock.pipeline.schemas", "difflib"},
    "pyspark_penstock": ANY | {"penstock.pipeline", "pyspark"},
    # what doors stand on: who may do what, what a schema accepts, what a transform makes of a message
    "penstock.access": ANY | KERNEL,
    "penstock.access.core": PURE | PURE_KERNEL,
    "penstock.schemas": ANY | KERNEL | {"google.protobuf"},
    "penstock.transforms": ANY | KERNEL | {"penstock.broker.core", "quickjs"},
    # what serves and composes
    "penstock.doors": ANY | KERNEL | CAPABILITIES | FACES | {"penstock.runtime", "penstock.access", "aiohttp"},
    "penstock.doors.log": ANY
    | KERNEL
    | {"penstock.access", "penstock.api", "penstock.broker", "penstock.doors", "penstock.log", "aiohttp", "pyarrow"},
    "penstock.doors.pubsub": ANY
    | KERNEL
    | CAPABILITIES
    | FACES
    | {
        "penstock.access",
        "penstock.doors",
        "penstock.schemas",
        "penstock.transforms",
        "aiohttp",
        "google.protobuf",
        "grpc",
        "cryptography",
        "jwt",
    },
    "penstock.doors.pubsub.core": PURE
    | PURE_KERNEL
    | {"penstock.broker.core", "penstock.doors.pubsub.messages", "google.protobuf"},
    "penstock.doors.pubsub.messages": PURE | {"google.protobuf"},
    "penstock.server": ANY
    | KERNEL
    | CAPABILITIES
    | FACES
    | {"penstock.runtime", "penstock.access", "penstock.doors", "penstock.logs", "penstock.router_host", "uvloop"}
    | {"penstock.hub_host"},
    "penstock.embedded": ANY | KERNEL | {"penstock", "penstock.api", "penstock.broker", "penstock.doors.pubsub.rules"},
    "penstock.logs": ANY,
    "penstock.cli": ANY
    | KERNEL
    | {"penstock", "penstock.api", "penstock.client", "penstock.access", "penstock.pipeline", "penstock.server", "uvloop"}
    | {"penstock.worker", "penstock.logs", "penstock.router"},
    "penstock.cli.hub_token": ANY | KERNEL | {"penstock.cli", "penstock.hub"},
    "penstock.__main__": ANY | {"penstock.cli"},
    "penstock.demo*": ANY
    | KERNEL
    | {"penstock", "penstock.client", "penstock.log", "penstock.testing.server", "penstock.testing.target"}
    | {"rich", "google.cloud", "google.api_core", "synap_sdk", "pyarrow"},
    # the shipped test kit may import all of Penstock; nothing but itself and the demo may import it
    "penstock.testing": ANY | {"penstock", "penstock.*", "apsw", "hypothesis", "pytest", "uvloop"},
    "penstock.testing.certificates": ANY | KERNEL | {"cryptography"},
}

CLOCK = "penstock.clock"
CLOCK_READS = frozenset(
    f"time.{name}"
    for name in "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns thread_time "
    "thread_time_ns clock_gettime clock_gettime_ns localtime gmtime ctime sleep".split()
) | {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})

NAMES = frozenset(module.name for module in MODULES)


def covers(pattern: str, name: str) -> bool:
    """Whether a module is the named one or inside it. `penstock` stands for the public names alone, not for all below it."""
    return fnmatchcase(name, pattern) or (pattern != "penstock" and fnmatchcase(name, f"{pattern}.*"))


def row_of(name: str) -> str | None:
    return max((row for row in MAY_IMPORT if covers(row, name)), key=len, default=None)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted target of every import: at the top, in a function, for types only, or by a constant name at run time."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    # Below penstock only modules are rows; elsewhere `sys.intern` may be allowed where `sys` is not.
                    yield node.lineno, origin if origin.startswith("penstock") and inner not in NAMES else inner
            case ast.ImportFrom(level=level):
                yield node.lineno, "." * level + (node.module or "")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(target)), *_]):
                if called in {"import_module", "__import__"}:
                    yield node.lineno, target


def forbidden_imports(module: Module) -> list[str]:
    row = row_of(module.name)
    if row is None:
        return [f"{module.path}: {module.name} has no row in MAY_IMPORT; decide where it belongs and add one"]
    return [
        f"{module.path}:{line}: {row} may not import {target}"
        for line, target in imports_of(module)
        if not any(covers(allowed, target) for allowed in {row, *MAY_IMPORT[row]})
    ]


def uses_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported by name or used through an import, whatever it was renamed to."""
    origins: dict[str, str] = {}
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    first = alias.name.partition(".")[0]
                    origins[alias.asname or first] = alias.name if alias.asname else first
            case ast.ImportFrom(module=str(origin), names=names):
                for alias in names:
                    origins[alias.asname or alias.name] = f"{origin}.{alias.name}"
                    yield node.lineno, f"{origin}.{alias.name}"
    for node in ast.walk(module.tree):
        attributes: list[str] = []
        current: ast.AST = node
        while isinstance(current, ast.Attribute):
            attributes.append(current.attr)
            current = current.value
        if attributes and isinstance(current, ast.Name) and current.id in origins:
            yield current.lineno, ".".join([origins[current.id], *reversed(attributes)])


def clock_reads(module: Module) -> list[str]:
    if module.name == CLOCK:
        return []
    return [
        f"{module.path}:{line}: uses {use}; time is read in {CLOCK} alone" for line, use in uses_of(module) if use in CLOCK_READS
    ]


def impure_calls(module: Module) -> list[str]:
    """Calls of builtins that touch the world, in modules whose imports must be pure."""
    row = row_of(module.name)
    if row is None or "os" in MAY_IMPORT[row]:
        return []
    return [
        f"{module.path}:{node.lineno}: {row} is pure and may not call {node.func.id}()"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]


every_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


@every_module
def test_a_module_imports_only_what_its_row_allows(module: Module) -> None:
    assert forbidden_imports(module) == []


@every_module
def test_only_the_clock_reads_time(module: Module) -> None:
    assert clock_reads(module) == []


@every_module
def test_the_pure_part_touches_nothing_outside(module: Module) -> None:
    assert impure_calls(module) == []


def test_the_checker_sees_the_source() -> None:
    assert {"penstock.errors", "penstock.broker.core", "pyspark_penstock"} <= NAMES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("penstock.broker.core.queue", "import time"),
        ("penstock.broker.core.queue", "import os.path"),
        ("penstock.broker.core.queue", "from random import Random"),
        ("penstock.broker.core.queue", "import threading"),
        ("penstock.broker.core.queue", "import asyncio"),
        ("penstock.broker.core.queue", "import logging"),
        ("penstock.broker.core.queue", "import sqlite3"),
        ("penstock.broker.core.queue", "import uuid, secrets"),
        ("penstock.broker.core.queue", "from sys import stdout"),
        ("penstock.broker.core.queue", "def f():\n    import socket"),
        ("penstock.broker.core.queue", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import io"),
        ("penstock.broker.core.queue", "from penstock.clock import Clock"),
        ("penstock.broker.core.queue", "from penstock.broker.journal import Journal"),
        ("penstock.broker.core.queue", "from penstock.broker import journals"),
        ("penstock.broker.core.queue", "from . import message"),
        ("penstock.broker.core.queue", "import attrs"),
        ("penstock.hub.core.session", "from penstock.broker.core.queue import Queue"),
        ("penstock.router.core.pool", "import random"),
        ("penstock.ids", "import secrets"),
        ("penstock.errors", "import logging"),
        ("penstock.clock", "from penstock.broker.core import queue"),
        ("penstock.broker.broker", "from penstock.hub.session import Session"),
        ("penstock.broker.broker", "import penstock.router.core.pool"),
        ("penstock.broker.broker", "from penstock import MessageQueue"),
        ("penstock.hub.server", "from penstock.broker.broker import Broker"),
        ("penstock.router.router", "import importlib\nimportlib.import_module('penstock.hub')"),
        ("penstock.broker.broker", "from penstock.testing import ManualClock"),
        ("penstock.demo", "from penstock.testing.clock import ManualClock"),
        ("penstock.broker.broker", "import apsw"),
        ("penstock.broker.journals.memory", "import apsw"),
        ("penstock.broker.broker", "import pyarrow as pa"),
        ("penstock.broker.journals.sqlite", "from pyarrow import Table"),
        ("penstock.broker.broker", "from rich.console import Console"),
        ("penstock.testing.simulator", "import pyspark"),
        ("penstock.testing.conformance", "import pyarrow"),
        ("penstock.client.stream", "from pyspark.sql import DataFrame"),
        ("penstock.pipeline.source", "from penstock.broker.broker import Broker"),
        ("penstock.broker.broker", "import requests"),
        ("penstock.newcomer", ""),
    ],
)
def test_a_forbidden_import_is_found(name: str, text: str) -> None:
    assert len(forbidden_imports(made_up(name, text))) >= 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("penstock.broker.core.queue", "from __future__ import annotations"),
        ("penstock.broker.core.queue", "from collections.abc import Iterator\nimport heapq, msgspec"),
        ("penstock.broker.core.queue", "from sys import intern\nfrom datetime import datetime"),
        ("penstock.broker.core.queue", "from penstock import errors\nfrom penstock.broker.core.message import Message"),
        ("penstock.broker.broker", "import threading\nfrom penstock.broker.core import queue\nfrom penstock.clock import Clock"),
        ("penstock.broker.journals.sqlite", "import apsw"),
        ("penstock.broker.journals.sqlite_writer", "import apsw"),
        ("penstock.broker.arrow", "import pyarrow as pa"),
        ("penstock.message_queue", "from penstock.broker.broker import Broker"),
        ("penstock", "from penstock.message_queue import MessageQueue"),
        ("penstock.demo", "from penstock import MessageQueue\nfrom rich.table import Table"),
        ("penstock.demo_crash", "from penstock import MessageQueue"),
        ("penstock.demo", "from penstock.demo_crash import kill"),
        (
            "penstock.testing.simulator",
            "import apsw, random\nfrom penstock.testing.clock import ManualClock\nfrom penstock.hub.core import session",
        ),
        ("penstock.pipeline.jobs.route", "from pyspark.sql import DataFrame\nfrom penstock.router.core.routing import route"),
        ("pyspark_penstock", "from penstock.pipeline.source import PenstockSource as DefaultSource"),
    ],
)
def test_an_allowed_import_passes(name: str, text: str) -> None:
    assert forbidden_imports(made_up(name, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "import time\ndef f(now=time.monotonic): ...",
        "from time import perf_counter as tick",
        "from time import sleep",
        "import datetime\ndatetime.datetime.now()",
        "import datetime as dt\ndt.date.today()",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "from datetime import datetime as when\nwhen.utcnow()",
    ],
)
def test_a_clock_read_is_found(text: str) -> None:
    assert len(clock_reads(made_up("penstock.broker.broker", text))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("penstock.clock", "import time\ntime.time_ns()"),
        ("penstock.broker.broker", "def f(clock):\n    return clock.now(), clock.time()"),
        ("penstock.broker.broker", "from datetime import datetime\ndatetime.fromisoformat('2026-01-01')"),
        ("penstock.broker.broker", "import time\ntime.struct_time"),
    ],
)
def test_what_reads_no_time_or_is_the_clock_passes(name: str, text: str) -> None:
    assert clock_reads(made_up(name, text)) == []


def test_a_builtin_that_touches_the_world_is_found_in_the_pure_part_alone() -> None:
    assert len(impure_calls(made_up("penstock.broker.core.queue", "open('x')\nprint(1)\nlen([])"))) == 2
    assert impure_calls(made_up("penstock.broker.journals.sqlite", "open('x')")) == []
