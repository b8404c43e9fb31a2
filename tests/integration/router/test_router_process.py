"""`penstock router run` as a user runs it: a process with its flags, files, signals, exit codes and log."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.testing.target import Target, respond
from tests.integration.router.places import QUEUE, OwnQueue, dead_of, fill_work_queue, left_in_work_queue
from tests.integration.router.proof import body_of
from tests.integration.router.router_process import SERVE, RouterProcess, until
from tests.ports import free_port

SOON = 60.0
QUICK = {"config_pause": 0.01}


def config(*pools: str, concurrency: int = 4) -> dict[str, Any]:
    return {
        "queues": [{"queueName": QUEUE, "queueUri": OwnQueue.uri}],
        "processingPools": [{"code": pool, "concurrency": concurrency} for pool in pools],
    }


def fill(folder: Path, target: Target, count: int, pool: str = "P", **more: str) -> None:
    bodies = [json.loads(body_of(f"m{number}", target.url, f"g{number}", pool)) | more for number in range(count)]
    fill_work_queue(folder / "data", [("", json.dumps(body).encode()) for body in bodies])


class Endpoint:
    """Where a router fetches its configuration."""

    def __init__(self) -> None:
        self.config: object = config("P")
        self.asked: list[str | None] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.asked.append(self.headers.get("Authorization"))
                body = json.dumps(endpoint.config).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/api/config"

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.stop()


def test_it_delivers_serves_its_monitoring_and_stops(tmp_path: Path) -> None:
    with Target() as target:
        fill(tmp_path, target, 100)
        with RouterProcess(tmp_path, config("P")) as router:
            target.wait_for(100, SOON)
            router.until_empty()
            assert router.get("/health/live")["status"] == "ALIVE"
            until(lambda: router.get("/health/ready")["status"] == "READY", SOON, "it is ready")
            assert router.get("/monitoring/pool-stats")["P"]["totalSucceeded"] == 100
            assert router.get("/monitoring/queue-stats")[QUEUE]["totalConsumed"] == 100
            assert router.get("/monitoring/standby-status") == {"standbyEnabled": False}
            assert "fc_messages_processed_total" in router.get("/metrics")
            assert router.stop() == 0
        assert left_in_work_queue(tmp_path / "data") == 0


@pytest.mark.long
def test_a_stop_waits_for_calls_and_gives_the_rest_back(tmp_path: Path) -> None:
    with Target(respond(200, after=1)) as target:
        fill(tmp_path, target, 50)
        with RouterProcess(tmp_path, config("P")) as router:
            target.wait_for(4, SOON)
            assert router.stop() == 0
        began = len(target.requests)
        assert all(request.status == 200 for request in target.requests), "what had begun was finished"
        assert left_in_work_queue(tmp_path / "data") == 50 - began
        with RouterProcess(tmp_path, config("P", concurrency=50)):
            # Given back, not waited for: the leases are of two minutes.
            target.wait_for(50, SOON)
        assert len({request.message_id for request in target.requests}) == 50


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Target(respond(200, after=60)) as target:
        fill(tmp_path, target, 1)
        with RouterProcess(tmp_path, config("P")) as router:
            target.wait_for(1, SOON)
            router.process.send_signal(signal.SIGTERM)
            until(lambda: "a second signal stops at once" in router.log, SOON, "it has begun to stop")
            router.process.send_signal(signal.SIGINT)
            assert router.wait(30) == 1
            assert "Traceback" not in router.log, router.log
        assert left_in_work_queue(tmp_path / "data") == 1


def test_without_a_configuration_it_says_so_and_ends_with_1(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api/config"
    router = RouterProcess(tmp_path, None, "--config-url", url, times=QUICK)
    router.launch()
    assert router.wait(SOON) == 1
    assert "(try 12 of 12)" in router.log
    last = router.log.splitlines()[-1]
    assert "there is no configuration to start with" in last
    assert url in last
    assert "Traceback" not in router.log, router.log


@pytest.mark.long
def test_without_any_place_of_a_configuration_it_does_not_start(tmp_path: Path) -> None:
    router = RouterProcess(tmp_path, environment={"MESSAGE_ROUTER_CONFIG_URL": ""})
    router.launch()
    assert router.wait(SOON) == 2
    assert "--config FILE" in router.log


@pytest.mark.long
def test_it_starts_from_what_it_knew_when_the_endpoint_is_down(tmp_path: Path, endpoint: Endpoint) -> None:
    with Target() as target:
        fill(tmp_path, target, 10)
        flags = ("--config-url", endpoint.url)
        with RouterProcess(tmp_path, None, *flags, times=QUICK) as router:
            target.wait_for(10, SOON)
            assert router.stop() == 0
        endpoint.stop()
        fill(tmp_path, target, 20)
        with RouterProcess(tmp_path, None, *flags, times=QUICK) as router:
            target.wait_for(30, SOON)
            router.until_empty()
            assert "its last known content is used" in router.log
            warnings = router.get("/monitoring/warnings")
            assert "CONFIG_SYNC_FAILED" in {warning["category"] for warning in warnings}
            assert router.stop() == 0


def test_a_new_configuration_is_taken_on_when_asked(tmp_path: Path, endpoint: Endpoint) -> None:
    with Target() as target:
        fill(tmp_path, target, 10, "NEW")
        endpoint.config = {"queues": [], "processingPools": [{"code": "OLD", "concurrency": 1}]}
        with RouterProcess(tmp_path, None, "--config-url", endpoint.url) as router:
            until(lambda: "OLD" in router.get("/monitoring/pool-stats"), SOON, "the first configuration is applied")
            endpoint.config = config("NEW", concurrency=3)
            router.post("/config/reload")
            target.wait_for(10, SOON)
            assert router.get("/monitoring/pool-stats")["NEW"]["maxConcurrency"] == 3
            assert "pool OLD" in router.log
            assert router.stop() == 0


def test_secrets_never_reach_the_log_or_the_monitoring(tmp_path: Path, endpoint: Endpoint) -> None:
    # name: where a secret is given
    secrets = {
        "token of a message": "tok-3f9a1c",
        "signing secret of a message": "sig-77b0de",
        "password of a queue": "pw-55aa12",
        "password of a target": "tp-0c0ffe",
        "query of a target": "tq-1decaf",
        "token of the configuration": "cfg-9e8d7c",
    }
    refused = free_port()
    endpoint.config = config("P") | {
        "queues": [
            {"queueName": QUEUE, "queueUri": OwnQueue.uri},
            {"queueUri": f"nats://user:{secrets['password of a queue']}@127.0.0.1:{refused}/S/C"},
            {"queueUri": f"activemq://user:{secrets['password of a queue']}@127.0.0.1:{refused}/Q"},
            {"queueUri": f"nonsense://user:{secrets['password of a queue']}@127.0.0.1/Q"},
        ]
    }
    with Target({"/ok": respond(), "*": respond(400)}) as target:
        more = {"authToken": secrets["token of a message"], "signingSecret": secrets["signing secret of a message"]}
        fill(tmp_path, target, 5, **more, mediationTarget=f"{target.url}/ok")
        where = f"http://u:{secrets['password of a target']}@127.0.0.1:{target.port}/bad?key={secrets['query of a target']}"
        fill_work_queue(
            tmp_path / "data", [("", json.dumps({"id": "x", "poolCode": "P", "mediationTarget": where} | more).encode())]
        )
        fill_work_queue(tmp_path / "data", [("", json.dumps({"id": 5} | more).encode())])
        environment = {"MESSAGE_ROUTER_CONFIG_TOKEN": secrets["token of the configuration"]}
        flags = ("--config-url", endpoint.url, "--log-level", "debug")
        with RouterProcess(tmp_path, None, *flags, environment=environment) as router:
            target.wait_for(5, SOON)
            until(lambda: "the circuit" in router.log or "cannot be polled" in router.log, SOON, "a queue is not reached")
            router.until_empty()
            shown = [
                router.get(f"/monitoring/{page}")
                for page in ("health", "queue-stats", "pool-stats", "warnings", "circuit-breakers", "consumer-health")
            ]
            shown += [router.get(page) for page in ("/metrics", "/health", "/health/ready")]
            assert router.stop() == 0
        assert [request.headers["authorization"] for request in target.requests[:5]] == [f"Bearer {more['authToken']}"] * 5
        assert endpoint.asked[0] == f"Bearer {secrets['token of the configuration']}"
        said = router.log + json.dumps(shown)
        for name, secret in secrets.items():
            assert secret not in said, f"{name}: {next(line for line in said.splitlines() if secret in line)[:2000]}"


def test_a_server_and_a_router_are_one_process(tmp_path: Path) -> None:
    with Target({"/ok": respond(), "*": respond(400)}) as target:
        fill(tmp_path, target, 20, mediationTarget=f"{target.url}/ok")
        fill_work_queue(tmp_path / "data", [("", body_of("bad", f"{target.url}/bad", "g", "P"))])
        with RouterProcess(tmp_path, config("P"), verb=SERVE) as server:
            target.wait_for(21, SOON)
            server.until_empty()
            assert server.get("/monitoring/pool-stats")["P"]["totalSucceeded"] == 20
            # The server's own pages are there as well.
            assert "penstock" in server.get("/metrics")
            assert server.stop() == 0
        assert left_in_work_queue(tmp_path / "data") == 0
        assert dead_of(tmp_path / "data", QUEUE) == ["bad"]
