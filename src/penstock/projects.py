"""Projects keep names apart: the same name in two projects is two things.

Inside the broker a name of the default project stands alone and any other is `project/name`. So what an embedded broker made
is found in the default project, and a name with a slash is that of another project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.errors import InvalidArgument

DEFAULT_PROJECT = "penstock"

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-_.:]{0,254}", re.ASCII)


def check_project(project: str) -> str:
    """The name of a project; what stands for others in the broker's names cannot be in it."""
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument.of("project", project, "up to 255 letters, digits and -_.:, the first a letter or digit")
    return project


class Projects:
    """The names of a broker, project by project; `default` is the project whose names stand alone."""

    __slots__ = ("default",)

    def __init__(self, default: str = DEFAULT_PROJECT) -> None:
        self.default = default

    def scoped(self, project: str, name: str) -> str:
        """The broker's name of a project's name."""
        return name if project == self.default else f"{project}/{name}"

    def of(self, project: str, scoped: Iterable[str]) -> list[str]:
        """Those of the broker's names that belong to a project."""
        if project != self.default:
            prefix = f"{project}/"
            return [name for name in scoped if name.startswith(prefix)]
        return [name for name in scoped if "/" not in name or self.split(name)[0] == project]

    def split(self, scoped: str) -> tuple[str, str]:
        """(project, name) of a broker's name."""
        project, slash, name = scoped.partition("/")
        return (project, name) if slash and project and name and project != self.default else (self.default, scoped)
