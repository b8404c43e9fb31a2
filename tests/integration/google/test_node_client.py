"""Google's Node client, unmodified, against the server: the scenarios of scenarios.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer
from tests.node.modules import INSTALL_SECONDS, node_modules

SCRIPT = Path(__file__).parent / "scenarios.js"
RUN_SECONDS = 110

SCENARIOS = re.findall(r"^  async (\w+)\(\) \{$", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)  # the first run may have to install the client
def test_the_node_client_does_all_of_it(server: LocalServer) -> None:
    # One test, because one run of Node.js does all scenarios at the same time.
    modules = node_modules()
    node = shutil.which("node")
    assert node is not None  # it has just installed something
    environment = {
        **os.environ,
        "PUBSUB_EMULATOR_HOST": server.grpc,
        "NODE_PATH": str(modules),
        "METADATA_SERVER_DETECTION": "none",  # nothing outside this machine is asked who we are
    }
    ran = subprocess.run([node, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert ran.returncode == 0, ran.stderr
    outcomes = {line["scenario"]: line["error"] for line in map(json.loads, ran.stdout.splitlines())}
    assert sorted(outcomes) == sorted(SCENARIOS)
    assert {scenario: error for scenario, error in outcomes.items() if error is not None} == {}
