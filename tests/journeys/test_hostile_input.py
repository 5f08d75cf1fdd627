"""Input outside the contract: a problem that says what to do, and nothing has changed."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.served import PATIENT
from support.server import AllInOne
from support.valkey import another_client, running_valkey

RECORDS = "/v1/streams/safe/records"
JSON = "application/json"
SECRET = "do-not-echo-me"

NAMES = [
    "..",
    ".",
    "%2e%2e",
    "%2e",
    "a%2fb",
    "a%252fb",
    "%00",
    "a%0d%0aX:1",
    "a%0a",
    "%D0%B0dmin",
    "a%20b",
    "con",
    "a%3Fb",
    "a" * 129,
    "amq.x",
    "-x",
    "a*",
    "%7Bx%7D",
    "%ff",
    "__x",
    "internal.x",
]
"""H1."""

BODIES: list[tuple[bytes, int, str]] = [
    (b"", 400, "malformed-json"),
    (b"{", 400, "malformed-json"),
    (b"[]", 422, "validation-failed"),
    (b"[1,]", 400, "malformed-json"),
    (b"1", 422, "validation-failed"),
    (b"{}", 422, "validation-failed"),
    (b'{"records": []}', 422, "validation-failed"),
    (b'{"records": [{}]}', 422, "validation-failed"),
    (b'{"records": [{"value": "a", "json": 1}]}', 422, "validation-failed"),
    (b'{"records": [{"value": 1}]}', 422, "validation-failed"),
    (b'{"records": [{"value": NaN}]}', 400, "malformed-json"),
    (b'{"records": [{"json": Infinity}]}', 400, "malformed-json"),
    (b'{"records": [{"json": 1e400}]}', 422, "number-out-of-range"),
    (b'{"records": [{"json": 123456789012345678901234567890}]}', 422, "number-out-of-range"),
    (b'{"records": [{"value": "\\ud800"}]}', 422, "validation-failed"),
    (b'\xef\xbb\xbf{"records": [{"value": "a"}]}', 400, "malformed-json"),
    (b'{"records": [{"value": "\xff"}]}', 400, "malformed-json"),
    (b'{"records": [], "records": [{"value": "a"}]}', 400, "malformed-json"),
    (b'{"records": [{"value": "a"}, {"value_base64": "AAE"}]}', 422, "validation-failed"),
    (
        b'{"records": [{"value": "a", "do-not-echo-me, for I am no name": 1}]}',
        422,
        "validation-failed",
    ),
    (b'{"records": [{"value": "a", "timestamp": 1}]}', 422, "validation-failed"),
    (b'{"records": [{"json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", 400, "malformed-json"),
]

QUERIES = [
    ("", "bad-parameter"),
    ("offset=1&offset=2", "duplicate-parameter"),
    ("offset=1&ofset=1", "unknown-parameter"),
    ("offset=-1", "bad-offset-spec"),
    ("offset=01", "bad-offset-spec"),
    ("offset=1.0", "bad-offset-spec"),
    ("offset=9007199254740992", "bad-offset-spec"),
    ("offset=tail:x", "bad-offset-spec"),
    ("offset=timestamp:yesterday", "bad-offset-spec"),
    ("offset=first&limit=0", "bad-parameter"),
    ("offset=first&limit=10001", "bad-parameter"),
    ("offset=first&max_wait_ms=30001", "bad-parameter"),
    ("offset=first&limit=%31%30%30%30%30%30", "bad-parameter"),
]


def send(
    server: AllInOne, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Without a client library that would repair what is being tested."""
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    data = answer.read()
    connection.close()
    return answer.status, found, data


