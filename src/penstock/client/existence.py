"""Whether something is there, and making it: the same for topics, subscriptions, queues and schemas."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.errors import AlreadyExists, NotFound


async def made(creation: Awaitable[object], *, exist_ok: bool) -> None:
    """Create something; that it exists already is an error unless it is allowed."""
    try:
        await creation
    except AlreadyExists:
        if not exist_ok:
            raise


async def is_there(look: Awaitable[object]) -> bool:
    """Whether a look at something finds it."""
    try:
        await look
    except NotFound:
        return False
    return True
