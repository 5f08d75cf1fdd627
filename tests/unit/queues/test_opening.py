"""A directory of queues is opened, or refused with a word on what to do."""

from pathlib import Path

import pytest
from support.guards import remove

from bottomless_server.queues.directory.opening import IMPORT_MARK
from bottomless_server.runtime.base.cannot_start import CannotStart
from unit.queues.engine_harness import Engine, an_engine


async def refused(directory: Path, why: str) -> None:
    before = names(directory)
    engine = Engine(directory)
    with pytest.raises(CannotStart, match=why):
        await engine.open()
    assert names(directory) == before


def names(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


def lose_ledger(directory: Path) -> None:
    for path in directory.glob("ledger.db*"):
        path.unlink()


async def filled(directory: Path, *values: bytes) -> None:
    async with an_engine(directory) as engine:
        await engine.create("jobs")
        if values:
            await engine.publish("jobs", values=values)


@pytest.mark.parametrize("values", [(), (b"one",)], ids=["no message", "a message"])
async def test_a_lost_ledger_is_never_made_anew_by_a_start(
    tmp_path: Path, values: tuple[bytes, ...]
) -> None:
    await filled(tmp_path, *values)
    lose_ledger(tmp_path)
    await refused(tmp_path, "is lost; `bottomless queue-store rebuild`")


async def test_a_ledger_of_no_bytes_is_a_lost_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path, b"one")
    (tmp_path / "ledger.db").write_bytes(b"")
    await refused(tmp_path, "is lost; `bottomless queue-store rebuild`")
    remove(monkeypatch, "an empty ledger beside messages is a lost one", lambda *_: True)
    async with an_engine(tmp_path):
        assert list((tmp_path / "messages").iterdir()) == [], "the only messages are gone"


async def test_a_first_start_that_died_early_is_followed_by_one_that_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "ledger.db").touch()
    await filled(tmp_path, b"one")


async def test_a_damaged_ledger_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path, b"one")
    (tmp_path / "ledger.db").write_bytes(b"no ledger" * 1_000)
    await refused(tmp_path, "is damaged")


async def test_a_ledger_that_is_older_than_its_files_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path, b"one")
    (tmp_path / "messages" / "77.sqs").write_bytes(b"RSQS\x02" + bytes(59))
    await refused(tmp_path, "older than its files")


async def test_an_import_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / IMPORT_MARK).touch()
    await refused(tmp_path, "import-rabbitmq")


async def test_after_an_orderly_stop_nothing_is_looked_at(tmp_path: Path) -> None:
    await filled(tmp_path, b"one")
    async with an_engine(tmp_path) as engine:
        report = engine.engine.start_report
        assert report.open_file is not None
        assert (report.removed, report.cut, report.lost) == ((), (), ())
        assert await engine.drain("jobs") == [b"one"]


async def test_messages_of_a_file_that_is_gone_are_damaged_and_the_start_goes_on(
    tmp_path: Path,
) -> None:
    await filled(tmp_path, b"one", b"two")
    (tmp_path / "messages" / "0.sqs").unlink()
    async with an_engine(tmp_path) as engine:
        assert engine.engine.start_report.damaged_count == 2
        assert await engine.values("jobs") == []
        await engine.publish("jobs", values=[b"three"])
        assert await engine.values("jobs") == [b"three"]
