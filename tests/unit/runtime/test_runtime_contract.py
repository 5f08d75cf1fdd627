"""What an application tells of itself: the words of the contract, and only what it serves."""

from typing import Any

from support.asgi import client_of

from bottomless_server.runtime.http.app import create_api, wrap
from bottomless_server.runtime.http.contract import describe


async def told(*paths: str) -> dict[str, Any]:
    api = create_api("test")

    async def nothing() -> None:
        pass

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
