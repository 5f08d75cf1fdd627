"""Files and messages of the ledger in memory: where records lie, and which files nobody needs."""

from collections.abc import Iterable, Sequence

from bottomless_server.queues.core.states import FileState, state_without
from bottomless_server.queues.ledger.base import FileRow, Message, Move
from bottomless_server.queues.ledger.memory_rounds import MemoryRounds, Table


class MemoryFileRows(MemoryRounds):
    """The rows of files and of messages; base.py says what each method does."""

    def __init__(self, store_id: bytes) -> None:
        super().__init__(store_id)
        self._files: Table[int, FileRow] = Table(self._journal)
        self._messages: Table[int, Message] = Table(self._journal)

    # Files

    def add_file(self, state: FileState) -> int:
        self._enter("add_file", changes=True)
        assert state in (FileState.OPEN, FileState.MOVING)
        row = self._store[1]
        self._store.put(1, row._replace(next_file=row.next_file + 1))
        self._files.put(row.next_file, FileRow(row.next_file, 0, 0, state))
        return row.next_file

    def restore_file(self, number: int) -> None:
        self._enter("restore_file", changes=True)
        assert number not in self._files
        row = self._store[1]
        self._store.put(1, row._replace(next_file=max(row.next_file, number + 1)))
        self._files.put(number, FileRow(number, 0, 0, FileState.MOVING))

    def file(self, number: int) -> FileRow | None:
        self._enter("file")
        row = self._files.get(number)
        if row is None:
            return None
        valid = sum(each.size for each in self._messages.values() if each.file == number)
        return row._replace(valid=valid)

    def files(self) -> list[FileRow]:
        found = [self.file(number) for number in sorted(self._files)]
        return [row for row in found if row is not None]

    def set_file_size(self, number: int, size: int) -> None:
        self._enter("set_file_size", changes=True)
        self._files.put(number, self._files[number]._replace(size=size))

    def set_file_state(self, number: int, state: FileState) -> FileState:
        self._enter("set_file_state", changes=True)
        self._files.put(number, self._files[number]._replace(state=state))
        self._doom_empty([number])
        return self._files[number].state

    def remove_file(self, number: int) -> None:
        self._enter("remove_file", changes=True)
        row = self.file(number)
        assert row is not None
        assert row.valid == 0
        self._files.drop(number)

    def live(self, number: int) -> list[Message]:
        self._enter("live")
        found = [message for message in self._messages.values() if message.file == number]
        return sorted(found, key=lambda message: message.position)

    def move(self, moves: Sequence[Move]) -> int:
        self._enter("move", changes=True)
        at = {(each.file, each.position, each.msg_id): each for each in self._messages.values()}
        moved = 0
        for move in moves:
            message = at.get((move.file, move.position, move.msg_id))
            if message is not None:
                assert self._files[move.new_file].state is not FileState.DOOMED
                fresh = message._replace(file=move.new_file, position=move.new_position)
                self._messages.put(message.id, fresh)
                moved += 1
        self._doom_empty({move.file for move in moves})
        return moved

    def _doom_empty(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            row = self.file(number)
            if row is not None and state_without(row.state, row.valid) is not row.state:
                self._files.put(number, row._replace(state=FileState.DOOMED))
