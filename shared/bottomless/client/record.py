"""`Record`: one record as it was read, in one shape whatever form it travelled in. Pure."""

from base64 import b64decode
from typing import Any

from bottomless.client.valued import Valued
from bottomless.model.offset_spec import parse_timestamp


class Record(Valued):
    """A record: the answer's members as a dict, and attributes in one shape for every record.

    The dict is what the API says (docs/reading.md). An attribute is computed when it is asked for,
    so a program that asks for none pays nothing.
    """

    __slots__ = ()

    @property
    def offset(self) -> int:
        """The offset that the record has in its stream."""
        offset: int = self["offset"]
        return offset

    @property
    def partition(self) -> int | None:
        """The index of its partition, where a super stream was read; None of any other stream."""
        index: int | None = self.get("partition")
        return index

    @property
    def key(self) -> bytes | None:
        """The key; None for a record without one."""
        if "key_base64" in self:
            return b64decode(self["key_base64"])
        key: str | None = self.get("key")
        return None if key is None else key.encode()

    @property
    def filter_value(self) -> str | None:
        """The filter value; None for a record without one, and the empty text is one."""
        value: str | None = self.get("filter_value")
        return value

    @property
    def timestamp(self) -> int:
        """When the record was stored, in milliseconds since 1970."""
        return parse_timestamp(self["timestamp"])

    @property
    def event_time(self) -> int | None:
        """The producer's own time in milliseconds since 1970; None for a record without one."""
        time: str | int | None = self.get("event_time")
        return parse_timestamp(time) if isinstance(time, str) else time


def records_of(members: list[dict[str, Any]]) -> list[Record]:
    """Turn the members of a page into records, within the very list that they came in."""
    # In place, so that each dict's memory is used again for the next: a third of the time of
    # making a second list beside the first.
    made: list[Any] = members
    for index, one in enumerate(members):
        made[index] = Record(one)
    return made
