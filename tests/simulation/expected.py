"""What clients were told of one stream, and what may therefore never be seen.

Every value is sent for one place only, so that where it is seen says whether it is there twice.
"""

from dataclasses import dataclass, field


class Broken(AssertionError):
    """A promise of architecture.md, section 7, does not hold."""


@dataclass
class Expected:
    name: str
    stream_id: str = ""
    sent: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Of which an answer said that nothing was stored."""
    acknowledged: dict[int, str] = field(default_factory=dict)
    seen: dict[int, str] = field(default_factory=dict)
    """What any read ever showed."""
    floor: int = 0
    """The highest that anybody was told of."""
    deleted: bool = False
    _places: dict[str, int] = field(default_factory=dict)

    @property
    def acknowledged_next(self) -> int:
        return max(self.acknowledged, default=-1) + 1

    def acknowledge(self, first_offset: int, values: list[str]) -> None:
        for offset, value in enumerate(values, first_offset):
            known = self.acknowledged.get(offset)
            if known is not None and known != value:
                raise Broken(f"{self.name}: offset {offset} was given to {known} and to {value}")
            self._place(offset, value)
            self.acknowledged[offset] = value

    def refuse(self, values: list[str]) -> None:
        for value in values:
            if value in self._places:
                place = self._places[value]
                raise Broken(f"{self.name}: {value} was refused, and is stored at {place}")
            self.refused.add(value)

    def show(self, offset: int, value: str) -> None:
        """A reader was shown this."""
        if value not in self.sent:
            raise Broken(f"{self.name}: nobody sent what is at {offset}: {value[:40]}")
        if value in self.refused:
            raise Broken(f"{self.name}: {value} was refused, and is read at {offset}")
        promised = self.acknowledged.get(offset, value)
        if promised != value:
            raise Broken(f"{self.name}: {offset} was acknowledged as {promised}, read as {value}")
        before = self.seen.setdefault(offset, value)
        if before != value:
            raise Broken(f"{self.name}: {offset} was {before}, and is {value} now")
        self._place(offset, value)

    def _place(self, offset: int, value: str) -> None:
        place = self._places.setdefault(value, offset)
        if place != offset:
            raise Broken(f"{self.name}: {value} is at {place} and at {offset}")
