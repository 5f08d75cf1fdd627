"""openapi/reader.yaml is a valid document, and says of paths and parameters what is served."""

from pathlib import Path
from typing import Any

import yaml
from openapi_spec_validator import validate
from unit.reader.world import World

from bottomless_server.reader import routes

CONTRACT = Path(__file__).parents[3] / "openapi" / "reader.yaml"


def contract() -> dict[str, Any]:
    members: dict[str, Any] = yaml.safe_load(CONTRACT.read_text())
    return members


def test_the_document_is_valid() -> None:
    validate(contract())


async def test_the_paths_are_those_that_are_served(world: World) -> None:
    served = (await world.http.get("/openapi.json")).json()["paths"]

    assert {path: set(item) for path, item in contract()["paths"].items()} == {
        path: set(item) for path, item in served.items()
    }


def test_the_parameters_are_those_that_are_parsed() -> None:
    paths = contract()["paths"]
    for path, parsed in (
        ("/v1/streams/{s}/records", routes._PAGE_PARAMETERS),
        ("/v1/streams/{s}/fragments", routes._LIST_PARAMETERS),
    ):
        named = {item.get("name") for item in paths[path]["get"]["parameters"]} - {None}
        assert named == set(parsed)
