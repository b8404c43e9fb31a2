"""`penstock router …`: run a router, check its configuration, look at one that runs, and give it something to do."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from penstock.cli import router_status
from penstock.cli.command import Parser, Verbs
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.serve import serve
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import SystemClock
from penstock.config import OPTIONS
from penstock.config.load import DEFAULT
from penstock.errors import InvalidArgument, PenstockError
from penstock.router.configuration import URL_VARIABLE, ConfigCache, ConfigFile, Place, find_places
from penstock.router.core.config import RouterConfig, changes, merge, shown_uri
from penstock.router.source import SourceContext, open_source

PORT = 8095
DATA_DIR = Path("penstock-router")
CACHE = "router-config.json"

_PREFIX = "router_"
_HELD_BACK = {"router", "cors_origins", "push_allow", "resp_port", "rpc_port", "public_url", "grpc_port"}
"""Settings that are of no use here, or have flags with better names."""


def configure(parser: Parser) -> None:
    """The verbs."""
    verbs = Verbs(parser)
    run = verbs.add("run", "take messages from queues and deliver them, until told to stop", run_router)
    _add_places(run)
    add_flags(
        run,
        {option.name for option in OPTIONS if not option.name.startswith("hub")} - _HELD_BACK,
        file_flag="--settings",
        prefix=_PREFIX,
        defaults={"data_dir": f"./{DATA_DIR}", "port": str(PORT), "native_port": "a free one"},
    )

    check = verbs.add("check", "check a configuration, and say what it would change", run_check)
    _add_places(check)
    check.add_argument("--data-dir", metavar="PATH", type=Path, default=DATA_DIR, help=f"of the router (default: {DATA_DIR})")
    check.add_argument("--json", action="store_true", help="for programs")

    router_status.configure(verbs)


def _add_places(parser: Parser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--config", metavar="FILE", type=Path, help="the configuration: queues and pools, JSON or TOML")
    group.add_argument(
        "--config-url", metavar="URL", help=f"where it is fetched, or several with commas (default: {URL_VARIABLE})"
    )


def _places(found: argparse.Namespace) -> list[Place]:
    places = find_places(file=found.config, urls=found.config_url, environment=os.environ)
    if not places:
        raise InvalidArgument("there is no configuration", hint=f"give --config FILE or --config-url URL, or set {URL_VARIABLE}")
    return places


def run_router(found: argparse.Namespace) -> int:
    """Serve a router, with the ports and the directory of a router where nobody says otherwise."""
    settings, origins = settings_of(found, prefix=_PREFIX)
    places = _places(found)
    own: dict[str, object] = {"port": PORT, "grpc_port": 0, "native_port": 0, "hub": False}
    if not settings.memory:
        own["data_dir"] = DATA_DIR
    changed = {name: value for name, value in own.items() if origins[name] == DEFAULT}
    if "data_dir" in changed and origins["token_file"] == DEFAULT:
        changed["token_file"] = None
    changed["router"] = str(found.config) if found.config is not None else found.config_url or os.environ.get(URL_VARIABLE)
    settings = replace(settings, **changed)  # type: ignore[arg-type]  # by name, and checked when it is built
    if found.config is not None and not (settings.data_dir is not None and ConfigCache(settings.data_dir / CACHE).load()):
        asyncio.run(_fetch(places, []))  # a wrong file is told before anything is opened
    return serve(settings, router_leads=True)


def run_check(found: argparse.Namespace) -> int:
    """Say what a configuration holds, and how it differs from the last one of the router."""
    places = _places(found)
    passed_over: list[str] = []
    new = merge(asyncio.run(_fetch(places, passed_over)))
    for key in passed_over:
        complain(f"{key} is not known and is passed over")
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
        say(f"the configuration is right; no router has run in {found.data_dir}, so all of it would be new")
    elif not lines:
        say("the configuration is right, and nothing would change")
    else:
        say("the configuration is right; it would change:")
        for line in lines:
            say(f"  {line}")
    return 0


async def _fetch(places: list[Place], passed_over: list[str]) -> list[RouterConfig]:
    found: list[RouterConfig] = []
    for place in places:
        try:
            found.append(await place.fetch(passed_over))
        except PenstockError as error:
            # A file that is not there was named wrongly; an endpoint that does not answer may later.
            kind = InvalidArgument if isinstance(place, ConfigFile) else type(error)
            raise kind(f"{place.name}: {error}", hint=error.hint) from None
    return found


class _AnyQueues:
    """Any queue of Penstock is one: whether it is there is known when the router runs."""

    def open(self, *_: object) -> NoReturn:
        raise _Openable


class _Openable(Exception):
    """The URI is that of a queue."""


async def _check_queues(config: RouterConfig) -> None:
    """Refuse URIs that name no queue, all of them at once. Nothing is connected to."""
    context = SourceContext(environment=os.environ, clock=SystemClock(), local=_AnyQueues(), remote=_AnyQueues())
    wrong: list[str] = []
    for queue in config.queues:
        try:
            open_source(queue, context)
        except _Openable:
            pass
        except PenstockError as error:
            name = shown_uri(queue.name)
            wrong.append(str(error) if name in str(error) else f"queue {name}: {error}")
    if wrong:
        raise InvalidArgument("\n".join(wrong))


def _pools(config: RouterConfig) -> str:
    rows = [[pool.code, str(pool.concurrency), str(pool.rate_per_minute or "-")] for pool in config.pools]
    return table([["POOL", "CONCURRENCY", "A MINUTE"], *rows])


def _queues(config: RouterConfig) -> str:
    rows = [
        [shown_uri(queue.name), shown_uri(queue.uri), str(queue.connections), f"{queue.visibility_timeout} s"]
        for queue in config.queues
    ]
    return table([["QUEUE", "URI", "CONNECTIONS", "VISIBILITY"], *rows])
