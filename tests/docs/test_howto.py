"""The how-to pages are true: their programs and commands run, with the output that they show."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.walk import SETTINGS, Walk

NEEDS = {"fastapi": "fastapi", "django": "django", "celery-gcpubsub": "google.cloud.monitoring_v3"}
"""What a page installs, in the extra `dev`."""

PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_how_to_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    library = NEEDS.get(page.stem)
    assert library is None or find_spec(library) is not None, f"{library} is missing: run make setup-test"
    with Walk(tmp_path, settings={**SETTINGS, "PENSTOCK_SERVER": "http://127.0.0.1:8085"}) as walk:
        walk.follow(page.read_text(encoding="utf-8"))


def test_there_are_how_to_pages() -> None:
    assert set(NEEDS) < {page.stem for page in PAGES}


def test_the_task_that_is_migrated_from_celery_is_one() -> None:
    [before] = [block for block in of_page("docs/howto/celery.md") if block.language == "python" and not block.is_run]
    exec(compile(before.text.replace("redis://localhost", "memory://"), "celery.md", "exec"), {})


def test_every_snippet_is_run_but_for_installations(subtests: pytest.Subtests) -> None:
    """A walk runs `python` and `console`; what it does not run is a `pip install`, of packages that the tests install, too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    known = {re.split(r"[\[<>=]", requirement)[0] for requirement in extras["dev"]}
    for page in ("docs/quickstart.md", *(f"docs/howto/{page.name}" for page in PAGES)):
        for block in of_page(page):
            with subtests.test(page=page, line=block.line):
                assert block.language in {"python", "console"}
                if not block.is_run and (page, block.language) != ("docs/howto/celery.md", "python"):
                    lines = [line.partition("#")[0].split() for line in block.text.splitlines()]
                    installed = {
                        name.split("[")[0].strip("'")
                        for line in lines
                        if line[:3] == ["$", "pip", "install"]
                        for name in line[3:]
                    }
                    assert {name for name in installed if name != "CHECKOUT"} <= known
                    assert [line for line in lines if line[1] not in {"pip", "mkdir", "python3"}] == []


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    """`make demo` is run by tests/acceptance/test_demo.py, `make test` by everybody; the program by test_docs.py."""
    [commands] = [block for block in of_page("README.md") if block.language == "console"]
    assert re.findall(r"^\$ (.*?) +#", commands.text, flags=re.MULTILINE) == ["make demo", "make test"]
    assert [block.language for block in of_page("README.md")] == ["console", "python"]


def of_page(page: str) -> list[Block]:
    return list(blocks((ROOT / page).read_text(encoding="utf-8")))
