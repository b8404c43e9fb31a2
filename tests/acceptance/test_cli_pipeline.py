"""`penstock pipeline`, as far as it can go wrong without Spark: told in a line or two, at once, before Spark is started."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock import MessageQueue
from penstock.cli import pipeline_queries
from penstock.cli.pipeline_queries import Screen, document, line, sum_up, told_to_stop
from penstock.durations import SECOND
from penstock.pipeline.progress import Meter, Report
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock

SERVER = ("--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "penstock pipeline: the following arguments are required: COMMAND"),
        (["archiv"], 2, "penstock pipeline: unknown command 'archiv'; did you mean archive?"),
        (["archive", "--watermark", "1m"], 2, "penstock pipeline archive: unknown flag --watermark"),
        (["archive", "--interval", "fast"], 2, "penstock pipeline archive: argument --interval: 'fast' is not a duration"),
        (["archive", "--conf", "x"], 2, "penstock pipeline archive: argument --conf: 'x' is not name=value"),
        (["archive", "--lake=", *SERVER], 2, "penstock: --lake is '', wanted a directory"),
        (["archive", "--data-dir", "nowhere"], 2, "penstock: the data directory is 'nowhere', wanted a directory that exists"),
        (["archive", *SERVER], 4, "penstock: no connection to the server at http://127.0.0.1:1"),
        (["run", "--endpoint", "http://127.0.0.1:1"], 4, "penstock: no connection to the server at http://127.0.0.1:1"),
        (["archive"], 4, "penstock: no connection to the server at http://127.0.0.1:8085"),
        (["run", "--master", "local", "--remote", "sc://x"], 2, "penstock pipeline run: argument --remote: not allowed with"),
        (["compact", "--target-size", "big"], 2, "penstock pipeline compact: argument --target-size: 'big' is not a size"),
        (["show"], 1, "penstock: there are no metrics in the lake"),
        (["show", "--minutes", "0"], 2, "penstock pipeline show: argument --minutes: '0' is not a whole number"),
        (["init"], 2, "penstock pipeline init: the following arguments are required: DIR"),
        (["init", "project", "--data-dir", "."], 2, "penstock: the project reads from a server, and a data directory is meant"),
        (["init", "9lives", *SERVER], 2, "penstock: name is '9lives', wanted"),
        (["replay"], 2, "penstock pipeline replay: the following arguments are required: STREAM"),
        (["replay", "orders"], 2, "penstock: --to is missing, wanted the stream to publish to"),
        (["replay", "a", "--to", "b", "--speed", "fast"], 2, "penstock: the speed is 'fast', wanted full, original, or a factor"),
        (
            ["replay", "a", "--to", "b", "--since", "soon"],
            2,
            "penstock pipeline replay: argument --since: 'soon' is neither a time",
        ),
        (["replay", "a", "--to", "b", "--from-offset", "5", "--to-offset", "5"], 2, "penstock: the range is empty"),
        (
            ["replay", "a", "--to", "b", "--since", "1h", "--until", "2h"],
            2,
            "penstock: the range is empty: since is not before until",
        ),
        (["replay", "a", "--to", "b", "--replay-id", "a/b"], 2, "penstock: the replay id is 'a/b', wanted"),
        (["replay", "a", "--to", "b", "--where", " "], 2, "penstock: the condition is empty"),
        (
            ["replay", "a", "--to", "b", "--storage", "disk"],
            2,
            "penstock pipeline replay: unknown storage 'disk'; known: auto, log, lake",
        ),
        (["replay", "a", "--to", "a", *SERVER], 2, "penstock: will not replay a into itself without being asked to"),
        (["replay", "a", "--to", "b", "--data-dir", "."], 2, "penstock: a replay writes, and a data directory can only be read"),
    ],
)
def test_what_is_wrong_is_told_before_spark_is_started(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = Penstock(tmp_path)("pipeline", *words)

    assert (done.code, done.out) == (code, "")
    assert done.err.startswith(said)
    assert len(done.err.splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_is_missing_is_told_before_spark_is_started(tmp_path: Path) -> None:
    with LocalServer() as server:
        MessageQueue(broker=server.broker).register_topic("orders")
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url})
        for words in (
            ["orders", "--to", "gone"],
            ["gone", "--to", "orders"],
            ["gone", "--dry-run"],
            ["orders", "--to", "queue:gone"],
        ):
            done = penstock("pipeline", "replay", *words)
            assert (done.code, done.out) == (3, "")
            assert "gone" in done.err
        wrong = penstock("pipeline", "archive", "--streams", "(")

    assert (wrong.code, wrong.out) == (2, "")
    assert "wanted a regular expression" in wrong.err


@pytest.mark.parametrize("words", [["archive"], ["compact"], ["replay", "a", "--to", "b"]])
def test_a_missing_java_is_told_with_what_to_install(tmp_path: Path, words: list[str]) -> None:
    with LocalServer() as server:
        penstock = Penstock(tmp_path, {"JAVA_HOME": str(tmp_path / "java"), "PENSTOCK_SERVER": server.url})
        done = penstock("pipeline", *words)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"penstock: Spark needs Java, and JAVA_HOME is {tmp_path}/java, where there is no bin/java\n")
    assert "openjdk-17-jre-headless" in done.err


def test_help_starts_nothing_and_loads_nothing(tmp_path: Path) -> None:
    code = "import sys\nfrom penstock.cli.main import main\ntry: main(['pipeline', '{}', '--help'])\nfinally: print(*sys.modules)"
    for verb in ("archive", "replay", "show"):
        done = subprocess.run([sys.executable, "-c", code.format(verb)], capture_output=True, text=True, check=False, timeout=60)
        assert {"pyspark", "pyarrow", "pandas", "penstock.client"} & set(done.stdout.split()) == set()


def meter(rows: int, lag: int | None = None) -> Meter:
    found = Meter("archive-messages", 0)
    found.add(Report(batch=3, at="2026-01-01T00:00:00Z", rows=rows, seconds=0.25, lag=lag, state=0), SECOND)
    return found


def test_a_line_says_how_far_a_query_is() -> None:
    assert line(Meter("archive", 0), 0) == "archive               waits for its first batch"
    assert line(meter(1_500, 20), 2 * SECOND) == "archive-messages      1,500 rows  750/s  20 behind  batch 3 took 250 ms"
    assert line(meter(0), 2 * SECOND) == "archive-messages      0 rows  0/s"


def test_a_document_says_the_same() -> None:
    assert document(meter(1_500, 20), 2 * SECOND) == {
        "query": "archive-messages",
        "rows": 1_500,
        "batches": 1,
        "rate": 750.0,
        "batch": 3,
        "batch_rows": 1_500,
        "batch_seconds": 0.25,
        "lag": 20,
    }
    assert document(Meter("archive", 0), 0)["batch"] is None


def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0]
    monkeypatch.setattr(pipeline_queries, "monotonic", lambda: now[0])
    with Screen(is_json=False) as screen:
        for now[0] in (SECOND, 6 * SECOND, 7 * SECOND, 12 * SECOND):
            screen.show([meter(10)])

    assert capsys.readouterr().err.splitlines() == ["archive-messages      10 rows  1.7/s  batch 3 took 250 ms"], (
        "no news, no line"
    )


def test_programs_get_a_document_for_each_batch_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(is_json=True) as screen:
        for _ in range(3):
            screen.show([meter(10), Meter("other", 0)])
    sum_up([meter(10)], 2 * SECOND, is_json=True)
    first, last = capsys.readouterr().out.splitlines()

    assert '"batch": 3' in first
    assert last == '{"done": {"archive-messages": {"rows": 10, "batches": 1}}, "seconds": 2.0}'


def test_the_first_signal_asks_to_stop_and_leaves_no_handler_behind() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with told_to_stop() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()

    assert signal.getsignal(signal.SIGTERM) is before
    assert isinstance(stop, threading.Event)
