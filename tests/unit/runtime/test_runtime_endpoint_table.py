"""The table that a server goes by: who answers a path, and who may ask for it."""

from typing import Any

import pytest

from bottomless_server.runtime.http.endpoint_table import EndpointTable
from bottomless_server.runtime.http.endpoints import TABLE, find, services_of


def a_table(*endpoints: str) -> EndpointTable:
    """One of made-up endpoints, each as method, path and service."""
    compiled: list[dict[str, Any]] = []
    for each in endpoints:
        method, path, service = each.split()
        compiled.append(
            {
                "id": each,
                "method": method,
                "path": path,
                "service": service,
                "on": "any-credential",
                "operations": [],
                "hides": True,
                "audit": None,
                "rate": "requests",
            }
        )
    default = {"service": "manifest", "below": "/v1/"}
    return EndpointTable({"default": default, "pages": [], "endpoints": compiled})


def test_a_path_is_found_by_what_stands_in_its_places() -> None:
    found = TABLE.find("/v1/streams/orders/consumers/billing/offset")
    assert found.parts == {"s": "orders", "c": "billing"}
    assert set(found.endpoints) == {"GET", "PUT", "DELETE"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "//",
        "v1/streams",
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
    found = TABLE.find(path)
    assert (found.endpoints, found.parts) == ({}, {})


def test_nothing_below_v1_is_open() -> None:
    assert all(
        TABLE.is_open(path)
        for path in ("/", "/livez", "/readyz", "/openapi.json", "/docs", "/docs/ui.css")
    )
    assert not any(
        TABLE.is_open(path)
        for path in ("//", "/v1", "/v1/", "/metrics", "/docs2", "/livez/", "//docs", "")
    )


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("POST", "/v1/streams/s/records", ("ingest", "reader")),
        ("GET", "/v1/streams/s/records", ("reader", "ingest")),
        ("HEAD", "/v1/streams/s/records", ("reader", "ingest")),
        ("PUT", "/v1/streams/s/records", ("ingest", "reader")),
        ("GET", "/v1/streams/s/records/7", ("reader",)),
        ("GET", "/v1/streams/s/records/7/8", ("reader",)),
        ("GET", "/v1/streams/s/recordsets", ("manifest",)),
        ("GET", "/v1/streams/s/offsets", ("reader",)),
        ("GET", "/v1/streams/s/offsets/", ("reader",)),
        ("GET", "/v1/streams/s/offsets/resolve", ("reader",)),
        ("GET", "/v1/streams/s/fragments", ("reader",)),
        ("GET", "/v1/streams/s/fragments/f", ("reader",)),
        ("GET", "/v1/streams/s/producers/p", ("ingest",)),
        ("POST", "/v1/streams/s/staged", ("ingest",)),
        ("DELETE", "/v1/streams/s/staged", ("ingest",)),
        ("PUT", "/v1/streams/s", ("manifest",)),
        ("GET", "/v1/streams", ("manifest",)),
        ("GET", "/v1/streams/s/consumers", ("manifest",)),
        ("GET", "/v1/streams//records", ("manifest",)),
        ("GET", "/v1/streams/producers/records", ("reader", "ingest")),
        ("GET", "/v1/limits", ("manifest",)),
        ("GET", "/v1/nothing", ("manifest",)),
        ("GET", "/v1/", ("manifest",)),
        ("GET", "/v1", ()),
        ("GET", "/v2/streams", ()),
        ("GET", "/", ("manifest",)),
        ("GET", "//", ()),
        ("GET", "", ()),
        ("GET", "v1/streams", ()),
        ("GET", "/internal/v1/commits", ()),
    ],
)
def test_each_path_has_its_service(method: str, path: str, names: tuple[str, ...]) -> None:
    assert services_of({"method": method, "path": path}) == names


def test_a_branch_that_one_service_has_all_of_is_its_own_also_where_nothing_is() -> None:
    table = a_table(
        "GET /v1/queues queues",
        "POST /v1/queues/{q}/leases queues",
        "GET /v1/streams manifest",
        "GET /v1/streams/{s}/tail reader",
    )

    def asked(path: str) -> tuple[str, ...]:
        return table.find(path).services("GET")

    assert asked("/v1/queues") == asked("/v1/queues/a/b") == asked("/v1/queues/a") == ("queues",)
    assert asked("/v1/streams/a/tail/x") == ("reader",)
    assert asked("/v1/streams") == asked("/v1/streams/") == asked("/v1/x") == ("manifest",)


def test_one_place_of_a_path_has_one_name() -> None:
    with pytest.raises(ValueError, match=r"/v1/a/{y}/c: the place of {y} is called x"):
        a_table("GET /v1/a/{x}/b reader", "GET /v1/a/{y}/c reader")


def test_a_path_is_looked_up_once_for_each_request() -> None:
    scope = {"method": "GET", "path": "/v1/streams/a/records"}
    assert find(scope) is find(scope)
    assert find(dict(scope)) is find(scope)
