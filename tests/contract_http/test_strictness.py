"""Every operation of the contract against input that is nearly right: refused, and nothing changed.

The operations come from openapi/*.yaml, so one that is added is swept too; what a good request
of it looks like stands in samples.py, and each test spoils one thing of it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from support.contract import JSON, Answer, problem_of
from support.documents import Documented
from support.server import AllInOne

from contract_http.raw import send
from contract_http.samples import OPERATIONS, Sample, sample
from contract_http.seeded import STREAMS, Known

HEALTH: Final = ("/livez", "/readyz")
INTEGERS: Final = ("%2B1", "01", "1.0", "%D9%A1", "1_0", "%201", "-0", "0x1", "1e0", "", "9" * 30)
"""What some language reads as an integer, percent-encoded; the fourth is an Arabic-Indic one."""

UNREADABLE: Final[dict[str, bytes]] = {
    "cut off": b'{"a": ',
    "with a byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": [-Infinity]}',
    "a member twice": b'{"a": 1, "a": 1}',
    "a member twice at depth": b'{"a": {"b": [{"c": 1, "c": 2}]}}',
    "the same member in two spellings": b'{"a": 1, "\\u0061": 1}',
    "more behind it": b"{} {}",
    "a comment": b"{} // and so on",
    "single quotes": b"{'a': 1}",
    "a comma too many": b'{"a": [1,]}',
    "a bare control character": b'{"a": "\x01"}',
}
DEEP: Final = (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
UNFIT: Final[dict[str, bytes]] = {
    "a list": b"[]",
    "a text": b'"a"',
    "a number": b"1",
    "true": b"true",
    "null": b"null",
    "a number that reads as infinity": b'{"a": 1e400}',
    "an integer beyond 64 bits": b'{"a": 18446744073709551616}',
    "a lone surrogate": b'{"a": "\\ud800"}',
    "a lone surrogate as a name": b'{"\\udfff": 1}',
}
MEDIA_TYPES: Final = (
    "text/plain",
    "application/jsonx",
    "application",
    "application/json, text/plain",
    "application/json; charset=utf-16",
    "application/json; charset=latin-1",
    "application/json; boundary=x",
    "application/x-www-form-urlencoded",
    "",
)

_AGE = "lag_seconds"

every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
with_json = pytest.mark.parametrize(
    "operation",
    [each for each in OPERATIONS if JSON in each.media_types],
    ids=lambda each: each.name,
)


def state(client: httpx.Client) -> dict[str, Any]:
    """All that a request of these could have changed."""
    asked = [
        "/v1/streams",
        "/v1/streams?state=deleting",
        *(f"/v1/super-streams{rest}" for rest in ("", "/events", "/events/offsets")),
        *(
            f"/v1/streams/{name}{rest}"
            for name in STREAMS
            for rest in ("", "/records?offset=first", "/consumers", "/producers", "/fragments")
        ),
    ]
    return {path: _without_ages(client.get(path).json()) for path in asked}


def _without_ages(value: Any) -> Any:
    """An answer without what becomes larger by itself."""
    match value:
        case dict():
            return {name: _without_ages(one) for name, one in value.items() if name != _AGE}
        case list():
            return [_without_ages(one) for one in value]
    return value


@pytest.fixture(scope="module")
def before(client: httpx.Client, known: Known) -> dict[str, Any]:
    """The state before all tests here."""
    return state(client)


@pytest.fixture(scope="module")
def last_of_each(request: pytest.FixtureRequest) -> set[str]:
    """The last case of each test here, with which the state is asked for."""
    here = [item for item in request.session.items if item.path == request.path]
    return set({item.name.partition("[")[0]: item.nodeid for item in here}.values())


@pytest.fixture(autouse=True)
def nothing_changes(
    request: pytest.FixtureRequest,
    client: httpx.Client,
    before: dict[str, Any],
    last_of_each: set[str],
) -> Iterator[None]:
    """Asked once for all cases of a test, which together ask less than this does."""
    yield
    if request.node.nodeid in last_of_each:
        assert state(client) == before


def refused(answer: Answer, status: int, code: str, sample: Sample) -> None:
    if sample.method == "HEAD":
        assert (answer.status, answer.body) == (status, b"")
        return
    problem = problem_of(answer, status, code)
    if "outcome" in problem:
        assert problem["outcome"] == "none"


def integer_parameters(operation: Documented, place: str) -> list[str]:
    return [
        parameter["name"]
        for parameter in operation.parameters
        if parameter["in"] == place and parameter["schema"].get("type") == "integer"
    ]


def good_value(parameter: dict[str, Any], known: Known) -> str:
    """A value of a query parameter that is taken, so that only its repetition is at fault."""
    schema = parameter["schema"]
    if parameter["name"] == "expect_stream_id":
        return str(known["stream_ids"][0])
    if parameter["name"] == "group":
        return "0" * 20 + "-" + "0" * 32
    if parameter["name"] in ("key", "event_time"):
        return "/at"
    if parameter["name"] == "key_base64":
        return "AA=="
    if schema.get("type") == "boolean":
        return "true"
    if schema.get("type") == "array":
        # Several stand with commas between them; one is enough.
        schema = schema["items"]
    if "enum" in schema:
        return str(schema["enum"][0])
    return str(schema.get("minimum", schema.get("examples", ["1"])[0]))


@every_operation
def test_parameters_that_are_unknown_or_given_twice(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    answer = send(server.url, good.method, good.target("ofset=1"), good.headers_with(), good.body)
    refused(answer, 400, "unknown-parameter", good)
    answer = send(server.url, good.method, good.target("%FF=1"), good.headers_with(), good.body)
    assert answer.status == 400
    for parameter in operation.parameters:
        if parameter["in"] != "query":
            continue
        pair = f"{parameter['name']}={good_value(parameter, known)}"
        repeated = "maxItems" in parameter["schema"] and parameter["explode"]
        count = parameter["schema"]["maxItems"] + 1 if repeated else 2
        target = f"{good.path}?" + "&".join([pair] * count)
        answer = send(server.url, good.method, target, good.headers_with(), good.body)
        refused(answer, 400, "bad-parameter" if repeated else "duplicate-parameter", good)


@every_operation
def test_integers_that_are_only_nearly_some(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    for name in integer_parameters(operation, "query"):
        for text in INTEGERS:
            answer = send(server.url, good.method, good.target(f"{name}={text}"))
            refused(answer, 400, "bad-parameter", good)
    for name in integer_parameters(operation, "path"):
        for text in filter(None, INTEGERS):
            path = operation.path.replace(f"{{{name}}}", text).format_map({"s": STREAMS[0]})
            assert send(server.url, good.method, path).status == 400, text
    for name in integer_parameters(operation, "header"):
        for value in ("+1", "01", "1.0", "1_0", "-0", "0x1", "1e0", "9" * 30, "\xd9\xa1"):
            headers = [*good.headers_with(), ("Producer-Id", "sweeper"), (name, value)]
            answer = send(server.url, good.method, good.target(), headers, good.body)
            refused(answer, 400, "bad-header", good)


@with_json
def test_bodies_that_are_nearly_json(server: AllInOne, known: Known, operation: Documented) -> None:
    good = sample(operation, known)
    for what, body in UNREADABLE.items():
        answer = send(server.url, good.method, good.target(), good.headers_with(), body)
        assert answer.status == 400, (what, answer.body)
        refused(answer, 400, "malformed-json", good)
    for body in DEEP:
        answer = send(server.url, good.method, good.target(), good.headers_with(), body)
        assert answer.json()["code"] in ("malformed-json", "body-too-large")
        refused(answer, answer.status, answer.json()["code"], good)
    if operation.body_required:
        answer = send(server.url, good.method, good.target(), good.headers_with(), b"")
        refused(answer, 400, "malformed-json", good)


@with_json
def test_bodies_that_do_not_fit_their_schema(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    unknown = json.dumps({**good.value, "ofset": 1}).encode()
    for what, body in {**UNFIT, "an unknown member": unknown}.items():
        answer = send(server.url, good.method, good.target(), good.headers_with(), body)
        assert answer.status == 422, (what, answer.body)
        assert answer.json()["code"] in ("validation-failed", "number-out-of-range"), what
        refused(answer, 422, answer.json()["code"], good)


@with_json
def test_media_types_and_encodings_that_are_not_taken(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    target, others = good.target(), good.headers
    for media_type in MEDIA_TYPES:
        headers = [*others, ("Content-Type", media_type)]
        answer = send(server.url, good.method, target, headers, good.body)
        refused(answer, 415, "unsupported-media-type", good)
        assert good.media_type in answer.headers["accept-post"]
    answer = send(server.url, good.method, target, others, good.body)
    refused(answer, 415, "unsupported-media-type", good)
    twice = good.headers_with(("Content-Type", good.media_type))
    answer = send(server.url, good.method, target, twice, good.body)
    refused(answer, 400, "bad-header", good)
    # That is how it may be spelled; the body is at fault alone.
    spelled = [*others, ("Content-Type", f'{good.media_type.upper()} ; Charset="UTF-8"')]
    answer = send(server.url, good.method, target, spelled, b"{")
    refused(answer, 400, "malformed-json", good)
    for encoding in ("br", "gzip, gzip", "deflate", "x"):
        headers = good.headers_with(("Content-Encoding", encoding))
        answer = send(server.url, good.method, target, headers, good.body)
        refused(answer, 415, "unsupported-media-type", good)
        assert "identity" in answer.headers["accept-encoding"]
    if operation.operation_id not in ("append_records", "append_to_super_stream"):
        headers = good.headers_with(("Content-Encoding", "gzip"))
        answer = send(server.url, good.method, target, headers, good.body)
        refused(answer, 415, "unsupported-media-type", good)


@every_operation
def test_answers_that_are_asked_for_in_another_form(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    """Health is told whatever is accepted, and what has no body has no form."""
    good = sample(operation, known)
    accept = ("Accept", "image/png, application/xml;q=0.9")
    if operation.path in HEALTH:
        assert send(server.url, good.method, good.path, [accept]).status == 200
    elif any(each.startswith("2") and each != "204" for each in operation.statuses):
        headers = good.headers_with(accept)
        answer = send(server.url, good.method, good.target(), headers, good.body)
        refused(answer, 406, "not-acceptable", good)


@every_operation
def test_paths_and_methods_that_are_not_served(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    answer = send(server.url, good.method, f"{good.path}/", good.headers_with(), good.body)
    refused(answer, 404, "not-found", good)
    served = {each.method.upper() for each in OPERATIONS if each.path == operation.path}
    for method in {"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE"} - served:
        answer = send(server.url, method, good.path)
        assert answer.status == 405, method
        assert {word.strip() for word in answer.headers["allow"].split(",")} == served
        if method != "HEAD":
            assert problem_of(answer, 405, "method-not-allowed")["outcome"] == "none"
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    answer = send(server.url, "BREW", good.path)
    assert answer.status in (400, 405)


@every_operation
def test_control_characters_in_a_path(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    good = sample(operation, known)
    parts = [each["name"] for each in operation.parameters if each["in"] == "path"]
    for part in parts:
        for text in (
            "a%00b",
            "a%0d%0aX-Evil:%201",
            "a%0a",
            "%2e%2e",
            "%ff",
            "a%20b",
            "%F0%9F%98%80",
        ):
            # With the other parts as they should be.
            path = operation.path.replace(f"{{{part}}}", text).format_map(
                {each: sample_part(good, operation, each) for each in parts}
            )
            answer = send(server.url, good.method, path, good.headers_with(), good.body)
            # A lease that cannot be is given back as one that is gone.
            gone = operation.operation_id == "give_lease_back" and part == "lease_id"
            if gone and answer.status == 204:
                continue
            assert answer.status in (400, 404), (path, answer.body)
            assert "x-evil" not in answer.headers
            if good.method != "HEAD":
                problem_of(answer, answer.status, answer.json()["code"])
    for text in ("\0", "\x7f\x01", "a\tb"):
        answer = send(server.url, good.method, good.path + text, good.headers_with(), good.body)
        assert answer.status in (400, 404), repr(text)


@every_operation
def test_no_slash_of_a_path_may_be_encoded(
    server: AllInOne, known: Known, operation: Documented
) -> None:
    """D1: what was meant for one stream was done with another, by another operation."""
    good = sample(operation, known)
    places = [place for place, letter in enumerate(good.path) if letter == "/"]
    for place in places[2:]:
        for slash in ("%2F", "%2f"):
            path = f"{good.path[:place]}{slash}{good.path[place + 1 :]}"
            refused(
                send(server.url, good.method, path, good.headers_with(), good.body),
                400,
                "bad-name",
                good,
            )


def sample_part(good: Sample, operation: Documented, part: str) -> str:
    """What stands in a sample's path for a part of its template."""
    place = operation.path.split("/").index(f"{{{part}}}")
    return good.path.split("/")[place]
