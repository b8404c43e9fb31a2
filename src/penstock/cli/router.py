"""`penstock router …`: run a router, check its configuration, show its state, and send it test messages."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import threading
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from penstock.cli.arguments import whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.serve import serve
from penstock.cli.session import CA_VARIABLE, TOKEN_VARIABLE, add_ca, trusting
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import SystemClock, monotonic
from penstock.config import OPTIONS
from penstock.config.load import DEFAULT
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument, NotFound, PenstockError, ServerUnreachable, Unauthenticated
from penstock.router.configuration import URL_VARIABLE, ConfigCache, ConfigFile, ConfigSource, find_places
from penstock.router.core.config import RouterConfig, changes, merge, shown_uri
from penstock.router.source import SourceContext, open_source

PORT = 8095
DATA_DIR = Path("penstock-router")
CACHE = "router-config.json"

_PREFIX = "router_"
_HELD_BACK = {"router", "cors_origins", "push_allow", "resp_port", "rpc_port", "public_url", "grpc_port"}
"""Settings that have no effect here, or have flags with better names."""


def configure(parser: Parser) -> None:
    verbs = Verbs(parser)
    run = verbs.add("run", "take messages from queues and deliver them, until SIGTERM or Ctrl-C", run_router)
    add_places(run)
    add_flags(
        run,
        {option.name for option in OPTIONS if not option.name.startswith("hub")} - _HELD_BACK,
        file_flag="--settings",
        prefix=_PREFIX,
        defaults={"data_dir": f"./{DATA_DIR}", "port": str(PORT), "native_port": "a free one"},
    )

    check = verbs.add("check", "check a configuration, and show what it would change", run_check)
    add_places(check)
    check.add_argument("--data-dir", metavar="PATH", type=Path, default=DATA_DIR, help=f"of the router (default: {DATA_DIR})")
    check.add_argument("--json", action="store_true", help="print JSON, for programs")

    _add_status(verbs)


def add_places(parser: Parser) -> None:
    """Where the configuration is."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--config", metavar="FILE", type=Path, help="the configuration: queues and pools, JSON or TOML")
    group.add_argument(
        "--config-url", metavar="URL", help=f"the URL to fetch it from, or several separated by commas (default: {URL_VARIABLE})"
    )


def places_of(found: argparse.Namespace) -> list[ConfigSource]:
    """The places of the configuration that are meant; InvalidArgument when there is none."""
    places = find_places(file=found.config, urls=found.config_url, environment=os.environ)
    if not places:
        raise InvalidArgument("there is no configuration", hint=f"give --config FILE or --config-url URL, or set {URL_VARIABLE}")
    return places


def run_router(found: argparse.Namespace) -> int:
    """Run a router, with a router's defaults for ports and directory."""
    settings, origins = settings_of(found, prefix=_PREFIX)
    places = places_of(found)
    own: dict[str, object] = {"port": PORT, "grpc_port": 0, "native_port": 0, "hub": False}
    if not settings.memory:
        own["data_dir"] = DATA_DIR
    changed = {name: value for name, value in own.items() if origins[name] == DEFAULT}
    if "data_dir" in changed and origins["token_file"] == DEFAULT:
        changed["token_file"] = None
    changed["router"] = str(found.config) if found.config is not None else found.config_url or os.environ.get(URL_VARIABLE)
    settings = replace(settings, **changed)  # type: ignore[arg-type]  # by name, and checked when it is built
    if found.config is not None and not (settings.data_dir is not None and ConfigCache(settings.data_dir / CACHE).load()):
        asyncio.run(fetch(places, []))  # report an invalid file before anything is opened
    return serve(settings, router_leads=True)


def run_check(found: argparse.Namespace) -> int:
    """Show the content of a configuration, and its differences from the router's last one."""
    places = places_of(found)
    passed_over: list[str] = []
    new = merge(asyncio.run(fetch(places, passed_over)))
    for key in passed_over:
        complain(f"{key} is unknown and ignored")
    asyncio.run(_check_queues(new))
    known = ConfigCache(found.data_dir / CACHE).load()
    old = merge(known.values()) if known else None
    lines = changes(old, new).describe()
    if found.json:
        say_json({"pools": len(new.pools), "queues": len(new.queues), "changes": lines})
        return 0
    say(_pools(new))
    say("")
    say(_queues(new))
    say("")
    if old is None:
        say(f"the configuration is valid; no router has run in {found.data_dir}, so all of it would be new")
    elif not lines:
        say("the configuration is valid, and nothing would change")
    else:
        say("the configuration is valid; it would change:")
        for line in lines:
            say(f"  {line}")
    return 0


async def fetch(places: list[ConfigSource], passed_over: list[str]) -> list[RouterConfig]:
    """The configuration of each place. Keys that mean nothing are added to `passed_over`."""
    found: list[RouterConfig] = []
    for place in places:
        try:
            found.append(await place.fetch(passed_over))
        except PenstockError as error:
            # A missing file is a wrong name; an endpoint that does not answer may answer later.
            kind = InvalidArgument if isinstance(place, ConfigFile) else type(error)
            raise kind(f"{place.name}: {error}", hint=error.hint) from None
    return found


