"""Tenants: nothing of another one can be seen, named, counted or changed: scenarios H5 and H6."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from support.contract import Stream, problem_of
from support.documents import Documented, documented
from support.issuer import Issuer
from support.server import AllInOne
from support.waiting import until

from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows
from openapi.bundle import PUBLIC

OPERATIONS = {operation.name: operation for operation in documented(*PUBLIC)}
OPEN = ("/", "/livez", "/readyz", "/openapi.json")

NAMING = sorted(name for name in OPERATIONS if "{" in name)
"""Operations that name something."""

OF_ALL = {"GET /v1/admin/queue-store", "GET /v1/admin/wal", "GET /v1/nodes"}
"""What is told of the streams or queues of everybody, to the operator alone."""
NAMING_NOTHING = sorted(
    name
    for name, one in OPERATIONS.items()
    if name.startswith("GET") and name not in {*NAMING, *OF_ALL} and one.path not in OPEN
)
"""Reads that name nothing; what changes something without a name has a test of its own."""

OWN = {"PUT /v1/streams/{s}", "PUT /v1/super-streams/{s}", "PUT /v1/queues/{q}"}
"""These make something of one's own where another has something of that name."""
OPERATORS = {
    "DELETE /v1/admin/drives/{d}",
    "POST /v1/admin/drives/{d}/lost",
    "POST /v1/admin/nodes/{node}/evacuate",
}
"""These name what is no tenant's, and are refused to whoever is not the operator."""

SECOND = sorted(
    name
    for name in NAMING
    if any(part in name for part in ("{c}", "{p}", "{lease_id}", "{fragment_id}", "{g}", "{m}"))
    and name
    not in (
        "PUT /v1/streams/{s}/consumers/{c}/offset",
        "POST /v1/streams/{s}/producers/{p}/epoch",
        "POST /v1/streams/{s}/groups/{g}/members",
    )
)
"""Operations that name something below a stream, and do not make it."""

MISSING = {
    "s": "never-there",
    "q": "never-there",
    "c": "nobody",
    "p": "nobody",
    "offset": "0",
    "lease_id": "ls_" + "0" * 32,
    "fragment_id": "0" * 20 + "-" + "0" * 32,
    "operation_id": "op_" + "0" * 32,
    "key_id": "0" * 24,
    "g": "nobody",
    "m": "0" * 32,
}

BODIES: Mapping[str, Any] = {
    "POST /v1/streams/{s}/records": {"records": [{"value": "x"}]},
    "PATCH /v1/streams/{s}": {"labels": {"a": "b"}},
    "PUT /v1/streams/{s}/consumers/{c}/offset": {"offset": 0},
    "POST /v1/streams/{s}/trim": {"before_offset": 1},
    "POST /v1/streams/{s}/leases": {"first_offset": 0},
    "POST /v1/admin/streams/{s}/takeover": {"accept_loss": True, "expect_home": "0" * 32},
    "POST /v1/admin/streams/{s}/gap": {"accept_loss": True, "next_offset": 1},
}
CONTENTS = {"POST /v1/streams/{s}/staged": frames_body(Rows([b"staged"], [1]))}
PARAMETERS = {
    "GET /v1/streams/{s}/records": {"offset": "first"},
    "GET /v1/streams/{s}/offsets/resolve": {"spec": "first"},
    "GET /v1/super-streams/{s}/route": {"key": "x"},
}


class Tenants(NamedTuple):
    """Two tenants of one process: `theirs` are the ids of what the first one has."""

    issuer: Issuer
    server: AllInOne
    acme: httpx.Client
    rival: httpx.Client
    operator: httpx.Client
    theirs: Mapping[str, str]


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    home = tmp_path_factory.mktemp("tenants")
    issuer = Issuer(home)
    with AllInOne(home / "data", issuer.settings()) as server, ExitStack() as clients:
        acme, rival, operator = (
            clients.enter_context(issuer.client(server.url, tenant))
            for tenant in ("acme", "rival", "default")
        )
        for tenant in (acme, rival):
            tenant.put("/v1/streams/mine", json={"fragment": {"max_age_ms": 100}})
        yield Tenants(issuer, server, acme, rival, operator, everything_of(acme))


