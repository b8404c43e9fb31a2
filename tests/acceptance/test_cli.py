"""The installed command `penstock`, as a person or a script meets it: a subprocess, its two outputs, its exit code."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli.main import COMMANDS
from tests.acceptance.command import Penstock
from tests.docs.pages import ROOT

PENSTOCK = Path(sys.executable).with_name("penstock")
SECRET = re.compile(r"pk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class Run(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def run(
    folder: Path, *arguments: str, command: tuple[str | Path, ...] = (PENSTOCK,), environment: Mapping[str, str] | None = None
) -> Run:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=inherited | {"COLUMNS": "130", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def test_help_and_version_are_printed_where_they_are_asked_for(folder: Path) -> None:
    version = run(folder, "--version")
    assert (version.code, version.err) == (0, "")
    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", version.out)
    assert run(folder, "--version", command=(sys.executable, "-m", "penstock")) == version

    shown = run(folder, "--help")
    assert (shown.code, shown.err) == (0, "")
    assert all(command in shown.out for command in ("serve", "config", "token"))


def test_a_call_without_a_command_shows_the_help_as_a_mistake(folder: Path) -> None:
    shown = run(folder)

    assert (shown.code, shown.out) == (2, "")
    assert shown.err == run(folder, "--help").out


def test_help_loads_no_library_of_the_server(folder: Path) -> None:
    report = "import sys\nfrom penstock.cli.main import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    loaded = set(run(folder, "-c", report, command=(sys.executable,)).out.split())

    assert "penstock.cli.main" in loaded
    assert loaded & {"aiohttp", "grpc", "google.protobuf", "asyncio", "tomllib", "penstock.access", "penstock.config"} == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serv", "penstock: unknown command 'serv'; did you mean serve?"),
        ("zzz", "penstock: unknown command 'zzz'"),
        ("serve --prot 1", "penstock serve: unknown flag --prot; did you mean --port?"),
        ("serve --grpcport=1", "penstock serve: unknown flag --grpcport=1; did you mean --grpc-port?"),
        ("serve --mem", "penstock serve: unknown flag --mem"),
        ("serve now", "penstock serve: unknown argument now"),
        ("serve --port", "penstock serve: argument --port: expected one argument"),
        ("serve --port 70000", "penstock: --port is '70000', wanted a whole number from 0 to 65535"),
        ("serve --host 0.0.0.0", "penstock: --host is '0.0.0.0': others could reach this server"),
        ("serve --memory --data-dir d", "penstock: --memory and --data-dir exclude each other"),
        (
            "config --config missing.toml",
            "penstock: cannot read the configuration file 'missing.toml': No such file or directory",
        ),
        ("token", "penstock token: the following arguments are required: COMMAND"),
        ("token creat", "penstock token: unknown command 'creat'; did you mean create?"),
        ("token create", "penstock token create: the following arguments are required: --name"),
        ("token create --name x --verbs push", "penstock: --verbs is 'push', wanted a list, each 'publish' or 'consume'"),
        ("token create --name x --expires soon", "penstock: --expires is 'soon', wanted a duration"),
        ("token create --name x --expires 0", "penstock: --expires is '0', wanted a duration"),
        ("token create --name x --project a/b", "penstock: project is 'a/b', wanted"),
        ("token revoke xyz", "penstock: that is not the id of a token"),
        ("--json topic list", "penstock: unknown flag --json"),
        ("worker app:worker --concurrency many", "penstock worker: argument --concurrency: 'many' is not a whole number"),
        ("publish", "penstock publish: the following arguments are required: TOPIC\n"),
    ],
)
def test_a_wrong_call_is_told_in_a_line_or_two(folder: Path, line: str, said: str) -> None:
    code, out, err = Penstock(folder)(*line.split())

    assert (code, out) == (2, "")
    assert err.startswith(said)
    assert len(err.splitlines()) <= 2
    assert list(folder.iterdir()) == []  # and nothing was done


def test_every_command_is_on_its_page_and_answers_to_help(folder: Path) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"`penstock {command.name}" in page
        shown = Penstock(folder)(command.name, "--help")
        assert (shown.code, shown.err) == (0, "")
        assert command.sentence in shown.out


def test_config_shows_every_setting_with_its_origin(folder: Path) -> None:
    (folder / "penstock.toml").write_text('[server]\nport = 3\ngrpc_port = 4\n[log]\nlevel = "debug"\n[limits]\nrate_limit = 5\n')
    arguments = ("config", "--port", "1", "--push-allow", "a.example,b.example", "--push-allow", "c.example")
    environment = {"PENSTOCK_PORT": "2", "PENSTOCK_GRPC_PORT": "22"}

    plain = run(folder, *arguments, environment=environment)
    assert (plain.code, plain.err) == (0, "")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in plain.out.splitlines()}
    assert rows["port"] == ["1", "--port"]
    assert rows["grpc_port"] == ["22", "PENSTOCK_GRPC_PORT"]
    assert rows["log_level"] == ["debug", "penstock.toml: [log] level"]
    assert rows["push_allow"] == ["a.example,b.example,c.example", "--push-allow"]
    assert rows["host"] == ["127.0.0.1", "default"]

    found = json.loads(run(folder, *arguments, "--json", environment=environment).out)
    assert found["port"] == {"value": 1, "origin": "--port"}
    assert found["rate_burst"] == {"value": 5, "origin": "default"}
    assert found["data_dir"] == {"value": "penstock-data", "origin": "default"}
    assert len(found) == len(rows) - 1


def test_a_file_elsewhere_is_read_with_its_paths_beside_it(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "p.toml").write_text('[storage]\ndata_dir = "data"\n')

    for shown in (
        run(folder, "config", "--config", "etc/p.toml", "--json"),
        run(folder, "config", "--json", environment={"PENSTOCK_CONFIG": "etc/p.toml"}),
    ):
        assert json.loads(shown.out)["data_dir"] == {"value": "etc/data", "origin": "etc/p.toml: [storage] data_dir"}


def test_the_life_of_a_token(folder: Path) -> None:
    assert run(folder, "token", "list") == Run(0, "", "no tokens; `penstock token create --name NAME` makes one\n")

    made = run(
        folder,
        "token",
        "create",
        "--name",
        "ci",
        "--project",
        "acme",
        "--verbs",
        "publish,consume",
        "--names",
        "orders-*,audit",
        "--expires",
        "30d",
    )
    assert made.code == 0
    secret = made.out.strip()
    found = SECRET.fullmatch(secret)
    assert found is not None
    assert secret not in made.err
    file = folder / "penstock-data" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret.split("_", 2)[2] not in file.read_text()

    shown = run(folder, "token", "list")
    assert re.search(
        rf"^{found[1]}  ci    acme     consume,publish  orders-\*,audit  \d{{4}}-\d\d-\d\d \d\d:\d\d UTC$",
        shown.out,
        re.MULTILINE,
    )
    (token,) = json.loads(run(folder, "token", "list", "--json").out)
    assert (token["id"], token["project"], token["verbs"]) == (found[1], "acme", ["consume", "publish"])
    assert "digest" not in token

    assert run(folder, "token", "revoke", found[1]) == Run(0, f"revoked {found[1]}\n", "")
    assert json.loads(run(folder, "token", "list", "--json").out) == []
    again = run(folder, "token", "revoke", found[1])
    assert (again.code, again.out) == (3, "")
    assert found[1] in again.err


def test_the_project_of_a_token_is_not_the_setting_of_that_name(folder: Path) -> None:
    (folder / "penstock.toml").write_text('[server]\nproject = "ours"\n')
    run(folder, "token", "create", "--name", "everywhere")
    run(folder, "token", "create", "--name", "theirs", "--project", "theirs")

    assert {token["project"] for token in json.loads(run(folder, "token", "list", "--json").out)} == {None, "theirs"}


def test_a_leaked_secret_is_revoked_as_it_was_found_and_never_repeated(folder: Path) -> None:
    made = json.loads(
        run(folder, "token", "create", "--name", "é \u2014 x", "--json", environment={"PYTHONIOENCODING": "ascii"}).out
    )
    secret = made["secret"]

    for code in (0, 3):
        done = run(folder, "token", "revoke", secret)
        assert done.code == code
        assert secret not in done.out + done.err
    broken = run(folder, "token", "revoke", secret[:-1])
    assert broken.code == 2
    assert secret[:-1] not in broken.err


def test_a_damaged_token_file_is_told_and_left_alone(folder: Path) -> None:
    file = folder / "keys.json"
    file.write_text("{")
    for words in (["list"], ["create", "--name", "x"], ["revoke", "a0b61e67b45f"]):
        code, out, err = run(folder, "token", *words, "--token-file", "keys.json")
        assert (code, out) == (1, "")
        assert err.startswith("penstock: the token file 'keys.json' is damaged: ")
        assert len(err.splitlines()) == 2
    assert file.read_text() == "{"


def test_a_folder_that_cannot_be_made_is_told(folder: Path) -> None:
    (folder / "file").touch()
    code, _, err = run(folder, "token", "create", "--name", "x", "--data-dir", "file")

    assert code == 1
    assert "token file" in err
    assert len(err.splitlines()) <= 2


# Runs the command after a line that changes something in this process.
CHANGED = "import sys, types\n{line}\nfrom penstock.cli.main import main\nsys.exit(main(sys.argv[1:]))"


def changed(folder: Path, line: str, *arguments: str) -> Run:
    return run(folder, "-c", CHANGED.format(line=line), *arguments, command=(sys.executable,))


FAKE_SERVER = "server = sys.modules['penstock.server'] = types.ModuleType('penstock.server')\n"


def test_serve_hands_the_settings_to_the_server_and_its_exit_code_back(folder: Path) -> None:
    line = f"{FAKE_SERVER}server.run = lambda settings, **_: print(settings.port, settings.memory) or 7"

    assert changed(folder, line, "serve", "--memory", "--port", "0") == Run(7, "0 True\n", "")


@pytest.mark.parametrize("library", ["aiohttp", "grpc"])
def test_a_missing_library_is_told_with_what_to_install(folder: Path, library: str) -> None:
    blocked = (
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'penstock.server': raise ModuleNotFoundError(name={library!r})\n"
        "sys.meta_path.insert(0, Finder())"
    )
    done = changed(folder, blocked, "serve")

    assert (done.code, done.out) == (1, "")
    assert (
        done.err == f"penstock: the server needs the library {library}\ninstall what it needs: pip install 'penstock[server]'\n"
    )


def test_an_error_that_nobody_expected_is_a_sentence_and_no_traceback(folder: Path) -> None:
    line = f"{FAKE_SERVER}def fail(settings, **_): raise TypeError('no such thing')\nserver.run = fail"
    done = changed(folder, line, "serve")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("penstock: this should not happen: TypeError: no such thing\n")
    assert "Traceback" not in done.err


def test_an_interrupt_is_quiet(folder: Path) -> None:
    line = (
        f"{FAKE_SERVER}import threading\n"
        "def wait(settings, **_): print('up', flush=True); threading.Event().wait()\nserver.run = wait"
    )
    with subprocess.Popen(
        [sys.executable, "-c", CHANGED.format(line=line), "serve"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_leaves_is_no_error(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [PENSTOCK, "config"], cwd=folder, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")
