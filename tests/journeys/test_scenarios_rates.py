"""Limits of rate over real sockets: scenario H8."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pyarrow as pa
import pytest
from support.arrow import ipc
from support.contract import problem_of
from support.issuer import Issuer
from support.server import AllInOne
from support.waiting import until

from bottomless.model.limits import MIB

ARROW = "application/vnd.apache.arrow.stream"
TENANT_REQUESTS, KEY_REQUESTS = 3, 2

Connect = Callable[[str, str], httpx.Client]


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """Clients of one process with small limits, by tenant and subject; each test has tenants of
    its own."""
    home = tmp_path_factory.mktemp("rates")
    issuer = Issuer(home)
    settings = {
        "BOTTOMLESS_RATE_TENANT_REQUESTS_PER_SECOND": str(TENANT_REQUESTS),
        "BOTTOMLESS_RATE_KEY_REQUESTS_PER_SECOND": str(KEY_REQUESTS),
        "BOTTOMLESS_RATE_TENANT_APPEND_BYTES_PER_SECOND": str(MIB),
    }
    with (
        AllInOne(home / "data", {**issuer.settings(), **settings}) as server,
        ExitStack() as clients,
    ):
        yield lambda tenant, subject: clients.enter_context(
            issuer.client(server.url, tenant, subject)
        )


def limited(client: httpx.Client) -> httpx.Response:
    """The first answer that is a refusal, of as many requests as it takes."""

    def refused() -> httpx.Response | None:
        answer = client.get("/v1/limits")
        return answer if answer.status_code == 429 else None

    return until(refused, what="a refusal")


def passes(client: httpx.Client) -> bool:
    return client.get("/v1/limits").status_code == 200


def test_who_asks_too_much_is_told_when_to_come_back_and_others_are_not(connect: Connect) -> None:
    """H8."""
    loud, other = connect("acme", "loud"), connect("rival", "someone")
    first = loud.get("/v1/limits")
    assert first.headers["ratelimit-policy"] == (
        f'"key-requests";q={KEY_REQUESTS};w=1;qu="requests", '
        f'"tenant-requests";q={TENANT_REQUESTS};w=1;qu="requests"'
    )
    assert first.headers["ratelimit"].startswith(f'"key-requests";r={KEY_REQUESTS - 1};t=1, ')

    refusal = limited(loud)
    assert other.get("/v1/limits").status_code == 200
    problem = problem_of(refusal, 429, "rate-limited")
    assert (problem["retryable"], problem["outcome"]) == (True, "none")
    assert problem["policy"] == "key-requests"
    wait = int(refusal.headers["retry-after"])
    assert 1 <= wait <= 2
    assert refusal.headers["ratelimit"] == f'"key-requests";r=0;t={wait}'

    until(lambda: passes(loud), what="the end of the wait")


def test_credentials_of_one_tenant_share_its_limit(connect: Connect) -> None:
    """H8."""
    clients = [connect("shared-acme", f"number-{number}") for number in range(TENANT_REQUESTS + 1)]

    def refused() -> dict[str, object] | None:
        for client in clients:
            answer = client.get("/v1/limits")
            if answer.status_code == 429 and answer.json()["policy"] == "tenant-requests":
                assert connect("shared-rival", "someone").get("/v1/limits").status_code == 200
                return problem_of(answer, 429, "rate-limited")
        return None

    until(refused, what="a refusal of the tenant")


def test_bytes_are_limited_and_a_smaller_append_passes(connect: Connect) -> None:
    """H8: in a window that is long enough for one body of the largest size."""
    client, other = connect("bytes-acme", "loader"), connect("bytes-rival", "loader")
    large = ipc(pa.table({"value": [b"x" * MIB] * 12}))
    for one in (client, other):
        until(lambda one=one: one.put("/v1/streams/s").status_code == 201)  # type: ignore[misc]

    def post(body: bytes, by: httpx.Client = client) -> httpx.Response:
        def answered() -> httpx.Response | None:
            answer = by.post("/v1/streams/s/records", content=body, headers={"content-type": ARROW})
            limit = answer.json().get("policy")
            return None if limit in ("key-requests", "tenant-requests") else answer

        return until(answered)

    assert post(large).status_code == 200
    problem = problem_of(post(large), 429, "rate-limited")
    assert problem["policy"] == "tenant-append-bytes"
    assert post(ipc(pa.table({"value": [b"small"]}))).json()["first_offset"] == 12
    assert post(large, other).status_code == 200


def test_the_limits_can_be_asked_for(connect: Connect) -> None:
    """H8."""
    limits = connect("asked-acme", "someone").get("/v1/limits").json()
    assert limits["tenant"]["requests_per_second"] == TENANT_REQUESTS
    assert limits["tenant"]["append_bytes_per_second"] == MIB
    assert limits["key"] == {
        "requests_per_second": KEY_REQUESTS,
        "append_bytes_per_second": None,
    }
