"""The programs in `examples/` that need Spark, and the page "Spark in five minutes", do what they show."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from penstock import MessageQueue
from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]


def test_an_example_runs_by_itself() -> None:
    command = [sys.executable, str(ROOT / "examples" / "word_count.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=os.environ)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "after 2 more: the 4, water 2",
        "after 1 more: the 6, gate 2, turns 2, water 2, wheel 2",
    ]


def test_an_example_prints_what_it_shows(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalServer() as server:
        loaded("stream_join.py").main(spark, server.url)

    assert capsys.readouterr().out.splitlines() == ["order 1, Dune: paid 1200 cents", "order 3, Ulysses: paid 2300 cents"]


def loaded(example: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(example.removesuffix(".py"), ROOT / "examples" / example)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_five_minutes_do_what_they_show(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    with LocalServer() as server:
        MessageQueue(broker=server.broker).register_topic("orders")
        MessageQueue(broker=server.broker).register_topic("alerts")
        namespace: dict[str, object] = {"__name__": "__main__"}
        for block in blocks(page):
            if block.language == "python":
                text = "\n" * (block.line - 1) + block.text.replace("http://127.0.0.1:8085", server.url)
                # Spark takes a relative path from where it was started, which is not this test's directory.
                text = text.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
                exec(compile(text, "docs/spark.md", "exec"), namespace)
    said = capsys.readouterr().out

    for shown in (block.text for block in blocks(page) if block.language == "text"):
        assert shown in said
