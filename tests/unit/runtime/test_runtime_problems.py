"""Every failure of an application is one shape, whoever caused it."""

import json
from typing import Annotated, Any

import httpx
import pytest
import structlog
from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp
from support.asgi import client_of, on_tcp
from support.guards import remove

from bottomless.errors import (
    Code,
    Corrupt,
    Fault,
    InvalidRequest,
    NotFound,
    OffsetGone,
    Outcome,
    Overloaded,
    Unavailable,
)
from bottomless_server.runtime.http.app import (
    PROBLEM_TYPE,
    STATUS,
    create_api,
    json_response,
    problem_response,
    request_id_of,
    wrap,
)


class Order(BaseModel):
    amount: int


def an_api() -> FastAPI:
    api = create_api("test")

    @api.get("/things/{name}")
    async def show(name: str) -> Any:
        raise NotFound("there is no such thing", facts={"first_offset": 3})

    @api.put("/things/{name}")
    async def put(name: str) -> Any:
        raise Overloaded("too much at once", retry_after_seconds=0.2)

    @api.post("/orders")
    async def order(order: Order, size: Annotated[int, Query()] = 0) -> Any:
        return json_response({"amount": order.amount})

    @api.api_route("/bug", methods=["GET", "POST"])
    async def bug() -> Any:
        raise ZeroDivisionError("secret")

    @api.api_route("/large", methods=["GET", "POST"])
    async def large() -> Any:
        raise MemoryError

    @api.get("/half")
    async def half() -> Any:
        async def parts() -> Any:
            yield b"half"
            raise ZeroDivisionError

        return StreamingResponse(parts(), headers={"content-length": "8"})

    @api.get("/id")
    async def show_id(request: Request) -> Any:
        return json_response({"id": request_id_of(request.scope)})

    return api


def an_app() -> ASGIApp:
    return wrap(an_api())


def problem_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == PROBLEM_TYPE
    problem: dict[str, Any] = answer.json()
    assert problem.pop("request_id") == answer.headers["request-id"]
    assert problem["status"] == answer.status_code
    return problem


def test_every_code_has_a_status_and_every_status_is_an_error() -> None:
    assert set(STATUS) == set(Code)
    assert all(400 <= status <= 504 for status in STATUS.values())


async def test_an_error_is_answered_with_its_facts() -> None:
    async with client_of(an_app()) as client:
        answer = await client.get("/things/a")
    assert problem_of(answer) == {
        "type": "urn:bottomless:problem:stream-not-found",
        "title": "Stream not found",
        "status": 404,
        "detail": "there is no such thing",
        "code": "stream-not-found",
        "retryable": False,
        "outcome": "none",
        "first_offset": 3,
    }


@pytest.mark.parametrize(
    "path", ["/v1/streams/orders", "/v1/streams/orders/records", "/v1/admin/streams/orders/gap"]
)
def test_the_stream_that_there_is_not_is_named_as_the_caller_named_it(path: str) -> None:
    """D18: once the answer left it to the reader of a traceback to find out which."""
    problem = json.loads(bytes(problem_response(NotFound("no"), "id", path=path).body))
    assert problem["stream"] == "orders"


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (NotFound("no"), "/v1/streams/a b"),
        (NotFound("no"), "/v1/streams/<b>"),
        (NotFound("no"), "/v1/streams/" + "a" * 129),
        (NotFound("no"), "/v1/streams/a..b"),
        (NotFound("no"), "/internal/v1/streams/orders"),
        (NotFound("no"), ""),
        (NotFound("no", code=Code.OFFSET_NOT_FOUND), "/v1/streams/orders/records/5"),
    ],
)
def test_nothing_else_of_a_path_is_repeated(error: NotFound, path: str) -> None:
    assert "stream" not in json.loads(bytes(problem_response(error, "id", path=path).body))


async def test_retry_after_is_said_in_whole_seconds() -> None:
    async with client_of(an_app()) as client:
        answer = await client.put("/things/a")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert problem_of(answer)["retryable"] is True


def test_faults_name_their_place() -> None:
    error = InvalidRequest("no", faults=[Fault("bad-parameter", "not so", pointer="/records/1")])
    answer = problem_response(error, "id")
    assert b'"errors":[{"code":"bad-parameter","detail":"not so","pointer":"/records/1"}]' in (
        answer.body
    )


@pytest.mark.parametrize("error", [OffsetGone("trimmed"), Corrupt("damaged")])
def test_reads_that_met_a_state_of_the_data_have_no_outcome(
    error: OffsetGone | Corrupt,
) -> None:
    assert b"outcome" not in problem_response(error, "id", write=False).body
    assert b'"outcome":"none"' in problem_response(error, "id").body


def test_who_meets_a_store_that_is_away_is_told_to_wait() -> None:
    """H15: once the answer said nothing of when to come again."""
    away = Unavailable("away", code=Code.OBJECT_STORE_UNAVAILABLE)
    assert problem_response(away, "id").headers["retry-after"] == "1"
    for_good = Unavailable("no", code=Code.OBJECT_STORE_UNAVAILABLE, retryable=False)
    assert "retry-after" not in problem_response(for_good, "id").headers


def test_of_a_read_nothing_is_unknown() -> None:
    """H15: a GET whose answer from the store was lost once said that its outcome was unknown."""
    error = Unavailable("lost", outcome=Outcome.UNKNOWN)
    assert b'"outcome":"none"' in problem_response(error, "id", write=False).body
    assert b'"outcome":"unknown"' in problem_response(error, "id").body


