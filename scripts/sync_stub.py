"""Writes src/penstock/sync.pyi: what type checkers and editors know of the blocking client, made from the asynchronous one.

python scripts/sync_stub.py            write it
python scripts/sync_stub.py --check    fail when it is not up to date (a test does the same)
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock import client, sync

STUB = Path(__file__).parent.parent / "src" / "penstock" / "sync.pyi"
HEADER = '"""The blocking client, for type checkers. Made by scripts/sync_stub.py from penstock.client: do not edit."""\n\n'
AWAITED = {"Future", "Awaitable", "Task"}
CONTEXTS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def stub() -> str:
    """The text of the file."""
    classes = list(_classes())
    known = {cls.__name__ for cls in classes}
    bodies = [_stub_of(cls, known) for cls in classes]
    used = {node.id for body in bodies for node in ast.walk(body) if isinstance(node, ast.Name)}
    variables = [line for line in _variables(classes) if line.split(" ")[0] in used]
    wanted = used - known | ({"TypeVar"} if variables else set())
    imports = sorted(set(_imports(classes, wanted)))
    exported = f"__all__ = {sorted(known & set(sync.__all__))}"
    parts = [*imports, "", *variables, exported, *(ast.unparse(ast.fix_missing_locations(body)) for body in bodies)]
    return _formatted(HEADER + "\n".join(parts) + "\n")


def _classes() -> Iterator[type]:
    """The classes of the client that have a blocking form, and what they inherit from; those that others need first."""
    seen: set[type] = set()
    for name in sync.__all__:
        for cls in reversed(getattr(client, name).__mro__):
            if cls.__module__.startswith("penstock.client") and cls not in seen:
                seen.add(cls)
                yield cls


def _tree(cls: type) -> ast.ClassDef:
    found = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(found, ast.ClassDef)
    return found


def _stub_of(cls: type, known: set[str]) -> ast.ClassDef:
    tree = _tree(cls)
    body: list[ast.stmt] = []
    attributes: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                attributes = _attributes(node)
                if cls.__name__ == "PubSub":
                    body.append(_signature(node))
            elif not node.name.startswith("_") or node.name in CONTEXTS:
                body.append(_signature(node))
    taken = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    fields: list[ast.stmt] = [
        ast.AnnAssign(target=ast.Name(name), annotation=annotation, value=None, simple=1)
        for name, annotation in attributes.items()
        if name not in taken
    ]
    bases = [base for base in tree.bases if _root(base) in known | {"Generic"}]
    return ast.ClassDef(tree.name, bases, [], fields + body or [ast.Expr(ast.Constant(...))], [])


def _root(base: ast.expr) -> str:
    inner = base.value if isinstance(base, ast.Subscript) else base
    return inner.id if isinstance(inner, ast.Name) else ""


def _attributes(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """Public attributes that hold an argument: the name of a topic, and the like."""
    types = {argument.arg: argument.annotation for argument in [*node.args.args, *node.args.kwonlyargs]}
    found = {}
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=ast.Name(id=value)):
                annotation = types.get(value)
                if annotation is not None and not name.startswith("_"):
                    found[name] = annotation
    return found


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    name = CONTEXTS.get(node.name, node.name)
    documentation = ast.get_docstring(node)
    decorators: list[ast.expr] = [one for one in node.decorator_list if isinstance(one, ast.Name) and one.id == "property"]
    body = ast.Expr(ast.Constant(documentation or ...))
    return ast.FunctionDef(name, node.args, [body], decorators, _result(node.returns))


def _result(annotation: ast.expr | None) -> ast.expr | None:
    """What comes back, without the waiting."""
    match annotation:
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner) if name in AWAITED:
            return inner
        case ast.Subscript(value=ast.Name(id="AsyncIterator"), slice=inner):
            return ast.Subscript(ast.Name("Iterator"), inner)
    return annotation


def _imports(classes: list[type], wanted: set[str]) -> Iterator[str]:
    if "Iterator" in wanted:
        yield "from collections.abc import Iterator"
    for module in {cls.__module__ for cls in classes}:
        tree = ast.parse(inspect.getsource(importlib.import_module(module)))
        own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)} & wanted
        yield from (f"from {module} import {name}" for name in own)
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(module=str(origin), names=names):
                    for alias in names:
                        if alias.name in wanted:
                            yield f"from {origin} import {alias.name}"
                case ast.Import(names=names):
                    for alias in names:
                        if alias.name.partition(".")[0] in wanted:
                            yield f"import {alias.name}"


def _variables(classes: list[type]) -> Iterator[str]:
    seen = set()
    for module in {cls.__module__ for cls in classes}:
        for node in ast.parse(inspect.getsource(importlib.import_module(module))).body:
            line = ast.unparse(node)
            if isinstance(node, ast.Assign) and "TypeVar(" in line and line not in seen:
                seen.add(line)
                yield line


def _formatted(text: str) -> str:
    for command in (["check", "--fix-only", "-q"], ["format", "-q"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(STUB.read_text() != stub())
    STUB.write_text(stub())