def everything_of(client: httpx.Client) -> dict[str, str]:
    """One of each thing that can be named."""
    stream = Stream(client, "orders")
    assert client.put(stream.path, json={"fragment": {"max_age_ms": 100}}).status_code == 201
    sent = {"producer-id": "loader", "producer-seq": "0"}
    records = {"records": [{"value": "secret"}, {"value": "too"}]}
    assert client.post(stream.records, json=records, headers=sent).status_code == 200
    stream.wait_uploaded()
    (fragment,) = client.get(f"{stream.path}/fragments").json()["fragments"]
    client.put(f"{stream.path}/consumers/billing/offset", json={"offset": 0})
    lease = client.post(f"{stream.path}/leases", json={"first_offset": 0}).json()
    member = client.post(f"{stream.path}/groups/workers/members", json={"member": "ada"}).json()
    operation = client.post(f"{stream.path}/manifest/verify").json()
    key = client.post("/v1/keys", json={"scopes": ["read"]}).json()
    above = "/v1/super-streams/divided"
    assert client.put(above, json={"partitions": 1}).status_code == 201
    sharing = client.post(f"{above}/groups/workers/members", json={"member": "ada"}).json()
    assert client.put("/v1/queues/jobs").status_code == 201
    publish = {"messages": [{"value": "secret"}]}
    assert client.post("/v1/queues/jobs/messages", json=publish).status_code == 200
    return {
        "s": "orders",
        "q": "jobs",
        "c": "billing",
        "p": "loader",
        "offset": "0",
        "lease_id": lease["lease_id"],
        "fragment_id": fragment["id"],
        "operation_id": operation["operation_id"],
        "key_id": key["key_id"],
        "g": "workers",
        "m": member["member_id"],
        "super": "divided",
        "super_m": sharing["member_id"],
    }


def ask(client: httpx.Client, operation: Documented, parts: Mapping[str, str]) -> httpx.Response:
    if operation.path.startswith("/v1/super-streams/") and parts.get("s") == "orders":
        parts = {**parts, "s": parts["super"], "m": parts["super_m"]}
    headers = {"if-match": "*"} if operation.method == "patch" else {}
    content = CONTENTS.get(operation.name)
    if content is not None:
        headers["content-type"] = "application/vnd.bottomless.batches"
    return client.request(
        operation.method.upper(),
        operation.path.format_map(operation.places | dict(parts)),
        content=content,
        json=BODIES.get(operation.name, operation.example),
        params=PARAMETERS.get(operation.name),
        headers=headers,
    )


def said(answer: httpx.Response) -> tuple[int, Any, Mapping[str, str]]:
    """All that an answer says, but for what every answer has of its own."""
    own = {"date", "request-id", "content-length"}
    headers = {name: value for name, value in answer.headers.items() if name not in own}
    body = answer.json() if answer.content else None
    if isinstance(body, dict):
        assert body.pop("request_id") == answer.headers["request-id"]
        # The name of a stream or queue that there is not is the one that the request has in its path.
        for kind in ("stream", "queue"):
            if (named := body.pop(kind, None)) is not None:
                assert named in answer.request.url.path.split("/")
    return answer.status_code, body, headers


def test_what_is_told_of_single_operations_is_told_of_some_that_there_are() -> None:
    assert set(BODIES) | set(CONTENTS) | set(PARAMETERS) | OWN <= set(OPERATIONS)


@pytest.mark.parametrize("name", NAMING_NOTHING)
def test_what_names_nothing_tells_nothing_of_another_tenant(tenants: Tenants, name: str) -> None:
    """H5."""
    answer = ask(tenants.rival, OPERATIONS[name], {})
    assert answer.is_success, answer.text
    theirs = set(tenants.theirs.values()) - {tenants.theirs["offset"]}
    assert [one for one in theirs if one in answer.text] == []


@pytest.mark.parametrize("name", [name for name in NAMING if name not in OWN])
def test_what_another_tenant_has_is_as_what_nobody_has(tenants: Tenants, name: str) -> None:
    """H5."""
    operation = OPERATIONS[name]
    foreign = said(ask(tenants.rival, operation, tenants.theirs))
    assert foreign == said(ask(tenants.rival, operation, MISSING))
    assert foreign[0] == (403 if name in OPERATORS else 404)


