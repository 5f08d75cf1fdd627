"""openapi/ingest.yaml is a valid document, and says of paths what is served."""

from pathlib import Path
from typing import Any

import yaml
from openapi_spec_validator import validate

from bottomless_server.runtime.http.health import PATHS
from unit.ingest.harness import ROUTE, IngestHarness

PRODUCERS = ROUTE.replace("/records", "/producers")
CONTRACT = Path(__file__).parents[3] / "openapi" / "ingest.yaml"


def contract() -> dict[str, Any]:
    members: dict[str, Any] = yaml.safe_load(CONTRACT.read_text())
    return members


def test_the_document_is_valid() -> None:
    validate(contract(), base_uri=CONTRACT.as_uri())


async def test_the_paths_are_those_that_are_served(harness: IngestHarness) -> None:
    served = (await harness.client.get("/openapi.json")).json()["paths"]

    # Health stands in front of every service; runtime/http/health.py serves it.
    own = {path: item for path, item in contract()["paths"].items() if path not in PATHS}
    assert {path: set(item) - {"parameters"} for path, item in own.items()} == {
        path: set(item) for path, item in served.items()
    }
    assert set(PATHS) <= contract()["paths"].keys()


async def test_the_answer_has_the_members_that_are_named(harness: IngestHarness) -> None:
    answer = await harness.client.post(ROUTE, json={"records": [{"value": "a"}]})

    named = contract()["components"]["schemas"]["Appended"]
    assert answer.json().keys() == set(named["required"])
    # Of a stream with replicas alone.
    assert named["properties"].keys() - set(named["required"]) == {"replicas"}


async def test_an_answer_in_another_form_is_refused_before_anything_is_stored(
    harness: IngestHarness,
) -> None:
    accept = {"accept": "text/html"}
    records = {"records": [{"value": "a"}]}
    refused = [
        await harness.client.post(ROUTE, json=records, headers=accept),
        await harness.client.get(PRODUCERS, headers=accept),
        await harness.client.get(f"{PRODUCERS}/loader-7", headers=accept),
        await harness.client.post(f"{PRODUCERS}/loader-7/epoch", headers=accept),
    ]

    for answer in refused:
        assert (answer.status_code, answer.json()["code"]) == (406, "not-acceptable")
    assert await harness.rows() == []
    assert (await harness.client.get(PRODUCERS)).json()["items"] == []


def test_the_members_of_a_record_are_those_that_are_read() -> None:
    from bottomless_server.ingest.records import json_records

    named = contract()["components"]["schemas"]["NewRecord"]["properties"]
    assert named.keys() == json_records.MEMBERS | {json_records.ID}
