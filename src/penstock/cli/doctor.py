"""`penstock doctor`: is everything here that Penstock needs, and what to do about what is not."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import ssl
from collections.abc import Iterator

from penstock.cli.checks import (
    ClockWatch,
    Finding,
    Level,
    Listener,
    check_data_directory,
    check_extras,
    check_java,
    check_open_files,
    check_python,
    is_free,
    judge_log_api,
    judge_port,
    judge_server_clock,
    listening_process,
    ok,
    problem,
)
from penstock.cli.command import Parser
from penstock.cli.output import paint, printable, say, say_json
from penstock.cli.session import SERVER_VARIABLE, TOKEN_VARIABLE, Target, add_target, target_of
from penstock.cli.wording import count, span
from penstock.clock import SystemClock, monotonic
from penstock.config import Settings, find_file, load
from penstock.durations import SECOND, instant
from penstock.errors import InvalidArgument, PenstockError, Unauthenticated

ANSWER_SECONDS = 2.0
MAX_ANSWER = 10_000


def configure(parser: Parser) -> None:
    """The target's flags, and the file of a server's settings."""
    parser.add_argument("--config", metavar="FILE", help="the server's TOML file of settings (default: penstock.toml here)")
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print a line for each finding; 1 when one is a problem."""
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
    """Every check, quick ones first, each told when it is done."""
    watch = ClockWatch()
    yield check_python()
    yield from check_extras()
    yield check_java()
    settings = Settings()
    try:
        settings, _ = load({"data_dir": found.data_dir}, os.environ, find_file(found.config, os.environ))
    except InvalidArgument as error:
        yield problem("settings", str(error), error.hint or "correct it; the other checks go by the defaults")
    yield check_open_files(settings.max_connections)
    if settings.data_dir is not None:
        yield from check_data_directory(settings.data_dir)
    server = found.server or os.environ.get(SERVER_VARIABLE)
    if server is None:
        version = penstock_at(settings, settings.port)
        yield from _ports(settings, version)
        server = settings.url(settings.port) if version is not None else None
    yield watch.finding()
    if server is None:
        yield ok("server", "none runs here", "penstock serve")
    else:
        meant = argparse.Namespace(server=server, data_dir=None, token=found.token, project=found.project)
        yield from asyncio.run(check_server(target_of(meant, os.environ)))


def _ports(settings: Settings, version: str | None) -> Iterator[Finding]:
    """The three ports of a server. One that is there already is known by its HTTP port, and the rest by its process."""
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
    """The version of the Penstock server whose HTTP port this is; None when it is none."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    if settings.tls_cert is not None:
        # Nothing secret is told or believed: whoever answers is only asked what it is.
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
    """Whether the server answers, is well, takes the token, and has the same time."""
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
        hint = "it goes on by itself when its disk can be written again; see the server's log"
        findings = [problem("server", f"{target.server} cannot write its disk: {info.problem}", hint)]
    if info.log_api is not None:
        findings.append(judge_log_api(info.log_api))
    if target.token is not None:
        findings.append(ok("token", f"accepted, for project {info.project}"))
    return [*findings, judge_server_clock(instant(info.now, "now") - wall - trip // 2, trip // 2)]
