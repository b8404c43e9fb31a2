"""Every call of the Pub/Sub API: its request, its answer, and where REST finds it.

A line of a service is `Method Request Answer`, then its REST bindings as `VERB /path body`: `{field=pattern}` in a path fills
that field of the request, `*` as the body fills the whole request, a name one field, `-` none (the query string fills the
rest). `~` in front of a message says that it comes as a stream; a stream has no place in REST.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Binding:
    """One way to make a call over REST."""

    verb: str
    path: str
    """A template such as `/v1/{topic=projects/*/topics/*}:publish`."""
    body: str | None
    """`*` for the whole request, the name of one field of it, or None."""


@dataclass(frozen=True, slots=True)
class Method:
    """One call: the classes of its request and answer, and its bindings."""

    request: Any  # protobuf classes, created at run time
    response: Any
    client_streaming: bool
    server_streaming: bool
    bindings: tuple[Binding, ...]


PUBLISHER = """\
CreateTopic Topic Topic PUT /v1/{name=projects/*/topics/*} *
UpdateTopic UpdateTopicRequest Topic PATCH /v1/{topic.name=projects/*/topics/*} *
Publish PublishRequest PublishResponse POST /v1/{topic=projects/*/topics/*}:publish *
GetTopic GetTopicRequest Topic GET /v1/{topic=projects/*/topics/*} -
ListTopics ListTopicsRequest ListTopicsResponse GET /v1/{project=projects/*}/topics -
ListTopicSubscriptions ListTopicSubscriptionsRequest ListTopicSubscriptionsResponse \
GET /v1/{topic=projects/*/topics/*}/subscriptions -
ListTopicSnapshots ListTopicSnapshotsRequest ListTopicSnapshotsResponse GET /v1/{topic=projects/*/topics/*}/snapshots -
DeleteTopic DeleteTopicRequest Empty DELETE /v1/{topic=projects/*/topics/*} -
DetachSubscription DetachSubscriptionRequest DetachSubscriptionResponse \
POST /v1/{subscription=projects/*/subscriptions/*}:detach -
"""

SUBSCRIBER = """\
CreateSubscription Subscription Subscription PUT /v1/{name=projects/*/subscriptions/*} *
GetSubscription GetSubscriptionRequest Subscription GET /v1/{subscription=projects/*/subscriptions/*} -
UpdateSubscription UpdateSubscriptionRequest Subscription PATCH /v1/{subscription.name=projects/*/subscriptions/*} *
ListSubscriptions ListSubscriptionsRequest ListSubscriptionsResponse GET /v1/{project=projects/*}/subscriptions -
DeleteSubscription DeleteSubscriptionRequest Empty DELETE /v1/{subscription=projects/*/subscriptions/*} -
ModifyAckDeadline ModifyAckDeadlineRequest Empty POST /v1/{subscription=projects/*/subscriptions/*}:modifyAckDeadline *
Acknowledge AcknowledgeRequest Empty POST /v1/{subscription=projects/*/subscriptions/*}:acknowledge *
Pull PullRequest PullResponse POST /v1/{subscription=projects/*/subscriptions/*}:pull *
StreamingPull ~StreamingPullRequest ~StreamingPullResponse
ModifyPushConfig ModifyPushConfigRequest Empty POST /v1/{subscription=projects/*/subscriptions/*}:modifyPushConfig *
GetSnapshot GetSnapshotRequest Snapshot GET /v1/{snapshot=projects/*/snapshots/*} -
ListSnapshots ListSnapshotsRequest ListSnapshotsResponse GET /v1/{project=projects/*}/snapshots -
CreateSnapshot CreateSnapshotRequest Snapshot PUT /v1/{name=projects/*/snapshots/*} *
UpdateSnapshot UpdateSnapshotRequest Snapshot PATCH /v1/{snapshot.name=projects/*/snapshots/*} *
DeleteSnapshot DeleteSnapshotRequest Empty DELETE /v1/{snapshot=projects/*/snapshots/*} -
Seek SeekRequest SeekResponse POST /v1/{subscription=projects/*/subscriptions/*}:seek *
"""

SCHEMA_SERVICE = """\
CreateSchema CreateSchemaRequest Schema POST /v1/{parent=projects/*}/schemas schema
GetSchema GetSchemaRequest Schema GET /v1/{name=projects/*/schemas/*} -
ListSchemas ListSchemasRequest ListSchemasResponse GET /v1/{parent=projects/*}/schemas -
ListSchemaRevisions ListSchemaRevisionsRequest ListSchemaRevisionsResponse GET /v1/{name=projects/*/schemas/*}:listRevisions -
CommitSchema CommitSchemaRequest Schema POST /v1/{name=projects/*/schemas/*}:commit *
RollbackSchema RollbackSchemaRequest Schema POST /v1/{name=projects/*/schemas/*}:rollback *
DeleteSchemaRevision DeleteSchemaRevisionRequest Schema DELETE /v1/{name=projects/*/schemas/*}:deleteRevision -
DeleteSchema DeleteSchemaRequest Empty DELETE /v1/{name=projects/*/schemas/*} -
ValidateSchema ValidateSchemaRequest ValidateSchemaResponse POST /v1/{parent=projects/*}/schemas:validate *
ValidateMessage ValidateMessageRequest ValidateMessageResponse POST /v1/{parent=projects/*}/schemas:validateMessage *
"""

IAM_POLICY = """\
SetIamPolicy SetIamPolicyRequest Policy POST /v1/{resource=projects/*/topics/*}:setIamPolicy * \
POST /v1/{resource=projects/*/subscriptions/*}:setIamPolicy * POST /v1/{resource=projects/*/snapshots/*}:setIamPolicy * \
POST /v1/{resource=projects/*/schemas/*}:setIamPolicy *
GetIamPolicy GetIamPolicyRequest Policy GET /v1/{resource=projects/*/topics/*}:getIamPolicy - \
GET /v1/{resource=projects/*/subscriptions/*}:getIamPolicy - GET /v1/{resource=projects/*/snapshots/*}:getIamPolicy - \
GET /v1/{resource=projects/*/schemas/*}:getIamPolicy -
TestIamPermissions TestIamPermissionsRequest TestIamPermissionsResponse \
POST /v1/{resource=projects/*/topics/*}:testIamPermissions * \
POST /v1/{resource=projects/*/subscriptions/*}:testIamPermissions * \
POST /v1/{resource=projects/*/snapshots/*}:testIamPermissions * POST /v1/{resource=projects/*/schemas/*}:testIamPermissions *
"""


def methods_of(service: str, table: str, message: Callable[[str], Any]) -> dict[str, Method]:
    """The methods of a service by their gRPC path, `/package.Service/Method`; `message` finds a class by its name."""
    made = {}
    for line in table.splitlines():
        name, request, response, *rest = line.split()
        made[f"/{service}/{name}"] = Method(
            request=message(request.removeprefix("~")),
            response=message(response.removeprefix("~")),
            client_streaming=request.startswith("~"),
            server_streaming=response.startswith("~"),
            bindings=tuple(
                Binding(verb, path, None if body == "-" else body)
                for verb, path, body in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
            ),
        )
    return made