class _AnyQueues:
    """Accepts any queue of Penstock: whether it exists is known when the router runs."""

    def open(self, *_: object) -> NoReturn:
        raise _Openable


class _Openable(Exception):
    """The URI names a queue."""


async def _check_queues(config: RouterConfig) -> None:
    """Refuse URIs that name no queue, all at once. It connects to nothing."""
    context = SourceContext(environment=os.environ, clock=SystemClock(), local=_AnyQueues(), remote=_AnyQueues())
    wrong: list[str] = []
    at_spark = config.of("spark").queues
    for queue in config.queues:
        try:
            open_source(queue, context)
            if queue in at_spark:
                wrong.append(f"queue {shown_uri(queue.name)} has the engine spark, which takes from queues of Penstock alone")
        except _Openable:
            pass
        except PenstockError as error:
            name = shown_uri(queue.name)
            wrong.append(str(error) if name in str(error) else f"queue {name}: {error}")
    if wrong:
        raise InvalidArgument("\n".join(wrong))


def _pools(config: RouterConfig) -> str:
    rows = [[pool.code, str(pool.concurrency), str(pool.rate_per_minute or "-"), pool.engine] for pool in config.pools]
    return table([["POOL", "CONCURRENCY", "A MINUTE", "ENGINE"], *rows])


def _queues(config: RouterConfig) -> str:
    at_spark = config.of("spark").queues
    rows = [
        [
            shown_uri(queue.name),
            shown_uri(queue.uri),
            str(queue.connections),
            f"{queue.visibility_timeout} s",
            "spark" if queue in at_spark else "local",
        ]
        for queue in config.queues
    ]
    return table([["QUEUE", "URI", "CONNECTIONS", "VISIBILITY", "ENGINE"], *rows])


SERVER = "http://127.0.0.1:8095"
SERVER_VARIABLE = "PENSTOCK_ROUTER"
SECONDS = 30
START_SECONDS, LOOK_SECONDS = 10, 0.05
"""How long a new router may take until it listens, and how often to check."""
WELL = "HEALTHY"


def _add_status(verbs: Verbs) -> None:
    """Add `status` and `seed`."""
    status = verbs.add("status", "show the state of a router: its pools, queues, breakers and warnings", run_status)
    seed = verbs.add("seed", "publish test messages to a router's queues (needs --development there)", run_seed)
    for parser in (status, seed):
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        parser.add_argument("--server", metavar="URL", help=f"the router's address (default: {SERVER_VARIABLE}, or {SERVER})")
        parser.add_argument(
            "--token", help=f"the caller's token, if the router requires one; other users see flags, so prefer {TOKEN_VARIABLE}"
        )
        add_ca(parser)
    seed.add_argument("--count", type=whole(1), default=10, metavar="N", help="how many messages (default: 10)")
    seed.add_argument(
        "--queue", metavar="NAME", default="random", help="high, medium, low, random, or a queue's name (default: random)"
    )
    seed.add_argument(
        "--endpoint",
        metavar="NAME",
        default="random",
        help="fast, slow, faulty, fail, success, pending, client-error, random, or a URL (default: random, of the first four)",
    )
    seed.add_argument(
        "--groups",
        choices=("unique", "1of8", "single"),
        default="unique",
        help="a group for each message, eight, or one (default: unique)",
    )


def run_status(found: argparse.Namespace) -> int:
    """Exit with 0 if the router is healthy, otherwise with 1."""
    router = _Router(found)
    health = router.get("/monitoring/health")
    pools, queues = router.get("/monitoring/pool-stats"), router.get("/monitoring/queue-stats")
    breakers, warnings = router.get("/monitoring/circuit-breakers"), router.get("/monitoring/warnings/unacknowledged")
    standby = router.get("/monitoring/standby-status")
    if found.json:
        say_json(
            {"health": health, "pools": pools, "queues": queues, "breakers": breakers, "warnings": warnings, "standby": standby}
        )
    else:
        _show_health(health, standby)
        _show_tables(pools, queues, breakers)
        _show_warnings(warnings)
    return 0 if health["status"] == WELL else 1


def run_seed(found: argparse.Namespace) -> int:
    """Print how many messages were sent."""
    asked = {"count": found.count, "queue": found.queue, "endpoint": found.endpoint, "messageGroupMode": found.groups}
    answer = _Router(found).call("POST", "/api/seed/messages", asked, patience=START_SECONDS)
    if found.json:
        say_json(answer)
    else:
        say(f"sent {answer['messagesSent']} of {answer['totalRequested']} messages")
    return 0


def _show_health(health: Any, standby: Any) -> None:
    details = health["details"]
    reason = details.get("degradationReason")
    say(f"{health['status'].lower()}, up {health['uptimeMillis'] // 1000} s" + (f": {reason}" if reason else ""))
    if standby.get("standbyEnabled"):
        say(f"{standby['role'].lower()} {standby['instanceId']}; the lock is held by {standby['currentLockHolder'] or 'nobody'}")


