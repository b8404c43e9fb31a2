"""What `penstock doctor` makes of what it sees."""

import fcntl
import os
import socket
from pathlib import Path

import pytest

from penstock import MessageQueue
from penstock.cli import doctor
from penstock.cli.doctor import Finding, Level, Listener
from penstock.durations import SECOND
from penstock.extras import how_to_install

OK, WARNING, PROBLEM = Level.OK, Level.WARNING, Level.PROBLEM


def test_an_old_python_is_a_problem() -> None:
    assert doctor.check_python().level is OK
    found = doctor.check_python((3, 10, 4))
    assert (found.level, found.hint) == (PROBLEM, "Penstock needs Python 3.11 or newer")


@pytest.mark.parametrize(
    ("requirements", "level", "said"),
    [
        (["msgspec>=0.19", "pytest>=1; extra == 'server'"], OK, "pytest "),
        (["no-such-library>=2; extra == 'server'"], WARNING, "not installed: no-such-library; needed for `penstock serve`"),
        (
            ["no-such-library[x]>=2 ; extra == 'spark'"],
            OK,
            "not installed: no-such-library; needed for the data pipeline on Spark",
        ),
        (["pytest>=999.1; extra == 'arrow'"], WARNING, "too old: pytest "),
        (['pytest!=1,>=2; extra == "transforms"'], OK, "pytest "),
    ],
)
def test_an_extra_is_judged_by_what_the_package_lists(requirements: list[str], level: Level, said: str) -> None:
    [found] = doctor.check_extras(requirements)
    assert found.level is level
    assert found.text.startswith(said)
    assert (found.hint is None) == ("installed" not in found.text and "old" not in found.text)


def test_a_server_whose_log_api_is_off_is_told_how_to_turn_it_on() -> None:
    [missing] = doctor.check_extras(["no-such-library; extra == 'arrow'"])
    assert "the log API of a server, which Spark uses" in missing.text
    assert missing.hint == how_to_install("arrow")

    assert doctor.judge_log_api(True).hint is None
    off = doctor.judge_log_api(False)
    assert off.text.startswith("off")
    assert how_to_install("arrow") in (off.hint or "")


def test_the_installed_package_lists_its_extras() -> None:
    assert {"extra server", "extra arrow"} <= {found.check for found in doctor.check_extras()}
    assert list(doctor.check_extras(["x; extra == 'dev'", "y"])) == []


def test_java_is_looked_for_where_java_home_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.check_java().level is WARNING

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"99.1\"' >&2\n")
    java.chmod(0o755)
    assert doctor.check_java() == Finding("java", OK, f"Java 99 at {java}", None)
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    assert (doctor.check_java().level, doctor.check_java().text) == (
        WARNING,
        f"Spark needs Java 17 or newer, and {java} is Java 8",
    )

    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_java() == Finding("java", OK, "not installed; only Spark needs it", doctor.check_java().hint)


@pytest.mark.parametrize(
    ("hard", "level"), [(-1, OK), (1_000_000, OK), (11_024, OK), (11_023, WARNING), (1_024, WARNING), (200, PROBLEM)]
)
def test_open_files(hard: int, level: Level) -> None:
    assert doctor.check_open_files(10_000, (100, hard)).level is level


@pytest.mark.parametrize(("free", "level"), [(2**40, OK), (2**30 - 1, WARNING), (100 * 2**20 - 1, PROBLEM), (0, PROBLEM)])
def test_room_on_the_disk(free: int, level: Level) -> None:
    assert doctor.judge_space(Path("/data"), free).level is level


@pytest.mark.parametrize(("seconds", "level"), [(0.000_001, WARNING), (0.000_1, OK), (0.02, OK), (0.03, WARNING)])
def test_the_speed_of_the_disk(seconds: float, level: Level) -> None:
    assert doctor.judge_sync(seconds).level is level


def names(findings: list[Finding]) -> list[str]:
    return [found.check for found in findings]


