"""Health answers whatever its services do."""

from typing import Any

import structlog
from starlette.types import ASGIApp
from support.asgi import client_of

from bottomless_server.runtime.http.app import create_api, wrap
from bottomless_server.runtime.http.health import Health


class Sick:
    async def report(self) -> dict[str, Any]:
        raise ConnectionError("the store is away")


class Silent:
    """Has nothing to report."""


def an_app(services: dict[str, object]) -> ASGIApp:
    return wrap(Health(services).around(create_api("test")))


async def test_a_failing_report_does_not_make_a_process_unready() -> None:
    with structlog.testing.capture_logs() as logs:
        async with client_of(an_app({"a": Sick(), "b": Silent()})) as client:
            answer = await client.get("/readyz?verbose=1")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "services": {"a": {"status": "report failed"}, "b": {"status": "running"}},
    }
    assert [entry["service"] for entry in logs] == ["a"]


async def test_its_queries_and_methods_are_as_strict_as_others() -> None:
    async with client_of(an_app({})) as client:
        assert (await client.get("/readyz?verbose=2")).json()["code"] == "bad-parameter"
        assert (await client.get("/livez?verbose=1")).json()["code"] == "unknown-parameter"
        refused = await client.post("/livez")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
        assert (await client.get("/else")).status_code == 404
