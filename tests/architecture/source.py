"""The source tree as the architecture tests see it: modules by dotted name, parsed and never imported."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"


@dataclass(frozen=True)
class Module:
    """One file under src, or a made-up one for testing a checker."""

    name: str
    text: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)


def read(path: Path) -> Module:
    parts = path.relative_to(SRC).with_suffix("").parts
    return Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text(encoding="utf-8"), path)


def made_up(name: str, text: str) -> Module:
    return Module(name, text, Path(f"{name}.py"))


MODULES = [read(path) for path in sorted(SRC.rglob("*.py"))]
