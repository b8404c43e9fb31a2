"""`penstock worker`: it works and stops, and shows where a module fails. Its wrong calls are in test_cli_wrong_calls.py."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock

APP = """
from penstock.worker import Worker

worker = Worker()

@worker.task("emails")
def send_email(to):
    print("sent to", to, flush=True)
"""


def test_a_module_that_fails_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "broken.py").write_text("import json\n\nvalue = json.loads('')\n")
    shown = Penstock(tmp_path)("worker", "broken:worker")

    assert shown.code == 1
    assert re.search(r'File ".*broken\.py", line 3, in <module>\n +value = json\.loads\(\'\'\)', shown.err)
    assert "penstock: the module 'broken' cannot be imported: JSONDecodeError: " in shown.err
    assert "importlib" not in shown.err


@pytest.mark.parametrize("form", ["text", pytest.param("json", marks=pytest.mark.long)])
def test_it_works_until_it_is_told_to_stop(
    server: LocalServer, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.setenv("PENSTOCK_SERVER", server.url)
    app: dict[str, Any] = {"__name__": "app"}
    exec(APP, app)
    line = f"worker app:worker --queues emails --concurrency 2 --log-format {form}"
    worker = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url}).start(*line.split())
    try:
        message_id = app["send_email"].send_sync("a@b.c")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "sent to a@b.c\n"
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=60)

    assert worker.returncode == 0
    lines = [json.loads(line)["message"] for line in log.splitlines()] if form == "json" else log.splitlines()
    assert "concurrency=2" in lines[0]
    assert any(f"task=send_email queue=emails id={message_id} attempt=1/4" in line for line in lines)
    assert "worker=stopped succeeded=1 retried=0 dead=0 returned=0" in lines[-1]
    assert "a@b.c" not in log
