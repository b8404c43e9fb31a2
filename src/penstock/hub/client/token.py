"""The token that a client of a hub shows: a text, or what a function gives each time that one is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from penstock.errors import Unavailable

Token = str | Callable[[], str | Awaitable[str]] | None


async def token_of(token: Token, seconds: float) -> str | None:
    """The token to show now; Unavailable when the function that gives it fails or takes too long."""
    if not callable(token):
        return token
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            found = token()
            return await found if isawaitable(found) else found
    except Exception as error:
        if deadline.expired():
            raise Unavailable(
                f"the function that gives the token took longer than {seconds:g} s",
                hint="let it answer sooner, or raise the client's timeout",
            ) from None
        # What it says may hold the token; it stands in the chain for whoever debugs.
        raise Unavailable(
            f"the function that gives the token failed: {type(error).__name__}", hint="the error before this one tells why"
        ) from error
