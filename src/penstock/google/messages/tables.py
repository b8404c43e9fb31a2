"""The messages of google.pubsub.v1 and what its calls carry, in the notation of `notation.py`: names and numbers on the wire."""

from __future__ import annotations

SCHEMAS = """\
enum SchemaView
  SCHEMA_VIEW_UNSPECIFIED 0, BASIC 1, FULL 2
enum Encoding
  ENCODING_UNSPECIFIED 0, JSON 1, BINARY 2
Schema
  name 1 string, type 2 Type, definition 3 string, revision_id 4 string, revision_create_time 6 Timestamp
  configuration: compiled_proto_schema 8 CompiledProtoSchema
enum Schema.Type
  TYPE_UNSPECIFIED 0, PROTOCOL_BUFFER 1, AVRO 2
CreateSchemaRequest
  parent 1 string, schema 2 Schema, schema_id 3 string
GetSchemaRequest
  name 1 string, view 2 SchemaView
ListSchemasRequest
  parent 1 string, view 2 SchemaView, page_size 3 int32, page_token 4 string
ListSchemasResponse
  schemas 1 Schema*, next_page_token 2 string
ListSchemaRevisionsRequest
  name 1 string, view 2 SchemaView, page_size 3 int32, page_token 4 string
ListSchemaRevisionsResponse
  schemas 1 Schema*, next_page_token 2 string
CommitSchemaRequest
  name 1 string, schema 2 Schema
RollbackSchemaRequest
  name 1 string, revision_id 2 string
DeleteSchemaRevisionRequest
  name 1 string, revision_id 2 string
DeleteSchemaRequest
  name 1 string
ValidateSchemaRequest
  parent 1 string, schema 2 Schema
ValidateSchemaResponse
ValidateMessageRequest
  parent 1 string, message 4 bytes, encoding 5 Encoding
  schema_spec: name 2 string, schema 3 Schema
ValidateMessageResponse
CompiledProtoSchema
  root_message 1 string, compiled_bytes 2 bytes
"""

