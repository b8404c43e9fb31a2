"""What a release needs: one version, a changelog in order, and one way to say how an extra is installed."""

import re
import tomllib
from pathlib import Path

import pytest

from penstock import __version__, extras
from penstock.extras import how_to_install

ROOT = Path(__file__).resolve().parents[2]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_package_and_its_metadata_have_the_same_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"] == __version__


def test_the_changelog_begins_with_what_is_not_released_and_goes_back_in_time() -> None:
    unreleased, *released = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert unreleased == "Unreleased"
    found = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", heading) for heading in released]
    assert None not in found
    versions = [match[1] for match in found if match is not None]
    assert versions == sorted(versions, key=number, reverse=True)
    assert all(number(version) <= number(__version__) for version in versions)


@pytest.mark.parametrize(
    ("is_published", "names", "text"),
    [
        (False, (), "pip install '.' in a checkout of Penstock"),
        (False, ("server", "arrow"), "pip install '.[server,arrow]' in a checkout of Penstock"),
        (True, (), "pip install 'penstock'"),
        (True, ("router",), "pip install 'penstock[router]'"),
    ],
)
def test_hints_say_how_an_extra_is_installed(
    is_published: bool, names: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "PUBLISHED", is_published)
    assert how_to_install(*names) == text
