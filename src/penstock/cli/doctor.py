"""`penstock doctor`: check the installation and the environment, and report what to do about each problem.

Each check returns findings, and changes nothing permanently. A finding is `ok`, a `warning` (it works, but not as well as it
could) or a `problem` (something will not work).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import fcntl
import http.client
import json
import os
import re
import resource
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from statistics import median

from penstock.cli.command import Parser
from penstock.cli.output import paint, say, say_json
from penstock.cli.session import SERVER_VARIABLE, TOKEN_VARIABLE, Target, add_target, server_of
from penstock.clock import SystemClock, monotonic
from penstock.config import Settings, find_file, load
from penstock.durations import SECOND, instant, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, Unauthenticated
from penstock.extras import how_to_install
from penstock.pipeline import java
from penstock.values.wording import count, octets, printable, span

ANSWER_SECONDS = 2.0
MAX_ANSWER = 10_000


def configure(parser: Parser) -> None:
    """Add the flags of the target, and of a server's settings."""
    parser.add_argument("--config", metavar="FILE", help="the server's TOML file of settings (default: penstock.toml here)")
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print a line for each finding; 1 if one is a problem."""
    findings = []
    for finding in _findings(found):
        findings.append(finding)
        if not found.json:
            say(f"{_painted(finding.level)} {finding.check:<16} {printable(finding.text)}")
            if finding.hint is not None:
                say(f"{'':<25} -> {finding.hint}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if found.json:
        say_json({"problems": problems, "warnings": warnings, "findings": findings})
    else:
        say(f"\n{count(problems, 'problem')}, {count(warnings, 'warning')}")
    return 1 if problems else 0


def _painted(level: Level) -> str:
    text = f"{level:<8}"
    return text if level is Level.OK else paint(text, "red" if level is Level.PROBLEM else "yellow")


def _findings(found: argparse.Namespace) -> Iterator[Finding]:
    """Every check, quick ones first, each reported when it is done."""
    watch = ClockWatch()
    yield check_python()
    yield from check_extras()
    yield check_java()
    settings = Settings()
    try:
        settings, _ = load({"data_dir": found.data_dir}, os.environ, find_file(found.config, os.environ))
    except InvalidArgument as error:
        yield problem("settings", str(error), error.hint or "correct it; the other checks use the defaults")
    yield check_open_files(settings.max_connections)
    if settings.data_dir is not None:
        yield from check_data_directory(settings.data_dir)
    server = server_of(found, os.environ)
    if server is None:
        version = penstock_at(settings, settings.port)
        yield from _ports(settings, version)
        if version is not None:
            server = server_of(argparse.Namespace(**{**vars(found), "server": settings.url(settings.port)}), os.environ)
    yield watch.finding()
    if server is None:
        yield ok("server", "none runs here", "penstock serve")
    else:
        yield from asyncio.run(check_server(server))


def _ports(settings: Settings, version: str | None) -> Iterator[Finding]:
    """The three ports of a server. A Penstock server is recognized by its HTTP port, other programs by their process."""
    server = listening_process(settings.port) if version is not None else None
    for port, purpose, flag in (
        (settings.port, "HTTP", "--port"),
        (settings.grpc_port, "gRPC", "--grpc-port"),
        (settings.native_port, "clients", "--native-port"),
    ):
        if not port or (is_open := is_free(settings.host, port)) is None:
            continue
        listener = None
        if not is_open:
            process = listening_process(port)
            listener = Listener(process, version if process == server else None)
        yield judge_port(port, purpose, flag, listener)


def penstock_at(settings: Settings, port: int) -> str | None:
    """The version of the Penstock server with this HTTP port; None if it is not one."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    if settings.tls_cert is not None:
        # No secret is sent: this only asks for the version.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        asked: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
    else:
        asked = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        asked.request("GET", "/health")
        health = json.loads(asked.getresponse().read(MAX_ANSWER))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        asked.close()
    is_ours = isinstance(health, dict) and health.get("service") == "penstock"
    return str(health.get("version")) if is_ours else None


