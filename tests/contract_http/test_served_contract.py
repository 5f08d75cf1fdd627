"""H24: `/openapi.json` of a running server is the contract of openapi/, whole and valid."""

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

import httpx
import pytest
from openapi_spec_validator import validate
from support.documents import documented
from support.server import AllInOne

from openapi.bundle import PUBLIC, bundled

LED_TO: Final = ("key_id", "m", "lease_id", "operation_id", "fragment_id")
"""Parts of paths that an answer names, or that an example before has made."""
NOT_HERE: Final = {
    "stage_batches": "its body is no text",
    "take_over_stream": "there is no home that is gone",
    "accept_gap": "there is no hole",
    "change_owner": "the stream has one node",
    "add_replica": "there is one node",
    "evacuate_node": "no node has this id",
    "remove_replica": "no node holds the stream",
    "take_over_queues": "there is no home that is gone",
    "rebuild": "coordination is not lost",
    "register_drive": "its settings name no drive",
    "retire_drive": "no drive is registered",
    "lose_drive": "no drive is registered",
    "promote_fragments": "the stream has no tiers",
    "move_fragments": "nothing of the stream is in the object store",
    "give_up_move": "no move is under way",
    "delete_group": "somebody is in the group",
    "delete_super_group": "somebody is in the group",
}
"""Operations whose examples cannot succeed on a server that is well, and why."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("contract") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def served(server: AllInOne) -> Any:
    return httpx.get(f"{server.url}/openapi.json").json()


def test_what_is_served_is_a_valid_document(served: Any) -> None:
    validate(served)


def test_every_operation_is_served_with_its_words(served: Any) -> None:
    """H24."""
    contract = bundled(*PUBLIC)["paths"]
    for operation in documented(*PUBLIC):
        told = served["paths"][operation.path][operation.method]
        assert told == contract[operation.path][operation.method], operation.name
    count = len({each.name for each in documented(*PUBLIC)})
    assert sum(len(item) for item in served["paths"].values()) == count


def test_its_version_is_that_of_the_program(served: Any) -> None:
    """D2: it was 0, whatever ran."""
    assert served["info"]["version"] == version("bottomless-server")


def test_every_operation_has_a_summary_and_one_group_that_is_described(served: Any) -> None:
    """D2: the groups were named after services, which no user knows."""
    described = {tag["name"] for tag in served["tags"] if tag["description"]}
    assert not described & {"ingest", "manifest", "reader"}
    for path, item in served["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            assert len(operation["tags"]) == 1, (method, path)
            assert operation["tags"][0] in described, (method, path)


def test_no_schema_is_a_bare_true_which_generators_do_not_read(served: Any) -> None:
    """D2, D3: one such schema broke the page of the main operation, and every generated client."""

    def schemas(value: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            yield from value.get("properties", {}).values()
            for name, member in value.items():
                yield from ([member] if name in ("schema", "items") else [])
                yield from schemas(member)
        elif isinstance(value, list):
            for member in value:
                yield from schemas(member)

    assert all(isinstance(schema, dict) for schema in schemas(served))
    parts = served["components"]
    # References to references are dropped by some.
    assert not [
        name for kind in parts.values() for name, part in kind.items() if set(part) == {"$ref"}
    ]


class Examples:
    """What `/docs` sends when *Execute* is pressed and nothing was typed."""

    def __init__(self, contract: Any) -> None:
        self._parts = contract["components"]
        self.operations = {
            operation["operationId"]: (method, path, operation)
            for path, item in contract["paths"].items()
            for method, operation in item.items()
        }

    def request(self, name: str) -> tuple[str, str, dict[str, Any]] | None:
        """Method, path and what httpx takes beside them; None where a part of the path is not given."""
        method, path, operation = self.operations[name]
        query: dict[str, str] = {}
        headers: dict[str, str] = {}
        for parameter in map(self._resolved, operation["parameters"]):
            value = self._value(parameter)
            if value is None:
                assert not parameter.get("required") or parameter["in"] == "path", (name, parameter)
            elif parameter["in"] == "path":
                path = path.replace("{" + parameter["name"] + "}", value)
            else:
                (query if parameter["in"] == "query" else headers)[parameter["name"]] = value
        if "{" in path:
            return None
        given: dict[str, Any] = {"params": query, "headers": headers}
        if "requestBody" in operation:
            media_type, content = next(iter(operation["requestBody"]["content"].items()))
            headers["content-type"] = media_type
            given["content"] = json.dumps(self._example(content))
        return method, path, given

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in value:
            return value
        _, _, kind, name = value["$ref"].split("/")
        found: dict[str, Any] = self._parts[kind][name]
        return found

    def _value(self, parameter: dict[str, Any]) -> str | None:
        value = self._example(parameter)
        if value is None:
            value = self._resolved(parameter["schema"]).get("default")
        return value if value is None or isinstance(value, str) else json.dumps(value)

    @staticmethod
    def _example(place: dict[str, Any]) -> Any:
        several = place.get("examples")
        return next(iter(several.values()))["value"] if several else place.get("example")


def test_every_example_works_when_it_is_executed(server: AllInOne, served: Any) -> None:
    """D2: the example of an append was random base64, with an epoch of no producer: 400.

    The existing checks sent requests of their own making, and never what the page would send.
    """
    examples = Examples(served)
    first = ["put_stream", "append_records", "put_consumer_offset", "raise_producer_epoch"]
    first += ["join_group", "put_super_stream", "append_to_super_stream", "join_super_group"]
    first += ["put_queue"]
    last = [
        "delete_queue",
        "delete_consumer_offset",
        "forget_producer",
        "delete_stream",
        "delete_super_stream",
    ]
    between = [name for name in examples.operations if name not in (*first, *last)]
    with server.client() as client:
        for name in (*first, *between, *last):
            request = examples.request(name)
            if name in NOT_HERE or request is None:
                continue
            method, path, given = request
            answer = client.request(method, path, **given)
            assert answer.status_code < 300, (name, path, given, answer.text)


def test_what_has_no_example_is_led_to_by_an_answer(served: Any) -> None:
    examples = Examples(served)
    for name, (_, path, _) in examples.operations.items():
        if examples.request(name) is None:
            assert any("{" + part + "}" in path for part in LED_TO), name
