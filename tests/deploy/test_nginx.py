"""The proxy in front of services that run apart sends each request where the all-in-one would."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Final
from urllib.parse import unquote

import httpx
import pytest
from support.nginx import UPSTREAMS, running_nginx

from bottomless.errors import Code
from bottomless.model.limits import KIB, URL_SIZE_MAX
from bottomless_server.runtime.http.endpoints import TABLE
from deploy.ends import METHODS, echoing, problem_of
from openapi.bundle import OPENAPI, read

HEALTH: Final = ("/livez", "/readyz")

UNUSUAL: Final = [
    "/v1/",
    "/v1/nothing",
    "/v1/records",
    "/v1/streams/records",
    "/v1/streams/producers/records",
    "/v1/streams/orders/",
    "/v1/streams//records",
    "/v1/streams/orders/records/",
    "/v1/streams/orders/recordsets",
    "/v1/streams/orders/stagedly",
    "/v1/streams/orders/records/7/8",
    "/v1/streams/orders/record%73",
    "/v1/streams/a%2Fb/records",
    "/v1/streams/a%20b/records",
    "/v1//streams/orders/records",
    "/v1/streams/orders/offsets;x/records",
    "/v1/streams/%C3%A9/records",
]
"""Paths that a careless pattern or a proxy that tidies up would send elsewhere."""

NOWHERE: Final = [
    "/v1",
    "/v2/streams/orders",
    "/metrics",
    "/internal/v1/streams/0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11",
    "/v1/../internal/v1/commits",
    "/v1/%2e%2e/internal/v1/commits",
    "/v1/..%2Fmetrics",
    "//internal/v1/commits",
    "/docs2",
    "/openapi.yaml",
    "/livez/",
    "/-/problem",
]


def services_of(method: str, path: str) -> tuple[str, ...]:
    """Whom the all-in-one asks."""
    return TABLE.find(path).services(method)


def documented() -> list[tuple[str, str, str]]:
    """Service, method and path of every operation of openapi/*.yaml."""
    return [
        (name, method.upper(), re.sub(r"{[^}]*}", "x", path))
        for name in UPSTREAMS
        for path, item in read(OPENAPI / f"{name}.yaml")["paths"].items()
        for method in item
        if path not in HEALTH and method.upper() in METHODS
    ]


@pytest.fixture(scope="module")
def echoes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of nginx in front of three services that say who was asked for what."""
    with ExitStack() as running:
        urls = {name: running.enter_context(echoing(name)) for name in UPSTREAMS}
        url = running.enter_context(running_nginx(tmp_path_factory.mktemp("nginx"), urls))
        yield running.enter_context(httpx.Client(base_url=url, timeout=30))


def ask(client: httpx.Client, method: str, path: str) -> httpx.Response:
    """Ask for a path as it stands, which clients like to tidy up."""
    target = {"target": path.encode()}
    return client.send(client.build_request(method, "/", extensions=target))


@cache
def shared_path_methods() -> set[str]:
    """What the one path of two services is served for, by all of them."""
    return {method for _, method, path in documented() if path == "/v1/streams/x/records"}


@pytest.mark.parametrize(("service", "method", "path"), documented())
def test_every_documented_operation_reaches_its_service(
    echoes: httpx.Client, service: str, method: str, path: str
) -> None:
    answer = ask(echoes, method, f"{path}?limit=1")
    assert answer.headers["asked"] == service
    assert answer.headers["target"] == f"{path}?limit=1"


@pytest.mark.parametrize("path", [*dict.fromkeys(path for _, _, path in documented()), *UNUSUAL])
def test_every_request_goes_where_the_all_in_one_sends_it(echoes: httpx.Client, path: str) -> None:
    for method in METHODS:
        services = services_of(method, unquote(path))
        answer = ask(echoes, method, path)
        if len(services) == 1 or method in shared_path_methods():
            assert answer.headers.get("asked") == services[0], method
            assert answer.headers["target"] == path, method
        else:
            assert answer.status_code == 405, method
            allowed = answer.headers["allow"].split(", ")
            assert set(allowed) == shared_path_methods()
            if method != "HEAD":
                assert problem_of(answer, Code.METHOD_NOT_ALLOWED)["outcome"] == "none"


@pytest.mark.parametrize("path", ["orders%2Frecords", "orders%2foffsets", "a%2Fb/records"])
def test_an_encoded_slash_reaches_a_service_that_refuses_it(
    echoes: httpx.Client, path: str
) -> None:
    """By any method, so that nobody is told that the path is served by another one."""
    for method in METHODS:
        answer = ask(echoes, method, f"/v1/streams/{path}")
        assert answer.headers["asked"] in UPSTREAMS, method
        assert answer.headers["target"] == f"/v1/streams/{path}"
    query = ask(echoes, "PUT", "/v1/streams/orders/records?x=%2F")
    assert query.status_code == 405


def test_a_head_that_a_service_would_refuse_reaches_it(echoes: httpx.Client) -> None:
    path = "/v1/streams/orders/records?" + "x" * (URL_SIZE_MAX + KIB)
    assert ask(echoes, "GET", path).headers["target"] == path
    large = echoes.get("/v1/streams/orders", headers={"authorization": "x" * 15 * KIB})
    assert large.headers["asked"] == "manifest"


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/swagger-ui.css"])
def test_the_contract_and_its_page_are_those_of_the_manifest_service(
    echoes: httpx.Client, path: str
) -> None:
    """D12: they were 404 here."""
    answer = ask(echoes, "GET", path)
    assert (answer.headers["asked"], answer.headers["target"]) == ("manifest", path)


@pytest.mark.parametrize("path", NOWHERE)
def test_what_is_not_public_is_not_found(echoes: httpx.Client, path: str) -> None:
    assert services_of("GET", path) == () or ".." in unquote(path)
    for method in METHODS:
        answer = ask(echoes, method, path)
        assert "asked" not in answer.headers
        assert answer.status_code == 404, method
        if method != "HEAD":
            problem_of(answer, Code.NOT_FOUND)


def test_the_proxy_says_itself_that_it_lives_and_asks_ingest_whether_it_is_ready(
    echoes: httpx.Client,
) -> None:
    alive = echoes.get("/livez")
    assert alive.json() == {"status": "live"}
    assert alive.headers["request-id"]
    ready = echoes.get("/readyz?verbose=1")
    assert ready.headers["asked"] == "ingest"
    assert ready.headers["target"] == "/readyz?verbose=1"