@pytest.mark.parametrize("name", SECOND)
def test_ids_of_another_tenant_lead_to_nothing_below_ones_own_stream(
    tenants: Tenants, name: str
) -> None:
    """H5."""
    operation, mine = OPERATIONS[name], {"s": "mine"}
    foreign = said(ask(tenants.rival, operation, {**tenants.theirs, **mine}))
    assert foreign == said(ask(tenants.rival, operation, {**MISSING, **mine}))
    # To give a lease back is done where there is none.
    assert foreign[0] == (204 if name == "DELETE /v1/streams/{s}/leases/{lease_id}" else 404)


def test_nothing_that_another_tenant_asks_for_touches_anything(tenants: Tenants) -> None:
    """H5."""
    for name in NAMING:
        if name not in OWN:
            ask(tenants.rival, OPERATIONS[name], tenants.theirs)
    for name in SECOND:
        ask(tenants.rival, OPERATIONS[name], {**tenants.theirs, "s": "mine"})
    for name in (name for name in NAMING if name.startswith(("GET", "HEAD"))):
        answer = ask(tenants.acme, OPERATIONS[name], tenants.theirs)
        assert answer.status_code == 200, (name, answer.text)
    path = "/v1/streams/orders"
    assert [one["value"] for one in Stream(tenants.acme, "orders").page()["records"]] == [
        "secret",
        "too",
    ]
    assert tenants.acme.get(path).json()["config_version"] == 1
    queue = tenants.acme.get("/v1/queues/jobs").json()
    assert (queue["config_version"], queue["ready"], queue["in_flight"]) == (1, 1, 0)
    lease = tenants.acme.put(f"{path}/leases/{tenants.theirs['lease_id']}", json={})
    assert lease.status_code == 200
    key = tenants.acme.get(f"/v1/keys/{tenants.theirs['key_id']}").json()
    assert key["state"] == "active"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/streams",
        "/v1/keys",
        "/v1/streams/{s}/consumers",
        "/v1/streams/{s}/producers",
        "/v1/streams/{s}/fragments",
    ],
)
def test_a_page_token_of_another_tenant_is_as_one_that_nobody_made(
    tenants: Tenants, path: str
) -> None:
    """H5."""
    stream = Stream(tenants.acme, "paged")
    tenants.acme.put(stream.path, json={"fragment": {"max_age_ms": 100}})
    for number in range(2):
        sent = {"producer-id": f"p{number}", "producer-seq": "0"}
        tenants.acme.post(stream.records, json={"records": [{"value": "x"}]}, headers=sent)
        tenants.acme.put(f"{stream.path}/consumers/c{number}/offset", json={"offset": 0})
        tenants.acme.post("/v1/keys", json={"scopes": ["read"]})
        stream.wait_uploaded()
    page = tenants.acme.get(path.format(s="paged"), params={"limit": 1}).json()
    token = page["next_page_token"]
    assert tenants.acme.get(path.format(s="paged"), params={"page_token": token}).status_code == 200

    where = path.format(s="mine")
    foreign = tenants.rival.get(where, params={"page_token": token})
    made_up = tenants.rival.get(where, params={"page_token": "AAAA" + token[4:]})
    assert said(foreign) == said(made_up)
    problem_of(foreign, 400, "bad-parameter")


def test_a_stream_id_of_another_tenant_is_as_one_that_is_nobodys(tenants: Tenants) -> None:
    """H5."""
    theirs = tenants.acme.get("/v1/streams/orders").json()["stream_id"]
    nobodys = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"
    rival = Stream(tenants.rival, "mine")
    for path in ("/records?offset=first&", "/offsets?", "/fragments?"):
        answers = [
            said(tenants.rival.get(f"{rival.path}{path}expect_stream_id={one}"))
            for one in (theirs, nobodys)
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] == 409
    events = [
        said(
            tenants.rival.get(
                f"{rival.records}?offset=first",
                headers={"accept": "text/event-stream", "last-event-id": f"{one}:0"},
            )
        )
        for one in (theirs, nobodys)
    ]
    assert events[0] == events[1]
    assert events[0][0] == 409


