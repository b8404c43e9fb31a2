"""`penstock` itself, `config`, `token` and `serve`, as a person or a script meets them."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.acceptance.command import Penstock, Run

PENSTOCK = Path(sys.executable).with_name("penstock")
SECRET = re.compile(r"pk_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    return Penstock(tmp_path)


def test_the_installed_command_and_the_module_are_the_same(penstock: Penstock) -> None:
    done = subprocess.run([PENSTOCK, "--version"], capture_output=True, text=True, check=True, timeout=60)

    assert re.fullmatch(r"penstock \d+\.\d+\.\d+\n", done.stdout)
    assert penstock.apart("--version") == Run(0, done.stdout, "")
    for line in ("--version", "-V", "version"):
        assert penstock(line) == Run(0, done.stdout, "")


def test_a_call_without_a_command_shows_the_help_as_a_mistake(penstock: Penstock) -> None:
    shown = penstock.good("--help")
    assert shown.err == ""
    assert all(command in shown.out for command in ("serve", "config", "token"))

    assert penstock() == Run(2, "", shown.out)


# Runs some commands, and prints after each which modules are loaded.
LOADED = """
import os, sys
from contextlib import redirect_stdout
from penstock.cli.main import main

for line in sys.argv[1:]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            main(line.split())
        except SystemExit:
            pass
    print(*sys.modules)
"""


def loaded(penstock: Penstock, *lines: str) -> list[set[str]]:
    """The modules that are loaded in one process after each of some commands."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *lines], cwd=penstock.folder, capture_output=True, text=True, check=True, timeout=60
    )
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_a_command_loads_only_what_it_needs(penstock: Penstock) -> None:
    (penstock.folder / "data").mkdir()
    of_help, *of_pipeline = loaded(
        penstock, "--help", "pipeline archive --help", "pipeline replay --help", "pipeline show --help"
    )
    [of_list] = loaded(penstock, "topic list --data-dir data")

    server = {"uvloop", "aiohttp", "grpc", "google.protobuf", "penstock.server", "penstock.config", "tomllib"}
    assert of_help & (server | {"asyncio", "penstock.access"}) == set()
    assert "penstock.cli.main" in of_help
    for modules in of_pipeline:
        assert modules & {"pyspark", "pyarrow", "pandas", "penstock.client"} == set()
    assert of_list & server == set()
    assert "penstock.client.pubsub" in of_list


def test_config_shows_every_setting_with_its_origin(penstock: Penstock) -> None:
    (penstock.folder / "penstock.toml").write_text(
        '[server]\nport = 3\ngrpc_port = 4\n[log]\nlevel = "debug"\n[limits]\nrate_limit = 5\n'
    )
    line = "config --port 1 --push-allow a.example,b.example --push-allow c.example"
    penstock.environment |= {"PENSTOCK_PORT": "2", "PENSTOCK_GRPC_PORT": "22"}

    plain = penstock.good(line)
    assert plain.err == ""
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in plain.out.splitlines()}
    assert rows["port"] == ["1", "--port"]
    assert rows["grpc_port"] == ["22", "PENSTOCK_GRPC_PORT"]
    assert rows["log_level"] == ["debug", "penstock.toml: [log] level"]
    assert rows["push_allow"] == ["a.example,b.example,c.example", "--push-allow"]
    assert rows["host"] == ["127.0.0.1", "default"]

    found = penstock.good(f"{line} --json").json
    assert found["port"] == {"value": 1, "origin": "--port"}
    assert found["rate_burst"] == {"value": 5, "origin": "default"}
    assert found["data_dir"] == {"value": "penstock-data", "origin": "default"}
    assert len(found) == len(rows) - 1


def test_a_file_elsewhere_is_read_with_its_paths_beside_it(penstock: Penstock) -> None:
    (penstock.folder / "etc").mkdir()
    (penstock.folder / "etc" / "p.toml").write_text('[storage]\ndata_dir = "data"\n')
    other = Penstock(penstock.folder, {"PENSTOCK_CONFIG": "etc/p.toml"})

    for shown in (penstock.good("config --config etc/p.toml --json"), other.good("config --json")):
        assert shown.json["data_dir"] == {"value": "etc/data", "origin": "etc/p.toml: [storage] data_dir"}


def test_a_password_in_any_of_several_addresses_is_not_shown_among_the_settings(penstock: Penstock) -> None:
    line = "config --router http://u:hush@a/x,http://u:hush@b/y --router-standby redis://:hush@c"
    for shown in (penstock.good(line), penstock.good(f"{line} --json")):
        assert "b/y" in shown.out
        assert "hush" not in shown.out


