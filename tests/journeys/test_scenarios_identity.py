"""Who may do what, tried over real sockets: scenarios H3, H4 and H26 of the design."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
from support.contract import problem_of
from support.separate_processes import four_processes
from support.server import AllInOne
from support.signed import AUDIENCE, NAME, Issuer, signed_with_secret, unsigned
from support.waiting import until

ROOT: Final = "sk_root_0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
FRESH_SECONDS: Final = 2
REVOKED_SECONDS: Final = 30
"""What is promised of a revocation."""


@dataclass(frozen=True)
class IdentityDeployment:
    """A server with identity on, whose issuer is known."""

    url: str
    issuer: Issuer
    audit_file: Path
    log: Callable[[], str]

    def client(self, token: str | None = ROOT) -> httpx.Client:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def key(self, *scopes: str, **members: Any) -> dict[str, Any]:
        with self.client() as operator:
            answer = operator.post("/v1/keys", json={"scopes": list(scopes), **members})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def revoke(self, key_id: str) -> None:
        with self.client() as operator:
            assert operator.delete(f"/v1/keys/{key_id}").status_code == 200

    def credential(self, kind: str, *scopes: str) -> str:
        """A credential of either kind with these scopes."""
        if kind == "signed token":
            return self.issuer.token(scope=" ".join(scopes))
        return str(self.key(*scopes)["secret"])

    def declare(self, *names: str, values: int = 1) -> None:
        with self.client() as operator:
            for name in names:
                assert operator.put(f"/v1/streams/{name}").status_code in (200, 201)
                records = [{"value": f"value {number}"} for number in range(values)]
                added = operator.post(f"/v1/streams/{name}/records", json={"records": records})
                assert added.status_code == 200

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit_file.read_text().splitlines()]

    def status(self, token: str, path: str = "/v1/whoami") -> int:
        with self.client(token) as client:
            return client.get(path).status_code


def settings_of(directory: Path, issuer: Issuer) -> dict[str, str]:
    (directory / "root.secret").write_text(f"{ROOT.removeprefix('sk_root_')}\n")
    (directory / "jwks.json").write_bytes(issuer.jwks)
    return {
        "BOTTOMLESS_IDENTITY": "true",
        "BOTTOMLESS_IDENTITY_FRESH_SECONDS": str(FRESH_SECONDS),
        "BOTTOMLESS_ROOT_KEY_FILE": str(directory / "root.secret"),
        "BOTTOMLESS_JWT_ISSUER": NAME,
        "BOTTOMLESS_JWT_AUDIENCE": AUDIENCE,
        "BOTTOMLESS_JWT_JWKS": f"file://{directory}/jwks.json",
        "BOTTOMLESS_JWT_LEEWAY_SECONDS": "0",
        "BOTTOMLESS_AUDIT_FILE": str(directory / "audit.jsonl"),
        "BOTTOMLESS_LOG_LEVEL": "error",
        "BOTTOMLESS_LOG_JSON": "true",
    }


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityDeployment]:
    directory = tmp_path_factory.mktemp("identity")
    issuer = Issuer()
    with AllInOne(directory / "data", settings_of(directory, issuer)) as server:
        yield IdentityDeployment(server.url, issuer, directory / "audit.jsonl", server.log)


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256"])
def test_a_good_token_is_let_in_and_told_who_it_is(
    deployment: IdentityDeployment, alg: str
) -> None:
    ends = round(time.time()) + 600
    with deployment.client(
        deployment.issuer.token(alg=alg, scope="read describe:a-* profile", exp=ends)
    ) as one:
        who = one.get("/v1/whoami").json()

    assert {name: who[name] for name in ("principal", "authenticated", "tenant")} == {
        "principal": "sub:ada",
        "authenticated": True,
        "tenant": "default",
    }
    assert who["scopes"] == ["read", "describe:a-*", "profile"]
    assert who["expires_at"]


def test_a_good_key_is_let_in_and_told_who_it_is(deployment: IdentityDeployment) -> None:
    key = deployment.key("read:orders-*")
    with deployment.client(key["secret"]) as client:
        who = client.get("/v1/whoami").json()
    assert (who["principal"], who["scopes"]) == (f"key:{key['key_id']}", ["read:orders-*"])


STRANGER: Final = Issuer()
"""Signs as the issuer does, with keys of its own."""
BAD: Final[dict[str, Callable[[Issuer], str | None]]] = {
    "none": lambda _: None,
    "empty": lambda _: "Bearer",
    "another scheme": lambda _: "Basic c2stbGl2ZTo=",
    "two words": lambda issuer: f"Bearer {issuer.token()} x",
    "not a token": lambda _: "Bearer ä",
    "text": lambda _: "Bearer orders",
    "too long": lambda _: f"Bearer {'x' * 9000}",
    "nested": lambda _: f"Bearer {'W1tb' * 1500}.e30.e30",
    "a key that is not there": lambda _: f"Bearer sk_{'0' * 24}_{'0' * 64}",
    "a key of no form": lambda _: "Bearer sk_../keys_x",
    "another secret": lambda _: f"Bearer {ROOT[:-1]}0",
    "expired": lambda issuer: f"Bearer {issuer.token(exp=round(time.time()) - 1)}",
    "not yet": lambda issuer: f"Bearer {issuer.token(nbf=round(time.time()) + 60)}",
    "wrong audience": lambda issuer: f"Bearer {issuer.token(aud='elsewhere')}",
    "wrong issuer": lambda issuer: f"Bearer {issuer.token(iss='https://issuer.test')}",
    "no end": lambda issuer: f"Bearer {issuer.token(without='exp')}",
    "no audience": lambda issuer: f"Bearer {issuer.token(without='aud')}",
    "no subject": lambda issuer: f"Bearer {issuer.token(without='sub')}",
    "no tenant": lambda issuer: f"Bearer {issuer.token(without='tenant')}",
    "a tenant that is none": lambda issuer: f"Bearer {issuer.token(tenant='a/../b')}",
    "alg none": lambda _: f"Bearer {unsigned()}",
    "public key as secret": lambda issuer: f"Bearer {signed_with_secret(issuer.public_pem)}",
    "somebody else's signature": lambda _: f"Bearer {STRANGER.token()}",
    "a kid of another kind": lambda issuer: f"Bearer {issuer.token(header={'kid': 'ec-1'})}",
    "an unknown kid": lambda _: f"Bearer {STRANGER.token(header={'kid': 'new'})}",
    "an extension": lambda issuer: f"Bearer {issuer.token(header={'crit': ['x'], 'x': 1})}",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_credential_is_401_whatever_is_asked(
    deployment: IdentityDeployment, kind: str
) -> None:
    """H3: no, malformed, expired or wrong credentials; `alg: none`; RS256 taken for HS256."""
    given = BAD[kind](deployment.issuer)
    sent = {} if given is None else {b"authorization": given.encode()}
    with httpx.Client(base_url=deployment.url, timeout=60) as client:
        for method, path in (("GET", "/v1/whoami"), ("POST", "/v1/streams/orders/records")):
            refused = client.request(method, path, headers=sent)
            problem = problem_of(refused, 401, "unauthenticated")
            assert refused.headers["www-authenticate"] == "Bearer"
            assert given is None or given.split()[-1] not in json.dumps(problem)


def test_two_credentials_are_none(deployment: IdentityDeployment) -> None:
    connection = http.client.HTTPConnection(urlsplit(deployment.url).netloc, timeout=60)
    connection.putrequest("GET", "/v1/whoami")
    connection.putheader("authorization", f"Bearer {ROOT}")
    connection.putheader("authorization", f"Bearer {ROOT}")
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.load(answer)["code"]) == (401, "unauthenticated")
    connection.close()


def test_health_and_the_contract_need_no_credential(deployment: IdentityDeployment) -> None:
    with deployment.client(None) as anybody:
        for path in ("/livez", "/readyz", "/openapi.json"):
            assert anybody.get(path).status_code == 200
        for path in ("/v1", "/v1/nothing", "/metrics", "/internal/v1/keys/root"):
            assert anybody.get(path).status_code == 401, path
    with deployment.client() as operator:
        problem_of(operator.get("/v1/nothing"), 404, "not-found")
        problem_of(operator.get("/internal/v1/keys/root"), 404, "not-found")
        refused = operator.delete("/v1/streams/orders/records")
        problem_of(refused, 405, "method-not-allowed")
        assert set(refused.headers["allow"].split(", ")) == {"GET", "POST"}


def test_nobody_is_asked_where_a_token_says_that_its_key_is(deployment: IdentityDeployment) -> None:
    """H3: `jku`, `x5u` and `jwk` of a forger; the listener that they name gets no request."""
    with listening(STRANGER.jwks) as (url, asked):
        for header in (
            {"jku": url, "kid": "rsa-1"},
            {"jku": url, "kid": "forged"},
            {"x5u": url, "kid": "forged"},
            {"jwk": json.loads(STRANGER.jwks)["keys"][0], "kid": "forged"},
        ):
            assert deployment.status(STRANGER.token(header=header)) == 401, header
        assert asked == []
        # It would have been heard.
        assert httpx.get(url).content == STRANGER.jwks
        assert asked == ["/jwks.json"]


def test_a_revoked_key_is_refused_within_half_a_minute(deployment: IdentityDeployment) -> None:
    """H3: revoked."""
    key = deployment.key("*")
    assert deployment.status(key["secret"]) == 200
    revoked_at = time.monotonic()
    deployment.revoke(key["key_id"])
    until(lambda: deployment.status(key["secret"]) == 401, seconds=REVOKED_SECONDS)
    assert time.monotonic() - revoked_at < REVOKED_SECONDS


def test_a_revoked_or_rotated_key_is_refused_at_once_where_that_was_asked_for(
    deployment: IdentityDeployment,
) -> None:
    """F4: for five seconds more the service that had answered let it in."""
    for change in ("revoke", "rotate"):
        key = deployment.key("*")
        with deployment.client(key["secret"]) as holder, deployment.client() as operator:
            assert holder.get("/v1/streams/nothing").status_code == 404
            path = f"/v1/keys/{key['key_id']}"
            if change == "revoke":
                assert operator.delete(path).status_code == 200
            else:
                answer = operator.post(f"{path}/rotate", json={"overlap_seconds": 0})
                assert answer.status_code == 200
            assert holder.get("/v1/streams/nothing").status_code == 401


def test_a_key_is_refused_after_its_end(deployment: IdentityDeployment) -> None:
    """H3: expired."""

    def let_in() -> str | None:
        """The secret of a key; None where it had ended before anybody came with it."""
        secret: str = deployment.key("*", ttl_seconds=6)["secret"]
        return secret if deployment.status(secret) == 200 else None

    secret = until(let_in, what="a key that is good")
    until(lambda: deployment.status(secret) == 401, seconds=REVOKED_SECONDS)


@pytest.mark.parametrize("kind", ["API key", "signed token"])
def test_scopes_and_prefixes_are_kept_to_the_letter(
    deployment: IdentityDeployment, kind: str
) -> None:
    """H4: a token that reads `orders-*` appends, and tries orders2, orders-, orders-x."""
    deployment.declare("orders", "orders2", "orders-", "orders-x")
    with deployment.client() as operator:
        before = operator.get("/v1/streams/orders-x/offsets").json()["next_offset"]
    with deployment.client(deployment.credential(kind, "read:orders-*")) as reader:
        for name in ("orders-", "orders-x"):
            assert reader.get(f"/v1/streams/{name}/records?offset=0").status_code == 200
            record = {"records": [{"value": "x"}]}
            added = reader.post(f"/v1/streams/{name}/records", json=record)
            problem_of(added, 403, "forbidden")
            problem_of(reader.delete(f"/v1/streams/{name}"), 403, "forbidden")
        for name in ("orders", "orders2"):
            for method, path in (
                ("GET", "/records?offset=0"),
                ("POST", "/records"),
                ("GET", "/fragments?locations=true"),
                ("POST", "/trim"),
            ):
                hidden = reader.request(method, f"/v1/streams/{name}{path}")
                assert told(hidden) == told(missing(deployment, method, path)), (name, path)
        # D13: creating is no question about a stream; whether there is one, the answer is the same.
        for name in ("orders", "orders2", "not-there"):
            problem_of(reader.put(f"/v1/streams/{name}", json={}), 403, "forbidden")
        problem_of(reader.get("/v1/streams"), 403, "forbidden")
        problem_of(reader.post("/v1/admin/gc"), 403, "forbidden")
        problem_of(reader.get("/v1/keys"), 403, "forbidden")
    with deployment.client() as operator:
        after = operator.get("/v1/streams/orders-x/offsets").json()["next_offset"]
    assert after == before


@pytest.mark.parametrize("kind", ["API key", "signed token"])
def test_an_exact_name_allows_that_stream_alone(deployment: IdentityDeployment, kind: str) -> None:
    deployment.declare("bills", "bills-1")
    token = deployment.credential(kind, "append:bills", "describe:bills*", "read:bills-1")
    with deployment.client(token) as client:
        record = {"records": [{"value": "x"}]}
        assert client.post("/v1/streams/bills/records", json=record).status_code == 200
        problem_of(client.post("/v1/streams/bills-1/records", json=record), 403, "forbidden")
        problem_of(client.get("/v1/streams/bills/records?offset=0"), 403, "forbidden")
        listed = client.get("/v1/streams").json()["items"]
    assert [item["name"] for item in listed] == ["bills", "bills-1"]


def test_who_may_append_to_a_super_stream_may_not_append_to_its_partitions(
    deployment: IdentityDeployment,
) -> None:
    """Scenario P9: the partitions of a super stream have names of their own."""
    with deployment.client() as operator:
        assert operator.put("/v1/super-streams/parted", json={"partitions": 2}).status_code == 201
    body = {"records": [{"value": "a", "key": "k"}]}
    with deployment.client(deployment.credential("key", "append:parted", "describe:*")) as client:
        assert client.post("/v1/super-streams/parted/records", json=body).status_code == 200
        direct = client.post("/v1/streams/parted-0/records", json=body)
        problem_of(direct, 403, "forbidden")
    with deployment.client(deployment.credential("key", "append:parted-*", "describe:*")) as client:
        whole = client.post("/v1/super-streams/parted/records", json=body)
        problem_of(whole, 403, "forbidden")


def test_where_objects_lie_has_a_scope_of_its_own(deployment: IdentityDeployment) -> None:
    deployment.declare("placed")
    with deployment.client(deployment.issuer.token(scope="read:placed")) as reader:
        assert reader.get("/v1/streams/placed/fragments").status_code == 200
        hidden = reader.get("/v1/streams/placed/fragments?locations=true")
        problem_of(hidden, 403, "forbidden")
        same = reader.get("/v1/streams/placed/fragments?%6Cocations=true")
        problem_of(same, 403, "forbidden")
        assert reader.get("/v1/streams/placed/fragments?locations=false").status_code == 200
    with deployment.client(
        deployment.issuer.token(scope="read:placed locations:placed")
    ) as planner:
        assert planner.get("/v1/streams/placed/fragments?locations=true").status_code == 200


def test_the_rebuild_is_for_the_tenant_whose_the_installation_is(
    deployment: IdentityDeployment,
) -> None:
    with deployment.client(deployment.issuer.token(tenant="acme", scope="*")) as other:
        problem_of(other.post("/v1/admin/rebuild"), 403, "forbidden")


def test_an_answer_that_stays_open_ends_with_its_token(deployment: IdentityDeployment) -> None:
    deployment.declare("followed")

    def followed() -> list[str] | None:
        """The lines of an answer; None where its token had ended before it came."""
        token = deployment.issuer.token(scope="read", exp=round(time.time()) + 6)
        with (
            deployment.client(token) as client,
            client.stream(
                "GET",
                "/v1/streams/followed/records?offset=first",
                headers={"accept": "text/event-stream"},
            ) as answer,
        ):
            return list(answer.iter_lines()) if answer.status_code == 200 else None

    lines = until(followed, what="an answer that was begun in time")
    assert any(line.startswith("data: ") and '"value 0"' in line for line in lines)
    at = lines.index("event: end")
    end = json.loads(lines[at + 1].removeprefix("data: "))
    assert (end["reason"], end["next_offset"]) == ("token-expired", 1)


def test_an_answer_that_stays_open_ends_with_the_revocation_of_its_key(
    deployment: IdentityDeployment,
) -> None:
    deployment.declare("watched")
    key = deployment.key("read:watched")
    path = "/v1/streams/watched/records?offset=first&follow=true"
    with (
        deployment.client(key["secret"]) as client,
        client.stream("GET", path, headers={"accept": "application/x-ndjson"}) as answer,
    ):
        lines = answer.iter_lines()
        assert json.loads(next(lines))["value"] == "value 0"
        revoked_at = time.monotonic()
        deployment.revoke(key["key_id"])
        last = json.loads(list(lines)[-1])
    assert last["_control"]["end"] == "token-expired"
    assert time.monotonic() - revoked_at < REVOKED_SECONDS


def test_a_long_poll_that_outlived_its_token_tells_nothing(deployment: IdentityDeployment) -> None:
    deployment.declare("polled")
    token = deployment.issuer.token(scope="read", exp=round(time.time()) + 2)
    with deployment.client(token) as client:
        polled = client.get("/v1/streams/polled/records?offset=next&max_wait_ms=4000")
    problem_of(polled, 401, "unauthenticated")


def test_each_thing_that_is_managed_has_one_entry_in_the_audit(
    deployment: IdentityDeployment,
) -> None:
    """H26: trim, delete, key create, offset force, and what was refused."""
    deployment.declare("audited", values=3)
    created = deployment.key("manage:audited", "consume:audited")
    path, offset = "/v1/streams/audited", "/v1/streams/audited/consumers/billing/offset"
    before = len(deployment.entries())
    expected = []
    with deployment.client() as operator, deployment.client(created["secret"]) as manager:
        root, key = "key:root", f"key:{created['key_id']}"

        def done(actor: str, action: str, target: str | None, answer: httpx.Response) -> None:
            request_id = answer.headers["request-id"]
            expected.append((actor, action, target, answer.status_code, request_id))

        done(key, "stream.trim", "audited", manager.post(f"{path}/trim", json={"before_offset": 0}))
        assert manager.put(offset, json={"offset": 2}).status_code == 200
        forced = manager.put(offset, json={"offset": 1, "allow_regression": True})
        assert forced.status_code == 200
        done(key, "offset.force", "audited/billing", forced)
        done(key, "stream.delete", "audited", manager.delete(path))
        done(root, "stream.delete", "audited", operator.delete(path))
        odd = operator.put("/v1/streams/a%0Ab%1B")
        assert odd.status_code == 400
        done(root, "stream.create", "a\\nb\\x1b", odd)
        made = operator.post("/v1/keys", json={"scopes": ["read"]})
        done(root, "key.create", made.json()["key_id"], made)
        revoked = operator.delete(f"/v1/keys/{made.json()['key_id']}")
        done(root, "key.revoke", made.json()["key_id"], revoked)
        collected = operator.post("/v1/admin/gc")
        assert collected.status_code == 202
        done(root, "gc", None, collected)

    names = ("actor", "action", "target", "status", "request_id")
    entries = deployment.entries()[before:]
    assert [tuple(entry[name] for name in names) for entry in entries] == expected
    assert [status for _, _, _, status, _ in expected[:4]] == [202, 200, 403, 202]
    assert {entry["tenant"] for entry in entries} == {"default"}
    logged = [
        json.loads(line) for line in deployment.log().splitlines() if "bottomless.audit" in line
    ]
    assert [tuple(entry[name] for name in names) for entry in logged[before:]] == expected
    everything = deployment.log() + deployment.audit_file.read_text()
    assert ROOT not in everything
    assert created["secret"] not in everything


def test_every_service_has_the_gate_and_a_proxy_passes_credentials_on(tmp_path: Path) -> None:
    issuer = Issuer()
    with four_processes(tmp_path, settings_of(tmp_path, issuer)) as four:
        deployment = IdentityDeployment(four.url, issuer, tmp_path / "audit.jsonl", lambda: "")
        deployment.declare("orders")
        key = deployment.key("read:orders")
        paths = {
            "manifest": "/v1/whoami",
            "reader": "/v1/streams/orders/records?offset=0",
            "ingest": "/v1/streams/orders/records",
            "uploader": "/v1/anything",
        }
        for name, path in paths.items():
            for url in (four.url, four[name].url):
                method = "POST" if name == "ingest" else "GET"
                assert httpx.request(method, f"{url}{path}").status_code == 401, (name, url)
        given = {"authorization": f"Bearer {key['secret']}"}
        reader = f"{four['reader'].url}{paths['reader']}"
        assert httpx.get(f"{four.url}{paths['reader']}", headers=given).status_code == 200
        assert httpx.post(f"{four.url}{paths['ingest']}", headers=given).status_code == 403

        deployment.revoke(key["key_id"])
        until(lambda: httpx.get(reader, headers=given).status_code == 401, seconds=REVOKED_SECONDS)

        # While manifest is away keys that it described are good, and others cannot be told.
        known = f"{four['ingest'].url}/v1/streams/orders/producers"
        root = {"authorization": f"Bearer {ROOT}"}
        assert httpx.get(known, headers=root).status_code == 200
        four.kill("manifest")
        assert httpx.get(known, headers=root).status_code == 200
        token = {"authorization": f"Bearer {issuer.token(scope='describe:orders')}"}
        assert httpx.get(known, headers=token).status_code == 200
        unknown = {"authorization": f"Bearer sk_{'1' * 24}_{'0' * 64}"}
        problem_of(httpx.get(known, headers=unknown, timeout=30), 503, "peer-unavailable")


def told(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    """All that an answer says, but the id of its request and the name that the request has."""
    problem = answer.json()
    del problem["request_id"]
    assert problem.pop("stream") == answer.request.url.path.split("/")[3]
    return answer.status_code, problem


def missing(deployment: IdentityDeployment, method: str, path: str) -> httpx.Response:
    """What is answered of a stream that is not there, to somebody who may do everything with it."""
    with deployment.client() as operator:
        answer = operator.get("/v1/streams/not-there")
    problem_of(answer, 404, "stream-not-found")
    return answer


@contextmanager
def listening(body: bytes) -> Iterator[tuple[str, list[str]]]:
    """A server of one body, and the paths that it was asked for."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/jwks.json", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
