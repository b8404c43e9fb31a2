"""`python -m proof` as somebody without a terminal sees it: a subprocess, plain text, an exit code."""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.extras import how_to_install
from proof.pipeline_chapter import PAGE
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(420)]

STEPS = [
    "1. Publish",
    "2. Fan out",
    "3. Priorities",
    "4. A failing consumer, and retries with backoff",
    "5. A dead letter",
    "6. Redrive",
    "7. The whole life of that message",
    "8. Ordering keys",
    "9. A worker that goes silent",
    "10. Crash: kill -9, and recovery",
    "11. The server: penstock serve, and plain HTTP",
    "12. Work queues with synap-sdk",
    "13. Topics with Google's own client",
    "14. kill -9 of the server, under load",
    "15. The client: kill -9 of the server while events stream",
    "16. A worker",
    "17. The hub: one publishes, many hear it at once",
    "18. A client was away: it gets exactly what it missed",
    "19. Hub topics and the broker's topics are bound both ways",
    "20. A durable subscription outlives its client, and kill -9 of the server",
    "21. The router: from a queue to an HTTP target",
    "22. A target fails: its circuit breaker opens",
    "23. The target recovers, and so does the pool",
    "24. A refusal is a dead letter, and can be redriven",
    "25. The pipeline: Spark beside a running server",
    "26. The pipeline, killed and started again: every row exactly once",
    "27. Metrics of the last minute",
]

# Runs the demo after a line that breaks something in this process.
BROKEN = "import runpy, sys\n{line}\nrunpy.run_module('proof', run_name='__main__', alter_sys=True)"

# Runs the server's steps alone, where some modules cannot be found.
SERVER_ONLY = "import pathlib, sys\n{line}\nfrom proof.screen import Screen\nfrom proof.server_chapter import ServerDemo\n"
SERVER_ONLY += "ServerDemo(Screen(), pathlib.Path(sys.argv[1])).run()"

# Runs the client's steps alone, after a line that breaks something in this process.
CLIENT_ONLY = """
import pathlib, sys
from proof import client_chapter
from proof.screen import ClaimFailed, Screen
{line}
try:
    client_chapter.ClientDemo(Screen(), pathlib.Path(sys.argv[1])).run()
except ClaimFailed as failure:
    sys.exit(str(failure))
"""


class Run(NamedTuple):
    code: int
    out: str
    err: str
    left_behind: list[str]


