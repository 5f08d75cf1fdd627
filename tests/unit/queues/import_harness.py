"""A small node written by hand, with shapes of 3.11 to 3.13 too, and a store on a disk that loses its power."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.classic_messages import (
    a_term,
    basic_message,
    container,
    content,
    fields,
    index_2,
    journal_entry,
    placed_2,
    published_1,
    settled_1,
    store_2,
    stored_2,
    write_queue,
    write_rdq,
    write_vhost,
)
from support.erlang_terms import as_term
from support.power_loss import PowerLossDisk

from bottomless.formats.envelope import decode_envelope
from bottomless_server.queues.ledger.base import Ledger
from bottomless_server.queues.offline.rabbit_import import Importing, ImportReport, import_node
from bottomless_server.queues.offline.rabbit_survey import survey
from bottomless_server.queues.offline.store_directory import StoreDirectory
from bottomless_server.queues.store.bodies import Bodies, BodyPlace
from bottomless_server.queues.store.descriptors import Descriptors
from unit.formats.examples import a_msg_id
from unit.queues.version_1_harness import DyingLedger, PowerLost

PATH: Final = Path("/queues")
NOW: Final = 1_795_000_000_000
TENANTS: Final = {"/": "default", "eu": "europe"}
IDS: Final = [a_msg_id(number) for number in range(9)]
EXPECTED: Final = {
    ("default", "jobs"): [b"embedded", b"shared", b"in the journal"],
    ("default", "orders"): [b"container", b"shared", b"stored"],
    ("default", "urgent"): [b"nine", b"zero"],
    ("europe", "jobs"): [b"of another vhost"],
}


def write_node(node: Path) -> Path:
    """Two vhosts; indexes of both versions, a journal, priorities, a fan-out, a container of 3.13."""
    root = node / "msg_stores/vhosts"
    one, other = root / "A", root / "B"
    write_vhost(one, "/")
    write_vhost(other, "eu", entry_count=None)
    write_rdq(one, 0, {IDS[7]: a_term(b"dead"), IDS[1]: a_term(b"shared")})
    write_rdq(one, 1, {IDS[2]: a_term(b"stored")})
    write_rdq(one, 2, {IDS[7]: a_term(b"dead")})
    write_rdq(other, 0, {IDS[3]: a_term(b"of another vhost")})
    segment = published_1(0, IDS[0], a_term(b"embedded"), expiry=(NOW + 5_000) * 1_000)
    segment += published_1(1, IDS[7]) + settled_1(1) + settled_1(1) + published_1(2, IDS[1])
    journal = journal_entry(0, 17, fields(IDS[4], a_term(b"in the journal")))
    journal += journal_entry(1, 18, fields(IDS[5], a_term(b"transient")))
    write_queue(one / "queues/1", "/", "jobs", {"0.idx": segment, "journal.jif": journal})
    boxed = as_term(container(content(b"container"), [(b"x-first-death-queue", b"jobs")])) + bytes(
        3
    )
    entries = [
        placed_2(64, len(boxed)),
        bytes(32),
        stored_2(IDS[1]),
        stored_2(IDS[6]),
        stored_2(IDS[2]),
    ]
    files = {"0.qi": index_2(0, 4096, entries), "0.qs": store_2(0, 4096, [boxed])}
    write_queue(one / "queues/2", "/", "orders", files)
    for directory, priority in (("3", 0), ("4", 9)):
        value = b"nine" if priority else b"zero"
        term = as_term(basic_message(content(value), key=b"urgent"))
        data = published_1(0, IDS[8], term)
        write_queue(one / "queues" / directory, "/", f"urgent\0{chr(priority)}", {"0.idx": data})
    write_queue(one / "queues/5", "/", "empty", {"journal.jif": b""})
    write_queue(other / "queues/1", "eu", "jobs", {"0.idx": published_1(0, IDS[3])})
    return node


class MemoryStore(StoreDirectory):
    """A store on a disk that loses its power, with a ledger that loses what was not committed."""

    def __init__(self) -> None:
        self.disk = PowerLossDisk(PATH, sector_size=512)
        super().__init__(self.disk, PATH)
        self.kept: DyingLedger | None = None
        self.calls = 0
        self.dies_at: int | None = None

    def has_ledger(self) -> bool:
        return self.kept is not None

    def open_ledger(self) -> Ledger:
        if self.kept is None:
            self.kept = DyingLedger(bytes(16))
        self.kept.reopen()
        self.kept.tick = self._tick
        return self.kept

    def remove_ledger(self) -> None:
        self.kept = None

    def live(self) -> None:
        """A life begins."""
        self.disk.before = lambda _, __: self._tick()

    def _tick(self) -> None:
        if self.calls == self.dies_at:
            raise PowerLost
        self.calls += 1

    def after_power_loss(self, chance: random.Random) -> "MemoryStore":
        """A store of its own, as one of the states in which it may be found."""
        self.disk.before = lambda _, __: None
        self.disk.end_processes()
        if self.kept is not None:
            self.kept.tick = lambda: None
            self.kept.rollback()
        other = copy.copy(self)
        other.disk, other.kept = copy.deepcopy((self.disk, self.kept))
        other.files = other.disk
        other.dies_at = None
        other.disk.lose_power(chance)
        return other

    def contents(self) -> dict[tuple[str, str], list[bytes]]:
        """What consumers would get, by tenant and queue."""
        ledger = self.open_ledger()
        reader = Bodies(self.disk, self.messages, Descriptors(self.disk, 4))
        found: dict[tuple[str, str], list[bytes]] = {}
        for tenant in TENANTS.values():
            for row in ledger.queues(tenant, "", 100):
                bodies = [
                    reader.read(BodyPlace(one.message.msg_id, *one.message[2:])).body
                    for one in ledger.ready(row.inside, 1_000)
                ]
                found[tenant, row.name] = [bytes(decode_envelope(body).value) for body in bodies]
        return found


def run_import(
    store: StoreDirectory, node: Path, importing: Importing | None = None
) -> ImportReport:
    return import_node(
        store, survey(node), importing or Importing(TENANTS), now=NOW, randomness=counting()
    )


def counting() -> Callable[[int], bytes]:
    """Instead of random bytes those that count up."""
    count = iter(range(1_000_000))
    return lambda size: next(count).to_bytes(size, "big")
