"""The directory of a RabbitMQ node that is stopped: which messages its classic queues have. Only read.

    NODE/msg_stores/vhosts/*/   .vhost  .config  msg_store_persistent/{n}.rdq
                                queues/*/  .queue_name  journal.jif  {s}.idx  {s}.qi  {s}.qs

The indexes of a queue are read segment by segment, so that no more than one of them is in memory.
What is not of a known shape is a finding: it is counted and named, and nobody guesses what it means.
"""

import heapq
import mmap
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.classic_index import (
    Acknowledged,
    Embedded,
    Entry,
    Published,
    Rest,
    Stored,
    read_journal,
    read_segment,
)
from bottomless.formats.classic_index_2 import (
    FRAME_SIZE,
    Unknown,
    check_store_header,
    read_index,
    read_stored_term,
)
from bottomless.formats.classic_names import (
    SIZE_MAX,
    QueueDirectory,
    decode_queue_name,
    decode_segment_entry_count,
    decode_vhost,
)
from bottomless_server.queues.offline.findings import Findings

VHOSTS: Final = Path("msg_stores/vhosts")
JOURNAL: Final = "journal.jif"
_MESSAGE_STORE: Final = "msg_store_persistent"
_ENDED_CLEANLY: Final = "clean.dot"
"""A broker writes it when it stops, and removes it when it starts."""
UNKNOWN_INDEX: Final = "parts of indexes of an unknown shape"
UNKNOWN_DIRECTORY: Final = "directories of an unknown shape"
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,18})\.(idx|qi|rdq|rdt)", re.ASCII)
_COUNTER_MAX: Final = 2**62


class NotANode(Exception):
    """A directory is not that of a node, or not one that can be imported."""


class SourceQueue(NamedTuple):
    """A directory of a queue, or of one priority of it."""

    path: Path
    name: str
    priority: int | None
    """0 to 255; None of a queue without priorities."""


class SourceVhost(NamedTuple):
    """A virtual host with all of its queues, whether they have messages or not."""

    path: Path
    name: str
    segment_entry_count: int
    queues: dict[str, tuple[SourceQueue, ...]]
    """The directories of each queue, by its name, in the order in which its messages are delivered."""


class LiveMessage(NamedTuple):
    """A message that a queue has still, and where its term is."""

    sequence: int
    where: Stored | Embedded
    file: Path
    """The file of an embedded term; of a stored one, the index."""
    expires_at: int | None


def find_vhosts(node: Path, findings: Findings) -> list[SourceVhost]:
    """The virtual hosts of a node, by their names.

    Raises:
        NotANode: there are none, or two of them have one name.
        OSError: a file cannot be read.
    """
    root = node / VHOSTS
    if not root.is_dir():
        raise NotANode(f"{node} has no {VHOSTS}: name the data directory of a RabbitMQ node")
    found = []
    for path in sorted(one for one in root.iterdir() if one.is_dir()):
        try:
            name = decode_vhost(_small(path / ".vhost") or b"")
            entry_count = decode_segment_entry_count(_small(path / ".config"))
        except Corrupt as error:
            findings.add(UNKNOWN_DIRECTORY, f"{path}: {error.message}")
            continue
        found.append(SourceVhost(path, name, entry_count, _queues(path, name, findings)))
    if not found:
        raise NotANode(f"{root} has no virtual host that can be read")
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise NotANode(f"two directories say that they are of the virtual host {twice[0]}")
    return sorted(found, key=lambda vhost: vhost.name)


def _queues(vhost: Path, name: str, findings: Findings) -> dict[str, tuple[SourceQueue, ...]]:
    found: dict[str, list[SourceQueue]] = defaultdict(list)
    root = vhost / "queues"
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        try:
            said = _queue_directory(path, name)
        except Corrupt as error:
            findings.add(UNKNOWN_DIRECTORY, f"{path}: {error.message}")
            continue
        found[said.queue].append(SourceQueue(path, said.queue, said.priority))
    for queues in found.values():
        # The highest priority is delivered first.
        queues.sort(key=lambda one: -1 if one.priority is None else one.priority, reverse=True)
    return {queue: tuple(found[queue]) for queue in sorted(found)}


def _queue_directory(path: Path, vhost: str) -> QueueDirectory:
    said = decode_queue_name(_small(path / ".queue_name") or b"")
    if said.vhost != vhost:
        raise Corrupt("it says that it is of another virtual host")
    return said


def _small(path: Path) -> bytes | None:
    """A small file, or the beginning of one that is too large; None if there is none."""
    try:
        with path.open("rb") as file:
            return file.read(SIZE_MAX)
    except FileNotFoundError:
        return None


def message_files(vhost: SourceVhost) -> list[Path]:
    """Files of the message store, by their numbers; those that a compaction left unfinished come last."""
    root = vhost.path / _MESSAGE_STORE
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        match = _NUMBER.fullmatch(path.name)
        if match is not None and match[2] in ("rdq", "rdt"):
            found.append((match[2], int(match[1]), path))
    return [path for *_, path in sorted(found)]


