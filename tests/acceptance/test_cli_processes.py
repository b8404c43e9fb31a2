"""Every command once well and once badly as a process of its own, as a shell calls it."""

from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from tests.acceptance.command import Penstock

GONE = "--server http://127.0.0.1:1"

WELL = (
    "config --json",
    "token create --name ci",
    "topic create orders",
    "subscription create billing --topic orders",
    "snapshot create noon --subscription billing",
    "publish orders hello",
    "pull billing --json",
    "queue create tasks",
    "dlq list tasks --json",
    "explain billing",
    "top --once --interval 0.1",
    "bench --seconds 0.1 --size 10",
    "backup data copy",
    "verify copy",
    "restore copy again",
    "completion bash",
)
BADLY = (
    ("serve --port x", 2),
    ("config --config missing.toml", 2),
    ("token revoke xyz", 2),
    ("topic delete nosuch", 3),
    ("subscription show nosuch", 3),
    ("snapshot delete nosuch", 3),
    ("publish nosuch x", 3),
    ("pull nosuch", 3),
    ("queue stats nosuch", 3),
    ("dlq redrive nosuch", 3),
    ("worker nosuch:worker", 2),
    ("trace nonsense", 3),
    ("explain nosuch", 3),
    (f"top --once {GONE}", 4),
    (f"bench {GONE}", 4),
    (f"doctor {GONE}", 1),
    ("completion tcsh", 2),
    ("pipeline archive --once --data-dir nosuch", 2),
    (f"router status {GONE}", 4),
    (f"hub topics {GONE}", 4),
    ("demo --chapter nosuch", 2),
    (f"status {GONE}", 4),
    ("context use nosuch", 3),
    ("backup nosuch copy", 2),
    ("restore nosuch copy", 2),
    ("verify nosuch", 2),
)


@pytest.mark.long
def test_every_command_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    penstock = Penstock(tmp_path, {"PENSTOCK_DATA_DIR": "data"})
    for line in WELL:
        done = penstock.apart(*line.split())
        assert (done.code, bool(done.out)) == (0, True), f"{line}: {done}"

    for line, code in BADLY:
        done = penstock.apart(*line.split())
        assert (done.code, "Traceback" in done.err) == (code, False), f"{line}: {done}"
    assert {line.split()[0] for line, _ in BADLY} == {command.name for command in COMMANDS}
