"""A plan on a disk that its stream left, and came back to: followed only where its own parts are stored."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.guards import remove

from bottomless_server.ingest.staged import batches as staged_module
from unit.ingest.harness import STREAM, IngestHarness, problem
from unit.ingest.staging import (
    LARGE,
    SETTINGS,
    begun_by_an_earlier_build,
    commit,
    cut_off,
    files,
    raise_epoch,
    stage,
)


@pytest.fixture(autouse=True)
def nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_module, "SWEEP_SECONDS", 1e6)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    made = await (await IngestHarness(tmp_path / "ingest", **SETTINGS).declare()).start()
    yield made
    await made.aclose()


@pytest.fixture
async def leaving(tmp_path: Path) -> IngestHarness:
    """One that the test stops."""
    return await (await IngestHarness(tmp_path / "leaving", **SETTINGS).declare()).start()


async def left_as_an_earlier_build_does(harness: IngestHarness, published: int) -> None:
    """Clean, whatever is open: what a build did that looks at no open commits."""
    await harness.published(published)
    with pytest.MonkeyPatch.context() as patch:
        remove(patch, "the look at open commits before a stream is left", lambda _: False)
        await harness.aclose()
    assert not (await harness.record()).dirty


async def test_a_plan_of_an_earlier_build_takes_no_numbers_that_another_owner_gave(
    leaving: IngestHarness, tmp_path: Path
) -> None:
    """The checks before were blind: no stream came back to a plan that was left behind."""
    await begun_by_an_earlier_build(leaving)
    await left_as_an_earlier_build_does(leaving, 1)
    other = await IngestHarness(tmp_path / "b", before=leaving, ingest_url="unix:///b.sock").start()
    assert (await commit(other, await stage(other, "z"))).json()["count"] == 0
    assert (await commit(other, await stage(other, "8"), number=8)).json()["count"] == 1
    await other.service.drain()
    await left_as_an_earlier_build_does(other, 2)

    back = await IngestHarness(leaving.data_dir, before=other).start()
    await back.append("opens the stream")
    await back.service.appenders.finish_commits()
    nine = await commit(back, await stage(back, "9"), number=9)

    assert nine.json()["count"] == 1
    assert [row["value"] for row in await back.rows(2)] == [b"opens the stream", b"9"]
    assert files(back) == []
    assert problem(await commit(back, await stage(back, "9"), number=5))[0] == 409
    await back.aclose()


async def test_what_an_earlier_build_has_begun_is_not_finished_unasked(
    harness: IngestHarness,
) -> None:
    """The writer was perhaps told that it is whole, and counts on with the numbers of its parts."""
    await begun_by_an_earlier_build(harness)
    await harness.service.appenders.finish_commits()
    assert [value[:1] for value in await harness.values()] == [b"0"]
    assert (await raise_epoch(harness)).json()["last_seq"] == 9
    assert [value[:1] for value in await harness.values()] == [b"0", b"1", b"2"]


async def with_another_plan(leaving: IngestHarness, tmp_path: Path) -> IngestHarness:
    """A plan that was never begun, and its number begun in other pieces at another owner, which
    runs an earlier build by now and leaves the stream; it comes back."""
    await cut_off(leaving, 0)
    await leaving.append("before")
    await leaving.service.drain()
    await left_as_an_earlier_build_does(leaving, 1)
    other = await IngestHarness(tmp_path / "b", before=leaving, ingest_url="unix:///b.sock").start()
    await cut_off(other, 1, "210")
    await left_as_an_earlier_build_does(other, 2)
    return await IngestHarness(leaving.data_dir, before=other).start()


async def test_a_plan_is_followed_only_where_its_own_parts_are_stored(
    leaving: IngestHarness, tmp_path: Path
) -> None:
    back = await with_another_plan(leaving, tmp_path)
    await back.append("opens the stream")
    await back.service.appenders.finish_commits()
    assert [row["value"] for row in await back.rows(2)] == [b"opens the stream"]

    refused = await commit(back, await stage(back, "z"))
    assert problem(refused) == (404, "staged-not-found")
    assert (refused.json()["outcome"], refused.json()["stored_parts"]) == ("unknown", 1)
    assert files(back) == [".staged"]
    await back.aclose()


async def test_where_a_plan_cannot_be_compared_the_outcome_is_unknown(
    harness: IngestHarness,
) -> None:
    ids = await cut_off(harness, 1)
    [path] = (harness.data_dir / "staged" / STREAM).glob(f"{ids[0]}*")
    path.write_bytes(path.read_bytes().replace(LARGE[:8].encode(), b"y" * 8))
    refused = await commit(harness, *ids)
    assert problem(refused) == (502, "data-corrupt")
    assert refused.json()["outcome"] == "unknown"
    assert [value[:1] for value in await harness.values()] == [b"0"]


async def test_without_that_comparison_the_rest_of_another_plan_is_stored(
    leaving: IngestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: the guard is taken out, and one record is stored twice, another one never."""

    async def always(*_: object) -> bool:
        return True

    remove(monkeypatch, "the comparison of a plan with what is stored", always)
    back = await with_another_plan(leaving, tmp_path)
    await back.append("opens the stream")
    await back.service.appenders.finish_commits()
    stored = [row["value"][:1] for row in await back.rows(2)]
    assert stored == [b"o", b"1", b"2"], "2 was stored at the other owner, and 0 nowhere"
    await back.aclose()
