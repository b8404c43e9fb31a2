"""A project for Spark Declarative Pipelines: the files that `penstock pipeline init` writes, and the functions they use."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.pipeline.jobs.wiring import chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK = "failures"
"""The default topic that the project publishes to."""
FILES = (
    "README.md",
    "spark-pipeline.yml",
    "transformations/bronze.py",
    "transformations/silver.py",
    "transformations/gold.py",
    "transformations/outcomes.sql",
)
TOKEN = "PENSTOCK_TOKEN"  # the name of a variable
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}", re.ASCII)
_ENDPOINT = re.compile(r"https?://[^\s\"'\\]+", re.ASCII)


def write_project(directory: str | os.PathLike[str], *, endpoint: str, name: str, force: bool = False) -> list[Path]:
    """Write a project that `spark-pipelines run` can execute unchanged; returns the files.

    Raises FailedPrecondition if one of them exists, and writes nothing then; with `force`, existing files are replaced.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument.of("name", name, "up to 100 letters, digits, - and _, the first a letter")
    if not _ENDPOINT.fullmatch(endpoint):
        raise InvalidArgument.of("endpoint", endpoint, "the address of a server, such as http://127.0.0.1:8080")
    root = Path(directory).absolute()
    targets = [root / file for file in FILES]
    for target in targets:
        if target.exists() and not force:
            raise FailedPrecondition(
                f"{str(target)!r} exists already", hint="take another directory, or --force to replace the files"
            )
    values = {"@NAME@": name, "@ENDPOINT@": endpoint, "@SINK@": SINK, "@STORAGE@": (root / "storage").as_uri()}
    template = files("penstock.pipeline") / "template"
    for file, target in zip(FILES, targets, strict=True):
        text = (template / file).read_text(encoding="utf-8")
        for word, value in values.items():
            text = text.replace(word, value)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return targets


def stream(spark: SparkSession, view: str) -> DataFrame:
    """A view of the log, from its beginning, with the settings of the project."""
    reader = spark.readStream.format("penstock").options(**_server(spark)).options(view=view, startingOffsets="earliest")
    pattern = setting(spark, "streams")
    if view == "events":
        return chosen(reader.load(), pattern)
    return reader.option("subscribePattern", pattern).load()


def sink_options(spark: SparkSession) -> dict[str, str]:
    """The options of the sink that publishes to the topic in the settings."""
    return _server(spark) | {"stream": setting(spark, "sink")}


def _server(spark: SparkSession) -> dict[str, str]:
    token = os.environ.get(TOKEN)
    return {"endpoint": setting(spark, "endpoint")} | ({"token": token} if token else {})


def setting(spark: SparkSession, name: str) -> str:
    """The value of `spark.penstock.NAME` in the project's configuration."""
    full = f"spark.penstock.{name}"
    value = spark.conf.get(full, None)
    if not value:
        raise InvalidArgument.of(full, value, "a value", hint="set it in the configuration of spark-pipeline.yml")
    return value
