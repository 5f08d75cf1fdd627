"""Message files and registry in memory, for tests and simulations: nothing of them is durable.

What was written is in `seen`, and after its sync also in `kept`, which is what a loss of power
leaves. `fail` lets calls be refused.
"""

from collections.abc import Sequence

from bottomless_server.queues.ledger.base import QueueRow
from bottomless_server.queues.ports import FIRST_POSITION, Record, SyncFailed, WriteFailed

_HEADER = b"\0" * FIRST_POSITION


class MemoryPin:
    """A pin that knows whether it is released."""

    def __init__(self, file: int, number: int) -> None:
        self.file = file
        self.number = number
        self.released = False

    def release(self) -> None:
        self.released = True


class MemoryFiles:
    """Message files by their numbers."""

    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}
        self.kept: dict[int, bytes] = {}
        self.pins: list[MemoryPin] = []
        self.free = 2**40
        self._faults: dict[str, tuple[int, bool]] = {}

    def fail(self, call: str, *, count: int = 1, full: bool = False) -> None:
        """Let the next calls of a method be refused; a write does half of its work."""
        assert hasattr(self, call)
        self._faults[call] = (count, full)

    def write(self, number: int, position: int, records: Sequence[Record], *, create: bool) -> None:
        data = b"".join(part for record in records for part in record)
        fault = self._fault("write")
        if fault is not None:
            data = data[: len(data) // 2]
        before = _HEADER if create else self.seen[number]
        assert len(before) >= position
        self.seen[number] = before[:position] + data
        if fault is not None:
            raise WriteFailed("the write came short", full=fault[1])

    def sync(self, number: int, *, created: bool) -> None:
        if self._fault("sync") is not None:
            raise SyncFailed("the sync failed")
        assert created or number in self.kept
        self.kept[number] = self.seen[number]

    def cut(self, number: int, size: int | None) -> None:
        if self._fault("cut") is not None:
            raise SyncFailed("the cut failed")
        if size is None:
            self.seen.pop(number, None)
            self.kept.pop(number, None)
        else:
            self.seen[number] = self.kept[number] = self.seen[number][:size]

    def pin(self, file: int, number: int) -> MemoryPin:
        self.pins.append(MemoryPin(file, number))
        return self.pins[-1]

    def free_bytes(self) -> int:
        return self.free

    def lose_power(self) -> None:
        """Forget what was not synced."""
        self.seen = dict(self.kept)

    def _fault(self, call: str) -> tuple[int, bool] | None:
        fault = self._faults.get(call)
        if fault is not None:
            left, full = fault
            if left == 1:
                del self._faults[call]
            else:
                self._faults[call] = (left - 1, full)
        return fault


class MemoryRegistry:
    """Registry objects by the ids of their queues."""

    def __init__(self) -> None:
        self.rows: dict[bytes, QueueRow] = {}
        self.fails = False

    def write(self, row: QueueRow) -> None:
        self._look()
        self.rows[row.queue_id] = row

    def remove(self, queue_id: bytes) -> None:
        self._look()
        self.rows.pop(queue_id, None)

    def _look(self) -> None:
        if self.fails:
            raise WriteFailed("the registry takes nothing")
