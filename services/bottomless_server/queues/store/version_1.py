"""Message files of version 1: `.rdq` files that came from RabbitMQ, read where they lie until they are empty.

Nothing is ever written into one. It goes when nothing of it is needed, or is written anew as a file of
version 2: terms become envelopes.

| Step | Does | On disk after a crash in it, or after a loss of power |
|---|---|---|
| R0 | a round gives the new file its number and a row, and sets `moving` for both | nothing |
| R1 | records into `{n}.sqs.new`, a sync, a rename, a sync of the directory | perhaps the new file, under either name: a `moving` file that no message names goes, with its row |
| R2 | a round: items that are there still get the new records; the new file `sealed`, and the old one, which is `doomed` if it is empty | the ledger before or after; both files whole |

A message that cannot be read is damaged from R2 on, and its file stays for an operator; so does one that
is on its way out, until it has arrived.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.amqp import Timestamp
from bottomless.formats.checks import check
from bottomless.formats.classic_message import ClassicMessage, decode_classic_message, queue_message
from bottomless.formats.envelope import encode_envelope
from bottomless.formats.message_file import (
    HEADER_SIZE,
    RECORD_SIZE_MAX,
    encode_file_header,
    encode_record,
)
from bottomless.formats.rdq import decode_rdq_record
from bottomless.model.limits import TIMESTAMP_MAX
from bottomless.model.queue import QueuePlace
from bottomless_server.node.file_calls import FileCalls, read_exactly, write_all
from bottomless_server.queues.core.states import FileState, ItemState
from bottomless_server.queues.ledger.base import Item, Ledger, Message, NewMessage, Stored
from bottomless_server.queues.store.names import fresh_path, path_of
from bottomless_server.queues.store.removal import remove_begun
from bottomless_server.queues.store.steps import InRound, OnDisk, Step

NOWHERE: Final = QueuePlace(bytes(16), 0)
"""The place in the envelope of a message that is read where it lies: only its items know its queues."""
_ITEM_COUNT_MAX: Final = 10_000_000
"""More items than a file can have; a bound for the sake of having one."""
_AT_ONCE: Final = 1024 * 1024
"""Bytes of records that are held in memory, but for one record that is larger."""


def read_term(msg_id: bytes, record: bytes | memoryview) -> ClassicMessage:
    """The message in a record of version 1, which must be the one that is meant.

    Raises:
        Corrupt: it is another one, or of a shape that is not known.
    """
    found, term = decode_rdq_record(record)
    why = f"it is of {found.hex()}, not of {msg_id.hex()}"
    check("record of a message file", found == msg_id, why)
    return decode_classic_message(term)


def envelope_of(msg_id: bytes, record: bytes | memoryview) -> bytes:
    """The body of a record of version 2 for a message that is read where it lies.

    When it was published, when it expires and its priority are in its item, and not in here; but for
    the time that its publisher gave it, if one did, which counts where it goes on to a stream.

    Raises:
        Corrupt: as of `read_term`.
    """
    term = read_term(msg_id, record)
    said = term.properties.get("timestamp")
    moment = said.milliseconds if isinstance(said, Timestamp) else 0
    published_at = moment if moment <= TIMESTAMP_MAX else 0
    message = queue_message(
        term, (NOWHERE,), published_at=published_at, expires_at=None, priority=0
    )
    return b"".join(encode_envelope(message))


class _Wanted(NamedTuple):
    """A message with its items, and where each of them is."""

    message: Message
    items: tuple[Item, ...]
    queues: tuple[QueuePlace, ...]


@dataclass(slots=True)
class Rewritten:
    """What became of a file of version 1."""

    fresh: int | None = None
    """The new file; None if there was nothing to write."""
    places: list[tuple[_Wanted, int, int]] = field(default_factory=list)
    """Each message with its new position and size."""
    unreadable: list[tuple[_Wanted, str]] = field(default_factory=list)
    """Messages that stay in the old file, and why."""
    end: int = HEADER_SIZE


def rewrite_version_1(
    files: FileCalls, directory: Path, number: int, *, checksum: bool = True
) -> Generator[Step, Any, Rewritten]:
    """Write a sealed file of version 1 anew.

    Raises:
        OSError: the disk did not do it; the file is as it was.
    """
    begun = yield InRound(lambda ledger: _begin(ledger, number))
    if begun.value is None:
        return Rewritten()
    fresh, wanted = begun.value
    result = Rewritten(fresh)
    old, new = path_of(directory, number, is_version_1=True), path_of(directory, fresh)
    try:
        yield OnDisk(lambda: _write(files, old, new, wanted, result, checksum=checksum))
    except OSError:
        gone = yield OnDisk(lambda: remove_begun(files, new))
        yield InRound(lambda ledger: _give_up(ledger, number, fresh if gone else None))
        raise
    yield InRound(lambda ledger: _moved(ledger, number, result))
    return result


def _begin(ledger: Ledger, number: int) -> tuple[int, list[_Wanted]] | None:
    row = ledger.file(number)
    if row is None or row.state is not FileState.SEALED or not row.valid:
        return None
    by_message: dict[int, list[Stored]] = defaultdict(list)
    for stored in ledger.items_in_file(number, _ITEM_COUNT_MAX):
        by_message[stored.message.id].append(stored)
    ids: dict[int, bytes | None] = {}
    wanted = []
    for stored_items in by_message.values():
        there = []
        for stored in stored_items:
            inside = stored.item.inside
            if inside not in ids:
                queue = ledger.queue_inside(inside)
                ids[inside] = None if queue is None else queue.queue_id
            queue_id = ids[inside]
            # Those of a queue that was purged or deleted are swept soon.
            if queue_id is not None:
                there.append((stored.item, QueuePlace(queue_id, stored.item.sequence)))
        if there:
            items, places = zip(*there, strict=True)
            wanted.append(_Wanted(stored_items[0].message, items, places))
    if not wanted:
        return None
    wanted.sort(key=lambda one: one.message.position)
    fresh = ledger.add_file(FileState.MOVING)
    ledger.set_file_state(number, FileState.MOVING)
    return fresh, wanted


def _write(
    files: FileCalls,
    old: Path,
    new: Path,
    wanted: Sequence[_Wanted],
    result: Rewritten,
    *,
    checksum: bool,
) -> None:
    source = files.open(old)
    try:
        fresh = fresh_path(new)
        target = files.open(fresh, create=True)
        try:
            _copy(files, source, target, wanted, result, checksum=checksum)
            files.fdatasync(target)
        finally:
            files.close(target)
    finally:
        files.close(source)
    files.rename(fresh, new)
    files.fsync_dir(new.parent)


def _copy(
    files: FileCalls,
    source: int,
    target: int,
    wanted: Sequence[_Wanted],
    result: Rewritten,
    *,
    checksum: bool,
) -> None:
    parts: list[bytes | memoryview] = [encode_file_header()]
    held, position = 0, 0
    for one in wanted:
        data = read_exactly(files, source, one.message.size, one.message.position)
        try:
            record = _record(one, data, checksum=checksum)
        except Corrupt as error:
            result.unreadable.append((one, error.message))
            continue
        size = sum(memoryview(part).nbytes for part in record)
        result.places.append((one, result.end, size))
        result.end += size
        parts += record
        held += size
        if held >= _AT_ONCE:
            position = write_all(files, target, parts, position)
            parts, held = [], 0
    write_all(files, target, parts, position)


def _record(one: _Wanted, data: bytes, *, checksum: bool) -> list[bytes | memoryview]:
    first = one.items[0]
    expires = [item.expires_at for item in one.items]
    message = queue_message(
        read_term(one.message.msg_id, data),
        one.queues,
        published_at=min(first.published_at, TIMESTAMP_MAX),
        # Of a message in several queues it is its own end only if it is the end in all of them.
        expires_at=expires[0] if len(set(expires)) == 1 else None,
        priority=max(item.priority for item in one.items),
    )
    body = encode_envelope(message)
    size = sum(memoryview(part).nbytes for part in body)
    check("record of a message file", size < RECORD_SIZE_MAX - 64, f"it has {size} bytes")
    return encode_record(one.message.msg_id, body, checksum=checksum)


def _moved(ledger: Ledger, number: int, result: Rewritten) -> None:
    assert result.fresh is not None
    ledger.set_file_size(result.fresh, result.end)
    for one, position, size in result.places:
        there = _still_there(ledger, one)
        if there:
            ledger.remove_items(there)
            items = [stored.item for stored in there]
            message = NewMessage(one.message.msg_id, result.fresh, position, size, items)
            ledger.restore_messages([message])
    for one, _ in result.unreadable:
        there = _still_there(ledger, one)
        damaged = [
            (stored, stored.item._replace(state=ItemState.DAMAGED, due_at=None)) for stored in there
        ]
        ledger.change_items(damaged)
    # As of a rewrite: the new one is doomed too, if everything was acknowledged meanwhile.
    ledger.set_file_state(result.fresh, FileState.SEALED)
    ledger.set_file_state(number, FileState.SEALED)


def _still_there(ledger: Ledger, one: _Wanted) -> list[Stored]:
    """Items of a message as they are now: taken, given back and delayed meanwhile, but not gone."""
    found = []
    for item in one.items:
        stored = ledger.items(item.inside, [item.sequence]).get(item.sequence)
        is_live = stored is not None and ledger.queue_inside(item.inside) is not None
        if stored is not None and is_live and stored.message.id == one.message.id:
            found.append(stored)
    return found


def _give_up(ledger: Ledger, number: int, fresh: int | None) -> None:
    ledger.set_file_state(number, FileState.SEALED)
    # A row whose file may be there stays for the next start, which removes both.
    if fresh is not None:
        ledger.remove_file(fresh)
