"""The configuration of a router: fetched from elsewhere at the start, and followed for changes.

This is "Configuration Sync" of specification 001. A place is a URL or a file; tokens and passwords in URLs are never shown.

    first   every place at once ──> the answer of each, or its last answer in the cache ──> merged
            12 tries, 5 s apart, of a place without a cached answer; one, of at most a second, of the others
    again   12 tries of every place that has answered before, one of the others
    follow  `again` each interval; and each 5 s for places that never answered, until they do

If a place fails, its last answer continues to count: a configuration endpoint that is down removes no pool. There is one warning
until it answers again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.extras import how_to_install
from penstock.router.core.config import RouterConfig, changes, merge, parse_config, shown_uri, to_json
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import Warn

CONNECT_TIMEOUT: Final = 3.0
TIMEOUT: Final = 10.0
"""The time limit of a fetch in seconds."""
BODY_LIMIT: Final = 10 * 1024 * 1024


class ConfigSource(Protocol):
    """One place of configuration."""

    key: str
    """Its key in the cache: the same after a restart. Not for showing."""
    name: str
    """The name as it may be shown."""
    tries: int
    """How many times to try before it counts as failed."""

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        """The present configuration; Unavailable or InvalidArgument, with the reason, if it cannot be fetched or used.

        The paths of keys that a router does not know are added to `passed_over`.
        """


class ConfigUrl:
    """An endpoint that returns JSON for a GET."""

    tries = 12

    def __init__(self, url: str, token: str | None = None, *, timeout: float = TIMEOUT) -> None:
        self.key = url
        self.name = shown_uri(url)
        self._url = url
        self._timeout = timeout
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if not _is_url(url):
            raise InvalidArgument.of("config-url", self.name, "a URL such as https://host/api/config")
        if token:
            if "@" in urlsplit(url).netloc:
                raise InvalidArgument.of("config-url", self.name, "no user beside a token", hint="leave one of the two out")
            if not (token.isascii() and token.isprintable()):
                raise InvalidArgument("the token for the configuration holds characters that no header may have")
            self._headers["Authorization"] = f"Bearer {token}"

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        """The configuration that the endpoint returns. Redirects are not followed: the token is for this host only."""
        try:
            import aiohttp  # noqa: PLC0415  # a router with a file needs no HTTP client
        except ImportError as error:
            raise FailedPrecondition(
                "a configuration from a URL needs the library aiohttp", hint=how_to_install("router")
            ) from error
        limits = aiohttp.ClientTimeout(total=self._timeout, connect=min(CONNECT_TIMEOUT, self._timeout))
        try:
            async with (
                aiohttp.ClientSession(timeout=limits, auto_decompress=False, headers=self._headers) as session,
                session.get(self._url, allow_redirects=False) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise Unavailable(f"it answered with status {answer.status}")
                body = await _read(answer.content)
        except TimeoutError:
            raise Unavailable(
                f"it did not answer within {self._timeout:g} s, or took more than {CONNECT_TIMEOUT:g} s to connect"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(f"it cannot be reached: {_why(error)}") from None  # the library's message may contain the URL
        return parse_config(body, passed_over=passed_over)


class ConfigFile:
    """A file of JSON or, if its name ends with .toml, TOML."""

    tries = 1

    def __init__(self, path: Path) -> None:
        self.key = str(path.absolute())
        self.name = str(path)
        self._path = path
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise InvalidArgument.of("config", str(path), "a file of JSON or TOML", hint="write it as .json or .toml")

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        return await asyncio.to_thread(self._read, passed_over)

    def _read(self, passed_over: list[str] | None) -> RouterConfig:
        try:
            with self._path.open("rb") as file:
                content = file.read(BODY_LIMIT + 1)
        except OSError as error:
            raise Unavailable(f"it cannot be read: {_why(error)}") from None
        _check_size(len(content))
        if self._path.suffix.lower() != ".toml":
            return parse_config(content, passed_over=passed_over)
        try:
            values = tomllib.loads(content.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            said = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
            raise InvalidArgument(f"the configuration is not TOML: {said}") from None
        return parse_config(values, passed_over=passed_over)


def places_of_urls(text: str, token: str | None = None) -> list[ConfigUrl]:
    """The places in a comma-separated list of URLs, each once, in order."""
    urls = dict.fromkeys(url for part in text.split(",") if (url := part.strip()))
    if not urls:
        raise InvalidArgument.of("config-url", text, "one URL, or several with commas between them")
    return [ConfigUrl(url, token) for url in urls]


class _Stream(Protocol):
    async def read(self, most: int) -> bytes: ...


async def _read(stream: _Stream) -> bytes:
    content = bytearray()
    while part := await stream.read(64 * 1024):
        content += part
        _check_size(len(content))
    return bytes(content)


def _check_size(size: int) -> None:
    if size > BODY_LIMIT:
        raise Unavailable(f"it is larger than {BODY_LIMIT // 1024 // 1024} MB")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:
        return False


def _why(error: Exception) -> str:
    """The reason for a failure, as the operating system reports it if possible."""
    cause = getattr(error, "os_error", error)
    return (isinstance(cause, OSError) and cause.strerror) or type(error).__name__


VERSION: Final = 1


class _File(msgspec.Struct):
    version: int
    places: dict[str, msgspec.Raw]


class ConfigCache:
    """The last valid configuration of each place, in a file.

    A router that cannot reach its configuration starts with it (decision 27). The file contains the passwords of queue URIs, so
    only its owner can read it. Its keys are hashes of the places' addresses. It is replaced as a whole. Calls block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, RouterConfig]:
        """The last configuration of each place, by `hashed` key. Empty if there is no file; an unusable file is logged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("the cached configuration %s cannot be read: %s", self.path, error.strerror)
            return {}
        try:
            file = msgspec.json.decode(content, type=_File)
            if file.version != VERSION:
                raise InvalidArgument.of("version", file.version, f"{VERSION}")
            return {key: parse_config(bytes(config)) for key, config in file.places.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidArgument) as error:
            said = type(error).__name__ if isinstance(error, UnicodeDecodeError) else str(error)
            log.warning("the cached configuration %s cannot be used: %s", self.path, said)
            return {}

    def save(self, configs: Mapping[str, RouterConfig]) -> None:
        """Replace the content: after a power loss there is either the old file or the new one. OSError if it fails."""
        content = msgspec.json.encode(_File(VERSION, {key: msgspec.Raw(to_json(config)) for key, config in configs.items()}))
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(self.path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def hashed(key: str) -> str:
    """The key of a place in the file."""
    return hashlib.sha256(key.encode()).hexdigest()


URL_VARIABLE: Final = "MESSAGE_ROUTER_CONFIG_URL"
TOKEN_VARIABLE: Final = "MESSAGE_ROUTER_CONFIG_TOKEN"
FAILED: Final = "CONFIG_SYNC_FAILED"
PAUSE: Final = 5.0
"""Seconds between two tries."""
CACHED_WAIT: Final = 1.0
"""How many seconds a start waits for a place with a cached answer. `follow` tries it again."""

log = logging.getLogger("penstock.router")


class _Known:
    """The state of one place."""

    def __init__(self, place: ConfigSource) -> None:
        self.place = place
        self.said: RouterConfig | None = None
        self.has_answered = False
        """Whether it answered since the start; before that, its configuration may come from the cache."""
        self.error = ""
        self.is_warned = False


NO_WAIT: Final[Mapping[_Known, float]] = {}


class Configuration:
    """The merged configurations of several places; for each pool or queue, the first place that has it counts."""

    def __init__(
        self,
        places: Sequence[ConfigSource],
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
        """The configuration that was last returned."""

    @property
    def trouble(self) -> str:
        """Which places failed when they were last tried, and why; empty if none."""
        return _reasons([known for known in self._places if known.error])

    async def first(self) -> RouterConfig:
        """The configuration to start with. Unavailable, after all tries, if no place has one and none is cached.

        A place whose last answer is cached, or known from before this router was on standby, is tried once, for `CACHED_WAIT`;
        `follow` tries it again.
        """
        async with self._lock:
            self._is_starting = True
            try:
                return await self._first()
            finally:
                self._is_starting = False

    async def again(self, tries: int | None = None) -> RouterConfig | None:
        """The configuration, if it changed; None if it did not or cannot be fetched, or while `first` runs.

        `tries` is for a caller that waits for the answer; without it a place is tried as often as at the start.
        """
        return None if self._is_starting else await self._fetch(self._places, tries)

    async def follow(self, interval: float) -> AsyncIterator[RouterConfig]:
        """Every configuration that differs from the one before, after `first`; take the next one when it is applied."""
        left = interval
        while True:
            is_whole = all(known.has_answered for known in self._places)
            pause = left if is_whole else min(PAUSE, left)
            await self._sleep(pause)
            left -= pause
            if left > 0:
                found = await self._fetch([known for known in self._places if not known.has_answered], tries=1)
            else:
                left, found = interval, await self.again()
            if found is not None:
                yield found

    async def _first(self) -> RouterConfig:
        if self._cache is not None:
            self._kept = await asyncio.to_thread(self._cache.load)
        for known in self._places:
            known.said = known.said or self._kept.get(hashed(known.place.key))
        tries = {known: known.place.tries if known.said is None else 1 for known in self._places}
        wait = {known: CACHED_WAIT for known in self._places if known.said is not None}
        asked, number = self._places, 1
        while asked := await self._ask(asked, number, tries, wait):
            await self._sleep(PAUSE)
            number += 1
        failed = [known for known in self._places if known.error]
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
        # A place that never answered is tried again soon anyway; it must not delay the answers of others.
        most = {known: tries or (known.place.tries if known.has_answered else 1) for known in asked}
        left, number = asked, 1
        while True:
            async with self._lock:  # released between two tries: a reload does not wait for all of them
                left = await self._ask([known for known in left if number == 1 or known.error], number, most)
                if not left:
                    return await self._taken(asked)
            await self._sleep(PAUSE)
            number += 1

    async def _taken(self, asked: list[_Known]) -> RouterConfig | None:
        """The configuration, if it changed, after these places were tried."""
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

    async def _ask(
        self, asked: list[_Known], number: int, tries: Mapping[_Known, int], wait: Mapping[_Known, float] = NO_WAIT
    ) -> list[_Known]:
        """Try places for the `number`th time, each for the seconds in `wait` at most; returns those to try again."""
        await asyncio.gather(*(self._try(known, number, tries[known], wait.get(known)) for known in asked))
        return [known for known in asked if known.error and number < tries[known]]

    async def _try(self, known: _Known, number: int, tries: int, seconds: float | None) -> None:
        try:
            said = await _within(seconds, known.place.fetch())
        except (Unavailable, InvalidArgument) as error:
            known.error = str(error)
            level = logging.DEBUG if known.is_warned else logging.WARNING
            log.log(level, "no configuration from %s (try %d of %d): %s", known.place.name, number, tries, error)
        else:
            if known.is_warned:
                log.info("configuration from %s again", known.place.name)
            known.said, known.has_answered, known.error, known.is_warned = said, True, "", False

    async def _keep(self) -> None:
        """Cache the configurations of the places, if they changed. A failure to write the cache is only a warning."""
        said = {hashed(known.place.key): known.said for known in self._places if known.said is not None}
        if self._cache is None or said == self._kept:
            return
        self._kept = said  # set even if it fails: one warning for each change is enough
        try:
            await asyncio.to_thread(self._cache.save, said)
        except OSError as error:
            self._warn(
                FAILED, Severity.WARN, f"the configuration cannot be cached in {self._cache.path}: {error.strerror or error}"
            )

    def _merged(self) -> RouterConfig:
        return merge(known.said for known in self._places if known.said is not None)


def find_places(*, file: Path | None, urls: str | None, environment: Mapping[str, str]) -> list[ConfigSource]:
    """The places given by flags, or else by the environment; empty if neither is given. InvalidArgument for an invalid place."""
    if file is not None and urls:
        raise InvalidArgument("config and config-url are both given", hint="leave one of them out")
    if file is not None:
        return [ConfigFile(file)]
    found = urls or environment.get(URL_VARIABLE)
    return [*places_of_urls(found, environment.get(TOKEN_VARIABLE))] if found else []


async def _within(seconds: float | None, fetch: Awaitable[RouterConfig]) -> RouterConfig:
    try:
        async with asyncio.timeout(seconds):
            return await fetch
    except TimeoutError:
        raise Unavailable(f"it did not answer within {seconds:g} s") from None


def _reasons(failed: Sequence[_Known]) -> str:
    return "; ".join(f"{known.place.name}: {known.error}" for known in failed)
