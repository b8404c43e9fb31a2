"""The Java that Spark runs on: found the same way as Spark does, and checked before Spark is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.errors import FailedPrecondition

OLDEST = 17
INSTALL = (
    f"install Java {OLDEST} or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless), "
    "or set JAVA_HOME to the folder of one that is there"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS = 30


class Java(NamedTuple):
    """A Java that Spark can run on."""

    path: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The path of the `java` that Spark would run, which may not exist; None if neither JAVA_HOME nor the PATH has one."""
    if home := environ.get("JAVA_HOME"):
        return Path(home, "bin", "java")
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    return None if found is None else Path(found)


def check_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark will run on. Raises FailedPrecondition if there is none, or it is too old."""
    java = find_java(environ)
    if java is None:
        raise FailedPrecondition("Spark needs Java, and there is none: JAVA_HOME is not set, no java on the PATH", hint=INSTALL)
    if not os.access(java, os.X_OK):
        raise FailedPrecondition(
            f"Spark needs Java, and JAVA_HOME is {environ['JAVA_HOME']}, where there is no bin/java", hint=INSTALL
        )
    try:
        # Java prints its version to the standard error. The environment is the one that Spark will start it with.
        told = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedPrecondition(f"Spark needs Java, and {java} does not run: {error}", hint=INSTALL) from None
    version = _VERSION.search(told.stderr) or _VERSION.search(told.stdout)
    if told.returncode != 0 or version is None:
        said = (told.stderr + told.stdout).strip().partition("\n")[0] or "nothing"
        raise FailedPrecondition(f"Spark needs Java, and {java} -version fails: it says {said!r}", hint=INSTALL)
    if int(version[1]) < OLDEST:
        raise FailedPrecondition(f"Spark needs Java {OLDEST} or newer, and {java} is Java {version[1]}", hint=INSTALL)
    return Java(java, int(version[1]))
