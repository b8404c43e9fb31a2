"""The JavaScript client of the hub: in Node.js against real servers, its types, and what `npm pack` puts into the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest

from penstock.durations import SECOND
from penstock.hub.core.close_codes import CLOSES, GOODBYE
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer, ServerProcess
from tests.docs.pages import blocks
from tests.node.modules import INSTALL_SECONDS, node_modules
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "clients" / "js"
SCRIPT = Path(__file__).parent / "js_client.test.mjs"
TYPED = Path(__file__).parent / "js_client_types.ts"
RUN_SECONDS = 110
SECRET = "a secret of the tests, long enough to sign with: 0123456789"

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)  # the first run may have to install what it needs


class Control:
    """What the scenarios ask for: tokens, another time, a server that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.secret = folder / "hub.secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)
        self._folder = folder
        self._port = free_port()
        self.start()

    def start(self) -> None:
        self.killed = ServerProcess(self._folder / "data", port=self._port, hub_history="chat").start()

    def answer(self, path: str, query: dict[str, str]) -> str:
        match path:
            case "/token":
                return self._token(query)
            case "/advance":
                self.clock.advance(int(query["seconds"]))
            case "/kill":
                self.killed.kill()
            case "/start":
                self.start()
        return ""

    def _token(self, query: dict[str, str]) -> str:
        now = self.clock.now() // SECOND
        claims: dict[str, object] = {"iss": "signal-hub", "iat": now, "exp": now + 100, "actorId": "browser/ann"}
        if "subscribe" in query:
            claims["subscribe"] = query["subscribe"].split(",")
        return jwt.encode(claims, SECRET, algorithm="HS256")


@pytest.fixture
def control(tmp_path: Path) -> Iterator[tuple[Control, str]]:
    """The control, and where scripts reach it."""
    control = Control(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            text = control.answer(parts.path, dict(parse_qsl(parts.query))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    try:
        yield control, f"http://127.0.0.1:{site.server_port}"
    finally:
        site.shutdown()
        thread.join()
        site.server_close()
        control.killed.stop()


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_client_in_node(control: tuple[Control, str]) -> None:
    # One test, because one run of Node.js does all scenarios at the same time.
    modules, (desk, url) = node_modules(), control
    with (
        LocalServer(hub_history=("chat",)) as server,
        LocalServer(hub_jwt_secret_file=desk.secret, insecure=True, clock=desk.clock) as guarded,
        LocalServer(hub_rate_limit=100, hub_rate_burst=100) as limited,
    ):
        places = {"SERVER": server.url, "GUARDED": guarded.url, "LIMITED": limited.url, "KILLED": desk.killed.url}
        output = run("node", "--test", "--test-reporter=tap", SCRIPT, cwd=ROOT, CONTROL=url, NODE_MODULES=str(modules), **places)

    assert int(re.findall(r"^# pass (\d+)$", output, re.MULTILINE)[0]) > 20
    assert re.findall(r"^# (?:skipped|todo|cancelled) (\d+)$", output, re.MULTILINE) == ["0", "0", "0"]


def test_the_package_has_the_client_its_types_and_its_licence_and_is_typed(tmp_path: Path) -> None:
    modules = node_modules()
    shutil.copytree(PACKAGE, tmp_path / "clients" / "js")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    packed = json.loads(run("npm", "pack", "--json", "--pack-destination", tmp_path, cwd=tmp_path / "clients" / "js"))
    [[content]] = [packed] if isinstance(packed, list) else [[*packed.values()]]
    assert {file["path"] for file in content["files"]} == {"LICENSE", "README.md", "hub.d.ts", "hub.js", "package.json"}
    assert not (tmp_path / "clients" / "js" / "LICENSE").exists()

    project = tmp_path / "project"
    installed = project / "node_modules" / "penstock-hub"
    installed.mkdir(parents=True)
    run("tar", "-xzf", tmp_path / content["filename"], "-C", installed, "--strip-components=1", cwd=tmp_path)
    shutil.copy(TYPED, project / "typed.mts")
    tsc = modules / "typescript" / "bin" / "tsc"
    options = ("--noEmit", "--strict", "--skipDefaultLibCheck", "--module", "nodenext", "--target", "es2022")
    run("node", tsc, *options, "typed.mts", cwd=project)
    assert "function" in run("node", "-p", "import('penstock-hub').then((hub) => console.log(typeof hub.HubClient))", cwd=project)


def test_the_example_of_the_documentation_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "hub.md").read_text(encoding="utf-8")
    [example] = [block.text for block in blocks(page) if 'from "penstock-hub"' in block.text]
    [expected] = re.findall(r"It prints `([^`]+)`", page)
    modules, program = node_modules(), tmp_path / "example.mjs"
    with LocalServer() as server:
        moved = example.replace("penstock-hub", str(PACKAGE / "hub.js")).replace("http://127.0.0.1:8085", server.url)
        websocket = json.dumps(str(modules / "ws" / "wrapper.mjs"))
        program.write_text(f"import WebSocket from {websocket};\nglobalThis.WebSocket ??= WebSocket;\n{moved}", encoding="utf-8")

        assert run("node", program, cwd=tmp_path).strip() == expected


def test_the_server_serves_the_client_of_the_package_and_its_page_runs_no_inline_script() -> None:
    with LocalServer() as server:
        with urllib.request.urlopen(f"{server.url}/hub/client.js", timeout=60) as answer:
            assert (answer.read(), answer.headers.get_content_type()) == ((PACKAGE / "hub.js").read_bytes(), "text/javascript")
        with urllib.request.urlopen(f"{server.url}/hub", timeout=60) as answer:
            assert "script-src 'self';" in answer.headers["Content-Security-Policy"]


def test_the_client_stays_away_after_the_close_codes_after_which_coming_back_does_not_help() -> None:
    codes = re.findall(r"^  \[(\d{4}), \[\"(\w+)\"", (PACKAGE / "hub.js").read_text(encoding="utf-8"), re.MULTILINE)
    final = [close for close in CLOSES if not close.may_reconnect and close is not GOODBYE]
    assert [(int(code), reason) for code, reason in codes] == [(close.code, close.reason) for close in final]
