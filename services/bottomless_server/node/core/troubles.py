"""Decide what troubles are worth a line in a log: what goes on and on is told when it begins, seldom while it
lasts, and when it has ended. Pure: the caller brings the time, by a monotonic clock in seconds."""

from typing import Final, NamedTuple

AGAIN_SECONDS: Final = 600.0
"""How long a trouble lasts before it is told again, or rests before it begins anew."""
KIND_COUNT_MAX: Final = 64
"""Troubles that are remembered at a time; of more the one that began first is forgotten, and told anew."""


class Lasting(NamedTuple):
    """A trouble that is to be told."""

    seconds: int
    """How long it has lasted."""
    times: int
    """How often it was met since it began."""


class _Met(NamedTuple):
    since: float
    told_at: float
    last_at: float
    times: int


class Troubles:
    """Troubles of several kinds, each with what is remembered of it."""

    def __init__(self) -> None:
        self._met: dict[str, _Met] = {}

    def meet(self, kind: str, now: float) -> Lasting | None:
        """Note that a trouble was met; returned is what to tell of it, None if nothing."""
        before = self._met.get(kind)
        if before is None or now - before.last_at >= AGAIN_SECONDS:
            before = _Met(now, now - AGAIN_SECONDS, now, 0)
            self._met.pop(kind, None)
            if len(self._met) >= KIND_COUNT_MAX:
                del self._met[next(iter(self._met))]
        times = before.times + 1
        is_told = now - before.told_at >= AGAIN_SECONDS
        told_at = now if is_told else before.told_at
        self._met[kind] = _Met(before.since, told_at, now, times)
        return Lasting(round(now - before.since), times) if is_told else None

    def end(self, kind: str, now: float) -> Lasting | None:
        """Note that a trouble has ended; returned is what to tell of it, None if there was none."""
        met = self._met.pop(kind, None)
        return None if met is None else Lasting(round(now - met.since), met.times)
