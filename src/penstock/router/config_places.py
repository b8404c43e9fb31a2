"""Where a configuration is kept: a URL, or a file. Either gives its latest content, or says in one sentence why it cannot.

Neither a token nor a password in a URL is ever shown.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.router.core.config import RouterConfig, parse_config, shown_uri

CONNECT_TIMEOUT: Final = 3.0
TIMEOUT: Final = 10.0
"""Seconds for all of a fetch."""
BODY_LIMIT: Final = 10 * 1024 * 1024


class Place(Protocol):
    """One place of configuration."""

    key: str
    """What it is known by in the cache: the same in every life of a router. Not for showing."""
    name: str
    """As it may be shown."""
    tries: int
    """How often it is worth trying before it counts as failed."""

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        """What it says now; Unavailable or InvalidArgument, with the reason, when it cannot be had or used.

        The paths of keys that mean nothing to a router are added to `passed_over`.
        """


class ConfigUrl:
    """An endpoint that answers a GET with JSON."""

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
        """What the endpoint answers. No redirect is followed: the token is meant for this host alone."""
        try:
            import aiohttp  # noqa: PLC0415  # a router with a file needs no HTTP client
        except ImportError as error:
            raise FailedPrecondition(
                "a configuration from a URL needs the library aiohttp", hint="pip install 'penstock[router]'"
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
            raise Unavailable(f"it cannot be reached: {_why(error)}") from None  # the library's own text may quote the URL
        return parse_config(body, passed_over=passed_over)


class ConfigFile:
    """A file of JSON or, if it is called so, TOML."""

    tries = 1

    def __init__(self, path: Path) -> None:
        self.key = str(path.absolute())
        self.name = str(path)
        self._path = path
        if path.suffix.lower() in {".yaml", ".yml"}:
            raise InvalidArgument.of("config", str(path), "a file of JSON or TOML", hint="write it as .json or .toml")

    async def fetch(self, passed_over: list[str] | None = None) -> RouterConfig:
        """What the file says."""
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
    """The places that a list of URLs with commas between them names, each once, in order."""
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
    """Why something failed, in the words of the system if it has any."""
    cause = getattr(error, "os_error", error)
    return (isinstance(cause, OSError) and cause.strerror) or type(error).__name__
