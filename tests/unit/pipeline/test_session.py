"""What is found out, and told, before Spark starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.extras import how_to_install
from penstock.pipeline import session as module
from penstock.pipeline.java import check_java
from penstock.pipeline.priority import is_on_this_machine
from penstock.pipeline.session import GIB, _settings, check_master, check_packages, is_alone, memory_for, session


def fake_java(folder: Path, said: str, code: int = 0) -> Path:
    """A program that answers as some Java does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {code}\n")
    java.chmod(0o755)
    return java


OPENJDK_17 = 'openjdk version "17.0.9" 2023-10-17\nOpenJDK Runtime Environment (build 17.0.9+9)'


@pytest.mark.parametrize(
    "said",
    [
        OPENJDK_17,
        'openjdk version "21" 2023-09-19',
        'java version "25.0.1" 2025-10-21 LTS',
        "Picked up _JAVA_OPTIONS: -Xmx1g\n" + OPENJDK_17,
    ],
)
def test_a_java_that_will_do_is_found_by_home_and_by_path(tmp_path: Path, said: str) -> None:
    java = fake_java(tmp_path, said)

    assert check_java({"JAVA_HOME": str(tmp_path), "PATH": "/bin:/usr/bin"}).path == java
    assert check_java({"PATH": f"{java.parent}:/bin:/usr/bin"}).path == java


@pytest.mark.parametrize(
    ("said", "code", "wanted"),
    [
        ('openjdk version "11.0.22" 2024-01-16', 0, "Spark needs Java 17 or newer, and {java} is Java 11"),
        ('java version "1.8.0_402"', 0, "Spark needs Java 17 or newer, and {java} is Java 8"),
        ("no version here", 0, "Spark needs Java, and {java} -version fails: it says 'no version here'"),
        ("", 0, "Spark needs Java, and {java} -version fails: it says 'nothing'"),
        (
            "The operation couldn't be completed. Unable to locate a Java Runtime.",
            1,
            '{java} -version fails: it says "The operation',
        ),
    ],
)
def test_a_java_that_will_not_do_is_told_with_what_to_install(tmp_path: Path, said: str, code: int, wanted: str) -> None:
    java = fake_java(tmp_path, said, code)

    with pytest.raises(FailedPrecondition) as caught:
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/bin:/usr/bin"})
    assert wanted.format(java=java) in str(caught.value)
    assert "openjdk-17-jre-headless" in str(caught.value.hint)
    assert "JAVA_HOME" in str(caught.value.hint)


def test_no_java_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="JAVA_HOME is not set, no java on the PATH"):
        check_java({"PATH": str(tmp_path)})


def test_a_wrong_home_is_told_and_no_other_java_is_taken(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "good", OPENJDK_17)

    with pytest.raises(FailedPrecondition, match=f"JAVA_HOME is {tmp_path}/gone, where there is no bin/java"):
        check_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(java.parent)})