def test_a_data_directory_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    found = list(doctor.check_data_directory(tmp_path / "a" / "b"))

    assert names(found) == ["data directory", "disk space", "disk speed"]
    assert "does not exist yet" in found[0].text
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_in_use_says_by_whom_and_stays_in_use(tmp_path: Path) -> None:
    with MessageQueue(data_dir=tmp_path / "data") as queue:
        queue.register_topic("t")
        found = next(doctor.check_data_directory(tmp_path / "data"))
        assert (found.level, found.text) == (OK, f"{tmp_path / 'data'} is in use by process {os.getpid()}")

    assert next(doctor.check_data_directory(tmp_path / "data")).text.endswith("exists, and is not in use")
    with MessageQueue(data_dir=tmp_path / "data") as queue:  # the check let go of the lock
        assert queue.get_topic("t") is not None


def test_a_lock_that_says_nothing_is_held_by_another_process(tmp_path: Path) -> None:
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by another process" in next(doctor.check_data_directory(tmp_path)).text


def test_a_file_in_place_of_the_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for path in (tmp_path / "data", tmp_path / "data" / "inner"):
        [found] = doctor.check_data_directory(path)
        assert (found.level, found.text) == (PROBLEM, f"{tmp_path / 'data'} is a file")


def test_a_directory_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere, so rights alone prove nothing here
    [found] = doctor.check_data_directory(tmp_path)
    assert found.level is PROBLEM
    assert found.hint is not None
    assert found.hint.startswith("chown ")


def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert doctor.is_free("127.0.0.1", port) is False
        assert doctor.listening_process(port) == f"{os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    assert doctor.is_free("127.0.0.1", port) is True
    assert doctor.listening_process(port) is None
    assert doctor.is_free("192.0.2.1", port) is None  # no address of this machine


def test_a_system_that_shows_no_processes_is_no_error(tmp_path: Path) -> None:
    assert doctor.listening_process(8085, tmp_path) is None


@pytest.mark.parametrize(
    ("listener", "level", "text"),
    [
        (None, OK, "free for gRPC"),
        (Listener("812 (penstock)", "0.1.0"), OK, "gRPC of a Penstock server, 0.1.0, process 812 (penstock)"),
        (Listener("812 (java)"), PROBLEM, "held by process 812 (java), which is not a Penstock server"),
        (Listener(), PROBLEM, "held by another process, which is not a Penstock server"),
    ],
)
def test_who_holds_a_port(listener: Listener | None, level: Level, text: str) -> None:
    found = doctor.judge_port(8086, "gRPC", "--grpc-port", listener)
    assert (found.check, found.level, found.text) == ("port 8086", level, text)
    assert (level is OK) == (found.hint is None)


NOW = 1_790_000_000 * SECOND


@pytest.mark.parametrize(
    ("now", "step", "level"),
    [(NOW, 0, OK), (NOW, SECOND // 20, OK), (NOW, SECOND, WARNING), (NOW, -SECOND, WARNING), (0, 0, PROBLEM)],
)
def test_the_clock(now: int, step: int, level: Level) -> None:
    assert doctor.judge_clock(now, step).level is level


def test_the_clock_of_this_machine_does_not_jump_while_we_look() -> None:
    assert doctor.ClockWatch().finding().level is OK


@pytest.mark.parametrize(
    ("difference", "uncertainty", "level", "text"),
    [
        (0, 500, OK, "within 500 µs of this one"),
        (-900_000, 500, OK, "within 900 ms of this one"),
        (3 * SECOND, 500, WARNING, "3.0 s ahead of this one"),
        (-3 * SECOND, 500, WARNING, "3.0 s behind this one"),
        (3 * SECOND, 2 * SECOND, OK, "within 3.0 s of this one"),
    ],
)
def test_the_clock_of_the_server(difference: int, uncertainty: int, level: Level, text: str) -> None:
    found = doctor.judge_server_clock(difference, uncertainty)
    assert (found.level, found.text) == (level, text)
