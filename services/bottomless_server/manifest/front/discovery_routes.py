"""What a client can find out before it sends anything: limits, version, who it is.

Contract: openapi/manifest.yaml.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from bottomless.formats.checks import VERSION as FORMAT_VERSION
from bottomless.model import limits
from bottomless.model.names import REFERENCE_SIZE_MAX
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.stream import LEASE_COUNT_MAX
from bottomless_server.core.broker.names import (
    FETCH_RECORD_COUNT_MAX,
    FETCH_SIZE_MAX,
    PARTITION_COUNT_MAX,
)
from bottomless_server.core.consumer_group import MEMBER_COUNT_MAX
from bottomless_server.core.principal import Principal
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, json_response, negotiate, parse_query
from bottomless_server.runtime.http.paging import PAGE_COUNT_MAX

_DISTRIBUTION: Final = "bottomless-server"


def add_discovery_routes(api: FastAPI, context: Context) -> None:
    bounds = describe_limits(context.settings)
    running = {"version": version(_DISTRIBUTION), "api": "v1", "format_version": FORMAT_VERSION}

    def answering(members: Callable[[Scope], dict[str, Any]]) -> Any:
        async def get(request: Request) -> Response:
            parse_query(request.scope, {})
            negotiate(header(request.scope, b"accept"), ["application/json"])
            answer = members(request.scope)
            return json_response(answer, 200, {"cache-control": "private, no-cache"})

        return get

    answers: dict[str, Callable[[Scope], dict[str, Any]]] = {
        "limits": lambda _: bounds,
        "version": lambda _: running,
        "whoami": lambda scope: describe_principal(principal_of(scope)),
    }
    for name, members in answers.items():
        api.add_api_route(f"/v1/{name}", answering(members), methods=["GET"], name=name)


def describe_principal(principal: Principal) -> dict[str, Any]:
    """Describe a principal: its name, its tenant, and what it may do."""
    ends = principal.expires_at
    return {
        "principal": principal.actor if principal.authenticated else "anonymous",
        "authenticated": principal.authenticated,
        "tenant": principal.tenant,
        "scopes": list(principal.scopes),
        "expires_at": None if ends is None else format_timestamp(round(ends * 1000)),
    }


def describe_limits(settings: ManifestSettings) -> dict[str, Any]:
    """The limits of requests and of what they make; sizes in bytes."""
    return {
        "stream_name_length": limits.NAME_SIZE_MAX,
        "reference_length": REFERENCE_SIZE_MAX,
        "offset": limits.OFFSET_MAX,
        "url_bytes": limits.URL_SIZE_MAX,
        "record": {
            "value_bytes": limits.RECORD_VALUE_SIZE_MAX,
            "key_bytes": limits.RECORD_KEY_SIZE_MAX,
            "filter_value_bytes": limits.FILTER_VALUE_SIZE_MAX,
            "headers": limits.HEADER_COUNT_MAX,
            "header_bytes": limits.HEADER_SIZE_MAX,
        },
        "append": {
            "json_records": limits.JSON_RECORD_COUNT_MAX,
            "arrow_records": limits.ARROW_RECORD_COUNT_MAX,
            "json_bytes": limits.JSON_BODY_SIZE_MAX,
            "binary_bytes": limits.BINARY_BODY_SIZE_MAX,
            "decompressed_bytes": limits.DECOMPRESSED_SIZE_MAX,
        },
        "read": {
            "records": limits.PAGE_RECORD_COUNT_MAX,
            "bytes": limits.PAGE_SIZE_MAX,
            "wait_ms": limits.LONG_POLL_MS_MAX,
        },
        "broker": {
            "partitions": PARTITION_COUNT_MAX,
            "records": FETCH_RECORD_COUNT_MAX,
            "bytes": FETCH_SIZE_MAX,
        },
        "queues": {
            "value_bytes": settings.queues_message_bytes_max,
            "headers": limits.MESSAGE_HEADER_COUNT_MAX,
            "publish_messages": limits.PUBLISH_COUNT_MAX,
            "publish_queues": limits.FAN_OUT_MAX,
            "publish_json_bytes": limits.JSON_BODY_SIZE_MAX,
            "receive_messages": limits.RECEIVE_COUNT_MAX,
            "receive_bytes": limits.RECEIVE_SIZE_MAX,
            "receive_wait_ms": limits.LONG_POLL_MS_MAX,
            "receipts": limits.RECEIPT_COUNT_MAX,
            "redrive_messages": limits.REDRIVE_COUNT_MAX,
            "visibility_ms": limits.VISIBILITY_MS_MAX,
            "delay_ms": limits.DELAY_MS_MAX,
            "ttl_ms": limits.MESSAGE_TTL_MS_MAX,
        },
        "list": {"items": PAGE_COUNT_MAX},
        "stream": {
            "labels": limits.LABEL_COUNT_MAX,
            "label_length": limits.LABEL_SIZE_MAX,
            "consumers": settings.manifest_consumer_count_max,
            "groups": settings.manifest_group_count_max,
            "group_members": MEMBER_COUNT_MAX,
            "producers": settings.ingest_producer_count_max,
            "leases": LEASE_COUNT_MAX,
            "fragment_target_bytes": [
                limits.FRAGMENT_TARGET_SIZE_MIN,
                limits.FRAGMENT_TARGET_SIZE_MAX,
            ],
            "fragment_max_age_ms": [limits.FRAGMENT_AGE_MS_MIN, limits.FRAGMENT_AGE_MS_MAX],
            "leaderless_fragment_max_age_ms": [
                limits.LEADERLESS_AGE_MS_MIN,
                limits.LEADERLESS_AGE_MS_MAX,
            ],
        },
        "tenant": {
            "streams": settings.manifest_tenant_stream_count_max,
            "queues": limits.QUEUE_COUNT_MAX,
            "keys": settings.manifest_tenant_key_count_max,
            # Of one process, which need not be the one that serves the next request.
            "requests_per_second": settings.rate_tenant_requests_per_second,
            "append_bytes_per_second": settings.rate_tenant_append_bytes_per_second,
        },
        "key": {
            "requests_per_second": settings.rate_key_requests_per_second,
            "append_bytes_per_second": settings.rate_key_append_bytes_per_second,
        },
    }
