"""The protobuf classes of google.pubsub.v1, google.iam.v1 and google.rpc, in a pool of Penstock's own.

They are the runtime's raw classes: parse with `PublishRequest.FromString(data)`, write with `.SerializeToString()`. `google.
protobuf.json_format` reads and writes them as JSON (give it `descriptor_pool=POOL` where a message holds an `Any`). Nested
messages and enumerations are attributes: `Subscription.State`, `PushConfig.NoWrapper`. `METHODS` has the calls that carry
them, by gRPC path.
"""

from __future__ import annotations

from penstock.google.messages import methods, tables
from penstock.google.messages.notation import Package, new_pool

POOL = new_pool()

_pubsub = Package(POOL, "google.pubsub.v1", tables.SCHEMAS + tables.PUBSUB)
_type = Package(POOL, "google.type", tables.EXPR)
_iam = Package(POOL, "google.iam.v1", tables.IAM, needs=("google.type",))
_rpc = Package(POOL, "google.rpc", tables.RPC)

# well-known types, as this pool has them: Google's client in the same process has others of the same name
Duration = _pubsub.message("Duration")
Empty = _pubsub.message("Empty")
FieldMask = _pubsub.message("FieldMask")
Struct = _pubsub.message("Struct")
Timestamp = _pubsub.message("Timestamp")

# google.pubsub.v1, schemas
SchemaView = _pubsub.enum("SchemaView")
Encoding = _pubsub.enum("Encoding")
Schema = _pubsub.message("Schema")
CreateSchemaRequest = _pubsub.message("CreateSchemaRequest")
GetSchemaRequest = _pubsub.message("GetSchemaRequest")
ListSchemasRequest = _pubsub.message("ListSchemasRequest")
ListSchemasResponse = _pubsub.message("ListSchemasResponse")
ListSchemaRevisionsRequest = _pubsub.message("ListSchemaRevisionsRequest")
ListSchemaRevisionsResponse = _pubsub.message("ListSchemaRevisionsResponse")
CommitSchemaRequest = _pubsub.message("CommitSchemaRequest")
RollbackSchemaRequest = _pubsub.message("RollbackSchemaRequest")
DeleteSchemaRevisionRequest = _pubsub.message("DeleteSchemaRevisionRequest")
DeleteSchemaRequest = _pubsub.message("DeleteSchemaRequest")
ValidateSchemaRequest = _pubsub.message("ValidateSchemaRequest")
ValidateSchemaResponse = _pubsub.message("ValidateSchemaResponse")
ValidateMessageRequest = _pubsub.message("ValidateMessageRequest")
ValidateMessageResponse = _pubsub.message("ValidateMessageResponse")
CompiledProtoSchema = _pubsub.message("CompiledProtoSchema")

