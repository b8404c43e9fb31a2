"""The site that `make docs` builds: its navigation has every page, and its reference has everything that the code has."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.cli.main import COMMANDS
from penstock.config import OPTIONS
from penstock.errors import PenstockError
from scripts import reference
from tests.docs.pages import ROOT

FROM_THE_TOP = {"overview.md", "contributing.md", "changelog.md"}


def test_the_navigation_has_every_page() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", settings, flags=re.MULTILINE))
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for folder in (docs, docs / "howto") for page in folder.glob("*.md")}

    assert pages - named == set()
    assert named - pages == FROM_THE_TOP | {"decisions/README.md"} | {f"reference/{name}" for name in reference.pages()}


def test_the_reference_has_what_the_code_has() -> None:
    pages = reference.pages()
    tree = [value.__name__ for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PenstockError)]
    public = [name for name in penstock.__all__ if name != "__version__" and name not in tree]

    assert [name for name in tree if f"\n## {name}\n" not in pages["errors.md"]] == []
    assert [name for name in public if f"\n## {name}\n" not in pages["python.md"]] == []
    assert [option.name for option in OPTIONS if f"| `{option.name}` |" not in pages["settings.md"]] == []
    assert [command.name for command in COMMANDS if f"\n## penstock {command.name}\n" not in pages["cli.md"]] == []
    assert "| `penstock_subscription_backlog` | gauge |" in pages["metrics.md"]
    assert "| `POST` | `/api/v1/command` |" in pages["http.md"]


@pytest.mark.long
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra docs is not installed; make docs installs it")
def test_the_site_is_built_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr

    loaded = re.compile(r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="((?:https?:)?//[^"]+)"')
    found = {url for page in tmp_path.rglob("*.html") for url in loaded.findall(page.read_text(encoding="utf-8"))}
    assert found == set()