def _show_tables(pools: Any, queues: Any, breakers: Any) -> None:
    if queues:
        rows = [
            [name, str(one["totalMessages"]), str(one["totalConsumed"]), str(one["totalFailed"]), str(one["pendingMessages"])]
            for name, one in sorted(queues.items())
        ]
        say("\n" + table([["QUEUE", "RECEIVED", "DONE", "RELEASED", "PENDING"], *rows]))
    if pools:
        rows = [
            [
                code,
                f"{one['activeWorkers']}/{one['maxConcurrency']}",
                f"{one['queueSize']}/{one['maxQueueCapacity']}",
                str(one["totalSucceeded"]),
                str(one["totalTransient"] + one["totalThrottled"]),
                str(one["totalFailed"]),
                f"{one['averageProcessingTimeMs']:.0f} ms",
            ]
            for code, one in sorted(pools.items())
        ]
        say("\n" + table([["POOL", "WORKING", "WAITING", "SUCCEEDED", "REPEATED", "FAILED", "AVERAGE"], *rows]))
    if breakers:
        rows = [
            [name, one["state"], str(one["successfulCalls"]), str(one["failedCalls"]), str(one["rejectedCalls"])]
            for name, one in sorted(breakers.items())
        ]
        say("\n" + table([["TARGET", "BREAKER", "SUCCEEDED", "FAILED", "REJECTED"], *rows]))


def _show_warnings(warnings: Any) -> None:
    if warnings:
        say("")
        for one in warnings[:20]:
            times = f" ({one['count']} times)" if one.get("count", 1) > 1 else ""
            say(f"{one['severity']} {one['category']}: {one['message']}{times}")


class _Router:
    """The API of a running router."""

    def __init__(self, found: argparse.Namespace) -> None:
        self._url = found.server or os.environ.get(SERVER_VARIABLE) or SERVER
        token = found.token or os.environ.get(TOKEN_VARIABLE)
        ca = found.ca or os.environ.get(CA_VARIABLE)
        self._tls = None if ca is None else trusting(ca)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._parts = urlsplit(self._url)
            is_whole = self._parts.scheme in {"http", "https"} and bool(self._parts.hostname) and self._parts.port != 0
        except ValueError:
            is_whole = False
        self._url = shown_uri(self._url)  # from here on it is only displayed
        if not is_whole:
            raise InvalidArgument.of("--server", self._url, f"an address such as {SERVER}")

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def call(self, method: str, path: str, asked: object = None, *, patience: float = 0) -> Any:
        """Call the router, for `patience` seconds if nothing listens yet; returns its JSON."""
        body = None if asked is None else json.dumps(asked).encode()
        headers = {**self._headers, **({} if body is None else {"Content-Type": "application/json"})}
        host, port = self._parts.hostname or "", self._parts.port
        connection = HTTPConnection(host, port, timeout=SECONDS)
        if self._parts.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=SECONDS, context=self._tls)
        until = monotonic() + patience * SECOND
        try:
            if patience and not _is_connected(connection):
                complain(f"nothing listens at {self._url}: waiting {patience:g} s for a router that starts")
                while not _is_connected(connection) and monotonic() < until:
                    threading.Event().wait(LOOK_SECONDS)
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            raise _hinted(
                ServerUnreachable(self._url, str(error)), "start it with `penstock router run`, or name its address with --server"
            ) from None
        finally:
            connection.close()
        if response.status >= 300 and not (path == "/health" and response.status == 503):
            raise self._refused(method, path, response.status, content)
        try:
            return json.loads(content)
        except ValueError:
            raise FailedPrecondition(f"{self._url} is not a router", hint="name the router's own address") from None

    def _refused(self, method: str, path: str, status: int, content: bytes) -> PenstockError:
        said, reason = content.decode("utf-8", "replace")[:500], ""
        try:
            found = json.loads(content)
            found = found if "message" in found else found["error"]
            said, reason = found["message"], found.get("reason", "")
        except (ValueError, KeyError, TypeError):
            pass  # not an answer of a router
        if status == 401:
            return _hinted(Unauthenticated(said.rpartition("authenticated: ")[2]), f"give --token, or set {TOKEN_VARIABLE}")
        if status == 403:
            return FailedPrecondition(f"the router refuses: {said}", hint="use a token with this permission")
        if status == 404 and path.startswith("/api/") and reason == "no_such_path":
            return _hinted(NotFound(f"seeds at {self._url}"), "start the router with --development")
        if status == 404 and reason.endswith("not_found"):
            return _hinted(NotFound(said.partition("not found: ")[2]), "`penstock router status` shows what there is")
        if status == 404:
            return _hinted(NotFound(f"a router at {self._url}"), "something else listens there: name the router's own address")
        return FailedPrecondition(f"{method} {path} was answered with status {status}: {said}")


def _is_connected(connection: HTTPConnection) -> bool:
    """Connect; False if nothing listens there yet."""
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    return True


def _hinted(error: PenstockError, hint: str) -> PenstockError:
    """An error with a hint for routers."""
    error.hint = hint
    return error
