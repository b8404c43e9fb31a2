"""The project for Spark Declarative Pipelines: what is written, and what is refused."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.pipeline.project import FILES, write_project

pytestmark = pytest.mark.alone

HERE = "http://127.0.0.1:8080"


def test_it_writes_a_whole_project(tmp_path: Path) -> None:
    written = write_project(tmp_path / "shop", endpoint=HERE, name="shop")

    assert written == [tmp_path / "shop" / file for file in FILES]
    texts = {path.name: path.read_text(encoding="utf-8") for path in written}
    assert "@" not in "".join(texts[name] for name in ("README.md", "spark-pipeline.yml"))
    for path in written:
        if path.suffix == ".py":
            ast.parse(texts[path.name])


def test_the_settings_are_what_spark_asks_for(tmp_path: Path) -> None:
    write_project(tmp_path / "a b", endpoint=HERE, name="shop")

    settings = yaml.safe_load((tmp_path / "a b" / "spark-pipeline.yml").read_text(encoding="utf-8"))

    assert settings["name"] == "shop"
    assert settings["storage"] == (tmp_path / "a b" / "storage").as_uri()
    assert settings["libraries"] == [{"glob": {"include": "transformations/**"}}]
    assert settings["configuration"]["spark.penstock.endpoint"] == HERE
    assert all(isinstance(value, str) for value in settings["configuration"].values())


def test_files_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "transformations" / "gold.py"
    mine.parent.mkdir()
    mine.write_text("mine", encoding="utf-8")

    with pytest.raises(FailedPrecondition, match=r"gold\.py' exists already"):
        write_project(tmp_path, endpoint=HERE, name="shop")

    assert mine.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "spark-pipeline.yml").exists()


def test_force_replaces_the_files_of_a_project_and_no_others(tmp_path: Path) -> None:
    write_project(tmp_path, endpoint=HERE, name="old")
    mine = tmp_path / "transformations" / "mine.sql"
    mine.write_text("SELECT 1", encoding="utf-8")

    write_project(tmp_path, endpoint=HERE, name="new", force=True)

    assert "name: new" in (tmp_path / "spark-pipeline.yml").read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8") == "SELECT 1"


@pytest.mark.parametrize("name", ["", " ", "1st", "a b", "a/b", "a: b", "é", "x" * 101, "a\n"])
def test_a_name_that_would_break_the_settings_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="name is"):
        write_project(tmp_path, endpoint=HERE, name=name)


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:8080", "ftp://host", 'http://host"', "http://a b", "http://host\n"])
def test_an_address_that_is_none_is_refused(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="endpoint is"):
        write_project(tmp_path, endpoint=endpoint, name="shop")
