"""Ask ingest from a worker, or from the driver: stage bodies, commit them, look at producers.

All of it can be repeated after any failure: of a body that is staged twice one copy expires, and a
commit is told from its repeat by its number.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import urllib3

from bottomless.client.address import check_reference, stream_path
from bottomless.client.credential import Credential
from bottomless.client.problems import error_from_problem
from bottomless.errors import Code, InvalidRequest, NotFound, Outcome, Unavailable
from bottomless.model.names import StreamName
from bottomless.spark.sink_options import NO_SUPER_STREAM

FRAMES: Final = "application/vnd.bottomless.batches"
STAGED: Final = "application/vnd.bottomless.staged+json"
JSON: Final = "application/json"
_ATTEMPT_COUNT_MAX: Final = 9
"""With the waits between them some fifty seconds, enough for a restart of the service."""
_PAGE_COUNT: Final = 1000


class Target(NamedTuple):
    """A stream that is written, and the url of the service that is asked for it."""

    url: str
    stream: StreamName


class Committed(NamedTuple):
    """The answer to a commit."""

    record_count: int
    """Records that this commit stored; 0 for a repeat."""
    replayed: bool


def stage(target: Target, body: bytes) -> str:
    """Stage one body; returns the id by which to commit it.

    Raises:
        InvalidRequest: a super stream has the name.
        StoreError: ingest's answer says why.
    """
    answer = _ask(target, "POST", "staged", body=body, headers={"Content-Type": FRAMES})
    return str(answer["staged_id"])


def commit(target: Target, producer_id: str, number: int, staged_ids: Sequence[str]) -> Committed:
    """Append staged bodies in order, unless this number of the producer is stored already.

    Raises:
        StoreError: ingest's answer says why; repeating the commit is safe.
    """
    headers = {"Content-Type": STAGED, "Producer-Id": producer_id, "Txn-Number": str(number)}
    body = json.dumps({"staged": [*staged_ids]}).encode()
    answer = _ask(target, "POST", "records", body=body, headers=headers)
    return Committed(int(answer["count"]), not answer["count"])


def is_known(target: Target, producer_id: str) -> bool:
    """Tell whether the stream knows a producer."""
    return last_number(target, producer_id) is not None


def last_number(target: Target, producer_id: str) -> int | None:
    """Ask for the last number of a producer; None if the stream does not know the producer."""
    try:
        known = _ask(target, "GET", f"producers/{check_reference(producer_id)}")
    except NotFound as error:
        if error.code is Code.PRODUCER_NOT_FOUND:
            return None
        raise
    return int(known["last_seq"] or 0)


def producers(target: Target) -> Iterator[str]:
    """List the names of all producers that the stream knows."""
    query: dict[str, str] = {"limit": str(_PAGE_COUNT)}
    while True:
        page = _ask(target, "GET", "producers", query=query)
        yield from (str(item["producer_id"]) for item in page["items"])
        if page["next_page_token"] is None:
            return
        query["page_token"] = str(page["next_page_token"])


def _ask(
    target: Target,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    url = f"{target.url}{stream_path(target.stream)}/{path}"
    # From the worker's environment: options travel with every task and hold no secret.
    named = {"Accept": JSON, **(headers or {}), **Credential().headers()}
    try:
        answer = _pool().request(method, url, body=body, headers=named, fields=query)
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable("ingest does not answer", outcome=Outcome.UNKNOWN) from error
    try:
        members = json.loads(answer.data)
    except ValueError:
        members = None
    if answer.status >= 300:
        refused = error_from_problem(answer.status, members)
        if refused.code is Code.STREAM_NOT_FOUND and "super_id" in refused.facts:
            raise InvalidRequest(NO_SUPER_STREAM)
        raise refused
    if not isinstance(members, dict):
        raise Unavailable("the answer is not that of a Bottomless server", outcome=Outcome.UNKNOWN)
    return members


@cache
def _pool() -> urllib3.PoolManager:
    # One a worker process: Spark uses workers again for later tasks.
    retries = urllib3.Retry(
        total=_ATTEMPT_COUNT_MAX - 1,
        backoff_factor=0.2,
        backoff_max=10,
        allowed_methods=None,
        status_forcelist=(429, 503, 504),
        raise_on_status=False,
        redirect=False,
    )
    return urllib3.PoolManager(retries=retries, timeout=urllib3.Timeout(connect=5, read=120))
