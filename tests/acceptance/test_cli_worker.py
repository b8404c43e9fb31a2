"""`penstock worker` as a person meets it: what it says about a wrong call, and that it works and stops."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing.server import LocalServer

PENSTOCK = Path(sys.executable).with_name("penstock")

APP = """
from penstock.worker import Worker

worker = Worker()
nothing = None

@worker.task("emails")
def send_email(to):
    print("sent to", to, flush=True)
"""
SENDER = """
from app import send_email

print(send_email.send_sync("a@b.c"))
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "empty.py").write_text("from penstock.worker import Worker\nworker = Worker()\n")
    (tmp_path / "bare.py").write_text("")
    (tmp_path / "broken.py").write_text("import json\n\nvalue = json.loads('')\n")
    (tmp_path / "lacking.py").write_text("import no_such_library\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "tasks.py").write_text(APP)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return inherited | {"COLUMNS": "130"} | more


def run(folder: Path, *arguments: str, **more: str) -> Run:
    done = subprocess.run(
        [PENSTOCK, "worker", *arguments],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def test_help_names_every_flag(folder: Path) -> None:
    shown = run(folder, "--help")

    assert (shown.code, shown.err) == (0, "")
    for flag in ("MODULE:NAME", "--server", "--token", "--concurrency", "--queues", "--log-level", "--log-format"):
        assert flag in shown.out


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("", 2, "penstock worker: the following arguments are required: MODULE:NAME\ntry: penstock worker --help\n"),
        (
            "app",
            2,
            "the worker is 'app', wanted MODULE:NAME, as in app:worker for the worker of app.py\ndid you mean app:worker?",
        ),
        ("app.py:worker", 2, "did you mean app:worker?"),
        ("./package/tasks.py", 2, "did you mean package.tasks:worker?"),
        (":worker", 2, "the worker is ':worker', wanted MODULE:NAME"),
        ("app:", 2, "the worker is 'app:', wanted MODULE:NAME"),
        ("app:worker.run", 2, "the worker is 'app:worker.run', wanted MODULE:NAME"),
        ("ap:worker", 2, "penstock: there is no module 'ap'\ndid you mean app?\n"),
        ("no.such.module:worker", 2, "penstock: there is no module 'no.such.module'\nmodules are looked for in"),
        ("app:wroker", 2, "penstock: the module 'app' has no 'wroker'\ndid you mean app:worker?\n"),
        ("bare:worker", 2, "penstock: the module 'bare' has no 'worker'\nmake one there: worker = penstock.Worker()\n"),
        ("app:nothing", 2, "penstock: app:nothing is of type NoneType, wanted a penstock.Worker\ndid you mean app:worker?\n"),
        ("app:send_email", 2, "penstock: app:send_email is of type Task, wanted a penstock.Worker\ndid you mean app:worker?\n"),
        ("empty:worker", 1, "penstock: the worker has no tasks\n"),
        ("lacking:worker", 1, "penstock: the module 'lacking' cannot be imported: ModuleNotFoundError: No module named"),
        ("app:worker --concurrency 0", 2, "argument --concurrency: '0' is not a whole number from 1 to 10000"),
        ("app:worker --concurrency many", 2, "argument --concurrency: 'many' is not a whole number"),
        (
            "app:worker --queues emial",
            2,
            "penstock: no task uses the queue 'emial', wanted some of emails\ndid you mean emails?\n",
        ),
        ("app:worker --queues ,", 2, "penstock: --queues is ',', wanted names of queues, with commas in between\n"),
        ("app:worker --server ftp://host", 2, "penstock: server is 'ftp://host', wanted the address of a server"),
        ("app:worker --server http://127.0.0.1:1", 4, "penstock: no connection to the server at http://127.0.0.1:1"),
        ("app:worker --log-level loud", 2, "unknown log_level 'loud'; known: debug, info, warning, error\n"),
        ("app:worker --reload", 2, "penstock worker: unknown flag --reload"),
    ],
)
def test_a_wrong_call_is_told_in_a_line_or_two(folder: Path, line: str, code: int, said: str) -> None:
    shown = run(folder, *line.split())

    assert said in shown.err
    assert (shown.code, shown.out) == (code, "")
    assert "Traceback" not in shown.err


def test_a_module_that_fails_shows_where(folder: Path) -> None:
    shown = run(folder, "broken:worker")

    assert shown.code == 1
    assert re.search(r'File ".*broken\.py", line 3, in <module>\n +value = json\.loads\(\'\'\)', shown.err)
    assert "penstock: the module 'broken' cannot be imported: JSONDecodeError: " in shown.err
    assert "importlib" not in shown.err


@pytest.mark.parametrize("form", ["text", "json"])
def test_it_works_until_it_is_told_to_stop(folder: Path, form: str) -> None:
    (folder / "sender.py").write_text(SENDER)
    with LocalServer() as server:
        worker = subprocess.Popen(
            [PENSTOCK, "worker", "app:worker", "--queues", "emails", "--concurrency", "2", "--log-format", form],
            cwd=folder,
            env=environment(PENSTOCK_SERVER=server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            sent = subprocess.run(
                [sys.executable, "sender.py"],
                cwd=folder,
                env=environment(PENSTOCK_SERVER=server.url),
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            )
            assert worker.stdout is not None
            assert worker.stdout.readline() == "sent to a@b.c\n"
        finally:
            worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=30)

    assert worker.returncode == 0
    lines = [json.loads(line)["message"] for line in log.splitlines()] if form == "json" else log.splitlines()
    message_id = sent.stdout.strip()
    assert "concurrency=2" in lines[0]
    assert any(f"task=send_email queue=emails id={message_id} attempt=1/4" in line for line in lines)
    assert "worker=stopped succeeded=1 retried=0 dead=0 returned=0" in lines[-1]
    assert "a@b.c" not in log
