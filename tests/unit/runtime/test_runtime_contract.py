"""What an application tells of itself: the words of the contract, and only what it serves."""

from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.types import Receive, Scope, Send
from support.asgi import client_of

from bottomless_server.runtime.http.app import create_api, wrap
from bottomless_server.runtime.http.contract import describe, paths_of


async def nothing() -> None:
    pass


async def told(*paths: str) -> dict[str, Any]:
    api = create_api("test")
    for path in paths:
        api.add_api_route(path, nothing, methods=["GET"])
    describe(api)
    async with client_of(wrap(api)) as client:
        contract: dict[str, Any] = (await client.get("/openapi.json")).json()
    return contract


async def test_a_route_is_told_in_the_words_of_the_contract_whatever_its_parts_are_called() -> None:
    paths = (await told("/v1/streams/{name}/offsets"))["paths"]

    assert list(paths) == ["/v1/streams/{s}/offsets"]
    assert (
        paths["/v1/streams/{s}/offsets"]["get"]["summary"]
        == "Find out where a stream begins and ends"
    )


async def test_what_is_not_served_is_not_told_and_what_is_not_described_is_seen() -> None:
    paths = (await told("/v1/secret"))["paths"]

    assert list(paths) == ["/v1/secret"]


async def test_its_title_is_the_applications() -> None:
    contract = await told()

    assert (contract["info"]["title"], contract["paths"]) == ("test", {})
    assert "Problem" in contract["components"]["schemas"]


async def test_an_application_tells_the_paths_and_methods_that_are_told_by_its_routes() -> None:
    api = create_api("test")
    for method in ("PUT", "GET", "DELETE"):
        api.add_api_route("/internal/v1/streams/{name}", nothing, methods=[method])
    api.add_api_route("/internal/v1/files/{name:path}", nothing, methods=["POST"])
    api.add_api_route("/internal/v1/hidden", nothing, methods=["GET"], include_in_schema=False)
    async with client_of(wrap(api)) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]

    derived = get_openapi(title="test", version="1", routes=api.routes)["paths"]
    assert {path: set(item) for path, item in paths.items()} == {
        path: set(item) for path, item in derived.items()
    }
    assert paths["/internal/v1/streams/{name}"].keys() == {"get", "put", "delete"}


async def test_a_process_hears_of_an_application_what_it_serves_as_the_contract_spells_it() -> None:
    api = create_api("test")
    for path in ("/v1/streams/{name}/offsets", "/internal/v1/commits"):
        api.add_api_route(path, nothing, methods=["GET"])

    assert await paths_of(wrap(api)) == {"/v1/streams/{s}/offsets", "/internal/v1/commits"}


async def test_of_an_application_that_tells_nothing_no_path_is_known() -> None:
    async def silent(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert await paths_of(silent) == set()
