"""A lost ledger is made anew: of the message files, and of the registry objects beside them.

Each message becomes an item at the queues and the sequences that its envelope says. Nothing that was
confirmed and not acknowledged is lost, but what was on its way out of a queue that was purged or
deleted; an acknowledged message that lies in a file still comes again. What was delayed by its publish
waits still; what was in flight, or delayed after it was given back, is ready. Deliveries are counted
anew, and receipts of before are good for nothing: the store has another id.

The ledger is made under another name. After a crash there is none, or the whole one: whoever begins
again begins anew. Message files are only read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from bottomless.errors import Corrupt
from bottomless.formats.classic_message import decode_classic_message
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import (
    HEADER_SIZE,
    Finding,
    Found,
    check_file_header,
    decode_record,
    scan,
)
from bottomless.formats.queue_object import QueueObject
from bottomless.formats.rdq import FoundTerm, scan_strays
from bottomless.guards import guard
from bottomless.model.queue import QueueConfig, QueueMessage, encode_queue_config
from bottomless_server.node.file_calls import read_exactly
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.directory.registry import registry_objects
from bottomless_server.queues.ledger.base import ID_SIZE, Item, Ledger, NewMessage, QueueRow
from bottomless_server.queues.offline.findings import Findings
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.import_mark import check_no_import
from bottomless_server.queues.store.names import FileName, parse_file_name, path_of

DAMAGED: Final = "messages that are damaged"
LOST: Final = "parts of files of which nobody knows what is in them"
NO_QUEUE: Final = "places in queues that the registry does not have"
PURGED: Final = "places in queues that were purged"
UNCHECKED: Final = "messages without a checksum, which are not believed"
STRAYS: Final = "messages of version 1, which name no queue"
_AT_ONCE: Final = 1_000


class RebuildRefused(Exception):
    """A rebuild would lose something that it need not; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """What a rebuild takes."""

    strays: str | None = None
    """The queue that gets messages of version 1."""
    strays_tenant: str = "default"
    take_unchecked: bool = False
    """Whether messages without a checksum are believed: where new ones have none."""


@dataclass(slots=True)
class RebuildReport:
    """What a rebuild has found and made."""

    queue_count: int = 0
    item_count: int = 0
    stray_count: int = 0
    file_count: int = 0
    last_v1_file: int | None = None
    findings: Findings = field(default_factory=Findings)

    def as_json(self) -> dict[str, object]:
        return {
            "queues": self.queue_count,
            "messages": self.item_count,
            "strays": self.stray_count,
            "files": self.file_count,
            "last_v1_file": self.last_v1_file,
            "findings": self.findings.as_json(),
        }


def rebuild_store(
    store: StoreDirectory,
    rebuilding: Rebuilding,
    *,
    now: int,
    stray_id: bytes,
    dry_run: bool = False,
) -> RebuildReport:
    """Make the ledger of a store anew, under the lock of its directory; with `dry_run` say what it
    would have.

    Raises:
        RebuildRefused, Refused, Corrupt: nothing was changed.
        OSError, LedgerFailed, WriteFailed: the disk fails; there is no ledger still.
    """
    check_rebuild(store)
    ledger = store.make_ledger()
    is_whole = False
    try:
        report = rebuild(store, rebuilding, ledger, now=now, stray_id=stray_id)
        if not dry_run:
            store.write_registry(ledger)
        ledger.checkpoint()
        is_whole = not dry_run
    finally:
        ledger.close()
        if not is_whole:
            store.remove_fresh_ledger()
    if is_whole:
        store.put_ledger()
    return report


def check_rebuild(store: StoreDirectory) -> None:
    """Refuse where a rebuild would throw something away.

    Raises:
        RebuildRefused: it says what to do.
        Refused: an import was cut off.
    """
    check_no_import(store.files, store.path)
    if store.has_ledger() or store.has_log():
        raise RebuildRefused(
            f"there is a ledger in {store.path}: if it is lost, move ledger.db and ledger.db-wal away first"
        )


def rebuild(
    store: StoreDirectory,
    rebuilding: Rebuilding,
    ledger: Ledger,
    *,
    now: int,
    stray_id: bytes,
) -> RebuildReport:
    """Fill an empty ledger from what lies in a store.

    `now`, in ms since 1970, tells what is delayed still, and is when messages of version 1 count as
    published; `stray_id` is the id of
    the queue that gets them, if there is none of that name.

    Raises:
        RebuildRefused: there are messages of version 1, and no queue is named for them; or there are
            messages, and no queue at all.
        Corrupt: an object of the registry is damaged, or two are of one queue.
        OSError, LedgerFailed: the disk fails.
    """
    assert len(stray_id) == ID_SIZE
    run = _Run(store, rebuilding, ledger, now, stray_id)
    run.run()
    return run.report


