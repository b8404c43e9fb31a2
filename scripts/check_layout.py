"""Checks the import and layout rules of src: `python scripts/check_layout.py`, part of `make lint`.

Imports point inward: MAY_IMPORT is the whole rule; change it together with a decision. Packages outside the broker use neither
its lock nor its core. Modules whose imports are pure call no builtin that does I/O. No module has a name without meaning. One
module says how Penstock is installed. Reading the clock is forbidden by ruff's banned-api list instead.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"

# Modules that only compute. `datetime` is here as a type: ruff's banned-api list forbids reading the time from it.
PURE = frozenset(
    "__future__ abc array base64 binascii bisect collections copy dataclasses datetime decimal enum fractions functools "
    "graphlib hashlib heapq hmac ipaddress itertools json keyword math numbers operator re string struct sys.intern "
    "textwrap types typing unicodedata urllib.parse zlib msgspec".split()
)
ANY = frozenset(sys.stdlib_module_names) | {"msgspec"}  # the standard library and the one dependency that everyone may use

# The part of the kernel that a core may import, and which must therefore be as pure as a core.
PURE_KERNEL = frozenset(
    {"penstock.backoff", "penstock.durations", "penstock.errors", "penstock.extras", "penstock.ids"}
    | {"penstock.rate_limit", "penstock.values"}
)
KERNEL = PURE_KERNEL | {"penstock.clock", "penstock.forks"}
BROKER = frozenset({"penstock.broker", "penstock.journal"})

# What each module may import, from the inside out. The longest row that matches a module counts; the modules of one package may
# import each other as their rows allow. A package imports only packages that stand above it, so they form no cycle. A module
# without a row is an error: decide where it belongs, and add a row.
MAY_IMPORT: dict[str, frozenset[str]] = {
    # the kernel, and the values that every API takes and returns
    **dict.fromkeys(sorted(PURE_KERNEL), PURE | PURE_KERNEL),
    **dict.fromkeys(["penstock.clock", "penstock.forks"], ANY | PURE_KERNEL),
    "penstock.config": ANY | KERNEL,
    "penstock.wire": PURE | PURE_KERNEL,
    "penstock.wire.address": ANY | PURE_KERNEL,
    "penstock.wire.http": ANY | PURE_KERNEL | {"penstock.wire.address"},
    "penstock.wire.operations": PURE | PURE_KERNEL | {"penstock.wire", "inspect"},
    # what can be checked and transformed, and by whom
    "penstock.schemas": ANY | KERNEL | {"google.protobuf"},
    "penstock.transforms": ANY | KERNEL | {"quickjs"},
    "penstock.access": ANY | KERNEL,
    "penstock.access.core": PURE | PURE_KERNEL,
    # the log, and the broker over it
    "penstock.journal": ANY | KERNEL,
    "penstock.journal.core": PURE | PURE_KERNEL,
    "penstock.journal.sqlite*": ANY | KERNEL | {"penstock.journal", "apsw"},
    "penstock.journal.postgres*": ANY | KERNEL | {"penstock.journal", "psycopg"},
    "penstock.journal.formats": ANY | KERNEL | {"apsw"},
    "penstock.journal.readonly": ANY | KERNEL | {"penstock.journal", "apsw"},
    "penstock.broker": ANY | KERNEL | {"penstock.journal", "penstock.schemas", "penstock.transforms"},
    "penstock.broker.core": PURE | PURE_KERNEL | {"penstock.journal.core"},
    "penstock.broker.name_patterns": ANY | KERNEL | {"pyarrow"},
    # the operations, once for all APIs
    "penstock.api": ANY | KERNEL | BROKER | {"penstock", "penstock.access", "penstock.schemas", "penstock.wire"},
    # the HTTP port, and the HTTP client of router and push
    "penstock.http": ANY | KERNEL | {"penstock.access", "aiohttp"},
    "penstock.http.client": ANY | KERNEL,
    "penstock.http.client.http1": ANY | KERNEL | {"penstock.http.client", "httptools"},
    "penstock.http.client.http2": ANY | KERNEL | {"penstock.http.client", "h2"},
    # the log for other processes
    "penstock.log": ANY | KERNEL | BROKER | {"pyarrow"},
    "penstock.log.log": PURE | PURE_KERNEL | {"penstock.journal.core", "pyarrow"},
    "penstock.log.http": ANY | KERNEL | {"penstock.log", "penstock.wire.address", "pyarrow"},
    "penstock.log.open": ANY | KERNEL | {"penstock.log", "penstock.wire.address"},
    "penstock.log.write_ledger": PURE | PURE_KERNEL,
    "penstock.log.server": ANY
    | KERNEL
    | BROKER
    | {"penstock.access", "penstock.api", "penstock.http", "penstock.log", "aiohttp", "pyarrow"},
    # the hub
    "penstock.hub": ANY | KERNEL,
    "penstock.hub.core": PURE | PURE_KERNEL,
    "penstock.hub.client": ANY | KERNEL | {"penstock.hub.core", "penstock.wire"},
    "penstock.hub.client.core": PURE | PURE_KERNEL | {"penstock.hub.core"},
    "penstock.hub.client.socket": ANY | KERNEL | {"penstock.hub.client", "penstock.wire", "aiohttp"},
    "penstock.hub.keys": ANY | KERNEL | {"penstock.hub", "jwt"},
    "penstock.hub.jwks": ANY | KERNEL | {"penstock.hub", "aiohttp"},
    "penstock.hub.tokens": ANY | KERNEL | {"penstock.hub", "penstock.config"},
    "penstock.hub.server": ANY | KERNEL | {"penstock.hub", "penstock.http", "aiohttp"},
    "penstock.hub.broker": ANY
    | KERNEL
    | BROKER
    | {"penstock", "penstock.access", "penstock.api", "penstock.config", "penstock.hub", "penstock.http"},
    # the clients: a program that talks to a server loads no broker
    "penstock.client": ANY | KERNEL | {"penstock", "penstock.hub.client", "penstock.wire"},
    "penstock.client.core": PURE | PURE_KERNEL,
    "penstock.client.links.embedded": ANY
    | KERNEL
    | {"penstock", "penstock.access", "penstock.api", "penstock.client", "penstock.wire"},
    "penstock.sync": ANY | KERNEL | {"penstock", "penstock.client"},
    "penstock.worker": ANY | KERNEL | {"penstock.client", "penstock.sync", "penstock.wire", "uvloop"},
    "penstock.worker.core": PURE | PURE_KERNEL,
    # the APIs
    "penstock.google": ANY
    | KERNEL
    | BROKER
    | {"penstock.access", "penstock.api", "penstock.http", "penstock.schemas", "penstock.transforms", "penstock.wire"}
    | {"aiohttp", "cryptography", "google.protobuf", "grpc", "jwt"},
    "penstock.google.core": PURE
    | PURE_KERNEL
    | {"penstock.google.messages", "penstock.http.client.allowed_addresses", "google.protobuf"},
    "penstock.google.messages": PURE | {"google.protobuf"},
    "penstock.queue_api": ANY | KERNEL | BROKER | {"penstock.access", "penstock.api", "penstock.http", "aiohttp"},
    "penstock.native": ANY
    | KERNEL
    | {"penstock.access", "penstock.api", "penstock.broker", "penstock.http", "penstock.wire", "aiohttp"},
    # the router: it knows a broker only where its queues or records are in one
    "penstock.router": ANY | KERNEL | {"penstock.http.client"},
    "penstock.router.core": PURE | PURE_KERNEL | {"penstock.http.client.transport", "penstock.http.client.target"},
    "penstock.router.configuration": ANY | KERNEL | {"penstock.router", "aiohttp"},
    "penstock.router.standby": ANY | KERNEL | {"penstock.router", "redis"},
    "penstock.router.sources.nats_keys": ANY | KERNEL | {"cryptography"},
    "penstock.router.sources.sqs_credentials": ANY | KERNEL | {"penstock.router", "botocore"},
    "penstock.router.sources.local": ANY | KERNEL | {"penstock.api", "penstock.broker", "penstock.router"},
    "penstock.router.sources.remote": ANY | KERNEL | {"penstock.client", "penstock.router", "penstock.wire"},
    "penstock.router.broker_records": ANY | KERNEL | BROKER | {"penstock.api", "penstock.client", "penstock.router"},
    "penstock.router.host": ANY
    | KERNEL
    | {"penstock.api", "penstock.broker", "penstock.client", "penstock.config", "penstock.http", "penstock.router"},
    "penstock.router.monitoring": ANY | KERNEL | {"penstock.access", "penstock.http", "penstock.router", "aiohttp"},
    # the pipeline, which runs in other processes
    "penstock.pipeline": ANY
    | KERNEL
    | {"penstock.log", "penstock.router.core", "penstock.schemas", "deltalake", "pyspark", "pyarrow", "pandas"},
    "penstock.pipeline.jobs.route": ANY
    | KERNEL
    | {"penstock.http.client", "penstock.log", "penstock.pipeline", "penstock.router", "pyspark", "pyarrow", "uvloop"},
    "penstock.pipeline.core": PURE | PURE_KERNEL | {"penstock.log.log", "penstock.pipeline.schemas", "difflib"},
    "pyspark_penstock": ANY | {"penstock.pipeline", "pyspark"},
    "penstock.journal_copy": ANY | KERNEL | {"penstock.journal"},
    "penstock.backup": ANY | KERNEL | BROKER | {"penstock.access", "penstock.wire"},
    # what composes them
    "penstock": ANY | KERNEL | {"penstock.api", "penstock.broker", "penstock.client", "penstock.worker"},
    "penstock.server": ANY
    | KERNEL
    | {"penstock", "penstock.access", "penstock.api", "penstock.broker", "penstock.config", "penstock.google", "penstock.http"}
    | {"penstock.backup", "penstock.hub", "penstock.log", "penstock.native", "penstock.queue_api", "penstock.router", "uvloop"}
    | {"penstock.journal"},
    "penstock.server.nodes": ANY
    | KERNEL
    | {"penstock", "penstock.access", "penstock.config", "penstock.http", "penstock.journal", "penstock.log", "penstock.native"}
    | {"penstock.router", "penstock.server", "penstock.wire", "aiohttp", "psycopg"},
    "penstock.server.backup": ANY
    | KERNEL
    | {"penstock.access", "penstock.backup", "penstock.config", "penstock.http", "penstock.server", "aiohttp"},
    "penstock.server.console": ANY
    | KERNEL
    | BROKER
    | {"penstock", "penstock.access", "penstock.api", "penstock.client.core", "penstock.config", "penstock.http"}
    | {"penstock.hub", "penstock.log", "penstock.router", "penstock.server", "penstock.wire", "aiohttp"},
    "penstock.server.console.core": PURE | PURE_KERNEL | {"penstock.broker.counters", "penstock.wire"},
    "penstock.cli": ANY
    | KERNEL
    | {"penstock", "penstock.access", "penstock.api", "penstock.client", "penstock.config", "penstock.pipeline"}
    | {"penstock.backup", "penstock.hub", "penstock.journal_copy", "penstock.router", "penstock.server", "penstock.wire"}
    | {"penstock.worker", "uvloop"},
    "penstock.__main__": ANY | {"penstock.cli"},
    # the shipped test kit may import all of Penstock; nothing but itself and the demo may import it
    "penstock.testing": ANY | {"penstock", "penstock.*", "apsw", "hypothesis", "pytest", "uvloop"},
    "penstock.testing.certificates": ANY | KERNEL | {"cryptography"},
    # documented import paths of what has moved
    "penstock.work": frozenset({"penstock.values.queue"}),
    "penstock.broker.arrow": frozenset({"penstock.log.arrow"}),
}

# Rows that may name packages below them: the public names, the test kit, and documented import paths of what has moved.
OUTSIDE_THE_ORDER = frozenset({"penstock", "penstock.testing", "penstock.broker.arrow"})

# Packages that see the broker from outside: they do not import its core, hold its lock or read its catalog, which only a function
# that is given to `Broker.change` sees. What they need is in `broker/lookup.py`, `backlog.py`, `consumer.py`,
# `async_consumer.py`, `counters.py`, `documents.py`, `follower.py`, `log_view.py`, `positions.py`, `publish.py`,
# `settlement.py` and `work_queues.py`.
OUTSIDE_THE_BROKER = frozenset(
    {
        "penstock.api",
        "penstock.cli",
        "penstock.client",
        "penstock.google",
        "penstock.hub.broker",
        "penstock.log",
        "penstock.native",
    }
    | {"penstock.queue_api", "penstock.router", "penstock.server", "penstock.worker"}
)
OF_THE_BROKER_ALONE = frozenset({"lock", "present", "catalog"})

NAMES_EXTRAS = "penstock.extras"

IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})
MEANINGLESS_NAMES = frozenset({"util", "utils", "common", "helper", "helpers", "base", "manager"})
NAMED_BY_A_SPECIFICATION = frozenset({"queue_manager"})


def covers(pattern: str, name: str) -> bool:
    """Return whether a module is the named one or inside it. `penstock` means the public names only, not everything below."""
    return fnmatchcase(name, pattern) or (pattern != "penstock" and fnmatchcase(name, f"{pattern}.*"))


def row_of(module: str) -> str | None:
    """Return the row of MAY_IMPORT that applies to a module."""
    return max((row for row in MAY_IMPORT if covers(row, module)), key=len, default=None)


def imports_of(tree: ast.Module, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and dotted target of every import: at the top, in a function, for types only, or by a constant name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    # Below penstock only modules are rows; elsewhere `sys.intern` may be allowed where `sys` is not.
                    yield node.lineno, origin if origin.startswith("penstock") and inner not in modules else inner
            case ast.ImportFrom(level=level):
                yield node.lineno, "." * level + (node.module or "")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(target)), *_]):
                if called in {"import_module", "__import__"}:
                    yield node.lineno, target


def errors_in(module: str, text: str, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and message of every rule that a module breaks. `modules` are the names of all modules."""
    words = {word for part in set(module.split(".")) - NAMED_BY_A_SPECIFICATION for word in part.split("_")}
    if words & MEANINGLESS_NAMES:
        yield 1, f"{module}: name it after the noun that it holds"
    row = row_of(module)
    if row is None:
        yield 1, f"{module} has no row in MAY_IMPORT; decide where it belongs and add one"
        return
    tree = ast.parse(text)
    for line, target in imports_of(tree, modules):
        if not any(covers(allowed, target) for allowed in {row, *MAY_IMPORT[row]}):
            yield line, f"{row} may not import {target}"
    if module != NAMES_EXTRAS:
        yield from names_an_installation(tree)
    if any(covers(package, module) for package in OUTSIDE_THE_BROKER):
        yield from reaches_into_the_broker(module, tree, modules)
    if "os" in MAY_IMPORT[row]:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in IMPURE_BUILTINS:
                yield node.lineno, f"{row} is pure and may not call {called}()"


