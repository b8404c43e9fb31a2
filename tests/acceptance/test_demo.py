"""`penstock demo` without a terminal: a subprocess, plain text, an exit code, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import demo
from penstock.cli.main import main

pytestmark = pytest.mark.timeout(400)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", "--headless", *words],
        env=os.environ | {"TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def play(folder: Path, *words: str) -> str:
    process = start(folder, *words)
    out, errors = process.communicate(timeout=380)
    assert (process.returncode, errors) == (0, ""), out + errors
    assert [*folder.iterdir()] == []
    return out


def processes_in(folder: Path) -> list[str]:
    """The command lines of the processes that have something of that folder in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_the_shop_survives_a_kill_and_a_failed_mail_is_redriven(tmp_path: Path) -> None:
    out = play(tmp_path, "--chapter", "shop")

    found = re.search(r"proved published ([\d,]+) = stored ([\d,]+), lost 0", out)
    assert found is not None
    assert found[1] == found[2]
    assert "proved sent, and every step of its life is in the log" in out
    assert "4 claims checked, all held" in out


@pytest.mark.long
@pytest.mark.parametrize("chapter", ["router", "hub"])
def test_a_chapter_can_be_played_alone(chapter: str, tmp_path: Path) -> None:
    assert "2 claims checked, all held" in play(tmp_path, "--chapter", chapter)


@pytest.mark.long
@pytest.mark.spark
def test_the_pipeline_has_every_order_once_though_its_driver_is_killed(tmp_path: Path) -> None:
    out = play(tmp_path, "--chapter", "pipeline")

    assert "proved each order that was confirmed is in the lake, once" in out
    assert re.search(r"billed +[▁-█]+", out)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "The server starts"),
        (signal.SIGINT, "The console:"),
        (signal.SIGTERM, "The console:"),
        (signal.SIGINT, "Killed with"),
    ],
    ids=["while the server starts", "Ctrl-C", "SIGTERM", "while the server is dead"],
)
def test_an_interrupted_demo_leaves_nothing_running_and_nothing_on_disk(
    number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    process = start(tmp_path, "--chapter", "shop")
    assert process.stdout is not None
    for line in process.stdout:
        if moment in line:
            break
    process.send_signal(number)
    out, errors = process.communicate(timeout=120)

    assert (process.returncode, errors) == (130, "")
    assert "Interrupted. Everything was stopped and removed." in out
    assert [*tmp_path.iterdir()] == []
    assert processes_in(tmp_path) == []


INTERRUPT = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "demo.chapters":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def test_ctrl_c_while_the_demo_is_imported_ends_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    path = os.pathsep.join([str(tmp_path), str(demo.EXAMPLES), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "demo", "--headless"]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_installed_package_says_where_the_demo_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "EXAMPLES", Path("/nowhere"))

    assert main(["demo"]) == 1
    assert "run `make demo` there" in capsys.readouterr().err
