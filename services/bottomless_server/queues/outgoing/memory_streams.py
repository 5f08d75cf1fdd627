"""Streams in memory, for tests and simulations: what queues send them, each number once."""

from collections.abc import Sequence

from bottomless.errors import NotFound, StoreError
from bottomless_server.queues.ports import OutgoingRecord, RecordRefused


class MemoryStreams:
    """Streams by tenant and name; a stream is made by `create`."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[OutgoingRecord]] = {}
        self.last: dict[tuple[str, str, str], int] = {}
        self.error: StoreError | None = None
        """Raised by every call while it is set; an append with `late` does its work before."""
        self.late = False
        self.value_size_max = 2**20

    def create(self, tenant: str, stream: str) -> None:
        """Make a stream without records."""
        self.records.setdefault((tenant, stream), [])

    async def require(self, tenant: str, stream: str) -> None:
        """Ask whether there is a stream of this name."""
        self._there(tenant, stream)

    async def last_id(self, tenant: str, stream: str, producer: str) -> int | None:
        """The highest publishing id that a stream knows of a producer."""
        self._there(tenant, stream)
        self._fail()
        return self.last.get((tenant, stream, producer))

    async def append(
        self, tenant: str, stream: str, producer: str, records: Sequence[OutgoingRecord]
    ) -> None:
        """Append what is above the highest id; what is larger than a record may be is refused."""
        there = self._there(tenant, stream)
        if not self.late:
            self._fail()
        numbers = [record.number for record in records]
        assert numbers == sorted(set(numbers)), "numbers grow"
        for record in records:
            if len(record.value) > self.value_size_max:
                raise RecordRefused(record.number)
        last = self.last.get((tenant, stream, producer), -1)
        there += [
            record._replace(value=bytes(record.value)) for record in records if record.number > last
        ]
        self.last[tenant, stream, producer] = max(last, *numbers)
        self._fail()

    def _there(self, tenant: str, stream: str) -> list[OutgoingRecord]:
        there = self.records.get((tenant, stream))
        if there is None:
            raise NotFound("there is no such stream")
        return there

    def _fail(self) -> None:
        if self.error is not None:
            raise type(self.error)(self.error.message, code=self.error.code)
