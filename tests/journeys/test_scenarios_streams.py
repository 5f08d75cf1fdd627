"""Streams over HTTP, and what all answers have in common: scenarios S1 to S15, H11, H25."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.contract import Stream, new_stream, problem_of
from support.served import Served

PARALLEL = 50
MIB = 1024 * 1024


def test_a_new_stream_is_created_with_defaults(client: httpx.Client) -> None:
    """S1."""
    answer = client.put("/v1/streams/brand-new")
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/streams/brand-new"
    stream = answer.json()
    assert stream["name"] == "brand-new"
    assert uuid.UUID(stream["stream_id"]).version == 7
    assert answer.headers["stream-id"] == stream["stream_id"]
    assert answer.headers["etag"] == f'"{stream["stream_id"]}.c1"'
    assert answer.headers["stream-first-offset"] == answer.headers["stream-next-offset"] == "0"
    assert stream["state"] == "active"
    assert stream["config_version"] == 1
    assert stream["created_at"].endswith("Z")
    assert set(stream["retention"]) >= {"max_age", "max_age_seconds", "max_bytes", "source"}
    assert stream["fragment"]["target_bytes"] >= 65_536
    assert stream["fragment"]["max_age_ms"] >= 100
    assert stream["labels"] == {}
    assert stream["offsets"] == {"first": 0, "committed": None, "next": 0}
    assert (stream["size_bytes"], stream["fragment_count"]) == (0, 0)


@pytest.mark.parametrize("config", [None, {}, {"labels": {"team": "billing"}}])
def test_the_same_put_again_finds_the_same_stream(
    client: httpx.Client, config: dict[str, Any] | None
) -> None:
    """S2: safe for tools that repeat themselves."""
    path = f"/v1/streams/again-{uuid.uuid4().hex}"
    first, second = (client.put(path, json=config) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert first.headers["etag"] == second.headers["etag"]


def test_an_empty_body_and_an_empty_object_mean_the_same(client: httpx.Client) -> None:
    """S2: the defaults are what both ask for."""
    assert client.put("/v1/streams/empty-body").status_code == 201
    assert client.put("/v1/streams/empty-body", json={}).status_code == 200


def test_the_same_settings_spelt_out_are_the_same_settings(client: httpx.Client) -> None:
    """S2: what a stream says about itself can be asked for again."""
    made = client.put("/v1/streams/spelt", json={"retention": {"max_age": "7D"}}).json()
    config = {"retention": {"max_age": "7D"}, "fragment": made["fragment"]}
    assert client.put("/v1/streams/spelt", json=config).status_code == 200


def test_another_configuration_is_a_conflict_that_names_the_differences(
    client: httpx.Client,
) -> None:
    """S3."""
    path = "/v1/streams/differing"
    client.put(path, json={"retention": {"max_age": "7D"}}).raise_for_status()
    answer = client.put(path, json={"retention": {"max_age": "8D"}})
    problem = problem_of(answer, 409, "stream-exists")
    assert "max_age" in str(problem["differences"])
    assert (problem["retryable"], problem["outcome"]) == (False, "none")
    assert client.get(path).json()["retention"]["max_age"] == "7D"


def test_of_many_creations_at_once_exactly_one_creates(running: Served) -> None:
    """S4."""

    def create(_: int) -> httpx.Response:
        with running.client() as mine:
            return mine.put("/v1/streams/crowded", json={"labels": {"by": "all"}})

    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = list(pool.map(create, range(PARALLEL)))
    assert sorted(answer.status_code for answer in answers) == [200] * (PARALLEL - 1) + [201]
    assert len({answer.json()["stream_id"] for answer in answers}) == 1
    assert len({answer.headers["etag"] for answer in answers}) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1M", 2_592_000),
        ("1m", 60),
        ("7D", 604_800),
        ("24h", 86_400),
        ("30s", 30),
        ("P7D", 604_800),
    ],
)
def test_a_duration_comes_back_as_written_and_in_seconds(
    client: httpx.Client, text: str, seconds: int
) -> None:
    """S7: a month is not a minute."""
    stream = new_stream(client, {"retention": {"max_age": text}})
    retention = client.get(stream.path).json()["retention"]
    assert (retention["max_age"], retention["max_age_seconds"]) == (text, seconds)
    assert retention["source"] == "stream"


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"fragment": {"size": 1}}, "/fragment"),
        ({"fragment": {"target_bytes": 0}}, "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": -1}}, "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": 65_535}}, "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": 1024 * MIB + 1}}, "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": "65536"}}, "/fragment/target_bytes"),
        ({"fragment": {"target_bytes": True}}, "/fragment/target_bytes"),
        ({"fragment": {"max_age_ms": 99}}, "/fragment/max_age_ms"),
        ({"fragment": {"max_age_ms": 86_400_001}}, "/fragment/max_age_ms"),
        ({"fragment": []}, "/fragment"),
        ({"retention": {"max_bytes": -1}}, "/retention/max_bytes"),
        ({"retention": {"max_age": 7}}, "/retention/max_age"),
        ({"retention": {"max_age": "-1D"}}, "/retention/max_age"),
        ({"retention": {"max_age": "5 fortnights"}}, "/retention/max_age"),
        ({"retention": {"max_age": "1.5h"}}, "/retention/max_age"),
        ({"retention": {"max_age": ""}}, "/retention/max_age"),
        ({"retention": {"max_age": "9999999999999Y"}}, "/retention/max_age"),
        ({"labels": {"team": 1}}, "/labels"),
        ({"ttl": 1}, ""),
        ({"priority": 1}, ""),
        ({"stream_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11"}, ""),
        ({"tenant": "someone"}, ""),
    ],
)
def test_a_configuration_outside_the_schema_creates_nothing(
    client: httpx.Client, config: dict[str, Any], pointer: str
) -> None:
    """S8, S15, and the durations of S6; what a user named is not echoed, its parent is."""
    answer = client.put("/v1/streams/never", json=config)
    problem = problem_of(answer, 422, "validation-failed")
    assert [fault["pointer"] for fault in problem["errors"]] == [pointer]
    problem_of(client.get("/v1/streams/never"), 404, "stream-not-found")


@pytest.mark.parametrize(
    "fragment",
    [
        {"target_bytes": 65_536},
        {"target_bytes": 1024 * MIB},
        {"max_age_ms": 100},
        {"max_age_ms": 86_400_000},
    ],
)
def test_the_limits_themselves_are_allowed(client: httpx.Client, fragment: dict[str, int]) -> None:
    """S8, from the other side."""
    found = client.get(new_stream(client, {"fragment": fragment}).path).json()["fragment"]
    assert found.items() >= fragment.items()


@pytest.mark.parametrize(
    "body", [b"{", b'{"labels": {"a": "1", "a": "2"}}', b"\xef\xbb\xbf{}", b"NaN"]
)
def test_an_unreadable_configuration_creates_nothing(client: httpx.Client, body: bytes) -> None:
    """S8: unreadable is not the same as wrong."""
    answer = client.put(
        "/v1/streams/never", content=body, headers={"content-type": "application/json"}
    )
    problem_of(answer, 400, "malformed-json")
    assert client.get("/v1/streams/never").status_code == 404


def test_a_configuration_in_another_type_creates_nothing(client: httpx.Client) -> None:
    answer = client.put("/v1/streams/never", content=b"a=1", headers={"content-type": "text/plain"})
    problem_of(answer, 415, "unsupported-media-type")
    assert client.get("/v1/streams/never").status_code == 404


@pytest.mark.parametrize("name", ["a", "0", "a" * 128, "A.b_c-d", "amqx", "a__b", "nul.x"])
def test_names_of_the_grammar_are_taken(running: Served, client: httpx.Client, name: str) -> None:
    """H1: and none of them becomes the name of a file."""
    assert client.put(f"/v1/streams/{name}").status_code == 201
    assert client.get(f"/v1/streams/{name}").json()["name"] == name
    assert Stream(client, name).append("a")["first_offset"] == 0
    if len(name) > 1:
        assert not list(running.data_dir.rglob(f"{name}*"))


@pytest.mark.parametrize("name", ["a..b", "a..", "amq.", "internal.a", "__", "_a", ".a"])
def test_names_that_come_near_the_grammar_are_refused(client: httpx.Client, name: str) -> None:
    problem = problem_of(client.put(f"/v1/streams/{name}"), 400, "bad-name")
    assert problem["retryable"] is False


def test_names_differ_by_case(client: httpx.Client) -> None:
    upper, lower = (client.put(f"/v1/streams/{name}").json() for name in ("CaSe", "case"))
    assert upper["stream_id"] != lower["stream_id"]


@pytest.mark.parametrize("filled", [False, True])
def test_head_says_what_get_says_without_a_body(client: httpx.Client, filled: bool) -> None:
    """S14."""
    stream = new_stream(client)
    if filled:
        stream.append("a", "b")
    told, asked = client.head(stream.path), client.get(stream.path)
    assert (told.status_code, told.content) == (200, b"")
    different = {"date", "request-id"}
    assert {name: value for name, value in told.headers.items() if name not in different} == {
        name: value for name, value in asked.headers.items() if name not in different
    }


def test_head_of_an_unknown_stream_has_the_status_alone(client: httpx.Client) -> None:
    """S14."""
    answer = client.head("/v1/streams/nobody")
    assert (answer.status_code, answer.content) == (404, b"")


def test_who_knows_the_description_is_not_sent_it_again(client: httpx.Client) -> None:
    path = new_stream(client).path
    etag = client.get(path).headers["etag"]
    for condition in (etag, f"W/{etag}", "*", f'"other", {etag}'):
        answer = client.get(path, headers={"if-none-match": condition})
        assert (answer.status_code, answer.content) == (304, b""), condition
        assert answer.headers["etag"] == etag
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200


def test_a_description_follows_its_stream(client: httpx.Client) -> None:
    stream = new_stream(client)
    stream.append("a", "b", "c")
    offsets = client.get(stream.path).json()["offsets"]
    assert offsets == {"first": 0, "committed": 2, "next": 3}


@pytest.mark.parametrize(
    ("method", "suffix"),
    [
        ("GET", ""),
        ("PUT", ""),
        ("POST", "/records"),
        ("GET", "/records?offset=first"),
        ("GET", "/offsets"),
        ("GET", "/fragments"),
    ],
)
def test_every_answer_about_a_stream_names_the_request_and_the_stream(
    client: httpx.Client, method: str, suffix: str
) -> None:
    stream = new_stream(client)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"records": [{"value": "a"}]} if method == "POST" else None
    answers = [
        client.request(method, stream.path + suffix, json=body, headers={"traceparent": trace})
        for _ in range(2)
    ]
    assert len({answer.headers["request-id"] for answer in answers}) == 2
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["stream-id"] == client.get(stream.path).json()["stream_id"]
        assert answer.headers["stream-next-offset"] in {"0", "1", "2"}
        assert answer.headers["traceparent"][:35] == trace[:35]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/livez", 200),
        ("/readyz", 200),
        ("/openapi.json", 200),
        ("/v1/none", 404),
        ("/readyz/", 404),
    ],
)
def test_every_other_answer_names_the_request(client: httpx.Client, path: str, status: int) -> None:
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_readiness_can_be_asked_about_dependencies(client: httpx.Client) -> None:
    plain, verbose = client.get("/readyz"), client.get("/readyz?verbose=1")
    assert (plain.status_code, verbose.status_code) == (200, 200)
    assert len(verbose.json()) > len(plain.json())


def test_the_machine_readable_contract_is_served(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    served = {(method, path.split("/")[-1]) for path, item in paths.items() for method in item}
    assert served >= {("post", "records"), ("get", "records"), ("get", "offsets")}
    assert served >= {("get", "fragments")}


@pytest.mark.parametrize(
    "path",
    ["/v1/streams/s?prefix=a", "/v1/streams/s?x", "/v1/streams/s?limit=1"],
)
def test_a_parameter_that_is_not_known_is_refused(client: httpx.Client, path: str) -> None:
    client.put("/v1/streams/s")
    problem = problem_of(client.get(path), 400, "unknown-parameter")
    assert problem["errors"][0]["parameter"] in path


def test_a_url_over_eight_kib_is_refused(client: httpx.Client) -> None:
    """H11: as a problem like any other."""
    answer = client.get("/v1/streams/s/records?offset=" + "1" * 8192)
    problem = problem_of(answer, 414, "uri-too-long")
    assert problem["outcome"] == "none"


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/redoc",
        "/internal/v1/streams",
        "/internal/v1/streams/s/records",
        "/v1/../internal/v1/commits",
        "//internal/v1/commits",
        "/internal%2fv1%2fcommits",
    ],
)
def test_the_internal_surface_is_not_on_the_public_listener(
    client: httpx.Client, path: str
) -> None:
    """H25."""
    answer = client.build_request("GET", "/")
    answer.url = answer.url.copy_with(raw_path=path.encode())
    problem_of(client.send(answer), 404, "not-found")
