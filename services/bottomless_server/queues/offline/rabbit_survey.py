"""What an import of a RabbitMQ node would take: every message is looked for and read once, nothing is written."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from bottomless.errors import Corrupt
from bottomless.formats.classic_index import Stored
from bottomless.formats.classic_message import decode_classic_message
from bottomless.formats.rdq import decode_rdq_record, scan_rdq
from bottomless_server.queues.offline.findings import Findings
from bottomless_server.queues.offline.rabbit_source import (
    UNKNOWN_DIRECTORY,
    UNKNOWN_INDEX,
    LiveMessage,
    NotANode,
    SourceVhost,
    Terms,
    find_vhosts,
    live_messages,
    mapped,
    message_file_fault,
    message_files,
)

UNKNOWN_MESSAGE: Final = "messages of an unknown shape"
NO_BODY: Final = "entries of indexes without a message"
NO_FILE: Final = "entries of indexes whose message file may be missing"
OTHER_KINDS: Final = "quorum queues and streams, which are not read"
LOSSES: Final = (UNKNOWN_DIRECTORY, UNKNOWN_INDEX, UNKNOWN_MESSAGE, NO_FILE)
"""Findings that may mean messages which an import leaves out. A broker leaves out what has no body, too."""


class StoredPlace(NamedTuple):
    """The place of a message in the message store: a file by its place in a list, and its record there."""

    file: int
    position: int
    size: int


@dataclass(slots=True)
class QueueSurvey:
    """What a queue has."""

    name: str
    message_count: int = 0
    byte_count: int = 0
    """Bytes of terms, with those that other queues have too."""


@dataclass(slots=True)
class VhostSurvey:
    """What a virtual host has."""

    vhost: SourceVhost
    files: list[Path]
    places: dict[bytes, StoredPlace] = field(default_factory=dict)
    """The places of messages in its message store that a queue has, by their ids."""
    unknown: set[bytes] = field(default_factory=set)
    """Ids of messages that are of no known shape."""
    queues: list[QueueSurvey] = field(default_factory=list)
    """The queues that have messages."""
    empty_count: int = 0
    """Queues without one."""
    file_fault: str | None = None
    """Why a message that is nowhere may be in a file that is missing; None if nothing speaks for that."""

    def needed_files(self) -> list[int]:
        """The message files that hold something that is needed, by their places in the list."""
        return sorted({place.file for place in self.places.values()})


@dataclass(slots=True)
class Survey:
    """What a node has."""

    node: Path
    vhosts: list[VhostSurvey]
    findings: Findings
    print: dict[Path, tuple[int, int]]
    """Size and time of change of each file that was read: a broker that still runs changes some."""

    @property
    def message_count(self) -> int:
        return sum(queue.message_count for vhost in self.vhosts for queue in vhost.queues)

    def losses(self) -> list[str]:
        """Kinds of findings for which an import may leave something out."""
        return [kind for kind in LOSSES if self.findings.counts[kind]]

    def queues(self) -> Iterator[dict[str, object]]:
        """Every queue that has messages."""
        for one in self.vhosts:
            for queue in one.queues:
                yield {
                    "vhost": one.vhost.name,
                    "queue": queue.name,
                    "messages": queue.message_count,
                    "bytes": queue.byte_count,
                }

    def as_json(self) -> dict[str, object]:
        return {
            "messages": self.message_count,
            "message_files": sum(len(one.needed_files()) for one in self.vhosts),
            "empty_queues": sum(one.empty_count for one in self.vhosts),
            "queues": list(self.queues()),
            "findings": self.findings.as_json(),
        }


def survey(node: Path) -> Survey:
    """Look at everything that a node has.

    Raises:
        NotANode: it is none.
        OSError: a file cannot be read.
    """
    findings = Findings()
    found = Survey(node, [], findings, fingerprint(node))
    for vhost in find_vhosts(node, findings):
        found.vhosts.append(_survey_vhost(vhost, findings))
    for path in sorted((*node.glob("quorum/*/*"), *node.glob("stream/*"))):
        if path.is_dir():
            findings.add(OTHER_KINDS, str(path))
    return found


def fingerprint(node: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of change of all that an import reads."""
    found = {}
    for path in (node / "msg_stores").rglob("*"):
        if path.is_file():
            status = path.stat()
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def check_unchanged(found: Survey) -> None:
    """Refuse to go on with what has changed since the survey.

    Raises:
        NotANode: it says what to do.
    """
    if fingerprint(found.node) != found.print:
        raise NotANode(f"files in {found.node} have changed meanwhile: stop the broker first")


