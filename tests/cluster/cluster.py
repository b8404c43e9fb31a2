"""A real Spark standalone cluster on this machine: a master and workers as processes on loopback, from the pyspark package."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 60
T = TypeVar("T")

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


class Daemon:
    """One process of the cluster. What it logs is kept in a file."""

    def __init__(self, name: str, arguments: list[str], directory: Path) -> None:
        self._log = directory / f"{name}.log"
        environment = os.environ | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_HOME": str(SPARK_HOME),
        }
        with self._log.open("wb") as log:
            # spark-class becomes Java, so its process id is that of the daemon.
            self.process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *arguments], stdout=log, stderr=log, env=environment, cwd=directory
            )

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def said(self, pattern: str) -> str:
        """What a line of its log says, once it is there."""
        found = until(lambda: re.search(pattern, self.log), lambda: f"{pattern!r} in:\n{self.log}")
        return str(found[1])

    def stop(self) -> None:
        """End it; its children go with it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Cluster:
    """A master and some workers with one core each. Use it as a context manager."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self._directory = directory
        self._count = workers
        self._master: Daemon | None = None
        self._workers: list[Daemon] = []
        self.address = ""
        """What `--master` wants."""
        self._page = ""

    def start(self) -> Self:
        """Return when all workers are registered."""
        arguments = [MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._master = Daemon("master", arguments, self._directory)
        self.address = self._master.said(r"Starting Spark master at (spark://\S+)")
        self._page = self._master.said(r"Bound MasterWebUI to \S+ and started at (http://\S+)")
        for number in range(self._count):
            place = self._directory / f"worker-{number}"
            arguments = [WORKER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            self._workers.append(Daemon(place.name, [*arguments, "--work-dir", str(place), self.address], self._directory))
        until(lambda: self.state()["aliveworkers"] == self._count, lambda: f"{self._count} workers: {self.state()}")
        return self

    def stop(self) -> None:
        """End all processes. Safe to call twice."""
        for daemon in [*self._workers, *([self._master] if self._master else [])]:
            daemon.stop()
        self._workers, self._master = [], None

    def state(self) -> dict[str, Any]:
        """What the master's page says: workers, applications."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=10) as page:
            answer: dict[str, Any] = json.load(page)
            return answer

    def executors(self) -> list[int]:
        """The process ids of all executors: a worker has no other children."""
        workers = {daemon.process.pid for daemon in self._workers}
        listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], check=True, capture_output=True, text=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()]
        return [int(pid) for pid, parent, command in rows if int(parent) in workers and "ExecutorBackend" in command]

    def kill_executor(self) -> int:
        """Kill -9 an executor, as a machine that dies would; returns its process id."""
        pid = until(self.executors, lambda: "an executor")[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def logs(self) -> str:
        """What everybody said, executors too: for a test that failed."""
        files = sorted(self._directory.rglob("stderr"))
        return "\n".join(f"--- {file}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


def until(look: Callable[[], T | None], missed: Callable[[], str], seconds: float = START_SECONDS) -> T:
    """What `look` finds, asked again until it is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {missed()}")
        threading.Event().wait(0.1)
    return found


def zipped(directory: Path) -> Path:
    """Our packages as a zip for `--py-files`, made of the sources."""
    target = directory / "penstock.zip"
    source = Path(__file__).parents[2] / "src"
    with zipfile.ZipFile(target, "w") as archive:
        for package in ("penstock", "pyspark_penstock"):
            for file in sorted((source / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(source))
    return target


def python_without_us(directory: Path) -> Path:
    """A Python with all packages of this one but ours, as executors have that get ours by `--py-files`."""
    packages = directory / "packages"
    packages.mkdir()
    for name in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_paths()[name]).iterdir():
            link = packages / entry.name
            if not entry.name.startswith(("penstock", "pyspark_penstock", "__editable__", "_penstock")) and not link.is_symlink():
                link.symlink_to(entry)
    place = directory / "venv"
    venv.create(place, symlinks=True)
    inside = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (inside / "packages.pth").write_text(f"{packages}\n")
    python = place / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import pyarrow, msgspec; import penstock"], capture_output=True, text=True, check=False
    )
    assert "No module named 'penstock'" in found.stderr, f"it should have all but penstock: {found.stderr or 'it has'}"
    return python
