"""`penstock` for tests: its two outputs and its exit code.

A command runs in this process, which takes a tenth of the time. What needs a process of its own, such as signals, pipes that
close, and what runs until it is told to stop, is tested with `start` and `apart`.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from penstock.cli.main import main

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
        quick = {
            "PYTHONPYCACHEPREFIX": str(BYTECODE),
            "PYTHONDONTWRITEBYTECODE": "",
            "XDG_CONFIG_HOME": str(folder / ".config"),  # contexts of whoever runs the tests do not count
        }
        self.environment = inherited | quick | {"COLUMNS": "130"} | dict(environment or {})

    def __call__(self, *words: str, stdin: str | bytes = b"") -> Run:
        """Run a command in this process."""
        out, err = _output(self.environment), _output(self.environment)
        content = stdin.encode() if isinstance(stdin, str) else stdin
        # A server or worker would replace pytest's log handlers.
        around = patch.dict(os.environ, self.environment, clear=True), patch("logging.basicConfig")
        with chdir(self.folder), around[0], around[1], _standard_input(content), redirect_stdout(out), redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as end:  # as argparse ends
                code = int(end.code or 0)
        return Run(code, _text(out), _text(err))

    def apart(self, *words: str, stdin: str | bytes = b"") -> Run:
        """Run a command in a process of its own."""
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            check=False,
            timeout=100,
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


def _output(environment: Mapping[str, str]) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), environment.get("PYTHONIOENCODING", "utf-8"), write_through=True)


def _text(output: io.TextIOWrapper) -> str:
    """All of it; bytes that are no UTF-8 can be had back with `encode(errors="surrogateescape")`."""
    content: bytes = output.buffer.getvalue()  # type: ignore[attr-defined]  # a BytesIO
    return content.decode(errors="surrogateescape")


@contextmanager
def _standard_input(content: bytes) -> Iterator[None]:
    """Commands read descriptor 0, as it is."""
    kept = os.dup(0)
    with tempfile.TemporaryFile() as file, open(0, closefd=False) as replaced, patch("sys.stdin", replaced):
        file.write(content)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(kept, 0)
            os.close(kept)
