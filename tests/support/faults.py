"""What can go wrong between a service and a server, and which requests it shall happen to."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    NONE = "nothing"
    LOSE_REQUEST = "the request is lost"
    LATE_REQUEST = "the request arrives after its caller has given up"
    CUT_REQUEST = "the request is cut in the middle of its body"
    FLIP_REQUEST = "a bit of the request is flipped on its way"
    LOSE_REPLY = "the reply is lost"
    REFUSE = "the request is refused before it is done"
    MISREPORT = "the request is done, and reported as refused"
    TRUNCATE = "the reply ends in the middle of its body"
    TRUNCATE_AND_RESET = "the connection is reset in the middle of the reply"
    FLIP = "a bit of the reply is flipped"
    STALL = "the reply never comes"
    DRIP = "the reply comes slowly, in pieces"

    @property
    def reaches_the_server(self) -> bool:
        return self not in (Fault.NONE, Fault.LOSE_REQUEST, Fault.REFUSE)


class Answer(NamedTuple):
    status: int
    code: str
    """As S3 has it in the body."""


CONFLICT = Answer(409, "ConditionalRequestConflict")
EXISTS = Answer(412, "PreconditionFailed")
BROKEN = Answer(500, "InternalError")
SLOW_DOWN = Answer(503, "SlowDown")
UNAVAILABLE = Answer(503, "ServiceUnavailable")
MISSING = Answer(404, "NoSuchKey")


@dataclass(frozen=True)
class Rule:
    """A fault and the requests that it befalls."""

    fault: Fault
    method: str | None = None
    path: str = ""
    """A pattern that is looked for in path and query."""
    answer: Answer = BROKEN
    """Of REFUSE and MISREPORT."""
    after: int = 0
    """So many that fit are let through first."""
    times: int | None = None
    """At most so many are disturbed; without a number, as long as it is armed."""
    chance: float = 1.0
    pause_seconds: float = 0.05
    """Between the pieces of DRIP."""


CALM = Rule(Fault.NONE)

FRAGMENT = r"\.fragment(\?|$)"
ROOT = r"/root\.[^/]*\.manifest(\?|$)"
GROUP = r"\.g[0-9]+(\?|$)"
"""Paths of the three kinds of object that carry a stream."""


def named(value: object) -> str:
    """What a test is called that is made for this fault or this answer."""
    assert isinstance(value, Answer | Fault)
    return f"{value.status}-{value.code}" if isinstance(value, Answer) else value.name