PUBSUB = """\
MessageStoragePolicy
  allowed_persistence_regions 1 string*, enforce_in_transit 2 bool
SchemaSettings
  schema 1 string, encoding 2 Encoding, first_revision_id 3 string, last_revision_id 4 string
IngestionDataSourceSettings
  platform_logs_settings 4 PlatformLogsSettings
  source: aws_kinesis 1 AwsKinesis, cloud_storage 2 CloudStorage, azure_event_hubs 3 AzureEventHubs, aws_msk 5 AwsMsk,
    confluent_cloud 6 ConfluentCloud
IngestionDataSourceSettings.AwsKinesis
  state 1 State, stream_arn 2 string, consumer_arn 3 string, aws_role_arn 4 string, gcp_service_account 5 string
enum IngestionDataSourceSettings.AwsKinesis.State
  STATE_UNSPECIFIED 0, ACTIVE 1, KINESIS_PERMISSION_DENIED 2, PUBLISH_PERMISSION_DENIED 3, STREAM_NOT_FOUND 4,
  CONSUMER_NOT_FOUND 5, CONFLICTING_REGION_CONSTRAINTS 6
IngestionDataSourceSettings.CloudStorage
  state 1 State, bucket 2 string, minimum_object_create_time 6 Timestamp, match_glob 9 string
  input_format: text_format 3 TextFormat, avro_format 4 AvroFormat, pubsub_avro_format 5 PubSubAvroFormat
enum IngestionDataSourceSettings.CloudStorage.State
  STATE_UNSPECIFIED 0, ACTIVE 1, CLOUD_STORAGE_PERMISSION_DENIED 2, PUBLISH_PERMISSION_DENIED 3, BUCKET_NOT_FOUND 4,
  TOO_MANY_OBJECTS 5, CONFLICTING_REGION_CONSTRAINTS 8
IngestionDataSourceSettings.CloudStorage.TextFormat
  delimiter 1 string?
IngestionDataSourceSettings.CloudStorage.AvroFormat
IngestionDataSourceSettings.CloudStorage.PubSubAvroFormat
IngestionDataSourceSettings.AzureEventHubs
  state 1 State, resource_group 2 string, namespace 3 string, event_hub 4 string, client_id 5 string, tenant_id 6 string,
    subscription_id 7 string, gcp_service_account 8 string
enum IngestionDataSourceSettings.AzureEventHubs.State
  STATE_UNSPECIFIED 0, ACTIVE 1, EVENT_HUBS_PERMISSION_DENIED 2, PUBLISH_PERMISSION_DENIED 3, NAMESPACE_NOT_FOUND 4,
  EVENT_HUB_NOT_FOUND 5, SUBSCRIPTION_NOT_FOUND 6, RESOURCE_GROUP_NOT_FOUND 7, CONFLICTING_REGION_CONSTRAINTS 8
IngestionDataSourceSettings.AwsMsk
  state 1 State, cluster_arn 2 string, topic 3 string, aws_role_arn 4 string, gcp_service_account 5 string
enum IngestionDataSourceSettings.AwsMsk.State
  STATE_UNSPECIFIED 0, ACTIVE 1, MSK_PERMISSION_DENIED 2, PUBLISH_PERMISSION_DENIED 3, CLUSTER_NOT_FOUND 4,
  TOPIC_NOT_FOUND 5, CONFLICTING_REGION_CONSTRAINTS 6
IngestionDataSourceSettings.ConfluentCloud
  state 1 State, bootstrap_server 2 string, cluster_id 3 string, topic 4 string, identity_pool_id 5 string,
    gcp_service_account 6 string
enum IngestionDataSourceSettings.ConfluentCloud.State
  STATE_UNSPECIFIED 0, ACTIVE 1, CONFLUENT_CLOUD_PERMISSION_DENIED 2, PUBLISH_PERMISSION_DENIED 3,
  UNREACHABLE_BOOTSTRAP_SERVER 4, CLUSTER_NOT_FOUND 5, TOPIC_NOT_FOUND 6, CONFLICTING_REGION_CONSTRAINTS 7
PlatformLogsSettings
  severity 1 Severity
enum PlatformLogsSettings.Severity
  SEVERITY_UNSPECIFIED 0, DISABLED 1, DEBUG 2, INFO 3, WARNING 4, ERROR 5
IngestionFailureEvent
  topic 1 string, error_message 2 string
  failure: cloud_storage_failure 3 CloudStorageFailure, aws_msk_failure 4 AwsMskFailureReason,
    azure_event_hubs_failure 5 AzureEventHubsFailureReason, confluent_cloud_failure 6 ConfluentCloudFailureReason,
    aws_kinesis_failure 7 AwsKinesisFailureReason
IngestionFailureEvent.ApiViolationReason
IngestionFailureEvent.AvroFailureReason
IngestionFailureEvent.SchemaViolationReason
IngestionFailureEvent.MessageTransformationFailureReason
IngestionFailureEvent.CloudStorageFailure
  bucket 1 string, object_name 2 string, object_generation 3 int64
  reason: avro_failure_reason 5 AvroFailureReason,
    api_violation_reason 6 ApiViolationReason,
    schema_violation_reason 7 SchemaViolationReason,
    message_transformation_failure_reason 8 MessageTransformationFailureReason
IngestionFailureEvent.AwsMskFailureReason
  cluster_arn 1 string, kafka_topic 2 string, partition_id 3 int64, offset 4 int64
  reason: api_violation_reason 5 ApiViolationReason,
    schema_violation_reason 6 SchemaViolationReason,
    message_transformation_failure_reason 7 MessageTransformationFailureReason
IngestionFailureEvent.AzureEventHubsFailureReason
  namespace 1 string, event_hub 2 string, partition_id 3 int64, offset 4 int64
  reason: api_violation_reason 5 ApiViolationReason,
    schema_violation_reason 6 SchemaViolationReason,
    message_transformation_failure_reason 7 MessageTransformationFailureReason
IngestionFailureEvent.ConfluentCloudFailureReason
  cluster_id 1 string, kafka_topic 2 string, partition_id 3 int64, offset 4 int64
  reason: api_violation_reason 5 ApiViolationReason,
    schema_violation_reason 6 SchemaViolationReason,
    message_transformation_failure_reason 7 MessageTransformationFailureReason
IngestionFailureEvent.AwsKinesisFailureReason
  stream_arn 1 string, partition_key 2 string, sequence_number 3 string
  reason: schema_violation_reason 4 SchemaViolationReason,
    message_transformation_failure_reason 5 MessageTransformationFailureReason,
    api_violation_reason 6 ApiViolationReason
JavaScriptUDF
  function_name 1 string, code 2 string
Compression
  compression_algorithm 1 CompressionAlgorithm, compression_mode 2 CompressionMode
enum Compression.CompressionAlgorithm
  COMPRESSION_ALGORITHM_UNSPECIFIED 0, ZLIB 1, ZSTD 3
enum Compression.CompressionMode
  COMPRESSION_MODE_UNSPECIFIED 0, COMPRESS 1, DECOMPRESS 2
AIInference
  endpoint 1 string, service_account_email 3 string
  inference_mode: unstructured_inference 2 UnstructuredInference
AIInference.UnstructuredInference
  parameters 1 Struct
MessageTransform
  enabled 3 bool, disabled 4 bool
  transform: javascript_udf 2 JavaScriptUDF, compression 7 Compression, ai_inference 6 AIInference
Topic
  name 1 string, labels 2 {string string}, message_storage_policy 3 MessageStoragePolicy, kms_key_name 5 string,
    schema_settings 6 SchemaSettings, satisfies_pzs 7 bool, message_retention_duration 8 Duration, state 9 State,
    ingestion_data_source_settings 10 IngestionDataSourceSettings, message_transforms 13 MessageTransform*,
    tags 14 {string string}
enum Topic.State
  STATE_UNSPECIFIED 0, ACTIVE 1, INGESTION_RESOURCE_ERROR 2
PubsubMessage
  data 1 bytes, attributes 2 {string string}, message_id 3 string, publish_time 4 Timestamp, ordering_key 5 string
GetTopicRequest
  topic 1 string
UpdateTopicRequest
  topic 1 Topic, update_mask 2 FieldMask
PublishRequest
  topic 1 string, messages 2 PubsubMessage*
PublishResponse
  message_ids 1 string*
ListTopicsRequest
  project 1 string, page_size 2 int32, page_token 3 string
ListTopicsResponse
  topics 1 Topic*, next_page_token 2 string
ListTopicSubscriptionsRequest
  topic 1 string, page_size 2 int32, page_token 3 string
ListTopicSubscriptionsResponse
  subscriptions 1 string*, next_page_token 2 string
ListTopicSnapshotsRequest
  topic 1 string, page_size 2 int32, page_token 3 string
ListTopicSnapshotsResponse
  snapshots 1 string*, next_page_token 2 string
DeleteTopicRequest
  topic 1 string
DetachSubscriptionRequest
  subscription 1 string
DetachSubscriptionResponse
Subscription
  name 1 string, topic 2 string, push_config 4 PushConfig, bigquery_config 18 BigQueryConfig,
    cloud_storage_config 22 CloudStorageConfig, bigtable_config 27 BigtableConfig, ack_deadline_seconds 5 int32,
    retain_acked_messages 7 bool, message_retention_duration 8 Duration, labels 9 {string string},
    enable_message_ordering 10 bool, expiration_policy 11 ExpirationPolicy, filter 12 string,
    dead_letter_policy 13 DeadLetterPolicy, retry_policy 14 RetryPolicy, detached 15 bool,
    enable_exactly_once_delivery 16 bool, topic_message_retention_duration 17 Duration, state 19 State,
    analytics_hub_subscription_info 23 AnalyticsHubSubscriptionInfo, message_transforms 25 MessageTransform*,
    tags 26 {string string}
enum Subscription.State
  STATE_UNSPECIFIED 0, ACTIVE 1, RESOURCE_ERROR 2
Subscription.AnalyticsHubSubscriptionInfo
  listing 1 string, subscription 2 string
RetryPolicy
  minimum_backoff 1 Duration, maximum_backoff 2 Duration
DeadLetterPolicy
  dead_letter_topic 1 string, max_delivery_attempts 2 int32
ExpirationPolicy
  ttl 1 Duration
PushConfig
  push_endpoint 1 string, attributes 2 {string string}
  authentication_method: oidc_token 3 OidcToken
  wrapper: pubsub_wrapper 4 PubsubWrapper, no_wrapper 5 NoWrapper
PushConfig.OidcToken
  service_account_email 1 string, audience 2 string
PushConfig.PubsubWrapper
PushConfig.NoWrapper
  write_metadata 1 bool
BigQueryConfig
  table 1 string, use_topic_schema 2 bool, write_metadata 3 bool, drop_unknown_fields 4 bool, state 5 State,
    use_table_schema 6 bool, service_account_email 7 string
enum BigQueryConfig.State
  STATE_UNSPECIFIED 0, ACTIVE 1, PERMISSION_DENIED 2, NOT_FOUND 3, SCHEMA_MISMATCH 4, IN_TRANSIT_LOCATION_RESTRICTION 5,
  VERTEX_AI_LOCATION_RESTRICTION 6
BigtableConfig
  table 1 string, app_profile_id 2 string, service_account_email 3 string, write_metadata 5 bool, state 4 State
  message_mapping: column_family_mapping 6 ColumnFamilyMapping
enum BigtableConfig.State
  STATE_UNSPECIFIED 0, ACTIVE 1, NOT_FOUND 2, APP_PROFILE_MISCONFIGURED 3, PERMISSION_DENIED 4, SCHEMA_MISMATCH 5,
  IN_TRANSIT_LOCATION_RESTRICTION 6, VERTEX_AI_LOCATION_RESTRICTION 7
BigtableConfig.ColumnFamilyMapping
  key_definition: row_key_schema 1 RowKeySchema, delimited_key 2 DelimitedKey
BigtableConfig.ColumnFamilyMapping.RowKeySchema
BigtableConfig.ColumnFamilyMapping.DelimitedKey
  key_fields 1 string*, delimiter 2 bytes
CloudStorageConfig
  bucket 1 string, filename_prefix 2 string, filename_suffix 3 string, filename_datetime_format 10 string,
    max_duration 6 Duration, max_bytes 7 int64, max_messages 8 int64, state 9 State, service_account_email 11 string
  output_format: text_config 4 TextConfig, avro_config 5 AvroConfig
enum CloudStorageConfig.State
  STATE_UNSPECIFIED 0, ACTIVE 1, PERMISSION_DENIED 2, NOT_FOUND 3, IN_TRANSIT_LOCATION_RESTRICTION 4, SCHEMA_MISMATCH 5,
  VERTEX_AI_LOCATION_RESTRICTION 6
CloudStorageConfig.TextConfig
CloudStorageConfig.AvroConfig
  write_metadata 1 bool, use_topic_schema 2 bool
ReceivedMessage
  ack_id 1 string, message 2 PubsubMessage, delivery_attempt 3 int32
GetSubscriptionRequest
  subscription 1 string
UpdateSubscriptionRequest
  subscription 1 Subscription, update_mask 2 FieldMask
ListSubscriptionsRequest
  project 1 string, page_size 2 int32, page_token 3 string
ListSubscriptionsResponse
  subscriptions 1 Subscription*, next_page_token 2 string
DeleteSubscriptionRequest
  subscription 1 string
ModifyPushConfigRequest
  subscription 1 string, push_config 2 PushConfig
PullRequest
  subscription 1 string, return_immediately 2 bool, max_messages 3 int32
PullResponse
  received_messages 1 ReceivedMessage*
ModifyAckDeadlineRequest
  subscription 1 string, ack_ids 4 string*, ack_deadline_seconds 3 int32
AcknowledgeRequest
  subscription 1 string, ack_ids 2 string*
StreamingPullRequest
  subscription 1 string, ack_ids 2 string*, modify_deadline_seconds 3 int32*, modify_deadline_ack_ids 4 string*,
    stream_ack_deadline_seconds 5 int32, client_id 6 string, max_outstanding_messages 7 int64, max_outstanding_bytes 8 int64,
    protocol_version 10 int64
StreamingPullResponse
  received_messages 1 ReceivedMessage*, acknowledge_confirmation 5 AcknowledgeConfirmation,
    modify_ack_deadline_confirmation 3 ModifyAckDeadlineConfirmation, subscription_properties 4 SubscriptionProperties
StreamingPullResponse.AcknowledgeConfirmation
  ack_ids 1 string*, invalid_ack_ids 2 string*, unordered_ack_ids 3 string*, temporary_failed_ack_ids 4 string*
StreamingPullResponse.ModifyAckDeadlineConfirmation
  ack_ids 1 string*, invalid_ack_ids 2 string*, temporary_failed_ack_ids 3 string*
StreamingPullResponse.SubscriptionProperties
  exactly_once_delivery_enabled 1 bool, message_ordering_enabled 2 bool
CreateSnapshotRequest
  name 1 string, subscription 2 string, labels 3 {string string}, tags 4 {string string}
UpdateSnapshotRequest
  snapshot 1 Snapshot, update_mask 2 FieldMask
Snapshot
  name 1 string, topic 2 string, expire_time 3 Timestamp, labels 4 {string string}
GetSnapshotRequest
  snapshot 1 string
ListSnapshotsRequest
  project 1 string, page_size 2 int32, page_token 3 string
ListSnapshotsResponse
  snapshots 1 Snapshot*, next_page_token 2 string
DeleteSnapshotRequest
  snapshot 1 string
SeekRequest
  subscription 1 string
  target: time 2 Timestamp, snapshot 3 string
SeekResponse
PubsubClientTelemetry
  operation: publish_operation 1 PublishOperation
PubsubClientTelemetry.PublishOperation
  hedged_attempt_count 1 int32, publish_start_time 2 Timestamp
"""

