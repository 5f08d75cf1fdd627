"""What every answer owes its reader, and a stream to try things on: known from the contract alone."""

import http.client
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from support.server import AllInOne
from support.waiting import until

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
PROBLEM = "application/problem+json"
QUICK = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
"""The smallest fragments there are, cut as early as it goes."""
WITHOUT_OUTCOME = {410, 416, 502}
"""Answers to reads only, where nothing could have happened."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Answer:
    """What came back, without a client library that would repair it."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Stream:
    """A stream of its own, so that tests can share a server."""

    client: httpx.Client
    name: str

    @property
    def path(self) -> str:
        return f"/v1/streams/{self.name}"

    @property
    def records(self) -> str:
        return f"{self.path}/records"

    def post(self, *records: Any) -> httpx.Response:
        return self.client.post(self.records, json={"records": list(records)})

    def append(self, *values: str) -> dict[str, Any]:
        answer = _once_taken(lambda: self.post(*({"value": value} for value in values)))
        assert answer.status_code == 200, answer.text
        acknowledged: dict[str, Any] = answer.json()
        return acknowledged

    def get(self, offset: str | int = "first", **parameters: Any) -> httpx.Response:
        return self.client.get(self.records, params={"offset": offset, **parameters})

    def answer(self, offset: str | int = "first", **parameters: Any) -> httpx.Response:
        """An answer that is a page."""
        return _successful(lambda: self.get(offset, **parameters))

    def page(self, offset: str | int = "first", **parameters: Any) -> dict[str, Any]:
        page: dict[str, Any] = self.answer(offset, **parameters).json()
        return page

    def bounds(self) -> dict[str, Any]:
        answer = _successful(lambda: self.client.get(f"{self.path}/offsets"))
        bounds: dict[str, Any] = answer.json()
        return bounds

    def next_offset(self) -> int:
        return int(self.bounds()["next_offset"])

    def uploaded(self) -> bool:
        bounds = self.bounds()
        return bool(bounds["object_store_next_offset"] == bounds["next_offset"])

    def wait_uploaded(self) -> None:
        until(self.uploaded, what=f"all of {self.name} in object storage")


def _successful(get: Callable[[], httpx.Response]) -> httpx.Response:
    """What a GET is answered with once the server can say it.

    A machine that is too busy lets leases lapse, and then it is a 503 for a while, which every
    client asks again after.
    """

    def ask() -> httpx.Response | None:
        answer = get()
        return None if answer.status_code == 503 else answer

    answer = until(ask, what="an answer other than 503")
    assert answer.status_code == 200, answer.text
    return answer


def _once_taken(send: Callable[[], httpx.Response]) -> httpx.Response:
    """The answer to an append that was not refused for now, which every client sends again after."""

    def taken() -> httpx.Response | None:
        answer = send()
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            assert answer.json()["outcome"] == "none", answer.text
            return None
        return answer

    return until(taken, what="an append")


def new_stream(client: httpx.Client, config: Mapping[str, Any] | None = None) -> Stream:
    stream = Stream(client, f"scenario-{next(_numbers)}")
    created = client.put(stream.path, json=dict(config or {}))
    assert created.status_code == 201, created.text
    return stream


def connect(server: AllInOne) -> http.client.HTTPConnection:
    where = urlsplit(server.url)
    return http.client.HTTPConnection(where.hostname or "", where.port, timeout=240)


def received(answer: http.client.HTTPResponse) -> Answer:
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, headers, answer.read())


def problem_of(answer: httpx.Response | Answer, status: int, code: str) -> dict[str, Any]:
    """The problem in an answer, after what all problems have in common was checked."""
    found = answer.status_code if isinstance(answer, httpx.Response) else answer.status
    assert answer.headers["content-type"] == PROBLEM, (found, answer.headers)
    problem: dict[str, Any] = answer.json()
    assert (found, problem["code"]) == (status, code), problem
    assert problem["status"] == status
    assert problem["type"] == f"urn:bottomless:problem:{code}"
    assert problem["title"]
    assert problem["request_id"] == answer.headers["request-id"]
    assert isinstance(problem["retryable"], bool)
    if status not in WITHOUT_OUTCOME:
        assert problem["outcome"] in {"none", "committed", "unknown"}
    return problem


def pointers(problem: Mapping[str, Any]) -> list[str]:
    return [fault.get("pointer", "") for fault in problem["errors"]]


def first_offset_once_taken(append: Callable[[], httpx.Response]) -> int:
    """The offset of the first record, once a node may take them; until then nothing happened."""
    answer = _once_taken(append)
    assert answer.status_code == httpx.codes.OK, answer.text
    return int(answer.json()["first_offset"])
