"""Rows: records that came one by one, in columns that can still grow.

What becomes of them is formats/rows.py; whoever only collects them needs no Arrow for it.
"""

from dataclasses import dataclass

Headers = list[tuple[str, bytes]]


@dataclass(slots=True)
class Rows:
    """Columns of equal length; those that no record of the request has are None."""

    values: list[bytes]
    contents: list[int]
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    event_times: list[int | None] | None = None
    filter_values: list[str | None] | None = None

    @property
    def size(self) -> int:
        """Bytes of its records, roughly as they will be stored."""
        size = sum(map(len, self.values)) + 8 * len(self.values)
        for column in (self.keys, self.filter_values):
            size += sum(len(item) + 8 for item in column or () if item is not None)
        for headers in self.headers or ():
            size += sum(len(name) + len(value) + 16 for name, value in headers or ())
        return size

    def without_first(self, count: int) -> "Rows":
        """These columns without their first items."""
        return Rows(
            self.values[count:],
            self.contents[count:],
            self.keys and self.keys[count:],
            self.headers and self.headers[count:],
            self.event_times and self.event_times[count:],
            self.filter_values and self.filter_values[count:],
        )
