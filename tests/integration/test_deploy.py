"""What is in `deploy/` is valid, and names metrics, labels, settings and files that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from penstock import Message, MessageQueue, QueueManager
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock, monotonic
from penstock.config import load
from penstock.durations import SECOND
from penstock.testing.server import LocalServer
from tests.docs.pages import table_rows
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "penstock.json"
SECONDS = 100
LOOK_SECONDS = 0.1
OF_PROMETHEUS = {"up"}
TARGET_LABELS = {"job", "instance"}
"""Prometheus adds them to what it scrapes."""
RULE_TESTS = """
rule_files: [alerts.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: up{job="penstock", instance="a:8085"}
        values: 1x10 0x20
      - series: penstock_journal_healthy{job="penstock", instance="a:8085"}
        values: 1x10 0x20
      - series: penstock_queue_oldest_age_seconds{project="shop", queue="mail"}
        values: 0+60x40
      - series: penstock_queue_acked_total{project="shop", queue="mail"}
        values: 5x40
      - series: penstock_queue_depth{project="shop", queue="mail"}
        values: 3x40
      - series: penstock_queue_oldest_age_seconds{project="shop", queue="busy"}
        values: 0+60x40
      - series: penstock_queue_acked_total{project="shop", queue="busy"}
        values: 0+5x40
      - series: penstock_queue_depth{project="shop", queue="busy"}
        values: 3x40
      - series: penstock_queues_dead_lettered_total{project="shop"}
        values: 0x20 4x10 4x20
    alert_rule_test:
      - eval_time: 9m
        alertname: PenstockDown
        exp_alerts: []
      - eval_time: 13m
        alertname: PenstockDown
        exp_alerts:
          - exp_labels: { severity: page, job: penstock, instance: "a:8085" }
            exp_annotations:
              summary: Prometheus cannot scrape a:8085.
              description: The server is down, cannot be reached, or refuses the token. See its log, and run penstock doctor.
      - eval_time: 13m
        alertname: PenstockCannotWrite
        exp_alerts:
          - exp_labels: { severity: page, job: penstock, instance: "a:8085" }
            exp_annotations:
              summary: "a:8085 cannot write its disk: publishes fail."
              description: The disk is full or fails. Make room; the server continues by itself. Its log has the error.
      - eval_time: 10m
        alertname: PenstockQueueStuck
        exp_alerts: []
      - eval_time: 30m
        alertname: PenstockQueueStuck
        exp_alerts:
          - exp_labels: { severity: page, project: shop, queue: mail }
            exp_annotations:
              summary: Nobody takes the messages of queue mail in project shop.
              description: "The oldest has waited for 30m 0s. Run: penstock explain mail"
      - eval_time: 19m
        alertname: PenstockDeadLetters
        exp_alerts: []
"""


def program(name: str) -> str:
    """Where a program is that the tests' installation brings; the test is skipped without it, but not in CI."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed: run make setup-test")
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def shown() -> list[str]:
    """The expressions of the dashboard, with what Grafana puts in place of its variables."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [re.sub(r"\$(instance|project)\b", ".*", one).replace("$__rate_interval", "5m") for one in expressions]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from shown()


@pytest.fixture(scope="module")
def exposed() -> Mapping[str, set[str]]:
    """The metrics of a server that has one of everything, each with its labels."""
    found: dict[str, set[str]] = {}
    with LocalServer() as server:
        topics, queues = MessageQueue(broker=server.broker), QueueManager(broker=server.broker)
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        topics.publish("orders", [Message(b"x")])
        queues.create("tasks")
        urllib.request.urlopen(f"{server.url}/health").close()
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
    for line in text.splitlines():
        if match := re.match(r"# TYPE (\w+) ", line):
            found.setdefault(match[1], set())
        elif match := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
    return found


def test_alerts_and_dashboard_name_metrics_that_a_server_has(exposed: Mapping[str, set[str]], subtests: pytest.Subtests) -> None:
    for expression in expressions():
        with subtests.test(expression=expression):
            names = set(re.findall(r"\b((?:penstock|process)_\w+|up)\b(?![\"'])", re.sub(r'"[^"]*"', '""', expression)))
            assert names
            assert names <= exposed.keys() | OF_PROMETHEUS


def test_alerts_and_dashboard_use_labels_that_the_metrics_have(
    exposed: Mapping[str, set[str]], subtests: pytest.Subtests
) -> None:
    for expression in expressions():
        for name, selector in re.findall(r"(\w+)\{([^}]*)\}", expression):
            with subtests.test(metric=name, selector=selector):
                labels = set(re.findall(r"(\w+)\s*=~?", selector))
                # A counter of errors has no series before the first error.
                known = exposed.get(name) or ({"code"} if name == "penstock_hub_errors_total" else set())
                assert labels <= known | TARGET_LABELS
    for rule in rules():
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        of_metrics = [exposed.get(name, set()) for name in re.findall(r"penstock_\w+", rule["expr"])]
        assert used <= TARGET_LABELS.union(*of_metrics), rule["alert"]


def test_every_alert_says_how_urgent_it_is_and_what_to_do() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_the_page_about_operations_lists_every_alert() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    listed = {(name, row[1]) for row in table_rows(page) for name in re.findall(r"`(Penstock\w+)`", row[0])}
    assert listed == {(rule["alert"], rule["labels"]["severity"]) for rule in rules()}


def test_promtool_accepts_rules_configuration_and_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    promtool = program("promtool")
    assert f"{len(rules())} rules found" in run(promtool, "check", "rules", str(ALERTS))
    run(promtool, "check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "prometheus.yaml"))
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(shown())]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), encoding="utf-8")
    assert f"{len(recorded)} rules found" in run(promtool, "check", "rules", str(file))


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path / "alerts.yaml")
    (tmp_path / "tests.yaml").write_text(RULE_TESTS, encoding="utf-8")
    run(program("promtool"), "test", "rules", "tests.yaml", cwd=tmp_path)


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    taken = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(taken) == len(set(taken))


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    run(program("hadolint"), str(DEPLOY / "Dockerfile"))


def test_the_compose_file_is_valid_and_names_files_that_exist() -> None:
    run(program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert (DEPLOY / services["penstock"]["build"]["context"] / services["penstock"]["build"]["dockerfile"]).is_file()
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    grace = services["penstock"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > load({}, {}, None)[0].shutdown_seconds


def dockerfile(instruction: str) -> list[list[str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith(f"{instruction} ")]


def test_the_image_has_settings_that_a_server_takes() -> None:
    [words] = dockerfile("ENV")
    environment = dict(word.split("=", 1) for word in words)
    settings, origins = load({}, {name: value for name, value in environment.items() if name != "PATH"}, None)
    assert (str(settings.data_dir), settings.host, settings.auth) == ("/data", "0.0.0.0", "token")
    assert origins["data_dir"] == "PENSTOCK_DATA_DIR"
    assert environment["PENSTOCK_SERVER"] == f"http://127.0.0.1:{settings.port}"
    [ports] = dockerfile("EXPOSE")
    assert [*map(int, ports)] == [settings.port, settings.grpc_port, settings.native_port]


@pytest.mark.long
def test_what_the_image_copies_is_enough_to_build_the_wheel(tmp_path: Path) -> None:
    copied = [words for words in dockerfile("COPY") if not words[0].startswith("--")]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for *sources, target in copied:
        for source in sources:
            assert f"!{source}" in ignored
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / "src" / target, symlinks=True)
            else:
                (tmp_path / "src").mkdir(exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / "src")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(tmp_path / "src"))
    [wheel] = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        page = packed.read("penstock/hub/server/client.js")
    assert page == (ROOT / "clients" / "js" / "hub.js").read_bytes()
    # Nothing of the tests, the demo or the benchmarks; of the test kit what the documentation describes.
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"penstock", "pyspark_penstock"}
    kit = {name.split("/")[2].removesuffix(".py") for name in names if name.startswith("penstock/testing/")}
    inside = {"__init__", "clock", "faults", "plugin", "simulator"}  # `penstock.testing` has their names
    described = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert {name for name in kit - inside if f"penstock.testing.{name}" not in described} == set()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "penstock.service").read_text(encoding="utf-8")
    unit = tmp_path / "penstock.service"
    unit.write_text(text.replace("/usr/local/penstock/bin/penstock", sys.executable), encoding="utf-8")
    if shutil.which("systemd-analyze") is not None:  # a container has no systemd
        run("systemd-analyze", "verify", str(unit))
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert values["Type"] == "notify"
    assert int(values["TimeoutStopSec"]) > load({}, {}, None)[0].shutdown_seconds


@pytest.mark.long
def test_prometheus_scrapes_a_server_with_a_token_and_loads_the_alerts(tmp_path: Path) -> None:
    token = Keyring(tmp_path / "tokens.json").create("prometheus", SystemClock().now(), verbs=[Verb.METRICS])
    (tmp_path / "token").write_text(f"{token}\n", encoding="utf-8")
    shutil.copy(ALERTS, tmp_path)
    port = free_port()
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:
        text = (DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8")
        text = text.replace("/run/secrets/metrics_token", str(tmp_path / "token")).replace("15s", "1s")
        text = text.replace("penstock:8085", server.url.removeprefix("http://"))
        (tmp_path / "prometheus.yaml").write_text(text, encoding="utf-8")
        flags = ["--config.file=prometheus.yaml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen([program("prometheus"), *flags], cwd=tmp_path, stderr=subprocess.DEVNULL) as prometheus:
            try:
                assert eventually(f"http://127.0.0.1:{port}/api/v1/query?query=up%7Bjob%3D%22penstock%22%7D+%3D%3D+1")
                asked = f"http://127.0.0.1:{port}/api/v1/query?query=penstock_journal_healthy"
                assert eventually(asked)[0]["value"][1] == "1"
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules") as answer:
                    [group] = json.loads(answer.read())["data"]["groups"]
                assert len(group["rules"]) == len(rules())
                assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
            finally:
                prometheus.terminate()


def eventually(url: str) -> Any:
    """The result of a query, as soon as there is one."""
    until = monotonic() + SECONDS * SECOND
    while monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                if result := json.loads(answer.read())["data"]["result"]:
                    return result
        except OSError:
            pass  # it starts
        threading.Event().wait(LOOK_SECONDS)
    raise AssertionError(f"no result in {SECONDS} s: {url}")
