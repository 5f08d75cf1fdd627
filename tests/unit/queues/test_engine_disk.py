"""The engine of queues on a disk that fails: what is refused, what goes on, and what is there afterwards."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bottomless.errors import Code, Outcome, Unavailable
from bottomless_server.node.file_calls import RealFileCalls
from unit.queues.engine_harness import SETTINGS, TENANT, Engine

REGISTRY = "registry"
MESSAGES = "messages"


class Disk(RealFileCalls):
    """A disk that refuses to write or to sync files below one directory while it is told to."""

    def __init__(self) -> None:
        self.below = ""
        self.number = 0
        self.call = ""
        self._paths: dict[int, Path] = {}

    def refuse(self, call: str, below: str, number: int = errno.EIO) -> None:
        self.call, self.below, self.number = call, below, number

    def work(self) -> None:
        self.call = ""

    def open(self, path: Path, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        self._paths[fd] = path
        return fd

    def pwritev(self, fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        self._look("pwritev", fd)
        return super().pwritev(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        self._look("fdatasync", fd)
        super().fdatasync(fd)

    def _look(self, call: str, fd: int) -> None:
        if call == self.call and self._paths[fd].parent.name == self.below:
            raise OSError(self.number, os.strerror(self.number))


async def running(directory: Path) -> tuple[Engine, Disk]:
    disk = Disk()
    engine = Engine(directory, SETTINGS, disk)
    await engine.open()
    await engine.create("jobs")
    await engine.publish("jobs", values=[b"before", b"too"])
    return engine, disk


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, Code.STORAGE_FULL), (errno.EIO, Code.STORAGE_FAILED)]
)
async def test_while_no_message_can_be_stored_others_are_received_and_acknowledged(
    tmp_path: Path, call: str, number: int, code: Code
) -> None:
    engine, disk = await running(tmp_path)
    disk.refuse(call, MESSAGES, number)
    with pytest.raises(Unavailable) as caught:
        await engine.publish("jobs", values=[b"refused"], key="k", body_hash=b"h")
    # Of a sync that fails nobody knows whether the disk is full.
    assert caught.value.code is (code if call == "pwritev" else Code.STORAGE_FAILED)
    assert caught.value.outcome is Outcome.NONE
    (taken,) = await engine.receive("jobs", limit=1)
    assert await engine.ack("jobs", [taken]) == 1
    disk.work()
    answer = await engine.publish("jobs", values=[b"after"], key="k", body_hash=b"h")
    assert not answer.replayed
    await engine.restart()
    assert engine.engine.start_report.damaged_count == 0
    assert await engine.drain("jobs") == [b"too", b"after"]
    assert await engine.engine.check() == []
    await engine.close()


async def test_a_queue_whose_registry_object_cannot_be_written_waits_and_others_do_not(
    tmp_path: Path,
) -> None:
    engine, disk = await running(tmp_path)
    disk.refuse("fdatasync", REGISTRY)
    with pytest.raises(Unavailable) as caught:
        await engine.create("mail")
    assert (caught.value.code, caught.value.outcome) == (Code.STORAGE_FAILED, Outcome.COMMITTED)
    with pytest.raises(Unavailable) as caught:
        await engine.publish("mail")
    assert caught.value.outcome is Outcome.NONE
    assert await engine.drain("jobs") == [b"before", b"too"]
    disk.work()
    # The round of this one writes the object, and the next publish is taken.
    await engine.publish("jobs", values=[b"after"])
    await engine.create("mail")
    await engine.publish("mail", values=[b"one"])
    assert await engine.drain("mail") == [b"one"]
    assert len(list((tmp_path / REGISTRY).iterdir())) == 2
    await engine.close()


async def test_dead_letters_wait_while_nothing_can_be_stored(tmp_path: Path) -> None:
    engine, disk = await running(tmp_path)
    await engine.create("dead")
    described = await engine.describe("jobs")
    await engine.engine.update_queue(
        TENANT,
        "jobs",
        {"dead_letter": {"queue": "dead"}},
        queue_id=described.queue_id,
        version=described.version,
    )
    disk.refuse("pwritev", MESSAGES, errno.ENOSPC)
    taken = await engine.receive("jobs")
    receipts = [each.receipt for each in taken]
    settled = await engine.engine.nack(TENANT, "jobs", receipts, dead_letter=True)
    assert settled.done == 2
    assert (await engine.describe("jobs")).outgoing == 2
    disk.work()
    await engine.restart()
    await engine.arrived()
    assert await engine.drain("dead") == [b"before", b"too"]
    await engine.close()
