"""Ask the reader service from a worker over HTTP, with the library that botocore uses."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import urllib3

from bottomless.client.address import stream_path
from bottomless.client.credential import Credential
from bottomless.client.problems import error_from_problem
from bottomless.client.transport import QueryValue
from bottomless.errors import Unavailable
from bottomless.model.names import StreamId, StreamName

JSON: Final = "application/json"
_REQUEST_COUNT_MAX: Final = 6
"""Attempts of one request: with the waits between them some six seconds, enough for a restart."""


class Source(NamedTuple):
    """A stream that is read, and the url of the service that is asked for it."""

    url: str
    name: StreamName
    stream_id: StreamId


def ask(
    source: Source, path: str, query: Mapping[str, QueryValue], media_type: str
) -> urllib3.BaseHTTPResponse:
    """GET a path below the stream's own path. A parameter of several values is given several times.

    Raises:
        StoreError: the reader's answer says why.
    """
    fields = [
        (name, one)
        for name, value in query.items()
        for one in (value if isinstance(value, tuple) else (str(value),))
    ]
    return _request(source, "GET", path, media_type, fields=fields)


def ask_json(source: Source, path: str, query: Mapping[str, QueryValue]) -> dict[str, Any]:
    """GET a path below the stream's own path, whose answer is a JSON object.

    Raises:
        Unavailable: the answer is not that of a Bottomless server.
        StoreError: the reader's answer says why.
    """
    members = _json_or_none(ask(source, path, query, JSON).data)
    if not isinstance(members, dict):
        raise Unavailable("the answer is not that of a Bottomless server")
    return members


def send_json(
    source: Source, method: str, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Ask for a change below the stream's own path; an answer without a body is an empty object.

    It is asked for again where the service or its stores are away, so it has to be one that may be made
    twice: of a lease one more than is used runs out by itself.

    Raises:
        Unavailable: the answer is not that of a Bottomless server.
        StoreError: the service's answer says why.
    """
    answer = _request(source, method, path, JSON, json=body, retries=_retries(503, 504))
    members = _json_or_none(answer.data) if answer.data else {}
    if not isinstance(members, dict):
        raise Unavailable("the answer is not that of a Bottomless server")
    return members


def _request(
    source: Source, method: str, path: str, media_type: str, **content: Any
) -> urllib3.BaseHTTPResponse:
    url = f"{source.url}{stream_path(source.name)}/{path}"
    # From the worker's environment: options travel with every task and hold no secret.
    named = {"Accept": media_type, **Credential().headers()}
    if content.get("json") is not None:
        named["Content-Type"] = JSON
    try:
        answer = pool().request(method, url, headers=named, **content)
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable("the service does not answer") from error
    if not 200 <= answer.status < 300:
        raise error_from_problem(answer.status, _json_or_none(answer.data))
    return answer


@cache
def pool() -> urllib3.PoolManager:
    """Make the connections to the service; one pool for each worker."""
    # One a worker process: Spark uses workers again for later tasks.
    timeout = urllib3.Timeout(connect=5, read=60)
    return urllib3.PoolManager(retries=_retries(429, 503, 504), timeout=timeout)


def _retries(*statuses: int) -> urllib3.Retry:
    return urllib3.Retry(
        total=_REQUEST_COUNT_MAX - 1,
        allowed_methods=None,
        backoff_factor=0.2,
        status_forcelist=statuses,
        raise_on_status=False,
        redirect=False,
    )


def _json_or_none(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None
