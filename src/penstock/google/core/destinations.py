"""Where a subscription's messages go when nobody pulls them: an endpoint, or one of Google's stores.

Pushes are made. What is meant for BigQuery, Cloud Storage and Bigtable is checked and kept, and its messages wait to be pulled.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.periods import MINUTES, period

EXPORTS = ("bigquery_config", "cloud_storage_config", "bigtable_config")
MAX_ENDPOINT_CHARACTERS = 2048

_BIGQUERY_TABLE = re.compile(r"[^\s/]+[.:][^\s/.:]+\.[^\s/.:]+")
_BIGTABLE_TABLE = re.compile(r"projects/[^\s/]+/instances/[^\s/]+/tables/[^\s/]+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9\-_.]{1,220}[a-z0-9]", re.ASCII)
_KIB, _GIB = 1 << 10, 1 << 30


def destination(subscription: Any) -> str | None:
    """The field that says where messages go; None: they are pulled."""
    if subscription.push_config.push_endpoint:
        return "push_config"
    return next((field for field in EXPORTS if subscription.HasField(field)), None)


def check_destination(subscription: Any) -> None:
    """At most one destination, complete in itself, and able to do what the subscription asks for."""
    chosen = [field for field in EXPORTS if subscription.HasField(field)]
    if subscription.push_config.push_endpoint:
        chosen.insert(0, "push_config")
    if len(chosen) > 1:
        raise InvalidArgument(
            f"{' and '.join(chosen)} are set, wanted at most one of them", hint="clear the other in the same update"
        )
    if chosen and subscription.enable_exactly_once_delivery:
        raise InvalidArgument.of(
            "enable_exactly_once_delivery",
            value=True,
            wanted=f"False with {chosen[0]}: only what is pulled is delivered exactly once",
        )
    check_push_config(subscription.push_config)
    if subscription.HasField("bigquery_config"):
        _check_bigquery(subscription.bigquery_config)
    if subscription.HasField("cloud_storage_config"):
        _check_cloud_storage(subscription.cloud_storage_config)
    if subscription.HasField("bigtable_config"):
        _check_bigtable(subscription.bigtable_config)
    for field in chosen:
        config = getattr(subscription, field)
        if "state" in config.DESCRIPTOR.fields_by_name:
            config.state = type(config).State.Value("ACTIVE")


def check_push_config(config: Any) -> None:
    """An endpoint with what belongs to it, or nothing at all, which means pull."""
    if not config.push_endpoint:
        if config != messages.PushConfig():
            raise InvalidArgument.of("push_config.push_endpoint", "", "a URL beside the other settings of push_config")
        return
    _check_url(config.push_endpoint, "push_config.push_endpoint")
    for key, value in config.attributes.items():
        if key != "x-goog-version" or value not in {"v1", "v1beta1", "v1beta2"}:
            raise InvalidArgument.of("push_config.attributes", {key: value}, "nothing but {'x-goog-version': 'v1'}")
    if config.HasField("oidc_token") and "@" not in config.oidc_token.service_account_email:
        email = config.oidc_token.service_account_email
        raise InvalidArgument.of("push_config.oidc_token.service_account_email", email, "an email address")


def _check_url(url: str, field: str) -> None:
    wanted = f"an http or https URL of at most {MAX_ENDPOINT_CHARACTERS} characters, with a host and without credentials"
    # urlsplit drops tabs and line ends in silence, so what it is shown must not have any.
    if len(url) > MAX_ENDPOINT_CHARACTERS or not all("!" <= character != "\x7f" for character in url):
        raise InvalidArgument.of(field, url, wanted)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0 and parts.username is None
    except ValueError:  # a port out of range, or a broken IPv6 address
        usable = False
    if not usable:
        raise InvalidArgument.of(field, url, wanted)


def _check_bigquery(config: Any) -> None:
    if not _BIGQUERY_TABLE.fullmatch(config.table):
        raise InvalidArgument.of("bigquery_config.table", config.table, "a table as PROJECT.DATASET.TABLE")
    if config.use_topic_schema and config.use_table_schema:
        raise InvalidArgument("bigquery_config has use_topic_schema and use_table_schema, wanted at most one of them")


def _check_cloud_storage(config: Any) -> None:
    if not _BUCKET.fullmatch(config.bucket):
        raise InvalidArgument.of("cloud_storage_config.bucket", config.bucket, "the name of a bucket, without gs://")
    if config.filename_suffix.endswith("/"):
        raise InvalidArgument.of(
            "cloud_storage_config.filename_suffix", config.filename_suffix, "a suffix that does not end in /"
        )
    if config.HasField("max_duration"):
        period(config.max_duration, "cloud_storage_config.max_duration", minimum=MINUTES, maximum=10 * MINUTES)
    else:
        config.max_duration.FromMicroseconds(5 * MINUTES)
    if config.max_bytes and not _KIB <= config.max_bytes <= 10 * _GIB:
        raise InvalidArgument.of("cloud_storage_config.max_bytes", config.max_bytes, f"{_KIB} to {10 * _GIB}, or 0 for no limit")
    if config.max_messages and config.max_messages < 1000:
        raise InvalidArgument.of("cloud_storage_config.max_messages", config.max_messages, "1000 or more, or 0 for no limit")
    if not config.WhichOneof("output_format"):
        config.text_config.SetInParent()


def _check_bigtable(config: Any) -> None:
    if not _BIGTABLE_TABLE.fullmatch(config.table):
        raise InvalidArgument.of("bigtable_config.table", config.table, "projects/PROJECT/instances/INSTANCE/tables/TABLE")
    mapping = config.column_family_mapping
    if mapping.WhichOneof("key_definition") == "delimited_key":
        key, where = mapping.delimited_key, "bigtable_config.column_family_mapping.delimited_key"
        if not key.key_fields or not all(key.key_fields):
            raise InvalidArgument.of(f"{where}.key_fields", list(key.key_fields), "at least one name of a field")
        if len(key.delimiter) > 50 or (len(key.key_fields) > 1 and not key.delimiter):
            raise InvalidArgument.of(f"{where}.delimiter", key.delimiter, "1 to 50 bytes between the fields of a key")