def _survey_vhost(vhost: SourceVhost, findings: Findings) -> VhostSurvey:
    files = message_files(vhost)
    found = VhostSurvey(vhost, files, file_fault=message_file_fault(vhost, files))
    wanted = {
        message.where.msg_id
        for name in vhost.queues
        for message in messages_of(vhost, name, Findings())
        if isinstance(message.where, Stored)
    }
    _find_bodies(found, wanted, findings)
    for name in vhost.queues:
        queue = QueueSurvey(name)
        for _, size in taken(found, name, findings):
            queue.message_count += 1
            queue.byte_count += size
        if queue.message_count:
            found.queues.append(queue)
        else:
            found.empty_count += 1
    return found


def _find_bodies(found: VhostSurvey, wanted: Collection[bytes], findings: Findings) -> None:
    whole = [number for number, path in enumerate(found.files) if path.suffix == ".rdq"]
    # Of an id that is there twice the file with the higher number counts; what a compaction that died
    # left in files of its own counts only where there is nothing else.
    rest = [number for number in range(len(found.files)) if number not in whole]
    left = set(wanted)
    for number in (*reversed(whole), *rest):
        if not left:
            return
        with mapped(found.files[number]) as data:
            for one in scan_rdq(_reads(data), len(data), left):
                left.discard(one.msg_id)
                found.places[one.msg_id] = StoredPlace(number, one.position, one.size)
                record = data[one.position : one.position + one.size]
                try:
                    decode_classic_message(decode_rdq_record(record)[1])
                except Corrupt as error:
                    what = f"{found.files[number]}: {one.msg_id.hex()}: {error.message}"
                    findings.add(UNKNOWN_MESSAGE, what)
                    found.unknown.add(one.msg_id)
                    del found.places[one.msg_id]
                finally:
                    record.release()


def _reads(data: memoryview) -> Callable[[int, int], bytes]:
    """Reads of mapped bytes, as copies: no view outlives the mapping."""
    return lambda position, size: bytes(data[position : position + size])


def messages_of(vhost: SourceVhost, name: str, findings: Findings) -> Iterator[LiveMessage]:
    """The messages of a queue, in the order of their delivery."""
    for directory in vhost.queues[name]:
        yield from live_messages(directory, vhost.segment_entry_count, findings)


class Taken(NamedTuple):
    """A message that an import takes."""

    message: LiveMessage
    priority: int | None
    """The priority of its directory; None in a queue without priorities."""
    place: StoredPlace | None
    """None of an embedded message."""
    term: bytes
    """The term of an embedded message; empty of others."""


def taken(found: VhostSurvey, name: str, findings: Findings) -> Iterator[tuple[Taken, int]]:
    """The messages of a queue that can be taken, in order, with the bytes of each."""
    terms = Terms()
    for directory in found.vhost.queues[name]:
        for message in live_messages(directory, found.vhost.segment_entry_count, findings):
            where = message.where
            if isinstance(where, Stored):
                place = found.places.get(where.msg_id)
                if place is not None:
                    yield Taken(message, directory.priority, place, b""), place.size
                elif where.msg_id not in found.unknown:
                    _note_no_body(found, message, findings)
                continue
            try:
                term = terms.read(message)
                decode_classic_message(term)
            except Corrupt as error:
                what = f"{message.file}: message {message.sequence}: {error.message}"
                findings.add(UNKNOWN_MESSAGE, what)
                continue
            yield Taken(message, directory.priority, None, term), len(term)


def _note_no_body(found: VhostSurvey, message: LiveMessage, findings: Findings) -> None:
    what = f"{message.file}: message {message.sequence}"
    if found.file_fault is None:
        findings.add(NO_BODY, what)
    else:
        findings.add(NO_FILE, f"{what}: {found.file_fault}")
