"""What `./dev contract` makes of openapi/: it is there, and nothing is made of what is not said."""

import copy
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from openapi import endpoints, routing
from openapi.__main__ import outputs
from openapi.bundle import OPENAPI, PUBLIC, bundled, read
from openapi.endpoints import Refused, compile_documents

GROWN: Final = "/v1/streams/{s}/peaks"
OPERATION: Final = {
    "operationId": "get_peaks",
    "security": [{"bearer": []}],
    "x-service": "reader",
    "x-reach": "public",
    "x-scope": {"operations": ["read"], "where": "stream"},
    "x-audit": "none",
    "x-rate": "requests",
}
"""A made-up one that is as it should be."""
EVERYWHERE: Final = {"operations": ["read"], "where": "everywhere"}
INSIDE: Final = {"operationId": "get_x", "x-service": "reader", "x-reach": "internal"}


@pytest.mark.parametrize("file", outputs(), ids=lambda file: file.name)
def test_what_is_made_of_the_contract_is_what_lies_here(file: Path) -> None:
    """Where it is not, run `./dev contract`."""
    assert file.read_text() == outputs()[file]


def compiled_with(
    operation: dict[str, Any], path: str = GROWN, method: str = "get", file: str = "reader"
) -> dict[str, Any]:
    documents = {name: copy.copy(read(OPENAPI / f"{name}.yaml")) for name in (*PUBLIC, "internal")}
    paths = documents[file]["paths"]
    grown = {**paths.get(path, {}), method: operation}
    documents[file]["paths"] = {**paths, path: grown}
    return compile_documents(documents, [])


def test_an_operation_that_says_all_is_compiled() -> None:
    assert compiled_with(OPERATION)["endpoints"][-1] == {
        "id": "get_peaks",
        "method": "GET",
        "path": GROWN,
        "service": "reader",
        "on": "stream",
        "operations": ["read"],
        "hides": True,
        "audit": None,
        "rate": "requests",
    }


@pytest.mark.parametrize("member", ["x-service", "x-reach", "x-scope", "x-audit", "x-rate"])
def test_an_operation_without_one_of_the_members_is_refused(member: str) -> None:
    short = {name: value for name, value in OPERATION.items() if name != member}
    with pytest.raises(Refused) as caught:
        compiled_with(short)
    said = f"openapi/reader.yaml: GET {GROWN} (get_peaks): {member} is missing; it is "
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("member", ["x-service", "x-reach"])
def test_an_internal_operation_without_one_of_its_members_is_refused(member: str) -> None:
    short = {name: value for name, value in INSIDE.items() if name != member}
    with pytest.raises(Refused, match=f"{member} is missing"):
        compiled_with(short, "/internal/v1/x", file="internal")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"x-service": "readers"}, "x-service is one of"),
        ({"x-service": "ingest"}, "this is the file of reader"),
        ({"x-service": "every"}, "does not go into this file"),
        ({"x-reach": "internal"}, "does not go into this file"),
        ({"x-reach": "every-listener"}, "does not go into this file"),
        ({"x-rates": "none"}, "x-rates says nothing here"),
        ({"x-rate": "append"}, "it has none"),
        ({"x-rate": "none"}, "requests below /v1/ are counted"),
        ({"x-rate": "by-route"}, "requests below /v1/ are counted"),
        ({"x-rate": "bytes"}, "x-rate is one of"),
        ({"x-scope": "read"}, "x-scope is open, "),
        ({"x-scope": {"operations": ["read"]}}, "x-scope is open, "),
        ({"x-scope": {"operations": ["read"], True: "stream"}}, "x-scope is open, "),
        ({"x-scope": {"operations": ["write"], "where": "stream"}}, "operations are some of"),
        ({"x-scope": {"operations": [], "where": "stream"}}, "operations are some of"),
        ({"x-scope": {"operations": ["read"], "where": "open"}}, "where is stream"),
        ({"x-scope": "open"}, "open where security is"),
        ({"x-scope": "open", "security": []}, "nothing below /v1/ is open"),
        ({"security": []}, "open where security is"),
        ({"x-scope": "any-credential"}, "may read what has no name"),
        ({"x-audit": "Peaks!"}, "x-audit is the name of an action"),
        ({"x-audit": None}, "x-audit is the name of an action"),
        ({"x-audit": "stream.peaks"}, "reads are not audited"),
        ({"operationId": "get_records"}, "another operation has its operationId"),
    ],
    ids=str,
)
def test_an_operation_that_contradicts_itself_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        compiled_with({**OPERATION, **changes})