async def test_405_names_the_methods_of_all_routes_of_the_path() -> None:
    async with client_of(an_app()) as client:
        for method in ("DELETE", "OPTIONS", "HEAD"):
            answer = await client.request(method, "/things/a")
            assert answer.status_code == 405
            assert answer.headers["allow"] == "GET, PUT"
        assert problem_of(await client.delete("/things/a"))["code"] == "method-not-allowed"


@pytest.mark.parametrize(
    "path", ["/", "/nothing", "/things/", "/things/a/", "/docs", "/things/a%2Fb"]
)
async def test_unknown_paths_and_trailing_slashes_are_404(path: str) -> None:
    async with client_of(an_app()) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert problem_of(answer)["code"] == "not-found"


SLASHES = ["orders%2Foffsets", "orders%2foffsets", "%2Forders", "orders%2F", "a%2Fb", "a%252F%2Fb"]


def a_stream_api() -> FastAPI:
    api = create_api("test")

    @api.api_route("/v1/streams/{name}", methods=["GET", "DELETE"])
    @api.api_route("/v1/streams/{name}/offsets", methods=["GET", "DELETE"])
    async def reached(name: str, request: Request) -> Any:
        return json_response({"path": request.url.path, "name": name})

    return api


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", SLASHES)
async def test_a_name_with_an_encoded_slash_reaches_no_operation(name: str, method: str) -> None:
    """A stream's name was taken for a name and the operation after it, or was 404 as if the path
    were wrong. The checks before this one looked at 4xx alone, and at names that lead nowhere."""
    async with client_of(wrap(a_stream_api())) as client:
        answer = await client.request(method, f"/v1/streams/{name}")
        asked = await client.request(method, "/v1/streams/orders?name=a%2Fb")
    problem = problem_of(answer)
    assert (answer.status_code, problem["code"], problem["outcome"]) == (400, "bad-name", "none")
    assert "may not hold a slash" in problem["detail"]
    assert asked.status_code == 200, "a slash in a query is one of a value"


async def test_without_the_check_a_name_with_a_slash_reaches_another_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the look at encoded slashes in a path", lambda _: False)
    async with client_of(wrap(a_stream_api())) as client:
        answer = await client.delete("/v1/streams/orders%2Foffsets")
    assert answer.json() == {"path": "/v1/streams/orders/offsets", "name": "orders"}


async def test_what_the_framework_would_refuse_by_itself_is_a_bug_and_shows_no_input() -> None:
    """No route has parameters that it reads: FastAPI's own answer to them shows what came in."""
    async with client_of(an_app()) as client:
        answer = await client.post("/orders?size=secret", json={"amount": "secret"})
        unreadable = await client.post(
            "/orders", content=b"{secret", headers={"content-type": "application/json"}
        )
    for problem in (answer, unreadable):
        assert problem.status_code == 500
        assert problem_of(problem)["code"] == "internal"
        assert "secret" not in problem.text


@pytest.mark.parametrize(("method", "outcome"), [("GET", "none"), ("POST", "unknown")])
async def test_a_bug_is_logged_and_shows_nothing(method: str, outcome: str) -> None:
    with structlog.testing.capture_logs() as logs:
        async with client_of(an_app()) as client:
            answer = await client.request(method, "/bug")
    assert answer.status_code == 500
    assert problem_of(answer)["outcome"] == outcome
    assert "secret" not in answer.text
    assert [entry["exc_info"].args for entry in logs] == [("secret",)]
    assert logs[0]["request_id"] == answer.headers["request-id"]


async def test_memory_that_ran_out_passes_but_nobody_says_so_of_a_write_that_may_be_stored() -> (
    None
):
    with structlog.testing.capture_logs() as logs:
        async with client_of(an_app()) as client:
            read, write = await client.get("/large"), await client.post("/large")
    problem = problem_of(read)
    assert (read.status_code, problem["code"]) == (503, "overloaded")
    assert (problem["retryable"], problem["outcome"]) == (True, "none")
    assert read.headers["retry-after"] == "1"
    assert (write.status_code, problem_of(write)["outcome"]) == (500, "unknown")
    assert [entry["request_id"] for entry in logs] == [
        answer.headers["request-id"] for answer in (read, write)
    ]


async def test_a_bug_in_the_middle_of_an_answer_cuts_the_connection() -> None:
    with structlog.testing.capture_logs():
        async with on_tcp(an_app()) as port, httpx.AsyncClient() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(f"http://127.0.0.1:{port}/half")


async def test_an_application_that_is_no_fastapi_is_covered_too() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with structlog.testing.capture_logs():
        async with client_of(wrap(broken)) as client:
            answer = await client.post("/")
    assert problem_of(answer)["outcome"] == Outcome.UNKNOWN


async def test_every_answer_has_an_id_and_the_trace_that_came() -> None:
    async with client_of(an_app()) as client:
        answer = await client.get("/id", headers={"traceparent": "00-aa-bb-01", "request-id": "x"})
        other = await client.get("/id")
    assert answer.headers["request-id"] == answer.json()["id"] != other.headers["request-id"]
    assert answer.headers["traceparent"] == "00-aa-bb-01"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "traceparent" not in other.headers


async def test_a_url_beyond_8_kib_is_414() -> None:
    async with client_of(an_app()) as client:
        assert (await client.get("/id?a=" + "b" * 8_100)).status_code == 200
        answer = await client.get("/id?a=" + "b" * 8_200)
    assert answer.status_code == 414
    assert problem_of(answer)["code"] == "uri-too-long"


async def test_a_shell_within_a_shell_says_nothing_twice() -> None:
    async with client_of(wrap(an_app())) as client:
        answer = await client.get("/id")
    assert len(answer.headers.get_list("request-id")) == 1
