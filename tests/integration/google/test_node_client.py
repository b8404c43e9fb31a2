"""Google's Node client, unmodified, against the server: the scenarios of node/scenarios.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer

NODE = Path(__file__).parent / "node"
SETUP = Path(__file__).parents[3] / "scripts" / "setup-node"
MODULES = Path(sys.prefix) / "node" / "node_modules"
INSTALL_SECONDS = 300
RUN_SECONDS = 60

SCENARIOS = re.findall(r"^  async (\w+)\(\) \{$", (NODE / "scenarios.js").read_text(), re.MULTILINE)


@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS)  # the first run may have to install the client
def test_the_node_client_does_all_of_it(server: LocalServer) -> None:
    # One test, because one run of Node.js does all scenarios at the same time. The script does nothing when the client is
    # there, and fails without Node.js where CI is set.
    subprocess.run(["sh", str(SETUP), sys.prefix], check=True, timeout=INSTALL_SECONDS)
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    environment = {
        **os.environ,
        "PUBSUB_EMULATOR_HOST": server.grpc,
        "NODE_PATH": str(MODULES),
        "METADATA_SERVER_DETECTION": "none",  # nothing outside this machine is asked who we are
    }
    ran = subprocess.run(
        [node, str(NODE / "scenarios.js")], env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = {line["scenario"]: line["error"] for line in map(json.loads, ran.stdout.splitlines())}
    assert sorted(outcomes) == sorted(SCENARIOS)
    assert {scenario: error for scenario, error in outcomes.items() if error is not None} == {}