def problem_of(answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json", (status, headers, body[:300])
    problem: dict[str, Any] = json.loads(body)
    assert problem["status"] == status
    assert problem["request_id"] == headers["request-id"]
    assert problem["type"] == f"urn:bottomless:problem:{problem['code']}"
    assert SECRET not in body.decode()
    assert "Traceback" not in body.decode()
    assert ".py" not in body.decode()
    return problem


def files_below(directory: Path) -> set[str]:
    # Roots come and go by themselves; streams do not.
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


@pytest.fixture(scope="module")
def coordination(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that a test can look into."""
    with running_valkey(tmp_path_factory.mktemp("hostile-valkey")) as valkey:
        yield valkey.url


def keys_of(coordination: str) -> set[bytes | str]:
    """All keys but those that expire by themselves: what is left out is a lease or a look at one."""
    with another_client(coordination) as client:
        names = client.keys()
        return {name for name in names if client.pttl(name) == -1}


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory, coordination: str) -> Any:
    settings = {**PATIENT, "BOTTOMLESS_COORDINATION_URL": coordination}
    with AllInOne(tmp_path_factory.mktemp("hostile") / "data", settings) as server:
        # What is uploaded meanwhile, or taken up anew after a lapse, would be a change.
        config = b'{"fragment": {"max_age_ms": 86400000}}'
        assert send(server, "PUT", "/v1/streams/safe", config, Content_Type=JSON)[0] == 201
        body = b'{"records": [{"value": "the only one"}]}'
        assert send(server, "POST", RECORDS, body, Content_Type=JSON)[0] == 200
        yield server


@pytest.fixture(autouse=True)
def nothing_changes(safe: AllInOne, coordination: str) -> Any:
    def all_there_is() -> tuple[set[str], set[str], set[bytes | str]]:
        return (
            files_below(safe.objects / "default"),
            files_below(safe.ingest_dir / "streams"),
            keys_of(coordination),
        )

    before = all_there_is()
    yield
    assert all_there_is() == before
    page = json.loads(send(safe, "GET", f"{RECORDS}?offset=first")[2])
    assert [record["value"] for record in page["records"]] == ["the only one"]
    assert page["next_offset"] == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("method", "suffix"), [("PUT", ""), ("POST", "/records"), ("GET", "")])
def test_names_outside_the_grammar_are_refused(
    safe: AllInOne, method: str, suffix: str, name: str
) -> None:
    body = b'{"records": [{"value": "a"}]}' if method == "POST" else None
    headers = {"Content_Type": JSON} if body else {}
    answer = send(safe, method, f"/v1/streams/{name}{suffix}", body, **headers)
    assert answer[0] == 400, answer
    problem = problem_of(answer)
    assert (problem["retryable"], problem["outcome"]) == (False, "none")


@pytest.mark.parametrize(("body", "status", "code"), BODIES)
def test_bodies_outside_the_schema_are_refused(
    safe: AllInOne, body: bytes, status: int, code: str
) -> None:
    answer = send(safe, "POST", RECORDS, body, Content_Type=JSON)
    problem = problem_of(answer)
    assert (answer[0], problem["code"]) == (status, code), problem
    assert problem["outcome"] == "none"


@pytest.mark.parametrize(("query", "code"), QUERIES)
def test_queries_outside_the_contract_are_refused(safe: AllInOne, query: str, code: str) -> None:
    answer = send(safe, "GET", f"{RECORDS}?{query}")
    assert answer[0] == 400
    assert problem_of(answer)["code"] == code


@pytest.mark.parametrize(
    "media_type",
    ["text/plain", "application/json; charset=utf-16", "application/x-www-form-urlencoded", ""],
)
def test_other_content_types_are_refused_and_the_known_ones_named(
    safe: AllInOne, media_type: str
) -> None:
    headers = {"Content_Type": media_type} if media_type else {}
    answer = send(safe, "POST", RECORDS, b"{}", **headers)
    assert problem_of(answer)["code"] == "unsupported-media-type"
    assert "application/json" in answer[1]["accept-post"]


def test_a_compressed_body_is_never_stored_as_it_is(safe: AllInOne) -> None:
    for encoding, status in (("gzip", 400), ("br", 415)):
        answer = send(
            safe, "POST", RECORDS, b"\x1f\x8b", Content_Type=JSON, Content_Encoding=encoding
        )
        assert answer[0] == status
        assert problem_of(answer)["outcome"] == "none"


def test_a_damaged_arrow_stream_is_refused(safe: AllInOne) -> None:
    media_type = "application/vnd.apache.arrow.stream"
    answer = send(safe, "POST", RECORDS, b"\xff\xff\xff\xff" + b"x" * 50, Content_Type=media_type)
    assert answer[0] in {400, 422}
    assert problem_of(answer)["outcome"] == "none"


def test_too_many_and_too_large_records_are_refused(safe: AllInOne) -> None:
    large = json.dumps({"records": [{"value": "x" * (1024 * 1024 + 1)}]}).encode()
    many = json.dumps({"records": [{"value": ""}] * 10_001}).encode()
    huge = b'{"records": [{"value": "' + b"x" * (8 * 1024 * 1024) + b'"}]}'
    wanted = [(large, "record-too-large"), (many, "batch-too-large"), (huge, "body-too-large")]
    for body, code in wanted:
        answer = send(safe, "POST", RECORDS, body, Content_Type=JSON)
        assert answer[0] == 413
        assert problem_of(answer)["code"] == code


def test_an_unknown_stream_is_named_as_such(safe: AllInOne) -> None:
    for method, path in [
        ("GET", ""),
        ("GET", "/records?offset=first"),
        ("GET", "/offsets"),
        ("GET", "/fragments"),
    ]:
        answer = send(safe, method, f"/v1/streams/nobody{path}")
        assert answer[0] == 404
        assert problem_of(answer)["code"] == "stream-not-found"


@pytest.mark.parametrize(
    "path",
    ["//", "/v1/nothing", "/v1/streams/safe/", "/metrics", "/docs/nothing", "/internal/v1/commits"],
)
def test_what_is_not_public_does_not_exist(safe: AllInOne, path: str) -> None:
    answer = send(safe, "GET", path)
    assert answer[0] == 404
    assert problem_of(answer)["code"] == "not-found"


def test_other_methods_are_refused_with_those_allowed(safe: AllInOne) -> None:
    answer = send(safe, "PUT", RECORDS)
    assert answer[0] == 405
    assert problem_of(answer)["code"] == "method-not-allowed"
    assert {"GET", "POST"} <= {word.strip() for word in answer[1]["allow"].split(",")}


def test_a_configuration_outside_the_schema_is_refused(safe: AllInOne) -> None:
    wrong = [
        b'{"ttl": 1}',
        b'{"fragment": {"target_bytes": 0}}',
        b'{"retention": {"max_age": "0D"}}',
    ]
    for body in wrong:
        answer = send(safe, "PUT", "/v1/streams/other", body, Content_Type=JSON)
        assert answer[0] == 422
        assert problem_of(answer)["code"] == "validation-failed"
