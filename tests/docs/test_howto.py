"""The how-to pages are true: their programs and commands run, with the output that they show."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
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