def test_a_java_that_is_no_program_is_told(tmp_path: Path) -> None:
    java = fake_java(tmp_path, "")
    java.write_bytes(b"\x00\x01")

    with pytest.raises(FailedPrecondition, match="does not run"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/bin"})


def installed(folder: Path, name: str, version: str) -> None:
    """What pip leaves of a package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("pyspark", "3.5.1", "the pipeline needs pyspark from 4.2 up to 5, and 3.5.1 is installed"),
        ("pyspark", "4.1.0", "the pipeline needs pyspark from 4.2 up to 5, and 4.1.0 is installed"),
        ("pyspark", "5.0.0.dev1", "the pipeline needs pyspark from 4.2 up to 5, and 5.0.0.dev1 is installed"),
        ("pandas", "3.0.0", "the pipeline needs pandas from 2.2 up to 3, which PySpark does not know, and 3.0.0 is installed"),
        ("pyarrow", "17.0.0", "the pipeline needs pyarrow 18 or newer, and 17.0.0 is installed"),
    ],
)
def test_a_package_of_another_version_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, said: str
) -> None:
    installed(tmp_path, name, version)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(FailedPrecondition) as caught:
        check_packages()
    assert str(caught.value) == said
    assert caught.value.hint == how_to_install("spark")


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev3", "4.3.1", "4.10"])
def test_a_version_that_fits_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    installed(tmp_path, "pyspark", version)
    monkeypatch.syspath_prepend(tmp_path)

    check_packages()


def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGES", {"no-such-package": ((1,), (2,), "1")})

    with pytest.raises(FailedPrecondition, match="the pipeline needs no-such-package, which is not installed"):
        check_packages()


def test_what_is_on_this_machine_needs_no_address_that_others_can_reach(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bool]] = [
        ("local", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://[::1]:7077", True),
        ("spark://10.0.0.1:7077", False),
        ("spark://localhost.example.org:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ]
    for master, wanted in cases:
        with subtests.test(master=master, wanted=wanted):
            assert is_alone(master) is wanted


def test_a_server_on_this_machine_is_known_by_its_address(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, bool]] = [
        ("http://127.0.0.1:8085", True),
        ("https://localhost", True),
        ("http://127.9.9.9:1", True),
        ("http://192.0.2.7:8085, http://127.0.0.1:8085", True),
        ("http://192.0.2.7:8085", False),
        ("http://no-such-host.invalid:8085", False),
        ("nonsense", False),
        ("http://[::1", False),
    ]
    for url, wanted in cases:
        with subtests.test(url=url, wanted=wanted):
            assert is_on_this_machine(url) is wanted


LOWERED = """
import os
from pathlib import Path
from penstock.pipeline.priority import NICENESS, lower_own, lower_session_of
lower_own()
lower_session_of(os.getpid())
group = Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0) >= NICENESS, not group.exists() or f"nice {NICENESS}" in group.read_text())
"""


def test_a_process_and_its_session_stand_back() -> None:
    done = subprocess.run([sys.executable, "-c", LOWERED], capture_output=True, text=True, start_new_session=True, check=True)

    assert done.stdout.split() == ["True", "True"]


def test_beside_a_server_one_processor_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, wanted in ((1, "local[1]"), (2, "local[1]"), (8, "local[7]")):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, count=processors: set(range(count)))
        assert _settings(None, None, {}, background=True)["spark.master"] == wanted
    assert _settings("local[3]", None, {}, background=True)["spark.master"] == "local[3]"
    assert _settings(None, None, {}, background=False)["spark.master"] == "local[*]"


def test_the_driver_takes_a_quarter_of_the_memory_within_bounds(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, str]] = [(GIB, "1024m"), (8 * GIB, "2048m"), (16 * GIB, "4096m"), (512 * GIB, "4096m")]
    for total, wanted in cases:
        with subtests.test(total=total, wanted=wanted):
            assert memory_for(total) == wanted


def test_a_master_and_a_remote_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="remote is 'sc://x', expected none beside a master"):
        session("x", master="local", remote="sc://x")


def test_a_remote_that_is_no_address_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "localhost:15002", "spark://127.0.0.1:7077", "sc://", "sc:127.0.0.1"]
    for remote in cases:
        with (
            subtests.test(remote=remote),
            pytest.raises(
                InvalidArgument, match=r"expected the address of a Spark Connect server, such as sc://127\.0\.0\.1:15002"
            ),
        ):
            session("x", remote=remote)


@pytest.mark.parametrize("port", ["1", "99999"])
def test_a_remote_where_nobody_listens_is_told_at_once(port: str) -> None:
    with pytest.raises(Unavailable, match=f"no Spark Connect server at sc://127.0.0.1:{port}: "):
        session("x", remote=f"sc://127.0.0.1:{port}")


def test_a_master_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(Unavailable, match=r"no Spark master at spark://127\.0\.0\.1:1: "):
        check_master("spark://127.0.0.1:1")
    for other in ("local[2]", "yarn", "spark://127.0.0.1:1,127.0.0.1:2"):
        check_master(other)


def test_a_driver_memory_that_java_does_not_know_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "much", "4", "4gg", "-1g", "0g", "1.5g"]
    for memory in cases:
        with (
            subtests.test(memory=memory),
            pytest.raises(InvalidArgument, match=r"driver_memory is .*, expected a size such as 512m or 4g"),
        ):
            session("x", driver_memory=memory)