def run(folder: Path, *arguments: str, **environment: str) -> Run:
    inherited = {name: value for name, value in os.environ.items() if name not in {"FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"}}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT / "examples"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        cwd=folder,
    )
    return Run(done.returncode, done.stdout, done.stderr, [path.name for path in folder.iterdir()])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with (shared / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes that test, the first runs the demo for all
        kept = shared / "demo.json"
        if not kept.exists():
            # An output that can hold ASCII alone is the poorest there is; what works there works everywhere.
            done = run(tmp_path_factory.mktemp("demo"), "-m", "proof", PYTHONIOENCODING="ascii", COLUMNS="200")
            kept.write_text(json.dumps(done))
        return Run(*json.loads(kept.read_text()))


def test_the_demo_succeeds_with_every_step_in_order_and_nothing_on_stderr(demo: Run) -> None:
    assert (demo.code, demo.err) == (0, "")
    headings = [line.rstrip(" -") for line in demo.out.splitlines() if re.match(r"\d+\. ", line)]
    assert headings == STEPS


def test_every_step_proves_something_and_the_last_line_counts_it(demo: Run) -> None:
    parts = re.split(r"^\d+\. .*$", demo.out, flags=re.MULTILINE)[1:]
    assert [part.count("  proved ") > 0 for part in parts] == [True] * len(STEPS)
    last = demo.out.strip().splitlines()[-1]
    assert re.match(rf"{demo.out.count('  proved ')} claims checked, all held, in \d+\.\d s", last), last


def test_no_confirmed_message_is_lost_in_the_crash(demo: Run) -> None:
    found = re.search(r"proved ([\d,]+) confirmed, 0 lost", demo.out)
    assert found is not None
    assert int(found[1].replace(",", "")) >= 10_000


def test_no_confirmed_message_is_lost_when_the_server_is_killed(demo: Run) -> None:
    assert "proved 8,000 confirmed over the network, 0 lost" in demo.out
    assert len(re.findall(r"  killed when [\d,]+ were confirmed$", demo.out, flags=re.MULTILINE)) == 2


def test_what_spark_archived_is_there_once_though_it_was_killed(demo: Run) -> None:
    numbers = re.search(r"published +in the lake +missing +doubled +unknown *\n(.*)", step(demo, 26))
    assert numbers is not None
    published, archived, *wrong = numbers[1].replace(",", "").split()
    assert (published, wrong) == (archived, ["0", "0", "0"])
    assert int(published) > 100
    assert "orders" in step(demo, 27)


def step(demo: Run, number: int) -> str:
    return re.split(r"^\d+\. .*$", demo.out, flags=re.MULTILINE)[number]


def test_what_the_client_was_told_is_safe_comes_once_stored_and_in_order(demo: Run) -> None:
    shown = step(demo, 15)
    numbers = re.search(r"confirmed +received +lost +stored twice +delivered again +out of order *\n(.*)", shown)
    assert numbers is not None
    confirmed, received, lost, twice, again, out_of_order = numbers[1].replace(",", "").split()
    assert (confirmed, received, lost, twice, out_of_order) == ("4000", "4000", "0", "0", "0")
    assert int(again) < 2_000  # only what was acked in the last moment before the kill
    assert "proved 4,000 confirmed to the client, 0 lost" in shown
    killed = re.search(r"killed when ([\d,]+) were confirmed and ([\d,]+) received", shown)
    assert killed is not None
    assert 2_000 <= int(killed[1].replace(",", "")) < 4_000


def test_a_task_that_failed_twice_succeeds_and_its_whole_life_is_shown(demo: Run) -> None:
    shown = step(demo, 16)
    runs = re.findall(r"^  (mail|charge|invoice) +(\d) +(\w+)", shown, flags=re.MULTILINE)
    assert [run[1:] for run in runs if run[0] == "mail"] == [("1", "succeeded")]
    assert [run[1:] for run in runs if run[0] == "charge"] == [("1", "retried"), ("2", "retried"), ("3", "succeeded")]
    assert [run[1:] for run in runs if run[0] == "invoice"] == [("1", "retried"), ("2", "dead")]
    life = re.findall(r"^  (\d+\.\d\d) s +(\w+) +charges", shown, flags=re.MULTILINE)
    assert [kind for _, kind in life] == ["published", "leased", "nacked", "leased", "nacked", "leased", "acked"]
    at = [float(seconds) for seconds, _ in life]
    assert at == sorted(at)
    assert at[3] - at[2] >= 0.18
    assert at[5] - at[4] >= 0.38


def test_the_router_delivers_opens_a_breaker_recovers_and_redrives_a_dead_letter(demo: Run) -> None:
    assert "OPEN" in step(demo, 22)
    assert "proved while it is open no call reaches the target: 0 in 1 s" in step(demo, 22)
    assert re.search(r"proved all \d+ orders were delivered, none was lost", step(demo, 23))
    life = re.findall(r"^  \d+\.\d\d s +(\w+)", step(demo, 24), flags=re.MULTILINE)
    assert life == ["published", "leased", "attempted", "dead_lettered", "redriven", "leased", "attempted", "acked"]


def test_the_demo_ends_with_how_to_start_a_server(demo: Run) -> None:
    assert "penstock serve" in "\n".join(demo.out.strip().splitlines()[-5:])


def test_without_a_terminal_the_demo_is_plain_text_in_80_columns(demo: Run) -> None:
    assert "\x1b" not in demo.out
    assert [line for line in demo.out.splitlines() if len(line) > 80] == []


def test_the_demo_leaves_nothing_behind(demo: Run) -> None:
    assert demo.left_behind == [PAGE]


def test_a_claim_that_does_not_hold_ends_the_demo_loudly(tmp_path: Path) -> None:
    line = "import penstock; penstock.MessageQueue.pull = lambda *args, **options: []"
    result = run(tmp_path, "-c", BROKEN.format(line=line))

    assert result.code == 1
    assert "FAILED every subscription got every message" in result.out
    assert "It failed" in result.out.strip().splitlines()[-2] + result.out.strip().splitlines()[-1]
    assert result.left_behind == []


# What the demo publishes with; a line of code that stands before one of those below.
PUBLISH = "publish = client_chapter.Topic.publish_message; client_chapter.Topic.publish_message = lambda *a, **k: "


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("client_chapter.PATIENCE = 0.01", "4,000 events are confirmed and received within 0.01 s"),
        # The last of the copies may still be on their way when the demo looks, and are then missed first.
        (PUBLISH + "(publish(*a, **k), publish(*a, **k))[1]", "was stored once|4,000 confirmed to the client, 0 lost"),
        (
            PUBLISH + "lost(publish(*a, **k))\nasync def lost(it): return await it + ' or not'",
            "4,000 confirmed to the client, 0 lost",
        ),
    ],
    ids=["too slow", "stored twice", "lost"],
)
def test_a_promise_of_the_client_that_does_not_hold_ends_the_demo_loudly(line: str, failed: str, tmp_path: Path) -> None:
    result = run(tmp_path, "-c", CLIENT_ONLY.format(line=line), str(tmp_path / "data"))

    assert result.code == 1
    assert re.search(failed, result.err)


def test_an_error_of_the_broker_ends_the_demo_loudly(tmp_path: Path) -> None:
    line = "import penstock; penstock.MessageQueue.register_topic = lambda *args: None"
    result = run(tmp_path, "-c", BROKEN.format(line=line))

    assert result.code == 1
    assert "It failed: TopicNotFound: Topic not found: orders" in result.out


def test_without_rich_the_demo_says_in_one_line_which_extra_to_install(tmp_path: Path) -> None:
    result = run(tmp_path, "-c", BROKEN.format(line="sys.modules['rich'] = sys.modules['rich.console'] = None"))

    assert (result.code, result.out) == (1, "")
    assert len(result.err.strip().splitlines()) == 1
    assert how_to_install("demo") in result.err


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        (["aiohttp"], how_to_install("server")),
        (["google.cloud.pubsub_v1", "synap_sdk"], "pip install google-cloud-pubsub"),
        (["google.cloud.pubsub_v1", "synap_sdk"], "pip install synap-sdk"),
    ],
)
def test_what_is_not_installed_is_left_out_and_named(missing: list[str], advice: str, tmp_path: Path) -> None:
    hidden = (
        f"import importlib.util as u; find = u.find_spec; u.find_spec = lambda name: None if name in {missing} else find(name)"
    )
    result = run(tmp_path, "-c", SERVER_ONLY.format(line=hidden), str(tmp_path / "data"))

    assert (result.code, result.err) == (0, "")
    assert advice in " ".join(result.out.split())
