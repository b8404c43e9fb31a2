"""`penstock backup`, `restore` and `verify`, as a person or a script meets them."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    """On a directory with a topic, two messages and a token."""
    (tmp_path / "data").mkdir()
    penstock = Penstock(tmp_path, {"PENSTOCK_DATA_DIR": "data"})
    penstock.good("topic create orders")
    penstock.good("publish orders one two")
    penstock.environment["PENSTOCK_TOKEN"] = penstock.good("token create --name operator --data-dir data").out.strip()
    return penstock


def test_a_directory_is_backed_up_restored_and_verified(penstock: Penstock) -> None:
    what = "intact: 1 stream, 2 messages (6 B), 3 events, 0 cursors, 1 token\n"
    assert penstock.good("backup data copy").out == f"backed up data to copy\n{what}"
    assert penstock.good("verify copy").out == what
    restored = "restored copy to new; start with: penstock serve --data-dir new\n"
    assert penstock.good("restore copy new").out == restored + what
    assert penstock.good("topic list --data-dir new --json").json[0]["name"] == "orders"
    assert penstock.good("backup data more --no-verify").out == "backed up data to more\n"


def test_a_server_that_runs_is_backed_up_beside_it_and_by_its_address(penstock: Penstock) -> None:
    with LocalServer(data_dir=penstock.folder / "data", auth="token") as server:
        assert penstock("backup", "data", "beside").code == 0
        assert penstock.good(f"backup --server {server.url} sent").out.startswith(
            f"backed up {server.url} to sent\nintact: 1 stream, 2"
        )
        del penstock.environment["PENSTOCK_TOKEN"]
        refused = penstock("backup", "--server", server.url, "refused")
    assert (refused.code, refused.out) == (1, "")
    assert "--token" in refused.err
    assert sorted(path.name for path in penstock.folder.iterdir()) == ["beside", "data", "sent"]


def test_programs_get_json(penstock: Penstock) -> None:
    numbers = {"streams": 1, "messages": 2, "events": 3, "bytes": 6, "cursors": 0, "tokens": 1, "problems": []}
    assert penstock.good("backup data a --json").json == {"directory": "a", **numbers}
    assert penstock.good("restore a b --json").json == {"directory": "b", **numbers}
    assert penstock.good("verify b --json").json == {"directory": "b", **numbers}
    assert penstock.good("backup data c --json --no-verify").json == {"directory": "c"}


def test_damage_is_named_and_not_restored(penstock: Penstock) -> None:
    shutil.copytree(penstock.folder / "data", penstock.folder / "bad")
    with sqlite3.connect(penstock.folder / "bad" / "penstock.db") as database:
        database.execute("UPDATE chunks SET body = zeroblob(length(body))")
    database.close()

    verified = penstock("verify", "bad")
    assert (verified.code, verified.out) == (1, "read: 0 streams, 0 messages (0 B), 3 events, 0 cursors, 1 token\n")
    assert verified.err.startswith("damaged: ")
    assert "offsets 0 to 1 of stream" in verified.err
    restored = penstock("restore", "bad", "new")
    assert (restored.code, restored.out) == (1, "")
    assert "offsets 0 to 1 of stream" in restored.err
    assert not (penstock.folder / "new").exists()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("backup copy", "expected SOURCE and TARGET, or a server and TARGET"),
        ("backup --server http://127.0.0.1:1 data copy", "expected SOURCE and TARGET, or a server and TARGET"),
        ("backup --server http://127.0.0.1:1 --token-file tokens.json copy", "--token-file is for a SOURCE"),
        ("backup nothing copy", "path is 'nothing', expected the data directory of a broker"),
        ("backup data data", "target is 'data', expected a directory that does not exist or is empty"),
        ("restore nothing copy", "path is 'nothing', expected the data directory of a broker"),
        ("verify nothing", "path is 'nothing', expected the data directory of a broker"),
    ],
)
def test_a_wrong_call_writes_nothing(penstock: Penstock, line: str, text: str) -> None:
    done = penstock(*line.split())
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert not (penstock.folder / "copy").exists()
