"""The gate as an application around an application."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import LogCapture
from support.asgi import client_of
from support.peers import SilentPeer

from bottomless.errors import Denied, NotFound, StoreError, Unavailable
from bottomless_server.core.principal import Principal
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.principal import principal_of
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.endpoints import TABLE
from bottomless_server.runtime.identity.audit import Audit, note_action, note_target, note_targets
from bottomless_server.runtime.identity.authenticator import Authenticator
from bottomless_server.runtime.identity.build_gate import build_gate
from bottomless_server.runtime.identity.credential import RefusedError
from bottomless_server.runtime.identity.credential_watch import CredentialWatch, credential_watch_of
from bottomless_server.runtime.identity.gate import Gate, judge
from bottomless_server.runtime.identity.keys import KeyLookup

BEARER = {"authorization": "Bearer ada"}


class Known(Authenticator):
    """Knows people by their tokens, for as long as they stand in `people`."""

    def __init__(self, **people: Principal | StoreError) -> None:
        super().__init__(KeyLookup(SilentPeer(), 10.0), None)
        self.people = people
        self.asked_count = 0

    async def principal(self, token: str) -> Principal:
        self.asked_count += 1
        found = self.people.get(token)
        if found is None:
            raise RefusedError("it is nobody's")
        if isinstance(found, StoreError):
            raise found
        return found


def ada(*scopes: str, tenant: str = "default") -> Principal:
    return Principal(tenant, "key:a1", scopes)


def served(
    app: ASGIApp,
    authenticator: Authenticator | None = None,
    audit: Audit | None = None,
    check_seconds: float = 5,
) -> httpx.AsyncClient:
    gate = Gate(authenticator, audit or Audit(None), check_seconds=check_seconds)
    return client_of(wrap(gate.around(app)))


async def who(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(principal_of(scope).actor)(scope, receive, send)


async def test_where_identity_is_off_everybody_is_local() -> None:
    async with served(who) as client:
        for path in ("/v1/streams/orders", "/nothing", "/livez"):
            assert (await client.get(path, headers=BEARER)).text == "local"


async def test_where_it_is_on_routes_hear_who_asks_and_others_hear_nothing() -> None:
    async with served(who, Known(ada=ada("describe"))) as client:
        assert (await client.get("/v1/streams/orders", headers=BEARER)).text == "key:a1"
        refused = await client.get("/v1/streams/orders")
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
        assert refused.headers["www-authenticate"] == "Bearer"
        # Whoever knows health, the contract or the docs: those are the application's.
        assert (await client.get("/readyz")).text == "local"
        for path in ("/nothing", "/internal/v1/commits", "/v1/nothing"):
            hidden = await client.get(path, headers=BEARER)
            assert (hidden.status_code, hidden.json()["code"]) == (404, "not-found")


async def test_two_credentials_are_none() -> None:
    async with served(who, Known(ada=ada("describe"))) as client:
        twice = [("authorization", "Bearer ada"), ("authorization", "Bearer ada")]
        assert (await client.get("/v1/streams/orders", headers=twice)).status_code == 401
        once = [("authorization", "bEARER   ada ")]
        assert (await client.get("/v1/streams/orders", headers=once)).text == "key:a1"


async def test_a_manifest_that_cannot_be_asked_is_no_refusal() -> None:
    known = Known(ada=Unavailable("credentials cannot be checked now", retry_after_seconds=1))
    async with served(who, known) as client:
        answer = await client.get("/v1/streams/orders", headers=BEARER)
    assert (answer.status_code, answer.json()["code"]) == (503, "peer-unavailable")
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("scopes", "method", "path", "expected"),
    [
        (["append:orders"], "POST", "/v1/streams/orders/records", None),
        (["read:orders"], "POST", "/v1/streams/orders/records", Denied),
        (["append:other"], "POST", "/v1/streams/orders/records", NotFound),
        (["append:other"], "PATCH", "/v1/streams/orders", NotFound),
        (["append:other"], "PUT", "/v1/streams/orders", Denied),
        (["append:orders"], "GET", "/v1/streams/orders/producers/p", None),
        (["append:orders"], "GET", "/v1/streams/orders/producers", Denied),
        (["consume:orders"], "PUT", "/v1/streams/orders/consumers/c/offset", None),
        (["manage:orders"], "DELETE", "/v1/streams/orders", Denied),
        (["delete:ord*"], "DELETE", "/v1/streams/orders", None),
        (["describe:ord*"], "GET", "/v1/streams", None),
        (["read"], "GET", "/v1/streams", Denied),
        (["admin:orders"], "POST", "/v1/admin/streams/orders/gap", None),
        (["manage"], "POST", "/v1/admin/streams/orders/gap", Denied),
        (["admin:orders"], "POST", "/v1/admin/gc", Denied),
        (["admin"], "POST", "/v1/admin/gc", None),
        (["admin"], "POST", "/v1/keys", None),
        (["admin:orders*"], "POST", "/v1/keys", Denied),
        (["read"], "GET", "/v1/operations/op_1", Denied),
        (["manage:x"], "GET", "/v1/operations/op_1", None),
        ([], "GET", "/v1/whoami", None),
    ],
)
def test_what_a_scope_allows(
    scopes: list[str], method: str, path: str, expected: type[StoreError] | None
) -> None:
    principal = ada(*scopes, tenant="acme")
    if expected is None:
        judge(principal, method, TABLE.find(path))
    else:
        with pytest.raises(expected):
            judge(principal, method, TABLE.find(path))


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/admin/rebuild"), ("GET", "/v1/admin/wal")]
)
def test_what_is_of_all_tenants_is_for_one(method: str, path: str) -> None:
    judge(ada("*"), method, TABLE.find(path))
    with pytest.raises(Denied):
        judge(ada("*", tenant="acme"), method, TABLE.find(path))


async def test_an_answer_that_comes_late_is_given_to_those_who_are_still_welcome() -> None:
    known = Known(ada=ada("read"), bob=ada("read"))

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        known.people.pop("ada", None)
        await PlainTextResponse("records")(scope, receive, send)

    async with served(late, known, check_seconds=-1) as client:
        for method, path in (("GET", "/v1/streams/orders/records"), ("POST", "/consume")):
            known.people["ada"] = ada("read")
            refused = await client.request(method, path, headers=BEARER)
            assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
            bob = {"authorization": "Bearer bob"}
            welcome = await client.request(method, path, headers=bob)
            assert welcome.text == "records"


async def test_an_answer_that_is_quick_is_not_checked_twice() -> None:
    known = Known(ada=ada("read", "append"))
    async with served(who, known) as client:
        await client.get("/v1/streams/orders/records", headers=BEARER)
        await client.post("/v1/streams/orders/records", headers=BEARER)
    assert known.asked_count == 2


@pytest.mark.parametrize("now", [None, ada("read:other"), ada("read", tenant="acme")])
async def test_a_standing_ends_with_the_credential_its_scopes_or_its_tenant(
    now: Principal | None,
) -> None:
    known = Known(ada=ada("read"))
    watches: list[CredentialWatch | None] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        watches.append(credential_watch_of(scope))
        await Response()(scope, receive, send)

    async with served(note, known, check_seconds=0.01) as client:
        await client.get("/v1/streams/orders/records", headers=BEARER)
    (watch,) = watches
    assert watch is not None
    ending = asyncio.create_task(watch.ended())
    before = known.asked_count
    while known.asked_count < before + 3:
        await asyncio.sleep(0.001)
    assert not ending.done()
    if now is None:
        del known.people["ada"]
    else:
        known.people["ada"] = now
    async with asyncio.timeout(240):
        assert isinstance(await ending, Denied | NotFound)


class Audited:
    """An application that does what it is told, behind a gate that audits into a file."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "audit.jsonl"
        self.audit = Audit(self.file)
        self.log = LogCapture()

    async def does(
        self,
        method: str,
        path: str,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        authenticator: Authenticator | None = None,
    ) -> httpx.Response:
        structlog.configure(processors=[self.log])
        try:
            async with served(app, authenticator, self.audit) as client:
                return await client.request(method, path, headers=BEARER)
        finally:
            structlog.reset_defaults()

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