EXPR = """\
Expr
  expression 1 string, title 2 string, description 3 string, location 4 string
"""

IAM = """\
GetPolicyOptions
  requested_policy_version 1 int32
Policy
  version 1 int32, bindings 4 Binding*, audit_configs 6 AuditConfig*, etag 3 bytes
Binding
  role 1 string, members 2 string*, condition 3 google.type.Expr
AuditConfig
  service 1 string, audit_log_configs 3 AuditLogConfig*
AuditLogConfig
  log_type 1 LogType, exempted_members 2 string*
enum AuditLogConfig.LogType
  LOG_TYPE_UNSPECIFIED 0, ADMIN_READ 1, DATA_WRITE 2, DATA_READ 3
PolicyDelta
  binding_deltas 1 BindingDelta*, audit_config_deltas 2 AuditConfigDelta*
BindingDelta
  action 1 Action, role 2 string, member 3 string, condition 4 google.type.Expr
enum BindingDelta.Action
  ACTION_UNSPECIFIED 0, ADD 1, REMOVE 2
AuditConfigDelta
  action 1 Action, service 2 string, exempted_member 3 string, log_type 4 string
enum AuditConfigDelta.Action
  ACTION_UNSPECIFIED 0, ADD 1, REMOVE 2
SetIamPolicyRequest
  resource 1 string, policy 2 Policy, update_mask 3 FieldMask
GetIamPolicyRequest
  resource 1 string, options 2 GetPolicyOptions
TestIamPermissionsRequest
  resource 1 string, permissions 2 string*
TestIamPermissionsResponse
  permissions 1 string*
"""

RPC = """\
Status
  code 1 int32, message 2 string, details 3 Any*
ErrorInfo
  reason 1 string, domain 2 string, metadata 3 {string string}
RetryInfo
  retry_delay 1 Duration
DebugInfo
  stack_entries 1 string*, detail 2 string
QuotaFailure
  violations 1 Violation*
QuotaFailure.Violation
  subject 1 string, description 2 string, api_service 3 string, quota_metric 4 string, quota_id 5 string,
    quota_dimensions 6 {string string}, quota_value 7 int64, future_quota_value 8 int64?
PreconditionFailure
  violations 1 Violation*
PreconditionFailure.Violation
  type 1 string, subject 2 string, description 3 string
BadRequest
  field_violations 1 FieldViolation*
BadRequest.FieldViolation
  field 1 string, description 2 string, reason 3 string, localized_message 4 LocalizedMessage
RequestInfo
  request_id 1 string, serving_data 2 string
ResourceInfo
  resource_type 1 string, resource_name 2 string, owner 3 string, description 4 string
Help
  links 1 Link*
Help.Link
  description 1 string, url 2 string
LocalizedMessage
  locale 1 string, message 2 string
"""