def test_lists_show_what_is_ones_own(tenants: Tenants) -> None:
    """H5."""
    items = tenants.rival.get("/v1/streams").json()["items"]
    assert [item["name"] for item in items] == ["mine"]
    assert tenants.rival.get("/v1/keys").json()["items"] == []
    assert tenants.rival.get("/v1/whoami").json()["tenant"] == "rival"


def test_a_tenants_garbage_collection_looks_at_its_own(tenants: Tenants) -> None:
    """H5: its result counts streams, and names objects."""

    def result(client: httpx.Client) -> Any:
        begun = client.post("/v1/admin/gc", json={})
        path = f"/v1/operations/{begun.json()['operation_id']}"
        return until(lambda: client.get(path).json()["result"])

    assert result(tenants.rival)["streams"] == 1
    assert result(tenants.operator)["streams"] >= 3
    answers = [
        said(tenants.rival.post("/v1/admin/gc", json={"stream": name}))
        for name in ("orders", "never-there")
    ]
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def test_a_rebuild_is_asked_for_by_the_operator_alone(tenants: Tenants) -> None:
    """H5: it would be about everybody's streams."""
    problem_of(tenants.rival.post("/v1/admin/rebuild"), 403, "forbidden")
    problem_of(tenants.operator.post("/v1/admin/rebuild"), 409, "coordination-intact")


@pytest.mark.parametrize("name", sorted(OF_ALL))
def test_what_everybody_has_is_told_to_the_operator_alone(tenants: Tenants, name: str) -> None:
    """H5: WAL objects have records of all tenants in them."""
    problem_of(ask(tenants.rival, OPERATIONS[name], {}), 403, "forbidden")
    answer = ask(tenants.operator, OPERATIONS[name], {})
    assert answer.is_success, answer.text


PAIRS = [
    (("a", "b.c"), ("a.b", "c")),
    (("a-b", "c"), ("a", "b-c")),
    (("acme", "x"), ("Acme", "x")),
    (("names", "default"), ("default", "names")),
]


def test_tenants_and_names_that_look_alike_when_joined_are_apart_also_after_a_restart(
    tmp_path: Path,
) -> None:
    """H6."""
    issuer = Issuer(tmp_path)
    expected: dict[tuple[str, str], str] = {}

    def stream_of(tenant: str, name: str) -> Stream:
        return Stream(clients.enter_context(issuer.client(server.url, tenant)), name)

    with AllInOne(tmp_path / "data", issuer.settings()) as server, ExitStack() as clients:
        for tenant, name in (one for pair in PAIRS for one in pair):
            stream = stream_of(tenant, name)
            config = {"fragment": {"max_age_ms": 100}}
            assert stream.client.put(stream.path, json=config).status_code == 201
            assert stream.post({"value": f"of {tenant}"}).status_code == 200
            expected[tenant, name] = f"of {tenant}"
        for tenant, name in expected:
            stream_of(tenant, name).wait_uploaded()
        assert {path.name for path in server.objects.iterdir()} >= {one for one, _ in expected}
        server.stop()
        server.start()
        for (tenant, name), value in expected.items():
            stream = stream_of(tenant, name)
            assert [one["value"] for one in stream.page()["records"]] == [value]
            streams = stream.client.get("/v1/streams").json()["items"]
            assert [item["name"] for item in streams] == sorted(
                own for other, own in expected if other == tenant
            )
        gone = stream_of("a", "b.c")
        assert gone.client.delete(gone.path).status_code == 202
        assert stream_of("a.b", "c").page()["records"]
        problem_of(gone.get(), 404, "stream-not-found")


@pytest.mark.parametrize(
    "tenant", ["a:b", "a/b", "", ".", "..", "a..b", "_system", "-a", "é", "a b", "a\0b", "a" * 65]
)
def test_a_tenant_that_could_collide_is_nobody(tenants: Tenants, tenant: str) -> None:
    """H6."""
    with tenants.issuer.client(tenants.server.url, tenant) as client:
        problem_of(client.get("/v1/streams"), 401, "unauthenticated")
    made = tenants.operator.post("/v1/keys", json={"scopes": ["read"], "tenant": tenant})
    assert made.status_code in (400, 422)
