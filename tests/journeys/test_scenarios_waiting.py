"""Waiting at the end of a stream, and walks over the edges of its tiers: scenarios R12, R13, M3, M5."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.contract import QUICK, Stream, new_stream, problem_of
from support.served import Served
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "1",
    "BOTTOMLESS_INGEST_SEGMENT_CHUNK_COUNT_MAX": "1",
}


def values(page: dict[str, Any]) -> list[str]:
    return [record["value"] for record in page["records"]]


def test_who_waits_at_the_end_is_answered_by_the_next_append(
    running: Served, stream: Stream
) -> None:
    """R12."""
    stream.append("before")

    def wait() -> tuple[float, dict[str, Any]]:
        with running.client() as mine:
            page = Stream(mine, stream.name).page(1, max_wait_ms=30_000)
            return time.monotonic(), page

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        stream.append("after")
        appended = time.monotonic()
        answered, page = waiting.result(60)
    assert values(page) == ["after"]
    assert (page["next_offset"], page["up_to_date"]) == (2, True)
    # The bound is of a slow machine; what would be late is the end of the wait.
    assert answered - appended < 20


def test_many_wait_at_once_and_all_are_answered(running: Served, stream: Stream) -> None:
    """R12. By the offset of what they wait for, so that whoever comes late on a busy machine has it too."""

    def wait(_: int) -> list[str]:
        with running.client() as mine:
            return values(Stream(mine, stream.name).page(0, max_wait_ms=30_000))

    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(wait, number) for number in range(30)]
        with pytest.raises(TimeoutError):
            waiting[0].result(1)
        stream.append("for all")
        # Who is not told waits out its time, and has an empty page then.
        assert [each.result(120) for each in waiting] == [["for all"]] * 30


def test_who_waits_in_vain_gets_an_empty_page_in_time(stream: Stream) -> None:
    """R13."""
    stream.append("before")
    started = time.monotonic()
    page = stream.page(1, max_wait_ms=1500)
    assert time.monotonic() - started > 1.4
    assert (page["records"], page["next_offset"], page["up_to_date"]) == ([], 1, True)


def test_nobody_waits_for_what_is_there(stream: Stream) -> None:
    """R13, from the other side."""
    stream.append(*"abc")
    started = time.monotonic()
    assert values(stream.page(1, max_wait_ms=30_000)) == ["b", "c"]
    assert time.monotonic() - started < 25


@pytest.mark.parametrize("wait", ["30001", "-1", "1.5", "+1", "01", "1e3", "", "ten"])
def test_a_wait_outside_its_range_is_refused(stream: Stream, wait: str) -> None:
    """R13."""
    problem = problem_of(stream.get("next", max_wait_ms=wait), 400, "bad-parameter")
    assert problem["errors"][0]["parameter"] == "max_wait_ms"


def test_the_first_question_after_a_restart_may_wait(running: Served, client: httpx.Client) -> None:
    """R12, cold: nothing but the wait itself wakes the stream up."""
    stream = new_stream(client)
    stream.append("before")
    running.restart()

    def wait() -> dict[str, Any]:
        with running.client() as mine:
            return Stream(mine, stream.name).page(1, max_wait_ms=30_000)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        stream.append("after")
        assert values(waiting.result(20)) == ["after"]


@pytest.mark.parametrize("threshold", [{"min_records": 3}, {"min_bytes": 30}])
def test_who_waits_for_several_is_not_woken_by_one(
    running: Served, stream: Stream, threshold: dict[str, int]
) -> None:
    """R12: by records or by bytes; and with what there is when the time is over."""
    values_sent = [str(number) * 10 for number in range(3)]

    def wait(wait_ms: int) -> dict[str, Any]:
        with running.client() as mine:
            return Stream(mine, stream.name).page("first", max_wait_ms=wait_ms, **threshold)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, 30_000)
        stream.append(values_sent[0])
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        stream.append(values_sent[1])
        stream.append(values_sent[2])
        assert values(waiting.result(20)) == values_sent
    assert values(stream.page(2, max_wait_ms=300, min_records=2)) == values_sent[2:]


def test_r12_the_bounds_can_be_waited_for_too(running: Served, stream: Stream) -> None:
    """R12, without the records: woken by an append, or answered when the time is over."""
    stream.append("before")

    def wait(**parameters: int) -> int:
        with running.client() as mine:
            answer = mine.get(f"{stream.path}/offsets", params=parameters)
            assert answer.status_code == 200, answer.text
            return int(answer.json()["next_offset"])

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, wait_ms=30_000, after=1)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        stream.append("after")
        assert waiting.result(20) == 2
    assert wait(wait_ms=30_000, after=1) == 2
    assert wait(wait_ms=200, after=2) == 2


def test_a_page_that_may_still_grow_has_no_tag(stream: Stream) -> None:
    stream.append("a", "b")
    assert "etag" not in stream.get("first", limit=10).headers
    assert "etag" not in stream.get("next").headers


def test_times_never_go_back(stream: Stream) -> None:
    for number in range(30):
        stream.append(str(number))
    times = [record["timestamp"] for record in stream.page()["records"]]
    assert times == sorted(times)


# A deep manifest


def test_every_neighbour_of_every_edge_is_found(client: httpx.Client) -> None:
    """M3: fragments in groups in kilo-groups, from both sides of each edge, by offset and by time."""
    stream = new_stream(client, QUICK)
    fragments = 40
    for number in range(fragments):
        stream.append(f"{2 * number}:" + "x" * 40_000, f"{2 * number + 1}:" + "y" * 40_000)
        if number % 4 == 3:
            stream.wait_uploaded()
    stream.wait_uploaded()
    listed = client.get(f"{stream.path}/fragments").json()["fragments"]
    assert len(listed) > 4 * 4, "no deep manifest"
    for offset in range(2 * fragments):
        page = stream.page(offset, limit=1)
        record = page["records"][0]
        assert record["offset"] == page["start_offset"] == offset
        assert record["value"].split(":")[0] == str(offset)
        timed = stream.page(f"timestamp:{record['timestamp']}", limit=1)["records"][0]
        assert timed["timestamp"] == record["timestamp"]
        assert timed["offset"] <= offset


def test_a_page_goes_on_from_object_storage_into_the_tail(client: httpx.Client) -> None:
    """M5: nobody sees where one ends and the other begins."""
    stream = new_stream(client, {"fragment": {"target_bytes": 65_536, "max_age_ms": 86_400_000}})
    stream.append(*("x" * 10_000 for _ in range(8)))
    until(lambda: stream.bounds()["object_store_next_offset"] > 0, what="a fragment")
    stream.append("local")
    assert not stream.uploaded()

    def across() -> dict[str, Any] | None:
        page = stream.page(6)
        # A page may end at an edge, and says then that there is more.
        assert page["up_to_date"] == (page["next_offset"] == 9)
        return page if page["up_to_date"] else None

    page = until(across, what="what is uploaded freed")
    assert [record["offset"] for record in page["records"]] == [6, 7, 8]
    assert values(page)[-1] == "local"
    assert page["up_to_date"] is True
