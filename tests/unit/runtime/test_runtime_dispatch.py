"""Several services behind one listener look like one."""

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Scope
from support.asgi import client_of

from bottomless.errors import NotFound
from bottomless_server.runtime.http.app import create_api, json_response, read_body, wrap
from bottomless_server.runtime.http.dispatch import Dispatcher


def a_writer() -> ASGIApp:
    api = create_api("writer")

    @api.post("/records")
    async def append(request: Request) -> Any:
        body = await read_body(request.scope, request.receive, 100)
        return json_response({"by": "writer", "size": len(body)})

    return wrap(api)


def a_reader() -> ASGIApp:
    api = create_api("reader")

    @api.get("/records")
    async def page() -> Any:
        return json_response({"by": "reader"})

    @api.get("/offsets")
    async def offsets() -> Any:
        raise NotFound("there is no such stream")

    return wrap(api)


def an_app() -> ASGIApp:
    def by_path(scope: Scope) -> list[str]:
        return {"/records": ["writer", "reader"], "/offsets": ["reader"]}.get(scope["path"], [])

    return wrap(Dispatcher({"writer": a_writer(), "reader": a_reader()}, by_path))


async def test_a_path_of_two_services_goes_by_method() -> None:
    async with client_of(an_app()) as client:
        assert (await client.get("/records")).json() == {"by": "reader"}
        appended = await client.post("/records", content=b"body")
    assert appended.json() == {"by": "writer", "size": 4}


async def test_405_allows_what_any_of_them_serves() -> None:
    async with client_of(an_app()) as client:
        answer = await client.delete("/records")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "POST"}
    assert answer.json()["request_id"] == answer.headers["request-id"]
    assert len(answer.headers.get_list("request-id")) == 1


async def test_a_404_of_a_service_is_the_answer_and_unknown_paths_have_one() -> None:
    async with client_of(an_app()) as client:
        assert (await client.get("/offsets")).json()["code"] == "stream-not-found"
        assert (await client.get("/nothing")).json()["code"] == "not-found"
