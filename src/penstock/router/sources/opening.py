"""From a queue's URI to a source: the scheme names the module beside this one that opens it. A new kind of queue is one file."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from penstock.clock import Clock
from penstock.errors import InvalidArgument
from penstock.router import sources
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.source import Source

if TYPE_CHECKING:
    from penstock.router.sources.penstock import LocalQueues, RemoteQueues

_ALIASES: Final = {"http": "sqs", "https": "sqs", "penstocks": "penstock", "tls": "nats"}
"""An SQS queue is known by the URL that the service gave it; a Penstock server may speak TLS; `tls:` is how NATS writes that."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9]*):", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What sources are opened with, beside their queue's configuration."""

    environment: Mapping[str, str]
    clock: Clock
    local: LocalQueues | None = None
    """The broker in this process, where there is one."""
    remote: RemoteQueues | None = None
    """The way to other Penstock servers."""


class _Module(Protocol):
    def open_source(self, config: QueueConfig, context: SourceContext) -> Source: ...


def open_source(config: QueueConfig, context: SourceContext) -> Source:
    """The source of a queue, not started; InvalidArgument for a URI that no source understands."""
    found = _SCHEME.match(config.uri)
    module = _module(found[1].lower()) if found is not None else None
    if module is None:
        raise InvalidArgument.of(
            f"the URI of queue {shown_uri(config.name)!r}",
            shown_uri(config.uri),
            f"one that begins with {', '.join(f'{scheme}:' for scheme in schemes())}",
        )
    return module.open_source(config, context)


def schemes() -> list[str]:
    """The schemes that are understood."""
    names = [module.name for module in pkgutil.iter_modules(sources.__path__)]
    return sorted([*(name for name in names if _module(name) is not None), *_ALIASES])


def _module(scheme: str) -> _Module | None:
    """What opens the sources of a scheme; None when nothing does."""
    name = f"{sources.__name__}.{_ALIASES.get(scheme, scheme)}"
    if name == __name__:
        return None
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    return module if hasattr(module, "open_source") else None
