"""`penstock serve`: run the server until it is stopped."""

from __future__ import annotations

import argparse

from penstock.cli.command import Parser
from penstock.cli.settings import add_flags, settings_of
from penstock.config import Settings
from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install


def configure(parser: Parser) -> None:
    """Add a flag for every setting."""
    add_flags(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Check the settings first: a wrong one is reported at once, before anything is loaded or opened."""
    settings, _ = settings_of(found)
    return serve(settings)


def serve(settings: Settings, *, router_leads: bool = False) -> int:
    """Run the server with these settings, or a router with a server around it; returns the exit code."""
    extra = "server" if settings.router is None else "router"
    try:
        from penstock.server.server import run as run_server  # noqa: PLC0415  # the one command that needs the server's libraries

        return run_server(settings, router_leads=router_leads)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "penstock"}:
            raise
        raise FailedPrecondition(
            f"the {extra} needs the library {missing}", hint=f"install it: {how_to_install(extra)}"
        ) from None