def names_an_installation(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and message of every text that says how to install Penstock: that depends on where it is published."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if "pip install" in text:
                yield node.lineno, f"say it with how_to_install() of {NAMES_EXTRAS}"


def reaches_into_the_broker(module: str, tree: ast.Module, modules: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Yield line and message of every use of what belongs to the broker alone."""
    for line, target in imports_of(tree, modules):
        if covers("penstock.broker.core", target):
            yield line, f"{module} is outside the broker and may not import {target}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in OF_THE_BROKER_ALONE:
                yield node.lineno, f"{module} is outside the broker and may not use .{name}"


def package_of(row: str) -> str:
    """Return the package of a row; the kernel counts as one."""
    return "kernel" if any(covers(part, row) for part in KERNEL) else ".".join(row.rstrip("*").split(".")[:2])


def cycles() -> Iterator[str]:
    """Yield the rows that allow an import of a package that stands below them, which could make a cycle."""
    order = list(dict.fromkeys(map(package_of, MAY_IMPORT)))
    for row in MAY_IMPORT.keys() - OUTSIDE_THE_ORDER:
        for allowed in MAY_IMPORT[row]:
            if allowed.startswith("penstock.") and order.index(package_of(allowed)) > order.index(package_of(row)):
                yield f"{row} may import {allowed}, which stands below it in MAY_IMPORT"


def module_name(path: Path) -> str:
    """Return the dotted name of a file in src."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    """Check every module, print what is wrong, and return the exit code."""
    paths = {module_name(path): path for path in sorted(SRC.rglob("*.py"))}
    modules = frozenset(paths)
    errors = [
        f"{path.relative_to(SRC.parent)}:{line}: {message}"
        for module, path in paths.items()
        for line, message in errors_in(module, path.read_text(encoding="utf-8"), modules)
    ]
    errors += [f"scripts/check_layout.py: {error}" for error in cycles()]
    sys.stdout.write("".join(f"{error}\n" for error in errors))
    sys.stdout.write(f"{len(paths)} modules checked, {len(errors)} errors\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
