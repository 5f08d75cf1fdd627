"""`Heard`: what a group says to a member, which is what it holds and what it has to release. Pure."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from bottomless.client.wire import understood
from bottomless.errors import Outcome

_NOTHING_STORED: Final = "none"
_BY_GROWTH: Final = "growth"


class Assigned(NamedTuple):
    """One partition that a member holds, and may read."""

    partition: int
    stream: str
    stream_id: str
    generation: int
    is_new: bool
    """The group has stored nothing of it yet."""
    by_growth: bool
    """It came when the super stream grew, after the group had begun: its first record is the next one
    of the group, wherever the group has begun."""


class Heard(NamedTuple):
    """What a join or a heartbeat was answered; both by the number of the partition."""

    assigned: dict[int, Assigned]
    revoked: dict[int, int]
    """Generations of what is asked back."""


def heard_in(answer: Mapping[str, Any]) -> Heard:
    """Read the answer to a join or a heartbeat.

    Raises:
        Unavailable: it is not that of a server of ours.
    """
    with understood(Outcome.UNKNOWN):
        assigned = [_assigned(one) for one in answer["assignments"]]
        revoked = {
            _number(one, "partition"): _number(one, "generation") for one in answer["revoked"]
        }
        return Heard({one.partition: one for one in assigned}, revoked)


def member_id_in(answer: Mapping[str, Any]) -> str:
    """Read from the answer to a join as whom it lets in.

    Raises:
        Unavailable: it is not that of a server of ours.
    """
    with understood(Outcome.UNKNOWN):
        return _text(answer, "member_id")


def _assigned(one: Mapping[str, Any]) -> Assigned:
    source = _text(one, "source")
    return Assigned(
        _number(one, "partition"),
        _text(one, "stream"),
        _text(one, "stream_id"),
        _number(one, "generation"),
        source in (_NOTHING_STORED, _BY_GROWTH),
        source == _BY_GROWTH,
    )


def _number(one: Mapping[str, Any], name: str) -> int:
    found = one[name]
    # Not isinstance: JSON's true is not a number.
    if type(found) is not int:
        raise TypeError(name)
    return found


def _text(one: Mapping[str, Any], name: str) -> str:
    found = one[name]
    if not isinstance(found, str):
        raise TypeError(name)
    return found
