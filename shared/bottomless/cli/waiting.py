"""Waiting for the end of an operation, and saying on stderr what is waited for.

A wait of seconds stays silent. During a longer one the user is told in which phase the work is, how
far it has come, and, where it rests on purpose, until when.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from bottomless.cli.failures import tell
from bottomless.errors import StoreError
from bottomless.model.backoff import backoff

if TYPE_CHECKING:
    from bottomless.client import Client

SILENT_SECONDS: Final = 10.0
"""How long a wait needs no explanation."""

_AGAIN_SECONDS: Final = 30.0
"""After this the same phase is told once more, with how far it has come."""

_OUTAGE_SECONDS_MAX: Final = 60.0
"""A server that restarts takes less; the work goes on after it."""

_MEANINGS: Final = {
    "closing": "its owner is asked to stop",
    "waiting": "the objects stay for those who still read them",
    "sweeping": "the objects are being deleted",
    "waiting again": "uploads that were under way may still arrive",
    "sweeping again": "what arrived meanwhile is being deleted",
}
"""Phases of a deletion, in words; of other kinds the phase says itself what it is."""

_POLL_SECONDS: Final = 0.05
_POLL_SECONDS_MAX: Final = 2.0
_NOT_COUNTS: Final = frozenset({"phase", "waits_until"})


def wait_for(client: "Client", operation_id: str) -> dict[str, Any]:
    """Wait for the end of an operation and return it, succeeded or failed.

    A server that is away for a while is waited for too: the operation is not lost with it.

    Raises:
        StoreError: the server was away for too long, or does not know the operation.
    """
    from bottomless.client.upkeep import FINISHED  # noqa: PLC0415

    narrator = Narrator(time.monotonic())
    looks = 0
    away_since: float | None = None
    while True:
        try:
            operation = client.operation(operation_id)
        except StoreError as error:
            now = time.monotonic()
            if away_since is None:
                away_since = now
            if not error.retryable or now - away_since > _OUTAGE_SECONDS_MAX:
                raise
        else:
            away_since = None
            if operation["state"] in FINISHED:
                return operation
            sentence = narrator.sentence(operation, time.monotonic(), datetime.now(UTC))
            if sentence is not None:
                tell(sentence)
        # The contract has no answer that comes when an operation ends.
        time.sleep(backoff(looks, _POLL_SECONDS, _POLL_SECONDS_MAX))
        looks += 1


class Narrator:
    """Decides what is worth a line. Pure: the clock's readings are passed in."""

    def __init__(self, started: float) -> None:
        self._silent_until = started + SILENT_SECONDS
        self._told: tuple[object, ...] = ()
        self._told_at = started

    def sentence(self, operation: Mapping[str, Any], now: float, clock: datetime) -> str | None:
        """Choose what to say about an operation that is not finished; None for nothing.

        `now` is in seconds of the monotonic clock, `clock` is the time of day.
        """
        progress = operation["progress"]
        rests_until = progress.get("waits_until")
        error = operation["error"]
        facts = (progress.get("phase"), rests_until, error and error["code"])
        news = facts != self._told
        # A rest is told at once: it is long, and whoever knows that may not want to wait.
        if now < self._silent_until and not (news and rests_until):
            return None
        if not news and now - self._told_at < _AGAIN_SECONDS:
            return None
        first, self._told, self._told_at = not self._told, facts, now
        words = [f"{operation['kind']} {operation['operation_id']}: {_phase(operation)}"]
        if rests_until:
            words.append(f"until {rests_until}, {_left(rests_until, clock)}")
        counts = [f"{name} {value}" for name, value in progress.items() if _is_count(name, value)]
        parts = [" ".join(words), *([", ".join(counts)] if counts else [])]
        remaining = progress.get("remaining") or []
        if remaining:
            parts.append(f"{remaining[0]['stream']}: {remaining[0]['why']}")
        if error:
            parts.append(f"is tried again after: {error['detail']} ({error['code']})")
        if first:
            parts.append("Ctrl-C ends the waiting, not the work")
        return "; ".join(parts)


def _phase(operation: Mapping[str, Any]) -> str:
    phase = str(operation["progress"].get("phase") or operation["state"])
    return _MEANINGS.get(phase, phase)


def _is_count(name: str, value: object) -> bool:
    return name not in _NOT_COUNTS and isinstance(value, int) and not isinstance(value, bool)


def _left(rests_until: str, clock: datetime) -> str:
    seconds = round((datetime.fromisoformat(rests_until) - clock).total_seconds())
    if seconds < 120:
        return f"in {max(seconds, 0)} s"
    return f"in {seconds // 60} min"
