"""Limits of rate: who is counted, what is refused, what the answers say."""

from collections.abc import Sequence

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from support.asgi import client_of

from bottomless.model.limits import BINARY_BODY_SIZE_MAX, MIB
from bottomless_server.core.principal import Principal
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import create_api, read_body, wrap
from bottomless_server.runtime.process.rate_limits import Policy, RateLimits, policies_of

AGES = 10**7
"""A window of which no test sees the end."""
APPEND = "/v1/streams/orders/records"
PER_TENANT = Policy("tenant-requests", 3, AGES, per_key=False, of_bytes=False)
PER_KEY = Policy("key-requests", 2, AGES, per_key=True, of_bytes=False)
BYTES = Policy("tenant-append-bytes", 100, AGES, per_key=False, of_bytes=True)


class LimitedApp:
    """An application behind limits, and how much of bodies came to it."""

    def __init__(self, policies: Sequence[Policy], bucket_count_max: int = 10) -> None:
        self.received: list[int] = []
        limited = RateLimits(policies, bucket_count_max=bucket_count_max).around(self._api())
        self.http = client_of(wrap(_known(limited)))

    def _api(self) -> ASGIApp:
        api = create_api("served")

        async def take(request: Request) -> Response:
            body = await read_body(request.scope, request.receive, BINARY_BODY_SIZE_MAX)
            self.received.append(len(body))
            return Response(b"")

        async def health(_: Request) -> Response:
            return Response(b"")

        api.add_route(APPEND, take, ["POST"])
        api.add_route("/v1/streams", health, ["GET"])
        api.add_route("/livez", health, ["GET"])
        return api

    async def get(self, who: str = "acme/one", path: str = "/v1/streams") -> httpx.Response:
        return await self.http.get(path, headers={"who": who})

    async def append(
        self, size: int, *, declared: bool = True, path: str = APPEND
    ) -> httpx.Response:
        async def pieces() -> object:
            for start in range(0, size, 30):
                yield b"x" * min(30, size - start)

        content = b"x" * size if declared else pieces()
        headers = {"who": "acme/one"}
        return await self.http.post(path, content=content, headers=headers)  # type: ignore[arg-type]


def _known(app: ASGIApp) -> ASGIApp:
    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        tenant, _, actor = dict(scope["headers"])[b"who"].decode().partition("/")
        note_principal(scope, Principal(tenant, actor))
        await app(scope, receive, send)

    return known


async def statuses(served: LimitedApp, *who: str) -> list[int]:
    return [(await served.get(one)).status_code for one in who]


async def test_a_tenant_that_asks_too_much_is_refused_and_no_other() -> None:
    served = LimitedApp([PER_TENANT])
    assert await statuses(served, *["acme/one"] * 2, "acme/two") == [200, 200, 200]
    assert await statuses(served, "acme/one", "acme/two", "other/one") == [429, 429, 200]


async def test_a_credential_that_asks_too_much_does_not_use_up_its_tenants_limit() -> None:
    served = LimitedApp([PER_KEY, PER_TENANT])
    assert await statuses(served, *["acme/one"] * 5) == [200, 200, 429, 429, 429]
    assert await statuses(served, "acme/two", "acme/two") == [200, 429]


async def test_a_refusal_says_when_the_same_would_pass() -> None:
    served = LimitedApp([PER_TENANT])
    await statuses(served, *["acme/one"] * 3)
    answer = await served.get()
    problem = answer.json()
    assert (problem["code"], problem["retryable"], problem["outcome"]) == (
        "rate-limited",
        True,
        "none",
    )
    assert problem["policy"] == "tenant-requests"
    wait = int(answer.headers["retry-after"])
    assert 1 <= wait <= 2 * AGES
    assert answer.headers["ratelimit"] == f'"tenant-requests";r=0;t={wait}'
    assert answer.headers["request-id"] == problem["request_id"]


