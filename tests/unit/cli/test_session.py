"""Which broker a command means: flags before variables, a server before a directory, what is here last."""

import argparse
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli import contexts, session
from penstock.cli.command import Parser
from penstock.cli.session import Target, add_target, target_of
from penstock.config.load import CLIENT_VARIABLES
from penstock.errors import InvalidArgument, ServerUnreachable


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where the usual server would be: bound, so that nobody else is there, and not yet listening."""
    with socket.socket() as usual:
        usual.bind(("127.0.0.1", 0))
        monkeypatch.setattr(session, "DEFAULT_PORT", usual.getsockname()[1])
        yield usual


def parsed(line: str) -> argparse.Namespace:
    parser = Parser()
    add_target(parser)
    return parser.parse_args(line.split())


@pytest.mark.parametrize(
    ("line", "environment", "meant"),
    [
        ("--server http://a", {}, Target(server="http://a")),
        ("--data-dir d", {}, Target(data_dir="d")),
        ("--server http://a", {"PENSTOCK_SERVER": "http://b", "PENSTOCK_DATA_DIR": "e"}, Target(server="http://a")),
        ("--data-dir d", {"PENSTOCK_SERVER": "http://b", "PENSTOCK_DATA_DIR": "e"}, Target(data_dir="d")),
        ("", {"PENSTOCK_SERVER": "http://b", "PENSTOCK_DATA_DIR": "e"}, Target(server="http://b")),
        ("", {"PENSTOCK_SERVER": "", "PENSTOCK_DATA_DIR": "e"}, Target(data_dir="e")),
        ("--server a --token t", {"PENSTOCK_TOKEN": "u"}, Target(server="a", token="t")),
        ("--server a", {"PENSTOCK_TOKEN": "u", "PENSTOCK_PROJECT": "p"}, Target(server="a", token="u", project="p")),
        ("--server a --project q", {"PENSTOCK_TOKEN": "", "PENSTOCK_PROJECT": "p"}, Target(server="a", project="q")),
        ("--data-dir d", {"PENSTOCK_TOKEN": "u", "PENSTOCK_PROJECT": "p"}, Target(data_dir="d", project="p")),
    ],
)
def test_the_nearest_that_is_given_counts(line: str, environment: dict[str, str], meant: Target) -> None:
    assert target_of(parsed(line), environment) == meant


def test_the_usual_server_is_taken_when_something_listens_there(port: socket.socket, empty_folder: Path) -> None:
    (empty_folder / "penstock-data").mkdir()
    port.listen()

    assert target_of(parsed(""), {}) == Target(server=session.DEFAULT_SERVER)


def test_the_usual_directory_is_taken_when_nothing_listens(port: socket.socket, empty_folder: Path) -> None:
    (empty_folder / "penstock-data").mkdir()

    assert target_of(parsed(""), {}) == Target(data_dir="penstock-data")


def test_without_either_it_says_how_to_start_a_server(port: socket.socket) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        target_of(parsed(""), {})
    assert "there is no data directory penstock-data here" in str(caught.value)
    assert "penstock serve" in str(caught.value.hint)


def test_an_empty_address_is_not_taken_for_none(port: socket.socket) -> None:
    port.listen()
    with pytest.raises(InvalidArgument, match="server is '', expected the address of a server"):
        target_of(parsed("--server="), {})


def test_a_token_for_no_server_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="--token is for a server"):
        target_of(parsed("--data-dir d --token t"), {})


def test_a_directory_is_never_made_by_looking_at_it(empty_folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="expected a directory that exists"):
        Target(data_dir="typo").client()
    assert list(empty_folder.iterdir()) == []


def test_the_settings_of_the_server_know_the_variables_of_clients() -> None:
    variables = {session.SERVER_VARIABLE, session.TOKEN_VARIABLE, session.CA_VARIABLE, contexts.CONTEXT_VARIABLE}
    assert variables == CLIENT_VARIABLES
