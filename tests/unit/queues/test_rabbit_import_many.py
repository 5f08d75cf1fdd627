"""An import of many messages has all of them in their order, and takes no more memory than one of a few.

`BOTTOMLESS_TEST_IMPORTED=1000000` imports a million (`./dev soak queue-import`).
"""

import os
import sys
from pathlib import Path
from typing import Final

from support.classic_messages import a_term, published_1, write_queue, write_rdq, write_vhost

from bottomless.formats.envelope import decode_envelope
from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.descriptors import Descriptors

COUNT: Final = int(os.environ.get("BOTTOMLESS_TEST_IMPORTED", "400"))
FEW: Final = 100
SEGMENT: Final = 16_384
"""Messages of one file of an index."""
IN_FILES: Final = 10
"""Of so many one lies in the message store, and not in the index."""
FILE_COUNT: Final = 10_000
"""Messages of one file of the message store."""
MORE_KIB: Final = (64 + 32) * 1024
"""What many may take more than a few: the cache of the ledger, and as much again as half of it."""
PAGE: Final = 1_000


def value_of(number: int) -> bytes:
    return b"%010d" % number + b"x" * 90


def write_many(node: Path, count: int) -> None:
    """A node of one queue, whose messages lie in its index and in the message store."""
    vhost = node / "msg_stores/vhosts/A"
    write_vhost(vhost, "/", entry_count=SEGMENT)
    queue = vhost / "queues/1"
    write_queue(queue, "/", "jobs", {})
    stored: dict[bytes, bytes] = {}
    files = 0
    for first in range(0, count, SEGMENT):
        entries = []
        for number in range(first, min(first + SEGMENT, count)):
            msg_id, term = number.to_bytes(16, "big"), a_term(value_of(number))
            if number % IN_FILES:
                entries.append(published_1(number - first, msg_id, term))
                continue
            entries.append(published_1(number - first, msg_id))
            stored[msg_id] = term
            if len(stored) == FILE_COUNT:
                write_rdq(vhost, files, stored)
                files, stored = files + 1, {}
        (queue / f"{first // SEGMENT}.idx").write_bytes(b"".join(entries))
    write_rdq(vhost, files, stored)


def imported(node: Path, data: Path) -> int:
    """Import with the command itself; returns the most KiB of memory that it had at once."""
    program = str(Path(sys.executable).parent / "bottomless")
    words = ["queue-store", "import-rabbitmq", str(node), "--vhost", "/=default"]
    command = [program, *words, "--data-dir", str(data), "-o", "json"]
    pid = os.posix_spawn(program, command, os.environ)
    _, status, used = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return used.ru_maxrss


def check(data: Path, count: int) -> None:
    store = StoreDirectory(RealFileCalls(), data / "queues")
    descriptors = Descriptors(store.files, 8)
    bodies = Bodies(store.files, store.messages, descriptors)
    ledger = store.open_ledger()
    try:
        row = ledger.queue_named("default", "jobs")
        assert row is not None
        assert (row.sums.ready, row.next_sequence) == (count, count)
        for first in range(0, count, PAGE):
            page = ledger.page(row.inside, first, PAGE)
            assert [one.item.sequence for one in page] == list(range(first, first + len(page)))
            for item, message in page:
                place = BodyPlace(message.msg_id, message.file, message.position, message.size)
                read = decode_envelope(bodies.read(place).body)
                assert bytes(read.value) == value_of(item.sequence)
    finally:
        ledger.close()
        descriptors.close()


def test_an_import_of_many_has_all_in_order_and_takes_no_more_memory_than_one_of_a_few(
    tmp_path: Path,
) -> None:
    write_many(tmp_path / "few", FEW)
    write_many(tmp_path / "many", COUNT)
    least = imported(tmp_path / "few", tmp_path / "few-data")
    most = imported(tmp_path / "many", tmp_path / "many-data")
    print(f"{COUNT:,} messages: {most // 1024} MiB, {FEW:,}: {least // 1024} MiB")
    check(tmp_path / "many-data", COUNT)
    assert most - least <= MORE_KIB
