"""Open the log of a server, by its address, or of a data directory, by its path."""

from __future__ import annotations

import os

from penstock.errors import InvalidArgument
from penstock.log.log import Log
from penstock.wire.address import Servers


def open_log(
    *,
    endpoint: Servers | None = None,
    path: str | os.PathLike[str] | None = None,
    token: str | None = None,
    project: str | None = None,
    timeout: float | None = None,
) -> Log:
    """The log of exactly one of `endpoint` (`http://host:port` of a server) and `path` (a broker's data directory).

    `endpoint` may be the addresses of several nodes. The log of a server is a `WritableLog` too. `token`, `project` and
    `timeout` (seconds without progress) are for servers.
    """
    if endpoint is not None and path is None:
        from penstock.log.http import TIMEOUT, HttpLog  # noqa: PLC0415  # only import the one that is needed

        return HttpLog(endpoint, token=token, project=project, timeout=timeout or TIMEOUT)
    if path is None or endpoint is not None:
        given = "both endpoint and path are given" if path is not None else "neither endpoint nor path is given"
        raise InvalidArgument(
            f"{given}, expected exactly one of them",
            hint="endpoint is the address of a server (http://127.0.0.1:8080), path a data directory on this machine",
        )
    if token is not None:
        raise InvalidArgument("token is given together with path, expected none", hint="a data directory needs no token")
    from penstock.log.directory import DirectoryLog  # noqa: PLC0415

    return DirectoryLog(path, project=project)
