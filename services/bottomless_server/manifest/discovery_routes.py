"""What a client can find out before it sends anything: limits, version, who it is.

Contract: openapi/manifest.yaml.
"""

from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bottomless.formats.checks import VERSION as FORMAT_VERSION
from bottomless.model import limits
from bottomless.model.names import REFERENCE_SIZE_MAX, TENANT_DEFAULT
from bottomless.model.stream import LEASE_COUNT_MAX
from bottomless_server.manifest.context import Context
from bottomless_server.manifest.paging import PAGE_COUNT_MAX
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.runtime.http import header, json_response, negotiate, parse_query

_DISTRIBUTION: Final = "bottomless-server"


def add_discovery_routes(api: FastAPI, context: Context) -> None:
    bounds = describe_limits(context.settings)
    running = {"version": version(_DISTRIBUTION), "api": "v1", "format_version": FORMAT_VERSION}
    # Nobody is asked who they are; then there is one tenant, and everything is allowed.
    anybody = {"principal": "anonymous", "authenticated": False, "tenant": TENANT_DEFAULT}

    def answering(members: dict[str, Any]) -> Any:
        async def get(request: Request) -> Response:
            parse_query(request.scope, {})
            negotiate(header(request.scope, b"accept"), ["application/json"])
            return json_response(members, 200, {"cache-control": "private, no-cache"})

        return get

    for name, members in (("limits", bounds), ("version", running), ("whoami", anybody)):
        api.add_api_route(f"/v1/{name}", answering(members), methods=["GET"], name=name)


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
        "list": {"items": PAGE_COUNT_MAX},
        "stream": {
            "labels": limits.LABEL_COUNT_MAX,
            "label_length": limits.LABEL_SIZE_MAX,
            "consumers": settings.manifest_consumer_count_max,
            "leases": LEASE_COUNT_MAX,
            "fragment_target_bytes": [
                limits.FRAGMENT_TARGET_SIZE_MIN,
                limits.FRAGMENT_TARGET_SIZE_MAX,
            ],
            "fragment_max_age_ms": [limits.FRAGMENT_AGE_MS_MIN, limits.FRAGMENT_AGE_MS_MAX],
        },
        "tenant": {"streams": settings.manifest_tenant_stream_count_max},
    }