def test_the_variables_of_clients_are_no_wrong_settings_of_the_server(tmp_path: Path) -> None:
    penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": "http://127.0.0.1:1", "PENSTOCK_TOKEN": "x"})

    assert penstock.good("config --json").json["port"]["value"] == 8085


def test_the_life_of_a_token(penstock: Penstock) -> None:
    assert penstock("token", "list") == Run(0, "", "no tokens; `penstock token create --name NAME` creates one\n")

    made = penstock.good("token create --name ci --project acme --verbs publish,consume --names orders-*,audit --expires 30d")
    secret = made.out.strip()
    found = SECRET.fullmatch(secret)
    assert found is not None
    assert secret not in made.err
    file = penstock.folder / "penstock-data" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret.split("_", 2)[2] not in file.read_text()

    assert re.search(
        rf"^{found[1]}  ci    acme     consume,publish  orders-\*,audit  \d{{4}}-\d\d-\d\d \d\d:\d\d UTC$",
        penstock.good("token list").out,
        re.MULTILINE,
    )
    [token] = penstock.good("token list --json").json
    assert (token["id"], token["project"], token["verbs"]) == (found[1], "acme", ["consume", "publish"])
    assert "digest" not in token

    assert penstock("token", "revoke", found[1]) == Run(0, f"revoked {found[1]}\n", "")
    assert penstock.good("token list --json").json == []
    again = penstock("token", "revoke", found[1])
    assert (again.code, again.out) == (3, "")
    assert found[1] in again.err


def test_the_project_of_a_token_is_not_the_setting_of_that_name(penstock: Penstock) -> None:
    (penstock.folder / "penstock.toml").write_text('[server]\nproject = "ours"\n')
    penstock.good("token create --name everywhere")
    penstock.good("token create --name theirs --project theirs")

    assert {token["project"] for token in penstock.good("token list --json").json} == {None, "theirs"}


def test_a_leaked_secret_is_revoked_as_it_was_found_and_never_repeated(penstock: Penstock) -> None:
    penstock.environment["PYTHONIOENCODING"] = "ascii"
    secret = penstock("token", "create", "--name", "é \u2014 x", "--json").json["secret"]

    for code in (0, 3):
        done = penstock("token", "revoke", secret)
        assert done.code == code
        assert secret not in done.out + done.err
    broken = penstock("token", "revoke", secret[:-1])
    assert broken.code == 2
    assert secret[:-1] not in broken.err


def test_a_damaged_token_file_is_told_and_left_alone(penstock: Penstock) -> None:
    file = penstock.folder / "keys.json"
    file.write_text("{")
    for words in (["list"], ["create", "--name", "x"], ["revoke", "a0b61e67b45f"]):
        code, out, err = penstock("token", *words, "--token-file", "keys.json")
        assert (code, out) == (1, "")
        assert err.startswith("penstock: the token file 'keys.json' is damaged: ")
        assert len(err.splitlines()) == 2
    assert file.read_text() == "{"


def test_a_folder_that_cannot_be_made_is_told(penstock: Penstock) -> None:
    (penstock.folder / "file").touch()
    code, _, err = penstock(*"token create --name x --data-dir file".split())

    assert code == 1
    assert "token file" in err
    assert len(err.splitlines()) <= 2


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A server to define `run` in, in place of the real one."""
    server = ModuleType("penstock.server.server")
    monkeypatch.setitem(sys.modules, "penstock.server.server", server)
    return server


def test_serve_hands_the_settings_to_the_server_and_its_exit_code_back(penstock: Penstock, fake_server: ModuleType) -> None:
    fake_server.run = lambda settings, **_: print(settings.port, settings.memory) or 7  # type: ignore[attr-defined]

    assert penstock("serve", "--memory", "--port", "0") == Run(7, "0 True\n", "")


def test_a_missing_library_is_told_with_what_to_install(penstock: Penstock, fake_server: ModuleType) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name="grpc")

    fake_server.__getattr__ = missing  # type: ignore[method-assign]
    said = "penstock: the server needs the library grpc\ninstall it: pip install '.[server]' in a checkout of Penstock\n"

    assert penstock("serve") == Run(1, "", said)


def test_an_error_that_nobody_expected_is_a_sentence_and_no_traceback(penstock: Penstock, fake_server: ModuleType) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TypeError("no such thing")

    fake_server.run = fail  # type: ignore[attr-defined]
    done = penstock("serve")

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("penstock: unexpected error: TypeError: no such thing\n")
    assert "Traceback" not in done.err


def test_an_interrupt_is_quiet(penstock: Penstock, fake_server: ModuleType) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    fake_server.run = interrupted  # type: ignore[attr-defined]

    assert penstock("serve") == Run(130, "", "")


def test_a_reader_that_leaves_is_no_error(penstock: Penstock) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [PENSTOCK, "config"], cwd=penstock.folder, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")