async def test_every_answer_says_how_much_is_left() -> None:
    served = LimitedApp([PER_KEY, PER_TENANT, BYTES])
    answer = await served.append(40)
    assert answer.headers["ratelimit-policy"] == (
        f'"key-requests";q=2;w={AGES};qu="requests", "tenant-requests";q=3;w={AGES};qu="requests", '
        f'"tenant-append-bytes";q=100;w={AGES};qu="content-bytes"'
    )
    names = [item.split(";") for item in answer.headers["ratelimit"].split(", ")]
    assert [(name, left) for name, left, _ in names] == [
        ('"key-requests"', "r=1"),
        ('"tenant-requests"', "r=2"),
        ('"tenant-append-bytes"', "r=60"),
    ]
    assert "append-bytes" not in (await served.get()).headers["ratelimit"]


async def test_no_other_spelling_of_the_path_goes_round_the_limit() -> None:
    served = LimitedApp([BYTES])
    assert (await served.append(100)).status_code == 200
    for spelling in (f"{APPEND}%0A", APPEND.replace("records", "%72ecords")):
        assert (await served.append(100, path=spelling)).status_code == 429
    assert served.received == [100]


async def test_bytes_are_counted_before_they_are_read_where_they_are_declared() -> None:
    served = LimitedApp([BYTES])
    assert [(await served.append(size)).status_code for size in (60, 41, 40, 1)] == [
        200,
        429,
        200,
        429,
    ]
    assert served.received == [60, 40]


async def test_bytes_that_are_not_declared_are_counted_before_anything_is_stored() -> None:
    served = LimitedApp([BYTES])
    assert (await served.append(60, declared=False)).status_code == 200
    assert (await served.append(41, declared=False)).status_code == 429
    assert (await served.append(40, declared=False)).status_code == 200
    answer = await served.append(1, declared=False)
    assert (answer.status_code, served.received) == (429, [60, 40])
    assert answer.headers["ratelimit"].startswith('"tenant-append-bytes";r=0;')


async def test_a_body_that_is_too_large_anyhow_is_refused_for_that() -> None:
    policies = policies_of(CommonSettings(rate_tenant_append_bytes_per_second=MIB))
    served = LimitedApp(policies)
    assert (await served.append(BINARY_BODY_SIZE_MAX + 1)).status_code == 413
    assert (await served.append(BINARY_BODY_SIZE_MAX)).status_code == 200


async def test_health_is_asked_for_as_often_as_one_likes() -> None:
    served = LimitedApp([PER_TENANT])
    answers = [await served.get(path="/livez") for _ in range(5)]
    assert {answer.status_code for answer in answers} == {200}
    assert "ratelimit" not in answers[0].headers


async def test_only_so_many_are_counted_at_once() -> None:
    served = LimitedApp([PER_TENANT], bucket_count_max=2)
    assert await statuses(served, *["a/x"] * 4) == [200, 200, 200, 429]
    assert await statuses(served, "b/x", "c/x", "a/x") == [200, 200, 200]


def test_nothing_is_limited_unless_it_is_set() -> None:
    api = create_api("open")
    assert policies_of(CommonSettings()) == []
    assert RateLimits([]).around(api) is api


@pytest.mark.parametrize(
    ("size", "quota", "seconds"),
    [(MIB, 16 * MIB, 16), (16 * MIB, 16 * MIB, 1), (64 * MIB, 64 * MIB, 1), (MIB - 1, None, 17)],
)
def test_the_largest_body_fits_any_limit_of_bytes(
    size: int, quota: int | None, seconds: int
) -> None:
    (policy,) = policies_of(CommonSettings(rate_key_append_bytes_per_second=size))
    assert (policy.name, policy.window_seconds) == ("key-append-bytes", seconds)
    assert policy.quota == (quota or size * seconds) >= BINARY_BODY_SIZE_MAX


def test_a_tenant_gets_its_share_of_each_second_and_no_more() -> None:
    seconds = [0.0]
    policy = Policy("tenant-requests", 10, 1, per_key=False, of_bytes=False)
    limits = RateLimits([policy], elapsed=lambda: seconds[0])
    passed = 0
    for step in range(2_000):
        seconds[0] = step / 100
        passed += not limits.take(policy, Principal("acme", "one"), 1, counts=True).refused
    assert 10 * 20 <= passed <= 10 * 22


def test_who_only_looks_is_not_counted() -> None:
    limits = RateLimits([PER_TENANT], elapsed=lambda: 0.0)
    looks = [limits.take(PER_TENANT, Principal("a", "x"), 3, counts=False) for _ in range(3)]
    assert {(look.remaining, look.refused) for look in looks} == {(3, False)}
