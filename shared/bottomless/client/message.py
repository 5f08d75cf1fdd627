"""`Message`: one message of a queue as it was received, or looked at. Pure."""

from typing import Any

from bottomless.client.valued import Valued
from bottomless.model.offset_spec import parse_timestamp


class Message(Valued):
    """A message: the answer's members as a dict, and attributes in one shape for every message.

    The dict is what the API says (docs/queues.md). `value` are the bytes of its body, `text` and
    `json()` the same as text and as what the JSON says, `headers` the headers by their names.
    """

    __slots__ = ()

    @property
    def message_id(self) -> str:
        """The id of the message, 32 hex digits; in all queues of one publish the same."""
        message_id: str = self["message_id"]
        return message_id

    @property
    def sequence(self) -> int:
        """The number of the message in its queue."""
        sequence: int = self["sequence"]
        return sequence

    @property
    def receipt(self) -> str:
        """What names this delivery of the message.

        Raises:
            KeyError: it was looked at, and not received.
        """
        receipt: str = self["receipt"]
        return receipt

    @property
    def deliveries(self) -> int:
        """How often it was delivered, with this time."""
        deliveries: int = self["deliveries"]
        return deliveries

    @property
    def priority(self) -> int:
        """Its priority, from 0 to 9: of two messages the one with the higher is delivered first."""
        priority: int = self["priority"]
        return priority

    @property
    def published_at(self) -> int:
        """When it was published, in milliseconds since 1970."""
        return parse_timestamp(self["published_at"])

    @property
    def dead_letter(self) -> dict[str, Any] | None:
        """Where it was before it came here: `queue`, `reason`, `deliveries` and `at`; None of others."""
        found: dict[str, Any] | None = self.get("dead_letter")
        return found
