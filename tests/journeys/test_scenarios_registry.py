"""Streams changed and listed over HTTP: scenarios S5 to S8 on PATCH, S10, S15, H1 on new paths."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import Stream, new_stream, problem_of
from support.server import AllInOne
from support.valkey import another_client, running_valkey

DURATIONS = ["0D", "-1D", "5 fortnights", "1.5h", "", "9999999999999Y"]
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        AllInOne(tmp_path_factory.mktemp("registry") / "data") as server,
        server.client() as connected,
    ):
        yield connected


def patch(stream: Stream, body: Any, if_match: str | None = "*") -> httpx.Response:
    headers = {"content-type": MERGE} | ({} if if_match is None else {"if-match": if_match})
    return stream.client.patch(stream.path, json=body, headers=headers)


def test_a_change_needs_the_tag_of_what_it_changes(client: httpx.Client) -> None:
    """S5."""
    stream = new_stream(client)
    first = client.get(stream.path)
    body = {"retention": {"max_age": "14D"}}

    problem = problem_of(patch(stream, body, None), 428, "precondition-required")
    assert problem["errors"] == [
        {"code": "precondition-required", "detail": problem["detail"], "header": "if-match"}
    ]
    changed = patch(stream, body, first.headers["etag"])
    stale = problem_of(patch(stream, {}, first.headers["etag"]), 412, "etag-mismatch")

    assert changed.status_code == 200
    assert changed.headers["etag"] == f'"{first.json()["stream_id"]}.c2"'
    assert changed.headers["etag"] == stale["current_etag"] != first.headers["etag"]
    assert changed.json()["retention"]["max_age_seconds"] == 14 * 86_400
    assert changed.json()["config_version"] == 2
    assert client.get(stream.path).json() == changed.json()
    assert stale["outcome"] == "none"


@pytest.mark.parametrize("tag", ['W/"{etag}"', '"{etag}x"', "{etag}", '""'])
def test_tags_are_compared_strongly(client: httpx.Client, tag: str) -> None:
    """S5."""
    stream = new_stream(client)
    bare = client.get(stream.path).headers["etag"].strip('"')
    problem_of(patch(stream, {}, tag.format(etag=bare)), 412, "etag-mismatch")
    several = f'"other", "{bare}"'
    assert patch(stream, {}, several).status_code == 200


def test_a_patch_of_nothing_and_of_the_same_keeps_the_tag(client: httpx.Client) -> None:
    stream = new_stream(client, {"retention": {"max_bytes": 7}})
    etag = client.get(stream.path).headers["etag"]
    bodies: list[Any] = [{}, {"retention": {}}, {"retention": {"max_bytes": 7}}]
    for body in bodies:
        assert patch(stream, body, etag).headers["etag"] == etag


def test_null_goes_back_to_the_default_and_unlimited_says_so(client: httpx.Client) -> None:
    stream = new_stream(client, {"retention": {"max_bytes": 7, "max_age": "1D"}})
    answer = patch(stream, {"retention": {"max_bytes": None, "max_age": "unlimited"}}).json()
    assert answer["retention"]["max_bytes"] is None
    assert answer["retention"]["max_age"] == "unlimited"
    assert answer["retention"]["max_age_seconds"] is None

    answer = patch(stream, {"retention": None, "fragment": {"max_age_ms": None}}).json()
    assert answer["retention"] == client.get(new_stream(client).path).json()["retention"]
    assert answer["fragment"]["max_age_ms"] == 60_000


def test_labels_are_merged_one_by_one(client: httpx.Client) -> None:
    stream = new_stream(client, {"labels": {"team": "billing", "tier": "gold"}})
    body = {"labels": {"tier": None, "env": "prod", "never-there": None}}
    assert patch(stream, body).json()["labels"] == {"team": "billing", "env": "prod"}
    assert patch(stream, {"labels": None}).json()["labels"] == {}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        *(({"retention": {"max_age": text}}, "/retention/max_age") for text in DURATIONS),
        ({"retention": {"max_bytes": 0}}, "/retention/max_bytes"),
        ({"retention": {"max_bytes": "7"}}, "/retention/max_bytes"),
        ({"retention": {"max_bytes": True}}, "/retention/max_bytes"),
        ({"fragment": {"target_bytes": 0}}, "/fragment/target_bytes"),
        ({"fragment": {"unknown": 1}}, "/fragment"),
        ({"ttl": 1}, ""),
        ({"ttl": None}, ""),
        ({"stream_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"}, ""),
        ({"tenant": "someone"}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_patch_outside_the_schema_changes_nothing(
    client: httpx.Client, body: Any, pointer: str
) -> None:
    """S6, S8, S15."""
    stream = new_stream(client)
    before = client.get(stream.path)
    headers = {"if-match": "*", "content-type": MERGE}
    problem = problem_of(
        client.request(
            "PATCH",
            stream.path,
            content=httpx.Request("P", "http://h", json=body).content
            if body is not None
            else b"null",
            headers=headers,
        ),
        422,
        "validation-failed",
    )
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    assert client.get(stream.path).headers["etag"] == before.headers["etag"]


@pytest.mark.parametrize(("content_type", "status"), [("text/plain", 415), (None, 415)])
def test_a_patch_of_another_type_is_refused(
    client: httpx.Client, content_type: str | None, status: int
) -> None:
    stream = new_stream(client)
    headers = {"if-match": "*"} | ({"content-type": content_type} if content_type else {})
    answer = client.patch(stream.path, content=b"{}", headers=headers)
    problem_of(answer, status, "unsupported-media-type")


def test_a_change_survives_a_restart(tmp_path: Path) -> None:
    with AllInOne(tmp_path / "data") as server:
        with server.client() as client:
            stream = new_stream(client)
            changed = patch(stream, {"labels": {"team": "é"}}).json()
        server.kill()
        server.start()
        with server.client() as client:
            assert client.get(stream.path).json() == changed


@pytest.fixture(scope="module")
def family(client: httpx.Client) -> tuple[str, list[str]]:
    """A prefix, and twelve names under it in the order in which they are listed."""
    prefix = f"f{uuid.uuid4().hex}"
    names = [
        f"{prefix}{end}" for end in ("", "-", "-a", "-a.b", ".", "0", "A", "B", "_", "a", "a-", "b")
    ]
    for name in reversed(names):
        client.put(f"/v1/streams/{name}", json={"labels": {"n": name}}).raise_for_status()
    return prefix, sorted(names)


def pages(client: httpx.Client, **parameters: Any) -> list[list[dict[str, Any]]]:
    found, token = [], None
    while True:
        query = parameters | ({} if token is None else {"page_token": token})
        answer = client.get("/v1/streams", params=query)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        token = answer.json()["next_page_token"]
        if token is None:
            return found


@pytest.mark.parametrize("limit", [1, 5, 12, 1000])
def test_a_list_is_walked_in_the_order_of_names(
    client: httpx.Client, family: tuple[str, list[str]], limit: int
) -> None:
    prefix, names = family
    found = pages(client, prefix=prefix, limit=limit)
    assert [item["name"] for page in found for item in page] == names
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert len(found) == -(-len(names) // limit)


def test_a_list_says_of_each_what_the_registry_knows(
    client: httpx.Client, family: tuple[str, list[str]]
) -> None:
    item = pages(client, prefix=family[0])[0][3]
    described = client.get(f"/v1/streams/{item['name']}")
    assert item["etag"] == described.headers["etag"]
    for member in ("name", "stream_id", "state", "created_at", "config_version", "labels"):
        assert item[member] == described.json()[member]
    assert item["retention"] == described.json()["retention"]


def test_a_list_without_a_prefix_has_all_and_an_unknown_prefix_none(
    client: httpx.Client, family: tuple[str, list[str]]
) -> None:
    everything = [item["name"] for page in pages(client, limit=7) for item in page]
    assert everything == sorted(set(everything))
    assert set(family[1]) <= set(everything)
    assert pages(client, prefix=family[0] + "c") == [[]]
    assert pages(client, state="deleting") == [[]]


def test_a_token_that_was_tampered_with_or_is_of_another_list_is_refused(
    client: httpx.Client, family: tuple[str, list[str]]
) -> None:
    """S10."""
    prefix = family[0]
    token = client.get("/v1/streams", params={"prefix": prefix, "limit": 2}).json()[
        "next_page_token"
    ]
    middle = len(token) // 2
    turned = token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1 :]
    for bad in (turned, token[:-4], token + "AAAA", "x", "%00", "é", "A" * 4000):
        answer = client.get("/v1/streams", params={"prefix": prefix, "page_token": bad})
        problem = problem_of(answer, 400, "bad-parameter")
        assert problem["errors"][0]["parameter"] == "page_token"
        assert bad not in answer.text.replace('"status"', "") or len(bad) < 3
    for other in ({}, {"prefix": prefix[:-1]}, {"prefix": prefix, "state": "deleting"}):
        answer = client.get("/v1/streams", params={**other, "page_token": token})
        problem_of(answer, 400, "bad-parameter")
    problem_of(
        client.get(f"/v1/streams/{prefix}/consumers?page_token={token}"), 400, "bad-parameter"
    )


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=01",
        "limit=1&limit=1",
        "state=all",
        "state=",
        "prefix=%C3%A9",
        "prefix=a%00",
        "ofset=1",
        "prefix=" + "a" * 129,
    ],
)
def test_a_query_outside_the_contract_is_refused(client: httpx.Client, query: str) -> None:
    assert client.get(f"/v1/streams?{query}").status_code == 400


NAMES = [
    "%2e%2e",
    "a%2fb",
    "%00",
    "a%0d%0aX:1",
    "%D0%B0dmin",
    "a%20b",
    "a*",
    "%7Bx%7D",
    "%ff",
    "-x",
]
PATHS = [
    ("PATCH", "/v1/streams/{}", b"{}"),
    ("DELETE", "/v1/streams/{}", b""),
    ("GET", "/v1/streams/{}/consumers", b""),
    ("GET", "/v1/streams/known/consumers/{}", b""),
    ("GET", "/v1/streams/known/consumers/{}/offset", b""),
    ("PUT", "/v1/streams/known/consumers/{}/offset", b'{"next_offset":0}'),
    ("DELETE", "/v1/streams/known/consumers/{}/offset", b""),
    ("GET", "/v1/operations/{}", b""),
]


@pytest.mark.parametrize("name", NAMES)
def test_names_outside_the_grammar_are_refused_on_every_new_path(
    client: httpx.Client, name: str
) -> None:
    """H1: and nothing comes into being by them."""
    client.put("/v1/streams/known").raise_for_status()
    for method, path, body in PATHS:
        request = client.build_request(
            method,
            "/",
            content=body or None,
            headers={"if-match": "*", "content-type": "application/json"},
        )
        request.url = request.url.copy_with(raw_path=path.format(name).encode())
        answer = client.send(request)
        assert answer.status_code in ({400, 404} if "2f" in name or "oper" in path else {400})
        problem_of(answer, answer.status_code, answer.json()["code"])
    assert client.get("/v1/streams/known/consumers").json()["items"] == []


@pytest.mark.parametrize("operation", ["op_", "op_" + "0" * 32, "op_" + "A" * 32, "x", "op_%00"])
def test_an_operation_that_is_none_is_not_found(client: httpx.Client, operation: str) -> None:
    problem_of(client.get(f"/v1/operations/{operation}"), 404, "operation-not-found")


def test_limits_are_those_that_are_held(client: httpx.Client) -> None:
    limits = client.get("/v1/limits").json()
    name = "n" * limits["stream_name_length"]
    assert client.put(f"/v1/streams/{name}").status_code == 201
    problem_of(client.put(f"/v1/streams/{name}n"), 400, "bad-name")
    stream = new_stream(client)
    value = "x" * limits["record"]["value_bytes"]
    assert stream.post({"value": value}).status_code == 200
    problem_of(stream.post({"value": value + "x"}), 413, "record-too-large")
    low, high = limits["stream"]["fragment_target_bytes"]
    for size, status in ((low - 1, 422), (low, 200), (high, 200), (high + 1, 422)):
        assert patch(stream, {"fragment": {"target_bytes": size}}).status_code == status


def test_a_client_can_ask_what_runs_here_and_who_it_is(client: httpx.Client) -> None:
    running = client.get("/v1/version").json()
    assert running["api"] == "v1"
    assert running["version"][0].isdigit()
    assert client.get("/v1/whoami").json() == {
        "principal": "anonymous",
        "authenticated": False,
        "tenant": "default",
        "scopes": ["*"],
        "expires_at": None,
    }


def test_an_emptied_coordination_store_is_never_taken_for_deleted_streams(tmp_path: Path) -> None:
    """Neither are streams said not to exist, nor are new ones made beside those in the bucket."""
    with (
        running_valkey(tmp_path / "valkey") as valkey,
        AllInOne(tmp_path / "data", {"BOTTOMLESS_COORDINATION_URL": valkey.url}) as server,
        server.client() as client,
    ):
        stream = new_stream(client)
        with another_client(valkey.url) as redis:
            redis.flushall()
        for answer in (
            client.get(stream.path),
            client.put("/v1/streams/other"),
            client.put(stream.path),
            client.delete(stream.path),
            client.get("/v1/streams"),
        ):
            problem = problem_of(answer, 503, "coordination-regressed")
            assert problem["retryable"] is False
        with another_client(valkey.url) as redis:
            assert redis.keys("*other*") == []