def message_file_fault(vhost: SourceVhost, files: list[Path]) -> str | None:
    """Why a file of the message store may be missing; None if nothing speaks for that.

    A broker always has a file that it writes into. It numbers them from 0 on and removes those in
    which nothing is needed, so a number that is not there is no fault by itself; but then nobody can
    tell a message that was in it from one that a broker lost when it was killed. One that ended
    cleanly has lost none.
    """
    numbers = sorted({int(path.stem) for path in files})
    root = vhost.path / _MESSAGE_STORE
    if not any(path.suffix == ".rdq" for path in files):
        return f"{root} has no message file"
    gap = next((place for place, number in enumerate(numbers) if place != number), None)
    if gap is not None:
        return f"{root / str(gap)}.rdq is not there"
    if (root / _ENDED_CLEANLY).is_file():
        return f"{root} was closed cleanly"
    return None


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, which take no memory of their own. No view of them outlives the block."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            view = memoryview(data)
            try:
                yield view
            finally:
                view.release()


def live_messages(
    queue: SourceQueue, segment_entry_count: int, findings: Findings
) -> Iterator[LiveMessage]:
    """The messages of a queue's directory that its broker would deliver after a start, in their order.

    Of those in its message store some may have no body there: the broker leaves these out.
    """
    one = _version_1(queue.path, segment_entry_count, findings)
    two = _version_2(queue.path, findings)
    last = -1
    # A broker that was stopped while it converted a queue has left some messages in both.
    for message in heapq.merge(two, one, key=lambda message: message.sequence):
        if message.sequence != last:
            last = message.sequence
            yield message


def _version_1(path: Path, entry_count: int, findings: Findings) -> Iterator[LiveMessage]:
    journal: dict[int, list[Published | Acknowledged]] = defaultdict(list)
    journal_path = path / JOURNAL
    if journal_path.exists():
        with mapped(journal_path) as data:
            for one in _known(read_journal(data), data, journal_path, findings):
                journal[one.sequence // entry_count].append(one)
    segments = _numbered(path, "idx")
    for number in sorted(segments.keys() | journal.keys()):
        found: dict[int, LiveMessage] = {}
        gone = set()
        with mapped(segments[number]) if number in segments else _nothing() as data:
            entries = read_segment(data, number, entry_count)
            file = segments.get(number, journal_path)
            known = list(_known(entries, data, file, findings))
        in_segment = ((file, entry) for entry in known)
        in_journal = ((journal_path, entry) for entry in journal[number])
        for origin, entry in chain(in_segment, in_journal):
            if isinstance(entry, Published):
                found.setdefault(entry.sequence, _live(entry, origin))
                if not entry.persistent:
                    gone.add(entry.sequence)
            elif isinstance(entry, Acknowledged):
                gone.add(entry.sequence)
        yield from (found[sequence] for sequence in sorted(found) if sequence not in gone)


def _known(
    entries: Iterator[Entry], data: memoryview, file: Path, findings: Findings
) -> Iterator[Published | Acknowledged]:
    for entry in entries:
        if isinstance(entry, Published | Acknowledged):
            yield entry
        elif isinstance(entry, Rest) and any(data[entry.position :]):
            # Zeros are what a loss of power leaves, and what a broker does not read either.
            findings.add(UNKNOWN_INDEX, f"{file}: {entry.size} bytes from {entry.position} on")


def _live(entry: Published, file: Path) -> LiveMessage:
    return LiveMessage(entry.sequence, entry.where, file, entry.expires_at)


@contextmanager
def _nothing() -> Iterator[memoryview]:
    yield memoryview(b"")


def _version_2(path: Path, findings: Findings) -> Iterator[LiveMessage]:
    last = -1
    for number, index in sorted(_numbered(path, "qi").items()):
        store = path / f"{number}.qs"
        with mapped(index) as data:
            try:
                found = list(read_index(data))
            except Corrupt as error:
                findings.add(UNKNOWN_INDEX, f"{index}: {error.message}")
                continue
        for entry in found:
            if isinstance(entry, Unknown):
                findings.add(UNKNOWN_INDEX, f"{index}: message {entry.sequence}: {entry.what}")
            elif entry.sequence <= last:
                findings.add(UNKNOWN_INDEX, f"{index}: message {entry.sequence} is in two indexes")
            elif entry.persistent:
                last = entry.sequence
                yield _live(entry, store if isinstance(entry.where, Embedded) else index)


def _numbered(path: Path, kind: str) -> dict[int, Path]:
    found = {}
    for one in path.iterdir():
        match = _NUMBER.fullmatch(one.name)
        if match is not None and match[2] == kind and int(match[1]) < _COUNTER_MAX:
            found[int(match[1])] = one
    return found


class Terms:
    """Reads embedded terms, mostly one after the other of one file."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._data = b""

    def read(self, message: LiveMessage) -> bytes:
        """The term of a message that is in a file of its queue.

        Raises:
            Corrupt: there is none.
            OSError: the file cannot be read.
        """
        where = message.where
        assert isinstance(where, Embedded)
        try:
            with message.file.open("rb") as file:
                if where.framed and message.file != self._path:
                    check_store_header(file.read(64))
                    self._path = message.file
                file.seek(where.position)
                size = where.size + (FRAME_SIZE if where.framed else 0)
                left = max(message.file.stat().st_size - where.position, 0)
                data = file.read(min(size, left))
        except FileNotFoundError as error:
            raise Corrupt(f"there is no {message.file.name}") from error
        if where.framed:
            return bytes(read_stored_term(data, where.size))
        if len(data) != where.size:
            raise Corrupt("its file ends before it")
        return data
