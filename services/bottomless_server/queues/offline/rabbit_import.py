"""An import of what the classic queues of a RabbitMQ node have, into an empty store.

| Step | Does | On disk after a crash in it |
|---|---|---|
| I0 | the mark `import`, durably | nothing, or the mark |
| I1 | removes what an import that was cut off has left | the mark, and some of that |
| I2 | message files of the node are copied under new numbers, and synced | the mark, copies, perhaps a ledger |
| I3 | queue by queue into the ledger; embedded messages into new message files | the same |
| I4 | files are sealed; `last_v1_file`; registry objects; the directories are synced | the same |
| I5 | the ledger is checkpointed and closed; the mark goes, durably | the mark over a whole store, or a whole store |

While the mark is there no service starts on the store, and the next import begins anew. The node's files
are only read: they are copied and not linked, since a broker that was started on them again would write
into what the store has, and the store would cut what the broker has.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from bottomless.errors import InvalidRequest
from bottomless.formats.classic_index import Stored
from bottomless.formats.classic_message import decode_classic_message, queue_message
from bottomless.formats.envelope import encode_envelope
from bottomless.formats.message_file import encode_record
from bottomless.guards import guard
from bottomless.model.limits import MIB, PRIORITY_MAX, TIMESTAMP_MAX
from bottomless.model.names import parse_queue_name, parse_tenant
from bottomless.model.queue import QueueConfig, QueuePlace, encode_queue_config
from bottomless_server.node.file_calls import write_all
from bottomless_server.queues.core.message_ids import RANDOM_SIZE, first_id
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import ID_SIZE, Item, Ledger, NewMessage
from bottomless_server.queues.offline.appending import Appender
from bottomless_server.queues.offline.findings import Findings
from bottomless_server.queues.offline.rabbit_survey import (
    Survey,
    Taken,
    VhostSurvey,
    check_unchanged,
    taken,
)
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.alone import a_round
from bottomless_server.queues.store.import_mark import remove_mark, set_mark
from bottomless_server.queues.store.names import path_of

_AT_ONCE: Final = 1_000
"""Messages that are entered in one round."""
_COPY_SIZE: Final = MIB


class ImportRefused(Exception):
    """An import would not do what is meant; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Importing:
    """What is imported as what."""

    tenants: Mapping[str, str | None]
    """The tenant that gets the queues of each virtual host; None leaves it out."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """New names of queues, by those that they have, or by VHOST/NAME for a queue of one virtual host."""
    accept_loss: bool = False
    """Whether messages that cannot be read, or are missing, are left out."""
    checksum: bool = True
    file_bytes_max: int = 16 * MIB


@dataclass(frozen=True, slots=True)
class ImportedQueue:
    """A queue that was made."""

    tenant: str
    name: str
    vhost: str
    source: str
    message_count: int


def plan_queues(found: Survey, importing: Importing) -> list[ImportedQueue]:
    """The queues that an import makes, in its order.

    Raises:
        ImportRefused: something is not said, or does not fit; it says all of it.
    """
    faults = []
    known = {one.vhost.name for one in found.vhosts}
    unsaid = sorted(known - importing.tenants.keys())
    if unsaid:
        faults.append(f"no tenant is named for {_listed(unsaid)}: --vhost NAME=TENANT")
    strange = sorted(importing.tenants.keys() - known)
    if strange:
        faults.append(f"the node has no virtual host {_listed(strange)}")
    faults += _faults_of_tenants(importing)
    planned: dict[tuple[str, str], ImportedQueue] = {}
    unused = set(importing.renames)
    for one in found.vhosts:
        tenant = importing.tenants.get(one.vhost.name)
        if tenant is None:
            continue
        for queue in one.queues:
            # What names the virtual host too counts before what is meant in all of them.
            olds = (f"{one.vhost.name}/{queue.name}", queue.name)
            unused.difference_update(olds)
            name = next(
                (importing.renames[old] for old in olds if old in importing.renames), queue.name
            )
            made = ImportedQueue(tenant, name, one.vhost.name, queue.name, queue.message_count)
            faults += _faults_of(made, planned.get((tenant, name)))
            planned[tenant, name] = made
    if unused:
        faults.append(f"no queue with messages is called {_listed(sorted(unused))}")
    losses = found.losses()
    if losses and not importing.accept_loss:
        counts = ", ".join(f"{found.findings.counts[kind]} {kind}" for kind in losses)
        faults.append(f"there are {counts}; --accept-loss leaves them out")
    if faults:
        raise ImportRefused("; ".join(faults))
    return list(planned.values())


def _faults_of(made: ImportedQueue, other: ImportedQueue | None) -> list[str]:
    faults = []
    if other is not None:
        faults.append(
            f"two queues would be {made.name!r} of {made.tenant}: {other.source!r} of "
            f"{other.vhost!r} and {made.source!r} of {made.vhost!r}: --rename VHOST/OLD=NEW"
        )
    try:
        parse_queue_name(made.name)
    except InvalidRequest as error:
        faults.append(f"{made.source!r} of {made.vhost!r}: {error.message}: --rename OLD=NEW")
    return faults


def _faults_of_tenants(importing: Importing) -> list[str]:
    faults = []
    for vhost, tenant in importing.tenants.items():
        try:
            if tenant is not None:
                parse_tenant(tenant)
        except InvalidRequest as error:
            faults.append(f"the tenant of {vhost!r}: {error.message}: --vhost NAME=TENANT")
    return faults


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    queues: list[ImportedQueue]
    copied_files: int = 0
    copied_bytes: int = 0
    last_v1_file: int | None = None


class _Run:
    """One import, from its mark on."""

    def __init__(
        self,
        store: StoreDirectory,
        found: Survey,
        importing: Importing,
        queues: list[ImportedQueue],
        now: int,
        randomness: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._found = found
        self._importing = importing
        self._now = now
        self._randomness = randomness
        self._queues = queues
        self.report = ImportReport(queues)
        self._next_id = int.from_bytes(first_id(now, randomness(RANDOM_SIZE)), "big")

    def run(self) -> None:
        begin(self._store, self._found.node)
        self._store.clear()
        ledger = self._store.open_ledger()
        try:
            self._fill(ledger)
            ledger.checkpoint()
        finally:
            ledger.close()
        check_unchanged(self._found)
        remove_mark(self._store.files, self._store.path)

    def _fill(self, ledger: Ledger) -> None:
        numbers = self._copy_files(ledger)
        with Appender(self._store, ledger, self._importing.file_bytes_max) as appender:
            for queue in self._queues:
                self._enter_queue(ledger, appender, queue, numbers)
            appender.end()
        with a_round(ledger):
            for number in (*numbers.values(), *appender.numbers):
                ledger.set_file_state(number, FileState.SEALED)
            if numbers:
                self.report.last_v1_file = max(numbers.values())
                ledger.set_last_v1_file(self.report.last_v1_file)
            ledger.set_clock(self._now)
        self._store.files.fsync_dir(self._store.messages)
        self._store.write_registry(ledger)
        with a_round(ledger):
            ledger.set_clean(clean=True)

    # Files

    def _copy_files(self, ledger: Ledger) -> dict[tuple[str, int], int]:
        """Copy the message files that are needed; returns their numbers by vhost and place in it."""
        numbers = {}
        wanted = {queue.vhost for queue in self._queues}
        for one in self._found.vhosts:
            for place in one.needed_files() if one.vhost.name in wanted else ():
                with a_round(ledger):
                    number = ledger.add_file(FileState.MOVING)
                    size = self._copy(one.files[place], number)
                    ledger.set_file_size(number, size)
                numbers[one.vhost.name, place] = number
                self.report.copied_files += 1
                self.report.copied_bytes += size
        return numbers

    def _copy(self, source: Path, number: int) -> int:
        files = self._store.files
        fd = files.open(path_of(self._store.messages, number, is_version_1=True), create=True)
        try:
            position = 0
            with source.open("rb") as file:
                while part := file.read(_COPY_SIZE):
                    position = write_all(files, fd, [part], position)
            files.fdatasync(fd)
        finally:
            files.close(fd)
        return position

    # Queues

    def _enter_queue(
        self,
        ledger: Ledger,
        appender: Appender,
        queue: ImportedQueue,
        numbers: Mapping[tuple[str, int], int],
    ) -> None:
        [vhost] = [one for one in self._found.vhosts if one.vhost.name == queue.vhost]
        config = orjson.dumps(encode_queue_config(QueueConfig())).decode()
        with a_round(ledger):
            row = ledger.create_queue(self._randomness(ID_SIZE), queue.tenant, queue.name, config)
        sequence = 0
        messages = self._messages(vhost, queue)
        while batch := list(islice(messages, _AT_ONCE)):
            with a_round(ledger):
                for one in batch:
                    item = self._item(row.inside, sequence, one)
                    if one.place is None:
                        place = QueuePlace(row.queue_id, sequence)
                        new = self._append(appender, one, place, item)
                    else:
                        file = numbers[queue.vhost, one.place.file]
                        new = NewMessage(
                            _id_of(one), file, one.place.position, one.place.size, [item]
                        )
                    ledger.restore_messages([new])
                    sequence += 1

    def _messages(self, vhost: VhostSurvey, queue: ImportedQueue) -> Iterator[Taken]:
        return (one for one, _ in taken(vhost, queue.source, Findings()))

    def _item(self, inside: int, sequence: int, one: Taken) -> Item:
        expires_at = one.message.expires_at
        return Item(
            inside,
            sequence,
            ItemState.READY,
            min(one.priority or 0, PRIORITY_MAX),
            None,
            None if expires_at is None else min(expires_at, TIMESTAMP_MAX),
            self._now,
            0,
            None,
        )

    def _append(self, appender: Appender, one: Taken, place: QueuePlace, item: Item) -> NewMessage:
        """An embedded message into a message file; each queue has a copy of its own, as there."""
        message = queue_message(
            decode_classic_message(one.term),
            (place,),
            published_at=self._now,
            expires_at=item.expires_at,
            priority=item.priority,
        )
        msg_id = self._next_id.to_bytes(ID_SIZE, "big")
        self._next_id += 1
        record = encode_record(msg_id, encode_envelope(message), checksum=self._importing.checksum)
        size = sum(memoryview(part).nbytes for part in record)
        where = appender.add(record)
        return NewMessage(msg_id, where.file, where.position, size, [item])


def _id_of(one: Taken) -> bytes:
    where = one.message.where
    assert isinstance(where, Stored)
    return where.msg_id


@guard("an import is marked before it writes")
def begin(store: StoreDirectory, node: Path) -> None:
    """Mark a store, durably, before anything of the import is in it."""
    set_mark(store.files, store.path, node)


def import_node(
    store: StoreDirectory,
    found: Survey,
    importing: Importing,
    *,
    now: int,
    randomness: Callable[[int], bytes],
) -> ImportReport:
    """Import what a survey has found, under the lock of the store's directory.

    `now` is when the messages count as published, in ms since 1970: a node does not keep that.

    Raises:
        ImportRefused: it would not do what is meant, or the store is not empty; nothing was changed.
        NotANode: a broker has changed the node's files meanwhile; the store keeps its mark.
        OSError, LedgerFailed, WriteFailed: the disk did not do it; the next import begins anew.
    """
    queues = plan_queues(found, importing)
    store.make()
    if not store.is_empty():
        raise ImportRefused(f"{store.path} is not empty: import into a new directory")
    run = _Run(store, found, importing, queues, now, randomness)
    run.run()
    return run.report
