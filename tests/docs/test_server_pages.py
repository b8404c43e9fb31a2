"""The pages about the server are true: their commands and programs run, with the output that they show, and name every metric."""

import os
import re
import runpy
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock import MessageQueue, QueueManager
from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.durations import to_datetime
from penstock.server.nodes.replica import LAG
from penstock.server.nodes.routes import EPOCH, OWNER, RELAYED, SILENT
from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT, blocks, table_rows
from tests.docs.walk import Walk

WORKER_IS_DONE = """until penstock queue stats emails --json | grep -q '"acked_total": 1'; do sleep 0.1; done"""


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    return re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]


def test_the_quickstart_does_what_it_shows(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow(read("docs/quickstart.md"))


def test_the_programs_of_the_quickstart_can_be_run_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs = {block.file: block.text for block in blocks(read("docs/quickstart.md")) if block.file}
    assert set(programs) >= {"hello.py", "hello_google.py", "hello_synap.py"}
    with LocalServer() as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.grpc)
        for file, text in programs.items():
            program = tmp_path / file
            program.write_text(text.replace("http://127.0.0.1:8085", server.url), encoding="utf-8")
            for _ in range(2):
                runpy.run_path(str(program))


def test_the_page_about_operations_does_what_it_shows(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow(read("docs/operations.md"))


@pytest.mark.long
def test_the_routers_page_does_what_it_shows(tmp_path: Path) -> None:
    ports = ("8095", "9000", "5000", "4222", "61613")
    settings = {"PENSTOCK_PORT": "8095", "PENSTOCK_ROUTER": "http://127.0.0.1:8095"}
    with Walk(tmp_path, ports=ports, settings=settings) as walk:
        walk.follow(read("docs/router.md").replace("pip install", "true pip install"))


def test_the_first_task_of_a_worker_runs_as_shown(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow(section(read("docs/workers.md"), "The first task"))
        walk.follow(f"```console\n$ export PENSTOCK_SERVER=http://127.0.0.1:8085\n$ {WORKER_IS_DONE}\n```\n")


@pytest.mark.long
@pytest.mark.timeout(360)
def test_the_tests_that_the_testing_page_shows_pass(tmp_path: Path) -> None:
    [block] = [block for block in blocks(read("docs/testing.md")) if block.file is not None]
    (tmp_path / str(block.file)).write_text(block.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("program", ["with_tls.py", "without_tls.py"])
def test_a_token_travels_with_googles_client_as_shown(program: str, tmp_path: Path) -> None:
    [block] = [block for block in blocks(read("docs/server.md")) if block.file == program]
    keyring = Keyring(tmp_path / "tokens.json")
    token = keyring.create("a test", SystemClock().now())
    files: dict[str, Any] = (
        {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"} if program == "with_tls.py" else {}
    )
    if files:
        make_certificate(files["tls_cert"], files["tls_key"])
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json", **files) as server:
        source = block.text.replace(":8086", f":{server.server.grpc_port}")
        environment = {name: value for name, value in os.environ.items() if name != "PUBSUB_EMULATOR_HOST"}
        environment |= {"TOKEN": token, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tmp_path / "cert.pem")}
        done = subprocess.run(
            [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=100, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"[0-9a-f]{30}\n" if files else r"\[\]\n", done.stdout)


def make_certificate(certificate: Path, key: Path) -> None:
    """A certificate for localhost that nobody vouches for."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = to_datetime(SystemClock().now())
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number(), begin, begin + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, plain))


def test_every_metric_is_in_the_table_with_its_meaning() -> None:
    with LocalServer() as server:
        topics, queues = MessageQueue(broker=server.broker), QueueManager(broker=server.broker)
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        queues.create("mail")
        text = ""
        for path in ("/health/ready", "/metrics"):  # the first request is counted in what the second answers
            with urllib.request.urlopen(server.url + path, timeout=10) as answer:
                text = answer.read().decode()
    rows = {row[0].strip("`"): row[-1] for row in table_rows(read("docs/server.md")) if "_" in row[0]}
    of_push = {row[0].strip("`") for row in table_rows(read("docs/push.md"))}
    served = dict(re.findall(r"^# HELP (\S+) (.*)$", text, flags=re.MULTILINE))
    served |= {metric.name: metric.help for metric in (OWNER, EPOCH, RELAYED, SILENT, LAG)}  # those of the nodes of a cluster

    assert {name: meaning for name, meaning in served.items() if name not in of_push} == rows


def test_a_page_that_shows_something_else_is_found_out(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk, pytest.raises(AssertionError, match="line 2: \\$ echo one"):
        walk.follow("```console\n$ echo one\ntwo\n```\n")
