"""What can be set of a producer: how it batches, how much it holds, how long it tries.

`Client.producer` and `AsyncClient.producer` take all of it as arguments; docs/client.md explains
each.
"""

from dataclasses import dataclass, field
from typing import Final

from bottomless.client.encoding import Compression
from bottomless.errors import InvalidRequest
from bottomless.model.limits import MIB

BATCH_BYTES_DEFAULT: Final = MIB
BATCH_BYTES_MAX: Final = 8 * MIB
"""Half of what a server accepts in one request: it leaves room for what Arrow adds."""
BUFFER_BYTES_DEFAULT: Final = 32 * MIB
LINGER_SECONDS_DEFAULT: Final = 0.005
IN_FLIGHT_MAX: Final = 5
"""The server remembers this many appends of a producer: a repeat of any of them is answered with
the offsets of its original."""
IN_FLIGHT_DEFAULT: Final = 2
"""One is stored while the next is sent. With more, requests overtake each other more often than
it helps."""
DELIVERY_SECONDS_DEFAULT: Final = 120.0
BLOCK_SECONDS_DEFAULT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Batching:
    """How large batches are, how long one may wait to fill up, and how many bytes are held."""

    batch_bytes: int = BATCH_BYTES_DEFAULT
    linger_seconds: float = LINGER_SECONDS_DEFAULT
    buffer_bytes: int = BUFFER_BYTES_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise InvalidRequest(f"batch_bytes must be from 1 to {BATCH_BYTES_MAX}")
        if self.linger_seconds < 0 or self.buffer_bytes < 1:
            raise InvalidRequest("linger_seconds must be at least 0, and buffer_bytes at least 1")


@dataclass(frozen=True, slots=True)
class Sending:
    """How a producer sends: its bounds, and how long it tries."""

    batching: Batching = field(default_factory=Batching)
    in_flight: int = IN_FLIGHT_DEFAULT
    """Requests that are on their way at once."""
    compression: Compression | None = None
    delivery_seconds: float = DELIVERY_SECONDS_DEFAULT
    """How long sending a batch is tried."""
    block_seconds: float = BLOCK_SECONDS_DEFAULT
    """How long handing over a record may wait for room."""

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise InvalidRequest(f"in_flight must be from 1 to {IN_FLIGHT_MAX}")
