"""The configuration of a router, which is kept elsewhere: fetched at the start, followed from then on.

It is "Configuration Sync" of specification 001.

    first   every place at once, 12 tries, 5 s apart ──> what each said, or what the cache says it last said ──> merged
    again   the same for every place that has answered before, one try for the others
    follow  `again` each interval; and each 5 s those places that never answered, until they do

A place that fails keeps counting with what it last said: a configuration endpoint that is down removes no pool. It is warned of
once, until it answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import InvalidArgument, Unavailable
from penstock.router.config_cache import ConfigCache, hashed
from penstock.router.config_places import ConfigFile, Place, places_of_urls
from penstock.router.core.config import RouterConfig, changes, merge
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import Warn

URL_VARIABLE: Final = "MESSAGE_ROUTER_CONFIG_URL"
TOKEN_VARIABLE: Final = "MESSAGE_ROUTER_CONFIG_TOKEN"
FAILED: Final = "CONFIG_SYNC_FAILED"
PAUSE: Final = 5.0
"""Seconds between two tries."""

log = logging.getLogger("penstock.router")


class _Known:
    """What is known of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.said: RouterConfig | None = None
        self.has_answered = False
        """In this life; what it said may come from the cache."""
        self.error = ""
        self.is_warned = False


class Configuration:
    """What several places say, merged; the first of them that has a pool or a queue counts."""

    def __init__(
        self,
        places: Sequence[Place],
        *,
        warn: Warn,
        cache: Path | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not places:
            raise InvalidArgument(
                "no configuration is given", hint=f"give --config FILE or --config-url URL, or set {URL_VARIABLE}"
            )
        self._places = [_Known(place) for place in places]
        self._warn = warn
        self._cache = None if cache is None else ConfigCache(cache)
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._is_starting = False
        self._kept: dict[str, RouterConfig] = {}
        self.current: RouterConfig | None = None
        """What was returned last."""

    @property
    def trouble(self) -> str:
        """Which places gave nothing when they were last asked, and why; empty: all is well."""
        return _reasons([known for known in self._places if known.error])

    async def first(self) -> RouterConfig:
        """The configuration to start with. Unavailable, after all tries, when no place has one and none is cached.

        Who starts again, having been on standby, tries each place once: there is what it said before.
        """
        async with self._lock:
            self._is_starting = True
            try:
                return await self._first()
            finally:
                self._is_starting = False

    async def again(self, tries: int | None = None) -> RouterConfig | None:
        """The configuration, when it is another than before; None when it is the same or cannot be had, or while `first` runs.

        `tries` is for somebody who waits for the answer; without it a place is tried as often as at the start.
        """
        if self._is_starting:
            return None
        async with self._lock:
            return await self._fetch(self._places, tries)

    async def follow(self, interval: float) -> AsyncIterator[RouterConfig]:
        """Every configuration that is another than the one before, after `first`; ask for the next when it is applied."""
        left = interval
        while True:
            is_whole = all(known.has_answered for known in self._places)
            pause = left if is_whole else min(PAUSE, left)
            await self._sleep(pause)
            left -= pause
            if left > 0:
                async with self._lock:
                    found = await self._fetch([known for known in self._places if not known.has_answered], tries=1)
            else:
                left, found = interval, await self.again()
            if found is not None:
                yield found

    async def _first(self) -> RouterConfig:
        await asyncio.gather(*(self._ask(known, known.place.tries if known.said is None else 1) for known in self._places))
        if self._cache is not None:
            self._kept = await asyncio.to_thread(self._cache.load)
        failed = [known for known in self._places if known.error]
        for known in failed:
            known.said = known.said or self._kept.get(hashed(known.place.key))
        if all(known.said is None for known in self._places):
            reasons = _reasons(failed)
            self._warn(FAILED, Severity.CRITICAL, f"there is no configuration to start with: {reasons}")
            raise Unavailable(
                f"there is no configuration to start with: {reasons}",
                hint="correct its address, or start what should answer there",
            )
        if failed:
            self._warn_of_start(failed)
        await self._keep()
        self.current = self._merged()
        return self.current

    def _warn_of_start(self, failed: list[_Known]) -> None:
        is_all = len(failed) == len(self._places)
        for known in failed:
            known.is_warned = True
            what = "its last known content is used" if known.said is not None else "the router starts without it"
            self._warn(
                FAILED, Severity.CRITICAL if is_all else Severity.WARN, f"no configuration from {_reasons([known])}; {what}"
            )

    async def _fetch(self, asked: list[_Known], tries: int | None) -> RouterConfig | None:
        # A place that never answered is tried again in a moment anyway; it must not keep what others say waiting.
        await asyncio.gather(*(self._ask(known, tries or (known.place.tries if known.has_answered else 1)) for known in asked))
        for known in asked:
            if known.error and not known.is_warned:
                known.is_warned = True
                self._warn(FAILED, Severity.WARN, f"no configuration from {_reasons([known])}; what it last said stays in force")
        if all(known.said is None for known in self._places):
            return None
        await self._keep()
        merged = self._merged()
        if self.current is not None and not changes(self.current, merged):
            return None
        self.current = merged
        return merged

    async def _ask(self, known: _Known, tries: int) -> None:
        """Ask a place until it answers, at most so often."""
        for number in range(1, tries + 1):
            try:
                said = await known.place.fetch()
            except (Unavailable, InvalidArgument) as error:
                known.error = str(error)
                level = logging.DEBUG if known.is_warned else logging.WARNING
                log.log(level, "no configuration from %s (try %d of %d): %s", known.place.name, number, tries, error)
            else:
                if known.is_warned:
                    log.info("configuration from %s again", known.place.name)
                known.said, known.has_answered, known.error, known.is_warned = said, True, "", False
                return
            if number < tries:
                await self._sleep(PAUSE)

    async def _keep(self) -> None:
        """Write down what the places say, if it is new. A cache that cannot be written stops nothing."""
        said = {hashed(known.place.key): known.said for known in self._places if known.said is not None}
        if self._cache is None or said == self._kept:
            return
        self._kept = said  # also when it fails: one warning for each change is enough
        try:
            await asyncio.to_thread(self._cache.save, said)
        except OSError as error:
            self._warn(
                FAILED, Severity.WARN, f"the configuration cannot be cached in {self._cache.path}: {error.strerror or error}"
            )

    def _merged(self) -> RouterConfig:
        return merge(known.said for known in self._places if known.said is not None)


def find_places(*, file: Path | None, urls: str | None, environment: Mapping[str, str]) -> list[Place]:
    """The places that flags name, or else the environment; none when neither does. InvalidArgument for one that cannot be."""
    if file is not None and urls:
        raise InvalidArgument("config and config-url are both given", hint="leave one of them out")
    if file is not None:
        return [ConfigFile(file)]
    found = urls or environment.get(URL_VARIABLE)
    return [*places_of_urls(found, environment.get(TOKEN_VARIABLE))] if found else []


def _reasons(failed: Sequence[_Known]) -> str:
    return "; ".join(f"{known.place.name}: {known.error}" for known in failed)
