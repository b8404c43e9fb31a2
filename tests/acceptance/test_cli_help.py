"""The examples that `--help` shows are commands that work."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.cli.examples import EXAMPLES
from penstock.cli.main import COMMANDS, main, parser_of
from penstock.testing.server import LocalServer
from scripts import reference

RUN_UNTIL_STOPPED = {"serve", "worker", "hub listen", "router run", "pipeline run"}
INTERACTIVE = {"penstock top --sort age"}
CONFIG = '{"queues": [{"queueName": "mail", "queueUri": "penstock:///queues/mail"}], "processingPools": [{"code": "A"}]}'


def route_of(words: list[str]) -> str:
    return next((" ".join(words[:size]) for size in (2, 1) if " ".join(words[:size]) in EXAMPLES), "")


def test_every_example_is_of_a_command_that_shows_it() -> None:
    helps = dict(reference.helps())
    for route, lines in EXAMPLES.items():
        shown = helps[f"penstock {route}".strip()]
        assert "examples:\n  " + "\n  ".join(lines) in shown


def test_every_example_is_understood(subtests: pytest.Subtests) -> None:
    parser = parser_of([command.name for command in COMMANDS])
    for lines in EXAMPLES.values():
        for line in lines:
            words = shlex.split(line, comments=True)[1:]
            if words[0] != "help":
                with subtests.test(line=line):
                    parser.parse_args(words)


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.jsonl").write_text("order 3\norder 4\n")
    (tmp_path / "config.json").write_text(CONFIG)
    message_id = ""
    with LocalServer() as server:
        monkeypatch.setenv("PENSTOCK_SERVER", server.url)
        done = set()
        for lines in EXAMPLES.values():
            for line in lines:
                words = shlex.split(line.replace("MESSAGE-ID", message_id), comments=True)[1:]
                if route_of(words) in RUN_UNTIL_STOPPED or line in INTERACTIVE or words[0] in {"help", "doctor"} or line in done:
                    continue
                done.add(line)
                with subtests.test(line=line):
                    # The introduction has made the first topic and subscription already.
                    again = ["--exist-ok"] if words[:2] in (["topic", "create"], ["subscription", "create"]) else []
                    assert main([*words, *again]) == 0, capsys.readouterr().err
                    found = re.search(r"\b[0-9a-f]{30}\b", capsys.readouterr().out)
                    message_id = found[0] if found and words[0] == "publish" else message_id
    assert len(done) > 25