def test_what_needs_admin_or_delete_and_changes_something_is_audited() -> None:
    grave = {**OPERATION, "x-scope": {"operations": ["admin"], "where": "stream"}}
    compiled_with(grave)
    with pytest.raises(Refused, match="is audited"):
        compiled_with(grave, method="post")


def test_what_is_said_of_a_stream_names_one() -> None:
    with pytest.raises(Refused, match=r"the path has no \{s\}"):
        compiled_with(OPERATION, "/v1/peaks")


def test_no_operation_is_public_and_internal() -> None:
    with pytest.raises(Refused, match="paths below /internal/"):
        compiled_with(INSIDE, "/v1/x", file="internal")
    with pytest.raises(Refused, match="paths below /internal/"):
        compiled_with({**OPERATION, "x-scope": EVERYWHERE}, "/internal/v1/x")
    with pytest.raises(Refused, match="x-scope says nothing here"):
        compiled_with({**INSIDE, "x-scope": "open"}, "/internal/v1/x", file="internal")


def test_no_operation_is_in_two_files() -> None:
    with pytest.raises(Refused, match="it is an operation of two files"):
        compiled_with({**OPERATION, "operationId": "y"}, "/v1/streams/{s}/staged", "post")


def test_one_place_of_a_path_has_one_name_in_all_files() -> None:
    with pytest.raises(Refused, match=r"the place of \{name\} is called s"):
        compiled_with({**OPERATION, "x-scope": EVERYWHERE}, "/v1/streams/{name}/x")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_operation_says_what_a_refused_credential_is_answered(name: str) -> None:
    document = yaml.safe_load((OPENAPI / f"{name}.yaml").read_text())
    assert document["security"] == [{"bearer": []}]
    for said in endpoints.operations({name: document}):
        if said.members["x-scope"] == "open":
            continue
        for status, answer in (("401", "Unauthenticated"), ("403", "Forbidden")):
            reference = said.members["responses"].get(status, {}).get("$ref", "")
            assert reference.endswith(f"/{answer}"), (said.path, said.method, status)


def test_an_example_of_what_may_be_left_out_takes_no_record_from_an_answer() -> None:
    """`/docs` sends each example as it stands: a read that somebody tries there asked for records with
    the key `cust-9` alone, and showed none."""
    contract = bundled(*PUBLIC)
    shared = {
        f"#/components/parameters/{name}": one
        for name, one in contract["components"]["parameters"].items()
    }
    told = {
        (path, parameter["name"])
        for path, item in contract["paths"].items()
        for name, operation in item.items()
        if name != "parameters"
        for parameter in (shared.get(p.get("$ref"), p) for p in operation.get("parameters", []))
        if parameter["in"] == "query" and not parameter.get("required")
        if {"example", "examples"} & {*parameter, *parameter["schema"]}
    }
    records = "/v1/streams/{s}/records"
    # Of the last one a key, or its bytes, has to be said.
    assert told == {
        (records, "offset"),
        (records, "limit"),
        ("/v1/super-streams/{s}/route", "key"),
    }


def test_text_beside_the_marks_stays_and_missing_marks_are_told() -> None:
    text = "a\n# made of openapi/ by ./dev contract: x\nold\n  # made until here\nb\n"
    new = routing.written_into(text, {"x": "new\n"})
    assert new == text.replace("old", "new")
    with pytest.raises(AssertionError, match="marks of"):
        routing.written_into("a\n", {"x": "new\n"})