async def check_server(target: Target) -> list[Finding]:
    """Whether the server answers, is healthy, accepts the token, and has the same time."""
    try:
        async with target.client() as pubsub:
            wall, began = SystemClock().now(), monotonic()
            info = await pubsub.info()
            trip = monotonic() - began
    except Unauthenticated as error:
        hint = f"`penstock token create` on the server's machine makes one; give it with {TOKEN_VARIABLE} or --token"
        return [ok("server", f"{target.server} answers"), problem("token", str(error), hint)]
    except PenstockError as error:
        hint = error.hint or f"is the address right (--server, {SERVER_VARIABLE}), and does the server run? `penstock serve`"
        return [problem("server", str(error), hint)]
    kept = "on disk" if info.is_durable else "in memory only"
    text = f"{target.server} answers in {span(trip / SECOND)}: version {info.version}, messages are kept {kept}"
    findings = [ok("server", text)]
    if info.problem is not None:
        hint = "it continues by itself when its disk can be written again; see the server's log"
        findings = [problem("server", f"{target.server} cannot write its disk: {info.problem}", hint)]
    if info.log_api is not None:
        findings.append(judge_log_api(info.log_api))
    if target.token is not None:
        findings.append(ok("token", f"accepted, for project {info.project}"))
    return [*findings, judge_server_clock(instant(info.now, "now") - wall - trip // 2, trip // 2)]


PYTHON = (3, 11)
EXTRAS = {
    "server": "`penstock serve`",
    "router": "`penstock router run`",
    "arrow": "the log API of a server, which Spark uses; without it, that API is off",
    "transforms": "JavaScript transforms of messages",
    "spark": "the data pipeline on Spark",
}
LITTLE_SPACE, NO_SPACE = 2**30, 100 * 2**20
SYNCS = 5
SLOW_SYNC, UNREAL_SYNC = 0.02, 0.000_02
STEP = SECOND // 20
EARLIEST_NOW = 1_735_689_600 * SECOND  # 2025: no version of Penstock is older
FEW_FILES = 4_096


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str
    level: Level
    text: str
    hint: str | None = None


def ok(check: str, text: str, hint: str | None = None) -> Finding:
    """Everything is fine; the hint names an optional improvement."""
    return Finding(check, Level.OK, text, hint)


def warning(check: str, text: str, hint: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(check, Level.WARNING, text, hint)


def problem(check: str, text: str, hint: str) -> Finding:
    """Something will not work."""
    return Finding(check, Level.PROBLEM, text, hint)


# ── what is installed ────────────────────────────────────────────────────────────────────────────────────────────────────


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The interpreter."""
    shown = f"Python {'.'.join(map(str, version))} at {sys.executable}"
    if version < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        return problem("python", shown, f"Penstock needs Python {wanted} or newer")
    return ok("python", shown)


def check_extras(requirements: Iterable[str] | None = None) -> Iterator[Finding]:
    """The libraries that parts of Penstock need, from the metadata of the package."""
    if requirements is None:
        try:
            requirements = metadata.requires("penstock") or ()
        except metadata.PackageNotFoundError:
            yield warning("extras", "Penstock runs from its source and is not installed", how_to_install())
            return
    needs: dict[str, list[str]] = {}
    for line in requirements:
        wanted, _, condition = line.partition(";")
        if found := re.search(r"extra == ['\"]([\w-]+)['\"]", condition):
            needs.setdefault(found[1], []).append(wanted.strip())
    for extra, purpose in EXTRAS.items():
        if extra in needs:
            yield _extra(extra, purpose, needs[extra])


def _extra(extra: str, purpose: str, wanted: Iterable[str]) -> Finding:
    check = f"extra {extra}"
    install = how_to_install(extra)
    found, missing, old = [], [], []
    for requirement in wanted:
        name = re.split(r"[\[<>=!~ ]", requirement, maxsplit=1)[0]
        if name == "penstock":
            continue  # another extra, which has its own line
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        least = re.search(r">=([\d.]+)", requirement)
        if least and _release(version) < _release(least[1]):
            old.append(f"{name} {version}, expected {least[1]}")
    if missing:
        text = f"not installed: {', '.join(missing)}; needed for {purpose}"
        # Most users want the server; the other extras are optional.
        return warning(check, text, install) if extra == "server" else ok(check, text, install)
    if old:
        return warning(check, f"too old: {'; '.join(old)}", f"{install} --upgrade")
    return ok(check, ", ".join(found))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version, maxsplit=1)[0]))


def check_java() -> Finding:
    """Java, which only Spark needs."""
    if java.find_java() is None:
        return ok("java", "not installed; only Spark needs it", java.INSTALL)
    try:
        found = java.check_java()
    except FailedPrecondition as error:
        return warning("java", str(error), java.INSTALL)
    return ok("java", f"Java {found.version} at {found.path}")


def check_open_files(max_connections: int, limits: tuple[int, int] | None = None) -> Finding:
    """How many files and connections a process may open. A server raises the soft limit itself, up to the hard one."""
    _, hard = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= max_connections + FEW_FILES // 4:
        return ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"a server may have {hard:,} at once")
    hint = f"raise the hard limit (ulimit -Hn, LimitNOFILE= of systemd), or lower --max-connections ({max_connections:,})"
    text = f"a server may have {hard:,} at once, fewer than its connections"
    return (problem if hard < FEW_FILES // 16 else warning)("open files", text, hint)


# ── where messages are kept ──────────────────────────────────────────────────────────────────────────────────────────────


def check_data_directory(path: Path) -> Iterator[Finding]:
    """Whether a server could use the directory, who has it open, and how fast the disk is."""
    name = "data directory"
    place = next((one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one)), Path("/"))
    if not place.is_dir():
        yield problem(name, f"{place} is a file", "choose another with --data-dir")
        return
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield problem(
            name, f"{place} cannot be written by this user", f"chown {_user()} {place}, or choose another with --data-dir"
        )
        return
    if place != path.absolute():
        yield ok(name, f"{path} does not exist yet; a server creates it")
    elif (holder := _holder(place)) is not None:
        yield ok(name, f"{path} is in use by {holder}")
    else:
        yield ok(name, f"{path} exists, and is not in use")
    yield judge_space(place, shutil.disk_usage(place).free)
    yield _sync_speed(place)


def _user() -> str:
    return os.environ.get("USER") or str(os.getuid())


def _holder(path: Path) -> str | None:
    """The process that has a data directory open: its lock is tried, and released at once."""
    try:
        lock = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(lock, 100, 0).decode(errors="replace").strip() or "another process"
    finally:
        os.close(lock)
    return None


def judge_space(place: Path, free: int) -> Finding:
    """The free space of the disk."""
    text = f"{octets(free)} free at {place}"
    hint = "make room, or keep messages on another disk with --data-dir; a server whose disk is full refuses to publish"
    if free < NO_SPACE:
        return problem("disk space", text, hint)
    return warning("disk space", text, hint) if free < LITTLE_SPACE else ok("disk space", text)


def _sync_speed(place: Path) -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
            spans = []
            for _ in range(SYNCS):
                os.pwrite(file.fileno(), b"\0" * 4096, 0)
                began = monotonic()
                os.fsync(file.fileno())
                spans.append((monotonic() - began) / SECOND)
    except OSError as error:
        return problem("disk speed", f"cannot write to {place}: {error.strerror}", "see whether the disk is full or read-only")
    return judge_sync(median(spans))


def judge_sync(seconds: float) -> Finding:
    """The duration of a sync, which a single publish waits for."""
    text = f"a sync takes {span(seconds)}"
    if seconds > SLOW_SYNC:
        return warning("disk speed", text, "every publish waits for one; publish in batches, or use a faster disk")
    if seconds < UNREAL_SYNC:
        hint = "a file system in memory loses everything with the power; `df` shows its type"
        return warning("disk speed", f"{text}: too fast for a disk", hint)
    return ok("disk speed", text)


# ── ports ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Listener:
    """The listener of a port, as far as it can be determined."""

    process: str | None = None
    """`812 (java)`; None if it belongs to another user."""
    penstock: str | None = None
    """The version, if it is a Penstock server."""


def is_free(host: str, port: int) -> bool | None:
    """Whether a server could listen there; None if that is not permitted or the address belongs to another machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return False if error.errno == errno.EADDRINUSE else None
    return True


def judge_port(port: int, purpose: str, flag: str, listener: Listener | None) -> Finding:
    """A port of a server: free (`listener` is None), or used by a Penstock server or by another program."""
    name = f"port {port}"
    if listener is None:
        return ok(name, f"free for {purpose}")
    who = f"process {listener.process}" if listener.process else "another process"
    if listener.penstock is not None:
        return ok(name, f"{purpose} of a Penstock server, {listener.penstock}, {who}")
    hint = f"`penstock serve` needs it for {purpose}: stop that program, or take another port with {flag}"
    return problem(name, f"held by {who}, which is not a Penstock server", hint)


def listening_process(port: int, proc: Path = Path("/proc")) -> str | None:
    """`812 (java)`: the process that listens on a port; None if the system or the user's rights do not show it."""
    sockets = {
        fields[9]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, _lines(proc / "net" / table))
        if len(fields) > 9 and fields[3] == "0A" and fields[1].rpartition(":")[2] == f"{port:04X}"
    }
    links = {f"socket:[{inode}]" for inode in sockets}
    for folder in proc.glob("[0-9]*") if links else ():
        try:
            if any(entry.is_symlink() and str(entry.readlink()) in links for entry in (folder / "fd").iterdir()):
                return f"{folder.name} ({(folder / 'comm').read_text(errors='replace').strip()})"
        except OSError:
            continue  # it ended, or belongs to another user
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class ClockWatch:
    """Notices whether the wall clock is changed between its creation and its `finding`."""

    def __init__(self) -> None:
        self._wall, self._steady = SystemClock().now(), monotonic()

    def finding(self) -> Finding:
        """The clock during the other checks."""
        now, passed = SystemClock().now(), monotonic() - self._steady
        return judge_clock(now, now - self._wall - passed)


def judge_clock(now: int, step: int) -> Finding:
    """The wall clock: its time, and by how much it was changed during the checks."""
    local = to_datetime(now).astimezone()
    shown = f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()} (UTC{local:%z})"
    hint = "let a time service (chrony, systemd-timesyncd) set the clock"
    if now < EARLIEST_NOW:
        return problem("clock", f"{shown} is in the past", hint)
    if abs(step) > STEP:
        text = f"{shown}; it was changed by {span(step / SECOND)} during the checks"
        return warning("clock", text, f"{hint} in small steps: leases and delays follow it")
    return ok("clock", shown)


def judge_log_api(is_on: bool) -> Finding:
    """Whether a server lets Spark and other programs read and write its log."""
    if is_on:
        return ok("log API", "on")
    hint = f"for Spark, on the server's machine: {how_to_install('arrow')}, then start the server again"
    return ok("log API", "off: the server has no pyarrow", hint)


def judge_server_clock(difference: int, uncertainty: int) -> Finding:
    """The difference between the server's clock and ours, which is accurate to half a round trip."""
    off = span(abs(difference) / SECOND)
    if abs(difference) <= SECOND + uncertainty:
        return ok("server's clock", f"within {span(max(abs(difference), uncertainty) / SECOND)} of this one")
    side = "ahead of" if difference > 0 else "behind"
    return warning(
        "server's clock", f"{off} {side} this one", "publish times and deadlines are the server's; set both by a time service"
    )