async def test_what_one_request_did_to_several_has_an_entry_for_each(tmp_path: Path) -> None:
    audited = Audited(tmp_path)

    async def produce(scope: Scope, receive: Receive, send: Send) -> None:
        note_action(scope, "stream.create")
        note_targets(scope, ["a-0", "a-1", "b-0"])
        await Response()(scope, receive, send)

    await audited.does("POST", "/produce", produce)
    told = [(entry["action"], entry["target"], entry["status"]) for entry in audited.entries]
    assert told == [("stream.create", name, 200) for name in ("a-0", "a-1", "b-0")]
    assert len([entry for entry in audited.log.entries if entry["event"] == "audit"]) == 3


async def test_an_entry_is_there_before_the_answer_and_in_the_log_too(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    seen: list[list[dict[str, Any]]] = []

    async def trim(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_seen(message: Any) -> None:
            await send(message)
            seen.append(audited.entries)

        await Response(status_code=202)(scope, receive, send_seen)

    answer = await audited.does("POST", "/v1/streams/orders/trim", trim)
    (entry,) = audited.entries
    assert seen[0] == [entry]
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "actor": "local",
        "tenant": "default",
        "action": "stream.trim",
        "target": "orders",
        "status": 202,
        "request_id": answer.headers["request-id"],
    }
    (logged,) = [entry for entry in audited.log.entries if entry["event"] == "audit"]
    assert logged == {
        **entry,
        "event": "audit",
        "logger": "bottomless.audit",
        "log_level": "info",
    }


async def test_what_was_not_answered_has_an_entry_without_a_status(tmp_path: Path) -> None:
    audited = Audited(tmp_path)

    async def dies(_: Scope, __: Receive, ___: Send) -> None:
        raise ZeroDivisionError

    await audited.does("DELETE", "/v1/streams/orders", dies)
    (entry,) = audited.entries
    assert (entry["action"], entry["status"]) == ("stream.delete", None)


async def test_who_is_refused_is_named_and_who_is_not_known_cannot_be(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    known = Known(ada=ada("read:orders"))
    await audited.does("DELETE", "/v1/streams/orders", who, known)
    await audited.does("DELETE", "/v1/streams/hidden", who, known)
    await audited.does("DELETE", "/v1/streams/orders", who, Known())
    shown = [(entry["actor"], entry["target"], entry["status"]) for entry in audited.entries]
    assert shown == [("key:a1", "orders", 403), ("key:a1", "hidden", 404)]


async def test_routes_say_what_the_path_does_not(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    path = "/v1/streams/orders/consumers/billing/offset"

    async def force(scope: Scope, receive: Receive, send: Send) -> None:
        # A dispatcher hands copies on.
        note_action({**scope}, "offset.force")
        note_target({**scope}, "orders/\x1b\n/é")
        await Response()(scope, receive, send)

    await audited.does("PUT", path, who)
    assert audited.entries == []
    await audited.does("PUT", path, force)
    (entry,) = audited.entries
    assert (entry["action"], entry["target"]) == ("offset.force", "orders/\\x1b\\n/\\xe9")


async def test_reads_and_appends_are_not_audited(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    for method, path in (
        ("GET", "/v1/streams/orders"),
        ("POST", "/v1/streams/orders/records"),
        ("GET", "/v1/keys"),
        ("POST", "/nothing"),
    ):
        await audited.does(method, path, who)
    assert audited.entries == []
    assert audited.log.entries == []


async def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    await audited.does("POST", "/v1/admin/gc", who)
    audited.file.rename(tmp_path / "old")
    await audited.does("POST", "/v1/admin/gc", who)
    assert len(audited.entries) == 1
    assert audited.file.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    audited.file.unlink()
    audited.file.mkdir()
    answer = await audited.does("POST", "/v1/admin/gc", who)
    assert answer.status_code == 200
    assert "the audit file cannot be written" in [each["event"] for each in audited.log.entries]


async def test_refusals_are_logged_once_a_second_and_counted(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    gate = Gate(Known(), Audit(None), check_seconds=5)
    structlog.configure(processors=[audited.log])
    try:
        async with client_of(wrap(gate.around(who))) as client:
            for _ in range(20):
                await client.get("/v1/whoami", headers=BEARER)
    finally:
        structlog.reset_defaults()
    first = audited.log.entries[0]
    assert (first["event"], first["reason"]) == ("a credential was refused", "it is nobody's")
    assert len(audited.log.entries) < 20
    # A request's id is of random hex digits, three of which may be these.
    told = [{**each, "request_id": None} for each in audited.log.entries]
    assert "ada" not in str(told)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"identity": True}, "needs BOTTOMLESS_MANIFEST_URL"),
        ({"identity": True, "jwt_issuer": "i"}, "all three"),
        (
            {"jwt_issuer": "i", "jwt_audience": "a", "jwt_jwks": "https://issuer.test/"},
            "BOTTOMLESS_IDENTITY is not",
        ),
        ({"jwt_tenant": "acme"}, "BOTTOMLESS_JWT_TENANT is set, and BOTTOMLESS_JWT_ISSUER is not"),
        ({"identity": True, "jwt_leeway_seconds": 1}, "JWT_LEEWAY_SECONDS is set"),
        ({"audit_file": "/nowhere/audit"}, "cannot be written: No such file"),
    ],
)
async def test_settings_that_do_not_go_together_are_refused_at_the_start(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CannotStart, match=sentence):
        async with build_gate(CommonSettings(**settings), None):
            pass


@pytest.mark.parametrize("algorithms", ["HS256", "none", "RS256,HS512", "RS256, ES256", ""])
def test_no_algorithm_with_a_shared_secret_can_be_allowed(algorithms: str) -> None:
    with pytest.raises(ValueError, match="must be some of"):
        CommonSettings(jwt_algorithms=algorithms)
