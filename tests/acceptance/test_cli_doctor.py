"""`penstock doctor`, as a person or a script meets it."""

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock import MessageQueue
from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock
from tests.ports import free_port

PORTS = ("port", "grpc_port", "native_port")


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    """With ports that nobody has, whatever else runs on this machine."""
    return Penstock(tmp_path, {f"PENSTOCK_{name.upper()}": str(free_port()) for name in PORTS})


def ports_of(server: LocalServer) -> dict[str, str]:
    return {f"PENSTOCK_{name.upper()}": str(getattr(server.server, name)) for name in PORTS}


def examined(penstock: Penstock, *words: str, code: int = 0) -> dict[str, Any]:
    """The findings by their check."""
    done = penstock("doctor", "--json", *words)
    assert (done.code, done.err) == (code, "")
    levels = [one["level"] for one in done.json["findings"]]
    assert (done.json["problems"], done.json["warnings"]) == (levels.count("problem"), levels.count("warning"))
    return {one["check"]: one for one in done.json["findings"]}


def test_a_sound_installation_has_no_problem(penstock: Penstock) -> None:
    found = examined(penstock)

    assert {"python", "extra server", "java", "open files", "data directory", "disk space", "disk speed", "clock"} <= found.keys()
    assert [one["text"] for check, one in found.items() if check.startswith("port ")] == [
        "free for HTTP",
        "free for gRPC",
        "free for clients",
    ]
    assert found["server"]["text"] == "none runs here"
    assert list(penstock.folder.iterdir()) == []  # it only looked

    shown = penstock.good("doctor")
    assert re.search(r"^ok       python           Python 3\.\d+\.\d+ at ", shown.out, re.MULTILINE)
    assert re.search(r"^ok       server           none runs here\n +-> penstock serve$", shown.out, re.MULTILINE)
    assert shown.out.splitlines()[-1].startswith("0 problems, ")


def test_a_running_server_is_known_by_its_ports(server: LocalServer, tmp_path: Path) -> None:
    found = examined(Penstock(tmp_path, ports_of(server)))

    for name in PORTS:
        one = found[f"port {getattr(server.server, name)}"]
        assert one["level"] == "ok"
        assert re.search(rf" of a Penstock server, [\d.]+, process {os.getpid()} ", one["text"])
    assert re.fullmatch(
        r"http://127.0.0.1:\d+ answers in .*: version [\d.]+, messages are kept in memory only", found["server"]["text"]
    )
    assert found["server's clock"]["level"] == "ok"


def test_a_port_that_something_else_holds_is_a_problem(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        taken = Penstock(penstock.folder, {**penstock.environment, "PENSTOCK_GRPC_PORT": str(port)})
        one = examined(taken, code=1)[f"port {port}"]
        shown = taken("doctor")

    assert (one["level"], one["text"].startswith(f"held by process {os.getpid()} (")) == ("problem", True)
    assert one["hint"].endswith("take another port with --grpc-port")
    assert (shown.code, shown.err) == (1, "")
    assert "\n1 problem, " in shown.out


def test_ports_here_do_not_matter_for_a_server_elsewhere(penstock: Penstock, server: LocalServer) -> None:
    found = examined(penstock, "--server", server.url)
    assert found["server"]["level"] == "ok"
    assert not [check for check in found if check.startswith("port ")]


def test_a_server_that_cannot_be_reached_is_a_problem(penstock: Penstock, subtests: pytest.Subtests) -> None:
    for address, said in (
        ("http://127.0.0.1:1", "refused"),
        ("penstock://127.0.0.1:1", "refused"),
    ):
        with subtests.test(address=address):
            one = examined(penstock, "--server", address, code=1)["server"]
            assert one["level"] == "problem"
            assert said in one["text"]
            assert one["hint"]


def test_an_address_that_cannot_be_one_is_refused(penstock: Penstock) -> None:
    done = penstock("doctor", "--server", "http://127.0.0.1:99999")
    assert done.code == 2
    assert "with a port from 1 to 65535" in done.err


def test_a_program_that_is_no_penstock_is_no_server(penstock: Penstock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        found = examined(penstock, "--server", f"http://127.0.0.1:{stranger.getsockname()[1]}", code=1)
        thread.join()
    assert found["server"]["level"] == "problem"
    assert "not a Penstock server" in found["server"]["text"]


def test_tokens_are_tried(penstock: Penstock, tmp_path: Path) -> None:
    file = tmp_path / "keys" / "tokens.json"
    secret = Keyring(file).create("doctor", SystemClock().now())
    with LocalServer(auth="token", token_file=file) as server:
        named = Penstock(tmp_path, {**penstock.environment, "PENSTOCK_SERVER": server.url})
        assert examined(named, code=1)["token"]["level"] == "problem"
        wrong = examined(named, "--token", f"{secret[:-1]}{'a' if secret[-1] != 'a' else 'b'}", code=1)
        assert (wrong["server"]["level"], wrong["token"]["level"]) == ("ok", "problem")
        right = examined(Penstock(tmp_path, {**named.environment, "PENSTOCK_TOKEN": secret}))
        assert (right["token"]["level"], right["token"]["text"]) == ("ok", "accepted, for project penstock")
    assert secret not in str(wrong) + str(right)


def test_a_wrong_setting_is_a_problem_and_the_rest_is_still_looked_at(penstock: Penstock) -> None:
    (penstock.folder / "penstock.toml").write_text("[server]\nport = 'x'\n")
    found = examined(Penstock(penstock.folder, {"PENSTOCK_SERVER": "http://127.0.0.1:1"}), code=1)
    assert (found["settings"]["level"], found["data directory"]["level"]) == ("problem", "ok")
    assert "[server] port" in found["settings"]["text"]


def test_the_data_directory_is_the_one_that_is_named(penstock: Penstock) -> None:
    with MessageQueue(data_dir=penstock.folder / "data"):
        found = examined(penstock, "--data-dir", "data")
        assert found["data directory"]["text"] == f"data is in use by process {os.getpid()}"
    (penstock.folder / "file").touch()
    one = examined(penstock, "--data-dir", "file", code=1)["data directory"]
    assert (one["level"], one["hint"]) == ("problem", "choose another with --data-dir")
