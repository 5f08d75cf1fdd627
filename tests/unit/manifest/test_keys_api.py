"""API keys over HTTP: public and internal paths, without a socket and without the gate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support.api_keys import DAY_MS, a_harness
from support.asgi import client_of
from support.contract import pointers, problem_of
from support.manifest import ManifestHarness

from bottomless.model.api_key import hash_secret
from bottomless.model.offset_spec import format_timestamp
from bottomless_server.core.principal import LOCAL, Principal
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.keys.root_key import RootKey
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.app import wrap

SECRET = "0123456789abcdef0123456789ABCDEF"
ROOT = f"sk_root_{SECRET}"
ACME = Principal("acme", "key:acme-root", ("*",))
MEMBERS = {
    "key_id",
    "label",
    "tenant",
    "scopes",
    "state",
    "created_at",
    "created_by",
    "rotated_at",
    "overlap_ends_at",
    "expires_at",
    "revoked_at",
}


class Service:
    """`caller` is whom the gate let in."""

    def __init__(self, harness: ManifestHarness, service: ManifestService) -> None:
        self.harness = harness
        self.caller: Principal = LOCAL
        self.public = client_of(wrap(self._gate(service.public)))
        self.internal = client_of(wrap(service.internal))

    def _gate(self, app: ASGIApp) -> ASGIApp:
        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            note_principal(scope, self.caller)
            await app(scope, receive, send)

        return gate

    async def create(self, *scopes: str, **members: Any) -> dict[str, Any]:
        answer = await self.ask_for(*scopes, **members)
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"/v1/keys/{answer.json()['key_id']}"
        return dict(answer.json())

    async def ask_for(self, *scopes: str, **members: Any) -> httpx.Response:
        return await self.public.post("/v1/keys", json={"scopes": scopes or ["read"], **members})

    async def checked(self, key_id: str) -> httpx.Response:
        return await self.internal.get(f"/internal/v1/keys/{key_id}")

    async def good(self, credential: str) -> bool:
        _, key_id, secret = credential.split("_", 2)
        answer = await self.checked(key_id)
        return answer.is_success and hash_secret(secret) in answer.json()["secret_sha256"]


@asynccontextmanager
async def running(**settings: object) -> AsyncIterator[Service]:
    harness = await a_harness(**settings)
    service = ManifestService(harness.context)
    await service.start()
    try:
        yield Service(harness, service)
    finally:
        await service.stop()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running() as one:
        yield one


async def test_a_key_is_created_shown_rotated_and_revoked(service: Service) -> None:
    created = await service.create("append:orders-*", "read", label="nightly load")

    assert created.keys() == {*MEMBERS, "secret"}
    assert created["secret"].startswith(f"sk_{created['key_id']}_")
    assert (created["label"], created["tenant"]) == ("nightly load", "default")
    assert (created["state"], created["created_by"]) == ("active", "local")
    assert await service.good(created["secret"])
    path = f"/v1/keys/{created['key_id']}"
    shown = (await service.public.get(path)).json()
    assert shown == {name: created[name] for name in MEMBERS}

    rotated = (await service.public.post(path + "/rotate", json={"overlap_seconds": 60})).json()
    assert rotated["secret"] != created["secret"]
    assert rotated["overlap_ends_at"] == format_timestamp(service.harness.clock.now + 60_000)
    assert await service.good(rotated["secret"])
    assert await service.good(created["secret"])
    service.harness.clock.now += 60_000
    assert not await service.good(created["secret"])

    revoked = await service.public.delete(path)
    assert revoked.status_code == 200
    assert revoked.json()["state"] == "revoked"
    assert revoked.json()["revoked_at"] == format_timestamp(service.harness.clock.now)
    assert not await service.good(rotated["secret"])
    assert (await service.public.delete(path)).json() == revoked.json()
    assert (await service.public.get(path)).json() == revoked.json()
    problem_of(await service.public.post(path + "/rotate"), 409, "key-not-active")


async def test_no_answer_but_the_two_that_make_one_holds_anything_of_a_secret(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    created = await service.create()
    path = f"/v1/keys/{created['key_id']}"
    rotated = (await service.public.post(path + "/rotate")).json()
    secrets = [one["secret"].split("_")[2] for one in (created, rotated)]
    hidden = [*secrets, *map(hash_secret, secrets)]

    answers = [
        await service.public.get(path),
        await service.public.get("/v1/keys"),
        await service.public.delete(path),
        await service.public.get(path),
    ]

    for answer in answers:
        assert answer.is_success
        assert answer.headers["cache-control"] == "no-store"
        assert not [one for one in hidden if one in answer.text]
    inside = (await service.checked(created["key_id"])).text
    assert not [one for one in secrets if one in inside]
    printed = capsys.readouterr()
    assert not [one for one in hidden if one in printed.out + printed.err]
    names = [facts.object_key async for facts in service.harness.drive.list("")]
    stored = b"".join([await service.harness.drive.get(name) for name in names]).decode()
    assert not [one for one in secrets if one in stored + "".join(names)]


async def test_keys_are_listed_by_pages_each_tenant_its_own(service: Service) -> None:
    service.caller = ACME
    made = []
    for _ in range(5):
        made.append((await service.create())["key_id"])
        service.harness.clock.now += 1
    service.caller = LOCAL
    other = (await service.create())["key_id"]

    async def listed(**query: str) -> list[str]:
        found: list[str] = []
        token: dict[str, str] = {}
        while True:
            answer = await service.public.get("/v1/keys", params={"limit": 2, **query, **token})
            page = answer.json()
            assert len(page["items"]) <= 2
            found += [item["key_id"] for item in page["items"]]
            if page["next_page_token"] is None:
                return found
            token = {"page_token": page["next_page_token"]}

    assert await listed() == [other]
    assert await listed(tenant="acme") == made
    service.caller = ACME
    assert await listed() == await listed(tenant="acme") == made
    token = (await service.public.get("/v1/keys?limit=2")).json()["next_page_token"]
    service.caller = Principal("globex", "key:1", ("*",))
    refused = await service.public.get("/v1/keys", params={"page_token": token})
    problem_of(refused, 400, "bad-parameter")


async def test_another_tenants_key_is_not_there_unless_the_operator_asks(service: Service) -> None:
    service.caller = ACME
    created = await service.create()
    path = f"/v1/keys/{created['key_id']}"
    service.caller = Principal("globex", "key:1", ("*",))

    for method, where in (("GET", path), ("DELETE", path), ("POST", path + "/rotate")):
        theirs = problem_of(await service.public.request(method, where), 404, "key-not-found")
        missing = await service.public.request(method, where.replace(path, "/v1/keys/" + "0" * 24))
        nobodys = problem_of(missing, 404, "key-not-found")
        assert {**theirs, "request_id": ""} == {**nobodys, "request_id": ""}
    problem_of(await service.public.get("/v1/keys?tenant=acme"), 403, "forbidden")
    problem_of(await service.ask_for(tenant="acme"), 403, "forbidden")
    assert await service.good(created["secret"])

    service.caller = LOCAL
    assert (await service.public.get(path)).json()["tenant"] == "acme"
    assert (await service.create(tenant="acme"))["tenant"] == "acme"
    assert (await service.public.delete(path)).json()["state"] == "revoked"


async def test_nobody_grants_or_takes_what_they_may_not_do(service: Service) -> None:
    service.caller = ACME
    mighty = await service.create("*")
    service.caller = Principal("acme", "key:2", ("admin", "read:orders-*"))

    for scope in ("*", "append", "read", "read:orders"):
        problem_of(await service.ask_for(scope), 403, "forbidden")
    assert (await service.create("read:orders-eu", "admin"))["created_by"] == "key:2"
    # Whoever rotates sees the secret.
    rotated = await service.public.post(f"/v1/keys/{mighty['key_id']}/rotate")
    problem_of(rotated, 403, "forbidden")
    # In an emergency any administrator of the tenant can shut a key out.
    assert (await service.public.delete(f"/v1/keys/{mighty['key_id']}")).status_code == 200


async def test_a_key_ends_when_it_was_said(service: Service) -> None:
    now = service.harness.clock.now
    by_time = await service.create(expires_at=format_timestamp(now + 1_000))
    by_ttl = await service.create(ttl_seconds=1)
    assert by_time["expires_at"] == by_ttl["expires_at"] == format_timestamp(now + 1_000)
    assert (await service.checked(by_ttl["key_id"])).json()["expires_at"] == now + 1_000

    service.harness.clock.now += 1_000
    for created in (by_time, by_ttl):
        assert not await service.good(created["secret"])
        checked = (await service.checked(created["key_id"])).json()
        assert (checked["state"], checked["secret_sha256"]) == ("expired", [])
        shown = (await service.public.get(f"/v1/keys/{created['key_id']}")).json()
        assert shown["state"] == "expired"


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, ["/scopes"]),
        ({"scopes": []}, ["/scopes"]),
        ({"scopes": "read"}, ["/scopes"]),
        ({"scopes": ["reed"]}, ["/scopes/0"]),
        ({"scopes": ["read", "read"]}, ["/scopes"]),
        ({"scopes": ["read:" + "a" * 200]}, ["/scopes/0"]),
        ({"scopes": [f"read:{n}" for n in range(33)]}, ["/scopes"]),
        ({"scopes": ["read"], "label": "x" * 129}, ["/label"]),
        ({"scopes": ["read"], "tenant": "_system"}, ["/tenant"]),
        ({"scopes": ["read"], "ttl_seconds": 0}, ["/ttl_seconds"]),
        ({"scopes": ["read"], "ttl_seconds": "1"}, ["/ttl_seconds"]),
        ({"scopes": ["read"], "expires_at": "tomorrow"}, ["/expires_at"]),
        ({"scopes": ["read"], "expires_at": "1970-01-01T00:00:00Z"}, ["/expires_at"]),
        ({"scopes": ["read"], "ttl_seconds": 1, "expires_at": "2999-01-01T00:00:00Z"}, [""]),
        ({"scopes": ["read"], "secret": "mine"}, [""]),
    ],
    ids=str,
)
async def test_a_key_that_cannot_be_is_refused_with_the_place(
    service: Service, body: dict[str, Any], where: list[str]
) -> None:
    problem = problem_of(await service.public.post("/v1/keys", json=body), 422, "validation-failed")
    assert pointers(problem) == where


@pytest.mark.parametrize("overlap", [-1, 604_801, "60", 1.5, True])
async def test_an_overlap_out_of_its_bounds_is_refused(service: Service, overlap: Any) -> None:
    created = await service.create()
    answer = await service.public.post(
        f"/v1/keys/{created['key_id']}/rotate", json={"overlap_seconds": overlap}
    )
    problem_of(answer, 422, "validation-failed")
    assert await service.good(created["secret"])


async def test_a_tenant_that_has_all_its_keys_is_told_so(service: Service) -> None:
    async with running(manifest_tenant_key_count_max=1) as small:
        await small.create()
        problem = problem_of(await small.ask_for(), 429, "quota-exceeded")
        assert problem["limit"] == 1
        limits = (await small.public.get("/v1/limits")).json()
        assert limits["tenant"]["keys"] == 1


async def test_ids_that_are_none_are_not_found(service: Service) -> None:
    for key_id in ("root", "0" * 23, "A" * 24, "0" * 24 + "%0a"):
        problem_of(await service.public.get(f"/v1/keys/{key_id}"), 404, "key-not-found")
        problem_of(await service.checked(key_id), 404, "key-not-found")


async def test_a_revocation_that_waits_for_the_bucket_is_finished_by_itself(
    service: Service,
) -> None:
    async with running(manifest_put_seconds=0.05, manifest_key_interval_ms=10) as hurried:
        created = await hurried.create()
        hurried.harness.drive.failing = True
        answer = await hurried.public.delete(f"/v1/keys/{created['key_id']}")
        problem = problem_of(answer, 503, "object-store-unavailable")
        assert problem["outcome"] == "committed"
        assert not await hurried.good(created["secret"])

        hurried.harness.drive.failing = False
        name = f"_system/keys/{created['key_id']}.0000000000.0000000002.json"
        async with asyncio.timeout(240):
            while not hurried.harness.drive.has(name):
                await asyncio.sleep(0.01)


async def test_keys_that_ended_go_by_themselves() -> None:
    async with running(manifest_key_interval_ms=10) as hurried:
        created = await hurried.create()
        await hurried.public.delete(f"/v1/keys/{created['key_id']}")
        hurried.harness.clock.now += 8 * DAY_MS
        async with asyncio.timeout(240):
            while (await hurried.public.get("/v1/keys")).json()["items"]:
                await asyncio.sleep(0.01)


# The root key


async def test_a_root_key_that_nobody_would_ask_for_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "root-key"
    file.write_text(hash_secret("any"))
    with pytest.raises(CannotStart, match="BOTTOMLESS_IDENTITY is not"):
        async with running(root_key_file=file):
            pass


async def test_the_root_key_is_good_without_any_store(tmp_path: Path) -> None:
    file = tmp_path / "root-key"
    file.write_text(SECRET + "\n")
    async with running(
        identity=True, root_key_file=file, manifest_generation_check_ms=10
    ) as rooted:
        assert await rooted.good(ROOT)
        described = (await rooted.checked("root")).json()
        assert (described["tenant"], described["scopes"]) == ("default", ["*"])
        assert (described["state"], described["expires_at"]) == ("active", None)
        created = await rooted.create()

        rooted.harness.coordination.lose()
        async with asyncio.timeout(240):
            while (await rooted.public.get("/v1/limits")).status_code != 503:
                await asyncio.sleep(0.01)

        assert await rooted.good(ROOT)
        # It is not known whether there is such a key, so nobody says that there is none.
        lost = await rooted.checked(created["key_id"])
        problem_of(lost, 503, "coordination-regressed")
        assert (await rooted.public.post("/v1/admin/rebuild")).status_code == 202


async def test_another_root_key_takes_effect_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "root-key"
    file.write_text(SECRET)
    async with running(identity=True, root_key_file=file) as rooted:
        file.write_text(SECRET[::-1])
        assert not await rooted.good(ROOT)
        assert await rooted.good(f"sk_root_{SECRET[::-1]}")
        file.unlink()
        problem_of(await rooted.checked("root"), 404, "key-not-found")


async def test_the_root_key_is_listed_nowhere_and_cannot_be_revoked(tmp_path: Path) -> None:
    file = tmp_path / "root-key"
    file.write_text(SECRET)
    async with running(identity=True, root_key_file=file) as rooted:
        assert (await rooted.public.get("/v1/keys")).json()["items"] == []
        problem_of(await rooted.public.delete("/v1/keys/root"), 404, "key-not-found")
        assert await rooted.good(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "short",
        "0" * 40,
        ROOT,
        "0123456789abcdef 0123456789abcdef",
        "0123456789abcdef+0123456789/bcdef=",
        f"{SECRET}\n{SECRET}",
        SECRET * 5,
        SECRET + " " * 5_000,
    ],
)
async def test_a_file_that_holds_no_root_key_is_refused_at_the_start(
    tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "root-key"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CannotStart) as caught:
        RootKey(file).check()
    assert "BOTTOMLESS_ROOT_KEY_FILE" in str(caught.value)
    if text:
        assert text.strip() not in str(caught.value)
    assert await RootKey(file).sha256() is None
