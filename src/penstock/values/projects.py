"""Projects keep names apart: the same name in two projects means two resources.

Inside the broker a name of the default project is stored alone, any other as `project/name`. So the resources of an embedded
broker are in the default project, and a name with a slash belongs to another project.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.errors import InvalidArgument, ResourceExhausted

DEFAULT_PROJECT = "penstock"

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-_.:]{0,254}", re.ASCII)


def check_project(project: str) -> str:
    """Check the name of a project; it cannot contain what separates projects in the broker's names."""
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument.of("project", project, "up to 255 letters, digits and -_.:, the first a letter or digit")
    return project


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many resources of each kind a project may have: they are in memory, and callers choose their number."""

    topics: int = 10_000
    subscriptions: int = 10_000
    snapshots: int = 5_000
    queues: int = 20_000


class Projects:
    """The names of a broker by project; names of the `default` project are stored alone. Without `quotas` there are no limits."""

    __slots__ = ("default", "quotas")

    def __init__(self, default: str = DEFAULT_PROJECT, quotas: Quotas | None = None) -> None:
        self.default = default
        self.quotas = quotas

    def check_room(
        self, kind: Literal["topics", "subscriptions", "snapshots", "queues"], scoped: str, taken: Collection[str]
    ) -> None:
        """Raise ResourceExhausted if a project has as many as it may have.

        `taken` has the names of this kind in the whole broker.
        """
        limit: int | None = None if self.quotas is None else getattr(self.quotas, kind)
        if limit is None or len(taken) < limit or scoped in taken:
            return
        project = self.split(scoped)[0]
        count = len(self.of(project, taken))
        if count >= limit:
            more = ", or raise the server's max_queues" if kind == "queues" else ""
            raise ResourceExhausted(
                f"project {project!r} has {count} {kind}, which is the limit", hint=f"delete some that are not used{more}"
            )

    def scoped(self, project: str, name: str) -> str:
        """The broker's name for a name of a project."""
        return name if project == self.default else f"{project}/{name}"

    def of(self, project: str, scoped: Iterable[str]) -> list[str]:
        """Those of the broker's names that belong to the project."""
        if project != self.default:
            prefix = f"{project}/"
            return [name for name in scoped if name.startswith(prefix)]
        return [name for name in scoped if "/" not in name or self.split(name)[0] == project]

    def split(self, scoped: str) -> tuple[str, str]:
        """(project, name) of a broker's name."""
        project, slash, name = scoped.partition("/")
        return (project, name) if slash and project and name and project != self.default else (self.default, scoped)
