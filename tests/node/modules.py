"""What the tests take from npm, installed where it is not yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "scripts" / "setup-node"
INSTALL_SECONDS = 300


def node_modules() -> Path:
    """The folder of what package.json names; the test is skipped where there is no Node.js."""
    # The script does nothing when everything is there, and fails without Node.js where CI is set.
    subprocess.run(["sh", str(SETUP), sys.prefix], check=True, timeout=INSTALL_SECONDS)
    found = Path(sys.prefix) / "node" / "node_modules"
    if not found.is_dir():
        pytest.skip("Node.js is not installed")
    return found
