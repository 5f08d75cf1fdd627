"""Rows: records that came one by one, in columns that can still grow.

formats/rows.py makes Arrow batches of them; collecting them alone needs no Arrow.
"""

from dataclasses import dataclass

Headers = list[tuple[str, bytes]]
"""The headers of one record: names and values in order; a name may stand twice."""


@dataclass(slots=True)
class Rows:
    """Columns of equal length, one item per record; a column that no record uses is None."""

    values: list[bytes]
    contents: list[int]
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    event_times: list[int | None] | None = None
    filter_values: list[str | None] | None = None

    @property
    def size(self) -> int:
        """Bytes of all records, roughly as they will be stored."""
        size = sum(map(len, self.values)) + 8 * len(self.values)
        for column in (self.keys, self.filter_values):
            size += sum(len(item) + 8 for item in column or () if item is not None)
        for headers in self.headers or ():
            size += sum(len(name) + len(value) + 16 for name, value in headers or ())
        return size

    def without_first(self, count: int) -> "Rows":
        """Copy these columns without their first `count` items."""
        return Rows(
            self.values[count:],
            self.contents[count:],
            self.keys and self.keys[count:],
            self.headers and self.headers[count:],
            self.event_times and self.event_times[count:],
            self.filter_values and self.filter_values[count:],
        )