# google.pubsub.v1, topics, subscriptions, snapshots
MessageStoragePolicy = _pubsub.message("MessageStoragePolicy")
SchemaSettings = _pubsub.message("SchemaSettings")
IngestionDataSourceSettings = _pubsub.message("IngestionDataSourceSettings")
PlatformLogsSettings = _pubsub.message("PlatformLogsSettings")
IngestionFailureEvent = _pubsub.message("IngestionFailureEvent")
JavaScriptUDF = _pubsub.message("JavaScriptUDF")
Compression = _pubsub.message("Compression")
AIInference = _pubsub.message("AIInference")
MessageTransform = _pubsub.message("MessageTransform")
Topic = _pubsub.message("Topic")
PubsubMessage = _pubsub.message("PubsubMessage")
GetTopicRequest = _pubsub.message("GetTopicRequest")
UpdateTopicRequest = _pubsub.message("UpdateTopicRequest")
PublishRequest = _pubsub.message("PublishRequest")
PublishResponse = _pubsub.message("PublishResponse")
ListTopicsRequest = _pubsub.message("ListTopicsRequest")
ListTopicsResponse = _pubsub.message("ListTopicsResponse")
ListTopicSubscriptionsRequest = _pubsub.message("ListTopicSubscriptionsRequest")
ListTopicSubscriptionsResponse = _pubsub.message("ListTopicSubscriptionsResponse")
ListTopicSnapshotsRequest = _pubsub.message("ListTopicSnapshotsRequest")
ListTopicSnapshotsResponse = _pubsub.message("ListTopicSnapshotsResponse")
DeleteTopicRequest = _pubsub.message("DeleteTopicRequest")
DetachSubscriptionRequest = _pubsub.message("DetachSubscriptionRequest")
DetachSubscriptionResponse = _pubsub.message("DetachSubscriptionResponse")
Subscription = _pubsub.message("Subscription")
RetryPolicy = _pubsub.message("RetryPolicy")
DeadLetterPolicy = _pubsub.message("DeadLetterPolicy")
ExpirationPolicy = _pubsub.message("ExpirationPolicy")
PushConfig = _pubsub.message("PushConfig")
BigQueryConfig = _pubsub.message("BigQueryConfig")
BigtableConfig = _pubsub.message("BigtableConfig")
CloudStorageConfig = _pubsub.message("CloudStorageConfig")
ReceivedMessage = _pubsub.message("ReceivedMessage")
GetSubscriptionRequest = _pubsub.message("GetSubscriptionRequest")
UpdateSubscriptionRequest = _pubsub.message("UpdateSubscriptionRequest")
ListSubscriptionsRequest = _pubsub.message("ListSubscriptionsRequest")
ListSubscriptionsResponse = _pubsub.message("ListSubscriptionsResponse")
DeleteSubscriptionRequest = _pubsub.message("DeleteSubscriptionRequest")
ModifyPushConfigRequest = _pubsub.message("ModifyPushConfigRequest")
PullRequest = _pubsub.message("PullRequest")
PullResponse = _pubsub.message("PullResponse")
ModifyAckDeadlineRequest = _pubsub.message("ModifyAckDeadlineRequest")
AcknowledgeRequest = _pubsub.message("AcknowledgeRequest")
StreamingPullRequest = _pubsub.message("StreamingPullRequest")
StreamingPullResponse = _pubsub.message("StreamingPullResponse")
CreateSnapshotRequest = _pubsub.message("CreateSnapshotRequest")
UpdateSnapshotRequest = _pubsub.message("UpdateSnapshotRequest")
Snapshot = _pubsub.message("Snapshot")
GetSnapshotRequest = _pubsub.message("GetSnapshotRequest")
ListSnapshotsRequest = _pubsub.message("ListSnapshotsRequest")
ListSnapshotsResponse = _pubsub.message("ListSnapshotsResponse")
DeleteSnapshotRequest = _pubsub.message("DeleteSnapshotRequest")
SeekRequest = _pubsub.message("SeekRequest")
SeekResponse = _pubsub.message("SeekResponse")
PubsubClientTelemetry = _pubsub.message("PubsubClientTelemetry")

# google.type and google.iam.v1
Expr = _type.message("Expr")
GetPolicyOptions = _iam.message("GetPolicyOptions")
Policy = _iam.message("Policy")
Binding = _iam.message("Binding")
AuditConfig = _iam.message("AuditConfig")
AuditLogConfig = _iam.message("AuditLogConfig")
PolicyDelta = _iam.message("PolicyDelta")
BindingDelta = _iam.message("BindingDelta")
AuditConfigDelta = _iam.message("AuditConfigDelta")
SetIamPolicyRequest = _iam.message("SetIamPolicyRequest")
GetIamPolicyRequest = _iam.message("GetIamPolicyRequest")
TestIamPermissionsRequest = _iam.message("TestIamPermissionsRequest")
TestIamPermissionsResponse = _iam.message("TestIamPermissionsResponse")

# google.rpc
Status = _rpc.message("Status")
ErrorInfo = _rpc.message("ErrorInfo")
RetryInfo = _rpc.message("RetryInfo")
DebugInfo = _rpc.message("DebugInfo")
QuotaFailure = _rpc.message("QuotaFailure")
PreconditionFailure = _rpc.message("PreconditionFailure")
BadRequest = _rpc.message("BadRequest")
RequestInfo = _rpc.message("RequestInfo")
ResourceInfo = _rpc.message("ResourceInfo")
Help = _rpc.message("Help")
LocalizedMessage = _rpc.message("LocalizedMessage")

METHODS: dict[str, methods.Method] = {
    **methods.methods_of("google.pubsub.v1.Publisher", methods.PUBLISHER, _pubsub.message),
    **methods.methods_of("google.pubsub.v1.Subscriber", methods.SUBSCRIBER, _pubsub.message),
    **methods.methods_of("google.pubsub.v1.SchemaService", methods.SCHEMA_SERVICE, _pubsub.message),
    **methods.methods_of("google.iam.v1.IAMPolicy", methods.IAM_POLICY, _iam.message),
}
"""The 38 calls: `METHODS["/google.pubsub.v1.Publisher/Publish"].request is PublishRequest`."""
