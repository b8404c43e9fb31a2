"""Names of resources: `projects/{project}/topics/{id}`, and the same for subscriptions, snapshots and schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import InvalidArgument
from penstock.values.message import check_string

TOPICS = "topics"
SUBSCRIPTIONS = "subscriptions"
SNAPSHOTS = "snapshots"
SCHEMAS = "schemas"

DELETED_TOPIC = "_deleted-topic_"
"""The topic that a subscription or snapshot shows after its topic was deleted."""
DELETED_SCHEMA = "_deleted-schema_"

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9\-_.:]{0,254}", re.ASCII)
_ID = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{8}", re.ASCII)
_ID_RULE = "an id of 3 to 255 letters, digits and -_.~+%, which starts with a letter and not with 'goog'"
_PROJECT_RULE = "a project of letters, digits and -_.:"


@dataclass(frozen=True, slots=True)
class Name:
    """One resource of a project."""

    project: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/{self.kind}/{self.id}"


@lru_cache(maxsize=8192)  # every call names its topic or subscription, and there are few of them
def parse(text: str, kind: str, field: str) -> Name:
    """Parse a name in a request's field; it must be a resource of this kind."""
    match text.split("/"):
        case ["projects", project, found, id_] if found == kind:
            if not _PROJECT.fullmatch(project):
                raise InvalidArgument.of(field, text, f"projects/PROJECT/{kind}/ID with {_PROJECT_RULE}")
            if not _ID.fullmatch(id_):
                raise InvalidArgument.of(field, text, f"projects/PROJECT/{kind}/ID with {_ID_RULE}")
            return Name(project, kind, id_)
    raise InvalidArgument.of(field, text, f"a name of the form projects/PROJECT/{kind}/ID")


def parse_any(text: str, field: str) -> Name:
    """Parse a name of any kind, as in the calls about permissions."""
    parts = text.split("/")
    if len(parts) == 4 and parts[2] in {TOPICS, SUBSCRIPTIONS, SNAPSHOTS, SCHEMAS}:
        return parse(text, parts[2], field)
    raise InvalidArgument.of(field, text, "the name of a topic, subscription, snapshot or schema")


def parse_project(text: str, field: str) -> str:
    """The project of `projects/{project}`."""
    prefix, _, project = text.partition("/")
    if prefix != "projects" or not _PROJECT.fullmatch(project):
        raise InvalidArgument.of(field, text, f"a name of the form projects/PROJECT, with {_PROJECT_RULE}")
    return project


def parse_schema(text: str, field: str) -> tuple[Name, str | None]:
    """The schema in `projects/{project}/schemas/{id}[@{revision}]`, and the revision if one is named."""
    plain, at, revision = text.partition("@")
    return parse(plain, SCHEMAS, field), check_revision(revision, field) if at else None


def check_revision(revision: str, field: str) -> str:
    """The id of one revision of a schema."""
    if not _REVISION.fullmatch(check_string(revision, field)):
        raise InvalidArgument.of(field, revision, "a revision id of 8 hexadecimal digits, in lower case")
    return revision


def child(project: str, kind: str, id_: str, field: str) -> Name:
    """The name of a resource of which only the id is given."""
    if not _ID.fullmatch(id_):
        raise InvalidArgument.of(field, id_, _ID_RULE)
    return Name(project, kind, id_)


def assigned(project: str, kind: str, entropy: bytes) -> Name:
    """A name for a resource without one; `entropy` makes it unique."""
    return Name(project, kind, f"{kind.removesuffix('s')}-{entropy.hex()}")
