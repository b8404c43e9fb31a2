"""What type checkers know of the blocking client is what the asynchronous one says."""

import subprocess
import sys

from tests.docs.pages import ROOT


def test_the_stub_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, "scripts/sync_stub.py", "--check"], cwd=ROOT, check=False)

    assert checked.returncode == 0, "run: python scripts/sync_stub.py"
