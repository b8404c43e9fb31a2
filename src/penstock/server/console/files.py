"""The console's pages and scripts: read once, sent with an ETag of their content, and allowed to load nothing from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import web

from penstock.http.refusal import Refusal
from penstock.http.request import Request
from penstock.http.routes import Operation, Reply, Route

PACKAGE = "penstock.server.console"
FOLDER = "static"
SHELL = "index.html"
TAGS = ("console",)
DEPTH = 4
"""The maximum number of segments of a page's address below `/console`."""

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "json": "application/json",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""What the console may do: run and load its own files. Text of a message can never become markup (Trusted Types)."""
_BINARY = {"type": "string", "format": "binary"}


class File(NamedTuple):
    """A file with its headers."""

    body: bytes
    content_type: str
    etag: str


class Files:
    """All files of the console."""

    def __init__(self) -> None:
        folder = resources.files(PACKAGE).joinpath(FOLDER)
        self._files = dict(_files(folder, "", depth=2))

    def routes(self) -> list[Route]:
        """The routes: files under `/console/static`, and the shell at the address of every page."""
        page = {200: Reply("The page.", {"type": "string"}, "text/html"), 304: Reply("It has not changed.")}
        file = {200: Reply("The file.", _BINARY, "application/octet-stream"), 304: Reply("It has not changed.")}
        shell = Operation("The console", "A page for browsers, which asks for a token if one is needed.", TAGS, replies=page)
        static = Operation("A file of the console", "", TAGS, replies=file)
        paths = ["/console" + "".join(f"/{{part{number}}}" for number in range(depth)) for depth in range(DEPTH + 1)]
        return [
            *(Route("GET", path, self.shell, shell, is_open=True, is_page=True) for path in paths),
            *(
                Route("GET", f"/console/static/{path}", self.static, static, is_open=True)
                for path in ("{file}", "{folder}/{file}")
            ),
        ]

    async def shell(self, request: Request) -> web.StreamResponse:
        """The page that loads everything else; its script reads the address."""
        first = request.match_info.get("part0")
        if first in {"api", FOLDER, "live"}:
            raise Refusal(404, "no such path", reason="no_such_path", hint="GET /docs lists every operation")
        return _sent(request, self._files.get(SHELL))

    async def static(self, request: Request) -> web.StreamResponse:
        """A script, a style sheet or a picture."""
        where = request.match_info
        return _sent(request, self._files.get("/".join(where[part] for part in ("folder", "file") if part in where)))


def _files(folder: Traversable, prefix: str, depth: int) -> Iterator[tuple[str, File]]:
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir() and depth > 1:
            yield from _files(entry, f"{prefix}{entry.name}/", depth - 1)
        elif entry.is_file() and kind is not None:
            body = entry.read_bytes()
            yield prefix + entry.name, File(body, kind, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _sent(request: Request, file: File | None) -> web.Response:
    if file is None:
        raise Refusal(404, "the console has no such file", reason="no_such_path", hint="the console is at /console")
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Vary": "Accept",
    }
    known = request.headers.get("If-None-Match", "")
    if file.etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})
