"""Record what a checkout of Penstock says on the wire and writes to disk, for tests/compatibility.

    .venv/bin/python scripts/record_compatibility.py CHECKOUT

starts servers of that checkout, holds conversations with them in every protocol, has one of them write a data directory, and puts
all of it into tests/compatibility/recorded. What is said is in tests/compatibility/recording.py.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the recording with the modules of the checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the directory of a checkout of Penstock")
    options = parser.parse_args()
    source = options.checkout.resolve() / "src"
    if not (source / "penstock").is_dir():
        parser.error(f"{options.checkout} is no checkout of Penstock: it has no src/penstock")
    named = ["git", "-C", str(options.checkout), "rev-parse", "HEAD"]
    commit = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    sys.stdout.write(f"recording {commit}\n")
    sys.stdout.flush()
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.compatibility.recording", commit]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
