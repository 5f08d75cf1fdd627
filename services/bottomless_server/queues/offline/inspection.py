"""What lies in message files, by their own bytes (a scan), and whether the ledger is right about it (a check)."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bottomless.errors import Corrupt
from bottomless.formats.classic_message import decode_classic_message
from bottomless.formats.envelope import decode_envelope
from bottomless.formats.message_file import HEADER_SIZE, Finding, check_file_header, scan
from bottomless.formats.rdq import scan_strays
from bottomless_server.node.file_calls import read_exactly
from bottomless_server.queues.core.states import FileState
from bottomless_server.queues.ledger.base import Ledger, Message
from bottomless_server.queues.offline.findings import Findings
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.bodies import BodyPlace, checked_record
from bottomless_server.queues.store.names import (
    FileName,
    is_of_version_1,
    parse_file_name,
    path_of,
)
from bottomless_server.queues.store.version_1 import read_term

ROWS: Final = "rows of the ledger that do not fit each other"
FILES: Final = "files that are not what the ledger says"
MESSAGES: Final = "messages that are not where the ledger says"


@dataclass(frozen=True, slots=True)
class FileScan:
    """What a file has, by its own bytes."""

    name: str
    size: int
    counts: dict[str, int]
    """How many messages, holes, … it has; of version 1 only messages, dead ones too."""
    bytes: dict[str, int]

    def as_json(self) -> dict[str, object]:
        return {"file": self.name, "size": self.size, "counts": self.counts, "bytes": self.bytes}


def scan_files(store: StoreDirectory) -> Iterator[FileScan]:
    """Look at each message file, in the order of their numbers; no ledger is needed.

    Raises:
        OSError: a file cannot be read.
    """
    for name in _files(store):
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        with _opened(store, name) as (fd, end):
            for what, size in _ranges(store, name, fd, end):
                counts[what] += 1
                sizes[what] += size
        yield FileScan(path_name(name), end, dict(counts), dict(sizes))


def _ranges(store: StoreDirectory, name: FileName, fd: int, end: int) -> Iterator[tuple[str, int]]:
    def reads(position: int, size: int) -> bytes:
        return read_exactly(store.files, fd, size, position)

    if name.is_version_1:
        for one in scan_strays(reads, end, _is_message):
            yield Finding.MESSAGE.name.lower(), one.size
        return
    try:
        check_file_header(reads(0, HEADER_SIZE))
    except Corrupt:
        yield Finding.LOST.name.lower(), end
        return
    for found in scan(reads, end):
        yield found.what.name.lower(), found.size


def _is_message(term: memoryview) -> bool:
    try:
        decode_classic_message(term)
    except Corrupt:
        return False
    return True


def verify_store(store: StoreDirectory, ledger: Ledger) -> Findings:
    """Compare a ledger with its files: every message that it names is read and checked.

    Raises:
        OSError, LedgerFailed: the disk fails.
    """
    findings = Findings()
    for fault in ledger.check():
        findings.add(ROWS, fault)
    last = ledger.store().last_v1_file
    there = {name.number: name for name in _files(store)}
    for row in ledger.files():
        name = there.pop(row.number, None)
        if row.state is FileState.DOOMED:
            continue
        if name is None:
            findings.add(FILES, f"{row.number}: there is none")
            continue
        if name.is_version_1 != is_of_version_1(row.number, last):
            findings.add(
                FILES, f"{path_name(name)}: the ledger says that it is of the other version"
            )
            continue
        with _opened(store, name) as (fd, end):
            if end != row.size:
                findings.add(FILES, f"{path_name(name)}: it has {end} bytes, not {row.size}")
            for message in ledger.live(row.number):
                _verify_message(store, name, fd, message, findings)
    for name in there.values():
        findings.add(FILES, f"{path_name(name)}: the ledger does not know it")
    return findings


def _verify_message(
    store: StoreDirectory, name: FileName, fd: int, message: Message, findings: Findings
) -> None:
    data = read_exactly(store.files, fd, message.size, message.position)
    try:
        if name.is_version_1:
            read_term(message.msg_id, data)
        else:
            decode_envelope(checked_record(BodyPlace(*message[1:]), data).body)
    except Corrupt as error:
        where = f"{path_name(name)}: {message.msg_id.hex()} at {message.position}"
        findings.add(MESSAGES, f"{where}: {error.message}")


def path_name(name: FileName) -> str:
    return f"{name.number}.{'rdq' if name.is_version_1 else 'sqs'}"


def _files(store: StoreDirectory) -> list[FileName]:
    names = (parse_file_name(name) for name in store.files.names(store.messages))
    return sorted(name for name in names if name is not None)


@contextmanager
def _opened(store: StoreDirectory, name: FileName) -> Iterator[tuple[int, int]]:
    path = path_of(store.messages, name.number, is_version_1=name.is_version_1)
    fd = store.files.open(path)
    try:
        yield fd, store.files.size(fd)
    finally:
        store.files.close(fd)
