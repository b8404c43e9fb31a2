"""The shape of the source: short modules with a purpose and a plain name, and no promise in `__all__` that is not kept."""

import ast
import importlib
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.architecture.source import MODULES, ROOT, Module, made_up

MAX_LINES = 500
NAMES_THAT_SAY_NOTHING = frozenset({"util", "utils", "common", "helper", "helpers", "base", "manager"})
NAMED_BY_A_SPECIFICATION = frozenset({"queue_manager"})  # specification 003 calls it that

PYTHON_FILES = sorted(path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))

every_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def is_too_long(module: Module) -> bool:
    return len(module.text.splitlines()) > MAX_LINES


def says_nothing(name: str) -> bool:
    parts = set(name.split(".")) - NAMED_BY_A_SPECIFICATION
    return any(word in NAMES_THAT_SAY_NOTHING for part in parts for word in part.split("_"))


def bound_names(module: Module) -> set[str]:
    """What the top level of a module binds, also inside `if` and `try`."""
    names: set[str] = set()
    pending: list[ast.AST] = [module.tree]
    while pending:
        match pending.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases):
                names |= {alias.asname or alias.name.split(".")[0] for alias in aliases}
            case ast.ImportFrom(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass
            case node:
                pending += ast.iter_child_nodes(node)
    return names


def promised_names(module: Module) -> list[str]:
    """The strings of every `__all__ = …` and `__all__ += …`."""
    promised: list[str] = []
    for node in module.tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
                | ast.AugAssign(target=ast.Name(id="__all__"), value=value)
            ):
                promised += ast.literal_eval(value)
    return promised


def broken_promises(module: Module) -> list[str]:
    bound = bound_names(module)
    missing = [name for name in promised_names(module) if name not in bound]
    if missing and "__getattr__" in bound:  # names made on demand: only running the module can tell
        loaded = importlib.import_module(module.name)
        missing = [name for name in missing if not hasattr(loaded, name)]
    return missing


def bare_ignores(text: str) -> list[int]:
    """Lines whose comment silences the type checker without saying which finding."""
    return [
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and re.search(r"#\s*type:\s*ignore(?!\[[\w-]+(?:\s*,\s*[\w-]+)*\])", token.string)
    ]


@every_module
def test_a_module_is_short_enough_to_hold_one_idea(module: Module) -> None:
    assert not is_too_long(module), f"{module.name} has more than {MAX_LINES} lines: look for the second idea in it"


@every_module
def test_a_module_opens_with_what_it_is_for(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.name} has no docstring"


@every_module
def test_every_name_in_all_exists(module: Module) -> None:
    assert broken_promises(module) == []


@every_module
def test_a_module_is_named_for_what_it_holds(module: Module) -> None:
    assert not says_nothing(module.name), f"{module.name}: name it for the noun it holds"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_type_ignore_names_its_code(path: Path) -> None:
    assert bare_ignores(path.read_text(encoding="utf-8")) == []


def test_the_longest_allowed_module_passes_and_one_line_more_does_not() -> None:
    assert not is_too_long(made_up("m", "x = 1\n" * MAX_LINES))
    assert is_too_long(made_up("m", "x = 1\n" * (MAX_LINES + 1)))


@pytest.mark.parametrize("name", ["penstock.utils", "penstock.broker.base", "penstock.common.queue", "penstock.lease_manager"])
def test_a_name_that_says_nothing_is_found(name: str) -> None:
    assert says_nothing(name)


@pytest.mark.parametrize("name", ["penstock.queue_manager", "penstock.broker.core.queue", "penstock.database"])
def test_a_name_that_says_something_passes(name: str) -> None:
    assert not says_nothing(name)


def test_a_name_that_all_promises_and_nothing_binds_is_found() -> None:
    text = "import os.path as p\nfrom m import a as b\nif p:\n    c: int = 1\ndef d(): e = 1\n"

    assert broken_promises(made_up("m", text + "__all__ = ['p', 'b', 'c', 'd']")) == []
    assert broken_promises(made_up("m", text + "__all__ = ['a', 'b']\n__all__ += ['e']")) == ["a", "e"]


def test_a_type_ignore_without_a_code_is_found_and_one_in_a_string_is_not() -> None:
    silence = "# type: " + "ignore"

    assert bare_ignores(f"x = 1  {silence}\ny = 2  {silence}[]\n") == [1, 2]
    assert bare_ignores(f"x = 1  {silence}[attr-defined]  # why\ny = '{silence}'\nz = 3  {silence}[a, b-c]\n") == []
