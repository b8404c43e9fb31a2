"""The public keys of an identity provider, fetched from its JWKS and kept.

They are fetched when they are first needed, again when they are too old, and when a token names a key that is not among them.
There is at most one fetch at a time, and at most one within `PAUSE`, even if clients send tokens with unknown keys. If a fetch
fails, the last keys stay in use: tokens keep working while the identity provider is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from penstock.durations import SECOND
from penstock.errors import Unavailable
from penstock.hub.keys import Algorithm, Key, KeySet, key_set

log = logging.getLogger("penstock.hub")

FRESH: Final = 300 * SECOND
"""How long keys are used before they are fetched again: so a key may be used for this long after the provider withdraws it."""
PAUSE: Final = 30 * SECOND
TIMEOUT: Final = 5.0
"""Seconds for all of a fetch."""
MAX_BYTES: Final = 1024 * 1024


class Jwks:
    """The keys at a URL. Belongs to one event loop."""

    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256")

    def __init__(self, url: str, tick: Callable[[], int], *, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """The URL for logs and errors, without its query, which may hold a secret."""
        self._url = url
        self._tick = tick
        self._timeout = timeout
        self._keys: KeySet = {}
        self._fetched: int | None = None
        self._tried: int | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._problem: str | None = None

    async def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key with this id; for a token that names no key, the only key of its algorithm.

        Raises:
            Unavailable: the keys could not be fetched yet.
        """
        if self._fetched is None or self._tick() - self._fetched >= FRESH or self._pick(algorithm, kid) is None:
            await self._refresh()
        if self._fetched is None:
            raise Unavailable(f"the keys at {self.name} could not be fetched: {self._problem}")
        return self._pick(algorithm, kid)

    async def close(self) -> None:
        """Cancel a running fetch. Safe to call twice."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _pick(self, algorithm: str, kid: str | None) -> Key | None:
        key = self._keys.get((algorithm, kid))
        if key is None and kid is None:
            fitting = [key for key in self._keys.values() if key.algorithm == algorithm]
            key = fitting[0] if len(fitting) == 1 else None
        return key

    async def _refresh(self) -> None:
        """Wait for the running fetch, or start one, unless the last one started less than `PAUSE` ago."""
        if self._fetching is None:
            now = self._tick()
            if self._tried is not None and now - self._tried < PAUSE:
                return
            self._tried = now
            self._fetching = asyncio.create_task(self._fetch())
        # The caller may be cancelled before the answer arrives; others still wait for it.
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            self._keys = key_set(await self._get())
        except (Unavailable, ValueError) as error:
            if self._problem != str(error):  # log each problem once
                kept = "the last ones are still used" if self._keys else "tokens that they would check are refused"
                log.warning("the keys at %s cannot be fetched: %s; %s", self.name, error, kept)
            self._problem = str(error)
        else:
            if self._problem is not None:
                log.info("the keys at %s were fetched again", self.name)
            self._fetched, self._problem = self._tick(), None
        finally:
            self._fetching = None

    async def _get(self) -> bytes:
        """The response body of the URL. Redirects are not followed: keys are only trusted from the configured URL."""
        import aiohttp  # noqa: PLC0415  # a hub that fetches no keys needs no HTTP client

        limits = aiohttp.ClientTimeout(total=self._timeout)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        try:
            async with (
                aiohttp.ClientSession(timeout=limits, auto_decompress=False, headers=headers) as session,
                session.get(self._url, allow_redirects=False) as answer,
            ):
                if answer.status != 200:
                    raise Unavailable(f"it answered with status {answer.status}")
                body = bytearray()
                async for part in answer.content.iter_chunked(64 * 1024):
                    body += part
                    if len(body) > MAX_BYTES:
                        raise Unavailable(f"it is larger than {MAX_BYTES} bytes")
                return bytes(body)
        except TimeoutError:
            raise Unavailable(f"it did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # the error text of the library may contain the URL
            why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise Unavailable(f"it cannot be reached: {why}") from None
