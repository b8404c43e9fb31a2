"""The modules of the console that decide something, in Node.js: console.test.mjs; and what they may contain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import penstock.server

STATIC = Path(penstock.server.__file__).parent / "console" / "static"
TESTS = Path(__file__).parent / "console.test.mjs"
MAX_BYTES = 185_000
NODE_SECONDS = 60


def sources() -> dict[str, str]:
    """Every file of the console by its name."""
    return {str(file.relative_to(STATIC)): file.read_text() for file in STATIC.rglob("*") if file.is_file()}


def test_the_modules_decide_as_they_should(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("CI"), "CI must run the tests that need Node.js"
        pytest.skip("Node.js is not installed")
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "static" / "package.json").write_text('{"type": "module"}')
    ran = subprocess.run(
        [node, "--test", str(TESTS)],
        env={**os.environ, "CONSOLE_MODULES": str(tmp_path / "static")},
        capture_output=True,
        text=True,
        timeout=NODE_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_console_is_small_and_asks_nobody_else() -> None:
    found = sources()

    assert sum(len(text.encode()) for text in found.values()) < MAX_BYTES
    names = [name for text in found.values() for name in re.findall(r"https?://[\w.]+", text)]
    assert {*names} == {"http://www.w3.org"}  # the namespace of SVG, which nobody loads


def test_nothing_shown_can_become_part_of_the_page() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"style\""

    assert {name: re.findall(forbidden, text) for name, text in sources().items() if re.search(forbidden, text)} == {}
    page = sources()["index.html"]
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r"\s(?:on\w+|style)=", page) == []


def test_every_file_that_a_module_names_is_there() -> None:
    found = sources()
    for name, text in found.items():
        folder = (STATIC / name).parent
        for imported in re.findall(r"^import .* from \"(\.[^\"]+)\"", text, re.MULTILINE):
            assert (folder / imported).resolve().is_file(), (name, imported)
    for linked in re.findall(r"/console/static/([\w./]+)", found["index.html"]):
        assert linked in found
