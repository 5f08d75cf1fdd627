"""Follow a stream: batches as they are appended, over any number of connections.

The position is that of the last whole batch. A batch that a broken connection cut is
dropped and asked for again, so nothing comes twice and nothing is left out.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from secrets import SystemRandom
from typing import Any, Final, NamedTuple

import orjson

from bottomless.client.problems import error_from_problem
from bottomless.client.wire import NDJSON, Wire, stream_path
from bottomless.errors import Code, Corrupt, NotFound, OffsetGone, StoreError, Unavailable
from bottomless.model.limits import MIB

_LINE_SIZE_MAX: Final = 64 * MIB
"""Far above what the largest record can become as JSON."""
_PAUSE_SECONDS: Final = 0.2
_PAUSE_SECONDS_MAX: Final = 5.0
_STRANGER: Final = "the answer is not that of a Bottomless server"
_ASKED_FOR: Final = frozenset({"max-records", "until-offset"})
_AGAIN: Final = frozenset({"rotate", "draining", "slow-consumer"})


class Batch(NamedTuple):
    """Records that came together, and where to go on behind them."""

    records: list[dict[str, Any]]
    next_offset: int
    gaps: list[dict[str, int]]
    """Offsets between them that were given up for good."""


class FollowCalls(Wire):
    """The one call that does not end by itself."""

    def follow(
        self,
        name: str,
        offset: int | str,
        *,
        on_outage: Callable[[StoreError], None],
        **parameters: int | str,
    ) -> Iterator[Batch]:
        """Records from an offset or an offset spec on, and then those that are appended.

        What cannot be reached at first is an error. After that an outage is waited out, as
        long as it lasts; `on_outage` hears of each. Empty batches come too.

        Raises:
            OffsetGone: retention or trim passed the position.
            NotFound: the stream was deleted.
            WrongOffset: `stream-replaced`, another stream has taken the name.
        """
        query: dict[str, int | str] = {**parameters, "offset": offset, "follow": "true"}
        failures = 0
        while True:
            try:
                for batch in self._batches(name, query):
                    failures = 0
                    query["offset"] = batch.next_offset
                    yield batch
            except StoreError as error:
                if not error.retryable or "expect_stream_id" not in query:
                    raise
                on_outage(error)
                failures += 1
                _pause(failures, error.retry_after_seconds)
            else:
                return

    def _batches(self, name: str, query: dict[str, int | str]) -> Iterator[Batch]:
        """The batches of one connection; `query` learns the stream's id.

        Raises:
            Unavailable: another connection would go on.
        """
        with self._open(f"{stream_path(name)}/records", query, NDJSON) as answer:
            stream_id = answer.headers.get("Stream-Id")
            if stream_id is None:
                raise Unavailable(_STRANGER, retryable=False)
            query["expect_stream_id"] = stream_id
            records: list[dict[str, Any]] = []
            for line in _lines(answer.pieces):
                control = line.get("_control")
                if control is None:
                    records.append(line)
                    continue
                if "time" not in control:
                    yield Batch(records, control["next_offset"], control.get("gaps") or [])
                    records = []
                if "end" in control:
                    _end(control)
                    return
        raise Unavailable("the answer broke off")


def _end(control: Mapping[str, Any]) -> None:
    """Return if this end was asked for; what else it is is raised."""
    reason, position = control["end"], {"next_offset": control["next_offset"]}
    if reason in _ASKED_FOR:
        return
    if reason in _AGAIN:
        raise Unavailable("the server ended the answer", retry_after_seconds=0)
    if reason == "stream-deleted":
        raise NotFound("the stream was deleted", facts=position)
    if reason == "offset-trimmed":
        raise OffsetGone(
            "what comes next was removed by retention or trim",
            code=Code.OFFSET_TRIMMED,
            facts={**position, "first_offset": control.get("first_offset")},
        )
    detail = {"detail": "the server ended the answer with an error"}
    raise error_from_problem(503, {**detail, **{k: control.get(k) for k in ("code", "retryable")}})


def _lines(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield _decoded(b"".join((*held, line)))
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > _LINE_SIZE_MAX:
            raise Corrupt("a line of the answer is too long")


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Unavailable(_STRANGER, retryable=False)
    return value


def _pause(failures: int, retry_after_seconds: float | None) -> None:
    # Full jitter: after a restart not all readers come back in the same moment.
    if failures == 1 and retry_after_seconds == 0:
        return
    longest = min(_PAUSE_SECONDS * 2 ** min(failures, 10), _PAUSE_SECONDS_MAX)
    time.sleep(max(retry_after_seconds or 0, SystemRandom().uniform(0, longest)))
