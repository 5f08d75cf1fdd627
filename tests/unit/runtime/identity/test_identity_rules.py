"""The table of the gate is the contract's: no path is served that nobody judged."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bottomless_server.runtime.http.health import PATHS
from bottomless_server.runtime.identity.rules import Reach, find_rules, is_open, templates

OPENAPI: Final = Path(__file__).parents[4] / "openapi"
DOCUMENTS: Final = ("ingest", "manifest", "reader")
METHODS: Final = ("get", "head", "put", "post", "patch", "delete")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of all that is served below /v1."""
    found = []
    for name in DOCUMENTS:
        paths = yaml.safe_load((OPENAPI / f"{name}.yaml").read_text())["paths"]
        for path, item in paths.items():
            if path != "/":
                found += [(m.upper(), path, item[m]) for m in METHODS if m in item]
    return found


def test_the_table_has_every_operation_of_the_contract_and_no_other() -> None:
    assert len(set(templates())) == len(templates())
    assert set(templates()) == {(method, path) for method, path, _ in operations()}


def test_every_operation_says_what_a_refused_credential_is_answered() -> None:
    for method, path, operation in operations():
        for status, name in (("401", "Unauthenticated"), ("403", "Forbidden")):
            reference = operation["responses"].get(status, {}).get("$ref", "")
            assert reference.endswith(f"/{name}"), (method, path, status)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_asks_for_a_credential(name: str) -> None:
    document = yaml.safe_load((OPENAPI / f"{name}.yaml").read_text())
    assert document["security"] == [{"bearer": []}]
    assert "bearer" in document["components"]["securitySchemes"]


def test_nothing_below_v1_is_open() -> None:
    assert all(is_open(path) for path in (*PATHS, "/", "/openapi.json", "/docs", "/docs/ui.css"))
    assert not any(
        is_open(path) for path in ("//", "/v1", "/metrics", "/docs2", "/livez/", "//docs")
    )
    assert not any(is_open(path) for _, path, _ in operations())


def test_a_path_is_found_by_what_stands_in_its_places() -> None:
    found = find_rules("/v1/streams/orders/consumers/billing/offset")
    assert found is not None
    assert found.parts == {"s": "orders", "c": "billing"}
    assert set(found.rules) == {"GET", "PUT", "DELETE"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v1/",
        "/v1/streams/",
        "//v1/streams",
        "/v1//streams",
        "/v1/streams//records",
        "/v1/streams/a/records\n",
        "/V1/streams",
        "/v1/streams/a/records/1/2",
        "/internal/v1/keys/root",
    ],
)
def test_what_is_not_in_the_table_is_nothing(path: str) -> None:
    assert find_rules(path) is None


def test_what_changes_or_ends_something_for_all_is_audited() -> None:
    audited = set()
    for method, path in templates():
        found = find_rules(path.format(s="s", c="c", p="p", offset="0", **IDS))
        assert found is not None
        if found.rules[method].audited:
            audited.add(f"{method} {path}")
    assert audited == {
        "DELETE /v1/streams/{s}/producers/{p}",
        "PUT /v1/streams/{s}/consumers/{c}/offset",
        "DELETE /v1/streams/{s}/consumers/{c}/offset",
        "PUT /v1/streams/{s}",
        "PATCH /v1/streams/{s}",
        "DELETE /v1/streams/{s}",
        "POST /v1/streams/{s}/retention/evaluate",
        "POST /v1/streams/{s}/trim",
        "POST /v1/streams/{s}/manifest/verify",
        "POST /v1/admin/streams/{s}/takeover",
        "POST /v1/admin/streams/{s}/gap",
        "POST /v1/admin/gc",
        "POST /v1/admin/rebuild",
        "POST /v1/keys",
        "DELETE /v1/keys/{key_id}",
        "POST /v1/keys/{key_id}/rotate",
    }


IDS: Final = dict.fromkeys(("fragment_id", "lease_id", "operation_id", "key_id"), "x")


def test_what_every_credential_may_is_little() -> None:
    anybody = {
        path
        for method, path in templates()
        if (found := find_rules(path)) and found.rules[method].reach is Reach.NOTHING
    }
    assert anybody == {"/v1/limits", "/v1/version", "/v1/whoami"}
