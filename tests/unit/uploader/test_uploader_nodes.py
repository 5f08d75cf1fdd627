"""Several ingest nodes behind one uploader: all are followed, and the newest owner is believed."""

import pytest
from support.asgi import on_tcp
from support.chunks import a_chunk
from support.guards import remove
from support.uploader_harness import UploaderHarness
from support.uploading import STREAM_ID, FakeIngest
from support.waiting import eventually

OTHER_ID = "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c12"


async def test_a_node_that_comes_later_is_followed_and_one_that_goes_is_not() -> None:
    harness, other = UploaderHarness(), FakeIngest()
    second = harness.add_stream(OTHER_ID)
    harness.ingest.append(a_chunk(0))
    other.append(a_chunk(0), stream_id=OTHER_ID)
    async with harness.running() as service, on_tcp(other.app()) as port:
        await harness.published(10)
        assert second.published_next == 0
        harness.node_urls.append(f"http://127.0.0.1:{port}")
        await eventually(lambda: second.published_next == 10)

        del harness.node_urls[1]
        await eventually(lambda: service._nodes.count == 1)
        harness.ingest.append(a_chunk(10))
        await harness.published(20)


async def past_owner_beside_the_new_one() -> tuple[UploaderHarness, FakeIngest]:
    """The new owner has shown ten records; the one of the past shows ten others, and more."""
    harness, past = UploaderHarness(), FakeIngest(max_age_ms=5)
    harness.ingest.append(a_chunk(0, epoch=7))
    past.append(a_chunk(0, epoch=6))
    async with harness.running(), on_tcp(past.app()) as port:
        await harness.published(10)
        harness.node_urls.append(f"http://127.0.0.1:{port}")
        past.append(a_chunk(10, epoch=6))
        await eventually(lambda: past.commits_asked > 2)
        harness.ingest.append(a_chunk(10, epoch=7))
        await eventually(lambda: harness.manifest.published_next >= 20)
    return harness, past


async def test_an_owner_of_the_past_is_neither_believed_nor_asked() -> None:
    harness, past = await past_owner_beside_the_new_one()

    assert [info.epoch for info in harness.manifest.applied] == [7, 7]
    assert past.asked == []


async def test_without_the_check_of_the_epoch_chunks_of_the_past_are_uploaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove(monkeypatch, "the epoch of the owner that the uploader follows", lambda *_: True)
    with pytest.raises(AssertionError):
        await test_an_owner_of_the_past_is_neither_believed_nor_asked()


async def test_an_owner_that_the_record_deposed_is_not_uploaded_from() -> None:
    harness = UploaderHarness()
    harness.manifest.epoch = 9
    harness.ingest.append(a_chunk(0, epoch=8))
    async with harness.running() as service:
        await eventually(lambda: STREAM_ID in dict(service.streams.report()["failures"]))
        assert harness.drive.puts == []
        harness.ingest.epoch = 9
        await harness.published(10)
