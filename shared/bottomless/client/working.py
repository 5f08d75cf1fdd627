"""`Working`: what a worker is told: its queue, how long and how many messages it has, whom it tells what."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from bottomless.client.address import check_queue
from bottomless.client.consumer import ignored
from bottomless.client.message import Message
from bottomless.errors import InvalidRequest, StoreError

VISIBILITY_MS_DEFAULT: Final = 30_000
VISIBILITY_MS_MIN: Final = 100
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
WAIT_MS_MAX: Final = 20_000
"""How long one request waits for a message, at most."""
LIMIT_MAX: Final = 1000
"""Messages in hand: as many as one request extends."""

Loss: TypeAlias = Literal["stale", "gone"]
"""How a message was lost: somebody else got it, or it left the queue."""
_LOG: Final = logging.getLogger("bottomless.worker")
_LOSSES: Final[dict[Loss, str]] = {
    "stale": "was delivered to another consumer while this one had it",
    "gone": "left the queue while this consumer had it",
}


def tell_lost(message: Message, loss: Loss) -> None:
    """Write a warning to the log: the default of `on_lost`."""
    _LOG.warning("message %s %s", message.message_id, _LOSSES[loss])


@dataclass(frozen=True, slots=True)
class Working:
    """The queue that is worked on, and how."""

    queue: str
    visibility_ms: int = VISIBILITY_MS_DEFAULT
    limit: int = 1
    """Messages in hand at once."""
    nack_delay_ms: int = 0
    """How long a message waits that was given back because of an exception."""
    on_lost: Callable[[Message, Loss], None] = field(default=tell_lost)
    """Called once with each message that this program had and lost, and how."""
    on_outage: Callable[[StoreError], None] = field(default=ignored)
    """Called with the reason each time the server did not answer; the worker goes on by itself."""
    wait_ms: int = WAIT_MS_MAX
    """How long one request waits for a message: less than the client waits for an answer."""

    def __post_init__(self) -> None:
        check_queue(self.queue)
        if not VISIBILITY_MS_MIN <= self.visibility_ms <= VISIBILITY_MS_MAX:
            raise InvalidRequest(
                f"visibility_ms must be from {VISIBILITY_MS_MIN} to {VISIBILITY_MS_MAX}"
            )
        if not 1 <= self.limit <= LIMIT_MAX or self.nack_delay_ms < 0:
            raise InvalidRequest(
                f"limit must be from 1 to {LIMIT_MAX}, and nack_delay_ms at least 0"
            )

    @property
    def seconds(self) -> float:
        """The visibility."""
        return self.visibility_ms / 1000
