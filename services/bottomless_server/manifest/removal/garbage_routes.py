"""The garbage collection over HTTP.

Contract: openapi/manifest.yaml.
"""

from typing import Annotated

from fastapi import FastAPI
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest
from bottomless.model.duration import parse_duration
from bottomless.model.names import TENANT_DEFAULT
from bottomless_server.manifest.common.context import Context
from bottomless_server.manifest.operations.operation_routes import accepted
from bottomless_server.manifest.operations.operations import Operations
from bottomless_server.manifest.registry.registry import Registry
from bottomless_server.manifest.removal.garbage import GC, gc_arguments
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.http.app import header, negotiate, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body
from bottomless_server.runtime.http.full_names import full_name_of


def _duration(text: str) -> str:
    parse_duration(text)
    return text


class _Collection(ClosedBody):
    dry_run: bool = True
    """To delete has to be said."""
    minimum_age: Annotated[str, AfterValidator(_duration)] | None = None
    stream: str | None = None


def add_garbage_routes(
    api: FastAPI, context: Context, registry: Registry, operations: Operations
) -> None:
    async def post(request: Request) -> Response:
        parse_query(request.scope, {})
        negotiate(header(request.scope, b"accept"), ["application/json"])
        asked = await read_closed_body(request, _Collection, optional=True)
        age_ms = _age_ms(context, asked)
        tenant = principal_of(request.scope).tenant
        stream_id = None
        if asked.stream is not None:
            name = full_name_of(request.scope, asked.stream)
            stream_id = (await registry.find(name)).stream_id
        # The tenant that everything is of where nobody is asked who they are looks after all.
        everything = tenant == TENANT_DEFAULT and stream_id is None
        operation = await operations.begin(
            GC,
            tenant=tenant,
            stream_id=stream_id,
            arguments=gc_arguments(
                dry_run=asked.dry_run,
                minimum_age_ms=age_ms,
                tenant=None if everything else tenant,
                stream_id=stream_id,
            ),
        )
        return accepted(operation)

    api.add_api_route("/v1/admin/gc", post, methods=["POST"])


def _age_ms(context: Context, asked: _Collection) -> int:
    """The age in milliseconds from which on objects may count as garbage.

    Raises:
        InvalidRequest: puts may be under way that began so long ago.
    """
    age = asked.minimum_age or context.settings.manifest_gc_minimum_age
    age_ms = parse_duration(age) * 1000
    least_ms = context.settings.manifest_upload_deadline_ms
    if asked.dry_run or age_ms >= least_ms:
        return age_ms
    if asked.minimum_age is None:
        return least_ms
    raise InvalidRequest(
        "the minimum age must be at least the longest time that an upload takes",
        code=Code.VALIDATION_FAILED,
        faults=[Fault("too-small", "a put may be under way for longer", "/minimum_age")],
        facts={"minimum_ms": least_ms},
    )
