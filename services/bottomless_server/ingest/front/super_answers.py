"""The answer to a request to a super stream: what became of the part of each partition. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bottomless.errors import StoreError
from bottomless.model.offset_spec import format_timestamp
from bottomless.model.super_stream import Partition
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.runtime.http.problems import STATUS, problem_members

ALL_STORED: int = 200
SOME_STORED: int = 207


class PartResult(NamedTuple):
    """What became of the part of one partition."""

    partition: Partition
    record_indexes: NDArray[np.int64]
    """Where its records stand in the request."""
    outcome: Appended | StoreError


class SuperAnswer(NamedTuple):
    """What is answered, where not all parts failed alike."""

    status: int
    members: dict[str, Any]
    replayed: bool
    """Whether nothing was stored by this request, since all of it was before."""


def answer_of(results: Sequence[PartResult], request_id: str) -> SuperAnswer:
    """What the parts make of the answer.

    Raises:
        StoreError: why all of them failed, if it is one reason.
    """
    stored = [one.outcome for one in results if isinstance(one.outcome, Appended)]
    failed = [one.outcome for one in results if isinstance(one.outcome, StoreError)]
    reasons = {(error.code, error.outcome) for error in failed}
    if not stored and len(reasons) == 1:
        raise failed[0]
    members: dict[str, Any] = {
        "count": sum(one.record_count for one in stored),
        "duplicates": sum(one.duplicates for one in stored),
    }
    if failed:
        members |= {"committed": len(stored), "failed": len(failed)}
    members["results"] = [_members(one, request_id) for one in results]
    replayed = not failed and all(one.replayed for one in stored)
    return SuperAnswer(SOME_STORED if failed else ALL_STORED, members, replayed)


def _members(result: PartResult, request_id: str) -> dict[str, Any]:
    partition, indexes, outcome = result
    members: dict[str, Any] = {
        "partition": partition.index,
        "stream": partition.name,
        "stream_id": partition.stream_id,
    }
    if isinstance(outcome, StoreError):
        problem = problem_members(outcome, request_id)
        members |= {"status": STATUS[outcome.code], "problem": problem}
    else:
        first, timestamp = outcome.first_offset, outcome.timestamp
        members |= {
            "status": ALL_STORED,
            "first_offset": first,
            "last_offset": None if first is None else outcome.next_offset - 1,
            "next_offset": outcome.next_offset,
            "count": outcome.record_count,
            "duplicates": outcome.duplicates,
            "timestamp": None if timestamp is None else format_timestamp(timestamp),
        }
    return {**members, "record_indexes": indexes.tolist()}
