"""`GET /backup`: the data directory of a server as a tar archive, for `penstock backup --server`."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

from penstock.access import Verb
from penstock.backup import MANIFEST, back_up
from penstock.config import Settings
from penstock.errors import FailedPrecondition, PermissionDenied, ResourceExhausted
from penstock.http.request import SERVER_NAME, Request
from penstock.http.routes import Operation, Reply, Route

TAR = "application/x-tar"
STEP_BYTES = 256 * 1024
PLACE = ".backup"
"""Where in the data directory the copy is until it is open. Leftovers of a crash are removed before the next backup."""


class BackupApi:
    """Creates backups of one server, one at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = threading.Lock()

    def routes(self) -> list[Route]:
        operation = Operation(
            "A backup",
            "The data directory as of this moment, as a tar archive with all topics, queues, cursors and tokens. Needs a token"
            " with every verb for every name of every project.",
            ("monitoring",),
            replies={200: Reply("The archive.", {"type": "string", "format": "binary"}, TAR)},
        )
        return [Route("GET", "/backup", self.send, operation)]

    async def send(self, request: Request) -> web.StreamResponse:
        """Copy first, so that a failure is an error and not half an archive; then send."""
        for verb in Verb:
            if not request.principal.may_everywhere(verb):
                raise PermissionDenied(verb, "everything, which a backup needs")
        if self._settings.data_dir is None:
            if self._settings.journal is not None:
                hint = "copy it as every database of PostgreSQL: pg_basebackup, pgBackRest"
                raise FailedPrecondition("the server keeps its messages in PostgreSQL", hint=hint)
            raise FailedPrecondition("the server keeps its messages in memory only", hint="start it with --data-dir")
        headers = {"X-Request-Id": request.request_id, "Server": SERVER_NAME, "Content-Type": TAR, "Cache-Control": "no-store"}
        if request.method == "HEAD":
            return web.StreamResponse(headers=headers)
        with ExitStack() as stack:
            files = await asyncio.to_thread(self._copy, self._settings.data_dir, stack)
            sizes = [(name, file, file.seek(0, 2)) for name, file in files]
            length = sum(512 + -(-size // 512) * 512 for _, _, size in sizes) + 1024
            response = web.StreamResponse(headers={**headers, "Content-Length": str(length)})
            await response.prepare(request)
            for name, file, size in sizes:
                async for piece in _member(name, file, size):
                    await response.write(piece)
            await response.write(bytes(1024))
            await response.write_eof()
            return response

    def _copy(self, data_dir: Path, stack: ExitStack) -> list[tuple[str, BinaryIO]]:
        """The files of a copy, open, with their names. They are already unlinked on disk, so none can be left behind."""
        if not self._turn.acquire(blocking=False):
            raise ResourceExhausted("another backup is being made", hint="try again when it is done")
        try:
            place = data_dir / PLACE
            shutil.rmtree(place, ignore_errors=True)
            tokens = self._settings.token_file if self._settings.auth == "token" else None
            back_up(data_dir, place, token_file=tokens if tokens is not None and tokens.exists() else None)
            try:
                return [
                    (path.name, stack.enter_context(path.open("rb")))
                    for path in sorted(place.iterdir())
                    if path.name != MANIFEST  # the receiver of the backup writes one
                ]
            finally:
                shutil.rmtree(place)
        finally:
            self._turn.release()


async def _member(name: str, file: BinaryIO, size: int) -> AsyncIterator[bytes]:
    """A file in tar format: a header, the content, and zeros up to a whole block."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    yield info.tobuf(tarfile.GNU_FORMAT)
    file.seek(0)
    while piece := await asyncio.to_thread(file.read, STEP_BYTES):
        yield piece
    yield bytes(-size % 512)
