"""`penstock` as a subprocess, for tests: its two outputs and its exit code."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = (sys.executable, "-m", "penstock")
# Each run would compile the whole source again where the environment forbids to keep what was compiled.
BYTECODE = Path(tempfile.gettempdir()) / f"penstock-tests-{os.getuid()}"


class Run(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Penstock:
    """Runs commands in one folder, with nothing of ours in the environment but what is given."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        quick = {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": ""}
        self.environment = inherited | quick | {"COLUMNS": "130"} | dict(environment or {})

    def __call__(self, *words: str, stdin: str | bytes = b"") -> Run:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            check=False,
            timeout=60,
        )
        return Run(done.returncode, done.stdout.decode(), done.stderr.decode())

    def good(self, line: str, stdin: str | bytes = b"") -> Run:
        """Run a line that must succeed."""
        done = self(*line.split(), stdin=stdin)
        assert done.code == 0, f"{line}: {done}"
        return done

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start one that goes on by itself."""
        return subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
