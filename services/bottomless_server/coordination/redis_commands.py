"""What is said to Redis or Valkey to change something, and what a lease's script answers."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from bottomless_server.coordination.base import Changes, Due, Hold

Word: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Word, ...]

_SETTLE: Final = """
for place, queue in ipairs(KEYS) do
    local member, due_at = ARGV[2 * place - 1], ARGV[2 * place]
    local queued = redis.call('ZSCORE', queue, member)
    if queued and tonumber(queued) == tonumber(due_at) then
        redis.call('ZREM', queue, member)
    end
end
"""
_HOLD: Final = """
local before = redis.call('GET', KEYS[1])
if not before or before == ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return before
"""
_SETTLE_COUNT: Final = 256
"""Members of one run of it: nobody else is served meanwhile."""


def holding(redis_key: str, value: bytes, ttl_ms: int) -> Command:
    """What takes or renews a lease, in one exchange instead of two: leases are renewed all the time, and
    the rule is the port's. Its reply is the value from before."""
    return ("EVAL", _HOLD, 1, redis_key, value, ttl_ms)


def hold_of(before: bytes | None, value: bytes) -> Hold:
    """What became of a lease, by the value that its key had before."""
    if before is None:
        return Hold.TAKEN
    return Hold.RENEWED if before == value else Hold.REFUSED


def settling(dues: Sequence[Due]) -> list[Command]:
    """What settles members of queues, each unless it is due at another time by now: a few runs of a
    script, since nobody else is served meanwhile."""
    commands: list[Command] = []
    for start in range(0, len(dues), _SETTLE_COUNT):
        page = dues[start : start + _SETTLE_COUNT]
        members = [word for due in page for word in (due.member, due.due_at)]
        keys = [due.redis_key for due in page]
        commands.append(("EVAL", _SETTLE, len(keys), *keys, *members))
    return commands


def writing(changes: Changes) -> list[Command]:
    """What writes these changes: few commands, since each is a reply to read, and a step of EXEC."""
    present: list[Word] = []
    for key, value in changes.values.items():
        if value is not None:
            present += (key, value)
    absent = [key for key, value in changes.values.items() if value is None]
    commands: list[Command] = []
    if present:
        commands.append(("MSET", *present))
    if absent:
        commands.append(("DEL", *absent))
    commands += settling(changes.settled)
    queued = _by_key((due.redis_key, (due.due_at, due.member)) for due in changes.queued)
    # GT: a member that is queued again waits for the later time.
    commands += [("ZADD", key, "GT", *words) for key, words in queued.items()]
    for due in changes.requeued:
        # Together: its time, or one later than it is queued for, whichever is later.
        commands.append(("ZADD", due.redis_key, "GT", due.due_at - 1, due.member))
        commands.append(("ZINCRBY", due.redis_key, 1, due.member))
    # One score for all members of an index: Redis then orders them by their bytes.
    for there, members in groupby(changes.members, lambda one: one.present):
        if there:
            words_of = _by_key((one.redis_key, (0, one.member)) for one in members)
            commands += [("ZADD", key, *words) for key, words in words_of.items()]
        else:
            words_of = _by_key((one.redis_key, (one.member,)) for one in members)
            commands += [("ZREM", key, *words) for key, words in words_of.items()]
    return commands


def _by_key(pairs: Iterable[tuple[str, tuple[Word, ...]]]) -> dict[str, list[Word]]:
    """The words of one command for each key, in the order in which they come."""
    found: dict[str, list[Word]] = {}
    for key, words in pairs:
        found.setdefault(key, []).extend(words)
    return found
