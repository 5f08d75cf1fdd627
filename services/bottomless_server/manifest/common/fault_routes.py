"""Arm fault points of this process, for tests; nothing is there unless a setting says so.

Contract: openapi/internal.yaml. In the all-in-one this arms the points of all services.
"""

from typing import Annotated, Literal

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from bottomless.errors import Code, Fault, InvalidRequest, NotFound
from bottomless_server.protocol.paths import FAULT_POINTS
from bottomless_server.runtime.base.fault_points import POINTS, FaultAction, arm
from bottomless_server.runtime.http.app import json_response, parse_query
from bottomless_server.runtime.http.closed_body import ClosedBody, read_closed_body


class _Arm(ClosedBody):
    name: Annotated[str, Field(max_length=128)]
    action: Literal["exit", "stall"]
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1


def add_fault_routes(api: FastAPI, *, enabled: bool) -> None:
    async def arm_point(request: Request) -> Response:
        parse_query(request.scope, {})
        if not enabled:
            raise NotFound("nothing is served at this path", code=Code.NOT_FOUND)
        asked = await read_closed_body(request, _Arm)
        if asked.name not in POINTS:
            fault = Fault(Code.VALIDATION_FAILED, "there is no such point", pointer="/name")
            raise InvalidRequest(
                "the body is not valid", code=Code.VALIDATION_FAILED, faults=[fault]
            )
        arm(asked.name, FaultAction(asked.action), asked.count)
        return json_response({"armed": asked.name})

    api.add_api_route(FAULT_POINTS, arm_point, methods=["POST"])
