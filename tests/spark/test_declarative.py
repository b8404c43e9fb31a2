"""The declarative project runs as it is written: `spark-pipelines run` against a server with traffic."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative" / "run.py"


def test_the_example_runs_the_project_and_one_failure_comes_back(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "shop")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr[-8000:]
    assert done.stdout.splitlines() == [
        "README.md",
        "spark-pipeline.yml",
        "transformations/bronze.py",
        "transformations/silver.py",
        "transformations/gold.py",
        "transformations/outcomes.sql",
        "messages: some rows",
        "events: some rows",
        "lifecycle: some rows",
        "metrics: some rows",
        "orders/billing: 9 acked, 9 attempts",
        "orders/billing: 1 dead_lettered, 5 attempts",
        "back in topic 'failures': key 'orders/billing'",
    ]