class _Run:
    def __init__(
        self,
        store: StoreDirectory,
        rebuilding: Rebuilding,
        ledger: Ledger,
        now: int,
        stray_id: bytes,
    ) -> None:
        self._store = store
        self._files = store.files
        self._rebuilding = rebuilding
        self._ledger = ledger
        self._now = now
        self._stray_id = stray_id
        self._objects: dict[bytes, QueueObject] = {}
        self._rows: dict[bytes, QueueRow] = {}
        self._old_ids: set[bytes] = set()
        """The ids of messages of version 1 that are in a file of version 2 already."""
        self._latest = now
        """When the last message was published that has a checksum, by the time of queues, or `now`."""
        self.report = RebuildReport()

    def run(self) -> None:
        names = [parse_file_name(name) for name in self._files.names(self._store.messages)]
        # Between files the one with the higher number counts.
        files = sorted((name for name in names if name is not None), reverse=True)
        self._read_registry()
        self._check_names(files)
        old = [file.number for file in files if file.is_version_1]
        strays = {number: self._strays_of(number) for number in old}
        wanted = {one.msg_id for found in strays.values() for one in found}
        for file in files:
            with a_round(self._ledger):
                self._ledger.restore_file(file.number)
            if not file.is_version_1:
                self._take_file(file.number, wanted)
        self._check_strays(strays)
        for number in sorted(strays):
            self._take_strays(number, strays[number])
        with a_round(self._ledger):
            if old:
                self.report.last_v1_file = max(old)
                self._ledger.set_last_v1_file(self.report.last_v1_file)
            self._ledger.set_clock(goes_on_from(self._now, self._latest))
        self.report.file_count = len(files)
        self.report.queue_count = len(self._rows)

    def _check_names(self, files: list[FileName]) -> None:
        numbers = [file.number for file in files]
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        if twice:
            raise RebuildRefused(f"there are two files of the number {twice[0]}: move one away")
        old = [file.number for file in files if file.is_version_1]
        wrong = [
            file.number
            for file in files
            if not file.is_version_1 and old and file.number < max(old)
        ]
        if wrong:
            raise RebuildRefused(
                f"{wrong[-1]}.sqs cannot be: files up to {max(old)} are of version 1; move it away"
            )

    # Queues

    def _read_registry(self) -> None:
        names: dict[tuple[str, str], bytes] = {}
        for one in registry_objects(self._files, self._store.registry_path):
            other = names.setdefault((one.tenant, one.name), one.queue_id)
            if other != one.queue_id:
                raise Corrupt(
                    f"two objects of the registry are of the queue {one.name} of {one.tenant}: "
                    f"{other.hex()}.json and {one.queue_id.hex()}.json; move the older one away"
                )
            self._objects[one.queue_id] = one
        for one in self._objects.values():
            with a_round(self._ledger):
                self._make_queue(one)

    def _make_queue(self, one: QueueObject) -> QueueRow:
        config = orjson.dumps(encode_queue_config(one.config)).decode()
        self._ledger.create_queue(one.queue_id, one.tenant, one.name, config)
        self._ledger.restore_numbers(
            one.queue_id,
            version=one.version,
            next_sequence=one.reserved_below,
            purged_below=one.purged_below,
        )
        row = self._ledger.queue(one.queue_id)
        assert row is not None
        self._rows[one.queue_id] = row
        return row

    # Files of version 2

    def _take_file(self, number: int, wanted: set[bytes]) -> None:
        fd = self._files.open(path_of(self._store.messages, number))
        try:
            end = self._files.size(fd)
            found = self._scan(fd, number, end)
            batch: list[NewMessage] = []
            for one in found:
                if one.what is Finding.LOST:
                    continue
                if one.msg_id in wanted:
                    self._old_ids.add(one.msg_id)
                new = self._message(
                    number, one, read_exactly(self._files, fd, one.size, one.position)
                )
                if new is not None:
                    batch.append(new)
                if len(batch) >= _AT_ONCE:
                    self._enter(batch)
                    batch = []
            self._enter(batch)
        finally:
            self._files.close(fd)
        whole = not any(one.what is Finding.LOST for one in found)
        with a_round(self._ledger):
            self._ledger.set_file_size(number, end)
            self._ledger.set_file_state(number, FileState.SEALED if whole else FileState.DAMAGED)

    def _scan(self, fd: int, number: int, end: int) -> list[Found]:
        """Messages of a file, and parts of it that are lost."""
        findings = self.report.findings
        try:
            check_file_header(read_exactly(self._files, fd, HEADER_SIZE, 0))
        except Corrupt as error:
            findings.add(LOST, f"{number}.sqs: {error.message}")
            return [Found(Finding.LOST, 0, end)]
        kept = []
        for one in scan(lambda at, size: read_exactly(self._files, fd, size, at), end):
            where = f"{number}.sqs: {one.size} bytes from {one.position} on"
            if one.what is Finding.DAMAGED:
                findings.add(DAMAGED, where)
            elif one.what is Finding.LOST:
                findings.add(LOST, where)
                kept.append(one)
            elif one.what is Finding.MESSAGE:
                if one.checked or self._rebuilding.take_unchecked:
                    kept.append(one)
                else:
                    findings.add(UNCHECKED, where)
        return kept

    def _message(self, number: int, one: Found, data: bytes) -> NewMessage | None:
        """A message with the items that it has in queues that are there; None without any."""
        try:
            message = decode_envelope(decode_record(data).body)
        except Corrupt as error:
            self.report.findings.add(DAMAGED, f"{number}.sqs: at {one.position}: {error.message}")
            return None
        if one.checked:
            self._latest = max(self._latest, message.published_at)
        items = list(self._items(message))
        if not items:
            return None
        return NewMessage(one.msg_id, number, one.position, one.size, items)

    def _items(self, message: QueueMessage) -> Iterator[Item]:
        for place in message.queues:
            known = self._objects.get(place.queue_id)
            if known is None:
                self.report.findings.add(NO_QUEUE, place.queue_id.hex())
                continue
            if place.sequence < known.purged_below:
                self.report.findings.add(PURGED, f"{known.tenant}: {known.name}")
                continue
            row = self._rows[place.queue_id]
            # A file with a higher number had it already, or this one, at a lower position.
            if self._ledger.items(row.inside, [place.sequence]):
                continue
            yield _item(row, place.sequence, message, known.config, self._now)

    def _enter(self, messages: list[NewMessage]) -> None:
        if messages:
            with a_round(self._ledger):
                self._ledger.restore_messages(messages)
            self.report.item_count += sum(len(one.items) for one in messages)

    # Files of version 1

    def _strays_of(self, number: int) -> list[FoundTerm]:
        fd = self._files.open(path_of(self._store.messages, number, is_version_1=True))
        try:
            end = self._files.size(fd)
            return list(
                scan_strays(
                    lambda at, size: read_exactly(self._files, fd, size, at), end, _is_message
                )
            )
        finally:
            self._files.close(fd)

    def _check_strays(self, strays: Mapping[int, list[FoundTerm]]) -> None:
        count = sum(one.msg_id not in self._old_ids for found in strays.values() for one in found)
        if count and self._rebuilding.strays is None:
            raise RebuildRefused(
                f"there are {count} {STRAYS}: --strays NAME names one that takes them, or move the .rdq "
                "files away"
            )
        counts = self.report.findings.counts
        if counts[NO_QUEUE] and not self._objects:
            raise RebuildRefused(
                "there are messages, and the registry has no queue: bring registry/ back first"
            )

    def _take_strays(self, number: int, found: list[FoundTerm]) -> None:
        new = []
        if found:
            row = self._stray_queue()
            sequence = row.next_sequence
            for one in found:
                if one.msg_id in self._old_ids:
                    continue
                self._old_ids.add(one.msg_id)
                item = Item(
                    row.inside, sequence, ItemState.READY, 0, None, None, self._now, 0, None
                )
                new.append(NewMessage(one.msg_id, number, one.position, one.size, [item]))
                sequence += 1
        with a_round(self._ledger):
            if new:
                self._ledger.restore_messages(new)
            size = max((one.position + one.size for one in found), default=0)
            self._ledger.set_file_size(number, max(size, self._size_of(number)))
            self._ledger.set_file_state(number, FileState.SEALED)
        self.report.stray_count += len(new)

    def _size_of(self, number: int) -> int:
        fd = self._files.open(path_of(self._store.messages, number, is_version_1=True))
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def _stray_queue(self) -> QueueRow:
        name = self._rebuilding.strays
        assert name is not None
        row = self._ledger.queue_named(self._rebuilding.strays_tenant, name)
        if row is None:
            made = QueueObject(
                self._stray_id, self._rebuilding.strays_tenant, name, QueueConfig(), 1, 0, 0
            )
            with a_round(self._ledger):
                row = self._make_queue(made)
        return row


@guard("the time of a ledger that is made anew is not before its messages")
def goes_on_from(now: int, latest: int) -> int:
    """The time from which that of queues goes on. It may have been ahead of a wall clock that was set back: what
    was published then would else be delayed until that has caught up.
    """
    return max(now, latest)


def _is_message(term: memoryview) -> bool:
    try:
        decode_classic_message(term)
    except Corrupt:
        return False
    return True


def _item(
    row: QueueRow, sequence: int, message: QueueMessage, config: QueueConfig, now: int
) -> Item:
    ends = [message.expires_at] if message.expires_at is not None else []
    if config.message_ttl_ms is not None:
        ends.append(message.published_at + config.message_ttl_ms)
    due_at = message.due_at
    if due_at is None:
        due_at = message.published_at + config.delay_ms
    waits = due_at > now
    return Item(
        row.inside,
        sequence,
        ItemState.DELAYED if waits else ItemState.READY,
        message.priority,
        due_at if waits else None,
        min(ends, default=None),
        message.published_at,
        0,
        None,
    )
