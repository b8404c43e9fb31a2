"""The last good configuration of each place, on disk: a router that cannot reach its configuration starts from it (decision 27).

The file holds the passwords of queue URIs, so only its owner can read it. Places are known by a hash of their address.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import InvalidArgument
from penstock.router.core.config import RouterConfig, parse_config, to_json

VERSION: Final = 1
log = logging.getLogger("penstock.router")


class _File(msgspec.Struct):
    version: int
    places: dict[str, msgspec.Raw]


class ConfigCache:
    """A file, which is replaced as a whole. Calls block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, RouterConfig]:
        """What each place last said, by `hashed` key. Nothing when there is no file; a file that cannot be used is warned of."""
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
        """Put these in the place of what was kept: after a power loss there is the old file or the new one. OSError."""
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
    """What a place is known by in the file."""
    return hashlib.sha256(key.encode()).hexdigest()
